"""Chains of all-to-alls: what is kept and what is paid, by plain loops; whole trainings by every method."""

import dataclasses
import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import policies
from mfabric_jax.apps.learning import TrainingSettings, demands, methods, train, training
from mfabric_jax.apps.learning.chains import (
    Chain,
    chain_time,
    chain_time_over_bound,
    error_spread,
    popularity,
    serve_chain,
)
from mfabric_jax.apps.learning.judging import over_bound
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.weighing import DESCENT, RESTING, weigh_circuits
from mfabric_jax.routing import degree_bound, fluid_lower_bound, relay_shares
from mfabric_jax.routing.relay import Plan
from tests.mistakes import check_refused

SERVERS, STEPS = 4, 3
OFF = ~np.eye(SERVERS, dtype=bool)
TINY = {"steps": 2, "batch": 2, "sizes": (SERVERS,), "width": 3, "depth": 1, "share_steps": 2, "chain": 2}
TINY |= {"log_every": 1, "checkpoint_every": 2}
EVEN = policies.get("uniform")


def region(delay_s=0.0):
    return Region(
        SERVERS, jnp.float32(8.0), 3, jnp.float32(1.0), delay_s=jnp.float32(delay_s), relay_efficiency=jnp.float32(0.5)
    )


def chain_of(delay_s=0.0, hidden_s=0.0, seed=0):
    """Demand of one heavy pair, another one in every step."""
    demand = np.full((STEPS, SERVERS, SERVERS), 1e6, np.float32)
    for step in range(STEPS):
        demand[step, step, step + 1] = demand[step, step + 1, step] = 1e9
    demand = jnp.asarray(demand * OFF)
    return Chain(region(delay_s), demand, demand, jnp.float32(0.0), jnp.float32(hidden_s))


@eqx.filter_jit
def both(chain, steps=40):
    greedy = policies.get("greedy", rule="next")
    return serve_chain(greedy, chain, jax.random.key(0), steps), serve_chain(EVEN, chain, jax.random.key(0), steps)


def test_what_a_chain_takes_is_what_plain_steps_take():
    chain = chain_of(delay_s=0.5, hidden_s=0.2)
    found, still = both(chain)
    before = np.asarray(EVEN(None, chain.region).circuits.count)
    bound = 0.0
    for step, demand in enumerate(chain.demand):
        count = policies.get("greedy", rule="next")(demand, chain.region).circuits.count
        late = over_bound(chain.region, Circuits(count), demand, "relay", 40) * degree_bound(chain.region, demand)
        np.testing.assert_array_equal(found.count[step], count)
        assert float(found.exchange_s[step]) == pytest.approx(float(late), rel=1e-5)
        changed = bool((np.asarray(count) != before).any())
        assert float(found.paid_s[step]) == pytest.approx(0.3 if changed else 0.0)
        before, bound = np.asarray(count), bound + float(degree_bound(chain.region, demand))
    assert found.changed.all()
    assert not still.changed.any()
    assert (still.paid_s == 0).all()
    batch, times = (jax.tree.map(lambda x: jnp.asarray(x)[None], given) for given in (chain, found))
    assert float(chain_time_over_bound(batch, times)[0]) == pytest.approx(float(found.total_s) / bound, rel=1e-5)


@eqx.filter_jit
def chosen(proposal, demand, where, previous, delay):
    return weigh_circuits(proposal, demand, where, previous=previous, sigma=0.0, delay=delay)


def test_circuits_change_where_the_saving_is_above_the_delay():
    demand, where = chain_of().demand[0], region()
    even = EVEN(None, where).circuits.count
    proposal = jnp.asarray(np.array([[0, 3, 0, 0], [3, 0, 0, 0], [0, 0, 0, 3], [0, 0, 3, 0]]), even.dtype)

    def over(count):
        shares = relay_shares(where, Circuits(count), demand, steps=400)
        seconds = fluid_lower_bound(where, Plan(Circuits(count), shares), demand, routing="relay")
        return float(seconds / degree_bound(where, demand))

    saved = over(even) - over(proposal)
    assert saved > 0.05  # else nothing is tested
    for delay, want in ((0.0, proposal), (saved - 0.03, proposal), (saved + 0.03, even), (1e3, even)):
        np.testing.assert_array_equal(chosen(proposal, demand, where, even, jnp.float32(delay)), want)
    np.testing.assert_array_equal(chosen(even, demand, where, proposal, jnp.float32(0.0)), proposal)
    illegal = jnp.full_like(even, 9)
    np.testing.assert_array_equal(chosen(proposal, demand, where, illegal, jnp.float32(1e3)), proposal)
    assert DESCENT > 1
    assert RESTING > 0


def test_a_network_that_weighs_keeps_circuits_if_turning_is_dear_and_not_if_it_is_hidden():
    network = PolicyNetwork(3, 1, key=jax.random.key(0)).weighing()
    choose = eqx.filter_jit(functools.partial(network, share_steps=0))
    demand = chain_of().demand[0]
    even = EVEN(None, region())
    for delay_s, hidden_s, kept in ((0.0, 0.0, False), (100.0, 0.0, True), (100.0, 100.0, False)):
        plan = choose(demand, region(delay_s), previous=even, hidden_s=jnp.float32(hidden_s))
        assert bool((plan.circuits.count == even.circuits.count).all()) == kept
    bare = PolicyNetwork(3, 1, key=jax.random.key(0))
    plain = eqx.filter_jit(functools.partial(bare, share_steps=0))(demand, region(100.0), previous=even)
    assert (plain.circuits.count != even.circuits.count).any()  # one that does not weigh turns for everything


