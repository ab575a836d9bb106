"""Families of drawn demand, forecasts that are off, and selections folded to servers."""

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.traffic.demand_families import FAMILIES, drawn_each, folded, misjudged, misjudged_each

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
