"""Which fabric is worth its money: the whole cluster's dollars come first, in the table, the page and its charts."""

import re

from mfabric_jax.report import comparison, html_report
from mfabric_jax.report.grid import arrange
from mfabric_jax.report.ranking import by_worth, headlines
from tests.report import synthetic

# Three fabrics at one bandwidth: time, network dollars, cluster dollars.
THREE = {"fat-tree": (1.0, 10.0, 40.0), "topoopt": (1.39, 2.12, 32.12), "mfabric": (1.05, 5.0, 35.0)}


def rows(**changed):
    found = []
    for name, (seconds, network, cluster) in THREE.items():
        row = {"model": "m", "fabric": name, "nic_gbps": 400, "iteration_s": seconds, "network_cost_usd": network}
        row |= {"cluster_cost_usd": cluster, "perf_per_dollar": 1 / seconds / network}
        row |= {"perf_per_cluster_dollar": 1 / seconds / cluster, "usd_per_million_tokens": seconds * cluster / 1000}
        row |= dict.fromkeys(("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s"), 0.1)
        found.append(row | changed)
    return found


def test_the_order_turns_where_the_whole_cluster_is_paid_for():
    grid = arrange(rows())
    assert [one.series.fabric for one in by_worth(grid, "m", "perf_per_dollar")] == ["topoopt", "mfabric", "fat-tree"]
    order = [one.series.fabric for one in by_worth(grid, "m", "perf_per_cluster_dollar")]
    assert order == ["mfabric", "fat-tree", "topoopt"]
    whole, network = headlines(grid, "m", lambda series: series.fabric)
    # 36.75 of mFabric, 40 of the fat-tree, 44.65 of TopoOpt: 8.1 % and 17.7 % less.
    assert whole == (
        "Most per dollar of the whole cluster: mfabric at 400 Gbps, 0.0367 $ a million tokens, 1.09 times the "
        "fat-tree's there; then fat-tree at 400 Gbps (8.1% less); topoopt at 400 Gbps (17.7% less)."
    )
    assert network.startswith("Most per dollar of the network: topoopt at 400 Gbps, 3.39 times the fat-tree's there;")


def test_what_does_not_fit_is_never_ranked(tmp_path):
    some = [row | {"fits": row["fabric"] != "mfabric"} for row in rows()]
    for line in headlines(arrange(some), "m", lambda series: series.fabric):
        assert line.endswith("Too large for its GPUs: mfabric.")
        assert "mfabric at" not in line
    none = rows(fits=False)
    (line,) = headlines(arrange(none), "m", lambda series: series.fabric)
    assert line == "No ranking: its set-ups do not fit the memory of their GPUs."
    page = html_report(none, {}, tmp_path / "a.html").read_text()
    assert line in page
    assert "Shortest iteration" not in page
    space = [row | {"delay_s": delay} for delay in (0.1, 0.2) for row in none]
    page = html_report(space, {"delay_s": "varies"}, tmp_path / "b.html").read_text()
    assert "Not counted: 6 rows that do not fit the memory of their GPUs." in page
    assert "most performance per dollar" not in page


def test_dollars_of_gpus_that_compute_above_their_peak_are_not_ranked():
    empty = {"perf_per_cluster_dollar": None, "usd_per_million_tokens": None, "achieved_over_peak": 2.9}
    grid = arrange(rows(**empty))
    whole, network = headlines(grid, "m", lambda series: series.fabric)
    said = "it computes at 290% of the peak of the GPU that would be paid for"
    assert whole == f"No ranking by dollars of the whole cluster: {said}."
    assert network.startswith("Most per dollar of the network: topoopt")


def test_every_series_stands_once_at_its_best_bandwidth():
    both = synthetic.whole_clusters(synthetic.rows(models=("llama-moe",)), usd_per_gpu=1_000)
    for place in by_worth(arrange(both), "llama-moe", "perf_per_cluster_dollar"):
        own = {r["nic_gbps"]: r["perf_per_cluster_dollar"] for r in both if r["fabric"] == place.series.fabric}
        assert own[place.gbps] == place.worth == max(own.values())


def test_the_table_shows_both_kinds_of_dollars():
    made = synthetic.whole_clusters(synthetic.rows(models=("llama-moe",), fabrics=("fat-tree", "mfabric", "nvl72")))
    text = comparison(made)
    assert max(map(len, text.splitlines())) <= 100
    head = " ".join(text.split())
    assert head.index("Most per dollar of the whole cluster") < head.index("Most per dollar of the network")
    lines = [line.split() for line in text.splitlines() if line.startswith("mfabric ")]
    # At 400 Gbps: 4.5 x 64 x 460 = 0.132 M$ of network and 50,000 x 64 more; 1.0945 s against 1.05325 s and 3.524 M$.
    assert lines[-1] == ["mfabric", "64.0", "0.00365", "3.33", "1.02x", "6.40", "0.132", "2.35x"]
    (nvl72,) = (line.split() for line in text.splitlines() if line.startswith("nvl72 ") and line.endswith("-"))
    assert nvl72 == ["nvl72", "64.0", *"---", "6.40", *"--"]


def test_the_page_begins_with_whole_cluster_dollars(tmp_path):
    made = synthetic.whole_clusters(synthetic.rows(models=("llama-moe",), bandwidths=(100, 400)))
    text = html_report(
        made, {"not_known": ["whole-cluster price: no price of GPU X."]}, tmp_path / "a.html"
    ).read_text()
    assert [*re.findall("<h3>(.*?)</h3>", text)][:2] == [
        "Whole-cluster cost against iteration time",
        "Performance per whole-cluster dollar",
    ]
    assert "Most per dollar of the whole cluster: " in text
    assert "whole-cluster price: no price of GPU X." in text


def test_a_design_space_is_drawn_in_whole_cluster_dollars_where_they_are_known(tmp_path):
    made = [row | {"delay_s": delay} for delay in (0.1, 0.2) for row in rows()]
    text = html_report(made, {"delay_s": "varies"}, tmp_path / "a.html").read_text()
    first = ["What a token costs", "Whole-cluster cost against iteration time"]
    assert re.findall("<h3>(.*?)</h3>", text)[:2] == first
    assert "delay_s has no effect on iteration_s: 0.1, 0.2 give the same wherever all else is equal." in text
    without = [{name: value for name, value in row.items() if "cluster" not in name} for row in made]
    text = html_report(without, {}, tmp_path / "a.html").read_text()
    assert re.findall("<h3>(.*?)</h3>", text)[0] == "Network cost against iteration time"
