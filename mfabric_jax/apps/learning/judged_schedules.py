"""Judge schedulers like policies: they plan for a forecast and are timed on the true demand."""

import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax.circuit_schedules.ending import schedule_end_s
from mfabric_jax.circuit_schedules.planned import scheduler_named
from mfabric_jax.fabric import Region
from mfabric_jax.routing import degree_bound
from mfabric_jax.support.array_module import Array

SCHEDULED = "scheduled"  # replaces the name of a routing in rows


def schedules_over_bound(
    name: str, region: Region, seen: Float[Array, "N S S"], true: Float[Array, "N S S"], relative_delay: float
) -> Float[np.ndarray, "N"]:
    """Return the times of schedules over the degree bound; 1 without demand.

    Schedules are planned for `seen` and carry `true`. `relative_delay` is the reconfiguration delay over the degree
    bound of `true`; the first reconfiguration is charged too.
    """
    scheduler, bounds = (
        scheduler_named(name),
        np.asarray(jax.vmap(lambda matrix: degree_bound(region, matrix))(true), float),
    )
    times = np.ones(len(true))
    for index, (bound, guess, demand) in enumerate(zip(bounds, np.asarray(seen), np.asarray(true), strict=True)):
        if bound:
            there = jax.tree.map(np.asarray, Region(**_fields(region) | {"delay_s": relative_delay * bound}))
            times[index] = schedule_end_s(there, scheduler(guess, there).check_region(there), demand) / bound
    return times


def _fields(region: Region) -> dict:
    return {
        "servers": region.servers,
        "nic_gbps": float(region.nic_gbps),
        "optical_degree": int(region.optical_degree),
        "electrical_nics": float(region.electrical_nics),
    }
