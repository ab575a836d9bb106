"""Completion times against an exact event simulation in fractions, on worked examples and at the edges."""

import functools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from tests.flows.derivatives import Derivatives
from tests.flows.instances import draw, padded
from tests.oracles.fluid import completion

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


@settings(max_examples=600, deadline=None, derandomize=True)
@given(seeds, st.integers(1, F), st.integers(1, L), st.integers(1, H))
def test_agrees_with_exact_fractions(seed, flows, links, hops):
    instance = draw(seed, flows, links, hops)
    arrays = padded(instance, F, L, H, seed=seed)
    check(instance, solve(arrays.problem(), arrays.size, arrays.start), rtol=1e-9)


def test_agrees_with_exact_fractions_at_full_size():
    for seed in range(60):
        instance = draw(seed, F, L, H)
        arrays = padded(instance, F, L, H, seed=seed)
        check(instance, solve(arrays.problem(), arrays.size, arrays.start), rtol=1e-9)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seeds, st.integers(1, F), st.integers(1, L), st.sampled_from([1e3, 1e6, 1e9, 1e12]))
def test_every_scale_of_bytes(seed, flows, links, scale):
    # Bytes and bytes per second both grow by `scale`: seconds stay. float32: about 24 events, each with an error of
    # a few 6e-8 in the rates, which later flows inherit divided by the bytes they have left: 2e-4 at worst.
    instance = draw(seed, flows, links, H)
    for dtype, rtol in ((np.float64, 1e-9), (np.float32, 2e-4)):
        arrays = padded(instance, F, L, H, dtype, scale, seed)
        got = solve(arrays.problem(), arrays.size, arrays.start)
        assert got.finish.dtype == dtype
        check(instance, got, rtol=rtol)


def finish(capacity, hops, size, start=0.0, **terms):
    problem = FlowProblem(np.asarray(capacity), np.asarray(hops), **{k: np.asarray(v) for k, v in terms.items()})
    return solve(problem, np.asarray(size), np.asarray(start))


def test_two_flows_on_one_link():
    # 1 B/s each until the smaller of 1 and 3 bytes is gone at t = 1; the other then has 2 bytes left at 2 B/s: t = 2.
    got = finish([2.0], [[0], [0]], [1.0, 3.0])
    np.testing.assert_array_equal(got.finish, [1, 2])
    assert got.events == 2


def test_flows_that_end_together_are_one_event():
    got = finish([3.0], [[0], [0], [0]], [1.0, 1.0, 1.0])
    np.testing.assert_array_equal(got.finish, [1, 1, 1])
    assert got.events == 1


def test_a_late_flow_slows_an_early_one():
    # Flow 0 (4 bytes) is alone until t = 1: 2 bytes left. Then both get 1 B/s: flow 1 (1 byte) ends at 2, flow 0 has
    # 1 byte left at 2 B/s and ends at 2.5.
    np.testing.assert_array_equal(finish([2.0], [[0], [0]], [4.0, 1.0], [0.0, 1.0]).finish, [2.5, 2])


def test_the_link_idles_between_flows():
    np.testing.assert_array_equal(finish([2.0], [[0], [0]], [2.0, 2.0], [1.0, 10.0]).finish, [2, 11])


def test_an_end_can_slow_another_flow():
    # Capacities 1 and 2. A crosses both, B link 0, C link 1; sizes 1, 1/4, 9. Until t = 1/2: A and B 1/2 on link 0, C
    # takes 3/2. Then B is gone (1/4 byte); A rises to 1 (link 0) and C falls to 1. A (3/4 left) ends at 5/4; C moved
    # 3/4 + 3/4, the other 7.5 bytes go at 2: 5/4 + 15/4 = 5.
    got = finish([1.0, 2.0], [[0, 1], [0, -1], [1, -1]], [1.0, 0.25, 9.0])
    np.testing.assert_array_equal(got.finish, [1.25, 0.5, 5])