def test_what_comes_before_moves_the_time_of_what_follows():
    """The slope of a chain is not that of its steps: circuits that stay serve later steps, too."""
    network = PolicyNetwork(3, 1, weighs=True, key=jax.random.key(0))
    network = eqx.tree_at(lambda one: one.score.weight, network, 30 * network.score.weight)
    half, dear = jnp.float32(0.0), 0.3
    first = chain_of()
    two = first._replace(demand=first.demand[:2], forecast=first.forecast[:2])
    times = eqx.filter_jit(eqx.filter_value_and_grad(lambda model, chain: chain_time(model, chain, half, 30)))
    bound = np.asarray([degree_bound(first.region, one) for one in first.demand])
    delayed = two._replace(region=region(dear * float(bound[0])))
    free, slope = times(network, two)
    paid, other = times(network, delayed)
    assert 1 < float(free) <= float(paid) + 1e-6
    steep = max(float(jnp.abs(one).max()) for one in jax.tree.leaves(eqx.filter(slope, eqx.is_array)))
    assert steep > 1e-4
    assert any(bool((a != b).any()) for a, b in zip(*map(jax.tree.leaves, (slope, other)), strict=True))


def test_predictions_and_their_errors():
    demand = jnp.asarray(np.random.default_rng(0).lognormal(0, 1, (50, SERVERS, SERVERS)) * OFF, jnp.float32)
    noise = np.exp(0.4 * np.random.default_rng(1).normal(size=demand.shape))
    found = error_spread(demand * jnp.asarray(7 * noise, jnp.float32), demand)
    assert float(found) == pytest.approx(0.4 * np.sqrt(11 / 12), rel=0.08)
    outer = jnp.asarray(np.outer([1, 2, 3, 4], [4, 3, 2, 1]) * 1.0, jnp.float32)
    np.testing.assert_allclose(popularity(outer), np.asarray(outer) * OFF, rtol=1e-6)


def test_the_score_of_reinforce_is_the_slope_of_a_logarithm_of_probability():
    network, chain = PolicyNetwork(3, 1, key=jax.random.key(0)), chain_of()
    key, before, zero = jax.random.key(4), jnp.zeros((STEPS, SERVERS, SERVERS), jnp.int32), jnp.zeros((), jnp.float32)

    def scored(shift):
        moved = eqx.tree_at(lambda one: one.lift.bias, network, network.lift.bias + shift)
        return methods._score(moved, chain, key, before)

    def logits(shift, step):
        moved = eqx.tree_at(lambda one: one.lift.bias, network, network.lift.bias + shift)
        seen, spread = methods.expected_demand(chain.forecast[step], chain.sigma)
        need = methods.normalise(seen, chain.region)
        return moved.logits(need, chain.region.degrees, spread, before[step], 0.0)

    def density(shift):
        """Of independent normal noise of every pair, at what was drawn."""
        total = jnp.zeros((), jnp.float32)
        for step, one in enumerate(jax.random.split(key, STEPS)):
            drawn = jax.lax.stop_gradient(logits(zero, step)) + methods._noise(one, SERVERS)
            away = jnp.triu(drawn - logits(shift, step), 1) / methods.OF_LOGITS
            total -= (away**2).sum() / 2
        return total

    want, found = jax.jit(lambda shift: (jax.grad(density)(shift), jax.grad(scored)(shift)))(zero)
    assert float(found) == pytest.approx(float(want), rel=1e-3)


@pytest.mark.parametrize(("objective", "method"), [("iteration", "reinforce"), ("forecast", "evolution")])
def test_a_training_by_trials_moves_weights_and_says_what_it_held_out(tmp_path, monkeypatch, objective, method):
    monkeypatch.setattr(demands, "BROAD", {})
    monkeypatch.setattr(training, "HELD_OUT", 8)  # as a batch: both are drawn by one program
    own = {"sizes": (6,), "batch": 8, "varied": 0.0, "optical_degree": 3, "electrical_nics": 1}
    config = TrainingSettings(**TINY | own, objective=objective, method=method)
    lines = train(config, tmp_path / "run")
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[-1]["held_out_6"] >= 1 - 1e-5
    first, last = (
        training.first_run(config),
        training.resume_run(config, training.record_of(config), tmp_path / "run")[0],
    )
    moved = [np.abs(a - b).max() for a, b in zip(*map(jax.tree.leaves, (first.best, last.state.model)), strict=True)]
    assert max(moved) > 1e-4
    path = str(tmp_path / "run" / training.TRAINED_POLICY)
    again = training.first_network(dataclasses.replace(config, start=path)).model
    for kept, begun in zip(*map(jax.tree.leaves, (policies.load(path).model, again)), strict=True):
        np.testing.assert_array_equal(kept, begun)
    check_refused(
        "start must have width 4 and depth 1, got 3 and 1", TrainingSettings, **TINY | {"width": 4}, start=path
    )
