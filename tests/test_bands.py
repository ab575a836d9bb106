"""How sure a time is: deviations by squares, ratios within a variant, and what rows and rankings say of them."""

import json

import numpy as np
import pytest

from mfabric_jax.bands import band_columns, is_of_band, ratio_band, spread_of
from mfabric_jax.report.ranking import UNTOLD, rankings
from mfabric_jax.workload.kernels import table
from tests.small import JOB, row, small

VARIANTS = {"slow_kernels_s": 13.0, "fast_kernels_s": 6.0, "slow_links_s": 14.0, "fast_links_s": 10.0}


def test_independent_deviations_add_up_by_squares():
    assert spread_of(10.0, VARIANTS) == (10 - 4, 10 + 5)  # up by 3 and 4, down by 4 and 0
    assert spread_of(10.0, {}) == (10.0, 10.0)
    found = band_columns(np.array([10.0, 20.0]), {}, [np.array([9.0, 20.0]), np.array([12.0, 18.0])])
    np.testing.assert_allclose(found["low_s"], [9, 18])
    np.testing.assert_allclose(found["high_s"], [12, 20])
    assert list(found) == ["low_s", "high_s", "draw_2_s", "draw_3_s"]
    assert all(map(is_of_band, found))
    assert not is_of_band("iteration_s")


def test_what_two_designs_share_cancels_in_their_ratio():
    one = {"iteration_s": 10.0} | VARIANTS
    twice = {name: 2 * seconds for name, seconds in one.items()}
    assert ratio_band(twice, one, "iteration_s") == (2.0, 2.0)
    other = one | {"slow_links_s": 28.0}
    low, high = ratio_band(other, one, "iteration_s")
    assert (low, high) == (1.0, 2.0)
    assert ratio_band({"iteration_s": 1.0}, one, "iteration_s") is None


KERNELS = JOB | {"run.draws": 2, "compute.rate": "kernels", "gpu.name": "H100-SXM", "network.fabric": "fat-tree"}


def test_rows_of_kernels_carry_a_band_and_those_of_one_rate_only_that_of_traffic():
    by_rate = {path: value for path, value in KERNELS.items() if path != "compute.rate"} | {"compute.efficiency": 0.5}
    mine, plain = row(small(KERNELS)), row(small(by_rate))
    assert mine["slow_kernels_s"] > mine["iteration_s"] > mine["fast_kernels_s"]
    assert mine["slow_links_s"] > mine["iteration_s"] > mine["fast_links_s"]
    assert mine["low_s"] < mine["fast_kernels_s"]
    assert mine["high_s"] > mine["slow_kernels_s"]
    other = row(small(KERNELS | {"run.seed": 1, "run.draws": 1}))
    assert mine["draw_2_s"] == other["iteration_s"]
    assert "slow_kernels_s" not in plain
    assert sorted((plain["iteration_s"], plain["draw_2_s"])) == [plain["low_s"], plain["high_s"]]
    assert "draw_2_s" not in other


def slowest(node):
    """A table whose figures are all the low ones."""
    if isinstance(node, dict):
        return {name: slowest(one) for name, one in node.items()}
    return [node[0]] * 3 if isinstance(node, list) and not isinstance(node[0], str) else node


def test_slower_kernels_are_what_a_table_of_such_kernels_gives(tmp_path):
    own, links = table(), {name: table()[name] for name in ("communication", "counts")}
    (tmp_path / "mine.json").write_text(json.dumps(slowest(own) | links))
    step = {"job.optimizer_step": False}
    mine = row(small(KERNELS | {"compute.kernels.table": str(tmp_path / "mine.json")} | step))
    usual = row(small(KERNELS | step))
    assert mine["iteration_s"] == pytest.approx(usual["slow_kernels_s"], rel=1e-9)
    assert mine["slow_kernels_s"] == pytest.approx(mine["fast_kernels_s"], rel=1e-12)
    assert "mine.json" in mine["compute_source"]


def ranked(times):
    """Designs on fabrics by name, with the same price a second."""
    return [
        {"model": "m", "fabric": fabric, "nic_gbps": 400.0, "iteration_s": seconds, "usd_per_million_tokens": seconds}
        | {"slow_links_s": slow, "fast_links_s": fast, "low_s": fast, "high_s": slow}
        for fabric, (seconds, slow, fast) in times.items()
    ]


def test_a_lead_within_its_band_is_not_separable():
    near = {"tree": (10.0, 12.0, 9.0), "rail": (10.1, 11.9, 9.2)}
    far = {"tree": (10.0, 12.0, 9.0), "rail": (11.0, 13.2, 9.9)}
    said = [rankings(ranked(times), {})["m"].lines[1]["over best"] for times in (near, far)]
    assert said == ["+1.0% (-0.8 to +2.2) not separable", "+10.0% (+10.0 to +10.0)"]
    assert [UNTOLD in rankings(ranked(times), {})["m"].remarks for times in (near, far)] == [True, False]