def test_a_flow_that_starts_when_another_ends():
    # A and B share link 0; C is alone on link 1 until D joins it at the very moment, as a float, when B ends: from
    # then on each has half, D ends, C has the link. Whether the clock reaches that float from below is up to rounding.
    rng = np.random.default_rng(0)
    hops, late = [[0], [0], [1], [1]], 0
    for _ in range(100):
        zero, one = rng.uniform(1, 3, 2)
        small, large = np.sort(rng.uniform(1, 2, 2))
        ends = finish([zero, one], hops, [small, large, 50.0, 5.0]).finish[1]
        got = finish([zero, one], hops, [small, large, 50.0, 5.0], [0.0, 0.0, 0.0, ends]).finish
        late += bool(ends > (small + large) / zero)
        want = [2 * small / zero, (small + large) / zero, 55 / one, ends + 10 / one]
        np.testing.assert_allclose(got, want, rtol=1e-12)
    assert 0 < late < 100


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
    np.testing.assert_array_equal(got.finish, want)
    assert got.outcome == Outcome.starved


def test_nothing_to_send():
    got = finish([4.0], [[0], [0]], [0.0, 0.0], [1.0, 2.0])
    np.testing.assert_array_equal(got.finish, [1, 2])
    assert got.events == 0
    assert got.outcome == Outcome.solved


@pytest.mark.parametrize("field", ["capacity", "size", "start"])
def test_nan_ends_in_an_outcome(field):
    terms = {"capacity": np.ones(2), "size": np.ones(3), "start": np.zeros(3)}
    terms[field][0] = math.nan
    got = finish(terms["capacity"], [[0], [1], [0]], terms["size"], terms["start"])
    assert got.outcome == Outcome.nonfinite
    assert np.isnan(got.finish).all()


@functools.cache
def batch():
    drawn = [padded(draw(seed, F, L, H), F, L, H) for seed in range(8)]
    singles = [(arrays.problem(), jnp.asarray(arrays.size), jnp.asarray(arrays.start)) for arrays in drawn]
    return singles, jax.tree.map(lambda *leaves: jnp.stack(leaves), *singles)


def test_a_batch_equals_its_loop():
    singles, stacked = batch()
    got = eqx.filter_jit(jax.vmap(completion_times))(*stacked)
    for index, single in enumerate(singles):
        np.testing.assert_allclose(got.finish[index], solve(*single).finish, rtol=1e-13)
        assert got.events[index] == solve(*single).events


def test_a_new_configuration_does_not_retrace():
    once = eqx.filter_jit(eqx.debug.assert_max_traces(completion_times, max_traces=1))
    for single in batch()[0]:
        once(*single)


TERMS = ("capacity", "share", "weight", "cap", "size", "start")


def finish_at(hops, at):
    terms = {name: at[name] for name in TERMS[:4]}
    return completion_times(FlowProblem(hops=hops, **terms), at["size"], at["start"]).finish


slopes_of_finish = Derivatives(finish_at)


def smooth(seed):
    arrays = padded(draw(seed, 6, 4, 3, edges=False), 7, 5, 3, seed=seed)
    return arrays.hops, {name: getattr(arrays, name) for name in TERMS}


@pytest.mark.parametrize("seed", range(250))
def test_derivatives_against_differences(seed):
    slopes_of_finish.check(*smooth(seed), seed)


def test_derivatives_stay_finite_beside_starved_absent_and_empty_flows():
    hops, at = smooth(0)
    at["capacity"][0], at["weight"][1], at["size"][2] = 0, 0, 0
    hops[3], at["cap"][3] = -1, math.inf
    slopes_of_finish.check(hops, at, 0)


def test_derivatives_of_a_batch_equal_its_loop():
    hops, point = zip(*(smooth(seed) for seed in range(3)), strict=True)
    stacked = {name: np.stack([at[name] for at in point]) for name in TERMS}

    def total(hops, at):
        return jnp.sum(finish_at(hops, at))

    together = jax.jit(jax.vmap(jax.grad(total, argnums=1)))(np.stack(hops), stacked)
    alone = jax.jit(jax.grad(total, argnums=1))
    for index in range(3):
        single = alone(hops[index], point[index])
        for name in TERMS:
            np.testing.assert_allclose(together[name][index], single[name], rtol=1e-10, atol=1e-12, err_msg=name)
