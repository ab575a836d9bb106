"""Evaluation under forecasts: rows are what direct calls give; intervals cover; what is static is static."""

import dataclasses
import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import policies
from mfabric_jax.apps.learning import Evaluation, Scoreboard, TrainingSettings, demands, evaluate_policies
from mfabric_jax.apps.learning.demands import held_out_demands, learned_records, pool
from mfabric_jax.apps.learning.judging import interval, legal, over_bound, plan_over_bound
from mfabric_jax.apps.learning.training import lessons
from mfabric_jax.checks import InputError
from mfabric_jax.circuit_schedules import CircuitSchedule, get, schedule_time
from mfabric_jax.fabric import Region
from mfabric_jax.policies.index_rule import Index
from mfabric_jax.policies.learned import load, save
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.traffic import Recording, save_tokens
from mfabric_jax.traffic.demand_families import BROAD, FAMILIES
from tests.mistakes import check_refused
from tests.small import only

SETTINGS = {"policies": ("index", "greedy", "static"), "routings": ("split", "relay", "relay-planned"), "sizes": (4,)}
CONFIG = Evaluation(**SETTINGS, sigmas=(0.0, 0.8), samples=7, share_steps=20, optical_degree=3, electrical_nics=1)


@pytest.fixture(scope="module")
def rows():
    return list(evaluate_policies(CONFIG))


@functools.cache
def workload(name):
    return next(one for one in held_out_demands(4, 7, CONFIG.seed, None, None) if one.name == name)


@pytest.mark.parametrize(("name", "forecast"), [("drawn", "0"), ("tables", "predicted")])
def test_rows_are_what_direct_calls_give(rows, name, forecast):
    region, held = CONFIG.region(4), workload(name)
    seen = held.demand if forecast == "0" else held.predicted
    for policy in ("index", "greedy", "static"):
        chooses = policies.get("greedy", rule="next") if policy == "static" else policies.get(policy)
        plans = [chooses(jnp.asarray(held.mean if policy == "static" else one), region) for one in seen]
        for routing in ("split", "relay"):
            want = [
                over_bound(region, plan.circuits, jnp.asarray(true), routing, 20)
                for plan, true in zip(plans, held.demand, strict=True)
            ]
            row = only(rows, workload=name, forecast=forecast, routing=routing, policy=policy)
            np.testing.assert_allclose(row["over_bound"], np.mean(want), rtol=5e-3 if routing == "relay" else 1e-5)


def test_gains_are_over_greedy_and_planned_shares_do_not_beat_those_that_know(rows):
    # Drawn demand has no past to predict from; the tables have.
    assert len(rows) == (2 + 3) * 3 * 3
    assert {row["forecast"] for row in rows if row["workload"] == "tables"} == {"0", "0.8", "predicted"}
    for row in rows:
        same = {key: row[key] for key in ("workload", "forecast")}
        greedy = only(rows, **same, routing=row["routing"], policy="greedy")
        assert row["samples"] == 7
        assert row["gain"] == pytest.approx(greedy["over_bound"] - row["over_bound"], abs=1e-6)
        assert row["gain_low"] - 1e-9 <= row["gain"] <= row["gain_high"] + 1e-9
        assert row["low"] - 1e-9 <= row["over_bound"] <= row["high"] + 1e-9
        if row["routing"] == "relay":
            planned = only(rows, **same, routing="relay-planned", policy=row["policy"])
            assert row["over_bound"] <= planned["over_bound"] * 1.02


def test_rows_that_are_there_are_left_out(rows):
    for start in (len(rows) - 7, len(rows)):
        assert list(evaluate_policies(CONFIG, start=start)) == rows[start:]


def test_an_interval_covers_the_mean_as_often_as_it_says():
    covered = []
    for seed in range(200):
        low, high = interval(np.random.default_rng(seed).exponential(1.0, 60), seed)
        covered.append(low <= 1.0 <= high)
    assert 0.85 < np.mean(covered) <= 1.0


def test_no_policy_was_trained_on_what_it_is_judged_by(monkeypatch):
    monkeypatch.setattr(demands, "BROAD", {"bipartite": BROAD["bipartite"]})  # all of them take long to compile

    def spread(demand):
        """Entries of every matrix in order over their sum: the same for servers in another order."""
        demand = np.sort(np.asarray(demand, float).reshape(len(demand), -1), axis=1)
        return demand / demand.sum(1, keepdims=True)

    pooled = pool(4, CONFIG.seed)
    pooled = jnp.asarray(pooled[pooled.any(axis=(1, 2))])
    held = [spread(workload(name).demand) for name in ("drawn", "tables")]
    for step in range(20):
        key = jax.random.fold_in(jax.random.key(CONFIG.seed), step)
        learned = spread(lessons(key, pooled, TrainingSettings(seed=CONFIG.seed), 4).demand)
        assert all(np.abs(one[:, None] - learned[None]).max(axis=2).min() > 1e-6 for one in held)
    assert len(workload("drawn").demand) == len(FAMILIES)


