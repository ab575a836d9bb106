"""Experiments on learning: rows are what direct calls say, intervals are Student's, and what is worst is named."""

import dataclasses

import pytest

from experiments import learning_curves, learning_over_time
from experiments.learning_over_time import ALWAYS, LEARNED, PAYING, PREDICTED, RECORDED, SAMPLED, beside, means
from experiments.rows import half_interval, picked
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
