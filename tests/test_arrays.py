"""Every public function refuses arrays that it does not take, or is right: for each kind of number, on and off jit."""

import inspect
import pathlib
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import FlowProblem, InputError, all_to_all_time, completion_times, max_min_rates, policies, workload
from mfabric_jax.apps.learning import Recorded, RegionEnv, best_trajectory
from mfabric_jax.apps.learning.environment import Params
from mfabric_jax.circuit_schedules import CircuitSchedule, lower_bound, schedule_time, schedules, valiant
from mfabric_jax.circuit_schedules import get as scheduler
from mfabric_jax.fabric import Circuits, FabricGraph, Region, cluster
from mfabric_jax.flows import star_completion, star_rates
from mfabric_jax.policies import Plan
from mfabric_jax.routing import (
    arrivals,
    cluster_routes,
    degree_bound,
    equal_parts,
    fluid_lower_bound,
    links_of,
    relay_shares,
    transfer,
)
from mfabric_jax.timing import block_ends, experts_end
from mfabric_jax.traffic import Flows, Tokens, dispatched_bytes, likely_demands, rank_bytes, server_bytes
from tests.small import unchecked

SURFACE = pathlib.Path(__file__).with_name("surface.txt")
PACKAGES = r"flows|policies|routing|fabric|circuit_schedules|traffic|workload|timing|evaluate|apps\.learning"
SERVERS = 4
OTHERS = 1 - np.eye(SERVERS, dtype=int)
RING = np.roll(np.eye(SERVERS, dtype=int), 1, 0) + np.roll(np.eye(SERVERS, dtype=int), -1, 0)
REGION = Region(SERVERS, 400.0)
DEMAND = 10 * OTHERS + 50 * RING  # bytes, small enough for 8 bits
UNLIKE = np.array(
    [[0, 3, 70, 11], [19, 0, 2, 45], [8, 90, 0, 5], [31, 6, 14, 0]]
)  # no ties, which rounding would settle
SCHEDULE = CircuitSchedule(np.stack([RING, OTHERS - RING]), [0.001, 0.001])
TREE = cluster("fat-tree", 2, 100.0)
ROUTES = cluster_routes(TREE, [0, 1], [8, 9])
JOB = workload.get("mixtral-8x7b")
TOKENS = np.full((JOB.ep, JOB.architecture.experts), 20)


SHARES = np.concatenate([np.zeros((4, 4, 4)), np.stack([RING, OTHERS - RING], axis=2)], axis=2)
ARC = FabricGraph(np.arange(2), np.arange(2)[::-1], np.ones(2), np.ones(2), (("gpu", 2),), (("link", 2),))
OPTICS = cluster("mfabric", 4, 100.0, regions=RING[None])
SELECTED = np.ones((1, 2, 1, JOB.ep, JOB.architecture.experts), int)
LABELS = ("src", "dst", "message", "task")
FLOATS_OF_FLOWS = ("size", "lag", "latency", "weight", "cap")


class Row(NamedTuple):
    """One array of a public function: values that are right, and what comes out for them.

    `kind`: amount (0 or more), real, index, label (an integer), or count. `traced`: whether it may be traced.
    """

    names: str
    good: Any
    call: Callable[[Any], Any]
    kind: str = "amount"
    traced: bool = True


def rates(**terms):
    usual = {"capacity": [100.0, 50.0], "hops": [[0, -1], [0, 1]]}
    return max_min_rates(FlowProblem(**usual | terms)).rate


def ends(**terms):
    problem = FlowProblem([100.0, 50.0], [[0, -1], [0, 1]])
    return completion_times(problem, **{"size": [100.0, 30.0]} | terms).finish


def star(function=star_completion, **terms):
    usual = {
        next(iter(inspect.signature(function).parameters)): DEMAND + 1.0,
        "up": np.full(4, 2.0),
        "down": np.full(4, 2.0),
    }
    return function(**usual | terms)


def count_of(name, demand, **settings):
    return policies.get(name, **settings)(demand, REGION).circuits.count


def parts(**terms):
    return block_ends(
        equal_parts(1.0, 1.0, np.full(4, 8.0), 2), **{"bytes_per_token": 2, "batch_s": 1, "token_s": 1} | terms
    )


