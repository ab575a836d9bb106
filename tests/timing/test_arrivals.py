"""Experts that begin as tokens arrive: against an event simulation, the rule of equal parts, by hand, derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.routing.arrived import Arrivals, equal_parts
from mfabric_jax.timing.arrivals import block_ends, experts_end
from mfabric_jax.timing.blocks import overlap_parts
from tests.mistakes import check_refused
from tests.oracles import arrivals as plain

PARTS, SERVERS = 5, 3
both = jax.jit(block_ends)


def draw(seed):
    """Parts of which some have no tokens at some server, or at all."""
    rng = np.random.default_rng(seed)
    some = (rng.random((PARTS, SERVERS)) < 0.8) & (rng.random((PARTS, 1)) < 0.9)
    time = np.cumsum(rng.exponential(1.0, (PARTS, SERVERS)), 0) * some
    turn, circuit, packet = rng.exponential(0.5, (3, PARTS)) * (rng.random((3, PARTS)) < 0.8)
    return Arrivals(time, rng.integers(1, 9, (PARTS, SERVERS)) * some * 2.0, turn, circuit, packet)


def test_it_is_an_event_simulation_and_a_batch_is_its_loop():
    drawn = [draw(seed) for seed in range(300)]
    costs = np.random.default_rng(0).exponential(0.4, (300, 2))
    stacked = jax.tree.map(lambda *x: np.stack(x), *drawn)
    batch = jax.jit(jax.vmap(block_ends, (0, None, 0, 0)))(stacked, 2.0, *costs.T)
    for n, (one, (fixed, token)) in enumerate(zip(drawn, costs.tolist(), strict=True)):
        tokens, lanes = one.bytes / 2, [(one.reconfigure_s, one.circuit_s), (np.zeros(PARTS), one.packet_s)]
        end, combine = plain.block(one.time.tolist(), tokens.tolist(), fixed, token, lanes)
        got = jax.tree.map(lambda x, n=n: x[n], batch)
        np.testing.assert_allclose(np.where(tokens > 0, got.computed, 0), end, rtol=1e-12)
        np.testing.assert_allclose(got.experts_s, np.max(end), rtol=1e-12)
        np.testing.assert_allclose(got.combine_s, combine, rtol=1e-12)
        if n < 10:
            alone = both(one, 2.0, *np.array([fixed, token]))
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-14), alone, got)


def test_equal_parts_are_the_rule_of_blocks():
    rng = np.random.default_rng(1)
    for first, second, inner in [*rng.exponential(1.0, (20, 3)), (1.0, 0.0, 1.0), (0.0, 1.0, 1.0), (1.0, 1.0, 0.0)]:
        for parts in (1, 2, 3, 8):
            received = np.full(2, 16.0)
            ends = block_ends(equal_parts(first, second, received, parts), 2.0, 0.0, inner / 8)
            experts, gap = overlap_parts(np.array([first, second]), np.asarray(inner), parts)
            np.testing.assert_allclose(ends.combine_s, first + gap + second, rtol=1e-12)
            np.testing.assert_allclose(ends.experts_s, first + experts[1], rtol=1e-12)


def test_by_hand():
    # 4 s to dispatch 8 tokens of 1 s, 4 s back. At once: 4 + 8 + 4. In 2 parts computation begins at 2: 2 + 8, and the
    # last half returns after it: 2 s. With 1 s for every batch, 1 + 16 and 2 + 8 + 2 + 2; with 4 s parts get worse.
    def end(parts, batch):
        return float(block_ends(equal_parts(4.0, 4.0, np.array([8.0]), parts), 1.0, batch, 1.0).combine_s)

    assert [end(parts, 0.0) for parts in (1, 2, 4, 8)] == [16, 12, 10, 9]
    assert [end(parts, 1.0) for parts in (1, 2, 4, 8)] == [17, 14, 14, 17]
    assert [end(parts, 4.0) for parts in (1, 2, 4)] == [20, 20, 26]
    whole = equal_parts(4.0, 4.0, np.array([8.0]), 4).merge_parts(1)
    assert float(block_ends(whole, 1.0, 1.0, 1.0).combine_s) == 17
    nothing = equal_parts(4.0, 4.0, np.zeros(2), 3)  # no tokens: no batch, and nothing to send back
    assert [float(x) for x in block_ends(nothing, 1.0, 1.0, 1.0)[1:]] == [0, 0]


def test_derivatives_are_differences():
    one = jax.tree.map(jnp.asarray, draw(7))

    @jax.jit
    def end(time, circuit_s, batch, token):
        return block_ends(one._replace(time=time, circuit_s=circuit_s), 2.0, batch, token).combine_s

    at = one.time, one.circuit_s, jnp.asarray(0.3), jnp.asarray(0.2)
    way = jax.tree.map(lambda x: jnp.asarray(np.random.default_rng(3).normal(size=x.shape)), at)
    found = jax.jvp(end, at, way)[1]
    back = jax.grad(end, (0, 1, 2, 3))(*at)
    ahead, behind = (end(*(a + h * w for a, w in zip(at, way, strict=True))) for h in (1e-6, -1e-6))
    np.testing.assert_allclose(found, (ahead - behind) / 2e-6, rtol=1e-6)
    np.testing.assert_allclose(sum((b * w).sum() for b, w in zip(back, way, strict=True)), found, rtol=1e-12)
    assert back[2] >= 1  # at least one batch is in the way of the end


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_that_of_the_arrivals(dtype):
    one = jax.tree.map(lambda x: jnp.asarray(x, dtype), draw(2))
    ends = block_ends(one, 2.0, 0.1, 0.2)
    assert {x.dtype for x in ends} == {jnp.dtype(dtype)}
    np.testing.assert_allclose(ends.combine_s, block_ends(draw(2), 2.0, 0.1, 0.2).combine_s, rtol=1e-5)


def test_mistakes():
    one = draw(1)
    check_refused("batch_s must be finite and not negative, got -1", block_ends, one, 2.0, -1.0, 0.1)
    check_refused("bytes_per_token must be finite and above 0, got 0", block_ends, one, 0.0, 1.0, 0.1)
    check_refused("tokens must have the shape of arrival", experts_end, one.time, one.bytes[:2], 1.0, 1.0)
    check_refused("parts must be a whole number of at least 1, got 0", one.merge_parts, 0)
