"""Solves and times the iterations of a scenario.

All-to-alls are solved once for all bandwidths: links are multiples of NICs, so times scale with 1 / bandwidth.
"""

import dataclasses
import functools
import threading
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import programs, traffic, units
from mfabric_jax.array_module import Array
from mfabric_jax.bands import OF_KERNELS, OF_LINKS, PROMPT
from mfabric_jax.case.grid import fabric_reads
from mfabric_jax.case.paths import Case, named_files
from mfabric_jax.case.policies import BOUND
from mfabric_jax.case.tree import Measured
from mfabric_jax.checks import InputError
from mfabric_jax.fabric.design import Form, group_numbers
from mfabric_jax.fabric.tree import roomy_radix
from mfabric_jax.platforms import mapped
from mfabric_jax.policies import check_legal, is_own, takes_many
from mfabric_jax.resolving.resolve import Resolved, resolve
from mfabric_jax.routing.ends import Ends
from mfabric_jax.routing.fixed import SinglePaths, single_part_times, single_paths, single_ways
from mfabric_jax.routing.graphs import ways_on_links
from mfabric_jax.simulation.batch import drop_programs_if_crowded
from mfabric_jax.simulation.flow_ends import ends_of
from mfabric_jax.simulation.on_host import (
    busy_of_blocks,
    covers,
    sent_early,
    solved_between,
    solved_inside,
    times_on_host,
)
from mfabric_jax.simulation.scenario import Scenario, check_dtype, mean_of_replicas, scenario_of, slowest
from mfabric_jax.text_files import cached_by_files
from mfabric_jax.timing import First, Iteration
from mfabric_jax.timing.exchange import exchanges_between, moving
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.timing.scheduled import Pace, region_at
from mfabric_jax.timing.switching import LONG, Span, TradeOff, in_region, trade_off_of
from mfabric_jax.traffic import Tokens
from mfabric_jax.traffic.dispatch import PER_SERVER, dispatch_of, sent_as, summed_by_server
from mfabric_jax.traffic.placement import copied_experts, in_slots
from mfabric_jax.traffic.predictor import WINDOW
from mfabric_jax.traffic.scenarios import error_of
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.volume import expert_state_bytes

_ONE = threading.Lock()  # scenarios are solved side by side, of the same tokens
AT_ONCE = 16, 256  # iterations solved together on a CPU and elsewhere


class Simulated(NamedTuple):
    """Results of a scenario; replicas of `exchanges` follow each other along I.

    - `exchanges`: the all-to-alls, [I ...] or [bandwidth I ...], without circuits.
    - `times` [I bandwidth]: of the slowest replica; `replica_s` [I bandwidth]: seconds of the mean replica.
    - `variants`: seconds of the slowest replica [I bandwidth] by column of `bands`, or `PROMPT`.
    - `ends`: of the flows of one dispatch (`flow_ends`), for every bandwidth or for all of them; None: not known.
    """

    scenario: Scenario
    exchanges: Exchanges
    times: Iteration
    replica_s: Array
    variants: Mapping[str, Any] = {}
    ends: tuple[Ends | None, ...] = (None,)


# ------------------------------------------------------------------------------------------------------------- solving
class Given(NamedTuple):
    """Input of one iteration, or of all [I ...], for the solver."""

    tokens: Array
    guess: Array | None
    sigma: Array | None
    past: Array | None
    key: Array
    moves: Array | None = None

    def at(self, sample) -> "Given":
        return jax.tree.map(lambda x: x[sample], self)


