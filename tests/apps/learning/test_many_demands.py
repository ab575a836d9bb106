"""Circuits for scenarios of a forecast that errs: rows say what direct calls say; looks were judged by eye."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.many_demands import (
    CLAIRVOYANT,
    EVEN,
    JOINT,
    LOADS,
    SCRIPT,
    UNSEEN,
    Config,
    case_of,
    demands_of,
    gaps,
    recorded_demand,
    run,
)
from mfabric_jax import policies
from mfabric_jax.apps.learning.judging import PLANNED, SAMPLED, over_bound, plan_over_bound, plans_from
from mfabric_jax.routing import Plan, relay_shares
from tests.small import only

STEPS = 20
SMALL = {"servers": (4,), "families": ("gate",), "sigmas": (0.0, 0.8), "demands": 2, "scenarios": 3, "past": 2}
SMALL |= {"policies": (SAMPLED, "sigma-estimated", JOINT, "greedy", EVEN, CLAIRVOYANT), "share_steps": STEPS}
CONFIG = Config(**SMALL, optical_degree=2, electrical_nics=1)


@pytest.fixture(scope="module")
def rows(as_users_have_it):
    return list(run(CONFIG))


def over(plans, region, seen, true, routes):
    """Mean time over the degree bound by direct calls."""
    found = []
    for plan, forecast, demand in zip(plans, seen, true, strict=True):
        if routes == "adaptive":
            found.append(over_bound(region, plan.circuits, demand, "relay", STEPS))
            continue
        own = relay_shares(region, plan.circuits, forecast, steps=STEPS) if plan.shares is None else plan.shares
        found.append(plan_over_bound(region, Plan(plan.circuits, own), demand, "relay"))
    return np.mean(found)


@pytest.mark.slow
def test_rows_are_what_direct_calls_give(rows):
    assert len(rows) == 2 * 2 * len(CONFIG.policies)
    case, region = case_of(CONFIG, "gate", 4, 2, 2), CONFIG.region(4)
    forecast = case.forecast(0.8)
    joint, sampled = (plans_from(forecast, region, *how) for how in ((JOINT, "split", 1), (SAMPLED, PLANNED, 3)))
    plans = {"greedy": policies.get("greedy"), JOINT: joint, SAMPLED: sampled}
    for name, routes in (("greedy", "adaptive"), ("greedy", "fixed"), (JOINT, "fixed"), (SAMPLED, "fixed")):
        if name == "greedy":
            each = [plans[name](one, region) for one in forecast.seen]
        else:
            each = [jax.tree.map(lambda x, at=at: x[at], plans[name]) for at in range(2)]
        row = only(rows, sigma=0.8, routes=routes, policy=name)
        assert row["over_bound"] == pytest.approx(over(each, region, forecast.seen, case.true, routes), rel=5e-3)
        assert row["low"] <= row["over_bound"] <= row["high"]


@pytest.mark.slow
def test_without_errors_all_that_search_jointly_are_one_and_errors_are_found_out(rows):
    exact = [row for row in rows if row["sigma"] == 0 and row["policy"] not in ("greedy", EVEN)]
    for routes in ("adaptive", "fixed"):
        assert len({row["over_bound"] for row in exact if row["routes"] == routes}) == 1
    for routes in ("adaptive", "fixed"):
        guessed = only(rows, sigma=0.8, routes=routes, policy="sigma-estimated")["sigma_used"]
        assert 0.4 < guessed < 1.2
    assert only(rows, sigma=0.8, routes="fixed", policy=SAMPLED)["sigma_used"] == 0.8


def test_gaps_are_closed_between_joint_on_the_forecast_and_on_the_truth():
    place = {"servers": 8, "routes": "fixed", "kind": "broad", "sigma": 1.0}
    means = {SAMPLED: (1.2, 1.4), JOINT: (2.0, 1.6), CLAIRVOYANT: (1.0, 1.0)}
    made = [place | {"policy": name, "over_bound": value} for name, pair in means.items() for value in pair]
    assert gaps(made) == [place | {"policy": SAMPLED, "closed": pytest.approx(0.5 / 0.8)}]
    for row in made:
        row["over_bound"] = 1.0
    assert gaps(made)[0]["closed"] is None


@pytest.mark.slow
def test_table_and_figure(rows, tmp_path):
    assert "broad 0.8" in SCRIPT.table(rows)
    assert SCRIPT.draw(rows, tmp_path / "demands.png").stat().st_size > 10_000


@pytest.mark.parametrize("family", UNSEEN)
@pytest.mark.parametrize("servers", [6, 8])
def test_unseen_families_are_demand_between_servers_and_draws_differ(family, servers):
    drawn = np.asarray(demands_of(jax.random.split(jax.random.key(5), 12), family, servers))
    assert np.isfinite(drawn).all()
    assert (drawn >= 0).all()
    assert (drawn[:, np.arange(servers), np.arange(servers)] == 0).all()
    assert (drawn.sum((1, 2)) > 0).all()
    assert len(np.unique(drawn.sum((1, 2)))) == 12


def test_unseen_families_are_what_their_words_say():
    keys = jax.random.split(jax.random.key(6), 4)
    partners, lines, branches = (np.asarray(demands_of(keys, name, 8)) > 0 for name in ("butterfly", "grid", "tree"))
    assert (partners.sum(2) == 3).all()  # 1, 2 and 4 places on
    assert (lines.sum(2) == 1 + 3).all()  # rows of 2, columns of 4
    assert (branches == branches.transpose(0, 2, 1)).all()
    assert (branches.sum((1, 2)) == 2 * 7).all()
    assert [sorted(tree.sum(1)) for tree in branches] == 4 * [[1, 1, 1, 1, 2, 2, 3, 3]]


def test_tables_are_demand_of_which_the_past_is_earlier():
    config = Config(servers=(8,), families=("olmoe",))
    case = case_of(config, "olmoe", 8, 3, 2)
    everything = recorded_demand(config, "olmoe", 8)
    early, late = np.split(everything, 2)
    for demands, part in ((case.past, early), (case.true, late)):
        found = part.reshape(-1, 8, 8)
        assert all((np.asarray(demand) == found).all((1, 2)).any() for demand in demands)
    assert config.cases() == ["olmoe"]


def test_recorded_loads_are_received_alike_from_every_source(shared_data):
    config = Config(servers=(16,), laer=str(shared_data / "laer_moe"), trace=str(shared_data / "smartmoe_gate_trace"))
    demand = recorded_demand(config, LOADS, 16)
    assert demand.shape == (30, 24, 1, 16, 16)
    received = demand.sum(3) / 15  # of each source, which are alike
    one, load = demand[0, 0, 0], received[0, 0, 0]
    np.testing.assert_allclose(one + np.diag(load), np.tile(load, (16, 1)), rtol=1e-6)
    assert set(config.cases()) == set(config.families)


def test_a_recording_that_is_not_there_is_left_out():
    assert Config(families=("smartmoe", "gate")).cases() == ["gate"]
    assert jnp.isfinite(case_of(Config(), "gate", 4, 1, 1).true).all()
