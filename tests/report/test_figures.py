"""The figures show what the rows say; how they look was judged by eye."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report.figures import block_timeline, callouts, region
from mfabric_jax.report.figures.block_timeline import build as build_timeline
from mfabric_jax.report.figures.region import build as build_region
from tests.report import synthetic

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.patches import FancyArrowPatch, Rectangle  # noqa: E402


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def texts(axes):
    return [text.get_text() for text in axes.texts]


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
