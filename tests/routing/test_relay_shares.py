"""Shares for relay routing: the linear programme by hand and by brute force, and gradient steps beside it."""

import functools
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies import Plan
from mfabric_jax.routing import degree_bound, relay_shares
from mfabric_jax.routing.region import relay_bound
from mfabric_jax.routing.relay import check_shares
from tests.batches import assert_batch_is_its_loop
from tests.oracles.relay_programme import best_relay_shares
from tests.routing import regions
from tests.routing.regions import DIRECT, EPS, SERVERS, circuits, pairs, region, seconds

OFF = ~np.eye(SERVERS, dtype=bool)


@eqx.filter_jit
def bound(where, count, shares, demand):
    return relay_bound(where, Plan(Circuits(count), shares), demand)


degree_bound = eqx.filter_jit(degree_bound)


def draw(seed, dtype=float):
    """(region, circuits, demand): zipf, sparse, lognormal or hot; every other time servers that lost NICs."""
    rng, shape, order = np.random.default_rng(seed), (SERVERS, SERVERS), np.arange(SERVERS)[None]
    kinds = (
        lambda: rng.gamma(2, 0.5, shape) / (order + 1) ** 1.2,
        lambda: rng.uniform(0, 1, shape) ** 3 * (rng.random(shape) < 0.4),
        lambda: rng.lognormal(0, 1.5, shape),
        lambda: rng.uniform(0.5, 1, shape) * np.where(order < 2, 4, 1),
    )
    demand, ports = kinds[seed % 4]() * OFF, 2.0 - rng.integers(0, 2, SERVERS) * (seed // 4 % 2)
    _, count, _ = regions.draw(seed)
    where = region(ports, efficiency=(1, 0.8, 0.5)[seed % 3], dtype=dtype)
    return where, count.astype(dtype), demand.astype(dtype)


def best(where, count, demand):
    return best_relay_shares(where, Circuits(count), demand)


def near(where, count, demand, **settings):
    return relay_shares(where, Circuits(count), demand, **settings)


def assert_legal(shares, count, where):
    """Rows of two servers sum to 1 and use no missing circuit or port; others are 0."""
    shares, ports = np.asarray(check_shares(np.asarray(shares), SERVERS)), np.asarray(where.eps_Bps) > 0
    np.testing.assert_allclose(shares.sum(2), OFF, atol=1e-6)
    for i, j in np.argwhere(OFF):
        way = np.append((count[i] > 0) & (count[:, j] > 0), [count[i, j] > 0, ports[i] & ports[j]])
        way[[i, j]] = False
        assert (shares[i, j][~way] == 0).all() or not way.any()


def both(where, count, demand):
    """Shares of the programme and of gradient steps, both legal, and the programme's time."""
    shares, least = best(where, count, demand)
    stepped = np.asarray(near(where, count, demand))
    for each in (shares, stepped):
        assert_legal(each, count, where)
    return shares, stepped, least


def test_by_hand_at_half_efficiency():
    # Circuits of 1 B/s between three servers, EPS ports of 1 B/s. 0 sends 12 bytes to 1: by T its circuit carries T,
    # the EPS T, and via 2 goes T / 2, for it counts twice on 2-1: 12 = 2.5 T.
    where, count = region(1.0, efficiency=0.5), circuits({(0, 1): 1, (0, 2): 1, (1, 2): 1})
    # 2 sends 3 bytes to 1 as well, best over its circuit, which leaves T - 3 there: 12 = 2 T + (T - 3) / 2.
    shares, stepped, least = both(where, count, pairs({(0, 1): 12, (2, 1): 3}))
    np.testing.assert_allclose(least, 5.4, rtol=1e-12)
    np.testing.assert_allclose(shares[0, 1, [2, DIRECT, EPS]], [0.1, 0.45, 0.45], rtol=1e-12)
    np.testing.assert_allclose(shares[2, 1, DIRECT], 1, rtol=1e-12)
    np.testing.assert_allclose(stepped[0, 1], shares[0, 1], atol=0.01)


def test_the_programme_lies_between_the_degree_bound_and_every_other_routing():
    gain = []
    for seed in range(20):
        where, count, demand = draw(seed)
        shares, least = best(where, count, demand)
        assert_legal(shares, count, where)
        np.testing.assert_allclose(bound(where, count, shares, demand), least, rtol=1e-12)
        assert least >= degree_bound(where, demand) * (1 - 1e-9)
        times = [float(seconds(where, count, demand, name)) for name in ("split", "best-path", "unsplit")]
        assert least <= min(times) * (1 + 1e-9)
        gain.append(times[0] / least)
    assert np.mean(gain) > 1.05


@pytest.mark.parametrize(("seeds", "dtype"), [(16, np.float64), (8, np.float32)])
def test_gradient_steps_come_near_the_programme(seeds, dtype):
    late = []
    for seed in range(seeds):
        where, count, demand = draw(seed, dtype)
        shares = near(where, count, demand)
        assert shares.dtype == dtype
        assert_legal(shares, count, where)
        late.append(float(bound(where, count, shares, demand)) / best(where, count, demand)[1] - 1)
    assert min(late) > -1e-5
    assert np.mean(late) < 0.002
    assert max(late) < 0.01


def test_no_bytes_no_circuits_one_pair():
    none, some = circuits({}), circuits({(0, 1): 3})
    for count, ports in itertools.product((none, some), (0.0, 2.0)):
        assert both(region(ports), count, none)[2] == 0
    for count, rate in ((none, 2), (some, 5)):
        shares, stepped, least = both(region(), count, pairs({(0, 1): 10}))
        np.testing.assert_allclose(least, 10 / rate, rtol=1e-12)
        np.testing.assert_allclose(stepped, shares, atol=0.02)


def test_a_pair_without_a_path_never_arrives_and_the_others_keep_the_best():
    where = region([2, 2, 2, 0, 2, 2, 2, 2])
    count, alone = circuits({(0, 1): 1, (1, 2): 1, (0, 2): 1}), pairs({(0, 1): 12, (2, 1): 3})
    shares, stepped, least = both(where, count, alone + pairs({(0, 3): 1}))
    assert least == np.inf
    assert shares[0, 3, EPS] == stepped[0, 3, EPS] == 1
    want = best(where, count, alone)[1]
    np.testing.assert_allclose(bound(where, count, shares, alone), want, rtol=1e-9)
    np.testing.assert_allclose(bound(where, count, stepped, alone), want, rtol=0.02)


def test_a_batch_equals_its_loop_and_new_numbers_do_not_retrace():
    drawn = [draw(seed) for seed in (1, 2, 5, 6)]
    once = eqx.debug.assert_max_traces(lambda r, c, d: near(r, c, d, steps=60), max_traces=1)
    assert_batch_is_its_loop(once, drawn, functools.partial(near, steps=60), atol=1e-6)


def test_the_slope_of_the_best_time_is_that_with_fixed_shares():
    where, count, demand = draw(2)
    slope = jax.grad(lambda demand: bound(where, count, near(where, count, demand), demand))(demand)
    up, down = (best(where, count, demand * (1 + step))[1] for step in (1e-3, -1e-3))
    np.testing.assert_allclose(np.sum(slope * demand), (up - down) / 2e-3, rtol=0.01)


def test_more_steps_come_nearer_and_none_are_no_worse_than_split_routing():
    for seed in range(6):
        where, count, demand = draw(seed)
        split = seconds(where, count, demand, "split")
        none, few, many = (bound(where, count, near(where, count, demand, steps=n), demand) for n in (0, 3, 200))
        assert split * (1 + 1e-9) >= none >= few * (1 - 1e-9) >= many * (1 - 2e-9)