class Program(eqx.Module):
    """Solver of all-to-alls with what all iterations share; `run` [I layer M R E]: selections for run-long circuits."""

    workload: Workload = eqx.field(static=True)
    routing: str = eqx.field(static=True)
    first: str = eqx.field(static=True)
    cold: bool = eqx.field(static=True)
    span: str = eqx.field(static=True)
    partial: bool = eqx.field(static=True)
    scenarios: int = eqx.field(static=True)
    tile: int | None = eqx.field(static=True)  # of experts; None: they are balanced
    early: bool = eqx.field(static=True)  # ranks send as soon as their own experts finish
    acks: float = eqx.field(static=True)  # of the data, in the other direction
    always: bool = eqx.field(static=True)  # the switch turns for every block, even if circuits stay
    own: bool = eqx.field(static=True)  # a policy of the user's, which may look at the region's bandwidth and delay
    policy: Any
    carry: Any
    run: Any
    run_key: Any

    def between(self, group, given: Given, trade_off: TradeOff | None) -> Exchanges:
        busy = self.busy(given.tokens)
        if trade_off is not None and busy is not None:
            trade_off = trade_off._replace(busy=busy)
        first = First(self.first, given.guess, trade_off, self.cold, self.scenarios, given.sigma)
        past = None if given.past is None else given.past[None]
        span = Span(self.span, past) if self.run is None else Span(self.span, self.run, self.run_key)
        rest = {"first": first, "span": span, "partial": self.partial, "carry": self.carry, "key": given.key}
        rest["acks"] = self.acks
        policy = self.policy
        if self.own and trade_off is not None:
            policy = in_region(policy, region_at(group, Pace.of(trade_off)))
        solved = exchanges_between(self.workload, group, given.tokens, policy, routing=self.routing, **rest)
        if self.always:
            moe = places(self.workload).layer >= 0
            always = jnp.asarray(np.stack([moe, np.zeros_like(moe)], axis=-1))
            solved = solved._replace(switch=solved.switch | always)
        moved = None if given.moves is None else moving(self.workload, group, given.moves, self.routing, self.carry)
        sent = sent_early(self.workload, group, given.tokens, self.tile) if self.early else None
        return solved._replace(busy=busy, early=sent, moved=moved)

    def busy(self, tokens: Array) -> Array | None:
        return None if self.tile is None else busy_of_blocks(self.workload, tokens, self.tile)


def program_of(one: Scenario, carry: Any = None) -> Program:
    """`carry`: that of the scenario (`carried`), if it is known already."""
    settings, changes = one.settings, one.group.reconfigures
    case: Any = settings.case
    experts, turn = case.compute.experts, case.circuits.turn
    policy = settings.circuits_policy(jnp.asarray(one.mean_demand, settings.case.run.dtype))
    span, first = (one.circuits_for, settings.first) if changes else ("all-to-all", "block")
    span = "all-to-all" if first == BOUND else span
    return Program(
        workload=one.workload,
        routing=BOUND if first == BOUND else settings.routing,
        first=first,
        cold=settings.case.circuits.cold_start,
        span=span,
        partial=settings.case.circuits.partial and changes,
        scenarios=turn.scenarios if first == "predict" and takes_many(policy) else 0,
        tile=experts.tile if experts.name == "received" else None,
        early=experts.name == "received" and experts.combine == "rank",
        acks=settings.carried_by.acks_back,
        always=turn.name == "always" and changes,
        own=is_own(settings.policy) and changes,
        policy=policy,
        carry=carried(one) if carry is None else carry,
        run=planned_on(one) if span == "run" else None,
        run_key=jax.random.key(settings.case.run.seed) if span == "run" else None,
    )


def planned_on(one: Scenario) -> np.ndarray:
    """Selections [I layer M R E] on which long spans are planned."""
    if one.settings.plan_on == "span":
        return np.asarray(one.sent, one.settings.case.run.dtype)
    with _ONE:
        past = _past(one.workload, one.tokens, 1 if one.circuits_for == "run" else len(one.tokens.count))
    return np.asarray(past, one.settings.case.run.dtype)


@functools.lru_cache(maxsize=4)
def _past(workload: Workload, tokens: Tokens, iterations: int) -> np.ndarray:
    return sent_as(workload, iterations_before(tokens)[:iterations])


def given_of(one: Scenario) -> Given:
    each = [_given(replica, at) for at, replica in enumerate(one.each_replica)]
    return each[0] if len(each) == 1 else jax.tree.map(lambda *x: jnp.concatenate(x), *each)


