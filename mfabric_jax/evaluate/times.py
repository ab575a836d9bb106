"""Seconds of many iterations: NumPy computes them in batches that fit caches; accelerators run a JAX program."""

import jax
import numpy as np

from mfabric_jax.evaluate.asking import in_chunks
from mfabric_jax.support.platforms import platform
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import FabricRates, Iteration, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

BLOCKS = 1 << 17  # blocks in one batch of iterations


def time_iterations(
    workload: Workload,
    rates: FabricRates,
    seconds: BlockSeconds,
    loads: Exchanges,
    rules: Rules,
    which: np.ndarray,
) -> Iteration:
    """Return the seconds of C iterations; each has its own rates and seconds [C], and all-to-alls `loads[which]`."""
    loads = loads._replace(count=None)
    if platform() != "cpu":
        own = jax.tree.map(lambda x: x[which], loads)
        timed = in_chunks(_time_chunk, (rates, own, seconds), workload, rules)
        return jax.tree.map(lambda x: np.asarray(x, float), timed)
    at_once, timed = max(1, BLOCKS // places(workload).present.size), []
    for start in range(0, len(which), at_once):
        some = slice(start, start + at_once)
        own_rates, own_seconds = jax.tree.map(lambda x, some=some: x[some], (rates, seconds))
        own = jax.tree.map(lambda x, some=some: x[which[some]], loads)
        timed.append(iterations_of(walk(workload, own_rates, own, own_seconds, rules=rules, every=False)))
    return Iteration(*(np.concatenate(column) for column in zip(*timed, strict=True)))


def _time_chunk(
    rates: FabricRates, loads: Exchanges, seconds: BlockSeconds, workload: Workload, rules: Rules
) -> Iteration:
    return iterations_of(walk(workload, rates, loads, seconds, rules=rules, every=False))
