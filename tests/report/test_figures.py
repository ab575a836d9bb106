"""The figures show what the rows say; how they look was judged by eye."""

import itertools
import os

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import figures, style
from mfabric_jax.report.figures import block_timeline, breakdown, callouts, iteration_time, pareto, region
from mfabric_jax.report.figures.block_timeline import build as build_timeline
from mfabric_jax.report.figures.breakdown import build as build_breakdown
from mfabric_jax.report.figures.iteration_time import build as build_iteration_time
from mfabric_jax.report.figures.pareto import build as build_pareto
from mfabric_jax.report.figures.pareto import front
from mfabric_jax.report.figures.region import build as build_region
from tests.report import synthetic

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_a_bar_for_every_row_from_zero_in_the_colour_of_its_fabric():
    figure = build_iteration_time(synthetic.rows())
    panels = [axes for axes in figure.axes if axes.get_title(loc="left")]
    assert [axes.get_title(loc="left") for axes in panels] == list(synthetic.MODELS)
    for model, axes in zip(synthetic.MODELS, panels, strict=True):
        got = {(to_hex(b.get_facecolor()).upper(), round(b.get_x() + b.get_width() / 2)): b for b in bars(axes)}
        assert len(bars(axes)) == len(got) == 16
        assert axes.get_ylim()[0] == 0
        for fabric, (group, gbps) in itertools.product(synthetic.FABRICS, enumerate(synthetic.BANDWIDTHS)):
            bar = got[style.FABRICS[fabric].colour.upper(), group]
            assert bar.get_y() == 0
            assert bar.get_height() == synthetic.row(model, fabric, gbps)["iteration_s"]
        assert len(texts(axes)) == 16


def test_uses_of_the_nics_differ_by_hatch_and_thin_bars_carry_no_numbers():
    figure = build_iteration_time(synthetic.both_uses(fabrics=[*synthetic.FABRICS, *synthetic.MORE]))
    panel = figure.axes[0]
    own = [bar for bar in bars(panel) if to_hex(bar.get_facecolor()).upper() == style.FABRICS["mfabric"].colour]
    assert sorted(bar.get_hatch() or "" for bar in own) == [""] * 4 + ["///"] * 4
    assert len(bars(panel)) == 36
    assert not texts(panel)
    assert "mFabric, pooled" in [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]


def test_a_time_that_is_not_finite_is_no_bar():
    rows = synthetic.rows(models=["llama-moe"])
    rows[0] = {**rows[0], "iteration_s": float("inf")}
    assert len(bars(build_iteration_time(rows).axes[0])) == 15


@pytest.mark.parametrize("seed", range(20))
def test_front_agrees_with_brute_force(seed):
    random = np.random.default_rng(seed)
    points = [tuple(map(float, p)) for p in random.integers(0, 8, (30, 2))]

    def beaten(p):
        return any(q[0] <= p[0] and q[1] <= p[1] and q != p for q in points)

    assert front(points) == sorted({p for p in points if not beaten(p)})


def test_pareto_shows_priced_points_and_names_the_others():
    figure = build_pareto(synthetic.rows(fabrics=("fat-tree", "mfabric", "nvl72")))
    panel = figure.axes[0]
    *lines, stairs = panel.get_lines()
    points = {tuple(xy) for line in lines for xy in line.get_xydata()}
    cells = itertools.product(("fat-tree", "mfabric"), synthetic.BANDWIDTHS)
    rows = [synthetic.row("mixtral-8x22b", fabric, gbps) for fabric, gbps in cells]
    assert points == {(row["network_cost_usd"] / 1e6, row["iteration_s"]) for row in rows}
    assert "left out: NVL72" in figure.get_suptitle()
    assert set(texts(panel)) == {"100", "200", "400", "800"}
    corners = stairs.get_xydata()
    assert np.all((np.diff(corners[:, 0]) == 0) | (np.diff(corners[:, 1]) == 0))
    assert all(any(x <= p[0] and y <= p[1] for x, y in corners) for p in points)


def test_pareto_of_nothing_priced_is_still_a_figure(tmp_path):
    assert pareto(synthetic.rows(fabrics=("nvl72",)), tmp_path / "p.png").exists()


