"""The scoreboard: its rows are what direct calls give; optima only where they are proved; mistakes are sentences."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import policies
from mfabric_jax.apps.learning import Scoreboard, scoreboard
from mfabric_jax.apps.learning.judging import forecasts_of, scoreboard_demands
from mfabric_jax.evaluate.links import RELAY_STEPS
from mfabric_jax.fabric import Circuits
from mfabric_jax.report.tables import scoreboard_table
from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound, relay_shares
from tests.small import only

SETTINGS = {"policies": ("greedy", "greedy-next", "static"), "workloads": ("zipf", "dense"), "servers": (4,)}
SETTINGS |= {"routings": ("unsplit", "relay"), "sigmas": (0.0, 0.5), "instances": 3, "optimum_s": 10.0}
CONFIG = Scoreboard(**SETTINGS, optical_degree=3, electrical_nics=1, dtype="float64")


@pytest.fixture(scope="module")
def rows():
    return list(scoreboard(CONFIG))


def only_of(cell, sigma):
    """The forecasts with errors of that sigma."""
    return next(forecast.seen for forecast in forecasts_of(CONFIG, cell) if forecast.sigma == sigma)


@functools.cache
def over(name, workload, routing, sigma):
    """Paced time over the degree bound, one instance after the other."""
    cell = next(cell for cell in scoreboard_demands(CONFIG) if cell.name == workload)
    region, found = CONFIG.region(4), []
    chooses = (
        policies.get("static", mean=cell.mean) if name == "static" else policies.get_suitable(name, routing=routing)
    )
    forecast = only_of(cell, sigma)
    for true, seen in zip(cell.demand, forecast, strict=True):
        chosen = chooses(seen, region, key=jax.random.key(0))
        circuits = Circuits(chosen.circuits.count)
        shares = relay_shares(region, circuits, true, steps=RELAY_STEPS) if routing == "relay" else None
        found.append(
            fluid_lower_bound(region, Plan(circuits, shares), true, routing=routing) / degree_bound(region, true)
        )
    return np.array(found)


def test_rows_are_what_direct_calls_give_with_optima_where_demand_is_known(rows):
    for name, routing, sigma in itertools.product(("greedy", "static"), ("unsplit", "relay"), (0.0, 0.5)):
        row = only(rows, policy=name, workload="zipf", routing=routing, sigma=sigma)
        want = over(name, "zipf", routing, sigma)
        tolerance = 2e-3 if routing == "relay" else 1e-9  # gradient steps round differently
        found = [row["mean"], row["median"], row["p90"]]
        np.testing.assert_allclose(found, [want.mean(), np.median(want), np.quantile(want, 0.9)], rtol=tolerance)
        assert row["instances"] == 3
        assert row["max_min_mean"] is None if routing == "relay" else row["max_min_mean"] >= row["mean"] * (1 - 1e-9)
    for row in rows:
        if row["routing"] == "unsplit" and row["sigma"] == 0:
            assert row["proved"] == 3
            assert 1 - 1e-6 <= row["of_optimum"] <= row["mean"] * (1 + 1e-6)
            assert row["of_optimum"] <= row["of_optimum_p90"] * (1 + 1e-6)
        else:
            assert (row["proved"], row["of_optimum"], row["of_optimum_p90"]) == (0, None, None)


def test_a_forecast_that_errs_is_not_the_demand_and_neither_is_the_mean():
    again, more = scoreboard_demands(CONFIG), scoreboard_demands(Scoreboard(**SETTINGS | {"instances": 5}))
    for cell, same, other in zip(scoreboard_demands(CONFIG), again, more, strict=True):
        np.testing.assert_array_equal(only_of(cell, 0.0), cell.demand)
        error = np.log(np.asarray(only_of(cell, 0.5) / cell.demand)[:, ~np.eye(4, dtype=bool)])
        assert 0.3 < error.std() < 0.7
        np.testing.assert_array_equal(cell.demand, same.demand)
        assert cell.name == other.name
        assert not np.isclose(cell.mean, cell.demand.mean(0)).all()
        assert not np.isclose(cell.mean, other.mean).all()  # the rest of the same draws


def test_the_recording_is_a_workload_and_its_mean_is_that_of_other_demands(tmp_path):
    tokens = np.random.default_rng(0).integers(1, 99, (3, 1, 1, 16, 32)).astype(float)
    np.save(tmp_path / "tokens.npy", tokens)
    settings = {"policies": ("uniform",), "workloads": ("recorded",), "servers": (4,), "routings": ("split",)}
    recorded = functools.partial(Scoreboard, **settings, trace=str(tmp_path / "tokens.npy"))
    (cell,) = scoreboard_demands(recorded(instances=4))
    assert cell.demand.shape == (4, 4, 4)
    every = (tokens / tokens.sum(-1, keepdims=True)).reshape(3, 4, 4, 4, 8).sum((2, 4))
    every, true = (x / x[:, :1, 1:2] for x in (every, np.asarray(cell.demand, float)))
    off = ~np.eye(4, dtype=bool)
    assert all(np.isclose(every[:, off], one[off], rtol=1e-4).all(1).any() for one in true)
    (row,) = scoreboard(recorded(instances=4))
    assert row["workload"] == "recorded"
    everything, most = (scoreboard_demands(recorded(instances=n))[0] for n in (72, 60))  # 3 records of 24 layers
    np.testing.assert_allclose(72 * everything.mean, most.demand.sum(0) + 12 * most.mean, rtol=1e-5)


def test_axes_say_what_a_recorded_array_holds(tmp_path):
    tokens = np.random.default_rng(0).integers(1, 99, (16, 32, 3)).astype(float)
    np.save(tmp_path / "swapped.npy", tokens)
    np.save(tmp_path / "usual.npy", tokens.transpose(2, 0, 1)[:, None, None])
    settings = {"policies": ("uniform",), "workloads": ("recorded",), "servers": (4,), "instances": 4}
    transposed = {"trace": str(tmp_path / "swapped.npy"), "axes": "source,expert,iteration"}
    (swapped,) = scoreboard_demands(Scoreboard(**settings, **transposed))
    (usual,) = scoreboard_demands(Scoreboard(**settings, trace=str(tmp_path / "usual.npy")))
    np.testing.assert_array_equal(swapped.demand, usual.demand)


def test_without_any_bytes_there_is_no_time():
    settings = {"policies": ("uniform",), "workloads": ("sparse",), "servers": (2,), "routings": ("split",)}
    rows = [next(scoreboard(Scoreboard(**settings, instances=1, seed=seed))) for seed in range(4)]
    empty = [row for row in rows if row["instances"] == 0]
    assert empty
    assert all(row["mean"] is row["p90"] is row["of_optimum"] is None for row in empty)
    assert "nan" in scoreboard_table(empty)


def test_rows_of_every_combination_say_what_was_run_and_float32_gives_nearly_the_same(rows):
    assert len(rows) == CONFIG.rows == 3 * 2 * 1 * 2 * 2
    assert len({(r["policy"], r["workload"], r["servers"], r["routing"], r["sigma"]) for r in rows}) == len(rows)
    assert all(row["decisions_per_s"] > 0 and row["compile_s"] >= 0 for row in rows)
    effective = CONFIG.effective()
    assert (effective["command"], effective["instances"], effective["dtype"]) == ("policies bench", 3, "float64")
    assert {"version", "commit", "device"} <= set(effective)
    small = {"policies": ("greedy-next",), "workloads": ("dense",), "routings": ("unsplit",), "sigmas": (0.0,)}
    single = dataclasses.replace(CONFIG, **small, dtype="float32")
    want = only(rows, policy="greedy-next", workload="dense", routing="unsplit", sigma=0.0)
    np.testing.assert_allclose(next(scoreboard(single))["mean"], want["mean"], rtol=1e-4)
    assert scoreboard_demands(single)[0].demand.dtype == jnp.float32
