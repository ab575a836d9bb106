"""Demand matrices against plain loops; families of drawn demand, forecasts that are off, selections folded."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from mfabric_jax.traffic import rank_bytes, server_bytes
from mfabric_jax.traffic.demand import inside_bytes
from mfabric_jax.traffic.demand_families import FAMILIES, drawn_each, folded, misjudged, misjudged_each
from tests.mistakes import refused

COUNTS = nps.arrays(np.int32, (4, 8), elements=st.integers(0, 1000))
build, inside = jax.jit(rank_bytes), jax.jit(inside_bytes, static_argnums=1)


@given(COUNTS)
def test_rank_bytes_agree_with_a_loop(tokens):
    expected = np.zeros((4, 4))
    for source, expert in np.ndindex(4, 8):
        expected[source, expert // 2] += tokens[source, expert] * 3
    np.testing.assert_array_equal(build(tokens, 3), expected)


@given(nps.arrays(np.float64, (6, 6), elements=st.integers(0, 1000)), st.sampled_from([1, 2, 3, 6]))
def test_servers_collect_their_ranks(demand, per_server):
    servers = 6 // per_server
    between, within = np.zeros((servers, servers)), np.zeros((servers, per_server, per_server))
    for i, j in np.ndindex(6, 6):
        between[i // per_server, j // per_server] += demand[i, j]
        if i // per_server == j // per_server:
            within[i // per_server, i % per_server, j % per_server] = demand[i, j]
    np.testing.assert_array_equal(server_bytes(jnp.asarray(demand), per_server), between)
    np.testing.assert_array_equal(inside(demand, per_server), within)


def test_a_batch_is_its_instances_and_integers_do_not_overflow():
    tokens = np.random.default_rng(0).integers(0, 9, (5, 4, 8))
    batch = jax.vmap(lambda one: server_bytes(rank_bytes(one, 7.0), 2))(tokens)
    np.testing.assert_array_equal(batch, [server_bytes(rank_bytes(jnp.asarray(one), 7.0), 2) for one in tokens])
    # 262144 selections of 14336 bytes: 3.8e9, beyond a 32-bit integer.
    assert rank_bytes(jnp.full((1, 1), 262144, jnp.int32), 14336)[0, 0] == 262144 * 14336
    demand = rank_bytes(jnp.ones((2, 2), jnp.float32), 2.0)
    assert {part.dtype for part in (demand, server_bytes(demand, 1), inside_bytes(demand, 2))} == {jnp.dtype("float32")}


def test_wrong_shapes_are_named():
    for call, words in (
        (lambda: rank_bytes(jnp.ones((4, 6)), 1), r"experts a multiple of ranks, got shape \(4, 6\)"),
        (lambda: server_bytes(jnp.ones((4, 3)), 1), r"demand must be square, got shape \(4, 3\)"),
        (lambda: inside_bytes(jnp.ones((4, 4)), 3), "ranks_per_server must divide the 4 ranks of the demand, got 3"),
        (lambda: inside_bytes(jnp.ones((4, 4)), 0), "ranks_per_server must be a whole number"),
    ):
        assert re.search(words, refused(call))


# ----------------------------------------------------------------------------------------------------------- families
SERVERS, EACH = 6, 20
# What 20 draws add up to, as ever: policies trained on these draws are judged on the same ones.
SUMS = {"zipf": 62.02493, "hot": 103.9643, "sparse": 325.8541, "block": 6654.462, "dense": 607.6647}
SUMS |= {"lognormal": 1720.09, "skewed": 303.8411}


def test_every_family_is_as_described():
    keys = jax.random.split(jax.random.key(1), EACH)
    for number, name in enumerate(FAMILIES):
        demand = np.asarray(drawn_each(keys, np.full(EACH, number), SERVERS))
        assert demand.dtype == np.float32
        assert np.all(demand >= 0)
        assert not demand[:, np.eye(SERVERS, dtype=bool)].any()
        np.testing.assert_allclose(demand.sum(), SUMS[name], rtol=1e-6, err_msg=name)
        pairs = demand[:, ~np.eye(SERVERS, dtype=bool)]
        kept = (pairs > 0).mean(axis=1)
        assert kept.min() == 1 if name != "sparse" else 0.02 < kept.mean() < 0.7
        if name == "dense":
            assert 0.5 <= pairs.min() < pairs.max() <= 1.5
        if name == "hot":
            assert np.all(demand.sum(axis=1).max(axis=1) > 1.2 * demand.sum(axis=1).mean(axis=1))


def test_another_family_is_another_draw():
    keys, every = jnp.stack([jax.random.key(1)] * EACH), np.arange(EACH) % len(FAMILIES)
    demand = np.asarray(drawn_each(keys, every, SERVERS)).reshape(EACH, -1)
    assert len(np.unique(demand, axis=0)) == len(FAMILIES)


def test_a_forecast_is_off_by_its_sigma():
    keys, demand = jax.random.split(jax.random.key(2), 2), jnp.ones((2, 40, 40), jnp.float32)
    off = np.asarray(misjudged_each(keys, demand, 0.3))
    np.testing.assert_allclose(np.log(off).std(), 0.3, rtol=0.05)
    np.testing.assert_array_equal(misjudged(keys[0], demand[0], 0.0), demand[0])
    np.testing.assert_allclose(misjudged(keys[1], demand[1], 0.3), off[1], rtol=1e-6)


def test_neighbours_are_folded_to_servers():
    count = np.random.default_rng(0).integers(0, 9, (2, 1, 3, 4, 8))
    demand = folded(count, 2)
    assert demand.shape == (6, 2, 2)
    for n, (i, m) in enumerate(np.ndindex(2, 3)):
        rows = count[i, 0, m]
        np.testing.assert_array_equal(demand[n], [[0, rows[:2, 4:].sum()], [rows[2:, :4].sum(), 0]])
