"""Judges schedulers like policies: they plan for a forecast and are timed on the true demand."""

import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax.circuit_schedules.ending import ended
from mfabric_jax.circuit_schedules.planned import scheduler_named
from mfabric_jax.fabric import Region
from mfabric_jax.routing import degree_bound
from mfabric_jax.support.array_module import Array

SCHEDULED = "scheduled"  # takes the place of a routing in rows


def schedules_over_bound(
    name: str, region: Region, seen: Float[Array, "N S S"], true: Float[Array, "N S S"], turn: float
) -> Float[np.ndarray, "N"]:
    """Return the times of schedules over the degree bound; 1 without demand.

    Schedules are planned for `seen` and carry `true`. `turn` is the reconfiguration delay over the degree bound of
    `true`; the first reconfiguration is charged too.
    """
    scheduler, bounds = scheduler_named(name), np.asarray(jax.vmap(lambda one: degree_bound(region, one))(true), float)
    found = np.ones(len(true))
    for at, (bound, guess, demand) in enumerate(zip(bounds, np.asarray(seen), np.asarray(true), strict=True)):
        if bound:
            there = jax.tree.map(np.asarray, Region(**_fields(region) | {"delay_s": turn * bound}))
            found[at] = ended(there, scheduler(guess, there).checked(there), demand) / bound
    return found


def _fields(region: Region) -> dict:
    return {
        "servers": region.servers,
        "nic_gbps": float(region.nic_gbps),
        "optical_degree": int(region.optical_degree),
        "electrical_nics": float(region.electrical_nics),
    }
