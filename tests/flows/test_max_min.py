"""Max-min rates against exact fractions, by their certificate, on worked examples and at the edges."""

import math

import chex
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from mfabric_jax.flows import FlowProblem, SolveOutcome, completion_times, max_min_rates
from mfabric_jax.flows.problem import paths_of
from mfabric_jax.support.platforms import compiling_for
from tests.batches import assert_batch_is_its_loop
from tests.flows.derivatives import Derivatives
from tests.flows.instances import draw, padded
from tests.oracles.dense import matrix
from tests.oracles.max_min import max_min

F, L, H = 60, 30, 6

solve = eqx.filter_jit(max_min_rates)

seeds = st.integers(0, 2**32 - 1)


def check(instance, got, *, rtol, scale=1.0):
    """Rates as the oracle's, outcome and bound on rounds."""
    want = np.array([float(r) for r in max_min(*instance.flow_terms())]) * scale
    rate = np.asarray(got.rate)
    np.testing.assert_allclose(rate[: len(want)], want, rtol=rtol)
    np.testing.assert_array_equal(rate[len(want) :], 0)
    starved = any(r == 0 and w > 0 for r, w in zip(want, instance.weight, strict=True))
    assert got.outcome == (SolveOutcome.starved if starved else SolveOutcome.solved)
    assert got.rounds <= max(len(want), 1)


def certify(arrays, got):
    """Every present flow meets its cap or a full link on which no rate / weight is larger: the one it reports."""
    rate, capacity = np.asarray(got.rate), arrays.capacity
    level = np.where(arrays.weight > 0, rate / np.where(arrays.weight > 0, arrays.weight, 1), 0)
    used, highest = np.zeros(len(capacity)), np.zeros(len(capacity))
    for f, row in enumerate(arrays.hops):
        for link, share in zip(row, arrays.share[f], strict=True):
            if link >= 0:
                used[link] += share * rate[f]
                highest[link] = max(highest[link], level[f])
    assert np.all(used <= capacity * (1 + 1e-12))
    for f in np.flatnonzero(arrays.weight):
        link = int(got.bottleneck[f])
        if link == -1:
            assert rate[f] == pytest.approx(arrays.cap[f], rel=1e-12)
        else:
            assert link in arrays.hops[f]
            assert used[link] == pytest.approx(capacity[link], rel=1e-12)
            assert level[f] >= highest[link] * (1 - 1e-12)
            assert rate[f] <= arrays.cap[f]


@settings(max_examples=200)
@given(seeds, st.integers(1, F), st.integers(1, L), st.integers(1, H), st.sampled_from([1.0, 1e3, 1e6, 1e9, 1e12]))
@example(0, F, L, H, 1.0)
@example(1, F, 10, H, 1.0)
@example(2, F, 3, H, 1.0)
def test_agrees_with_exact_fractions_at_every_scale(seed, flows, links, hops, scale):
    # float32 carries 6e-8 a step and a flow is frozen after a few sums over at most 60 flows: 1e-5 leaves a margin.
    instance = draw(seed, flows, links, hops)
    for dtype, rtol in ((np.float64, 1e-9), (np.float32, 1e-5)):
        arrays = padded(instance, F, L, H, dtype, scale, seed)
        got = solve(arrays.problem())
        assert got.rate.dtype == dtype
        check(instance, got, rtol=rtol, scale=scale)
        if dtype == np.float64:
            certify(arrays, got)


# ------------------------------------------------------------------------------------------------ by hand
def rates(capacity, hops, share=1.0, weight=1.0, cap=math.inf):
    """The solution of a problem in one shape, so that one program solves them all; cut to its flows."""
    hops = np.asarray(hops)
    spare = 16 - len(hops)
    table = np.pad(hops, ((0, spare), (0, 4 - hops.shape[1])), constant_values=-1)
    share = np.pad(np.broadcast_to(share, hops.shape), ((0, spare), (0, 4 - hops.shape[1])), constant_values=1)
    weight, cap = (np.pad(np.broadcast_to(x, len(hops)).astype(float), (0, spare)) for x in (weight, cap))
    got = solve(FlowProblem(np.pad(np.asarray(capacity, float), (0, 4 - len(capacity))), table, share, weight, cap))
    return got, got.rate[: len(hops)], got.bottleneck[: len(hops)]


def test_edges_of_the_contract():
    #     no hop and a cap: the cap | no hop, no cap: infinite | zero capacity: 0 | weight 0 wins over all three
    hops = [[-1], [-1], [0], [-1], [-1], [0], [1]]
    cap = [3.0, math.inf, math.inf, 3.0, math.inf, math.inf, math.inf]
    got, rate, bottleneck = rates([0.0, 5.0], hops, weight=[1.0, 2.0, 1.0, 0.0, 0.0, 0.0, 1.0], cap=cap)
    np.testing.assert_array_equal(rate, [3, math.inf, 0, 0, 0, 0, 5])
    np.testing.assert_array_equal(bottleneck[:3], [-1, -1, 0])
    assert got.outcome == SolveOutcome.starved
    assert rates([0.0], [[0]], weight=[0.0])[0].outcome == SolveOutcome.solved  # absent flows starve nothing
    # A link without limit holds nobody.
    _, rate, _ = rates([math.inf, 4.0], [[0, 1], [0, -1], [0, 1]], cap=[math.inf, 7.0, math.inf])
    np.testing.assert_array_equal(rate, [2, 7, 2])
    assert rates([math.inf], [[0]])[1][0] == math.inf


