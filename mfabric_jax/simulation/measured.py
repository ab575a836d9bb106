"""What a GPU achieves, from one iteration that was measured: the rate with which the simulated one takes as long."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from mfabric_jax.case.grid import fabric_reads
from mfabric_jax.case.paths import Case
from mfabric_jax.case.tree import Measured
from mfabric_jax.checks import InputError
from mfabric_jax.resolving._resolve import Resolved, resolve
from mfabric_jax.simulation.scenario import Scenario, scenario_of
from mfabric_jax.simulation.solving import solve, times_of

HALVINGS = 60


def measured_under(case: Case, path: str) -> bool:
    """Whether the iteration that a case says was measured ran under its number at a path."""
    rate: Any = case.compute.rate
    elsewhere = path == "network.nic_gbps" and rate.nic_gbps is not None
    return path != "run.sample" and not elsewhere and fabric_reads(path, {"network.fabric": rate.fabric})


@functools.lru_cache(maxsize=64)
def measured_efficiency(case: Case) -> float:
    """`achieved_in` the iteration that a resolved case says was measured: its job where that was, at its NICs."""
    rate = case.compute.rate
    assert isinstance(rate, Measured)
    assert rate.iteration_s is not None
    where = {"network.fabric": rate.fabric, "network.nic_gbps": rate.nic_gbps, "network.nic_use": rate.nic_use}
    there = case.with_(where | {"compute.rate": "efficiency", "network.nics": None, "network.tiers": "fewest"})
    return achieved_in(scenario_of(resolve(there), (there.network.nic_gbps,)), rate.iteration_s)


def scenario_at(resolved: Resolved, bandwidths: tuple[float, ...], **rest: Any) -> Scenario:
    """`scenario_of` a case; where an iteration was measured, the rate of computation is solved from it first."""
    settings = resolved.settings
    if settings.rates_from == "measured" and settings.measured is None:
        settings = dataclasses.replace(settings, measured=measured_efficiency(resolved.case))
        resolved = dataclasses.replace(resolved, settings=settings)
    return scenario_of(resolved, bandwidths, **rest)


def achieved_in(one: Scenario, measured_s: float) -> float:
    """Achieved over peak FLOP/s with which an iteration takes `measured_s`.

    An iteration only gets longer as computation slows down, so the rate is bracketed and the bracket halved; the
    all-to-alls are simulated once. Not all of an iteration follows the rate (the optimizer's step is memory's), so the
    bracket grows until it holds. `InputError` for less time than what does not follow it takes.
    """
    solved, at_peak = solve(one), one.settings.block_seconds(one.workload, 1.0)

    def iteration(slower: float) -> float:
        """Seconds of the mean iteration with computation so many times slower than at the peak."""
        timed = times_of(one, solved, jax.tree.map(lambda x: x * slower, at_peak))
        return float(np.asarray(timed.iteration_s, np.float64).mean())

    least = iteration(0.0)
    if measured_s <= least:
        where = f"{one.workload.model} on {one.fabric.name} at {one.bandwidths[0]:g} Gbps"
        raise InputError(
            f"compute.measured.iteration_s must be above {least:.4g}, what {where} takes without its products of "
            f"matrices, got {measured_s:g}."
        )
    low, high = 0.0, 1.0
    while iteration(high) <= measured_s:
        low, high = high, 2 * high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if iteration(middle) > measured_s else (middle, high)
    return 2 / (low + high)
