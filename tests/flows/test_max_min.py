"""Max-min rates against exact fractions, by their certificate, on worked examples and at the edges."""

import math
import re

import equinox as eqx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mfabric_jax.flows import FlowProblem, Outcome, max_min_rates
from tests.batches import assert_batch_is_its_loop
from tests.flows.derivatives import Derivatives
from tests.flows.instances import draw, padded
from tests.mistakes import refused
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
    assert got.outcome == (Outcome.starved if starved else Outcome.solved)
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


def test_float32_keeps_weights_and_capacities_a_factor_of_a_thousand_each_way():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        instance = draw(seed, 30, 12, H, edges=False)
        instance.weight = [w * 2 ** int(rng.integers(-10, 11)) for w in instance.weight]
        instance.capacity = [c * 2 ** int(rng.integers(-10, 11)) for c in instance.capacity]
        check(instance, solve(padded(instance, F, L, H, np.float32).problem()), rtol=1e-5)


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


LOCALS = [1, 2, 3, 5]  # flows on each link of a parking lot
LOT = [[0, 1, 2, 3]] + [[link, -1, -1, -1] for link, n in enumerate(LOCALS) for _ in range(n)]


def test_by_hand():
    for capacity, hops, terms, want, held_by in (
        # Flow 0 crosses both links, flow 1 only link 0, flow 2 only link 1. Link 1 fills first at 1/2: flows 0 and 2.
        # Link 0 then has 3/2 left, all for flow 1.
        ([2.0, 1.0], [[0, 1], [-1, 0], [1, -1]], {}, [0.5, 1.5, 0.5], [1, 0, 1]),
        # The link with 5 locals fills first at 12 / 6 = 2 and holds the long flow at 2; the locals elsewhere share 10.
        ([12.0] * 4, LOT, {}, [2.0] + [2.0 if n == 5 else 10 / n for n in LOCALS for _ in range(n)], None),
        ([6.0], [[0], [0], [0]], {"weight": [1.0, 2.0, 3.0]}, [1, 2, 3], None),  # in proportion to weights
        # Fair share 3 each; flow 0 stops at its cap 1, the other two take (9 - 1) / 2.
        ([9.0], [[0], [0], [0]], {"cap": [1.0, math.inf, math.inf]}, [1, 4, 4], [-1, 0, 0]),
        # Levels rise to 2. Flow 1 caps at 3, level 1 < 2; flow 0 then takes 8 - 3 = 5.
        ([8.0], [[0], [0]], {"weight": [1.0, 3.0], "cap": [math.inf, 3.0]}, [5, 3], None),
        # Flow 0 sends half over link 0 and half over link 1, flow 1 all over link 0. Link 0 carries r/2 + r = 1 at
        # r = 2/3: both freeze there; link 1 carries 1/3 of its 3.
        ([1.0, 3.0], [[0, 1], [0, -1]], {"share": [[0.5, 0.5], [1.0, 1.0]]}, [2 / 3, 2 / 3], [0, 0]),
    ):
        got, rate, bottleneck = rates(capacity, hops, **terms)
        np.testing.assert_allclose(rate, want, rtol=1e-15)
        assert held_by is None or bottleneck.tolist() == held_by
        assert got.outcome == Outcome.solved
    # Four links of 1 in a ring, flow f crosses f and f + 1: two flows a link, 1/2 each, in one round.
    got, rate, _ = rates([1.0] * 4, [[f, (f + 1) % 4] for f in range(4)])
    np.testing.assert_array_equal(rate, [0.5] * 4)
    assert got.rounds == 1


def test_edges_of_the_contract():
    #     no hop and a cap: the cap | no hop, no cap: infinite | zero capacity: 0 | weight 0 wins over all three
    hops = [[-1], [-1], [0], [-1], [-1], [0], [1]]
    cap = [3.0, math.inf, math.inf, 3.0, math.inf, math.inf, math.inf]
    got, rate, bottleneck = rates([0.0, 5.0], hops, weight=[1.0, 2.0, 1.0, 0.0, 0.0, 0.0, 1.0], cap=cap)
    np.testing.assert_array_equal(rate, [3, math.inf, 0, 0, 0, 0, 5])
    np.testing.assert_array_equal(bottleneck[:3], [-1, -1, 0])
    assert got.outcome == Outcome.starved
    assert rates([0.0], [[0]], weight=[0.0])[0].outcome == Outcome.solved  # absent flows starve nothing
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
        assert got.outcome == Outcome.nonfinite
        assert np.isnan(got.rate).all()


def test_a_static_mistake_names_its_field():
    for terms, field in [
        (([-1.0], [[0]]), "capacity"),
        ((1.0, [[0]]), "capacity"),
        (([1.0], [[1]]), "hops"),
        (([1.0], [[-2]]), "hops"),
        (([1.0], [[0, 0]]), "hops"),
        (([1.0], [0]), "hops"),
        (([1.0], [[0.0]]), "hops"),
        (([1.0], [[0]], 0.0), "share"),
        (([1.0], [[0]], 1.0, [-1.0]), "weight"),
        (([1.0], [[0]], 1.0, [1.0, 1.0]), "weight"),
        (([1.0], [[0]], 1.0, 1.0, [-1.0]), "cap"),
    ]:
        assert re.search(field, refused(FlowProblem, *(np.asarray(t) for t in terms)))


# ------------------------------------------------------------------------------------------------ transformations
def test_a_batch_equals_its_loop_and_nothing_retraces():
    singles = [(padded(draw(seed, F, L, H), F, L, H).problem(),) for seed in range(12)]
    once = eqx.filter_jit(eqx.debug.assert_max_traces(max_min_rates, max_traces=1))
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
