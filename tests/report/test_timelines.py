"""The pictures of a block and of an iteration show their segments; how they look was judged by eye."""

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from mfabric_jax.report.figures.timelines import AROUND, build_block, build_iteration, build_replayed, replay_picture
from tests.report import synthetic
from tests.report.readable import assert_readable
from tests.report.synthetic import SPANS, segment


def iteration(stages, optics=True):
    """A forward pass of 20 blocks on every stage and a backward pass of as many; each later by its stage."""
    tracks = [("NVSwitch", "tp", 0.5, 0.625), ("EPS", "all-to-all", 0.625, 0.75), ("waiting", "waiting", 0.75, 0.875)]
    tracks += [("OCS", "reconfigure", 0.625, 0.875), ("OCS", "all-to-all", 0.875, 1.0)] if optics else []
    found = []
    for stage in range(stages):
        found.append(segment(stage, "waiting", "waiting", 0.0, stage + 0.25, label="pipeline"))
        for n in range(40):
            now, direction = stage + 0.25 + n, "backward" if n >= 20 else "forward"
            for track, kind, start, end in (("compute", "experts", 0.0, 0.5), *tracks):
                label = "switch" if kind == "waiting" else kind
                found.append(segment(stage, track, kind, now + start, now + end, direction, label=label))
        found.append(segment(stage, "EPS", "dp", stage + 40.25, stage + 40.75, None))
    return found


def drawn(axes):
    """(colour, start, end, top) of every bar."""
    for bar in axes.collections:
        if isinstance(bar, PolyCollection):
            for path in bar.get_paths():
                (left, top), (right, _) = path.vertices.min(axis=0), path.vertices.max(axis=0)
                yield to_hex(bar.get_facecolor()[0]).upper(), float(left), float(right), float(top)


