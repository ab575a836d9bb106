"""How much optical switches switch in an iteration."""

from typing import Any

import numpy as np

from mfabric_jax.fabric.design import Fabric
from mfabric_jax.resolving.settings import Settings
from mfabric_jax.workload import Workload


def changes_of(job: Workload, anew: np.ndarray, switch: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of `Exchanges.anew` and `Exchanges.switch` [... P Q L 2]: circuits that are set up anew in an iteration, those of
    all regions of the cluster, and how often the busiest region's switch turns [...].

    A region is the servers of one group of a stage; the groups of a stage are alike.
    """
    groups = max(1, job.servers // (job.pp * job.servers_per_region))
    axes = (-3, -2, -1)
    return groups * anew.sum(axis=(-4, *axes)), switch.sum(axis=axes).max(axis=-1)


def switch_name(settings: Settings, on: Fabric) -> str:
    """For rows: the optical switch that is named; "none" on a fabric without any."""
    optical = on.reconfigures or on.optical_regions is not None
    return (settings.case.circuits.ocs or "unnamed") if optical else "none"


def switching_columns(settings: Settings, on: Fabric, changes: Any, turns: Any, iteration_s: Any) -> dict[str, Any]:
    """Columns of a row: circuits changed in an iteration, how often the busiest region's switch turns in it, and that
    over how often it may (above 1: too often). None: circuits do not change, or nothing is known of the switch."""
    switch = settings.optical_switch if on.reconfigures else None
    allowed = None if switch is None else switch.turns_per_s
    over = None if turns is None or allowed is None else turns / (iteration_s * allowed)
    return {"circuit_changes": changes, "switch_turns": turns, "turns_over_allowed": over}
