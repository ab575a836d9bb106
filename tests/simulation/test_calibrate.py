"""Calibration: the one number, its residuals, what ships; presets and settings of the comparison that use it."""

import json

import numpy as np
import pytest

from mfabric_jax import Case, load, resolve, simulate
from mfabric_jax.case import presets
from mfabric_jax.case.grid import cases
from mfabric_jax.resolving.settings import BANDWIDTHS, CALIBRATED, PUBLISHED
from mfabric_jax.simulation import calibrate
from mfabric_jax.simulation.calibrate import calibration_rows, write_calibration
from mfabric_jax.simulation.scenario import scenario_of
from mfabric_jax.simulation.solving import trade_off_at
from mfabric_jax.traffic import from_knobs, workload_knobs
from tests.small import row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")

SETTING = load(preset="paper").with_({"run.dtype": "float64", "traffic.drawn": 1})
JOB = resolve(small()).job


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


def test_what_ships_covers_all_published_models_closely():
    for found in CALIBRATED.values():
        assert set(found) == set(PUBLISHED)
        for one in found.values():
            assert max(map(abs, one.residuals)) < 0.05
            assert 0.1 < one.efficiency < 10


def achieved(case, model="qwen-moe"):
    """Achieved over the peak of the GPU."""
    resolved = resolve(case.with_({"model.name": model}))
    return resolved.settings.achieved(resolved.job)


def test_each_preset_has_the_rates_of_its_own_assumptions():
    assumed = {"paper": "paper", "released": "released", "as-0.1": "today"}
    assert set(CALIBRATED) == set(assumed.values())
    for preset, name in assumed.items():
        one = load(preset=preset)
        one = one if isinstance(one, Case) else next(iter(one))
        assert achieved(one) == CALIBRATED[name]["qwen-moe"].efficiency
    assert achieved(load(preset="paper"), "deepseek-r1") == 0.5  # no times were published
    assert achieved(Case()) == achieved(load(preset="paper").with_({"compute.efficiency": 0.5})) == 0.5
    assert set(assumed) <= set(presets())
    case = small({"network.fabric": "fat-tree", "compute.calibrated": "paper"})
    assert "calibrated to published" in row(case)["compute_source"]


def drawn(changes):
    """The tokens of a small case."""
    resolved = resolve(small(changes))
    return scenario_of(resolved, (100.0,)).tokens


def test_matrices_that_repeat():
    several = {"run.iterations": 2, "traffic.drawn": 3}
    full = drawn(several).count
    for alike, axes in (("nothing", ()), ("micro-batches", (0, 2)), ("everything", (0, 1, 2))):
        count = drawn({"traffic.alike": alike} | several).count
        assert all(count.shape[axis] == (1 if axis in axes else full.shape[axis]) for axis in range(3))
        np.testing.assert_array_equal(count[0, 0, 0], full[0, 0, 0])
    # One matrix keeps its circuits, from iteration to iteration: a delay costs nothing, but for a cold start one turn.
    same = {"network.fabric": "mfabric", "traffic.alike": "everything", "traffic.generated.skew": 1.5}
    same |= {"network.mfabric.optical_degree": 2, "network.nics": 4, "network.nic_use": "pooled"}
    slow, fast = (row(small(same | {"circuits.delay_s": delay})) for delay in (0.1, 0.0))
    cold = row(small(same | {"circuits.delay_s": 0.1, "circuits.cold_start": True}))
    assert slow["iteration_s"] == fast["iteration_s"]
    assert slow["reconfig_s"] == 0
    assert 0 < cold["iteration_s"] - fast["iteration_s"] <= 0.1 * 4 * (1 + 1e-9)  # a turn of each of 4 stages


def test_stakes_by_hand():
    resolved = resolve(small({"network.fabric": "mfabric", "circuits.reactivation_s": 0.5}))
    one = scenario_of(resolved, (100.0,))
    trade_off, seconds = trade_off_at(one, 100.0), one.seconds
    np.testing.assert_allclose(trade_off.delay_s, 0.525)
    np.testing.assert_allclose(trade_off.nic_Bps, 12.5e9)
    np.testing.assert_allclose(trade_off.inner_s, np.multiply([1, 2, 1], seconds.moe_s))
    tp = 2 * 8 * 4096 * 4096 * 2 * 3 / 4 / 900e9  # tokens x hidden x bf16, ring of 4
    np.testing.assert_allclose(trade_off.behind_s[:2], [0, 2 * seconds.attention_s + tp], rtol=1e-12)


def test_named_workloads_and_knobs_from_a_file(tmp_path):
    hot = drawn({"traffic.knobs": "hot-rank", "traffic.drawn": 2})
    np.testing.assert_array_equal(hot.count, from_knobs(JOB, workload_knobs("hot-rank"), 1, 2, 0).count)
    workload_knobs("hot-rank").write(tmp_path / "knobs.json")
    again = drawn({"traffic.knobs": str(tmp_path / "knobs.json"), "traffic.drawn": 2})
    np.testing.assert_array_equal(again.count, hot.count)
    assert np.ptp(drawn({"traffic.knobs": "balanced"}).count) == 0