def chained(**terms):
    usual = {"arrival": np.ones((2, 3)), "tokens": np.full((2, 3), 5.0), "batch_s": 1.0, "token_s": 2.0}
    return experts_end(**usual | terms)


def reward(scores):
    env, params = RegionEnv(), Params(REGION, Recorded(np.stack([DEMAND + 1.0] * 2)))
    _, state = env.reset(jax.random.key(0), params)
    return env.step(jax.random.key(1), state, {"scores": scores, "change": 1}, params)[2]


def best(**terms):
    usual = {"demands": np.stack([DEMAND] * 2), "region": REGION, "candidates": np.stack([RING, OTHERS])}
    return best_trajectory(**usual | terms).total_s


def network(**terms):
    usual = {"tail": [0, 1], "head": [1, 0], "capacity": [5, 5], "delay_s": [0, 0]}
    made = FabricGraph(**usual | terms, nodes=(("gpu", 2),), links=(("link", 2),))
    return np.concatenate([made.tail, made.head, made.capacity, made.delay_s])


def pooled(pool, node):
    return ARC.merge_links(pool, node, ARC.nodes, ARC.links).tail


def relayed(shares):
    return all_to_all_time(REGION, Plan(Circuits(RING), shares), DEMAND, routing="relay")


def flows(**terms):
    usual = {"size": np.ones(2), "weight": np.ones(2), "cap": np.ones(2)} | {"after": np.zeros((0, 2), int)}
    usual |= dict.fromkeys(("src", "dst", "message", "task"), np.arange(2))
    usual |= dict.fromkeys(("start", "lag", "latency"), np.zeros(2))
    made = Flows(**usual | terms)
    return [np.asarray(getattr(made, name), float) for name in terms]


