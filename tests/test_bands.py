"""How sure a time is: deviations by squares, ratios within a variant, and what rows and rankings say of them."""

import json

import numpy as np
import pytest

from mfabric_jax import InputError, simulate
from mfabric_jax.report.numerals import percent
from mfabric_jax.report.ranking import EQUAL, rankings
from mfabric_jax.support.bands import band_columns, holding_ends, holds_left_out, is_of_band, ratio_band, spread_of
from mfabric_jax.support.measured_errors import calibration, ratio_errors, step_band
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
    held = band_columns(np.array([10.0, 20.0]), {}, [np.array([9.0, 20.0])], (0.5, 1.25))
    np.testing.assert_allclose(held["low_s"], [5, 10])
    np.testing.assert_allclose(held["high_s"], [12.5, 25])
    assert list(held) == ["low_s", "high_s", "draw_2_s"]


RATIOS = [0.6, 0.8, 1.0, 1.1, 1.2, 2.0], ["a", "b", "b", "b", "b", "c"]  # a and c weigh 1/3, each of b 1/12


def test_a_band_holds_measured_ratios_with_sources_weighted_alike():
    """By 1.2 2/3 of the weight is reached, by 1.1 7/12, by 0.8 5/12."""
    assert holding_ends(*RATIOS, held=1 / 3) == (0.8, 1.2)  # 1/3 on each side
    assert holding_ends(*RATIOS, held=0.3) == (0.8, 1.2)  # 0.35: from below and above more than a or c
    assert holding_ends(*RATIOS, held=0.1) == (1.0, 1.1)  # 0.45
    assert holding_ends(*RATIOS) == (0.6, 2.0)
    ten = np.arange(10) / 10
    assert holding_ends(ten, ["one"] * 10) == (0.1, 0.8)  # one of ten below, one above
    assert holding_ends(ten, [str(number) for number in range(10)]) == (0.1, 0.8)


def test_a_band_is_made_without_a_source():
    """Without b, bands reach from 0.6 to 2; without a from 0.8, and without c to 1.2."""
    assert holds_left_out(*RATIOS).tolist() == [False, True, True, True, True, False]
    assert holds_left_out([1.0, 2.0], ["a", "a"]) is None


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
    assert [mine[name] / mine["iteration_s"] for name in ("low_s", "high_s")] == pytest.approx(step_band())
    other = row(small(KERNELS | {"run.seed": 1, "run.draws": 1}))
    assert mine["draw_2_s"] == other["iteration_s"]
    assert "slow_kernels_s" not in plain
    assert sorted((plain["iteration_s"], plain["draw_2_s"])) == [plain["low_s"], plain["high_s"]]
    assert "draw_2_s" not in other


def test_a_calibration_scales_computation_and_communication():
    quick = KERNELS | {"run.draws": 1, "network.link_delay_s": 0.0, "compute.code.step_ms": 5}
    usual, mine = (row(small(quick | {"compute.calibration": how})) for how in ("none", "measured"))
    fit = calibration()
    assert mine["compute_s"] == pytest.approx(fit.compute * usual["compute_s"], rel=1e-9)
    for name in ("tp_comm_s", "ep_comm_s", "dp_comm_s"):
        assert mine[name] == pytest.approx(fit.communication * usual[name], rel=1e-9)
        assert mine[name] > 0
    assert [mine[name] / mine["iteration_s"] for name in ("low_s", "high_s")] == pytest.approx((fit.low, fit.high))
    words = f"computation x {fit.compute:.2f}, communication x {fit.communication:.2f}"
    assert mine["compute_source"].endswith(f"calibrated to measured training steps ({words})")
    assert "calibrated" not in usual["compute_source"]
    for other in ({"compute.efficiency": 0.5}, {"compute.kernels.table": "mine.toml"}):
        with pytest.raises(InputError, match=r"with compute\.calibration measured"):
            simulate(small({"compute.calibration": "measured"} | other))


