"""Calibration: the one number, its residuals, what ships; presets and settings of the comparison that use it."""

import dataclasses
import json

import numpy as np
import pytest
from mfabric_jax.study.legacy import compare, scenarios

from mfabric_jax.simulation import calibrate
from mfabric_jax.simulation._calibrate import calibration_rows, write_calibration
from mfabric_jax.simulation.calibration import BANDWIDTHS, CALIBRATED, PUBLISHED
from mfabric_jax.simulation.rows import effective
from mfabric_jax.simulation.scenario import tokens_of
from mfabric_jax.simulation.solving import trade_off_at
from mfabric_jax.study.config import Compare
from mfabric_jax.study.presets import PRESETS
from mfabric_jax.traffic import from_knobs, workload_knobs
from mfabric_jax.workload.gpus import DEFAULT_GPU
from tests.mistakes import check_refused
from tests.small import row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")

SETTING = Compare(dtype="float64", drawn=1)
JOB = small().workload("mixtral-8x7b")


@pytest.fixture(scope="module")
def found(as_users_have_it):
    return calibrate(SETTING, ("llama-moe",))["llama-moe"]


def ratios(efficiency):
    """Rows of the fat-tree at all bandwidths, and their times over that of the last bandwidth."""
    settings = {"models": ("llama-moe",), "fabrics": ("fat-tree",), "nic_gbps": BANDWIDTHS, "compute": "achieved"}
    table = list(compare(dataclasses.replace(SETTING, **settings, efficiency=efficiency)))
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
    assert kept["configuration"]["drawn"] == 1
    check_refused(r"out must be a \.json file", write_calibration, {}, SETTING, tmp_path / "kept.csv")
    check_refused("existing folder", write_calibration, {}, SETTING, tmp_path / "no" / "kept.json")


def test_what_ships_covers_all_published_models_closely():
    assert set(CALIBRATED) == set(PRESETS)
    for found in CALIBRATED.values():
        assert set(found) == set(PUBLISHED)
        for one in found.values():
            assert max(map(abs, one.residuals)) < 0.05
            assert 0.1 < one.efficiency < 10
    check_refused("models must have published fat-tree times", calibrate, SETTING, ("deepseek-r1",))


def test_calibrated_is_the_default_where_there_is_one():
    config = Compare()
    assert config.rates_from == "calibrated"
    assert config.achieved(config.workload("qwen-moe")) == CALIBRATED["paper"]["qwen-moe"].efficiency
    received = Compare(expert_load="received")
    assert received.achieved(config.workload("qwen-moe")) == CALIBRATED["today"]["qwen-moe"].efficiency
    assert config.achieved(config.workload("deepseek-r1")) == 0.5
    assert Compare(efficiency=0.4).rates_from == Compare(gpu="H100-SXM").rates_from == "achieved"
    assert Compare(compute="achieved").achieved(config.workload("qwen-moe")) == 0.5
    check_refused("must be 'achieved'", Compare, compute="calibrated", efficiency=0.4)
    assert "calibrated to published" in row(small(fabrics=("fat-tree",), compute=None))["compute_source"]
    assert PRESETS["paper"] == {}
    assert set(PRESETS["released"]) == {"rule", "flows", "eps_waits", "matrices", "circuit_flows", "busy", "wiring"}
    released = Compare(**PRESETS["released"])
    assert released.achieved(config.workload("qwen-moe")) == CALIBRATED["released"]["qwen-moe"].efficiency
    assert (released.rule, released.flows, released.eps_waits, released.matrices) == ("released", "single", True, "one")