ROWS = (
    Row("FlowProblem.capacity", [100, 50], lambda x: rates(capacity=x)),
    Row("FlowProblem.hops", [[0, -1], [0, 1]], lambda x: rates(hops=x), "index"),
    Row("FlowProblem.share", [[1, 1], [1, 2]], lambda x: rates(share=x)),
    Row("FlowProblem.weight", [1, 3], lambda x: rates(weight=x)),
    Row("FlowProblem.cap", [20, 90], lambda x: rates(cap=x)),
    Row("completion_times.size", [100, 30], lambda x: ends(size=x)),
    Row("completion_times.after", [[0, 1]], lambda x: ends(after=x), "index", traced=False),
    Row("star_completion.size", DEMAND, lambda x: star(size=x)),
    Row("star_completion.up star_rates.up", [1, 2, 3, 4], lambda x: star(up=x)),
    Row("star_completion.group_up star_rates.group_up", [1, 3], lambda x: star(group_up=x, group_down=[9.0, 9.0])),
    Row("star_rates.flows", DEMAND, lambda x: star(star_rates, flows=x)),
    Row("all_to_all_time.demand", DEMAND, lambda x: all_to_all_time(REGION, Circuits(RING), x)),
    Row("all_to_all_time.demand", DEMAND, lambda x: all_to_all_time(REGION, Circuits(RING), x, routing="split")),
    Row("Circuits.count", RING, lambda x: all_to_all_time(REGION, Circuits(x), DEMAND), "count"),
    Row("Circuits.check_legal.degree", 6, lambda x: Circuits(RING).check_legal(x).count, "count"),
    Row("Circuits.is_legal.degree", 6, lambda x: jnp.where(Circuits(RING).is_legal(x), 1.0, jnp.nan), "count"),
    Row("degree_bound.demand", DEMAND, lambda x: degree_bound(REGION, x)),
    Row("relay_shares.demand", DEMAND, lambda x: relay_shares(REGION, Circuits(RING), x, steps=0)),
    Row("arrivals.demand", DEMAND, lambda x: arrivals(REGION, SCHEDULE, x).time),
    Row("equal_parts.first_s", 3, lambda x: equal_parts(x, 1.0, np.ones(4), 2).time),
    Row("equal_parts.received", [1, 2, 3, 4], lambda x: equal_parts(1.0, 1.0, x, 2).bytes),
    Row("cluster_routes.src", [0, 1], lambda x: cluster_routes(TREE, x, [8, 9]).hops, "index", traced=False),
    Row("cluster_routes.dst", [8, 9], lambda x: cluster_routes(TREE, [0, 1], x).hops, "index", traced=False),
    Row(
        "cluster_routes.size",
        [3, 5],
        lambda x: cluster_routes(TREE, [0, 1], [8, 9], routing="least-loaded", size=x).hops,
        traced=False,
    ),
    Row("transfer.size", [3, 5], lambda x: transfer(links_of(TREE), ROUTES, x).finish, traced=False),
    Row("transfer.start", [3, 5], lambda x: transfer(links_of(TREE), ROUTES, 1e9, x).finish, "real", traced=False),
    Row("Region.nic_gbps", 100, lambda x: degree_bound(Region(SERVERS, x), DEMAND)),
    Row("Region.optical_degree", 6, lambda x: degree_bound(Region(SERVERS, 100.0, x), DEMAND)),
    Row("Region.electrical_nics", 2, lambda x: degree_bound(Region(SERVERS, 100.0, 6, x), DEMAND)),
    Row("Region.electrical_nics", 2, lambda x: Region(SERVERS, 100.0, 6, x).eps_Bps, traced=False),
    Row("FabricGraph.tail", [0, 1], lambda x: network(tail=x), "index", traced=False),
    Row("FabricGraph.head", [1, 0], lambda x: network(head=x), "index", traced=False),
    Row("FabricGraph.capacity", [7, 5], lambda x: network(capacity=x), traced=False),
    Row("FabricGraph.delay_s", [7, 5], lambda x: network(delay_s=x), traced=False),
    Row(
        "CircuitSchedule.configurations",
        np.stack([RING]),
        lambda x: schedule_time(REGION, CircuitSchedule(x, [1e-3]), DEMAND),
        "count",
    ),
    Row(
        "CircuitSchedule.switch",
        [0, 0],
        lambda x: CircuitSchedule(SCHEDULE.configurations, [1, 1], x).check_region(REGION).seconds,
        "index",
    ),
    Row("schedule_time.demand", DEMAND, lambda x: schedule_time(REGION, SCHEDULE, x)),
    Row("lower_bound.demand", DEMAND, lambda x: lower_bound(x, REGION)),
    Row("get().demand", DEMAND, lambda x: scheduler("rotor")(x, REGION).seconds, traced=False),
    Row("valiant.demand", DEMAND, lambda x: [stage.demand for stage in valiant(x, REGION)], traced=False),
    Row("rank_bytes.tokens", TOKENS, lambda x: rank_bytes(x, 2.0)),
    Row("rank_bytes.bytes_per_selection", 3, lambda x: rank_bytes(TOKENS, x)),
    Row("dispatched_bytes.sent", TOKENS, lambda x: dispatched_bytes(JOB, x)),
    Row("server_bytes.demand", DEMAND, lambda x: server_bytes(x, 2)),
    Row("likely_demands.forecast", DEMAND, lambda x: likely_demands(jax.random.key(0), x, 0.1, 2)),
    Row("best_trajectory.candidates", np.stack([RING, OTHERS]), lambda x: best(candidates=x), "count"),
    Row("best_trajectory.each_s", 1, lambda x: best(each_s=x)),
    Row("Recorded.demands", np.stack([DEMAND] * 2), lambda x: Recorded(x).demands),
    Row("RegionEnv.step.action RegionEnv.step_env.action", OTHERS, reward, "real"),
    Row("experts_end.arrival", np.ones((2, 3)), lambda x: chained(arrival=x), "real"),
    Row("experts_end.tokens", np.ones((2, 3)), lambda x: chained(tokens=x)),
    Row("experts_end.token_s", 2, lambda x: chained(token_s=x)),
    Row("block_ends.bytes_per_token", 2, lambda x: parts(bytes_per_token=x).combine_s),
    Row("round_scores.scores", DEMAND, lambda x: policies.round_scores(x, REGION), "real"),
    Row("exact_circuits.demand", DEMAND, lambda x: policies.exact_circuits(REGION, x)[1], traced=False),
    Row("greedy.demand", DEMAND, lambda x: count_of("greedy", x)),
    Row("topoopt.demand", DEMAND, lambda x: count_of("topoopt", x)),
    Row("index.demand", DEMAND, lambda x: count_of("index", x)),
    Row("check_legal.count", RING, lambda x: policies.check_legal("mine", x, 6) or 0.0, "count", traced=False),
    Row("check_legal.degree", 6, lambda x: policies.check_legal("mine", RING, x) or 0.0, traced=False),
    Row(
        "Plan.shares",
        SHARES,
        lambda x: all_to_all_time(REGION, Plan(Circuits(RING), x), DEMAND, routing="relay"),
        "real",
    ),
    Row("FabricGraph.without.failed", [0], lambda x: ARC.without(x).capacity, "index", traced=False),
    Row("FabricGraph.merge_links.pool", [0, 1], lambda x: pooled(x, [0, 1]), "index", traced=False),
    Row("FabricGraph.merge_links.node", [0, 1], lambda x: pooled([0, 1], x), "index", traced=False),
    Row("Cluster.host.server", [0, 1], lambda x: TREE.host(x, 3), "index", traced=False),
    Row("Cluster.host.nic", [0, 1], lambda x: TREE.host(1, x), "index", traced=False),
    Row(
        "Cluster.with_circuits.regions Cluster.regions",
        OPTICS.regions,
        lambda x: OPTICS.with_circuits(x).gpus,
        "index",
        traced=False,
    ),
    Row("RankLayout.index.rank", [0, 1], lambda x: JOB.layout.index(x), "index", traced=False),
    Row("Tokens.count", SELECTED, lambda x: Tokens(x, "drawn").scale_to(JOB).count, traced=False),
    Row("Tokens.before", SELECTED[0], lambda x: Tokens(SELECTED, "drawn", before=x).before, traced=False),
    Row("Flows.after", [[0, 1]], lambda x: flows(after=x), "index", traced=False),
    *(Row(f"Flows.{name}", [0, 1], lambda x, name=name: flows(**{name: x}), "label", traced=False) for name in LABELS),
    Row("Flows.start", [1, 2], lambda x: flows(start=x), "real", traced=False),
    *(Row(f"Flows.{name}", [1, 2], lambda x, name=name: flows(**{name: x}), traced=False) for name in FLOATS_OF_FLOWS),
)
SLOW = (
    Row("completion_times.start", [1, 3], lambda x: ends(start=x), "real"),
    Row("completion_times.lag", [1, 3], lambda x: ends(lag=x)),
    Row("star_completion.down star_rates.down", [1, 2, 3, 4], lambda x: star(down=x)),
    Row("star_completion.group_down star_rates.group_down", [1, 3], lambda x: star(group_down=x, group_up=[9.0, 9.0])),
    Row("fluid_lower_bound.demand", DEMAND, lambda x: fluid_lower_bound(REGION, Circuits(RING), x)),
    Row("equal_parts.second_s", 3, lambda x: equal_parts(1.0, x, np.ones(4), 2).circuit_s),
    Row(
        "CircuitSchedule.seconds",
        [1, 2],
        lambda x: schedule_time(REGION, CircuitSchedule(SCHEDULE.configurations, x), DEMAND),
    ),
    Row("schedules.demands", DEMAND[None], lambda x: schedules(x, REGION).seconds, traced=False),
    Row("likely_demands.sigma", 1, lambda x: likely_demands(jax.random.key(0), DEMAND, x, 2)),
    Row("best_trajectory.demands", np.stack([DEMAND] * 2), lambda x: best(demands=x)),
    Row("best_trajectory.hidden_s", 1, lambda x: best(hidden_s=x)),
    Row("experts_end.batch_s", [1, 2, 3], lambda x: chained(batch_s=x)),
    Row("block_ends.batch_s", 2, lambda x: parts(batch_s=x).combine_s),
    Row("block_ends.token_s", 2, lambda x: parts(token_s=x).combine_s),
    Row("round_scores.demand", DEMAND, lambda x: policies.round_scores(OTHERS, REGION, demand=x)),
    Row("static.mean", DEMAND, lambda x: policies.get("static", mean=x)(None, REGION).circuits.count),
    Row("matching.demand", DEMAND, lambda x: count_of("matching", x)),
    Row("topologies.demand", DEMAND, lambda x: count_of("topologies", x)),
    *(
        Row(f"{name}.demand", UNLIKE, lambda x, name=name: count_of(name, x))
        for name in ("exact", "learned", "untrained")
    ),
    Row("threshold.demand", DEMAND, lambda x: count_of("threshold", x, starts=1)),
    Row("local-search.demand", DEMAND, lambda x: count_of("local-search", x, rounds=1)),
    Row("relaxed.demand", DEMAND, lambda x: count_of("relaxed", x, steps=1, samples=1, rounds=1)),
    Row("joint.demand", DEMAND, lambda x: count_of("joint", x, steps=1, samples=1, rounds=1)),
    Row("sample-average.demand", DEMAND[None], lambda x: count_of("sample-average", x, steps=1, starts=1, rounds=1)),
    Row(
        "sample-average.weights",
        [1],
        lambda x: (
            policies.get("sample-average", steps=1, starts=1, rounds=1)(DEMAND[None], REGION, weights=x).circuits.count
        ),
    ),
)
KINDS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64")
LARGE = 40_000_000  # times 60 bytes: beyond 32 bits
REFUSED = "refused"


