"""Bruck's all-to-all: a phase for each digit of the distance between two servers, so that few shifts reach every pair.

The block from server i to server i + r moves in phase k by digit k of r, to the base b, times b^k. S servers need
ceil(log_b S) phases with at most b - 1 shifts each, instead of S - 1 shifts; in return a block takes a hop for each
digit that is not 0. Source: Bruck et al., IEEE TPDS 8, 1997. Ours: demand that is not uniform, and topologies that
serve several phases (`phases`).
"""

from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, whole
from mfabric_jax.circuit_schedules.phases import run_phases
from mfabric_jax.circuit_schedules.registry import checked_demand
from mfabric_jax.circuit_schedules.stages import Stage
from mfabric_jax.fabric.region import Region


def bruck(demand: Any, region: Region, switches: int = 1, *, base: int = 2, **how: Any) -> list[Stage]:
    """Return a stage for each phase, for `staged_time`; a phase without bytes has none.

    - `demand` [S S]: bytes from server i to server j, known before tracing.
    - `how`: delay_s, all_stop, directed, first_free, as for `get`.

    A circuit of both directions carries a shift and its reverse. Packet NICs are not used.
    """
    if whole("base", base) < 2:
        raise InputError(f"base must be at least 2, got {base}.")
    bytes_ = checked_demand(demand, region)
    return run_phases(bruck_steps(len(bytes_), base), bytes_, region, switches, **how)


def bruck_steps(servers: int, base: int) -> np.ndarray:
    """Return by how many servers [P S] the block for the server at each distance moves in each phase."""
    weights = [1]
    while weights[-1] * base < servers:
        weights.append(weights[-1] * base)
    weight = np.array(weights)[:, None]
    return np.arange(servers) // weight % base * weight
