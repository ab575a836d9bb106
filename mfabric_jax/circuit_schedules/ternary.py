"""Ternary all-to-all: in phase k a server exchanges blocks with the servers 3^k before and after it.

The distance of two servers, at most S / 2 in either direction, has balanced ternary digits -1, 0 and 1. A block moves
in phase k by digit k times 3^k. So S servers need ceil(log3 S) phases, and both directions of a circuit carry bytes.
A topology may serve several phases (`phases`). Source: arXiv 2605.26930, known to us by its abstract only: the details
are ours, among them that blocks over a distance of exactly S / 2 move forward, and demand that is not uniform.
"""

from typing import Any

import numpy as np

from mfabric_jax.circuit_schedules.phases import run_phases
from mfabric_jax.circuit_schedules.registry import checked_demand
from mfabric_jax.circuit_schedules.stages import Stage
from mfabric_jax.fabric.region import Region


def ternary(demand: Any, region: Region, switches: int = 1, **how: Any) -> list[Stage]:
    """Return a stage for each phase, for `staged_time`; a phase without bytes has none.

    - `demand` [S S]: bytes from server i to server j, known before tracing.
    - `how`: delay_s, all_stop, directed, first_free, as for `get`.

    Packet NICs are not used.
    """
    bytes_ = checked_demand(demand, region)
    return run_phases(balanced_steps(len(bytes_), 3), bytes_, region, switches, **how)


def balanced_steps(servers: int, base: int) -> np.ndarray:
    """Return by how many servers [P S] the block for the server at each distance moves in each phase.

    Digits lie between -(base - 1) / 2 and (base - 1) / 2, for an odd base.
    """
    left = (np.arange(servers) + (servers - 1) // 2) % servers - (servers - 1) // 2
    steps, weight = [], 1
    while left.any():
        digit = (left + base // 2) % base - base // 2
        steps.append(digit * weight)
        left, weight = (left - digit) // base, weight * base
    return np.array(steps, int).reshape(-1, servers)
