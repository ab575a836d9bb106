"""Calibration: the one number, its residuals, what ships; presets and settings of the comparison that use it."""

import dataclasses
import json

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.study import CALIBRATED, PRESETS, Compare, calibrate, calibration_rows, compare, write_calibration
from mfabric_jax.study.calibration import BANDWIDTHS, PUBLISHED
from mfabric_jax.study.compare import computation, jobs, tokens_of, trade_off_at
from mfabric_jax.traffic import from_knobs, workload_knobs
from tests.study.small import as_a_user, row, rows, small

SETTING = Compare(dtype="float64", drawn=1)


@pytest.fixture(scope="module")
def found():
    with as_a_user():
        return calibrate(SETTING, ("llama-moe",))["llama-moe"]


@pytest.fixture(scope="module")
def tree(found):
    """Fat-tree times at the fitted rate, and at neighbouring ones."""

    def times(efficiency):
        one = dataclasses.replace(
            SETTING,
            models=("llama-moe",),
            fabrics=("fat-tree",),
            nic_gbps=BANDWIDTHS,
            compute="achieved",
            efficiency=efficiency,
        )
        return list(compare(one))

    with as_a_user():
        return {factor: times(found.efficiency * factor) for factor in (0.97, 1.0, 1.03)}


def off(times):
    """Squares of what is left of the logarithms of three ratios."""
    seconds = np.asarray([one["iteration_s"] for one in times])
    want = np.asarray(PUBLISHED["llama-moe"])
    return ((np.log(seconds / seconds[-1]) - np.log(want / want[-1])) ** 2).sum()


def test_no_neighbour_fits_better(tree):
    assert off(tree[1.0]) < min(off(tree[0.97]), off(tree[1.03]))


def test_ratios_and_residuals_are_those_of_the_comparison(found, tree):
    seconds = np.asarray([one["iteration_s"] for one in tree[1.0]])
    np.testing.assert_allclose(found.ratios, (seconds / seconds[-1])[:-1], atol=1e-5)
    want = np.asarray(PUBLISHED["llama-moe"])
    np.testing.assert_allclose(found.residuals, found.ratios / (want / want[-1])[:-1] - 1, atol=2e-5)
    np.testing.assert_allclose(found.compute_s, tree[1.0][-1]["compute_s"], rtol=1e-6)


def test_rows_and_file(found, tmp_path):
    table = calibration_rows({"llama-moe": found})
    assert [one["nic_gbps"] for one in table] == [100, 200, 400]
    assert table[0]["published"] == pytest.approx(3.932)
    kept = json.loads(write_calibration({"llama-moe": found}, SETTING, tmp_path / "kept.json").read_text())
    assert kept["models"]["llama-moe"]["efficiency"] == found.efficiency
    assert kept["configuration"]["drawn"] == 1
    with pytest.raises(InputError, match=r"out must be a \.json file"):
        write_calibration({}, SETTING, tmp_path / "kept.csv")
    with pytest.raises(InputError, match="existing folder"):
        write_calibration({}, SETTING, tmp_path / "no" / "kept.json")


def test_what_ships_covers_all_published_models_closely():
    assert set(CALIBRATED) == set(PUBLISHED)
    for one in CALIBRATED.values():
        assert max(map(abs, one.residuals)) < 0.05
        assert 0.1 < one.efficiency < 10


def test_calibrate_names_what_it_does_not_know():
    with pytest.raises(InputError, match="models 'deepseek-r1' is unknown"):
        calibrate(SETTING, ("deepseek-r1",))


# ------------------------------------------------------------------------------------------------- compare
def test_calibrated_is_the_default_where_there_is_one():
    config = Compare()
    assert config.compute == "calibrated"
    assert config.achieved("qwen-moe") == CALIBRATED["qwen-moe"].efficiency
    assert config.achieved("deepseek-r1") == 0.5
    assert Compare(efficiency=0.4).compute == Compare(gpu="H100-SXM").compute == "achieved"
    assert Compare(compute="achieved").achieved("qwen-moe") == 0.5
    with pytest.raises(InputError, match="must be 'achieved'"):
        Compare(compute="calibrated", efficiency=0.4)


def test_rows_say_where_computation_comes_from():
    said = rows(small(fabrics=("fat-tree",), compute=None))[0]["compute_source"]
    assert "calibrated to published" in said
    assert "not calibrated" in rows(small(fabrics=("fat-tree",), compute="achieved"))[0]["compute_source"]


def test_the_paper_is_the_default():
    assert PRESETS["paper"] == {}
    assert set(PRESETS["released"]) == {"rule", "flows", "eps_waits", "matrices"}
    released = Compare(**PRESETS["released"])
    assert (released.rule, released.flows, released.eps_waits, released.matrices) == ("released", "single", True, "one")


