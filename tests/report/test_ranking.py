"""Which design is ranked first, against what rows say: cheapest tokens, then the network's worth, then time."""

import re

import pytest

from mfabric_jax.report import comparison, html_report
from mfabric_jax.report.ranking import MOST, designs, equal_times_words, not_ranked, rankings
from mfabric_jax.support.measured_errors import ratio_errors
from tests.report import synthetic

MILLION = 1e6


def row(fabric, ocs, gbps, degree, usd, seconds, **more):
    settings = {"configuration": 0, "model": "m", "fabric": fabric, "ocs": ocs, "fits": True, "nic_gbps": gbps}
    settings |= {"optical_degree": degree, "iteration_s": seconds, "cluster_cost_usd": 20 * MILLION}
    prices = {"perf_per_dollar": 1 / seconds, "usd_per_million_tokens": usd, "joules_per_million_tokens": 2 * MILLION}
    return settings | prices | {"reconfigurations_over_allowed": None} | more


ROWS = [
    row("fat-tree", "none", 400.0, None, 0.5, 20.0),
    row("fat-tree", "none", 800.0, None, 0.6, 9.0),
    row("mfabric", "polatis", 400.0, 4, 0.4, 11.0),
    row("mfabric", "polatis", 400.0, 6, 0.402, 10.0),
    row("mfabric", "calient", 400.0, 6, 0.3, 10.0, reconfigurations_over_allowed=5.0),
    row("mfabric", "calient", 400.0, 4, 0.45, 11.0),
    row("mfabric", "rotornet", 400.0, 6, None, 8.0),
    row("torus", "none", 400.0, None, 0.2, 30.0, fits=False),
]


def test_ranges_without_the_models_error_say_why():
    quotes = {"low_gpus_usd": 0.4, "high_gpus_usd": 0.6}
    first = row("rail-only", "none", 400.0, None, 0.5, 20.0, **quotes)
    dear = row("fat-tree", "none", 400.0, None, 0.55, 20.0, low_gpus_usd=0.46, high_gpus_usd=0.65)
    (ranking,) = rankings([first, dear], {}).values()
    assert equal_times_words(ranking.shown, ranking.column) == (
        "fat-tree, 400 Gbps and rail-only, 400 Gbps: their times are equal, so the model's own error cancels, and "
        "quoted prices alone make the range."
    )
    slower = dear | {"iteration_s": 21.0}
    (ranking,) = rankings([first, slower], {}).values()
    assert equal_times_words(ranking.shown, ranking.column) is None


def test_rows_may_name_their_designs():
    named = [each | {"design": f"offer {number}"} for number, each in enumerate(ROWS[:2])]
    (ranking,) = rankings(named, {}).values()
    assert [line["design"] for line in ranking.lines] == ["offer 0", "offer 1"]


def test_the_cheapest_tokens_win_and_what_cannot_be_is_not_counted():
    ((column, every),) = designs(ROWS, {}).values()
    assert column == "usd_per_million_tokens"
    assert [one.mean[column] for one in every[:-1]] == [0.4, 0.402, 0.45, 0.5, 0.6]
    (ranking,) = rankings(ROWS, {}).values()
    error = 125 * ratio_errors().eight_in_ten
    assert [(line["design"], line["$/Mtok"], line["over best"]) for line in ranking.lines] == [
        ("mfabric with polatis, 400 Gbps, optical_degree 4", 0.4, ""),
        ("mfabric with calient, 400 Gbps, optical_degree 4", 0.45, "+12.5%"),
        ("fat-tree, 400 Gbps", 0.5, f"+25.0% (+{25 - error:.1f} to +{25 + error:.1f})"),
    ]
    assert [ranking.lines[0][name] for name in ("kJ/Mtok", "s", "cluster M$")] == [2000, 11, 20]
    assert ranking.remarks == [
        "Lines show the best of each fabric and optical switch, at most 5; 3 more combinations that differ in "
        "optical_degree, nic_gbps are in the rows below.",
        "The error of +12.5%: none by the model itself, as the times are equal.",
        "Fastest is mfabric with rotornet, 400 Gbps, optical_degree 6: 8 s an iteration.",
        "By performance per dollar of the network, mfabric with rotornet, 400 Gbps, optical_degree 6 leads.",
        "Not ranked for lack of dollars a token: mfabric with rotornet.",
    ]
    assert not_ranked(ROWS) == [
        "Not ranked for lack of GPU memory: 1 row.",
        "Not ranked for reconfiguring a switch more often than it allows: 1 row.",
    ]
    assert [design.kind for design in ranking.shown] == ["mfabric with polatis", "mfabric with calient", "fat-tree"]
    assert [design.mean[column] for design in ranking.shown] == [0.4, 0.45, 0.5]
    assert [len(design.rows) for design in ranking.every] == [1] * 5
    assert rankings([row | {"failure": "gpu"} for row in ROWS], {}) == {}


