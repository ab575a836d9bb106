"""Solves and times the iterations of a scenario.

All-to-alls are solved once for all bandwidths: links are multiples of NICs, so times scale with 1 / bandwidth.
"""

import dataclasses
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.array_module import Array
from mfabric_jax.bands import OF_KERNELS, OF_LINKS, PROMPT
from mfabric_jax.case.grid import fabric_reads
from mfabric_jax.case.paths import Case, named_files
from mfabric_jax.case.tree import Measured
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.arranged import AllToAllsOf, inside_of
from mfabric_jax.evaluate.flow_ends import ends_of, slot_of
from mfabric_jax.evaluate.problem import Problem, check_dtype, mean_of_replicas, problem_of, slowest
from mfabric_jax.evaluate.sharded import drop_programs_if_crowded
from mfabric_jax.evaluate.times import time_iterations
from mfabric_jax.fabric.design import group_numbers
from mfabric_jax.resolving.resolve import Resolved, resolve
from mfabric_jax.routing.ends import Ends
from mfabric_jax.text_files import cached_by_files
from mfabric_jax.timing import Iteration
from mfabric_jax.timing.blocks import in_float64
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.workload.compute import BlockSeconds

_ONE = threading.Lock()  # scenarios are solved side by side, of the same tokens
AT_ONCE = 16, 256  # iterations solved together on a CPU and elsewhere


class Simulated(NamedTuple):
    """Results of a scenario; replicas of `exchanges` follow each other along I.

    - `exchanges`: the all-to-alls, [I ...] or [bandwidth I ...], without circuits.
    - `times` [I bandwidth]: of the slowest replica; `replica_s` [I bandwidth]: seconds of the mean replica.
    - `variants`: seconds of the slowest replica [I bandwidth] by column of `bands`, or `PROMPT`.
    - `ends`: of the flows of one dispatch (`flow_ends`), for every bandwidth or for all of them; None: not known.
    """

    scenario: Problem
    exchanges: Exchanges
    times: Iteration
    replica_s: Array
    variants: Mapping[str, Any] = {}
    ends: tuple[Ends | None, ...] = (None,)


# ------------------------------------------------------------------------------------------------------------- solving
def solved_with_ends(one: Problem) -> tuple[Exchanges, list[Ends | None]]:
    """`solve_between`, and when the flows of one dispatch end; nothing of them for a scenario that is drawn again."""
    slot = slot_of(one.workload)
    solved = solve_between(one, None if slot is None else slot.at)
    return solved._replace(count=None), [None] if one.drawn_again else ends_of(one, solved)


def solve_between(one: Problem, shown: tuple | None = ()) -> Exchanges:
    """The all-to-alls between servers [I ...]; [bandwidth I ...] where a scenario `weighs`.

    `shown`: which circuits of [P Q L 2] are shown; (): all.
    """
    found = AllToAllsOf(one, costs=one.costs if one.weighs else None)
    cases, iteration = np.arange(len(one.bandwidths) if one.weighs else 1), np.arange(found.many)
    loads = found.loads(np.tile(iteration, len(cases)), np.repeat(cases, len(iteration)), shown)
    if not one.weighs:
        return loads
    return jax.tree.map(lambda x: x.reshape(len(cases), len(iteration), *x.shape[1:]), loads)


def circuits_now(one: Problem, demand: np.ndarray) -> np.ndarray:
    """Circuits [S S] that the policy of a scenario chooses for a demand alone."""
    case: Any = one.settings.case
    policy = one.settings.circuits_policy(jnp.asarray(one.mean_demand, case.run.dtype))
    region = group_numbers(one.group, case.run.dtype)
    return np.asarray(policy(demand, region, previous=None, key=jax.random.key(case.run.seed)).circuits.count)


def solve(one: Problem) -> Exchanges:
    """All all-to-alls of a scenario, without circuits."""
    return _together(solve_between(one, None), inside_of(one))


def _together(between: Exchanges, inside: np.ndarray) -> Exchanges:
    inside = np.broadcast_to(inside, between.load.shape[:-1])
    return between._replace(inside=inside, count=None)


# -------------------------------------------------------------------------------------------------------------- timing
def times_of(one: Problem, solved: Exchanges, seconds: BlockSeconds | None = None) -> Iteration:
    """Times of the slowest replica [I bandwidth] from the result of `solve`; `seconds` replaces the computation."""
    return slowest(_times_of_replicas(one, solved, seconds), len(one.every_replica))


def _times_of_replicas(one: Problem, solved: Exchanges, seconds: BlockSeconds | None = None) -> Iteration:
    seconds = one.settings.block_seconds(one.workload) if seconds is None else seconds
    (timed,) = _timed(one, solved, [(seconds, "usual")])
    return timed


def _timed(one: Problem, solved: Exchanges, variants: Sequence[tuple[BlockSeconds, str]]) -> list[Iteration]:
    """Iterations of every replica at every bandwidth [replica x I bandwidth] for each (seconds of a block, how fast
    links are)."""
    iterations = solved.load.shape[1 if one.weighs else 0]
    shape = len(variants), iterations, len(one.bandwidths)
    variant, iteration, bandwidth = (each.ravel() for each in np.indices(shape))
    every = [(one.rates(gbps, links), seconds) for seconds, links in variants for gbps in one.bandwidths]
    rates, seconds = in_float64(jax.tree.map(lambda *x: np.stack(x), *every))
    rates, seconds = jax.tree.map(lambda x: x[variant * shape[2] + bandwidth], (rates, seconds))
    which = iteration
    if one.weighs:
        solved = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), solved)
        which = bandwidth * iterations + iteration
    timed = time_iterations(one.workload, rates, in_float64(solved), seconds, one.settings.rules, which)
    columns = [column.reshape(shape) for column in timed]
    return [Iteration(*(column[number] for column in columns)) for number in range(len(variants))]