@pytest.fixture
def trained(tmp_path):
    """A trace of ten records, and a policy that was trained on it with no records named."""
    count = np.random.default_rng(0).integers(0, 99, (10, 1, 1, 16, 32))
    trace = save_tokens(Recording(count, np.arange(100, 200, 10), "", ""), tmp_path / "run.npz")
    record = {"trace": str(trace), "records": None, "learned_from": learned_records(str(trace), None)}
    return count, trace, str(save(tmp_path / "seen.policy", Index(), record))


def test_what_training_held_out_may_judge_and_what_it_saw_may_not(trained, tmp_path):
    _, trace, seen = trained
    assert load(seen).configuration["learned_from"] | {"digests": None} == {
        "records": [100, 170],
        "validation": [180, 180],
        "held_out": [190, 190],
        "digests": None,
    }
    judge = functools.partial(Evaluation, policies=(seen,), trace=str(trace))
    judge(records=(190, 190))
    for records, got in ((None, "100-190"), ((170, 190), "170-190"), ((100, 100), "100-100")):
        check_refused(f"not overlap those that .* was trained on, got {got}; allowed: 190-190", judge, records=records)
    old = str(save(tmp_path / "old.policy", Index(), {"trace": "run.npz", "records": [10, 20]}))
    check_refused("must say which records they were trained on", Evaluation, policies=(old,), trace="other.npz")


def test_routing_that_was_trained_on_is_known_in_a_copy_and_in_other_formats(trained, tmp_path):
    count, trace, seen = trained
    shares = np.float32(count / count.sum(-1, keepdims=True))
    copies = {"copy.npz": lambda path: shutil.copy(trace, path), "array.npy": lambda path: np.save(path, count)}
    copies |= {"doubled.npy": lambda path: np.save(path, 2.0 * count), "shares.npy": lambda path: np.save(path, shares)}
    for name, write in copies.items():
        write(tmp_path / name)
        with pytest.raises(InputError, match="was trained on"):
            Evaluation(policies=(seen,), trace=str(tmp_path / name))
    np.save(tmp_path / "other.npy", np.roll(count, 1, axis=-1))
    Evaluation(policies=(seen,), trace=str(tmp_path / "other.npy"))
    Scoreboard(policies=(seen,), workloads=("recorded",), trace=str(tmp_path / "array.npy"), records=(9, 9))


def test_a_network_brings_its_own_shares():
    region, held = CONFIG.region(4), jnp.asarray(workload("drawn").demand)
    config = dataclasses.replace(CONFIG, policies=("learned",), routings=("relay-planned",), sigmas=(0.0,))
    row = next(evaluate_policies(config))
    over = jax.jit(lambda one: plan_over_bound(region, policies.get("learned")(one, region), one, "relay"))
    want = [over(one) for one in held]
    np.testing.assert_allclose(row["over_bound"], np.mean(want), rtol=1e-4)


@pytest.mark.slow
def test_what_plans_for_many_demands_gets_scenarios_of_the_forecast():
    names = ("joint", "sample-average", "uniform")
    given = {"sizes": (6,), "sigmas": (1.0,), "samples": 6, "optical_degree": 3, "electrical_nics": 1, "scenarios": 8}
    rows = list(evaluate_policies(Evaluation(policies=names, routings=("relay", "relay-planned"), **given)))
    for routing in ("relay", "relay-planned"):
        found = {name: only(rows, workload="drawn", routing=routing, policy=name)["over_bound"] for name in names}
        assert 1 <= found["sample-average"] < found["joint"] - 0.05


def test_schedules_are_judged_by_what_direct_calls_give():
    given = {"policies": ("greedy",), "routings": ("split",), "schedules": ("spectra", "whole-pair"), "delay": 0.05}
    config = dataclasses.replace(CONFIG, sigmas=(0.0,), share_steps=Evaluation.share_steps, **given)
    rows, held = list(evaluate_policies(config)), workload("drawn")
    for name in config.schedules:
        want = []
        for demand in np.asarray(held.demand, float):
            bound = float(degree_bound(config.region(4), demand))
            there = Region(4, 1.0, 3, 1, delay_s=0.05 * bound)
            want.append(float(schedule_time(there, get(name)(demand, there), demand)) / bound)
        row = only(rows, workload="drawn", forecast="0", routing="scheduled", policy=name)
        assert row["over_bound"] == pytest.approx(np.mean(want), rel=1e-6)
        greedy = only(rows, workload="drawn", forecast="0", routing="split", policy="greedy")
        assert row["gain"] == pytest.approx(greedy["over_bound"] - row["over_bound"], rel=1e-5)
    assert list(evaluate_policies(config, start=4)) == rows[4:]


def test_a_policy_that_answers_with_schedules_is_told_where_they_are_judged():
    kept = CircuitSchedule(np.zeros((1, 4, 4), int), [1.0])
    with pytest.raises(InputError, match="returns a schedule: see schedules"):
        legal("own", jax.tree.map(lambda x: jnp.asarray(x)[None], Plan.of_schedule(kept)), CONFIG.region(4))
