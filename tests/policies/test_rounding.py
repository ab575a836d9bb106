"""Whole circuits from any numbers against plain loops; what scaling makes of logits against a plain fixed point."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mfabric_jax.policies.relaxed import draw_to_whole, first_logits, round_circuits, soft_circuits
from tests.batches import assert_batch_is_its_loop
from tests.policies.drawn import SEEDS, any_degrees, assert_legal

SERVERS = 5
deal = jax.jit(round_circuits)
soften = jax.jit(soft_circuits)


def wanted(seed):
    """Real-valued circuits [S S], symmetric or not, some of them no circuits at all."""
    rng, shape = np.random.default_rng(seed), (SERVERS, SERVERS)
    count = rng.dirichlet(np.ones(SERVERS), SERVERS) * 6
    kinds = rng.uniform(0, 3, shape), rng.integers(0, 4, shape) / 2, rng.normal(0, 1e6, shape), np.zeros(shape)
    return [*kinds, count + count.T, rng.choice([np.nan, np.inf, -np.inf, 0, 1, 1e30], shape)][seed % 6]


def plain(count, degrees, least=-np.inf):
    """Whole parts, then the pair that lacks most, while both ends have a NIC; `count` within the degrees."""
    found, lack = {}, {}
    for i in range(len(count)):
        for j in range(i + 1, len(count)):
            found[i, j] = int(np.floor(count[i, j]))
            lack[i, j] = count[i, j] - found[i, j]
    free = [int(degrees[i]) - sum(n for pair, n in found.items() if i in pair) for i in range(len(count))]
    while True:
        open_ = [pair for pair in found if free[pair[0]] and free[pair[1]] and lack[pair] >= least]
        if not open_:
            break
        i, j = max(open_, key=lambda pair: (lack[pair], -pair[0], -pair[1]))
        found[i, j] += 1
        lack[i, j] -= 1
        free[i] -= 1
        free[j] -= 1
    whole = np.zeros(np.shape(count), int)
    for (i, j), n in found.items():
        whole[i, j] = whole[j, i] = n
    return whole


@settings(max_examples=200, derandomize=True)
@given(SEEDS, any_degrees(SERVERS))
def test_legal_whatever_is_wanted(seed, degrees):
    degrees = np.asarray(degrees, np.int32)
    assert_legal(deal(wanted(seed), degrees), degrees)
    assert_legal(deal(wanted(seed).astype(np.float32), degrees), degrees)


@given(SEEDS, st.sampled_from([-np.inf, 0.5]))
@example(0, 0.5)
def test_agrees_with_plain_loops_within_the_degrees(seed, least):
    rng = np.random.default_rng(seed)
    count = np.triu(rng.integers(0, 16, (SERVERS, SERVERS)) / 8, 1)  # eighths: exact sums, and ties
    count += count.T
    degrees = np.ceil(count.sum(1)).astype(np.int32) + rng.integers(0, 3, SERVERS).astype(np.int32)
    got = deal(count, degrees, least=jnp.asarray(least))
    np.testing.assert_array_equal(got, plain(count, degrees, least))


def test_noise_gives_other_roundings_and_whole_circuits_stay():
    degrees, even = np.full(SERVERS, 3, np.int32), np.full((SERVERS, SERVERS), 0.75)
    noisy = jax.jit(jax.vmap(lambda key: round_circuits(even, degrees, noise=0.3, key=key)))
    assert len(np.unique(noisy(jax.random.split(jax.random.key(0), 10)), axis=0)) > 3
    ring = np.roll(np.eye(SERVERS), 1, axis=1)
    np.testing.assert_array_equal(deal(3 * (ring + ring.T), np.full(SERVERS, 6, np.int32)), 3 * (ring + ring.T))
    degrees = np.random.default_rng(0).integers(0, 9, (12, SERVERS)).astype(np.int32)
    assert_batch_is_its_loop(round_circuits, [(wanted(seed), degrees[seed]) for seed in range(12)], deal)


def test_soft_circuits_use_the_nics_and_no_more():
    rng = np.random.default_rng(1)
    for degrees, spread in itertools.product((6, 1, rng.integers(0, 9, SERVERS), 0), (0.0, 1.0, 30.0)):
        degrees = np.broadcast_to(degrees, SERVERS).astype(np.int32)
        for dtype in (np.float32, np.float64):
            count = np.asarray(soften(rng.normal(0, spread, (SERVERS, SERVERS)).astype(dtype), degrees))
            assert count.dtype == dtype
            np.testing.assert_allclose(count, count.T, rtol=1e-5)
            np.testing.assert_array_equal(np.diagonal(count), 0)
            assert count.min() >= 0
            assert (count.sum(1) <= degrees * (1 + 1e-5)).all()


def test_soft_circuits_are_the_scaling_to_the_degrees():
    rng = np.random.default_rng(2)
    logits, degrees = rng.normal(0, 0.5, (SERVERS, SERVERS)), np.array([6, 5, 4, 6, 5], np.int32)
    kernel = np.exp((logits + logits.T) / 2) * (1 - np.eye(SERVERS))
    scale = np.ones(SERVERS)
    for _ in range(2000):
        scale = np.sqrt(scale * degrees / (kernel @ scale))
    np.testing.assert_allclose(soften(logits, degrees), scale[:, None] * kernel * scale, rtol=0.03)  # twelve rounds


def test_slopes_are_finite_where_nothing_can_be_joined():
    slope = jax.jit(jax.grad(lambda logits, degrees: (soft_circuits(logits, degrees) ** 2).sum()))
    for degrees in ([0, 0, 0, 0, 0], [6, 0, 0, 0, 0], [8, 1, 0, 1, 2]):
        assert np.isfinite(slope(np.zeros((SERVERS, SERVERS)), np.asarray(degrees, np.int32))).all()


def test_drawing_keeps_whole_and_half_counts():
    at = jnp.array([0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(draw_to_whole(at, jnp.asarray(1.0)), at, atol=1e-12)
    assert draw_to_whole(jnp.asarray(0.25), jnp.asarray(1.0)) < 0.1
    np.testing.assert_array_equal(draw_to_whole(at + 0.25, jnp.asarray(0.0)), at + 0.25)


def test_starts_follow_the_demand_and_differ():
    demand = np.zeros((SERVERS, SERVERS))
    demand[0, 1] = demand[3, 2] = 1e9
    first, *others = np.asarray(first_logits(jnp.asarray(demand), jax.random.key(0), 3))
    np.testing.assert_array_equal(first, first.T)
    assert first[1, 0] == first[0, 1] == first[2, 3] == first.max()
    assert np.isfinite(first).all()
    assert not np.array_equal(*others)
    assert np.isfinite(first_logits(jnp.zeros((SERVERS, SERVERS)), jax.random.key(0), 2)).all()