def _given(one: Scenario, replica: int) -> Given:
    settings, sent = one.settings, one.sent
    turn: Any = settings.case.circuits.turn
    guess = sigma = past = None
    if settings.first == "predict" and one.group.reconfigures:
        guess = sent_as(one.workload, predicted_tokens(one.tokens, turn.predictor))
        sigma = np.full(len(sent), SIGMA if turn.sigma is None else turn.sigma)
        if turn.sigma is None and takes_many(settings.circuits_policy()):
            sigma = errors_so_far(sent, guess, one.workload)
    if one.circuits_for in ("stage", "iteration") and one.group.reconfigures:
        past = planned_on(one)
    guess, sigma, past = (None if x is None else jnp.asarray(x, settings.case.run.dtype) for x in (guess, sigma, past))
    key = jax.random.key(settings.case.run.seed)
    keys = jax.random.split(jax.random.fold_in(key, replica) if replica else key, len(sent))
    return Given(jnp.asarray(sent, settings.case.run.dtype), guess, sigma, past, keys, moves_of(one))


def moves_of(one: Scenario) -> Array | None:
    """Bytes per iteration that move with experts from rank to rank [I stage R R]; None where none move."""
    settings, job, slots = one.settings, one.workload, one.tokens.slots
    every = getattr(settings.case.placement.rule, "every", 0)
    if not every or slots is None:
        return None
    copied = copied_experts(slots, settings.room(job), every)
    layers = [[layer % slots.shape[1] for layer in job.stage_layers(stage)] for stage in range(job.pp)]
    stages = np.stack([copied[:, some].sum(axis=1) for some in layers], axis=1)
    return jnp.asarray(stages * expert_state_bytes(job), settings.case.run.dtype)


def trade_off_at(one: Scenario, nic_gbps: float) -> TradeOff:
    rates, seconds = _arrays((one.rates(nic_gbps), one.seconds), one.settings.case.run.dtype)
    return trade_off_of(one.workload, rates, seconds, one.settings.routing)


def _arrays(numbers: Any, dtype: str) -> Any:
    return jax.tree.map(lambda x: jnp.asarray(x, dtype), numbers)


def solved_with_ends(one: Scenario) -> tuple[Exchanges, list[Ends | None]]:
    """`solve_between`, and when the flows of one dispatch end; nothing of them for a scenario that is drawn again."""
    carry = carried(one)
    solved = solve_between(one, carry)
    return solved._replace(count=None), [None] if one.drawn_again else ends_of(one, solved, carry)


def solve_between(one: Scenario, carry: Any = None) -> Exchanges:
    """The all-to-alls between servers [I ...]; [bandwidth I ...] where a scenario `weighs`. NumPy arrays.

    `carry`: that of the scenario (`carried`), if it is known already.
    """
    settings = one.settings
    if covers(one):
        if not one.group.reconfigures:
            return solved_between(one, carried(one) if carry is None else carry, None)
        spans = one.each_replica if one.circuits_for in LONG else []
        return solved_between(one, None, np.concatenate([planned_on(each) for each in spans]) if spans else None)
    given = program_of(one, carry), group_numbers(one.group, settings.case.run.dtype), given_of(one)
    if one.weighs:
        each = [programs.run(_solve_weighed, *given, trade_off_at(one, gbps)) for gbps in one.bandwidths]
        solved = jax.tree.map(lambda *x: np.stack(x), *each)
    else:
        solved = programs.run(_solve_all, *given)
    if is_own(settings.policy) and one.group.reconfigures and solved.count is not None:
        check_legal(settings.policy_name, np.asarray(solved.count), int(one.group.optical_degree))
    return solved


def _solve_all(program: Program, group, given: Given) -> Exchanges:
    return _each_iteration(lambda one: program.between(group, one, None), given)


def _solve_weighed(program: Program, group, given: Given, trade_off: TradeOff) -> Exchanges:
    return _each_iteration(lambda one: program.between(group, one, trade_off), given)


def _each_iteration(work, over):
    return mapped(work, over, *AT_ONCE)


def solve(one: Scenario) -> Exchanges:
    """All all-to-alls of a scenario, without circuits."""
    return _together(solve_between(one), solved_inside(one))


def _together(between: Exchanges, inside: np.ndarray) -> Exchanges:
    inside = np.broadcast_to(inside, between.load.shape[:-1])
    return between._replace(inside=inside, count=None)