def test_breakdown_stacks_the_parts_in_units_of_the_fat_tree():
    figure = build_breakdown(synthetic.rows(), 400)
    for model, axes in zip(synthetic.MODELS, figure.axes, strict=False):
        unit = synthetic.row(model, "fat-tree", 400)["iteration_s"]
        for place, fabric in enumerate(synthetic.FABRICS):
            row = synthetic.row(model, fabric, 400)
            stack = [bar for bar in bars(axes) if abs(bar.get_y() + bar.get_height() / 2 - place) < 1e-6]
            wanted = [row[key] / unit for key in style.PARTS if row[key] > 0]
            assert [bar.get_width() for bar in stack] == pytest.approx(wanted)
            assert stack[-1].get_x() + stack[-1].get_width() == pytest.approx(row["iteration_s"] / unit)
            assert f"{row['iteration_s'] / unit:.2f}" in texts(axes)


def test_breakdown_says_what_it_is_relative_to_and_which_bandwidths_there_are():
    axes = build_breakdown(synthetic.rows(fabrics=("mfabric", "topoopt")), 100).axes[0]
    assert axes.get_xlabel() == "iteration time [mFabric = 1]"
    with pytest.raises(InputError, match=r"nic_gbps 300 is not in the rows; allowed: 100, 200, 400, 800\."):
        build_breakdown(synthetic.rows(), 300)


@pytest.mark.parametrize("servers", [2, 3, 8, 16, 20])
def test_region_draws_a_number_per_demand_and_a_line_per_joined_pair(servers):
    demand, circuits = synthetic.region(servers)
    heat, graph, *_ = build_region(demand, circuits, "title").axes
    assert len(texts(heat)) == (servers * (servers - 1) if servers <= 16 else 0)
    lines = [patch for patch in graph.patches if isinstance(patch, FancyArrowPatch)]
    joined = np.triu(circuits)[np.triu(circuits) > 0]
    assert len(lines) == len(joined)
    names = [str(i) for i in range(servers)]
    shown = texts(graph)
    assert sorted(t for t in shown if t != "EPS") == sorted(names + [str(n) for n in joined if n != 1])
    apart = (demand + demand.T > 0) & (circuits == 0) & ~np.eye(servers, dtype=bool)
    assert ("EPS" in shown) == (bool(apart.any()) and servers <= 16)
    spokes = [line for line in graph.get_lines() if line.is_dashed()]
    assert len(spokes) == (apart.any(axis=1).sum() if servers <= 16 else 0)
    assert graph.get_title().startswith(f"{joined.sum()} circuits")


def test_region_ignores_diagonals_and_leaves_its_arguments_alone():
    demand, circuits = np.full((2, 2), 5e9), np.array([[9, 1], [1, 9]])
    heat, graph, *_ = build_region(demand, circuits, servers=["left", "right"]).axes
    assert texts(heat) == ["5.00", "5.00"]
    assert graph.get_title() == "1 circuit, 100% of the bytes between joined pairs"
    assert demand[0, 0] == 5e9
    assert circuits[0, 0] == 9


@pytest.mark.parametrize("value", [0.0, 1.0, 1e13])
def test_region_of_no_demand_or_no_circuits_is_still_a_figure(tmp_path, value):
    assert region(np.full((4, 4), value), np.zeros((4, 4), int), tmp_path / "r.png").exists()


def test_timeline_of_very_many_or_empty_segments_is_still_a_figure(tmp_path):
    tiny = [
        {"track": "network", "label": f"piece {i}", "start_s": i / 50, "end_s": (i + i % 3) / 50, "kind": "other"}
        for i in range(200)
    ]
    assert block_timeline(tiny, tmp_path / "t.png").exists()
    assert block_timeline(tiny[:1], tmp_path / "t.png").exists()


def test_region_refuses_what_does_not_fit(tmp_path):
    with pytest.raises(InputError, match="circuits must have the shape"):
        region(np.ones((3, 3)), np.ones((2, 2)), tmp_path / "r.png")
    with pytest.raises(InputError, match="square matrix"):
        region(np.ones(3), np.ones(3), tmp_path / "r.png")
    with pytest.raises(InputError, match="must name all 3 servers"):
        region(np.ones((3, 3)), np.ones((3, 3)), tmp_path / "r.png", servers=["a"])


