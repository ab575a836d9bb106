"""`ahead`: equivariant, legal whatever the demand, `greedy` before training, and better than it where demand lasts."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.apps.learning.sources import Drift
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import get, get_suitable, greedy, load, reads_of, save
from mfabric_jax.policies.ahead import AheadNetwork, ahead, choose_ahead, imagine, mean_power, shipped_ahead
from mfabric_jax.routing import fluid_lower_bound
from tests.policies.drawn import assert_legal, hostile, region

SERVERS = 8
REGION = Region(SERVERS, 400.0, 4, 1.0)


@functools.cache
def drifting(seed, steps, servers=SERVERS, many=1):
    """Demands [many steps S S] with memory 0.98 and skewed pairs."""
    source = Drift(pairs=2.0, memory=0.98)

    def chain(key):
        first, then = jax.random.split(key)
        state = source.first(first, servers, jnp.float32)[0]
        return jax.lax.scan(lambda state, key: source.next(key, state), state, jax.random.split(then, steps))[1]

    return jax.jit(jax.vmap(chain))(jax.random.split(jax.random.key(seed), many))


def first_proposal(network, demand, history, horizon=4.0):
    key = jax.random.key(0)
    return choose_ahead(network, demand, history, REGION, key, horizon, None, "split", 1, 0)


def test_before_training_it_is_greedy():
    network, every = AheadNetwork(key=jax.random.key(1)), drifting(1, 24)[0]
    for step in range(16, 24):
        count = first_proposal(network, every[step], every[:step])
        np.testing.assert_array_equal(count, greedy(every[step], REGION, rule="next").circuits.count)
        trained = first_proposal(shipped_ahead(), every[step], every[:step])
        assert (trained != count).any()


def test_a_network_of_a_file_is_the_policy_with_it(tmp_path):
    network = AheadNetwork(6, 1, key=jax.random.key(1))
    weight = 3 * jax.random.normal(jax.random.key(2), network.score.weight.shape, jnp.float32)
    network = eqx.tree_at(lambda network: network.score.weight, network, weight)
    path, every = str(save(tmp_path / "some.policy", network, {"steps": 0})), drifting(1, 24)[0]
    assert (load(path).kind, load(path).configuration) == ("ahead", {"steps": 0})
    for tries, scenarios in ((1, 0), (4, 8)):
        policy = get(path, horizon=4.0, tries=tries, scenarios=scenarios)
        settings = jax.random.key(0), 4.0, None, "split", tries, scenarios
        count, *others = (
            choose_ahead(other, every[16], every[:16], REGION, *settings) for other in (network, shipped_ahead())
        )
        np.testing.assert_array_equal(policy(every[16], REGION, history=every[:16]).circuits.count, count)
        assert scenarios or (count != others[0]).any()


@pytest.mark.parametrize(("routing", "nearest"), [("relay", "split"), ("best-path", "unsplit"), ("split", "split")])
def test_under_a_routing_that_it_cannot_optimise_for_it_takes_the_nearest(tmp_path, routing, nearest):
    path = str(save(tmp_path / "some.policy", shipped_ahead()))
    for name in ("ahead", path):
        assert get_suitable(name, routing=routing).keywords == {"routing": nearest}


def test_the_order_of_servers_does_not_matter():
    every, network = drifting(2, 17)[0], shipped_ahead()
    order = np.random.default_rng(0).permutation(SERVERS)
    uneven = dataclasses.replace(REGION, optical_degree=jnp.asarray([4, 4, 3, 4, 2, 4, 4, 4], jnp.int32))
    moved = dataclasses.replace(REGION, optical_degree=uneven.degrees[order])
    scores = network.scores(every[-1], every, uneven, 3.0)
    after = network.scores(every[-1][order][:, order], every[:, order][:, :, order], moved, 3.0)
    for score, other in zip(scores, after, strict=True):
        np.testing.assert_allclose(score[order][:, order], other, atol=2e-4)
        np.testing.assert_array_equal(score, score.T)
        assert score.dtype == jnp.float32


def test_horizon_and_history_are_read():
    every = drifting(3, 17)[0]
    network = shipped_ahead()
    level = network.scores(every[-1], every, REGION, 1.0).level
    for other in (
        network.scores(every[-1], every, REGION, 12.0),
        network.scores(every[-1], every[-1:], REGION, 1.0),
        network.scores(every[-1], every, REGION, 1.0, 1.0),
    ):
        assert np.abs(level - other.level).max() > 1e-3
    padded = jnp.concatenate([jnp.zeros((3, SERVERS, SERVERS), jnp.float32), every])
    np.testing.assert_allclose(network.scores(every[-1], padded, REGION, 1.0).level, level, atol=1e-4)


@pytest.mark.parametrize("horizon", [1.0, 12.0])
def test_legal_whatever_demand_and_history(horizon):
    policy = jax.jit(
        lambda demand, history, degrees, electrical: (
            ahead(
                demand, region(SERVERS, degrees, electrical), history=history, horizon=horizon, tries=3, scenarios=2
            ).circuits.count
        )
    )
    rng = np.random.default_rng(4)
    for seed in range(24):
        demand, history = hostile(seed, SERVERS), np.stack([hostile(seed + 7 * past, SERVERS) for past in range(3)])
        degrees = rng.integers(0, 7, SERVERS) * (rng.random(SERVERS) < 0.8)
        assert_legal(policy(demand, history, degrees, float(seed % 3)), degrees)
    nan = policy(jnp.full((SERVERS, SERVERS), jnp.nan), jnp.ones((3, SERVERS, SERVERS)), np.full(SERVERS, 4), 1.0)
    assert (np.asarray(nan)[~np.eye(SERVERS, dtype=bool)] == -1).all()


def test_unknown_settings_are_refused():
    demand = drifting(1, 24)[0, 0]
    for settings in ({"horizon": 0}, {"sigma": -1.0}, {"routing": "relay"}, {"tries": 0}, {"scenarios": -1}):
        with pytest.raises(InputError, match=next(iter(settings))):
            ahead(demand, REGION, **settings)
    assert get("ahead", horizon=4.0).keywords == {"horizon": 4.0}
    assert not reads_of(get("ahead"), REGION).before


def test_imagined_demands_spread_with_the_horizon_and_keep_what_servers_send():
    every, key = drifting(5, 17)[0], jax.random.key(0)
    last = every[-1] / every[-1].sum()
    spread = []
    for horizon in (1.0, 12.0):
        drawn = imagine(every[-1], every, key, horizon, None, 64)
        np.testing.assert_allclose(drawn.sum(2), np.broadcast_to(last.sum(1), (64, SERVERS)), rtol=1e-5)
        off = ~np.eye(SERVERS, dtype=bool)
        spread.append(np.log(np.asarray(drawn)[:, off] / np.asarray(last)[off]).std())
    assert 0.2 < spread[0] < 0.6 < spread[1] < 2  # in a step, pairs change by 2 sqrt(1 - 0.98^2) = 0.4
    still = imagine(every[-1], every[-1:], key, 1.0, None, 4)  # nothing is known of drift
    np.testing.assert_allclose(still, np.broadcast_to(last, still.shape), rtol=0.2, atol=1e-4)


def test_mean_of_powers():
    for memory in (0.0, 0.5, 0.98, 0.9999):
        want = np.mean([memory**step for step in range(1, 6)])
        np.testing.assert_allclose(mean_power(jnp.float32(memory), jnp.float32(5)), want, rtol=2e-3, atol=1e-6)


def test_better_than_greedy_on_held_out_chains():
    many, seen = 48, 16
    every = drifting(4321, seen + 1, many=many)
    chosen = jax.jit(jax.vmap(lambda demand, past: ahead(demand, REGION, history=past).circuits.count))
    usual = jax.jit(jax.vmap(lambda demand: greedy(demand, REGION).circuits.count))

    @jax.jit
    def seconds(count):
        return jax.vmap(lambda count, demand: fluid_lower_bound(REGION, Circuits(count), demand, routing="split"))(
            count, every[:, seen]
        )

    learned_s = np.asarray(seconds(chosen(every[:, seen - 1], every[:, :seen])))
    change = learned_s / np.asarray(seconds(usual(every[:, seen - 1]))) - 1
    assert change.mean() + 2 * change.std(ddof=1) / np.sqrt(many) < 0
