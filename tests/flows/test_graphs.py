"""Flows that wait for each other, against an exact event simulation in fractions, by hand and at the edges."""

import dataclasses
import math
import os
import subprocess
import sys
from fractions import Fraction

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.flows import FlowProblem, SolveOutcome, completion_times
from tests.batches import assert_batch_is_its_loop
from tests.flows.derivatives import Derivatives
from tests.flows.graphs import SHAPES, draw, exact, padded_graph
from tests.flows.instances import draw as flow_instance
from tests.flows.instances import padded
from tests.oracles.max_min import max_min

ENGINES = ("host", "device")


def solve(arrays, engine, problem=None):
    terms = (arrays.size, arrays.start, arrays.after, arrays.lag)
    return completion_times(problem or arrays.problem(), *terms, engine=engine)


def times(got):
    return np.stack([got.begin, got.finish], 1)


def check(graph, got, *, rtol):
    want = exact(graph)
    np.testing.assert_allclose(times(got)[: len(want)], want, rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(times(got)[len(want) :], 0)
    assert got.outcome == (SolveOutcome.starved if np.isinf(want).any() else SolveOutcome.solved)


# ------------------------------------------------------------------------------------------- drawn, against fractions
@pytest.mark.parametrize("engine", ENGINES)
def test_a_thousand_drawn_graphs(engine):
    for seed in range(1000):
        graph = draw(seed)
        check(graph, solve(padded_graph(graph, seed=seed), engine), rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_float32(engine):
    # About 80 events, each with an error of a few 6e-8 in the rates; see test_completion.
    for seed in range(100):
        graph = draw(seed)
        got = solve(padded_graph(graph, np.float32, seed=seed), engine)
        assert got.finish.dtype == got.begin.dtype == np.float32
        check(graph, got, rtol=2e-4)


def ends_of_twins(size, paths, links):
    """When flows end [F], each of which stands for `SLICES` equal ones, all begun at once; exact."""
    left, end, now = [Fraction(x) for x in size], [Fraction(0)] * len(size), Fraction(0)
    while active := [flow for flow, bytes_left in enumerate(left) if bytes_left]:
        weight = [Fraction(SLICES) if bytes_left else Fraction(0) for bytes_left in left]
        rate = [each / SLICES for each in max_min([Fraction(1)] * links, paths, weight, [math.inf] * len(size))]
        step = min(left[flow] / rate[flow] for flow in active)
        now += step
        for flow in active:
            left[flow] -= rate[flow] * step
            end[flow] = end[flow] if left[flow] else now
    return np.array(end, float)


SLICES = 4


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("seed", [7, 17, 32])
def test_links_that_are_full_at_one_level_but_for_rounding(engine, seed):
    """Among 4 servers that receive as fast as they send. Levels of the flows of one link differ in the last digit,
    and none may keep its rate when another ends (2 % late in 12 of 200 such draws)."""
    pairs = [(a, 4 + b) for a in range(4) for b in range(4) if a != b]
    hops, size = np.repeat(pairs, 4, axis=0), np.random.default_rng(seed).gamma(0.5, 1, len(pairs) * 4) * 1e3
    share = Fraction(1, 8)
    want = ends_of_twins(size, [[(int(link), share) for link in each] for each in hops], 8)
    every = np.repeat(hops, SLICES, axis=0)
    problem = FlowProblem(np.ones(8), every, np.full(every.shape, float(share)))
    got = completion_times(problem, np.repeat(size, SLICES), engine=engine).finish
    np.testing.assert_allclose(got, np.repeat(want, SLICES), rtol=1e-9)


def remade(graph, capacity=None, size=None, cap=None, weight=None):
    """The graph with other numbers, where they are neither zero nor infinite; `capacity` and so on draw one."""
    changed = {}
    for name, number in {"capacity": capacity, "size": size, "cap": cap, "weight": weight}.items():
        old = getattr(graph, name)
        changed[name] = [Fraction(number()) if number and value not in (0, math.inf) else value for value in old]
    return dataclasses.replace(graph, **changed)


@pytest.mark.parametrize("engine", ENGINES)
def test_numbers_that_are_no_binary_fractions_and_tie_but_for_rounding(engine):
    values = [0.1, 0.2, 0.3, 0.6, 1 / 3, 2 / 3]
    for seed in range(100):
        rng = np.random.default_rng(seed)
        graph = remade(draw(seed), *[lambda rng=rng: rng.choice(values)] * 3)
        check(graph, solve(padded_graph(graph, seed=seed), engine), rtol=1e-9)


@pytest.mark.parametrize("engine", ENGINES)
def test_tiny_beside_huge(engine):
    for seed in range(100):
        rng = np.random.default_rng(seed)
        wide = [lambda rng=rng, most=most: 10 ** rng.uniform(-3, most) for most in (9, 12, 9)]
        graph = remade(draw(seed), *wide, lambda rng=rng: 10 ** rng.uniform(-1.5, 1.5))
        want, got = exact(graph), times(solve(padded_graph(graph, seed=seed), engine))[: len(graph.size)]
        np.testing.assert_allclose(got, want, rtol=1e-9)


# ------------------------------------------------------------------------------------------------ by hand
def run(capacity, hops, size, after=None, start=0.0, lag=0.0, **terms):
    hops = np.array(hops)[:, None] if np.ndim(hops) == 1 else np.array(hops)
    return completion_times(FlowProblem(np.array(capacity, float), hops, **terms), np.array(size), start, after, lag)


def test_a_flow_that_starts_when_another_ends():
    # A and B share link 0; C is alone on link 1 until D joins it at the very moment, as a float, when B ends: from
    # then on each has half, D ends, C has the link. Whether the clock reaches that float from below is up to rounding.
    rng = np.random.default_rng(0)
    hops, late = [0, 0, 1, 1], 0
    for _ in range(60):
        zero, one = rng.uniform(1, 3, 2)
        small, large = np.sort(rng.uniform(1, 2, 2))
        moment = run([zero, one], hops, [small, large, 50.0, 5.0]).finish[1]
        got = run([zero, one], hops, [small, large, 50.0, 5.0], start=np.array([0.0, 0.0, 0.0, moment])).finish
        late += bool(moment > (small + large) / zero)
        want = [2 * small / zero, (small + large) / zero, 55 / one, moment + 10 / one]
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert 0 < late < 60


def test_edges_of_the_contract():
    inf = math.inf
    #    what                                hop weight cap  size start  finish
    flows = [
        ("no bytes: its start", 0, 1.0, inf, 0.0, 2.0, 2.0),
        ("no bytes, dead link: its start", 1, 1.0, inf, 0.0, 3.0, 3.0),
        ("dead link: never", 1, 1.0, inf, 1.0, 0.0, inf),
        ("cap 0: never", 0, 1.0, 0.0, 1.0, 0.0, inf),
        ("no hop: at its start", -1, 1.0, inf, 5.0, 4.0, 4.0),
        ("no hop and a cap: size / cap", -1, 2.0, 2.0, 5.0, 4.0, 6.5),
        ("absent, no bytes: its start", -1, 0.0, inf, 0.0, 1.0, 1.0),
        ("absent with bytes: never", -1, 0.0, inf, 1.0, 0.0, inf),
        ("absent over a live link: never", 0, 0.0, inf, 1.0, 0.0, inf),
        ("alone on its link: size/capacity", 0, 1.0, inf, 8.0, 0.0, 2.0),
    ]
    _, hop, weight, cap, size, start, want = zip(*flows, strict=True)
    got = run([4.0, 0.0], hop, size, start=np.array(start), weight=np.array(weight), cap=np.array(cap))
    np.testing.assert_array_equal(got.finish, want)
    assert got.outcome == SolveOutcome.starved
    got = run([4.0], [0, 0], [0.0, 0.0], start=np.array([1.0, 2.0]))
    np.testing.assert_array_equal(got.finish, [1, 2])
    assert (got.events, got.outcome == SolveOutcome.solved) == (0, True)


def test_a_batch_equals_its_loop_and_nothing_retraces():
    drawn = [padded(flow_instance(seed, 12, 8, 4), 12, 8, 4) for seed in range(8)]
    singles = [(arrays.problem(), jnp.asarray(arrays.size), jnp.asarray(arrays.start)) for arrays in drawn]
    once = eqx.filter_jit(chex.assert_max_traces(completion_times, n=1))
    assert_batch_is_its_loop(completion_times, singles, once, rtol=1e-13)


def test_a_flow_that_begins_as_another_ends_keeps_the_share_of_a_third():
    # 0, then 1, then 2 on a link that 3 shares: 3 has half throughout, whatever rounding makes of each end.
    sizes = np.random.default_rng(0).uniform(0.1, 1, (40, 3))
    for one in sizes:
        got = run([0.7], [0, 0, 0, 0], [*one, one.sum()], np.array([[0, 1], [1, 2]]))
        np.testing.assert_allclose(got.finish, [*(np.cumsum(one) / 0.35), one.sum() / 0.35], rtol=1e-15)


def test_many_markers_in_a_row_take_no_time():
    count = 300
    chain = np.stack([np.arange(count - 1), np.arange(1, count)], 1)
    got = run([1.0], np.full(count, -1), np.zeros(count), chain, start=np.linspace(1, 2, count)[::-1])
    np.testing.assert_array_equal(got.begin, 2.0)
    np.testing.assert_array_equal(got.finish, 2.0)


def test_rounds_of_all_to_alls_end_together():
    # Whoever is as far as everybody else sends to everybody else: a round of n - 1 messages of 0.1 B over ports of
    # 0.3 B/s takes (n - 1) / 3 s; the flows of the next wait for those that reach their source.
    ranks, rounds = 6, 20
    pair = [(a, b) for a in range(ranks) for b in range(ranks) if a != b]
    hops = [(a, ranks + b) for _ in range(rounds) for a, b in pair]
    after = [
        (r * len(pair) + i, (r + 1) * len(pair) + j)
        for r in range(rounds - 1)
        for i, (_, at) in enumerate(pair)
        for j, (a, _) in enumerate(pair)
        if a == at
    ]
    got = run(np.full(2 * ranks, 0.3), hops, np.full(len(hops), 0.1), np.array(after))
    want = np.repeat(np.arange(1, rounds + 1), len(pair)) * (ranks - 1) / 3
    np.testing.assert_allclose(got.finish, want, rtol=1e-14)


# ------------------------------------------------------------------------------------------------ edges


# ------------------------------------------------------------------------------------------------ transformations
TERMS = ("capacity", "share", "weight", "cap", "size", "start", "lag")


def times_at(hops, after, at, engine):
    problem = FlowProblem(hops=hops, **{name: at[name] for name in TERMS[:4]})
    got = completion_times(problem, at["size"], at["start"], after, at["lag"], engine=engine)
    return jnp.concatenate([got.begin, got.finish])


@pytest.mark.parametrize(
    ("shape", "engine"), [*((0, "host"), (1, "host"), (2, "device"), (3, "host")), (4, "host"), (4, "device")]
)
def test_derivatives_against_differences(shape, engine):
    # What waits for what is compiled in: one graph of each kind, with numbers that differ.
    arrays = padded_graph(draw(len(SHAPES) + shape, edges=False), seed=shape)
    slopes = Derivatives(lambda hops, at: times_at(hops, arrays.after, at, engine))
    for seed in range(10):
        rng = np.random.default_rng(seed)
        at = {name: getattr(arrays, name) for name in TERMS}
        slopes.check(
            arrays.hops, {name: value * rng.uniform(0.4, 1.6, value.shape) for name, value in at.items()}, seed
        )


def test_derivatives_of_some_inputs_alone():
    # 0 sends 1 B at 2 B/s, 1 follows and sends 3 B: ends at s0 / c and (s0 + s1) / c.
    def ends(size, capacity):
        problem = FlowProblem(capacity[None], np.zeros((2, 1), int))
        return completion_times(problem, size, 0.0, np.array([[0, 1]]), engine="host").finish

    size, capacity = jnp.array([1.0, 3.0]), jnp.asarray(2.0)
    np.testing.assert_allclose(jax.jacrev(ends)(size, capacity), [[0.5, 0], [0.5, 0.5]])
    np.testing.assert_allclose(jax.jacfwd(ends)(size, capacity), [[0.5, 0], [0.5, 0.5]])
    np.testing.assert_allclose(jax.jacrev(ends, argnums=1)(size, capacity), [-0.25, -1.0])
    sizes = jnp.stack([size, 2 * size])
    slopes = jax.grad(lambda sizes: jax.vmap(ends, (0, None))(sizes, capacity).sum())(sizes)
    np.testing.assert_allclose(slopes, [[1, 0.5], [1, 0.5]])


ONE_CORE = """
import os
os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import numpy as np
from mfabric_jax.flows import FlowProblem, completion_times
flows = 30_000
after = np.stack([np.arange(flows - 1), np.arange(1, flows)], 1)
for _ in range(3):
    problem = FlowProblem(np.ones(1), np.zeros((flows, 1), int))
    done = completion_times(problem, np.ones(flows), after=after, engine="host")
assert done.finish[-1] == flows
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be taken away here")
def test_one_core_is_enough():
    # A callback that is handed copies waits for ever where the only thread that could copy is its own.
    subprocess.run([sys.executable, "-c", ONE_CORE], timeout=200, check=True)


BOTH = pytest.mark.parametrize("engine", ["host", "device"])
TABLE = np.array([[0, -1], [-1, -1], [0, 1], [-1, -1], [1, -1], [1, 0]])
CAP = np.array([np.inf, 1.0, np.inf, np.inf, 1.5, np.inf])
AFTER = np.array([[0, 1], [1, 2], [1, 4], [2, 3], [4, 3], [3, 5]])


def problem(capacity=(2.0, 3.0), **terms):
    return FlowProblem(jnp.array(capacity), TABLE, **({"cap": CAP} | terms))


@BOTH
def test_a_small_graph_by_hand(engine):
    # 0: 4 bytes at 2: 0..2. 1 computes 3 s: 2..5. 2 and 4 begin at 5 (4 half a second later): 2 alone at 2, then at 1.5
    # beside 4, whose cap is 1.5. 3 has no bytes: it ends as the later one ends. 5 sends 2 bytes at 2 from then on.
    size, lag = jnp.array([4.0, 3.0, 4.0, 0.0, 3.0, 2.0]), np.array([0, 0, 0, 0, 0.5, 0])
    done = completion_times(problem(), size, 0, AFTER, lag, engine=engine)
    end_2, end_4 = 5 + 0.5 + 3.0 / 1.5, 5.5 + 2.0
    np.testing.assert_allclose(done.begin, [0, 2, 5, 7.5, 5.5, 7.5], rtol=1e-12)
    np.testing.assert_allclose(done.finish, [2, 5, end_2, 7.5, end_4, 8.5], rtol=1e-12)
    assert (done.outcome == SolveOutcome.solved, done.holder[0], done.holder[1], done.holder[5]) == (True, 0, -1, 0)


@BOTH
def test_what_waits_for_what_never_ends_never_begins(engine):
    done = completion_times(problem((2.0, 0.0)), jnp.full(6, 3.0), 0, AFTER, engine=engine)
    np.testing.assert_allclose(done.finish, [1.5, 4.5, np.inf, np.inf, np.inf, np.inf])
    np.testing.assert_allclose(done.begin, [0, 1.5, 4.5, np.inf, 4.5, np.inf])
    assert done.outcome == SolveOutcome.starved
    never = completion_times(problem(), 1.0, jnp.inf, engine=engine)
    assert np.all(np.isinf(np.asarray(never.finish)))
    for rate in (1.0, np.inf):  # infinitely many bytes, or seconds of a computation
        endless = completion_times(problem((rate, 1.0)), jnp.full(6, jnp.inf), 0, AFTER, engine=engine)
        assert np.all(np.isinf(np.asarray(endless.finish)))
        assert endless.outcome == SolveOutcome.starved
    nothing = FlowProblem(jnp.ones(2), np.zeros((0, 2), int))
    assert completion_times(nothing, jnp.zeros(0), engine=engine).outcome == SolveOutcome.solved
    assert jax.grad(lambda size: completion_times(nothing, size, engine=engine).finish.sum())(jnp.zeros(0)).size == 0
    assert completion_times(problem(), jnp.full(6, jnp.nan), 0, AFTER, engine=engine).outcome == SolveOutcome.nonfinite


def drawn(seed, flows=24, links=6, hops=3):
    """A graph, its terms and a direction in which to change each."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, hops + 1, flows)
    table = np.stack([np.r_[rng.permutation(links)[:many], -np.ones(hops - many)] for many in lengths]).astype(int)
    pairs = np.argwhere(np.triu(rng.random((flows, flows)) < 2 / flows, 1))
    terms = {
        "capacity": rng.uniform(1, 3, links),
        "share": rng.uniform(0.5, 2, (flows, hops)),
        "weight": rng.uniform(0.5, 2, flows),
        "cap": rng.uniform(0.5, 2, flows),
        "size": np.where(rng.random(flows) < 0.2, 0, rng.uniform(1, 3, flows)),
        "start": rng.uniform(0, 1, flows),
        "lag": rng.uniform(0, 0.3, flows),
    }
    return table, pairs, terms, {name: rng.normal(size=value.shape) for name, value in terms.items()}


def ends(engine, table, pairs):
    def function(terms):
        on = FlowProblem(terms["capacity"], table, terms["share"], terms["weight"], terms["cap"])
        done = completion_times(on, terms["size"], terms["start"], pairs, terms["lag"], engine=engine)
        return jnp.stack([done.begin, done.finish])

    return function


def test_the_engines_agree_and_a_batch_is_its_loop():
    table, pairs, terms, _ = drawn(7)
    rng = np.random.default_rng(7)
    many = {name: value * rng.uniform(0.5, 1.5, (5, *value.shape)) for name, value in terms.items()}
    singles = [{name: value[one] for name, value in many.items()} for one in range(5)]
    host = np.stack([ends("host", table, pairs)(one) for one in singles])
    np.testing.assert_array_equal(jax.jit(jax.vmap(ends("host", table, pairs)))(many), host)
    np.testing.assert_allclose(jax.vmap(ends("device", table, pairs))(many), host, rtol=1e-11)
    by_size = jax.vmap(lambda size: ends("host", table, pairs)(terms | {"size": size}))(many["size"])
    np.testing.assert_array_equal(by_size[2], ends("host", table, pairs)(terms | {"size": many["size"][2]}))
    gradient = jax.grad(lambda one: ends("host", table, pairs)(one)[1].max())
    alone = jax.grad(lambda one: ends("host", table, pairs)(singles[0] | {"capacity": one})[1].max())
    np.testing.assert_array_equal(alone(singles[0]["capacity"]), gradient(singles[0])["capacity"])
    batched = jax.vmap(gradient)(many)
    for name in terms:
        np.testing.assert_allclose(batched[name][3], gradient(singles[3])[name], rtol=1e-12)


def test_large_problems_and_graphs_run_on_the_host_of_a_cpu():
    rng = np.random.default_rng(0)
    large = FlowProblem(jnp.full(20, 3.0), rng.integers(0, 20, (600, 1)))
    size = rng.uniform(1, 2, 600)
    auto, device = completion_times(large, size), completion_times(large, size, engine="device")
    np.testing.assert_allclose(auto.finish, device.finish, rtol=1e-12)
    np.testing.assert_array_equal(auto.holder, device.holder)
    text = jax.jit(lambda one: completion_times(large, one).finish).lower(size).as_text()
    assert "callback" in text
    assert "callback" not in jax.jit(lambda: completion_times(problem(), 1.0).finish).lower().as_text()