def test_timeline_has_a_bar_for_every_segment_and_names_all_of_them():
    segments = synthetic.segments()
    figure = build_timeline(segments, "title")
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "network", "reconfiguration"]
    per_inch = 0.288 / 11.2
    got = sorted((bar.get_x() * per_inch, (bar.get_x() + bar.get_width()) * per_inch) for bar in bars(axes))
    np.testing.assert_allclose(got, sorted((s["start_s"], s["end_s"]) for s in segments), atol=1e-12)
    labels = [s["label"].removeprefix("forward ").removeprefix("backward ") for s in segments]
    assert sorted(filter(None, texts(axes))) == sorted([*labels, "forward", "backward"])
    kinds = [text.get_text() for text in figure.legends[0].get_texts()]
    assert kinds == ["Attention", "Experts", "All-to-all", "TP communication", "Reconfiguration"]


def test_bars_of_one_track_that_overlap_in_time_lie_on_two_lanes():
    same = {"track": "network", "start_s": 0.0, "end_s": 1.0, "kind": "tp", "direction": "forward"}
    pair = [{**same, "label": label} for label in "ab"]
    one, other = bars(build_timeline(pair).axes[0])
    assert one.get_y() + one.get_height() <= other.get_y() or other.get_y() + other.get_height() <= one.get_y()


@pytest.mark.parametrize("seed", range(30))
def test_names_outside_never_cover_each_other_and_stay_over_their_bar(seed):
    random = np.random.default_rng(seed)
    anchors = [float(x) for x in np.sort(random.uniform(0, 11, 12) ** random.choice([1, 0.3]))]
    widths = [float(w) for w in random.uniform(0.2, 1.5, 12)]
    placed = callouts.place(anchors, widths, 11.2)
    spans = [(at[0], at[1] - w / 2, at[1] + w / 2, a) for at, w, a in zip(placed, widths, anchors, strict=True) if at]
    assert len(spans) >= callouts.LEVELS
    for level, low, high, anchor in spans:
        assert -1e-9 <= low <= anchor <= high <= 11.2 + 1e-9
        assert all(b <= low or high <= a for n, a, b, _ in spans if n == level and (a, b) != (low, high))


def test_everything_is_written_and_global_settings_stay(tmp_path):
    before = dict(matplotlib.rcParams)
    demand, circuits = synthetic.region(8)
    example = {"One region": {"demand": demand, "circuits": circuits}}
    written = figures.save_all(
        synthetic.both_uses(), tmp_path / "new", regions=example, timelines={"A/B": synthetic.segments()}
    )
    names = ["iteration_time.png", "pareto.png", "breakdown.png", "region_one_region.png", "timeline_a_b.png"]
    assert [path.name for path in written] == names
    assert sorted(os.listdir(tmp_path / "new")) == sorted(names)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert dict(matplotlib.rcParams) == before


def test_the_same_rows_give_the_same_picture(tmp_path):
    one, other = (iteration_time(synthetic.rows(), tmp_path / name) for name in ("a.png", "b.png"))
    assert one.read_bytes() == other.read_bytes()


def test_a_figure_needs_a_known_extension_and_something_to_draw(tmp_path):
    assert breakdown(synthetic.rows(), tmp_path / "b.svg", 400).read_text().startswith("<?xml")
    with pytest.raises(InputError, match=r"allowed: \.png, \.pdf, \.svg"):
        pareto(synthetic.rows(), tmp_path / "p.gif")
    with pytest.raises(InputError, match="at least one segment"):
        block_timeline([], tmp_path / "t.png")
    with pytest.raises(InputError, match="at least one row"):
        iteration_time([], tmp_path / "i.png")


def test_an_unknown_fabric_is_drawn_in_grey_under_its_own_name():
    rows = [{**row, "fabric": "torus"} for row in synthetic.rows(fabrics=("mfabric",), models=["llama-moe"])]
    figure = build_iteration_time(rows)
    assert {to_hex(bar.get_facecolor()) for bar in bars(figure.axes[0])} == {style.FAINT}
    assert figure.legends[0].get_texts()[0].get_text() == "torus"
