"""Policies that do not look at the demand: a round-robin topology, and keeping what is there."""

import jax.numpy as jnp

from mfabric_jax.fabric import Circuits, Region, round_robin
from mfabric_jax.routing import Plan


def uniform(demand, region: Region, *, previous=None, key=None) -> Plan:
    """Circuits spread evenly over all pairs: as many round-robin matchings as a server has optical NICs.

    Never changes, so it costs no reconfiguration. With an odd number of servers one rests in each matching.
    """
    matchings = round_robin(region.servers)
    rounds = len(matchings)
    if not rounds:
        return Plan(Circuits(jnp.zeros((region.servers,) * 2, jnp.int32)))
    degree = jnp.asarray(region.optical_degree).astype(jnp.int32)
    times = (degree - 1 - jnp.arange(rounds, dtype=jnp.int32)) // rounds + 1         # how often each matching is used
    return Plan(Circuits(jnp.einsum("r,rij->ij", times, jnp.asarray(matchings))))


def keep(demand, region: Region, *, previous: Plan | None = None, key=None) -> Plan:
    """The previous topology, whatever the demand; before there is one, the uniform topology."""
    return uniform(demand, region) if previous is None else previous
