"""Tables and pictures of studies say what their rows say; how they look was judged by eye."""

import itertools
import math

from mfabric_jax.report import style
from mfabric_jax.report.drawing.drawn import figure
from mfabric_jax.report.figures.studies import failures_chart, forecasts_chart, steps_chart, training_chart
from mfabric_jax.report.memory import memory_chart
from mfabric_jax.report.tables import agreement, forecast_table, scoreboard_table

POLICIES, WORKLOADS = ("greedy", "index", "learned"), ("zipf", "dense")
KINDS = ("electrical-nic", "optical-nic", "gpu", "server")
MODELS = ("mixtral-8x22b", "deepseek-r1")


def failed(model, kind, slow_down, published=None):
    return {"model": model, "failure": kind, "slow_down": slow_down, "published": published}


def failed_rows():
    """Slow-downs that all differ, one of them below 0; some published."""
    return [
        failed(model, kind, 0.01 * (7 * m + k) - 0.02, 0.09 + 0.02 * k if m % 2 and not k % 3 else None)
        for (m, model), (k, kind) in itertools.product(enumerate(MODELS), enumerate(KINDS))
    ]


def scored(servers, routing, policy, workload, mean, sigma=0.0):
    proved = 4 if routing == "unsplit" else 0
    row = {"policy": policy, "workload": workload, "servers": servers, "routing": routing, "sigma": sigma}
    row |= {"mean": mean, "median": mean - 0.01, "p90": mean + 0.2, "proved": proved}
    return row | {"of_optimum": mean - 0.05 if proved else None, "decisions_per_s": 1000.0 * mean}


def board():
    axes = itertools.product((8, 16), ("unsplit", "relay"), POLICIES, WORKLOADS)
    return [scored(*place, 1.5 - 0.03 * number) for number, place in enumerate(axes)]


def forecast_rows():
    means = {"greedy": (1.2, 0.0, 0.0), "index": (1.1, 0.05, 0.15), "learned": (1.4, -0.3, -0.1)}
    return [
        {"workload": "drawn", "servers": 8, "routing": "relay", "policy": policy, "forecast": forecast}
        | {"over_bound": mean, "low": mean - 0.02, "high": mean + 0.02, "gain_low": low, "gain_high": high}
        for (policy, (mean, low, high)), forecast in itertools.product(means.items(), ("0", "0.3", "predicted"))
    ]


def test_a_bar_for_every_step_that_was_measured():
    errors = {"A": [("one", 0.25), ("two", -0.5), ("kept apart", None)], "B": [("three", 0.0)]}
    ends = {"measured_s": 2.0, "low_s": 1.0, "high_s": 3.0}
    rows = [{"gpu": gpu, "row": name, "error": error} | ends for gpu, own in errors.items() for name, error in own]
    (panel,) = steps_chart(rows).panels
    assert panel.names == ["one", "two", "three"]
    assert [(bar.start, bar.end, bar.look.label) for bar in panel.bars] == [
        (0.0, 0.25, "A"),
        (-0.5, 0.0, "A"),
        (0.0, 0.0, "B"),
    ]
    assert panel.totals == [(0.25, "+25.0%"), (0.0, "-50.0%"), (0.0, "+0.0%")]
    assert panel.spread == dict.fromkeys(range(3), (-0.5, 0.5))


def test_a_bar_for_every_failure_and_a_diamond_where_a_figure_is_published():
    chart = failures_chart(failed_rows())
    assert [panel.title for panel in chart.panels] == list(MODELS)
    for panel in chart.panels:
        own = [row for row in failed_rows() if row["model"] == panel.title]
        assert panel.names == list(KINDS)
        assert [bar.end + bar.start for bar in panel.bars] == [row["slow_down"] for row in own]
        assert [bar.row for bar in panel.bars] == [*range(len(own))]
        assert [text for _, text in panel.totals] == [f"{row['slow_down']:+.1%}" for row in own]
        assert panel.points == [(r["published"], n) for n, r in enumerate(own) if r["published"] is not None]
    assert [look.label for look in chart.key] == ["simulated", "published (arXiv 2501.03905)"]
    assert not failures_chart([row | {"published": None} for row in failed_rows()]).key
    gap = failures_chart([failed("a", "gpu", 0.0), failed("b", "gpu", 0.2, 0.0), failed("b", "link", 0.3)])
    assert [[bar.row for bar in panel.bars] for panel in gap.panels] == [[0], [0, 1]]
    assert gap.panels[1].points == [(0.0, 0)]  # a published nothing is a figure too
    assert gap.panels[0].totals == [(0.0, "+0.0%"), (0.0, "none here")]
    small = figure(failures_chart([failed("a", "gpu", 0.015), failed("b", "gpu", 0.8), failed("b", "link", -0.1)]))
    one, other = (axes.get_xlim() for axes in small.axes[:2])  # of one scale
    assert one == other
    assert one[0] < -0.1 < 0.8 < one[1]


