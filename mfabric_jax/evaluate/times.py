"""Seconds of many iterations: the clock in batches that caches hold, or a program on accelerators."""

from typing import Any

import jax
import numpy as np

from mfabric_jax.evaluate.sharded import evaluate
from mfabric_jax.platforms import platform
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import FabricRates, Iteration, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

BLOCKS = 1 << 17  # in passes of iterations that are played side by side


def time_iterations(
    workload: Workload,
    rates: FabricRates,
    seconds: BlockSeconds,
    loads: Exchanges,
    rules: Rules,
    which: np.ndarray,
) -> Iteration:
    """Seconds of C iterations, each with its rates and seconds [C] and the all-to-alls `which` [C] of `loads`."""
    loads = loads._replace(count=None)
    if platform() != "cpu":
        return _timed_by_program(workload, rates, loads, seconds, rules, which)
    at_once, timed = max(1, BLOCKS // places(workload).present.size), []
    for start in range(0, len(which), at_once):
        some = slice(start, start + at_once)
        own_rates, own_seconds = jax.tree.map(lambda x, some=some: x[some], (rates, seconds))
        own = jax.tree.map(lambda x, some=some: x[which[some]], loads)
        timed.append(iterations_of(walk(workload, own_rates, own, own_seconds, rules=rules, every=False)))
    return Iteration(*(np.concatenate(column) for column in zip(*timed, strict=True)))


def _timed_by_program(workload, rates, loads, seconds, rules, which) -> Iteration:
    cases = {"rates": rates, "loads": jax.tree.map(lambda x: x[which], loads), "seconds": seconds}
    found = evaluate(jax.tree_util.Partial(_timed, workload, rules), cases, batched=True).arrays
    return Iteration(**{name: np.asarray(values, float) for name, values in found.items()})  # type: ignore[arg-type]


def _timed(workload: Workload, rules: Rules, case: dict[str, Any]) -> dict[str, Any]:
    walked = walk(workload, case["rates"], case["loads"], case["seconds"], rules=rules, every=False)
    return iterations_of(walked)._asdict()
