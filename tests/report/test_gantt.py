"""The picture of an iteration shows its segments; how it looks was judged by eye."""

import itertools

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.report import gantt
from mfabric_jax.report.figures.gantt import AROUND, build, close_up, look

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


@pytest.mark.parametrize("stages", [1, 4, 16])
def test_a_bar_for_every_segment_in_the_lanes_of_its_stage(stages):
    segments = iteration(stages)
    figure = build(segments, "title")
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
    bars = drawn(build(iteration(1)).axes[0])
    tops = sorted({bar[3] for bar in bars})
    lanes = [{bar[0] for bar in bars if bar[3] == top} for top in tops]
    assert lanes == [
        {COLOURS[name] for name in ("forward", "backward", "tp", "switch", "pipeline")},
        {COLOURS["all-to-all"], COLOURS["dp"]},
        {COLOURS["all-to-all"], COLOURS["reconfigure"]},
    ]


def test_without_optics_there_is_no_lane_for_them():
    figure = build(iteration(2, optics=False))
    assert len({bar[3] for bar in drawn(figure.axes[0])}) == 4
    assert "OCS" not in [text.get_text() for text in figure.axes[0].texts]
    assert "Reconfiguration" not in [text.get_text() for text in figure.legends[0].get_texts()]


def test_the_close_up_is_around_the_start_of_a_backward_pass_and_marked_above():
    segments = iteration(3)
    start, end = close_up([one for one in segments if one["stage"] == 1])
    assert (start, end) == (1.25 + 20 - AROUND, 1.25 + 20 + AROUND - 0.5)
    above, below = build(segments).axes
    assert below.get_xlim() == (start, end)
    (frame,) = (patch for patch in above.patches if isinstance(patch, Rectangle))
    assert (frame.get_x(), frame.get_x() + frame.get_width()) == (start, end)
    own = [text for text in above.texts if text.get_text() == "stage 1"]
    assert frame.get_y() < own[0].get_position()[1] < frame.get_y() + frame.get_height()


def test_anything_is_still_a_figure(tmp_path):
    assert gantt(iteration(1)[:1], tmp_path / "w.png").read_bytes().startswith(b"\x89PNG")
    assert gantt(iteration(1)[:3], tmp_path / "f.svg").read_text().startswith("<?xml")
    before = dict(matplotlib.rcParams)
    one, other = (gantt(iteration(4), tmp_path / name) for name in ("a.png", "b.png"))
    assert one.read_bytes() == other.read_bytes()
    assert dict(matplotlib.rcParams) == before


def test_what_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"segments must hold at least one segment, got none\."):
        gantt([], tmp_path / "g.png")
    with pytest.raises(InputError, match=r"allowed: \.png, \.pdf, \.svg"):
        gantt(iteration(1), tmp_path / "g.gif")
