"""Plans for tails, and circuits that stay for all layers: rows say what direct calls say; looks were judged by eye."""

import jax
import numpy as np
import pytest

from experiments import circuits_for_an_iteration as layers
from experiments import tails_of_demands as tails
from experiments.demand_cases import case_of, recorded_demand
from mfabric_jax.learning.judging import over_bound
from mfabric_jax.learning.planning import scenarios_of
from mfabric_jax.policies import get
from tests.rows import only

PORTS = {"servers": (4,), "families": ("gate",), "optical_degree": 2, "electrical_nics": 1, "share_steps": 20}
RISKY = tails.Config(**PORTS, sigmas=(0.8,), risks=("mean", "worst"), routes=("adaptive",), demands=2, scenarios=3)
STATIC = layers.Config(**PORTS, layers=3, iterations=2)


@pytest.fixture(scope="module")
def risky(as_users_have_it):
    return list(tails.run(RISKY))


@pytest.fixture(scope="module")
def static(as_users_have_it):
    return list(layers.run(STATIC))


def test_fresh_scenarios_are_others_and_their_risks_are_in_order(risky):
    assert [row["plan"] for row in risky] == ["mean", "worst", "joint", "uniform"]
    for row in risky:
        assert 1 - 1e-5 <= row["mean"] <= row["tail"] <= row["worst"]
        assert row["tail"] == pytest.approx(row["worst"])  # the worst quarter of three is the worst
    case, region = case_of(RISKY, "gate", 4, 2, 1), RISKY.region(4)
    forecast = case.forecast(0.8, RISKY.seed)
    planned, fresh = (np.asarray(scenarios_of(forecast, 3, seed)) for seed in (0, RISKY.seed + tails.FRESH))
    assert not (planned == fresh)[fresh > 0].any()
    circuits = get("uniform")(None, region).circuits
    times = [[float(over_bound(region, circuits, one, "relay", 20)) for one in each] for each in fresh]
    row = only(risky, plan="uniform")
    assert row["mean"] == pytest.approx(np.mean(times), rel=5e-3)
    assert row["worst"] == pytest.approx(np.max(times, axis=1).mean(), rel=5e-3)


def test_what_a_tail_costs_is_beside_the_plan_for_the_mean(risky, tmp_path):
    (line,) = tails.SCRIPT.verdicts(risky)
    mean, worst = (only(risky, plan=plan) for plan in ("mean", "worst"))
    assert line.found == ", ".join(f"{worst[key] - mean[key]:+.3f}" for key in ("mean", "tail", "worst"))
    assert "broad 0.8" in tails.SCRIPT.table(risky)
    assert tails.SCRIPT.draw(risky, tmp_path / "tails.png").stat().st_size > 10_000


def test_popularity_drifts_alike_for_all_sources_and_nothing_else_does():
    drawn = layers._drawn(STATIC, "gate", 4)
    past, later = (np.asarray(part) for part in drawn)
    assert past.shape == later.shape == (2, 3, 4, 4)
    factor = np.where(past > 0, later / np.where(past > 0, past, 1), np.nan)
    np.testing.assert_allclose(np.nanmax(factor, axis=2), np.nanmin(factor, axis=2), rtol=1e-5)
    assert len(np.unique(np.round(np.nanmax(factor, axis=2), 4))) == 2 * 3 * 4


def test_one_set_of_circuits_is_the_policy_of_all_layers(static, tmp_path):
    assert [row["policy"] for row in static] == list(layers.LOOKS)
    region, drawn = STATIC.region(4), layers._drawn(STATIC, "gate", 4)
    times = [
        float(over_bound(region, get("uniform")(None, region).circuits, one, "relay", 20))
        for one in drawn.later.reshape(-1, 4, 4)
    ]
    row = only(static, policy="uniform")
    assert row["over_bound"] == pytest.approx(np.mean(times), rel=5e-3)
    assert row["low"] <= row["over_bound"] <= row["high"] <= row["worst"] * (1 + 1e-6)
    assert only(static, policy="reconfigured")["over_bound"] <= row["over_bound"] * 1.01
    claims = [line.claim for line in layers.SCRIPT.verdicts(static)]
    assert claims[0] == "over the degree bound, sample-average, 4 servers, broad"
    assert "sample-average" in layers.SCRIPT.table(static)
    assert layers.SCRIPT.draw(static, tmp_path / "layers.png").stat().st_size > 5_000


def test_layers_of_tables_come_in_their_order():
    config = layers.Config(servers=(8,), families=("olmoe",), iterations=2)
    past, later = layers._recorded(config, "olmoe", 8)
    everything = recorded_demand(config, "olmoe", 8)[:, :, 0]
    np.testing.assert_allclose(past, [everything[:5].sum(0), everything[5:10].sum(0)])
    np.testing.assert_array_equal(later, everything[[10, 19]])
    assert jax.numpy.isfinite(past).all()
