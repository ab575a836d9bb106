"""Round robin with two hops: bytes that a pair's own circuits would carry too slowly go through all servers.

RotorNet and Sirius relay because direct circuits give a heavy pair one slot in S - 1. Here relaying takes two stages:

1. Circuits of every pair carry its own bytes up to a threshold. A server cuts what is left of each pair into S equal
   parts, one for each server (it keeps its own part), and sends them in the same slots.
2. When all parts have arrived, every server sends what it holds to its destination.

Slots are as full in stage 2 as in stage 1. If no line exceeds L, both stages take at most 2 (S - 1) / S x L over all
circuits of a server, plus delays. That is half of the full rate, times the share of time that circuits are up. Uniform
demand is entirely below the threshold, and loses nothing. Source: Valiant 1982; as RotorLB in RotorNet (SIGCOMM 2017),
whose servers use no threshold but agree on offers slot by slot, and forward without waiting for all.
"""

import math
from typing import Any

import numpy as np

from mfabric_jax.circuit_schedules.registry import checked_demand, get
from mfabric_jax.circuit_schedules.rotor import ROUNDING
from mfabric_jax.circuit_schedules.stages import Stage
from mfabric_jax.fabric.region import Region


def valiant(demand: Any, region: Region, switches: int = 1, *, slot_s: float | None = None, **how: Any) -> list[Stage]:
    """Return the stages of a two-hop round robin: two, or one if relaying does not pay.

    - `demand` [S S]: bytes from server i to server j, known before tracing.
    - `slot_s`: seconds of every configuration; None: in each stage, as long as one cycle needs.
    - `how`: delay_s, all_stop, directed, first_free, as for `get`.

    The threshold is the entry of the demand (or 0) that makes both stages together shortest. Packet NICs are not used.
    """
    bytes_ = checked_demand(demand, region)
    options = {"switches": switches, **how}
    stages = _spread(bytes_, _threshold(bytes_, region, slot_s, options))
    scheduler = [
        get("rotor", slot_s=slot_s, **options),
        get("rotor", slot_s=slot_s, **{**options, "first_free": False}),
    ]
    return [Stage(plan(stage, region), stage) for plan, stage in zip(scheduler, stages, strict=True) if stage.any()]


def _spread(demand: np.ndarray, threshold: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes [S S] that circuits carry in stage 1 and in stage 2."""
    direct = np.minimum(demand, threshold)
    relayed = (demand - direct) / len(demand)
    other = 1 - np.eye(len(demand))
    return direct + relayed.sum(1)[:, None] * other, relayed.sum(0)[None] * other


def _threshold(demand: np.ndarray, region: Region, slot_s: float | None, options: dict[str, Any]) -> float:
    """Return the threshold whose slots and delays take the fewest seconds."""
    delay = float(region.delay_s if options.get("delay_s") is None else options["delay_s"])
    circuit = float(region.nic_Bps)

    def seconds(threshold: float) -> float:
        slots = [stage.max() / circuit for stage in _spread(demand, threshold) if stage.any()]
        if slot_s is None:
            return sum(slot + delay for slot in slots)
        return sum(math.ceil(slot / slot_s * (1 - ROUNDING)) * (slot_s + delay) for slot in slots)

    return min(np.unique(np.append(demand, 0)).tolist()[::-1], key=seconds)
