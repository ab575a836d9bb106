"""The pictures of a block and of an iteration show their segments; how they look was judged by eye."""

import itertools

import numpy as np
import pytest

from mfabric_jax.report.figures import block_timeline
from mfabric_jax.report.figures.timelines import AROUND, LEVELS, build_block, build_iteration, callouts, close_up, look
from tests.report import synthetic

matplotlib = pytest.importorskip("matplotlib")
from matplotlib.collections import PolyCollection  # noqa: E402
from matplotlib.colors import to_hex  # noqa: E402
from matplotlib.patches import Rectangle  # noqa: E402

COLOURS = {
    "forward": "#88CCEE",
    "backward": "#3A87B7",
    "tp": "#882255",
    "all-to-all": "#CC6677",
    "dp": "#DDCC77",
    "reconfigure": "#332288",
    "switch": "#B9A6E0",
    "pipeline": "#ECECEC",
}
LABELS = [
    "Compute, forward",
    "Compute, backward",
    "TP communication",
    "All-to-all",
    "DP communication",
    "Reconfiguration",
    "Waiting for the switch",
    "Pipeline bubble",
]


def segment(stage, track, kind, start, end, direction="forward", label=None):
    where = {"stage": stage, "track": track, "kind": kind, "label": label or kind}
    return where | {"start_s": start, "end_s": end, "direction": direction}


def iteration(stages, optics=True):
    """A forward pass of 20 blocks on every stage and a backward pass of as many; each later by its stage."""
    found = []
    for stage in range(stages):
        found.append(segment(stage, "waiting", "waiting", 0.0, stage + 0.25, label="pipeline"))
        now = stage + 0.25
        for n in range(40):
            direction = "backward" if n >= 20 else "forward"
            found += [
                segment(stage, "compute", "attention" if n % 2 else "experts", now, now + 0.5, direction),
                segment(stage, "NVSwitch", "tp", now + 0.5, now + 0.625, direction),
                segment(stage, "EPS", "all-to-all", now + 0.625, now + 0.75, direction),
                segment(stage, "waiting", "waiting", now + 0.75, now + 0.875, direction, label="switch"),
            ]
            if optics:
                found += [
                    segment(stage, "OCS", "reconfigure", now + 0.625, now + 0.875, direction),
                    segment(stage, "OCS", "all-to-all", now + 0.875, now + 1, direction),
                ]
            now += 1
        found.append(segment(stage, "EPS", "dp", now, now + 0.5, None))
    return found


def drawn(axes):
    """(colour, start, end) of every bar, and where it lies between top and bottom."""
    bars = []
    for bar in (one for one in axes.collections if isinstance(one, PolyCollection)):
        colour = to_hex(bar.get_facecolor()[0]).upper()
        for path in bar.get_paths():
            (left, top), (right, bottom) = path.vertices.min(axis=0), path.vertices.max(axis=0)
            bars.append((colour, float(left), float(right), float(top), float(bottom)))
    return bars


def test_a_bar_for_every_segment_in_the_lanes_of_its_stage():
    for stages in (1, 4):
        assert_drawn(iteration(stages), stages)


def assert_drawn(segments, stages):
    figure = build_iteration(segments, "title")
    above, below = figure.axes
    bars = drawn(above)
    want = sorted((COLOURS[look(one)], one["start_s"], one["end_s"]) for one in segments)
    assert [one[0] for one in sorted(bars)] == [one[0] for one in want]
    np.testing.assert_allclose([one[1:3] for one in sorted(bars)], [one[1:] for one in want], atol=1e-12)
    tops = sorted({bar[3] for bar in bars})
    assert len(tops) == 3 * stages  # compute, EPS, OCS
    spans = sorted({bar[3:] for bar in bars})
    assert all(one[1] <= two[0] for one, two in itertools.pairwise(spans))
    assert above.get_xlim() == (0, max(one["end_s"] for one in segments))
    names = [text.get_text() for text in above.texts]
    assert [name for name in names if name.startswith("stage")] == [f"stage {stage}" for stage in range(stages)]
    middle = [(COLOURS[look(one)], one["start_s"]) for one in segments if one["stage"] == stages // 2]
    assert sorted(bar[:2] for bar in drawn(below)) == sorted(middle)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == LABELS
    assert figure.get_suptitle() == "title"


def test_lanes_of_a_stage_hold_what_they_are_named_after():
    bars = drawn(build_iteration(iteration(1)).axes[0])
    tops = sorted({bar[3] for bar in bars})
    lanes = [{bar[0] for bar in bars if bar[3] == top} for top in tops]
    assert lanes == [
        {COLOURS[name] for name in ("forward", "backward", "tp", "switch", "pipeline")},
        {COLOURS["all-to-all"], COLOURS["dp"]},
        {COLOURS["all-to-all"], COLOURS["reconfigure"]},
    ]


def test_without_optics_there_is_no_lane_for_them():
    figure = build_iteration(iteration(2, optics=False))
    assert len({bar[3] for bar in drawn(figure.axes[0])}) == 4
    assert "OCS" not in [text.get_text() for text in figure.axes[0].texts]
    assert "Reconfiguration" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_close_up_is_around_the_start_of_a_backward_pass_and_marked_above():
    segments = iteration(3)
    start, end = close_up([one for one in segments if one["stage"] == 1])
    assert (start, end) == (1.25 + 20 - AROUND, 1.25 + 20 + AROUND - 0.5)
    above, below = build_iteration(segments).axes
    assert below.get_xlim() == (start, end)
    (frame,) = (patch for patch in above.patches if isinstance(patch, Rectangle))
    assert (frame.get_x(), frame.get_x() + frame.get_width()) == (start, end)
    own = [text for text in above.texts if text.get_text() == "stage 1"]
    assert frame.get_y() < own[0].get_position()[1] < frame.get_y() + frame.get_height()


# -- one block


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


def texts(axes):
    return [text.get_text() for text in axes.texts]


def test_timeline_has_a_bar_for_every_segment_and_names_all_of_them():
    segments = synthetic.segments()
    figure = build_block(segments, "title")
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
    one, other = bars(build_block(pair).axes[0])
    assert one.get_y() + one.get_height() <= other.get_y() or other.get_y() + other.get_height() <= one.get_y()


def test_timeline_of_very_many_or_empty_segments_is_still_a_figure(tmp_path):
    tiny = [
        {"track": "network", "label": f"piece {i}", "start_s": i / 50, "end_s": (i + i % 3) / 50, "kind": "other"}
        for i in range(200)
    ]
    assert block_timeline(tiny, tmp_path / "t.png").exists()
    assert block_timeline(tiny[:1], tmp_path / "t.png").exists()


def test_names_outside_never_cover_each_other_and_stay_over_their_bar():
    for seed in range(30):
        random = np.random.default_rng(seed)
        anchors = [float(x) for x in np.sort(random.uniform(0, 11, 12) ** random.choice([1, 0.3]))]
        placed = [note for note in callouts(anchors, random.uniform(0.2, 1.5, 12).tolist(), 11.2) if note]
        assert len(placed) >= LEVELS
        for note in placed:
            assert 0 <= note.low <= note.anchor <= note.high <= 11.2
            others = [other for other in placed if other.level == note.level and other != note]
            assert all(other.high <= note.low or note.high <= other.low for other in others)
