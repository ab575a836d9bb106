"""The fewest GPUs whose best set-up trains the tokens of a case in time."""

import math
from collections.abc import Callable
from typing import NamedTuple

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate.resolving.resolve import gpu_of, resolve_without_jax, without_search
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.evaluate.rows.costs import SECONDS_AN_HOUR
from mfabric_jax.workload.compute import iteration_flops

GPUS = "job.parallel.gpus"
MOST_GPUS = 1 << 17
SECONDS_A_DAY = 24 * SECONDS_AN_HOUR


class GpuCount(NamedTuple):
    """A number of GPUs that was tried, with the days of the training under its best set-up; None: no set-up can be."""

    gpus: int
    days: float | None
    seconds: float | None = None
    words: str = ""

    def within(self, days: float) -> bool:
        return self.days is not None and self.days <= days


def fewest_gpus(case: Case, days: float, progress: Callable[[str], None] = lambda words: None) -> list[GpuCount]:
    """Return the numbers of GPUs that were tried, in order; the fewest within the days is the answer.

    Servers are doubled until the training is in time, then bisected. Each number is one search, before which `progress`
    is called with words. Raise `Misfit` if `MOST_GPUS` are too few.
    """
    server, tried = gpu_of(case).gpus_per_server, []

    def try_servers(count: int) -> bool:
        progress(f"{count * server:,} GPUs")
        tried.append(_count(case, count * server))
        return tried[-1].within(days)

    least = least_servers(case, days)
    too_few, enough = least - 1, 1 << (least - 1).bit_length()
    while not try_servers(enough):
        too_few, enough = enough, 2 * enough
        if enough * server > MOST_GPUS:
            raise Misfit(_refusal(case, days, tried))
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if try_servers(middle) else (middle, enough)
    return tried


def least_servers(case: Case, days: float) -> int:
    """Return servers below which even the peak of their GPUs is too slow; 1 where rates may exceed the peak."""
    if case.compute.rate.name != "kernels":
        return 1
    try:
        resolved = resolve_without_jax(without_search(case.with_({GPUS: None})))
    except InputError:
        return 1
    job, gpu = resolved.job, resolved.server
    flops = case.job.training_tokens * iteration_flops(job) / job.iteration_tokens  # type: ignore[operator]
    per_server = gpu.peak(resolved.case.job.precision.compute) * gpu.gpus_per_server  # type: ignore[arg-type]
    return max(1, math.ceil(flops / (per_server * days * SECONDS_A_DAY)))


def _count(case: Case, gpus: int) -> GpuCount:
    try:
        resolved = resolve_without_jax(case.with_({GPUS: gpus}))
    except InputError:
        return GpuCount(gpus, None)
    return GpuCount(gpus, days_of(resolved), resolved.searched.seconds, resolved.searched.best.words)


def days_of(resolved: Resolved) -> float:
    """Return the days of the training under the fastest set-up."""
    iterations = resolved.case.job.training_tokens / resolved.job.iteration_tokens  # type: ignore[operator]
    return iterations * resolved.searched.seconds / SECONDS_A_DAY


def _refusal(case: Case, days: float, tried: list[GpuCount]) -> str:
    known = [count.days for count in tried if count.days is not None]
    best = f"; the quickest takes {min(known):,.1f} days" if known else "; no set-up can be"
    return f"no set-up of {case.model.name} on up to {MOST_GPUS:,} GPUs takes at most {days:g} days{best}."