def slowest(node):
    """A table whose figures are all the low ones."""
    if isinstance(node, dict):
        return {name: slowest(one) for name, one in node.items()}
    return [node[0]] * 3 if isinstance(node, list) and not isinstance(node[0], str) else node


def test_slower_kernels_are_what_a_table_of_such_kernels_gives(tmp_path):
    own, links = table(), {name: table()[name] for name in ("communication", "counts")}
    (tmp_path / "mine.json").write_text(json.dumps(slowest(own) | links))
    step = {"job.optimizer_step": False, "gpu.name": "A100-80GB-SXM"}
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


def over(ratio, below, above):
    """The words of a ratio and of the ends that are so far below and above it."""
    low, high = (percent(end - 1, signed=True).removesuffix("%") for end in (ratio - below, ratio + above))
    return f"{percent(ratio - 1, signed=True)} ({low} to {high})"


def lead(rows):
    """The ranking of rows, and the cell of its second line."""
    ranking = rankings(rows, {})["m"]
    return ranking, ranking.lines[1]["over best"]


def test_a_lead_within_all_that_may_be_wrong_is_not_separable():
    error = ratio_errors().eight_in_ten
    # A lead of 1 % that links turn (-0.8 to +2.2), one that links keep but half the model's error does not, and one of
    # 20 % that is more than both.
    near, _ = lead(ranked({"tree": (10.0, 12.0, 9.0), "rail": (10.1, 11.9, 9.2)}))
    half = 1 + error / 2
    middle, cell = lead(ranked({"tree": (10.0, 12.0, 9.0), "rail": (10 * half, 12 * half, 9 * half)}))
    far, sure = lead(ranked({"tree": (10.0, 12.0, 9.0), "rail": (12.0, 14.4, 10.8)}))
    assert cell == f"{over(half, half * error, half * error)} equal"
    assert sure == over(1.2, 1.2 * error, 1.2 * error)
    assert near.conclusion.startswith(
        "Equal by dollars a token: tree, 400 Gbps; rail, 400 Gbps. They differ by +1.0% ("
    )
    assert far.conclusion == (
        f"Best by dollars a token: tree, 400 Gbps. Next is rail, 400 Gbps, {sure}, outside the error."
    )
    ends = percent(half - 1, signed=True)
    assert middle.remarks[0].startswith(
        f"The error of {ends}: {ends[:-1]} to {ends} as kernels, links and traffic vary; {percent(error)} more or less "
        f"by the model's own error (8 in 10 of {ratio_errors().count} measured ratios; "
    )
    assert middle.remarks[1] == (
        "To tell them apart: measure both designs, or run them in a packet simulator (mfabric export)."
    )
    assert not [words for words in far.remarks if words.startswith("To tell them")]


@pytest.mark.parametrize(
    ("differ", "error"),
    [
        ({"policy": ("greedy", "mine.py:f")}, "no ratio was of two policies, which share more of the error"),
        ({"circuits.policy.margin": (0.1, 0.3)}, "no ratio was of two policies, which share more of the error"),
        (
            {"policy": ("greedy", "joint"), "ocs": ("a", "b")},
            "of fabrics, only multi-rail over multi-plane was measured",
        ),
        ({"routing": ("unsplit", "relay")}, "of fabrics, only multi-rail over multi-plane was measured"),
    ],
)
def test_the_error_of_two_policies_on_a_fabric_says_that_none_were_measured(differ, error):
    times = {"first": (10.0, 12.0, 9.0), "second": (10.2, 12.2, 9.2)}
    rows = [
        {name: values[at] for name, values in differ.items()} | row | {"fabric": "mfabric"}
        for at, row in enumerate(ranked(times))
    ]
    ranking = rankings(rows, {})["m"]
    assert f"measured ratios; {error})" in ranking.remarks[0]
    assert ranking.conclusion.startswith("Equal by dollars a token: ")  # the traffic is paired, the model's error stays


