"""Scenarios solved and timed on the host: NumPy, compiled loops, and few XLA programs that many scenarios share.

What it does not cover (`covers`) runs as one program that JAX traces (`solving`), from the same formulas.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from mfabric_jax import policies
from mfabric_jax.array_module import array_module, stacked
from mfabric_jax.case import Case
from mfabric_jax.case.policies import bare
from mfabric_jax.platforms import platform
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing.fixed import SinglePaths, fixed_times_now, inside_times_now
from mfabric_jax.routing.graph_ways import GraphWays
from mfabric_jax.simulation.scenario import Scenario
from mfabric_jax.timing.blocks import in_float64
from mfabric_jax.timing.exchange import acknowledged, at_unit_bandwidth, crossing, in_phases, placed_inside, steady
from mfabric_jax.timing.iteration import Iteration, early, expert_load, iterations_of, walk
from mfabric_jax.timing.on_host import Choice, degrees_of, once_each_row, solver_now
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.timing.scheduled import Pace, region_at, scheduled
from mfabric_jax.timing.switching import (
    Table,
    demands_of_stages,
    once_each,
    set_once,
    trade_off_of,
    turned_where_it_pays,
)
from mfabric_jax.traffic import dispatched_bytes, server_bytes
from mfabric_jax.traffic.dispatch import even_bytes, selections_of
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

SPANS = ("all-to-all", "iteration", "run")
MOST_PAIRS = 1 << 14  # of circuits and demands that are timed to find out where a turn pays
AT_ONCE = 1 << 17  # blocks in passes of iterations that a clock plays side by side


def covers(one: Scenario) -> bool:
    """Whether the host solves a scenario: links that do not change, or a policy of the demand alone in SPANS."""
    settings, group, job = one.settings, one.group, one.workload
    case: Any = settings.case
    if group.reconfigures and settings.scheduled:
        return True
    if platform() != "cpu" or getattr(case.placement.rule, "every", 0):
        return False
    if not group.reconfigures:
        return True
    name = bare(case.circuits.policy)
    alone = settings.first == "pays" or case.job.overlap.name == "passes"
    if not (name in policies.OF_DEMAND_ALONE or (name in policies.SETTLE_TIES and alone)):
        return False
    if case.circuits.partial or one.circuits_for not in SPANS or case.network.paths.name != "spray":
        return False
    if settings.first == "pays":
        where = places(job)
        stages, number = demands_of_stages(where, *one.tokens.count.shape[1:3]).demands.shape
        few = job.servers_per_region == 1 or stages * number**2 <= MOST_PAIRS
        return where.lane is None and few
    return settings.first == "block"


def solved_between(one: Scenario, carry: SinglePaths | GraphWays | None, planned: np.ndarray | None) -> Exchanges:
    """`solve_between` in float64: the all-to-alls between servers [I ...]; [bandwidth I ...] where a scenario weighs.

    `planned` [I layer M R E]: selections on which circuits for long spans are chosen.
    """
    job, settings = one.workload, one.settings
    unit = at_unit_bandwidth(jax.tree.map(np.asarray, one.group), np.dtype(float))
    sent = _sent(one)
    if not unit.reconfigures:
        acks = settings.carried_by.acks_back

        def seconds(demand: np.ndarray) -> np.ndarray:
            times = carry.times_now if carry else lambda group, each: fixed_times_now(group, each, job.ranks_per_server)
            return once_each_row(lambda each: times(unit, acknowledged(each, acks)), demand)

        every = [steady(job, places(job), dispatched_bytes(job, each), seconds) for each in sent]
        every = [in_phases(job, each) for each in every] if unit.phases else every
    else:
        every = _on_circuits(one, unit, sent, planned)
    every = [_with_load(one, found, each) for found, each in zip(every, _repeated(sent, len(every)), strict=True)]
    together = stacked(every)
    if not one.weighs:
        return together
    return jax.tree.map(lambda x: x.reshape(len(one.bandwidths), len(sent), *x.shape[1:]), together)


def _repeated(sent: np.ndarray, many: int) -> list[np.ndarray]:
    return [sent[at % len(sent)] for at in range(many)]


def _sent(one: Scenario) -> np.ndarray:
    """Selections of all replicas [I layer M R C], in float64."""
    return np.concatenate([np.asarray(replica.sent, float) for replica in one.each_replica])


def _on_circuits(one: Scenario, unit: Any, sent: np.ndarray, planned: np.ndarray | None) -> list[Exchanges]:
    job, settings = one.workload, one.settings
    case: Any = settings.case
    if settings.scheduled:
        return _on_schedules(one, sent)
    solver = solver_now(unit, choice_of(one), case.circuits.routing, settings.carried_by.acks_back, case.run.dtype)
    where, start, cold = places(job), uniform_circuits(degrees_of(unit)), case.circuits.cold_start
    even = server_bytes(even_bytes(job, np.dtype(float)), job.ranks_per_server)
    demands = server_bytes(dispatched_bytes(job, sent), job.ranks_per_server)
    if settings.first == "pays":
        own = demands_of_stages(where, *demands.shape[1:3])
        tables = [Table.of(start, demand, even, solver, own) for demand in demands]
        return [
            turned_where_it_pays(where, table, _trade_off(one, gbps, each), cold=cold, both=False)
            for gbps in one.bandwidths
            for table, each in zip(tables, sent, strict=True)
        ]
    if one.circuits_for == "all-to-all":
        return [once_each(where, start, demand, even, solver, cold=cold) for demand in demands]
    assert planned is not None
    seen = server_bytes(dispatched_bytes(job, np.asarray(planned, float)), job.ranks_per_server)
    of_iteration = [seen] * len(demands) if one.circuits_for == "run" else [each[None] for each in seen]
    each = zip(demands, of_iteration, strict=True)
    return [set_once(where, start, demand, even, past, solver, cold=cold) for demand, past in each]


def _on_schedules(one: Scenario, sent: np.ndarray) -> list[Exchanges]:
    """At every bandwidth, every iteration."""
    job, acks = one.workload, one.settings.carried_by.acks_back
    even = server_bytes(even_bytes(job, np.dtype(float)), job.ranks_per_server)
    demands = acknowledged(server_bytes(dispatched_bytes(job, sent), job.ranks_per_server), acks)
    region, found = jax.tree.map(np.asarray, one.group), []
    for gbps in one.bandwidths:
        pace = Pace.of(trade_off_of(job, *jax.tree.map(float, (one.rates(gbps), one.seconds))))
        planner = one.settings.planner(region_at(region, pace))
        cold = one.settings.case.circuits.cold_start
        found += [scheduled(places(job), each, even, planner, pace, cold=cold) for each in demands]
    return found


def circuits_now(one: Scenario, demand: np.ndarray) -> np.ndarray:
    """Circuits [S S] that the policy of a scenario chooses for a demand alone."""
    case: Any = one.settings.case
    if covers(one):
        unit = at_unit_bandwidth(jax.tree.map(np.asarray, one.group), np.dtype(float))
        return solver_now(unit, choice_of(one), case.circuits.routing, 0.0, case.run.dtype).choose(demand[None])[0]
    policy = one.settings.circuits_policy(one.mean_demand.astype(case.run.dtype))
    return np.asarray(policy(demand, one.group, previous=None, key=jax.random.key(case.run.seed)).circuits.count)


def choice_of(one: Scenario) -> Choice:
    """The policy of a scenario by name, with its settings."""
    case = one.settings.case
    if case.circuits.policy == "static":
        return Choice("greedy-next", mean=np.asarray(one.mean_demand, float))
    return choice_by_name(case)


def choice_by_name(case: Case) -> Choice:
    """The policy of a case that needs no demand beforehand, with its settings."""
    name: Any = case.circuits.policy
    settings = policies.suitable(name, routing=case.circuits.routing, names=case.network.acos.topologies)
    return Choice(bare(name), tuple(settings.items()))


def _trade_off(one: Scenario, nic_gbps: float, sent: np.ndarray) -> Any:
    rates, seconds = jax.tree.map(float, (one.rates(nic_gbps), one.seconds))
    found = trade_off_of(one.workload, rates, seconds, one.settings.routing)
    busy = busy_of(one, sent)
    return found if busy is None else found._replace(busy=busy)


def _with_load(one: Scenario, found: Exchanges, sent: np.ndarray) -> Exchanges:
    """With how unequally experts are loaded, and turns that are always taken."""
    case: Any = one.settings.case
    experts, job = case.compute.experts, one.workload
    if case.circuits.turn.name == "always" and one.group.reconfigures:
        moe = places(job).layer >= 0
        found = found._replace(switch=found.switch | np.stack([moe, np.zeros_like(moe)], axis=-1))
    if experts.name == "received" and experts.combine == "rank":
        found = found._replace(early=sent_early(job, one.group, sent, experts.tile))
    return found._replace(busy=busy_of(one, sent))


def sent_early(job: Workload, group: Any, tokens: Any, tile: int | None) -> Any:
    """`Early` of every block [P Q L 3 R]."""
    where, switches = places(job), {("none", "none"): "rank", ("levelled", "levelled"): "server"}
    found = early(job, tokens, tile or 1, ports=switches.get(group.handover, "pair"))
    return array_module(tokens).stack(found, axis=-2)[where.pick(*tokens.shape[:2])]


def busy_of(one: Scenario, sent: np.ndarray) -> np.ndarray | None:
    """`expert_load` of every block [P Q L]; None: experts are balanced."""
    experts: Any = one.settings.case.compute.experts
    return busy_of_blocks(one.workload, sent, experts.tile) if experts.name == "received" else None


def busy_of_blocks(job: Workload, tokens: Any, tile: int) -> Any:
    """`expert_load` of every block [P Q L]."""
    where, load = places(job), expert_load(job, selections_of(job, tokens), tile)
    where = where._replace(layer=where.experts)  # gradients of their weights, too
    return array_module(load).where(where.layer >= 0, load[where.pick(*load.shape)], 1)


def solved_inside(one: Scenario) -> np.ndarray:
    """`solve_inside` in float64: the parts inside servers [I P Q L], seconds times the NVLink bandwidth."""
    job = one.workload
    every = crossing(job, one.group, _sent(one))
    *many, servers, ranks, _ = every.shape
    flat = every.reshape(-1, servers, ranks, ranks)
    inside = once_each_row(lambda each: inside_times_now(each, 1.0 * job.tp), flat).reshape(many)
    return np.stack([placed_inside(job, each) for each in inside])


def times_on_host(one: Scenario, solved: Exchanges, variants: Sequence[tuple[BlockSeconds, str]]) -> list[Iteration]:
    """Iterations of every replica at every bandwidth [replica x I bandwidth], in float64, for each (seconds of a block,
    how fast links are)."""
    job, weighs = one.workload, one.weighs
    loads = solved._replace(count=None)
    iterations = loads.load.shape[1 if weighs else 0]
    shape = len(variants), iterations, len(one.bandwidths)
    every = [(one.rates(gbps, links), seconds) for seconds, links in variants for gbps in one.bandwidths]
    rates, seconds = in_float64(jax.tree.map(lambda *x: np.stack(x), *every))
    variant, iteration, bandwidth = (each.ravel() for each in np.indices(shape))
    at_once = max(1, AT_ONCE // places(job).present.size)
    timed = []
    for begin in range(0, len(variant), at_once):
        some = slice(begin, begin + at_once)
        which = (bandwidth[some], iteration[some]) if weighs else iteration[some]
        own = in_float64(jax.tree.map(lambda x, which=which: x[which], loads))
        way = variant[some] * shape[2] + bandwidth[some]
        given = jax.tree.map(lambda x, way=way: x[way], (rates, seconds))
        timed.append(iterations_of(walk(job, given[0], own, given[1], rules=one.settings.rules, every=False)))
    columns = [np.concatenate(column).reshape(shape) for column in zip(*timed, strict=True)]
    return [Iteration(*(column[number] for column in columns)) for number in range(len(variants))]