def test_a_scoreboard_has_a_block_for_every_place():
    *blocks, legend = scoreboard_table(board()).split("\n\n")
    assert [block.splitlines()[0] for block in blocks] == [
        f"{servers} servers, routing {routing}, forecast error 0"
        for servers, routing in itertools.product((8, 16), ("unsplit", "relay"))
    ]
    head, line = blocks[0].splitlines()[1], blocks[0].splitlines()[3]
    assert head.split() == ["policy", "mean", "median", "p90", "zipf", "dense", "optimum", "decisions/s"]
    # The last policy has the least means: 1.5 - 0.03 * 4 and - 0.03 * 5; speed is the geometric mean.
    speed = f"{1000 * math.sqrt(1.38 * 1.35):.0f}"
    assert line.split() == ["learned", "1.365", "1.355", "1.565", "1.38", "1.35", "1.315", "(8)", speed]
    assert "optimum" not in blocks[1].splitlines()[1]
    assert "proved" in legend


def test_forecasts_are_marked_where_they_surely_differ_and_have_their_lines():
    head, names, _, *lines = forecast_table(forecast_rows()).split("\n\n")[0].splitlines()
    assert head == "drawn, 8 servers, routing relay"
    assert names.split() == ["policy", "0", "0.3", "predicted"]
    cells = {line.split()[0]: line.split(maxsplit=1)[1].split("  ")[0].strip() for line in lines}
    assert cells == {"greedy": "1.2 +-0.02", "index": "1.1 +-0.02*+", "learned": "1.4 +-0.02 -"}
    (panel,) = forecasts_chart(forecast_rows()).panels
    assert panel.columns == ["0", "0.3", "predicted"]
    values = [[value for _, value in curve.points] for curve in panel.curves]
    assert values == [[v] * n for v in (1.2, 1.1, 1.4) for n in (2, 1)]  # predicted apart
    assert panel.curves[0].spread == [(1.18, 1.22)] * 2
    lines = [{"step": 0, "held_out_8": 1.3}, {"step": 50, "time": 1.2}, {"step": 100, "time": 1.1, "held_out_8": 1.05}]
    chart = training_chart(lines)
    assert [curve.points for curve in chart.panels[0].curves] == [[(50, 1.2), (100, 1.1)], [(0, 1.3), (100, 1.05)]]
    assert [look.label for look in chart.key] == ["in training", "held out, 8 servers"]


# -- flow level against packet level


def packet_run(group, pattern, measured_s, error, **changed):
    hosts = "leaf-spine, 8 hosts (2 spines)" if group == "leaf-spine" else "tree, 8 hosts (k=4)"
    row = {"run": pattern, "group": group, "pattern": pattern, "flows": 12, "mean_pair_mib": 4.0, "large_flows": 5}
    row |= {
        "topology": hosts,
        "paths_known": group == "one-path",
        "transport": "dctcp" if group == "one-path" else "ndp",
    }
    row |= {"routing": "ECMP" if group in ("one-path", "unknown-path") else "spraying"}
    row |= {"measured_s": measured_s, "predicted_s": measured_s * (1 + error), "error": error}
    row |= {"stated_fluid_s": measured_s, "flow_error_median": 0.06, "flow_error_p90": 0.2}
    row |= {"corrected_by": "none", "corrected_s": row["predicted_s"], "corrected_error": error}
    row |= {"corrected_flow_error_median": row["flow_error_median"], "corrected_flow_error_p90": 0.2}
    return row | dict(zip(QUANTILES, (-0.3, -0.1, -0.05, 0.0, 0.1), strict=True)) | changed


QUANTILES = [f"flow_error_q{quantile}" for quantile in ("05", "25", "50", "75", "95")]


def packet_runs():
    small = dict.fromkeys([*QUANTILES, "flow_error_median", "flow_error_p90", "stated_fluid_s"])
    small |= dict.fromkeys(["corrected_flow_error_median", "corrected_flow_error_p90"])
    return [
        packet_run("spraying", "uniform", 0.005, -0.02),
        packet_run("spraying", "small", 0.001, -0.04, large_flows=0, **small),
        packet_run("one-path", "row", 0.012, -0.17),
        packet_run("unknown-path", "hot", 0.02, -0.3),
        packet_run("leaf-spine", "hot", 0.03, 0.01),
        packet_run("incast", "8 to 1", 0.011, -0.01),
    ]