def test_what_differs_in_a_setting_is_another_design_and_draws_are_averaged():
    """Two degrees of a job averaged 6.45 s, which none of them took."""
    degrees = [row("fat-tree", "none", 400.0, None, usd, s) | {"job.parallel.ep": ep} for ep, usd, s in DEGREES]
    ((_, every),) = designs([one | {"run.seed": seed} for one in degrees for seed in (0, 1)], {}).values()
    assert [(one.settings["job.parallel.ep"], one.mean["iteration_s"]) for one in every] == [(8, 5.0), (16, 8.0)]
    assert [one.choice for one in every] == ["400 Gbps, ep 8", "400 Gbps, ep 16"]


DEGREES = (8, 0.2, 5.0), (16, 0.3, 8.0)


def test_repeats_of_a_design_are_averaged_and_one_design_is_no_choice():
    rows = [ROWS[0] | {"sample": s, "usd_per_million_tokens": 0.4 + 0.1 * s} for s in (0, 1)]
    ((column, every),) = designs([*rows, *(one | {"sample": 0} for one in ROWS[1:3])], {}).values()
    assert sorted(one.mean[column] for one in every) == pytest.approx([0.4, 0.45, 0.6])
    assert rankings(ROWS[:1], {}) == {}


def test_what_computes_above_its_peak_is_ranked_only_where_all_do():
    slow = [one | {"achieved_over_peak": 0.5} for one in ROWS[1:]]
    fast = [ROWS[0] | {"achieved_over_peak": 1.2, "usd_per_million_tokens": None, "iteration_s": 0.1}]
    (ranking,) = rankings(fast + slow, {}).values()
    assert "fat-tree, 400 Gbps" not in str(ranking)
    assert "Not ranked for computing above the peak of the GPU that is priced: 1 row." in not_ranked(fast + slow)
    every = [one | {"achieved_over_peak": 2.9, "usd_per_million_tokens": None} for one in ROWS]
    (ranking,) = rankings(every, {}).values()
    assert ranking.by == "performance per dollar of the network"
    assert ranking.lines[0]["design"].startswith("mfabric with rotornet")  # 1 / 8 s


@pytest.mark.parametrize("lacking", ["usd_per_million_tokens", "iteration_s", "model"])
def test_without_prices_other_columns_decide(lacking):
    for rows in (
        [one | {lacking: None} for one in ROWS],
        [{k: v for k, v in one.items() if k != lacking} for one in ROWS],
    ):
        (ranking,) = rankings(rows, {}).values()
        assert (ranking.by == "dollars a token") == (lacking != "usd_per_million_tokens")
    assert rankings([{"a": 1.0, "b": "x"}], {}) == {}


def test_several_set_ups_of_a_model_are_ranked():
    more = [
        one | {"model": "m:ep=8", "usd_per_million_tokens": (one["usd_per_million_tokens"] or 1) / 2} for one in ROWS
    ]
    *_, (model, ranking) = rankings([*ROWS, *more], {}).items()
    assert model == "m, of 2 set-ups"
    assert [(line["set-up"], line["over best"]) for line in ranking.lines] == [(":ep=8", ""), ("m", "+100.0%")]