# -------------------------------------------------------------------------------------------------------------- timing
def times_of(one: Scenario, solved: Exchanges, seconds: BlockSeconds | None = None) -> Iteration:
    """Times of the slowest replica [I bandwidth] from the result of `solve`; `seconds` replaces the computation."""
    return slowest(_times_of_replicas(one, solved, seconds), len(one.every_replica))


def _times_of_replicas(one: Scenario, solved: Exchanges, seconds: BlockSeconds | None = None) -> Iteration:
    seconds = one.settings.block_seconds(one.workload) if seconds is None else seconds
    (timed,) = times_on_host(one, solved, [(seconds, "usual")])
    return timed


def simulate_scenario(
    one: Scenario, exchanges: Exchanges | None = None, found: Sequence[Ends | None] = (None,)
) -> Simulated:
    """Solve and time every iteration; `exchanges`, `found`: reused from a scenario with the same all-to-alls."""
    check_dtype(one.settings.case.run.dtype)
    if exchanges is None:
        between, found = solved_with_ends(one)
        exchanges = _together(between, solved_inside(one))
    solved = exchanges
    ways, replicas = _ways(one), len(one.every_replica)
    timed, *others = times_on_host(one, solved, list(ways.values()))
    names = [name for name in ways if name]
    variants = {name: slowest(each, replicas).iteration_s for name, each in zip(names, others, strict=True)}
    mean = mean_of_replicas(timed, replicas)
    return Simulated(one, solved, slowest(timed, replicas), mean, variants, tuple(found))


def _ways(one: Scenario) -> dict[str, tuple[BlockSeconds, str]]:
    """Seconds of a block and how fast links are: as usual (""), and by the column of every variant."""
    settings, job = one.settings, one.workload
    usual = settings.block_seconds(job)
    ways = {"": (usual, "usual")}
    if settings.case.compute.rate.name == "kernels" and not one.drawn_again:
        ways |= {column: (settings.of_kernels(job, how), "usual") for how, column in OF_KERNELS.items()}
        ways |= {column: (usual, how) for how, column in OF_LINKS.items()}
    return ways | ({PROMPT: (usual, PROMPT)} if one.late else {})


def simulate_each(
    every: list[Scenario],
    *,
    done: Container[int] = (),
    workers: int = 2,
    progress: Callable[[Scenario], None] | None = None,
) -> Iterator[tuple[int, Simulated]]:
    """(number, result) of each scenario that is not `done`, in order of completion.

    `workers` threads solve; equal all-to-alls are solved once.
    """
    drop_programs_if_crowded()
    started: dict[Any, Future] = {}
    left = {number: one for number, one in enumerate(every) if number not in done}
    with ThreadPoolExecutor(workers) as pool:
        for one in sorted(left.values(), key=_work, reverse=True):  # long ones first: the pool stays busy
            for key, work in ((one.between_key, solved_with_ends), (one.inside_key, solved_inside)):
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
                simulated = simulate_scenario(left[number], _together(between, inside), found)
                if progress:
                    progress(simulated.scenario)
                yield number, simulated
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _work(one: Scenario) -> int:
    job, group = one.workload, one.group
    ends = job.ep if group.nic_use == "own" else job.servers_per_region
    return job.moe_layers * ends**4 * (1 if group.oversubscription is None else 2)


# --------------------------------------------------------------------------------------- flows that take one path each
WIDE = 1e15  # gigabytes/s: no limit


def carried(one: Scenario) -> Any:
    """`carry` of `timing.exchanges`; None: bytes spread over circuits, NICs and links."""
    settings, group, job = one.settings, one.group, one.workload
    paths: Any = settings.case.network.paths
    if group.shares_links:
        return ways_on_links(group, job, paths.name, settings.case.run.seed)
    if paths.name == "spray" or not one.fabric.single_paths(settings):
        return None
    if group.reconfigures:
        if paths.circuits == "pooled":
            return None
        return single_part_times(_flows(job), int(group.electrical_nics), seed=settings.case.run.seed)
    if group.forwards:
        return single_ways(group, job.ep, job.tp, job.gpus_per_server, seed=settings.case.run.seed)
    return _over_switches(one)


