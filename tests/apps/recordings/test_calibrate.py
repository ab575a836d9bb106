"""Rates of computation that fit published times."""

import json

import numpy as np
import pytest

from mfabric_jax import cases, load, simulate
from mfabric_jax.apps.recordings.calibrate import calibrate, calibration_rows, write_calibration
from mfabric_jax.evaluate.resolving.resolved import BANDWIDTHS, PUBLISHED

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SETTING = load(preset="paper").with_({"run.dtype": "float64", "traffic.drawn": 1})


@pytest.fixture(scope="module")
def found(as_users_have_it):
    return calibrate(SETTING, ("llama-moe",))["llama-moe"]


def ratios(efficiency):
    """Rows of the fat-tree at all bandwidths, and their times over that of the last bandwidth."""
    there = {"model.name": "llama-moe", "network.fabric": "fat-tree", "compute.efficiency": efficiency}
    table = simulate(cases(SETTING.with_(there), {"network.nic_gbps": BANDWIDTHS})).rows()
    seconds = np.asarray([one["iteration_s"] for one in table])
    return table, (seconds / seconds[-1])[:-1]


def test_no_neighbour_fits_better_and_residuals_are_those_of_the_comparison(found):
    want = np.asarray(PUBLISHED["llama-moe"])
    want = (want / want[-1])[:-1]
    fitted, *neighbours = (ratios(found.efficiency * factor) for factor in (1.0, 0.97, 1.03))
    off = [((np.log(got) - np.log(want)) ** 2).sum() for _, got in (fitted, *neighbours)]
    assert off[0] < min(off[1:])
    np.testing.assert_allclose(found.ratios, fitted[1], atol=1e-5)
    np.testing.assert_allclose(found.residuals, found.ratios / want - 1, atol=2e-5)
    np.testing.assert_allclose(found.compute_s, fitted[0][-1]["compute_s"], rtol=1e-6)


def test_rows_and_file(found, tmp_path):
    table = calibration_rows({"llama-moe": found})
    assert [one["nic_gbps"] for one in table] == [100, 200, 400]
    assert table[0]["published"] == pytest.approx(3.932)
    kept = json.loads(write_calibration({"llama-moe": found}, SETTING, tmp_path / "kept.json").read_text())
    assert kept["models"]["llama-moe"]["efficiency"] == found.efficiency
    assert kept["configuration"]["traffic.drawn"] == "1"
