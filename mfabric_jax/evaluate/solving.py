"""Solve and time the iterations of a problem.

All-to-alls are solved once for all bandwidths: every link is a multiple of a NIC, so times scale with 1 / bandwidth.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from mfabric_jax.case.grid import fabric_reads
from mfabric_jax.case.job import Measured
from mfabric_jax.case.paths import Case, files_of_case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.arranged import AllToAllsOf, inside_of
from mfabric_jax.evaluate.asking import in_chunks
from mfabric_jax.evaluate.on_circuits import policy_rates, solver_inputs
from mfabric_jax.evaluate.problem import Problem, policy_of_mean, problem_of, slowest_columns
from mfabric_jax.evaluate.resolving.resolve import Resolved, resolve
from mfabric_jax.evaluate.solver import Question
from mfabric_jax.support.platforms import platform
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.timing.blocks import Rules, in_float64
from mfabric_jax.timing.iteration import FabricRates, Iteration, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

BLOCKS = 1 << 17  # blocks in one batch of iterations


# ------------------------------------------------------------------------------------------------------------- solving
def solve_between(problem: Problem, shown: tuple[Any, ...] | None = ()) -> Exchanges:
    """Return the all-to-alls between servers [I ...], or [bandwidth I ...] if the problem `weighs`.

    `shown`: index into [P Q L 2] of the circuits to return; (): all; None: none.
    """
    all_to_alls = AllToAllsOf(problem, costs=problem.costs if problem.weighs else None)
    cases, iteration = np.arange(len(problem.bandwidths) if problem.weighs else 1), np.arange(problem.iterations)
    loads = all_to_alls.loads(np.tile(iteration, len(cases)), np.repeat(cases, len(iteration)), shown)
    if not problem.weighs:
        return loads
    return jax.tree.map(lambda x: x.reshape(len(cases), len(iteration), *x.shape[1:]), loads)


def circuits_now(problem: Problem, demand: np.ndarray) -> np.ndarray:
    """Return the circuits [S S] that the policy of a problem chooses for a demand, with uniform circuits in place."""
    functions, reads, uniform = solver_inputs(problem, problem.group, policy_of_mean(problem))
    rates = policy_rates(problem, problem.costs) if problem.weighs else None
    key = jax.random.key_data(jax.random.key(problem.resolved.case.run.seed)) if reads.key else None
    between = demand * (1 - np.eye(len(demand)))
    question = Question(between, uniform, None, key, None if rates is None else rates[0])
    return functions.choose(jax.tree.map(lambda x: np.asarray(x)[None], question))[0]


def solve(problem: Problem) -> Exchanges:
    """Return all all-to-alls of a problem, without the circuits themselves."""
    between = solve_between(problem, None)
    inside = np.broadcast_to(inside_of(problem), between.load.shape[:-1])
    return between._replace(inside=inside, count=None)


# -------------------------------------------------------------------------------------------------------------- timing
def times_of(problem: Problem, solved: Exchanges, seconds: BlockSeconds | None = None) -> Iteration:
    """Return the times of the slowest replica [I bandwidth] from the result of `solve`.

    `seconds` replaces the seconds of a block of the problem.
    """
    own = problem.resolved.block_seconds(problem.workload) if seconds is None else seconds
    iterations = solved.load.shape[1 if problem.weighs else 0]
    iteration, bandwidth = (each.ravel() for each in np.indices((iterations, len(problem.bandwidths))))
    rates = in_float64(jax.tree.map(lambda *x: np.stack(x)[bandwidth], *map(problem.rates, problem.bandwidths)))
    each = jax.tree.map(lambda x: np.full(len(bandwidth), x, float), own)
    which = iteration
    if problem.weighs:
        solved = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), solved)
        which = bandwidth * iterations + iteration
    timed = time_iterations(problem.workload, rates, each, in_float64(solved), problem.resolved.rules, which)
    columns = slowest_columns(timed._asdict(), len(problem.every_replica))
    return Iteration(**{name: columns[name].reshape(-1, len(problem.bandwidths)) for name in timed._fields})


HALVINGS = 60


def is_measured_under(case: Case, path: str) -> bool:
    """Whether the measured iteration of a case ran under the case's own number at `path`."""
    rate: Any = case.compute.rate
    elsewhere = path == "network.nic_gbps" and rate.nic_gbps is not None
    return path != "run.sample" and not elsewhere and fabric_reads(path, {"network.fabric": rate.fabric})


@cached_by_files(files_of_case, maxsize=64)
def solve_efficiency(case: Case) -> float:
    """Return the achieved over peak FLOP/s at which a resolved case takes its measured iteration time, on the fabric
    and NICs of the measurement."""
    rate = case.compute.rate
    assert isinstance(rate, Measured)
    assert rate.iteration_s is not None
    where = {"network.fabric": rate.fabric, "network.nic_gbps": rate.nic_gbps, "network.nic_use": rate.nic_use}
    there = case.with_(where | {"compute.rate": "efficiency", "network.nics": None, "network.tiers": "fewest"})
    return bisect_efficiency(problem_of(resolve(there), (there.network.nic_gbps,)), rate.iteration_s)


def problem_at(resolved: Resolved, bandwidths: tuple[float, ...], **options: Any) -> Problem:
    """Return `problem_of` a case, with the computation rate solved from a measured iteration if there is one."""
    if resolved.case.compute.rate.name == "measured" and resolved.measured is None:
        resolved = dataclasses.replace(resolved, measured=solve_efficiency(resolved.case))
    return problem_of(resolved, bandwidths, **options)


def bisect_efficiency(problem: Problem, measured_s: float) -> float:
    """Return the achieved over peak FLOP/s at which an iteration takes `measured_s`.

    The search is a bisection with a growing bracket; it solves all-to-alls once. Raise InputError if `measured_s` is
    below the time of the parts that do not depend on the rate.
    """
    solved, at_peak = solve(problem), problem.resolved.block_seconds(problem.workload, 1.0)

    def iteration(slower: float) -> float:
        timed = times_of(problem, solved, jax.tree.map(lambda x: x * slower, at_peak))
        return float(np.asarray(timed.iteration_s, np.float64).mean())

    least = iteration(0.0)
    if measured_s <= least:
        where = f"{problem.workload.model} on {problem.fabric.name} at {problem.bandwidths[0]:g} Gbps"
        raise InputError(
            f"compute.measured.iteration_s must be above {least:.4g}, the time of {where} without matrix products, "
            f"got {measured_s:g}."
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


# ------------------------------------------------------------------------------------------------ many iterations
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