def test_what_is_said_counts_though_it_is_the_default():
    """An efficiency of 0.5 lies between 0.49 and 0.51, and a GPU that is named computes as one that is not default."""
    job = Compare().workload("llama-moe")
    for given in ({"efficiency": 0.5}, {"gpu": DEFAULT_GPU}, {"gpu": DEFAULT_GPU, "efficiency": 0.5}):
        config = Compare(**given)
        assert config.achieved(job) == Compare(**given, compute="achieved").achieved(job) == 0.5
        assert effective(config)["compute"] == "achieved"
    seconds = [sum(Compare(efficiency=part).block_seconds(job)) for part in (0.49, 0.5, 0.51)]
    assert [seconds[0] * 0.49, seconds[2] * 0.51] == pytest.approx([seconds[1] * 0.5] * 2, rel=1e-12)
    assert effective(Compare())["compute"] == "calibrated"
    assert Compare(gpu=DEFAULT_GPU, compute="calibrated").achieved(job) == Compare().achieved(job)


def test_matrices_that_repeat():
    full = tokens_of(small(iterations=2, drawn=3), JOB).count
    for matrices, alike in (("each", ()), ("block", (0, 2)), ("one", (0, 1, 2))):
        count = tokens_of(small(matrices=matrices, iterations=2, drawn=3), JOB).count
        assert all(count.shape[axis] == (1 if axis in alike else full.shape[axis]) for axis in range(3))
        np.testing.assert_array_equal(count[0, 0, 0], full[0, 0, 0])
    # One matrix keeps its circuits, from iteration to iteration: a delay costs nothing, but for a cold start one turn.
    same = {"fabrics": ("mfabric",), "matrices": "one", "traffic": "generated", "skew": 1.5, "optical_degree": 2}
    slow, fast = (row(small(**same, delay_s=delay)) for delay in (0.1, 0.0))
    cold = row(small(**same, delay_s=0.1, cold_start=True))
    assert slow["iteration_s"] == fast["iteration_s"]
    assert slow["reconfig_s"] == 0
    assert 0 < cold["iteration_s"] - fast["iteration_s"] <= 0.1 * 4 * (1 + 1e-9)  # a turn of each of 4 stages


@pytest.mark.slow
def test_every_rule_compares():
    rules = ("block", "reuse", "random", "predict", "pays")
    found = {first: row(small(fabrics=("mfabric",), delay_s=0.2, first=first)) for first in rules}
    assert [one["first"] for one in found.values()] == list(rules)
    assert np.isfinite([one["iteration_s"] for one in found.values()]).all()
    # Switching when it pays never minds a delay as much.
    assert found["pays"]["iteration_s"] <= found["block"]["iteration_s"] * (1 + 1e-9)
    assert found["pays"]["reconfig_s"] <= found["block"]["reconfig_s"]


def test_stakes_by_hand():
    config = small(fabrics=("mfabric",), nic_gbps=(100.0,), reactivation_s=0.5)
    (one,) = scenarios(config)
    trade_off, seconds = trade_off_at(one, 100.0), one.seconds
    np.testing.assert_allclose(trade_off.delay_s, 0.525)
    np.testing.assert_allclose(trade_off.nic_Bps, 12.5e9)
    np.testing.assert_allclose(trade_off.inner_s, np.multiply([1, 2, 1], seconds.moe_s))
    tp = 2 * 8 * 4096 * 4096 * 2 * 3 / 4 / 900e9  # tokens x hidden x bf16, ring of 4
    np.testing.assert_allclose(trade_off.behind_s[:2], [0, 2 * seconds.attention_s + tp], rtol=1e-12)


def test_named_workloads_and_knobs_from_a_file(tmp_path):
    hot = tokens_of(small(traffic="hot-rank", drawn=2), JOB)
    np.testing.assert_array_equal(hot.count, from_knobs(JOB, workload_knobs("hot-rank"), 1, 2, 0).count)
    workload_knobs("hot-rank").write(tmp_path / "knobs.json")
    again = tokens_of(small(traffic=str(tmp_path / "knobs.json"), drawn=2), JOB)
    np.testing.assert_array_equal(again.count, hot.count)
    assert np.ptp(tokens_of(small(traffic="balanced"), JOB).count) == 0
