"""Demand matrices against plain loops, by hand, under jit and vmap, and in 32 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mfabric_jax.checks import InputError
from mfabric_jax.traffic import phases, rank_bytes, server_bytes, split_local

COUNTS = nps.arrays(np.int32, (4, 8), elements=st.integers(0, 1000))
build = jax.jit(rank_bytes)
split = jax.jit(split_local, static_argnums=1)


@given(COUNTS)
def test_rank_bytes_agree_with_a_loop(tokens):
    expected = np.zeros((4, 4))
    for source in range(4):
        for expert in range(8):
            expected[source, expert // 2] += tokens[source, expert] * 3
    np.testing.assert_array_equal(build(tokens, 3), expected)


@given(nps.arrays(np.float64, (6, 6), elements=st.integers(0, 1000)), st.sampled_from([1, 2, 3, 6]))
def test_servers_collect_their_ranks(demand, per_server):
    servers = 6 // per_server
    expected = np.zeros((servers, servers))
    between, inside = np.zeros((6, 6)), np.zeros((servers, per_server, per_server))
    for i in range(6):
        for j in range(6):
            expected[i // per_server, j // per_server] += demand[i, j]
            if i // per_server == j // per_server:
                inside[i // per_server, i % per_server, j % per_server] = demand[i, j]
            else:
                between[i, j] = demand[i, j]
    np.testing.assert_array_equal(server_bytes(jnp.asarray(demand), per_server), expected)
    got = split(demand, per_server)
    np.testing.assert_array_equal(got.between, between)
    np.testing.assert_array_equal(got.inside, inside)


def test_phases_by_hand():
    # fp8 dispatch, bf16 combine: the answers and their gradients are twice as large.
    got = phases(jnp.asarray([[0.0, 1.0], [5.0, 0.0]]), 2)
    forward_dispatch, forward_combine = [[0, 1], [5, 0]], [[0, 10], [2, 0]]
    combine_gradient, dispatch_gradient = [[0, 2], [10, 0]], [[0, 5], [1, 0]]
    np.testing.assert_array_equal(got, [forward_dispatch, forward_combine, combine_gradient, dispatch_gradient])


def test_a_batch_is_its_instances():
    tokens = np.random.default_rng(0).integers(0, 9, (5, 4, 8))
    batch = jax.jit(jax.vmap(lambda t: phases(rank_bytes(t, 7.0), 0.5)))(tokens)
    assert batch.shape == (5, 4, 4, 4)
    for one, row in zip(tokens, batch, strict=True):
        np.testing.assert_array_equal(row, phases(rank_bytes(jnp.asarray(one), 7.0), 0.5))


def test_integer_counts_do_not_overflow():
    # 262144 selections of 14336 bytes: 3.8e9, beyond a 32-bit integer.
    assert rank_bytes(jnp.full((1, 1), 262144, jnp.int32), 14336)[0, 0] == 262144 * 14336


def test_single_precision_stays_single():
    demand = rank_bytes(jnp.ones((2, 2), jnp.float32), 2.0)
    parts = [demand, server_bytes(demand, 1), *split_local(demand, 2), phases(demand, 2.0)]
    assert [part.dtype for part in parts] == [jnp.float32] * 5


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rank_bytes(jnp.ones((4, 6)), 1), r"experts a multiple of ranks, got shape \(4, 6\)"),
        (lambda: server_bytes(jnp.ones((4, 3)), 1), r"demand must be square, got shape \(4, 3\)"),
        (lambda: split_local(jnp.ones((4, 4)), 3), "ranks_per_server must divide the 4 ranks of the demand, got 3"),
        (lambda: split_local(jnp.ones((4, 4)), 0), "ranks_per_server must be a whole number"),
        (lambda: phases(jnp.ones(4)), r"demand must be square, got shape \(4,\)"),
    ],
)
def test_wrong_shapes_are_named(call, words):
    with pytest.raises(InputError, match=words):
        call()