def _flows(job: Workload) -> int:
    return job.ranks_per_server ** (1 if job.dispatch == PER_SERVER else 2) * job.tp


def _over_switches(one: Scenario) -> SinglePaths:
    network, group, job = one.settings.case.network, one.group, one.workload
    paths: Any = network.paths
    if group.nics != job.gpus_per_server:
        raise InputError(f"single paths are drawn for one NIC a GPU ({job.gpus_per_server}), got {group.nics} nics.")
    gpus = job.ep * job.tp
    groups = 1 if paths.busy == "group" else job.gpus // gpus
    servers = max(2, -(-groups * gpus // job.gpus_per_server))
    one_switch = one.settings.tiers == 1  # has room for all NICs
    radix = servers * group.nics if one_switch else roomy_radix(network.radix, servers, group.nics)
    form = Form(radix=radix, pxn=group.pxn, nic_use=group.nic_use, gpus_per_server=job.gpus_per_server)
    form = dataclasses.replace(form, tiers=1) if one_switch else form
    there = one.fabric.cluster(servers, units.to_gbps(1.0), form, {"nvswitch_gigabytes_per_s": WIDE})
    return single_paths(there, job.ep, job.tp, groups=groups, seed=one.settings.case.run.seed)


SIGMA = 0.3  # prediction error without past iterations: about that of the moving average on traffic of trained models


def predicted_tokens(tokens: Tokens, predictor: str) -> np.ndarray:
    with _ONE:
        return _predicted(tokens, predictor)


@functools.lru_cache(maxsize=8)
def _predicted(tokens: Tokens, predictor: str) -> np.ndarray:
    return as_placed(tokens, lambda own: traffic.predicted(own, predictor))


def errors_so_far(sent: np.ndarray, predicted: np.ndarray, workload: Workload) -> np.ndarray:
    """Standard deviation of the log prediction error between servers, over the last `WINDOW` iterations before each
    [I].

    Iteration 0 is left out, as its prediction is uniform.
    """
    seen, true = (_between(workload, np.asarray(count)) for count in (predicted, sent))
    past = [slice(max(1, at - WINDOW), at) for at in range(len(true))]
    servers = true.shape[-1]
    flat = [(seen[some].reshape(-1, servers, servers), true[some].reshape(-1, servers, servers)) for some in past]
    return np.array([error_of(*both) if len(both[0]) else SIGMA for both in flat])


def _between(workload: Workload, count: np.ndarray) -> np.ndarray:
    work = jax.jit(jax.vmap(lambda one: summed_by_server(dispatch_of(workload, one), workload.ranks_per_server)))
    flat = np.asarray(work(jnp.asarray(count.reshape(-1, *count.shape[3:]))))
    return flat.reshape(*count.shape[:3], *flat.shape[1:])


def iterations_before(tokens: Tokens) -> np.ndarray:
    def before(own: Tokens) -> np.ndarray:
        assert own.before is not None
        return np.concatenate([own.before[None], own.count[:-1]])

    return as_placed(tokens, before)


def as_placed(tokens: Tokens, work: Callable[[Tokens], np.ndarray]) -> np.ndarray:
    """Result of `work` [I layer M R E], by slot instead of expert where experts are placed."""
    if tokens.slots is None or tokens.by_expert is None:
        return work(tokens)
    return in_slots(work(tokens.by_expert), tokens.slots)


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
    return achieved_in(scenario_of(resolve(there), (there.network.nic_gbps,)), rate.iteration_s)


def scenario_at(resolved: Resolved, bandwidths: tuple[float, ...], **rest: Any) -> Scenario:
    """`scenario_of` a case, with the computation rate solved from a measured iteration if there is one."""
    settings = resolved.settings
    if settings.case.compute.rate.name == "measured" and settings.measured is None:
        settings = dataclasses.replace(settings, measured=measured_efficiency(resolved.case))
        resolved = dataclasses.replace(resolved, settings=settings)
    return scenario_of(resolved, bandwidths, **rest)


def achieved_in(one: Scenario, measured_s: float) -> float:
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