def result(call, value):
    """The leaves that come out, or `REFUSED` after one sentence, which XLA wraps where a program raises it."""
    try:
        return [np.asarray(leaf) for leaf in jax.tree.leaves(call(value))]
    except InputError as error:
        lines = [str(error)]
    except Exception as error:
        lines = str(error).strip().splitlines()
        if not lines[-1].startswith("InputError: "):
            raise
    return REFUSED if "\n" not in lines[-1] else lines


def right(got, want):
    if got is REFUSED or want is REFUSED:
        return got is REFUSED
    return all(np.allclose(a, b, rtol=1e-5, equal_nan=True) for a, b in zip(got, want, strict=True))


def no_number(got):
    """Refused, or NaN, or circuits that are no plan."""
    if got is REFUSED:
        return True
    return any(np.isnan(leaf).any() if leaf.dtype.kind == "f" else (leaf == -1).any() for leaf in got)


def ways(good):
    """The same numbers in every type that holds them, and as lists."""
    yield from (good.astype(kind) for kind in KINDS)
    half = good.astype(np.float16)
    yield from (half, jnp.asarray(half), jnp.asarray(good, jnp.bfloat16), jnp.asarray(good), good.tolist())


@pytest.fixture(autouse=True)
def as_users_have_it():
    """32 bits and standard promotion: what the rest of the tests do not have."""
    with (
        unchecked(),
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


def check(row):
    good = np.asarray(row.good)
    want = result(row.call, good if row.kind in ("index", "label") else good.astype(float))
    assert want is not REFUSED
    assert not no_number(want) or row.kind == "index"
    off_jit(row, good, want)
    if row.traced:
        on_jit(row, good, want)


def off_jit(row, good, want):
    for value in ways(good):
        assert right(result(row.call, value), want), value
    some = good > 0
    assert right(result(row.call, some), result(row.call, some.astype(float)))
    assert right(result(row.call, good.astype(object)), want)
    for wrong in (good * 1j, good.astype(str), [object()], [[1, 2], [3]]):
        assert result(row.call, wrong) is REFUSED, wrong
    if row.kind == "amount":
        large = good.astype(np.int64) * LARGE
        expected = result(row.call, large.astype(float))
        for value in (large, large.astype(np.uint64), large.tolist()):
            assert expected is REFUSED or right(result(row.call, value), expected), value
        assert no_number(result(row.call, -good.astype(float)))
    if row.kind not in ("index", "label"):
        assert no_number(result(row.call, np.where(some, np.nan, good)))
    if row.kind == "index":
        assert result(row.call, good + 10**6) is REFUSED
    if row.kind in ("index", "count"):
        beyond = good.astype(np.int64) + 2**32  # 32 bits would hold what is good
        got = result(row.call, beyond)
        assert got is REFUSED or (row.kind == "count" and right(got, result(row.call, beyond.astype(float))))


def on_jit(row, good, want):
    call = jax.jit(row.call)
    for kind in ("int32",) if row.kind == "index" else ("int32", "float32"):
        assert right(result(call, good.astype(kind)), want), kind
    if row.kind == "index":
        assert no_number(result(call, good.astype(np.int32) + 10**6))
        return
    assert no_number(result(call, np.where(good > 0, np.nan, good).astype(np.float32)))
    assert result(call, good.astype(np.complex64)) is REFUSED
    if row.kind == "amount":
        large = good.astype(np.int64) * LARGE
        expected = result(row.call, large.astype(float))
        assert expected is REFUSED or right(result(call, large), expected)
        assert no_number(result(call, -good.astype(np.float32)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.names)
def test_an_array_is_refused_or_right(row):
    check(row)


@pytest.mark.slow
@pytest.mark.parametrize("row", SLOW, ids=lambda row: row.names)
def test_an_array_of_a_search_is_refused_or_right(row):
    check(row)


def test_large_demands_take_their_seconds():
    times = [
        all_to_all_time(REGION, Circuits(OTHERS), np.full((4, 4), size))
        for size in (2_200_000_000, 3 * 10**9, 5 * 10**9)
    ]
    np.testing.assert_allclose(times, [0.044, 0.060, 0.100], rtol=1e-6)
    slow = FlowProblem(np.array([10**9]), [[0]])
    assert completion_times(slow, np.array([3 * 10**9])).finish[0] == 3
    assert completion_times(FlowProblem(np.array([5 * 10**9]), [[0]]), [10**10]).finish[0] == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: all_to_all_time(REGION, RING, DEMAND),
        lambda: all_to_all_time(RING, Circuits(RING), DEMAND),
        lambda: all_to_all_time(REGION, Circuits(RING), Circuits(RING)),
        lambda: fluid_lower_bound(REGION, RING, DEMAND),
        lambda: relay_shares(REGION, RING, DEMAND),
        lambda: schedule_time(REGION, Plan(Circuits(RING)), DEMAND),
        lambda: max_min_rates([1.0]),
        lambda: completion_times([1.0], [1.0]),
        lambda: policies.greedy(REGION, DEMAND),
        lambda: policies.joint(DEMAND, REGION, previous=RING),
        lambda: transfer(ROUTES, links_of(TREE), 1.0),
    ],
)
def test_another_thing_in_the_place_of_one_is_a_sentence(call):
    assert result(lambda _: call(), None) is REFUSED