def simulate_problem(
    one: Problem, exchanges: Exchanges | None = None, found: Sequence[Ends | None] = (None,)
) -> Simulated:
    """Solve and time every iteration; `exchanges`, `found`: reused from a scenario with the same all-to-alls."""
    check_dtype(one.settings.case.run.dtype)
    if exchanges is None:
        between, found = solved_with_ends(one)
        exchanges = _together(between, inside_of(one))
    solved = exchanges
    ways, replicas = _ways(one), len(one.every_replica)
    timed, *others = _timed(one, solved, list(ways.values()))
    names = [name for name in ways if name]
    variants = {name: slowest(each, replicas).iteration_s for name, each in zip(names, others, strict=True)}
    mean = mean_of_replicas(timed, replicas)
    return Simulated(one, solved, slowest(timed, replicas), mean, variants, tuple(found))


def _ways(one: Problem) -> dict[str, tuple[BlockSeconds, str]]:
    """Seconds of a block and how fast links are: as usual (""), and by the column of every variant."""
    settings, job = one.settings, one.workload
    usual = settings.block_seconds(job)
    ways = {"": (usual, "usual")}
    if settings.case.compute.rate.name == "kernels" and not one.drawn_again:
        ways |= {column: (settings.of_kernels(job, how), "usual") for how, column in OF_KERNELS.items()}
        ways |= {column: (usual, how) for how, column in OF_LINKS.items()}
    return ways | ({PROMPT: (usual, PROMPT)} if one.late else {})


def simulate_each(
    every: list[Problem],
    *,
    done: Container[int] = (),
    workers: int = 2,
    progress: Callable[[Problem], None] | None = None,
) -> Iterator[tuple[int, Simulated]]:
    """(number, result) of each scenario that is not `done`, in order of completion.

    `workers` threads solve; equal all-to-alls are solved once.
    """
    drop_programs_if_crowded()
    started: dict[Any, Future] = {}
    left = {number: one for number, one in enumerate(every) if number not in done}
    with ThreadPoolExecutor(workers) as pool:
        for one in sorted(left.values(), key=_work, reverse=True):  # long ones first: the pool stays busy
            for key, work in ((one.between_key, solved_with_ends), (one.inside_key, inside_of)):
                if key not in started:
                    started[key] = pool.submit(work, one)
        parts = {number: (started[one.between_key], started[one.inside_key]) for number, one in left.items()}
        try:
            while parts:
                number = next((n for n, both in parts.items() if all(part.done() for part in both)), None)
                if number is None:
                    running = {part for both in parts.values() for part in both if not part.done()}
                    wait(running, return_when=FIRST_COMPLETED)
                    continue
                (between, found), inside = (part.result() for part in parts.pop(number))
                simulated = simulate_problem(left[number], _together(between, inside), found)
                if progress:
                    progress(simulated.scenario)
                yield number, simulated
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(one: Problem) -> int:
    job, group = one.workload, one.group
    ends = job.ep if group.nic_use == "own" else job.servers_per_region
    return job.moe_layers * ends**4 * (1 if group.oversubscription is None else 2)


HALVINGS = 60


def measured_under(case: Case, path: str) -> bool:
    """Whether the measured iteration of a case ran under the case's own number at `path`."""
    rate: Any = case.compute.rate
    elsewhere = path == "network.nic_gbps" and rate.nic_gbps is not None
    return path != "run.sample" and not elsewhere and fabric_reads(path, {"network.fabric": rate.fabric})


@cached_by_files(named_files, maxsize=64)
def measured_efficiency(case: Case) -> float:
    """`achieved_in` the measured iteration of a resolved case, on its own fabric and NICs."""
    rate = case.compute.rate
    assert isinstance(rate, Measured)
    assert rate.iteration_s is not None
    where = {"network.fabric": rate.fabric, "network.nic_gbps": rate.nic_gbps, "network.nic_use": rate.nic_use}
    there = case.with_(where | {"compute.rate": "efficiency", "network.nics": None, "network.tiers": "fewest"})
    return achieved_in(problem_of(resolve(there), (there.network.nic_gbps,)), rate.iteration_s)


def problem_at(resolved: Resolved, bandwidths: tuple[float, ...], **rest: Any) -> Problem:
    """`problem_of` a case, with the computation rate solved from a measured iteration if there is one."""
    settings = resolved.settings
    if settings.case.compute.rate.name == "measured" and settings.measured is None:
        settings = dataclasses.replace(settings, measured=measured_efficiency(resolved.case))
        resolved = dataclasses.replace(resolved, settings=settings)
    return problem_of(resolved, bandwidths, **rest)


def achieved_in(one: Problem, measured_s: float) -> float:
    """Achieved over peak FLOP/s at which an iteration takes `measured_s`, by bisection with a growing bracket.

    All-to-alls are solved once. `InputError` for less time than the parts that do not depend on the rate.
    """
    solved, at_peak = solve(one), one.settings.block_seconds(one.workload, 1.0)

    def iteration(slower: float) -> float:
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
