"""Charts show what the rows say, on scales that fit; how they look was judged by eye."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from mfabric_jax.fabric import NAMES, get
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.report.compared import ENERGY, PRICE, TIME_OF, against_bandwidth, cost_against_time, parts
from mfabric_jax.report.drawing import drawn, paper
from mfabric_jax.report.grid import arrange, setting_name
from mfabric_jax.report.html.colours import PAPER, contrast, hue, on_dark
from mfabric_jax.report.html.panels import entry
from mfabric_jax.report.memory import memory_of_models
from mfabric_jax.report.ranking import rankings
from tests.report import synthetic

ONE = {"models": ("llama-moe",)}
DOLLARS = {"model": "$a$_b^2"}


def on_axes(panel):
    """Axes with a panel on them."""
    with paper.look():
        axes = paper.blank(5, 4, arranged=False).add_axes((0.1, 0.1, 0.8, 0.8))
        drawn.draw_panel(axes, panel)
    return axes


def points(panel):
    return {(curve.look.label, point) for curve in panel.curves for point in curve.points}


def test_a_point_for_every_row_in_the_look_of_its_fabric():
    rows = synthetic.both_uses(fabrics=("fat-tree", "mfabric", "nvl72"))
    rows[0] = rows[0] | {"iteration_s": float("inf")}  # no point
    chart = against_bandwidth(arrange(rows), TIME_OF)
    assert [panel.title for panel in chart.panels] == list(synthetic.MODELS)
    labels = {("mfabric", "own"): "mFabric, own", ("mfabric", "pooled"): "mFabric, pooled"}
    labels |= {("fat-tree", "own"): "Fat-tree", ("nvl72", "own"): "NVL72"}
    for model, panel in zip(synthetic.MODELS, chart.panels, strict=True):
        assert points(panel) == {
            (labels[row["fabric"], row["nic_use"]], (row["nic_gbps"], row["iteration_s"]))
            for row in rows
            if row["model"] == model and row is not rows[0]
        }
    colours = {look.label: (look.colour, look.hollow) for look in chart.key}
    assert (colours["mFabric, own"], colours["mFabric, pooled"]) == (("#D55E00", False), ("#D55E00", True))


def test_cost_and_worth_show_priced_points_and_their_front_and_name_the_others():
    rows = synthetic.whole_clusters(synthetic.rows(fabrics=("fat-tree", "mfabric", "nvl72"), **ONE))
    price, energy = (against_bandwidth(arrange(rows), measure) for measure in (PRICE, ENERGY))
    wanted = {r["nic_gbps"]: r["usd_per_million_tokens"] for r in rows if r["fabric"] == "mfabric"}
    assert dict(price.panels[0].curves[1].points) == wanted
    assert energy.panels[0].curves[0].points[0] == (100, rows[0]["joules_per_million_tokens"] / 1000)
    assert "Not drawn for lack of dollars a million tokens: NVL72." in price.note
    assert [look.label for look in price.key] == ["Fat-tree", "mFabric"]
    chart = cost_against_time(arrange(rows))
    assert chart.note.endswith(f"Not shown: {len(rows) // 3} of {len(rows)} designs (no price: NVL72).")
    (panel,) = chart.panels
    found = {point for _, point in points(panel)}
    assert found == {(r["network_cost_usd"] / 1e6, r["iteration_s"]) for r in rows if r["fabric"] != "nvl72"}
    corners = on_axes(panel).get_lines()[0].get_data()
    assert np.all((np.diff(corners[0]) == 0) | (np.diff(corners[1]) == 0))
    best = {p for p in found if not any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in found)}
    assert best <= set(zip(*corners, strict=True))
    assert all(any(x <= p[0] and y <= p[1] for x, y in zip(*corners, strict=True)) for p in found)


def test_one_bandwidth_is_shown_as_bars_the_best_first():
    rows = synthetic.whole_clusters(synthetic.rows(bandwidths=(400,), **ONE))
    chart = against_bandwidth(arrange(rows), PRICE)
    (panel,) = chart.panels
    ranked = sorted(rows, key=lambda row: row["usd_per_million_tokens"])
    assert panel.names == [style.FABRICS[row["fabric"]].label for row in ranked]
    assert [bar.end for bar in panel.bars] == [row["usd_per_million_tokens"] for row in ranked]
    assert (chart.title, chart.key, panel.curves) == ("Price of tokens at 400 Gbps", [], ())


def test_parts_follow_each_other_and_say_their_share():
    seconds = {"compute_s": 4.0, "tp_comm_s": 0.0, "ep_comm_s": 3.0}
    seconds |= {"dp_comm_s": 1.0, "reconfig_s": 0.5, "bubble_s": 1.5}
    rows = [
        {"model": "m", "fabric": f, "nic_gbps": g, "iteration_s": 10.0, **seconds}
        for f in ("fat-tree", "nvl72")
        for g in (100, 400)
    ]
    rows[1] |= {"iteration_s": 8.0, "compute_s": 2.0}
    chart = parts(arrange(rows))
    (panel,), (other,) = chart.panels, chart.folded["At 100 Gbps"]
    assert (panel.names, other.names) == (["Fat-tree", "NVL72"],) * 2
    second = [bar for bar in panel.bars if bar.row == 1]
    ends = np.cumsum([value for value in seconds.values() if value])
    assert [bar.end for bar in second] == pytest.approx(ends)
    assert [bar.start for bar in second] == pytest.approx([0, *ends[:-1]])
    assert second[1].tip == "NVL72, 400 Gbps: EP communication 3 s, 30.0%"
    assert [text for _, text in panel.totals] == ["8 (1)", "10 (1.25)"]  # the fat-tree takes 8 s at 400 Gbps
    bars = [(bar.get_x(), bar.get_width(), to_hex(bar.get_facecolor()).upper()) for bar in on_axes(panel).patches]
    assert bars == [(bar.start, pytest.approx(bar.end - bar.start), bar.look.colour.upper()) for bar in panel.bars]


def test_scales_span_their_values_and_are_logarithmic_where_these_lie_far_apart():
    cases = [
        ([2, 9], "linear", (0, 9.56)),
        ([90, 100], "linear", (89.2, 100.8)),
        ([1, 100], "log", (1 / 100**0.07, 100 * 100**0.07)),
        ([0, 0], "linear", (0, 1)),
        ([-3, -1], "linear", (-3.16, -0.84)),
    ]
    for values, kind, limits in cases:
        axes = on_axes(Panel("", "x", "y", [Curve(style.fabric("mfabric"), [(1, v) for v in values], ["", ""])]))
        assert (axes.get_yscale(), axes.get_ylim()) == (kind, pytest.approx(limits)), values
    log = on_axes(Panel("", "x", "y", [Curve(style.fabric("mfabric"), [(100, 1), (200, 2), (800, 30)], [""] * 3)]))
    assert (log.get_xscale(), log.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in log.get_xticklabels()] == ["100", "200", "800"]


def test_series_are_told_apart():
    """An unknown fabric has a free look under its own name; further series of a fabric are hollow or lighter."""
    looks = style.distinct_looks(["mfabric", "butterfly", "fat-tree"])
    assert (looks["mfabric"].label, looks["butterfly"].label) == ("mFabric", "butterfly")
    assert len({look.colour for look in looks.values()}) == 3
    every = [row | {"ocs": ocs} for ocs in "abcd" for row in synthetic.rows(fabrics=("mfabric",), **ONE)]
    shades = list(style.series_looks(arrange(every).series).values())
    assert [look.label for look in shades] == ["mFabric, a", "mFabric, b", "mFabric, c", "mFabric, d"]
    assert len({(look.colour, look.hollow) for look in shades}) == 4


def test_a_label_calls_a_setting_by_what_says_something():
    rows = [
        row | {"gpu.name": gpu} for gpu in ("H100-SXM", "B200") for row in synthetic.rows(fabrics=["topoopt"], **ONE)
    ]
    assert [series.settings for series in arrange(rows).series] == [("gpu H100-SXM",), ("gpu B200",)]
    paths = ("circuits.span.length", "network.mfabric.optical_degree", "gpu.name", "name")
    assert [*map(setting_name, paths)] == ["span", "optical_degree", "gpu", "name"]


def test_memory_has_a_bar_for_every_set_up():
    sizes = dict.fromkeys(style.MEMORY, 1.0) | {"memory_gb": 7.0, "gpu_memory_gb": 80.0}
    one = synthetic.rows(fabrics=["fat-tree", "mfabric"], bandwidths=(100,), **ONE)
    every = [(gpu, tp) for gpu in ("H100-SXM", "H200-SXM", "B200-HGX") for tp in range(1, 6)]
    rows = [row | sizes | {"gpu.name": gpu, "tp": tp, "job.parallel.tp": tp} for gpu, tp in every for row in one]
    labels = [f"llama-moe, {gpu}, tp {tp}" for gpu, tp in every]
    chart = memory_of_models(arrange(rows))
    assert [panel.names for panel in chart.panels] == [labels[:12]]
    assert chart.note.endswith(f"Not shown: 3 more set-ups ({'; '.join(labels[12:])}).")


def test_colours_can_be_seen_in_both_themes():
    for look in [*style.FABRICS.values(), *style.PARTS.values()]:
        assert contrast(on_dark(look.colour), PAPER["dark"]) >= 4
        if contrast(look.colour, PAPER["dark"]) >= 4:
            assert on_dark(look.colour) == look.colour
        own = look.colour.lower()
        assert hue(look.colour) == (f"light-dark({own}, {on_dark(own)})" if own != style.PAPER else "var(--paper)")
        assert style.ink_on(own) == style.PAPER or contrast(style.ink_on(own), own) > 4
    assert contrast("#000000", "#FFFFFF") == pytest.approx(21)
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)  # the lightest grey that may be text


def test_names_are_no_formulas_and_nothing_is_still_a_figure():
    assert drawn.figure(cost_against_time(arrange(synthetic.rows(fabrics=("nvl72",), **ONE)))).axes  # no price
    figure = drawn.figure(
        against_bandwidth(arrange([synthetic.row("llama-moe", "mfabric", g) | DOLLARS for g in (100, 400)]), TIME_OF)
    )
    axes = figure.axes[0]
    assert axes.get_title(loc="left") == "$a$_b^2"
    assert not axes.xaxis.label.get_parse_math()
    for panels in ([], [Panel("m", "x")]):
        assert drawn.figure(Chart("t", "n", [], panels)).axes[0].texts[0].get_text() == "no result"


def test_every_fabric_has_a_glyph_on_the_page():
    for name in (*NAMES, "graph"):
        label, colour, marker = get(name).about.look
        for hollow in (False, True):
            assert label in entry(style.Look(label, colour, marker, hollow=hollow), bars=False)


def test_charts_of_cost_count_rows_without_a_point_and_no_empty_cells():
    rows = synthetic.rows(fabrics=("fat-tree", "mfabric"), **ONE)
    rows = rows[1:]  # a fat-tree at one bandwidth less: no row, nothing to count
    assert "Not shown" not in cost_against_time(arrange(rows)).note
    rows[0] = rows[0] | {"network_cost_usd": None}
    rows[-1] = rows[-1] | {"iteration_s": None}
    said = f"Not shown: 2 of {len(rows)} designs (no price: Fat-tree; no time: mFabric)."
    assert cost_against_time(arrange(rows)).note.endswith(said)


def test_graphs_are_told_apart_by_the_names_of_their_files():
    def named(*files):
        rows = [row | {"network.graph": file} for file in files for row in synthetic.rows(fabrics=("fat-tree",), **ONE)]
        rows = [row | {"fabric": "graph", "iteration_s": row["iteration_s"] + place} for place, row in enumerate(rows)]
        (ranking,) = rankings(rows, {}).values() if len(files) > 1 else [None]
        ranked = [] if ranking is None else sorted({line["design"].split(",")[0] for line in ranking.lines})
        series = [one.label(one.fabric) for one in arrange(rows).series]
        assert ranking is None or ranked == series
        return series

    assert named("some/where/ring.json", "star.json") == ["graph ring", "graph star"]
    assert named("a/ring.json", "b/ring.json") == ["graph a/ring.json", "graph b/ring.json"]
    assert named("ring.json") == ["graph ring"]