def test_what_was_chosen_is_named_not_what_follows_from_it():
    rows = [
        {"model": "m", "fabric": "mfabric", "memory_gb": 1.5 * s, "sequence": s, "micro_batch": b}
        | {"iteration_s": 1.0 * b, "usd_per_million_tokens": 0.1 * s + b, "cluster_cost_usd": 1e6}
        for s in (1024, 4096)
        for b in (1, 2)
    ]
    ((_, every),) = designs(rows, {}).values()
    assert [one.choice for one in every[:2]] == ["sequence 1024, micro_batch 1", "sequence 1024, micro_batch 2"]


def test_the_table_holds_every_fabric_at_its_best_bandwidth_and_five_at_most():
    rows = synthetic.whole_clusters(synthetic.rows(fabrics=[*synthetic.FABRICS, *synthetic.MORE], models=["llama-moe"]))
    lines = rankings(rows, {})["llama-moe"].lines
    assert len(lines) == MOST
    for line in lines:
        own = [one for one in rows if line["design"].startswith(f"{one['fabric']}, ")]
        assert line["$/Mtok"] == min(one["usd_per_million_tokens"] for one in own)
    assert [line["$/Mtok"] for line in lines] == sorted(line["$/Mtok"] for line in lines)
    text = comparison(rows)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"^fat-tree, 400 Gbps +\+9\.4% ", text, re.M)
    # At 400 Gbps: 4.5 x 64 x 460 = 0.132 M$ of network and 50,000 x 64 more; 1.0945 s against 1.05325 s and 3.524 M$.
    table = [line.split() for line in text.splitlines() if line.startswith("mfabric ")]
    assert table[-1] == ["mfabric", "64", "0.00365", "3.33", "1.02x", "6.4", "0.132", "2.35x"]
    nvl72 = next(line.split() for line in text.splitlines() if line.startswith("nvl72 ") and line.endswith("-"))
    assert nvl72 == ["nvl72", "64", *"---", "6.4", *"--"]


def test_a_page_begins_with_the_ranking_and_does_not_repeat_it(tmp_path):
    made = synthetic.whole_clusters(synthetic.rows(models=("llama-moe",), bandwidths=(100, 400)))
    unknown = {"not_known": ["whole-cluster price: no price of GPU X."]}
    text = html_report(made, unknown, tmp_path / "a.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", text)[0] == "llama-moe: best by dollars a token"
    parts = ["Ranking", "Set-up", "Where the time goes", "Cost", "What would change the order"]
    beside = ["Whole-cluster cost against iteration time"]
    assert re.findall("<h3>(.*?)</h3>", text) == [*parts, *beside]
    assert "whole-cluster price: no price of GPU X." in text
    space = [one | {"delay_s": delay} for delay in (0.1, 0.2) for one in made]
    text = html_report(space, {"delay_s": "varies"}, tmp_path / "a.html").read_text()
    assert re.findall("<h3>(.*?)</h3>", text) == [*parts, *beside]
    assert "delay_s has no effect on iteration_s: 0.1, 0.2 give equal times where other settings are equal." in text
    without = [
        {name: value for name, value in one.items() if "cluster" not in name and "tokens" not in name} for one in space
    ]
    text = html_report(without, {}, tmp_path / "a.html").read_text()
    assert re.findall("<h3>(.*?)</h3>", text)[-1] == "Network cost against iteration time"


def test_designs_of_the_same_value_get_neither_an_error_nor_advice():
    """Two names of one network: nothing that is measured tells them apart."""
    rows = [row(name, "none", 400.0, None, 0.5, 8.0) for name in ("fat-tree", "rail-optimized")]
    rows += [row("torus", "none", 400.0, None, 0.9, 8.0)]
    (ranking,) = rankings(rows[:2], {}).values()
    same = "Equal by dollars a token: fat-tree, 400 Gbps; rail-optimized, 400 Gbps. The model gives them the same."
    assert ranking.conclusion == same
    assert ranking.lines[1]["over best"] == "+0.0% equal"
    assert not [line for line in ranking.remarks if line.startswith(("The error of", "To tell them apart"))]
    (three,) = rankings(rows, {}).values()
    assert [line for line in three.remarks if line.startswith("The error of +80.0%")]
