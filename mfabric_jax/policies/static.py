"""Policies that do not look at the demand: a round-robin topology, and keeping what is there."""

import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Circuits, Region, round_robin
from mfabric_jax.routing import Plan


def uniform(demand, region: Region, *, previous=None, key=None) -> Plan:
    """Circuits spread evenly over all pairs: as many round-robin matchings as a server has optical NICs.

    Never changes, so it costs no reconfiguration. With odd servers and an odd degree one NIC has to stay idle.
    """
    turns = _turns(region.servers)
    if not len(turns):
        return Plan(Circuits(jnp.zeros((region.servers,) * 2, jnp.int32)))
    degree = jnp.asarray(region.optical_degree).astype(jnp.int32)
    times = (degree - 1 - jnp.arange(len(turns), dtype=jnp.int32)) // len(turns) + 1     # how often each turn is used
    return Plan(Circuits(jnp.einsum("r,rij->ij", times, jnp.asarray(turns))))


def _turns(servers: int) -> np.ndarray:
    """Round-robin matchings; with odd servers, the two that rest in turns running are joined in the second."""
    matchings = round_robin(servers)
    if servers % 2 == 0 or servers < 3:
        return matchings
    turns = np.concatenate([matchings, matchings])
    rests = [int(np.flatnonzero(turn.sum(axis=1) == 0)[0]) for turn in turns]
    for turn in range(1, len(turns), 2):
        a, b = rests[turn - 1], rests[turn]
        turns[turn, a, b] += 1
        turns[turn, b, a] += 1
    return turns


def keep(demand, region: Region, *, previous: Plan | None = None, key=None) -> Plan:
    """The previous topology, whatever the demand; before there is one, the uniform topology."""
    return uniform(demand, region) if previous is None else previous