def test_nan_ends_in_an_outcome():
    arrays = padded(draw(0, 5, 3, 3, edges=False), F, L, H)
    for field in TERMS:
        value = getattr(arrays, field).copy()
        value.flat[0] = math.nan
        got = solve(arrays.problem(**{field: value}))
        assert got.outcome == SolveOutcome.nonfinite
        assert np.isnan(got.rate).all()


# ------------------------------------------------------------------------------------------------ transformations
def test_a_batch_equals_its_loop_and_nothing_retraces():
    singles = [(padded(draw(seed, F, L, H), F, L, H).problem(),) for seed in range(12)]
    once = eqx.filter_jit(chex.assert_max_traces(max_min_rates, n=1))
    assert_batch_is_its_loop(max_min_rates, singles, once, rtol=1e-14)


TERMS = ("capacity", "share", "weight", "cap")

slopes_of_rate = Derivatives(lambda hops, at: max_min_rates(FlowProblem(hops=hops, **at)).rate)


def test_derivatives_against_differences():
    for seed in range(80):
        arrays = padded(draw(seed, 10, 6, 4, edges=False), 12, 8, 4, seed=seed)
        slopes_of_rate.check(arrays.hops, {name: getattr(arrays, name) for name in TERMS}, seed)


def test_derivatives_stay_finite_beside_unlimited_absent_and_starved_flows():
    arrays = padded(draw(0, 6, 5, 3, edges=False), 12, 8, 4)
    arrays.capacity[0], arrays.capacity[1] = 0, math.inf
    arrays.hops[0], arrays.hops[1], arrays.cap[1] = [1, -1, -1, -1], -1, math.inf
    rate = np.asarray(max_min_rates(arrays.problem()).rate)
    at = {name: getattr(arrays, name) for name in TERMS}
    slopes = slopes_of_rate.pullback(arrays.hops, at, np.where(np.isfinite(rate), 1.0, 0.0))
    assert all(np.isfinite(slope).all() for slope in slopes.values())
    np.testing.assert_array_equal(slopes["share"][arrays.hops < 0], 0)


def test_comparing_hops_with_links_is_scattering():
    # Off a CPU links are summed over by comparison; with padding, and links without hops.
    rng = np.random.default_rng(0)
    problem = FlowProblem(rng.uniform(1, 2, 8), rng.integers(-1, 6, (9, 1)), share=rng.uniform(0.1, 1, (9, 1)))
    scattered, value = paths_of(problem), jnp.asarray(rng.uniform(1, 2, 9))
    with compiling_for("gpu"):
        compared = paths_of(problem)
    assert (compared.compared, scattered.compared) == (True, False)
    np.testing.assert_allclose(compared.link_sum(value), scattered.link_sum(value), rtol=1e-12)
    np.testing.assert_array_equal(compared.link_min(value), scattered.link_min(value))
    assert compared.link_min(value)[7] == np.inf


def test_packing_changes_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    hops = np.stack([rng.permutation(40)[:2] for _ in range(300)]).astype(np.int32)
    problem = FlowProblem(rng.uniform(1, 2, 40), hops, weight=rng.uniform(0.5, 2, 300))
    size, start = rng.lognormal(0, 1, 300), np.where(rng.random(300) < 0.3, rng.uniform(0, 5, 300), 0)
    want = completion_times(problem, size, start).finish, max_min_rates(problem).rate
    for module in ("max_min", "completion"):
        monkeypatch.setattr(f"mfabric_jax.flows.{module}.SMALL", 64)
    jax.clear_caches()
    got = completion_times(problem, size, start).finish, max_min_rates(problem).rate
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


def test_smallest_level_is_the_linear_programs():
    # The first max-min level is an LP of its own: maximise t with weight * t <= capacity everywhere and under caps.
    for seed in range(10):
        arrays = padded(draw(seed, 12, 6, 3, edges=False), 12, 6, 3)
        got = max_min_rates(arrays.problem())
        assert got.outcome == SolveOutcome.solved
        load = matrix(arrays.hops, arrays.share, 6) @ arrays.weight
        rows = np.concatenate([load, arrays.weight])[:, None]
        best = linprog([-1.0], A_ub=rows, b_ub=np.concatenate([arrays.capacity, np.minimum(arrays.cap, 1e9)]))
        np.testing.assert_allclose(np.min(np.asarray(got.rate) / arrays.weight), best.x[0], rtol=1e-9)


def test_a_million_hops_stay_within_memory_of_hops():
    # Temporary memory of the compiled solve, from the compiler: linear in the hops, not in flows x links.
    flows, links = 200_000, 50_000
    rng = np.random.default_rng(0)
    hops = rng.integers(0, links // 4, (flows, 4)).astype(np.int32) * 4 + np.arange(4, dtype=np.int32)
    problem = FlowProblem(np.ones(links, np.float32), hops)
    used = jax.jit(max_min_rates).lower(problem).compile().memory_analysis().temp_size_in_bytes
    assert used < 400 * hops.size
