"""Bandwidth of gradient reductions if the servers of all stages reduce at once over shared links."""

from collections.abc import Callable

import numpy as np

NEARLY = 1e-9  # relative difference of loads that counts as none
MostAtOnce = Callable[[np.ndarray, np.ndarray, float], float]


def gradient_nics(most: MostAtOnce, ports: float, servers: int, stage: int) -> float:
    """Return the bandwidth, in NICs, at which each server sends gradients if all servers do so at once.

    A stage is `stage` servers in a row. A server sends either to the next server on the ring of its stage, or in equal
    parts to all other servers of the stage, whichever is faster. Both move the bytes of a ring all-reduce.

    - `most(src, dst, part)`: bandwidth of a server, in NICs, at which the busiest link is full if each pair [F] carries
      `part` of it.
    - `ports`: NICs of a server, an upper bound on the result.
    """
    server = np.arange(servers)
    first = server // stage * stage
    around = most(server, first + (server - first + 1) % stage, 1.0)
    if stage == 2 or around >= ports * (1 - NEARLY):
        return around
    i, j = (x.ravel() for x in np.mgrid[:stage, :stage])
    away = i != j
    src, dst = (
        np.add.outer(np.arange(0, servers, stage), x[away]).ravel() for x in (j, i)
    )  # pairs with the same target are adjacent
    return max(around, most(src, dst, 1 / (stage - 1)))
