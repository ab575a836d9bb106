"""What the iterations of a problem send between servers, and the keys of their draws."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax.traffic import dispatched_bytes, server_bytes
from mfabric_jax.traffic.dispatch import even_bytes
from mfabric_jax.workload import Workload

Tokens = Float[np.ndarray, "I layer M R C"]


class BetweenServers(NamedTuple):
    """Demands between the servers of a region [I layer M S S], and that of balanced experts [S S]; zero diagonals."""

    demand: np.ndarray
    even: np.ndarray

    @classmethod
    def of(cls, job: Workload, sent: Tokens) -> "BetweenServers":
        even = server_bytes(even_bytes(job, np.dtype(float)), job.ranks_per_server)
        return cls(between_servers(job, sent), away(even))


def between_servers(job: Workload, sent: Float[np.ndarray, "*N R C"]) -> Float[np.ndarray, "*N S S"]:
    """Bytes between servers; what stays on a server takes part in nothing."""
    return away(server_bytes(dispatched_bytes(job, np.asarray(sent, float)), job.ranks_per_server))


def away(demand: Float[np.ndarray, "*N S S"]) -> Float[np.ndarray, "*N S S"]:
    return demand * (1.0 - np.eye(demand.shape[-1]))