def packet_group(name, transport="ndp"):
    plain = {"error_mean": 0.03, "error_p90": 0.035, "worst_error": -0.04, "worst_pattern": "small"}
    plain |= {"flow_error_median": 0.06, "flow_error_p90": 0.2}
    row = {"group": name, "transport": transport, "runs": 2, "large_flows": 5} | plain
    return row | {f"corrected_{key}": value if isinstance(value, str) else value / 10 for key, value in plain.items()}


def test_the_table_has_a_block_for_each_group_and_a_line_for_each_run():
    made = packet_runs()
    made[2] |= {"corrected_by": "dctcp", "corrected_s": 0.0114, "corrected_error": -0.05}
    made[2] |= {"corrected_flow_error_median": 0.01, "corrected_flow_error_p90": 0.1}
    lines = agreement(made, [packet_group("spraying"), packet_group("incast", "dctcp")]).splitlines()
    for heading in ("spraying on a non-blocking tree, ndp", "one path per flow on a non-blocking tree, dctcp"):
        assert heading in lines
    assert {
        "(tree, 8 hosts, sprayed; corrected by: none)",
        "(leaf-spine, 8 hosts, sprayed; corrected by: none)",
    } <= set(lines)
    found = [line.split() for line in lines]
    assert ["row", "4", "12", "9.96", "-17.0%", "11.4", "-5.0%", "1.0%", "10.0%"] in found
    assert ["small", "4", "1", "0.96", "-4.0%", "0.96", "-4.0%", "-", "-"] in found
    for words in (
        ["spraying", "ndp", "plain", "2", "3.0%", "3.5%", "-4.0%", "small", "5"],
        ["incast", "dctcp", "corrected", "2", "0.3%", "0.4%", "-0.4%", "small", "5"],
    ):
        assert any(line[: len(words)] == words for line in found)
    assert lines[-1] == "5 of 6 files state their own fluid time; the largest difference is 30.0%."
    assert max(map(len, lines)) <= 100
    assert "state a fluid" not in agreement([packet_run("incast", "8 to 1", 1.0, 0.0, stated_fluid_s=None)], [])


def test_parts_of_memory_stand_end_to_end_and_what_is_too_much_says_so():
    sizes = dict(zip(style.MEMORY, (10.0, 20.0, 0.0, 5.0, 30.0, 0.0, 1.0), strict=True))
    row = {"row": "fits", "memory_gb": 66.0, "gpu_memory_gb": 80.0, "fits": True} | sizes
    large = row | {"row": "does not", "memory_inner_gb": 60.0, "memory_gb": 96.0, "fits": False}
    (panel,) = memory_chart([row, large, row | {"row": "unknown", "gpu_memory_gb": None, "fits": None}]).panels
    first = [(bar.start, bar.end) for bar in panel.bars if bar.row == 0]
    assert first == [
        (0.0, 10.0),
        (10.0, 30.0),
        (30.0, 35.0),
        (35.0, 65.0),
        (65.0, 66.0),
    ]  # parts of nothing are no bars
    assert panel.totals == [(80.0, "66 of 80 GB"), (96.0, "96 of 80 GB, too much"), (66.0, "66 GB")]
    assert panel.curves[0].points == [(80.0, 0), (80.0, 1)]


def test_failures_that_differ_in_a_setting_have_panels_of_their_own():
    """A bandwidth, a policy or a graph that rows differ in names its panel; no row is lost."""
    rows = [
        {"model": "m", "fabric": fabric, "network.graph": graph, "failure": "link", "nic_gbps": gbps, "slow_down": slow}
        for fabric, graph, gbps, slow in (
            ("graph", "a.json", 100.0, 0.1),
            ("graph", "a.json", 400.0, 0.2),
            ("graph", "b.json", 100.0, 0.3),
            ("fat-tree", None, 100.0, 0.4),
        )
    ]
    chart = failures_chart(rows)
    assert [panel.title for panel in chart.panels] == [
        "m on graph a, nic_gbps 100",
        "m on graph a, nic_gbps 400",
        "m on graph b, nic_gbps 100",
        "m on fat-tree, nic_gbps 100",
    ]
    assert [bar.end for panel in chart.panels for bar in panel.bars] == [0.1, 0.2, 0.3, 0.4]
