"""From the root along the order of the group, or back to it: every member forwards all bytes. Made for many chunks."""

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Builds, Pattern, backwards, of_messages
from mfabric_jax.tasks.graph import Op


def _broadcast(server) -> Pattern:
    place = np.arange(len(server) - 1)
    return of_messages(place, place + 1, 1, np.stack([place[:-1], place[1:]], axis=1))


CHAIN: Builds = {Op.BROADCAST: _broadcast, Op.REDUCE: lambda server: backwards(_broadcast(server))}
