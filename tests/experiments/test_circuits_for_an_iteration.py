"""Circuits that stay for all layers: rows say what direct calls say; looks were judged by eye."""

import jax
import numpy as np
import pytest

from experiments import circuits_for_an_iteration as layers
from experiments.demand_cases import recorded_demand
from mfabric_jax.learning.judging import over_bound
from mfabric_jax.policies import get
from tests.small import only

PORTS = {
    "servers": (4,),
    "families": ("near-permutation",),
    "optical_degree": 2,
    "electrical_nics": 1,
    "share_steps": 20,
}
STATIC = layers.Config(**PORTS, layers=3, iterations=2)


@pytest.fixture(scope="module")
def static(as_users_have_it):
    return list(layers.run(STATIC))


def test_popularity_drifts_alike_for_all_sources_and_nothing_else_does():
    drawn = layers._drawn(STATIC, "near-permutation", 4)
    past, later = (np.asarray(part) for part in drawn)
    assert past.shape == later.shape == (2, 3, 4, 4)
    factor = np.where(past > 0, later / np.where(past > 0, past, 1), np.nan)
    np.testing.assert_allclose(np.nanmax(factor, axis=2), np.nanmin(factor, axis=2), rtol=1e-5)
    assert len(np.unique(np.round(np.nanmax(factor, axis=2), 4))) == 2 * 3 * 4


def test_one_set_of_circuits_is_the_policy_of_all_layers(static, tmp_path):
    assert [row["policy"] for row in static] == list(layers.LOOKS)
    region, drawn = STATIC.region(4), layers._drawn(STATIC, "near-permutation", 4)
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
