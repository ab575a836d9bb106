"""Completion times against an exact event simulation in fractions, by hand and at the edges."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from tests.batches import assert_batch_is_its_loop
from tests.flows.derivatives import Derivatives
from tests.flows.instances import draw, padded
from tests.mistakes import refused
from tests.oracles.graph import completion

F, L, H = 12, 8, 4
solve = eqx.filter_jit(completion_times)
seeds = st.integers(0, 2**32 - 1)


def check(instance, got, *, rtol):
    want = np.array([float(t) for t in completion(*instance.flow_terms(), instance.size, instance.start)])
    finish = np.asarray(got.finish)
    np.testing.assert_allclose(finish[: len(want)], want, rtol=rtol, atol=rtol)
    np.testing.assert_array_equal(finish[len(want) :], 0)
    assert got.outcome == (Outcome.starved if np.isinf(want).any() else Outcome.solved)
    assert got.events <= 2 * F + 1


@settings(max_examples=200)
@given(seeds, st.integers(1, F), st.integers(1, L), st.integers(1, H), st.sampled_from([1.0, 1e3, 1e6, 1e9, 1e12]))
@example(0, F, L, H, 1.0)
def test_agrees_with_exact_fractions_at_every_scale(seed, flows, links, hops, scale):
    # Bytes and bytes per second both grow by `scale`: seconds stay. float32: about 24 events, each with an error of
    # a few 6e-8 in the rates, which later flows inherit divided by the bytes they have left: 2e-4 at worst.
    instance = draw(seed, flows, links, hops)
    for dtype, rtol in ((np.float64, 1e-9), (np.float32, 2e-4)):
        arrays = padded(instance, F, L, H, dtype, scale, seed)
        got = solve(arrays.problem(), arrays.size, arrays.start)
        assert got.finish.dtype == dtype
        check(instance, got, rtol=rtol)


# ------------------------------------------------------------------------------------------------ by hand
def finish(capacity, hops, size, start=0.0, weight=1.0, cap=math.inf):
    """The solution of a problem in one shape, so that one program solves them all; the rest of its flows is absent."""
    hops, spare = np.asarray(hops), F - len(hops)
    table = np.pad(hops, ((0, spare), (0, H - hops.shape[1])), constant_values=-1)
    terms = (np.pad(np.broadcast_to(x, len(hops)).astype(float), (0, spare)) for x in (weight, cap, size, start))
    weight, cap, size, start = terms
    problem = FlowProblem(np.pad(np.asarray(capacity, float), (0, L - len(capacity))), table, weight=weight, cap=cap)
    return solve(problem, size, start)


def ends(*problem, **terms):
    return np.asarray(finish(*problem, **terms).finish)[: len(problem[1])]


def test_a_flow_that_starts_when_another_ends():
    # A and B share link 0; C is alone on link 1 until D joins it at the very moment, as a float, when B ends: from
    # then on each has half, D ends, C has the link. Whether the clock reaches that float from below is up to rounding.
    rng = np.random.default_rng(0)
    hops, late = [[0], [0], [1], [1]], 0
    for _ in range(60):
        zero, one = rng.uniform(1, 3, 2)
        small, large = np.sort(rng.uniform(1, 2, 2))
        moment = ends([zero, one], hops, [small, large, 50.0, 5.0])[1]
        got = ends([zero, one], hops, [small, large, 50.0, 5.0], [0.0, 0.0, 0.0, moment])
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
    got = finish([4.0, 0.0], np.array(hop)[:, None], size, start, weight=weight, cap=cap)
    np.testing.assert_array_equal(got.finish[: len(flows)], want)
    assert got.outcome == Outcome.starved
    got = finish([4.0], [[0], [0]], 0.0, [1.0, 2.0])
    np.testing.assert_array_equal(got.finish[:2], [1, 2])
    assert (got.events, got.outcome == Outcome.solved) == (0, True)


def test_nan_ends_in_an_outcome():
    for field in ("capacity", "size", "start"):
        terms = {"capacity": np.ones(2), "size": np.ones(3), "start": np.zeros(3)}
        terms[field][0] = math.nan
        got = finish(terms["capacity"], [[0], [1], [0]], terms["size"], terms["start"])
        assert got.outcome == Outcome.nonfinite
        assert np.isnan(got.finish).all()


# ------------------------------------------------------------------------------------------------ transformations
def test_a_batch_equals_its_loop_and_nothing_retraces():
    drawn = [padded(draw(seed, F, L, H), F, L, H) for seed in range(8)]
    singles = [(arrays.problem(), jnp.asarray(arrays.size), jnp.asarray(arrays.start)) for arrays in drawn]
    once = eqx.filter_jit(eqx.debug.assert_max_traces(completion_times, max_traces=1))
    assert_batch_is_its_loop(completion_times, singles, once, rtol=1e-13)


TERMS = ("capacity", "share", "weight", "cap", "size", "start")


def finish_at(hops, at):
    terms = {name: at[name] for name in TERMS[:4]}
    return completion_times(FlowProblem(hops=hops, **terms), at["size"], at["start"]).finish


slopes_of_finish = Derivatives(finish_at)


def smooth(seed):
    arrays = padded(draw(seed, 6, 4, 3, edges=False), 7, 5, 3, seed=seed)
    return arrays.hops, {name: getattr(arrays, name) for name in TERMS}


def test_derivatives_against_differences():
    for seed in range(60):
        slopes_of_finish.check(*smooth(seed), seed)


def test_derivatives_stay_finite_beside_starved_absent_and_empty_flows():
    hops, at = smooth(0)
    at["capacity"][0], at["weight"][1], at["size"][2] = 0, 0, 0
    hops[3], at["cap"][3] = -1, math.inf
    slopes_of_finish.check(hops, at, 0)


def test_derivatives_of_a_batch_equal_its_loop():
    total = jax.grad(lambda hops, at: jnp.sum(finish_at(hops, at)), argnums=1)
    cases = [smooth(seed) for seed in range(3)]
    assert_batch_is_its_loop(
        total, cases, lambda hops, at: slopes_of_finish.pullback(hops, at, np.ones(7)), rtol=1e-10, atol=1e-12
    )


def test_sizes_and_starts_have_a_number_for_every_flow():
    problem = FlowProblem(jnp.ones(2), jnp.array([[0], [1], [1]]))
    assert refused(completion_times, problem, jnp.ones(2)) == "size must be a number or have the shape [3], got [2]."
    said = refused(completion_times, problem, 1.0, start=jnp.ones((3, 1)))
    assert said == "start must be a number or have the shape [3], got [3, 1]."
