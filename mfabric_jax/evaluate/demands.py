"""What the iterations of a problem send between servers, and the keys of their draws."""

from typing import Any, NamedTuple

import jax
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
        return cls(between_servers(job, sent), even_between_servers(job))


def between_servers(job: Workload, sent: Float[np.ndarray, "*N R C"]) -> Float[np.ndarray, "*N S S"]:
    """Bytes between servers; what stays on a server takes part in nothing."""
    demand = server_bytes(dispatched_bytes(job, np.asarray(sent, float)), job.ranks_per_server)
    return demand * (1.0 - np.eye(demand.shape[-1]))


def even_between_servers(job: Workload) -> Float[np.ndarray, "S S"]:
    """`between_servers` if every expert received equally many tokens."""
    even = server_bytes(even_bytes(job, np.dtype(float)), job.ranks_per_server)
    return even * (1.0 - np.eye(len(even)))


def own_keys(one: Any) -> np.ndarray:
    """Key data of every iteration of every replica [I 2]."""
    key, every = jax.random.key(one.resolved.case.run.seed), []
    for at, replica in enumerate(one.every_replica):
        every.append(jax.random.split(jax.random.fold_in(key, at) if at else key, len(replica.count)))
    return np.concatenate([np.asarray(jax.random.key_data(each)) for each in every])