def test_a_degree_that_is_exceeded_under_jit_ends_in_one_sentence():
    def time(count):
        return all_to_all_time(REGION, Circuits(count), DEMAND)

    words = "circuits: more circuits at a server than its optical degree."
    with pytest.raises(InputError) as refused:
        jax.vmap(time)((9 * RING)[None])
    assert str(refused.value) == words
    with pytest.raises((RuntimeError, ValueError)) as caught:
        jax.jit(time)(9 * RING)
    assert str(caught.value).strip().splitlines()[-1].endswith(f"InputError: {words}")


# What takes no arrays of numbers: settings of one number, files, results that the package makes. `evaluate` checks its
# cases itself (tests/evaluate/rows/test_batch.py); `exchanges` and `iterate` take what others of this table make.
WITHOUT = """
Case Completion Fabric Gpu InputError Knobs MaxMinRates Prices Recording Results TrainingSettings Workload allow_code
cases cluster cluster_cost cost_table evaluate_policies example_timeline exchanges generated_tokens get get_gpu
iterate iteration_of joint load max_min_rates measured_tokens memory_of open_trace read_graph recorded_tokens resolve
save simulate solve_cluster stack_schedules train
"""
# arguments of the others that are no arrays of numbers
PLAIN = """
ahead all_stop by_expert change circuits count delay_s directed dtype engine ep experts first first_free goodput
gpu_tbps gpus_per_server history hit kernel key link_delay_s mesh name nic nic_gbps nic_use nvswitch_gigabytes_per_s
other own_ports params phases plan policies previous problem pxn rails reached region relay_efficiency routing rule
schedule seconds servers share_steps slots source speeds start state steps switches tree workload
"""


def test_every_public_array_has_a_row():
    covered, lacking = {name for row in (*ROWS, *SLOW) for name in row.names.split()}, []
    line = re.compile(rf"name mfabric_jax\.(?:(?:{PACKAGES})\.)?([A-Za-z_.]+): (?:class)?\((.*)\)")
    names = [found.groups() for found in map(line.fullmatch, SURFACE.read_text().splitlines()) if found]
    assert len(names) > 110
    for name, arguments in names:
        if name.partition(".")[0] in (*WITHOUT.split(), "apps", "case", "report"):
            continue
        for argument in re.findall(r"(?:^|, )\*{0,2}([a-z][A-Za-z_0-9]*)", re.sub(r"=\([^)]*\)", "", arguments)):
            if f"{name}.{argument}" not in covered and argument not in PLAIN.split():
                lacking.append(f"{name}.{argument}")
    assert not lacking, f"no row for {', '.join(sorted(set(lacking)))}"
