"""Experiments on learning: rows are what direct calls say, intervals are Student's, and what is worst is named."""

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import learned_timing, learning_curves, learning_over_time
from experiments.learning_over_time import ALWAYS, LEARNED, PAYING, PREDICTED, RECORDED, SAMPLED, beside, means
from experiments.rows import half_interval, picked
from mfabric_jax.apps.learning.regimes.cells import Regime
from mfabric_jax.apps.learning.regimes.chains import SEEN, draw_chains
from mfabric_jax.apps.learning.regimes.learned import learned
from tests.mistakes import check_refused
from tests.small import as_a_user

NARROW = {"optical_degree": 3, "electrical_nics": 1, "seeds": 2}


def test_an_interval_is_that_of_student():
    assert half_interval([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, rel=1e-3)


def made(servers, policy, overs, **place):
    """Rows of one policy, one for each seed."""
    usual = {"row": "chains", "servers": servers, "family": "drift", "forecast": "1", "delay_ms": 25.0, "turned": 0.0}
    return [usual | place | {"policy": policy, "seed": seed, "over": over} for seed, over in enumerate(overs)]


def test_what_learned_is_worst_at_is_named(tmp_path):
    rows = [*made(8, LEARNED, (1.0, 1.1)), *made(8, SAMPLED, (1.0, 1.0)), *made(8, SAMPLED + PAYING, (2.0, 2.2))]
    other = {"family": RECORDED, "forecast": PREDICTED, "delay_ms": 0.0}
    rows += [*made(8, LEARNED, (1.2, 1.2), **other), *made(8, "uniform", (1.0, 1.2), **other)]
    rows += made(8, "untrained", (2.4, 2.4), **other)
    times = {LEARNED: 2.0, SAMPLED: 30.0}
    rows += [{"row": "decision", "servers": 8, "policy": name, "decision_ms": ms} for name, ms in times.items()]
    found = {line.claim: line.found for line in learning_over_time.verdicts(rows)}
    assert found == {
        "learned over sample-average, 25 ms, 8 servers, most": "+5.0% +-63.5% (drift, forecast 1, 25 ms)",
        "learned over sample-average if it pays, 25 ms, 8 servers, most": "-50.0% +-0.0% (drift, forecast 1, 25 ms)",
        "learned over uniform, predicted, 8 servers, most": "+10.0% +-127.1% (smartmoe, forecast predicted, 0 ms)",
        "learned over untrained, smartmoe, 8 servers, most": "-50.0% +-0.0% (smartmoe, forecast predicted, 0 ms)",
        "decision of sample-average over learned, 8 servers": "15.0 times",
    }
    assert "30.000" in learning_over_time.table(rows)
    assert learning_over_time.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000


@pytest.mark.slow
def test_policies_in_chains(tmp_path):
    """Who stays pays nothing; a network that always turns pays for it; times do not fall below the bound."""
    tiny = {"servers": (8,), "families": ("butterfly",), "chains": 1, "steps": 2, "scenarios": 2, "share_steps": 40}
    config = learning_over_time.Config(**NARROW, **tiny, forecasts=("1",), delays_ms=(0.0, 25.0))
    config = dataclasses.replace(config, policies=(LEARNED, ALWAYS, "uniform", "greedy"))
    with as_a_user():
        rows = list(learning_over_time.run(config))
    chains, decisions = picked(rows, row="chains"), picked(rows, row="decision")
    assert {row["policy"] for row in decisions} == {LEARNED, ALWAYS, "greedy"}
    assert all(row["decision_ms"] > 0 for row in decisions)
    assert len(chains) == 2 * 2 * 4
    assert all(row["over"] >= 1 - 1e-3 for row in chains)
    over = {(row["policy"], row["delay_ms"], row["seed"]): row["over"] for row in chains}
    for seed in range(2):
        assert over["uniform", 0.0, seed] == over["uniform", 25.0, seed] == over[LEARNED, 25.0, seed]
        assert over[ALWAYS, 25.0, seed] > over[ALWAYS, 0.0, seed] + 1
    gains = picked(means(beside(chains)), policy="uniform", delay_ms=25.0)
    assert [row["over"] for row in gains] == [0.0]
    assert not any(row["turned"] for row in picked(chains, policy="uniform"))


def test_curves_are_of_every_seed_and_changes_are_since_its_own_first_step(tmp_path, monkeypatch):
    begun = []

    def trained(config, folder):
        begun.append((config.method, config.seed, folder.name, config.optical_degree, config.checkpoint_every))
        return [{"step": step, "time": 9.0, "held_out_4": 1 + config.seed + step / 8} for step in (0, 2, 4)]

    monkeypatch.setattr(learning_curves, "train", trained)
    own = {"servers": (4,), "methods": ("reinforce", "gradient"), "steps": 4, "points": 2}
    config = learning_curves.Config(**NARROW, **own, keep=str(tmp_path))
    rows = list(learning_curves.run(config))
    assert begun == [(name, seed, f"{name}-{seed}", 3, 2) for name in config.methods for seed in range(2)]
    assert len(rows) == 2 * 2 * 3
    last = learning_curves.means(rows)[-1]
    assert (last["mean"], last["change"], last["half_change"]) == (2.0, 0.5, 0.0)
    assert last["half"] == pytest.approx(half_interval([1.5, 2.5]))
    (_, line) = learning_curves.verdicts(rows)
    assert (line.claim, line.found[:12]) == ("held-out time behind 4 steps, gradient, 4 servers", "+0.500 +-0.0")
    assert "2.000 +-6.353 (+0.500 +-0.000)" in learning_curves.table(rows)
    assert learning_curves.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000


def test_points_divide_the_steps():
    check_refused("steps must be a multiple of points 6, got 7", learning_curves.Config, steps=7)


@pytest.mark.slow
def test_timing_without_training_is_renewal_and_clairvoyance_the_best_of_all_trajectories():
    config = learned_timing.Config(servers=4, chains=2, decisions=5)
    regime, delays = Regime(4, 2, 1, 2.0, 0.98, 1.0), jnp.asarray((0.0003, 0.003), jnp.float32)
    with as_a_user():
        tables = learned_timing.tables_of(regime, 3, config)
        served = learned(draw_chains(regime, [3], config.chains, config.decisions), delays, learned_timing.ROUTING)
        network = learned_timing.TimingNetwork(jax.random.key(0))
        trained = eqx.tree_at(lambda network: network.drop.weight, network, replace_fn=lambda weight: weight + 0.3)
        for delay_s, usual in zip(delays, served.total_s(delays), strict=True):
            found = learned_timing.expected_time(network, tables, delay_s, 0.0)
            np.testing.assert_allclose(found, usual, rtol=1e-5)
            least = best_of_all(learned_timing.follow_families(tables, delay_s), tables.sent, float(delay_s))
            np.testing.assert_allclose(learned_timing.clairvoyant_time(tables, delay_s), least, rtol=1e-5)
            assert (least <= found * (1 + 1e-6)).all()
            expected = learned_timing.expected_time(trained, tables, delay_s, 0.2)
            assert (least <= expected * (1 + 1e-6)).all()
            assert (expected != found).all()
    assert served.changed.any()
    assert not served.changed.all()


def best_of_all(followed, sent, delay_s):
    """Try every sequence of keeping and changing."""
    steps = sent.shape[1]
    found = []
    for changes in itertools.product((False, True), repeat=steps - SEEN):
        in_place, total = steps, np.zeros(len(sent))
        for now, change in zip(range(SEEN, steps), changes, strict=True):
            in_place = now if change else in_place
            total += np.asarray(followed.kept_s[:, in_place, now] * sent[:, now], float) + delay_s * change
        found.append(total)
    return np.min(found, axis=0)


def test_what_timing_gains_most_is_named(tmp_path):
    gains = {"gradient": (0.1, -0.3), "evolution": (0.0, 0.2), "clairvoyant": (-2.0, -4.0)}
    rows = [
        {"regime": regime, "delay_s": delay_s, "rule": rule, "change": change + regime}
        for rule, changes in gains.items()
        for delay_s, change in zip((1e-4, 1e-2), changes, strict=True)
        for regime in (0, 1)
    ]
    found = {line.claim: line.found for line in learned_timing.verdicts(rows)}
    assert found["gradient over renewal, most"] == "+0.20 % +-6.35 at 10 ms"
    assert found["clairvoyant over renewal, most"] == "-3.50 % +-6.35 at 10 ms"
    assert learned_timing.SCRIPT.draw(rows, tmp_path / "picture.svg").stat().st_size > 5000
