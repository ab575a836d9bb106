"""Both engines, with flows that wait for others: against each other, by hand, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.flows import FlowList, FlowProblem, Outcome, completion_times
from mfabric_jax.platforms import compiling_for
from tests.mistakes import refused

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
    assert (done.outcome == Outcome.solved, done.holder[0], done.holder[1], done.holder[5]) == (True, 0, -1, 0)


@BOTH
def test_what_waits_for_what_never_ends_never_begins(engine):
    done = completion_times(problem((2.0, 0.0)), jnp.full(6, 3.0), 0, AFTER, engine=engine)
    np.testing.assert_allclose(done.finish, [1.5, 4.5, np.inf, np.inf, np.inf, np.inf])
    np.testing.assert_allclose(done.begin, [0, 1.5, 4.5, np.inf, 4.5, np.inf])
    assert done.outcome == Outcome.starved
    never = completion_times(problem(), 1.0, jnp.inf, engine=engine)
    assert np.all(np.isinf(np.asarray(never.finish)))
    for rate in (1.0, np.inf):  # infinitely many bytes, or seconds of a computation
        endless = completion_times(problem((rate, 1.0)), jnp.full(6, jnp.inf), 0, AFTER, engine=engine)
        assert np.all(np.isinf(np.asarray(endless.finish)))
        assert endless.outcome == Outcome.starved
    nothing = FlowProblem(jnp.ones(2), np.zeros((0, 2), int))
    assert completion_times(nothing, jnp.zeros(0), engine=engine).outcome == Outcome.solved
    assert jax.grad(lambda size: completion_times(nothing, size, engine=engine).finish.sum())(jnp.zeros(0)).size == 0
    assert completion_times(problem(), jnp.full(6, jnp.nan), 0, AFTER, engine=engine).outcome == Outcome.nonfinite


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


@BOTH
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_derivatives_in_both_directions_against_differences(engine, seed):
    table, pairs, terms, way = drawn(seed)
    way["size"] = np.where(terms["size"] > 0, way["size"], 0)
    function = ends(engine, table, pairs)
    got, change = jax.jvp(function, (terms,), (way,))

    def moved(step):
        return ends("host", table, pairs)({name: terms[name] + step * way[name] for name in terms})

    np.testing.assert_allclose(change, (moved(1e-6) - moved(-1e-6)) / 2e-6, rtol=1e-5, atol=1e-6)
    counts = np.random.default_rng(seed).normal(size=got.shape)
    (back,) = jax.vjp(function, terms)[1](jnp.asarray(counts))
    inner = sum(float(np.sum(np.asarray(back[name]) * way[name])) for name in terms)
    assert inner == pytest.approx(float(np.sum(counts * np.asarray(change))), rel=1e-9)


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


def test_a_list_of_hops_is_the_table_and_single_precision_is_kept():
    table, pairs, terms, _ = drawn(8)
    on = {name: terms[name] for name in ("weight", "cap")}
    flow, slot = np.nonzero(table >= 0)
    order = np.random.default_rng(0).permutation(len(flow))
    flow, slot = flow[order], slot[order]
    listed = FlowList(terms["capacity"], table[flow, slot], flow, len(table), terms["share"][flow, slot], **on)
    rest = (terms["size"], terms["start"], pairs, terms["lag"])
    want = ends("host", table, pairs)(terms)[1]
    np.testing.assert_allclose(completion_times(listed, *rest, engine="host").finish, want, rtol=1e-12)
    single = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), terms)
    got = ends("host", table, pairs)(single)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got[1], want, rtol=1e-5)


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


def test_what_is_refused():
    said = refused(completion_times, problem(), 1.0, 0, np.array([[0, 1], [1, 0]]))
    assert said == "after must have no cycle, but 2 wait for each other: 0 -> 1 -> 0." or "1 -> 0 -> 1" in said
    assert refused(completion_times, problem(), 1.0, 0, [[0, 6]]) == "after must name flows 0..5, got 0..6."
    assert refused(completion_times, problem(), 1.0, 0, [0.5]) == "after must be integers [D 2], got float64 [1]."
    assert "engine" in refused(completion_times, problem(), 1.0, engine="gpu")
    with compiling_for("cuda"):
        said = refused(jax.jit(lambda one: completion_times(problem(), one, engine="host").finish), 1.0)
    assert said == "engine host is for programs on a cpu, got one for cuda; choose device or auto."
    traced = refused(jax.jit(lambda after: completion_times(problem(), 1.0, 0, after).finish), AFTER)
    assert traced.startswith("after must be known before tracing")
    second = refused(jax.hessian(lambda size: completion_times(problem(), size, 0, AFTER).finish.sum()), jnp.ones(6))
    assert second.startswith("rates and completion times of flows have first derivatives alone")