@pytest.mark.parametrize(("matrices", "alike"), [("each", ()), ("block", (0, 2)), ("one", (0, 1, 2))])
def test_matrices_that_repeat(matrices, alike):
    config = small(matrices=matrices, iterations=2, drawn=3)
    count = tokens_of(config, config.workload("mixtral-8x7b")).count
    full = tokens_of(small(iterations=2, drawn=3), config.workload("mixtral-8x7b")).count
    assert all(count.shape[axis] == (1 if axis in alike else full.shape[axis]) for axis in range(3))
    np.testing.assert_array_equal(count[0, 0, 0], full[0, 0, 0])


def test_one_matrix_keeps_its_circuits():
    # The first switch aside, circuits stay, so a delay hardly costs.
    with as_a_user():
        slow, fast = (row(small(fabrics=("mfabric",), matrices="one", delay_s=delay)) for delay in (0.1, 0.0))
    assert slow["iteration_s"] - fast["iteration_s"] <= 0.1 * 4 * (1 + 1e-9)


@pytest.mark.parametrize("first", ["reuse", "random", "predict", "pays"])
def test_every_rule_compares(first):
    with as_a_user():
        one = row(small(fabrics=("mfabric",), first=first, iterations=2))
    assert one["first"] == first
    assert np.isfinite(one["iteration_s"])


def test_switching_when_it_pays_never_minds_a_delay_as_much():
    with as_a_user():
        block, pays = (row(small(fabrics=("mfabric",), first=first, delay_s=0.2)) for first in ("block", "pays"))
    assert pays["iteration_s"] <= block["iteration_s"] * (1 + 1e-9)
    assert pays["reconfig_s"] <= block["reconfig_s"]


def test_stakes_by_hand():
    config = small(fabrics=("mfabric",), nic_gbps=(100.0,), reactivation_s=0.5)
    (job,) = jobs(config)
    trade_off, seconds = trade_off_at(config, job, 100.0), computation(config, job)
    np.testing.assert_allclose(trade_off.delay_s, 0.525)
    np.testing.assert_allclose(trade_off.nic_Bps, 12.5e9)
    np.testing.assert_allclose(trade_off.inner_s, [seconds.moe_s, 2 * seconds.moe_s])
    tp = 2 * 8 * 4096 * 4096 * 2 * 3 / 4 / 900e9  # tokens x hidden x bf16, ring of 4
    np.testing.assert_allclose(trade_off.behind_s, 2 * seconds.attention_s + tp, rtol=1e-12)


def test_single_paths_take_longer_on_the_tree():
    with as_a_user():
        same = {"fabrics": ("fat-tree",), "matrices": "one"}
        spray, single = (row(small(**same, flows=flows)) for flows in ("spray", "single"))
    assert single["ep_comm_s"] > spray["ep_comm_s"]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"first": "blok"}, "first 'blok' is unknown"),
        ({"flows": "all"}, "flows 'all' is unknown"),
        ({"flows": "single", "routing": "split"}, "flows 'single' needs routing unsplit"),
        ({"matrices": "two"}, "matrices 'two' is unknown"),
        ({"predictor": "oracle"}, "predictor 'oracle' is unknown"),
        ({"overlap_parts": 0}, "overlap_parts must be a whole number of at least 1"),
        ({"reactivation_s": -1.0}, "reactivation_s must be finite and not negative"),
        ({"compute": "guessed"}, "compute 'guessed' is unknown"),
        ({"schedule": "zigzag"}, "schedule 'zigzag' is unknown"),
    ],
)
def test_mistakes(settings, words):
    with pytest.raises(InputError) as caught:
        small(**settings)
    assert str(caught.value).startswith(words)


# ------------------------------------------------------------------------------------------------- traffic by name
def test_named_workloads_and_knobs_from_a_file(tmp_path):
    job = small().workload("mixtral-8x7b")
    hot = tokens_of(small(traffic="hot-rank", drawn=2), job)
    np.testing.assert_array_equal(hot.count, from_knobs(job, workload_knobs("hot-rank"), 1, 2, 0).count)
    workload_knobs("hot-rank").write(tmp_path / "knobs.json")
    again = tokens_of(small(traffic=str(tmp_path / "knobs.json"), drawn=2), job)
    np.testing.assert_array_equal(again.count, hot.count)
    assert np.ptp(tokens_of(small(traffic="balanced"), job).count) == 0


def test_traffic_of_no_name():
    with pytest.raises(InputError, match="traffic 'hot-rnk' is unknown \\(did you mean 'hot-rank'"):
        small(traffic="hot-rnk")