def test_an_iteration_has_a_bar_for_every_segment_and_a_close_up_around_a_backward_pass():
    for stages, optics in ((1, True), (2, False)):
        segments = iteration(stages, optics)
        figure = build_iteration(segments, "title")
        above, below = figure.axes
        bars = sorted(bar[1:3] for bar in drawn(above))
        np.testing.assert_allclose(bars, sorted((one["start_s"], one["end_s"]) for one in segments), atol=1e-12)
        lanes = sorted({bar[3] for bar in drawn(above)})
        assert len(lanes) == (3 if optics else 2) * stages  # compute, EPS, OCS
        assert above.get_xlim() == (0, max(one["end_s"] for one in segments))
        names = [text.get_text() for text in above.texts]
        assert [name for name in names if name.startswith("stage")] == [f"stage {stage}" for stage in range(stages)]
        assert ("OCS" in names) == optics
        legend = [text.get_text() for text in figure.legends[0].get_texts()]
        reconfiguration = ["Reconfiguration"] if optics else []
        assert legend == [
            *("Compute, forward", "Compute, backward", "TP communication", "All-to-all", "DP communication"),
            *(*reconfiguration, "Waiting for the switch", "Pipeline bubble"),
        ]
        if stages == 1:  # what a lane holds, by how many colours
            assert [len({bar[0] for bar in drawn(above) if bar[3] == lane}) for lane in lanes] == [5, 2, 2]
        middle = [one["start_s"] for one in segments if one["stage"] == stages // 2]
        assert sorted(bar[1] for bar in drawn(below)) == sorted(middle)
        assert figure.get_suptitle() == "title"
    above, below = build_iteration(iteration(3)).axes
    start, end = below.get_xlim()
    assert (start, end) == (1.25 + 20 - AROUND, 1.25 + 20 + AROUND - 0.5)
    (frame,) = (patch for patch in above.patches if isinstance(patch, Rectangle))
    assert (frame.get_x(), frame.get_x() + frame.get_width()) == (start, end)


def test_a_block_has_a_bar_for_every_segment_and_names_those_with_room():
    segments = synthetic.segments()
    figure = build_block(segments, "title")
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["compute", "network", "reconfiguration"]
    bars = [bar for bar in axes.patches if isinstance(bar, Rectangle)]
    got = sorted((bar.get_x() / 1000, (bar.get_x() + bar.get_width()) / 1000) for bar in bars)
    np.testing.assert_allclose(got, sorted((s["start_s"], s["end_s"]) for s in segments), atol=1e-12)
    labels = [s["label"].removeprefix("forward ").removeprefix("backward ") for s in segments]
    texts = [text for note in axes.texts if (text := note.get_text())]
    assert set(texts) - {"forward", "backward"} < set(labels)
    assert {"attention", "gate", "norm", "forward", "backward"} <= set(texts)
    kinds = [text.get_text() for text in figure.legends[0].get_texts()]
    assert kinds == ["Attention", "Experts", "All-to-all", "TP communication", "Reconfiguration"]
    same = {"track": "network", "start_s": 0.0, "end_s": 1.0, "kind": "tp", "direction": "forward"}
    pair = build_block([same | {"label": label} for label in "ab"]).axes[0].patches
    one, other = sorted((bar for bar in pair if isinstance(bar, Rectangle)), key=lambda bar: bar.get_y())
    assert one.get_y() + one.get_height() <= other.get_y()  # what overlaps in time lies on two lanes


def test_names_of_a_block_never_cover_each_other():
    for seed in range(5):
        random = np.random.default_rng(seed)
        starts = np.sort(random.uniform(0, 1, 12) ** random.choice([1, 0.3]))
        row = [segment(0, "compute", "experts", a, a + 0.003, label="x" * int(random.integers(3, 20))) for a in starts]
        figure = build_block(row)
        assert_readable(figure)
        assert len(figure.axes[0].texts) > 2


def test_the_picture_shows_ranks_and_what_holds_the_end(tmp_path):
    held = [{"what": "nic up", "holds_s": 3e-3}, {"what": "computation", "holds_s": 1e-3}]
    figure = build_replayed(SPANS, held, "a title")
    above, below = figure.axes
    assert [label.get_text() for label in above.get_yticklabels()] == ["rank 0", "rank 3"]
    assert above.get_xlim() == (0, 4)
    assert above.get_xlabel() == "time [ms]"
    (line,) = above.lines
    assert line.get_ydata().tolist() == [0, 1]
    assert [label.get_text() for label in below.get_yticklabels()] == ["nic up", "computation"]
    assert [text.get_text() for text in below.texts] == ["75.0%", "25.0%"]
    assert len(build_replayed(SPANS, []).axes) == 1
    assert replay_picture(SPANS, held, tmp_path / "replay.svg").stat().st_size > 5000


def test_many_ranks_are_some_of_them_and_the_path_among_them():
    spans = [
        {"rank": rank, "track": "compute", "name": "x", "begin_s": 0.0, "end_s": 1.0 + rank % 3} for rank in range(128)
    ]
    ways = (
        {"args": {"rank": 3, "to": 77}, "begin_s": 0.0, "end_s": 2.0},
        {"args": {"rank": 77}, "begin_s": 2, "end_s": 3},
    )
    path = [{"rank": -1, "track": "critical path", "name": "x"} | one for one in ways]
    (axes,) = (figure := build_replayed([*spans, *path], [], "dlrm")).axes
    names = [label.get_text() for label in axes.get_yticklabels()]
    assert len(names) == 24
    assert {"rank 3", "rank 77"} <= {*names}
    (line,) = axes.lines
    assert line.get_ydata().tolist() == [names.index(f"rank {rank}") for rank in (3, 77, 77, 77)]
    assert figure.get_suptitle() == "dlrm (24 of 128 ranks)"


def test_parts_below_nothing_are_left_of_it():
    held = [
        {"what": name, "holds_s": holds} for name, holds in [("circuit", 3e-3), ("latency", -0.95e-3), ("nic", -5e-5)]
    ]
    below = build_replayed(SPANS, held).axes[1]
    lefts, lengths = ([getattr(bar, f"get_{of}")() for bar in below.patches] for of in ("x", "width"))
    assert lefts == pytest.approx([0, -0.95, -0.05])
    assert lengths == pytest.approx([3, 0.95, 0.05])
    assert [text.get_text() for text in below.texts] == ["150.0%", "-47.5%", "-2.5%"]