def test_prices_that_are_quoted_are_part_of_what_a_lead_may_be_wrong_by():
    rows = ranked({"tree": (10.0, 12.0, 9.0), "rail": (12.0, 14.4, 10.8)})
    rows[0] |= {"low_ports_usd": 10.0}
    rows[1] |= {"low_ports_usd": 9.9}  # with cheaper ports the second leads
    ranking, cell = lead(rows)
    error = 1.2 * ratio_errors().eight_in_ten
    assert cell == f"{over(1.2, np.hypot(0.21, error), error)} equal"
    assert "; -1.0 to +20.0% at other quoted prices" in ranking.remarks[0]
    assert ranking.remarks[1] == "To tell them apart: give the prices that you are quoted (--set network.prices=FILE)."


def test_what_the_model_times_alike_is_not_wrong_by_its_error():
    rows = ranked({"tree": (10.0, 12.0, 9.0), "rail": (10.0, 12.0, 9.0)})
    rows[1]["usd_per_million_tokens"] = 10.4  # dearer parts
    ranking, cell = lead(rows)
    assert cell == "+4.0%"
    assert "none by the model itself, as the times are equal" in ranking.remarks[0]


def test_more_performance_a_dollar_is_better_and_its_band_follows_the_times():
    rows = ranked({"tree": (10.0, 12.0, 9.0), "rail": (20.0, 26.0, 18.0)})
    rows = [own | {"usd_per_million_tokens": None, "perf_per_dollar": 1 / own["iteration_s"]} for own in rows]
    ranking, cell = lead(rows)
    assert ranking.by == "performance per dollar of the network"
    # Half; slower links: 12 / 26 = 0.462, faster 0.5; the model's error is a part of a half.
    error = ratio_errors().eight_in_ten / 2
    assert cell == over(0.5, np.hypot(0.5 - 12 / 26, error), error)
    assert "outside the error" in ranking.conclusion


def test_no_text_of_a_ranking_contradicts_another():
    """One rule: designs are equal where the printed band holds 0, and the conclusion says what its line says."""
    random = np.random.default_rng(11)
    kinds = set()
    for _ in range(200):
        times = {}
        for fabric in ("tree", "rail", "mesh"):
            usual = random.uniform(10, 14)
            times[fabric] = usual, usual * random.uniform(1, 1.3), usual * random.uniform(0.8, 1)
        rows = ranked(times)
        for own in rows:
            own["low_ports_usd"] = own["usd_per_million_tokens"] * random.uniform(0.9, 1.0)
        ranking, _ = lead(rows)
        for line in ranking.lines[1:]:
            cell = line["over best"]
            low, high = (float(end) for end in cell.partition("(")[2].partition(")")[0].split(" to "))
            apart = low > 0 or high < 0
            assert apart == (EQUAL not in cell), cell
            kinds.add(apart)
        sure = EQUAL not in ranking.lines[1]["over best"]
        assert ("outside the error" in ranking.conclusion) == sure
        assert ranking.conclusion.startswith("Equal by") != sure
        assert any(words.startswith("To tell them") for words in ranking.remarks) != sure
    assert kinds == {True, False}


def test_rows_say_what_tokens_cost_at_other_quotes():
    """A three-tier tree has 5 ports a NIC, at 563 to 1,090 dollars; an H100 costs 25,000 to 30,000."""
    mine = row(small(KERNELS | {"network.nic_gbps": 400.0}))
    nics = mine["gpus"]
    assert mine["network_cost_usd"] - mine["low_ports_network_usd"] == pytest.approx(5 * nics * (1090 - 563))
    less = (mine["usd_per_million_tokens"] - mine["low_ports_usd"]) / (5 * nics * (1090 - 563))
    assert mine["usd_per_million_tokens"] - mine["low_gpus_usd"] == pytest.approx(less * nics * 5000)
    assert mine["high_gpus_usd"] == mine["usd_per_million_tokens"]
