"""The trace and the picture of a replay: what overlaps is apart, and everything is there."""

import json

import pytest

from mfabric_jax.report import figures, write_task_trace
from mfabric_jax.report.figures import timelines
from mfabric_jax.report.perfetto import in_lanes
from tests.mistakes import check_refused

SPANS = [
    {"rank": 0, "track": "compute", "name": "first", "begin_s": 0.0, "end_s": 1e-3},
    {"rank": 0, "track": "send", "name": "a", "begin_s": 1e-3, "end_s": 3e-3, "args": {"bytes": 5.0}},
    {"rank": 0, "track": "send", "name": "b", "begin_s": 2e-3, "end_s": 4e-3},
    {"rank": 0, "track": "send", "name": "c", "begin_s": 3e-3, "end_s": 4e-3},
    {"rank": 3, "track": "receive", "name": "a", "begin_s": 1e-3, "end_s": 3e-3},
    {"rank": -1, "track": "critical path", "name": "a", "begin_s": 1e-3, "end_s": 3e-3, "args": {"rank": 0, "to": 3}},
]


def test_what_overlaps_is_on_threads_of_its_own(tmp_path):
    path = write_task_trace(SPANS, tmp_path / "trace.json", {"fabric": "mfabric"})
    told = json.loads(path.read_text())
    slices = [one for one in told["traceEvents"] if one["ph"] == "X"]
    assert told["otherData"] == {"fabric": "mfabric"}
    assert [(one["pid"], one["tid"], one["name"], one["ts"], one["dur"]) for one in slices] == [
        (0, 0, "a", 1000, 2000),
        (1, 0, "first", 0, 1000),
        (1, 1, "a", 1000, 2000),
        (1, 1, "c", 3000, 1000),
        (1, 2, "b", 2000, 2000),
        (4, 0, "a", 1000, 2000),
    ]
    assert slices[2]["args"] == {"bytes": 5.0}
    names = {
        (one["name"], one["pid"], one["tid"]): one["args"].get("name")
        for one in told["traceEvents"]
        if one["ph"] == "M"
    }
    assert [names["process_name", pid, 0] for pid in (0, 1, 4)] == ["critical path", "rank 0", "rank 3"]
    assert [names["thread_name", 1, tid] for tid in range(3)] == ["compute", "send", "send"]
    check_refused("extension", write_task_trace, SPANS, tmp_path / "trace.txt")


def test_as_few_lanes_as_keep_spans_apart():
    lanes = in_lanes([{"name": n, "begin_s": b, "end_s": e} for n, b, e in [("x", 0, 4), ("y", 1, 2), ("z", 2, 3)]])
    assert [[one["name"] for one in lane] for lane in lanes] == [["x"], ["y", "z"]]


def test_the_picture_shows_ranks_and_what_holds_the_end(tmp_path):
    held = [{"what": "nic up", "holds_s": 3e-3}, {"what": "computation", "holds_s": 1e-3}]
    figure = timelines.build_replayed(SPANS, held, "a title")
    above, below = figure.axes
    assert [label.get_text() for label in above.get_yticklabels()] == ["rank 0", "rank 3"]
    assert above.get_xlim() == (0, 4)
    assert above.get_xlabel() == "time [ms]"
    (line,) = above.lines
    assert line.get_ydata().tolist() == [0, 1]
    assert [label.get_text() for label in below.get_yticklabels()] == ["nic up", "computation"]
    assert [text.get_text() for text in below.texts] == ["75.0%", "25.0%"]
    assert len(timelines.build_replayed(SPANS, []).axes) == 1
    assert figures.replay_picture(SPANS, held, tmp_path / "replay.svg").stat().st_size > 5000
    check_refused("at least one of a rank", figures.replay_picture, SPANS[-1:], [], tmp_path / "replay.svg")


def test_many_ranks_are_some_of_them_and_the_path_among_them():
    spans = [
        {"rank": rank, "track": "compute", "name": "x", "begin_s": 0.0, "end_s": 1.0 + rank % 3} for rank in range(128)
    ]
    ways = (
        {"args": {"rank": 3, "to": 77}, "begin_s": 0.0, "end_s": 2.0},
        {"args": {"rank": 77}, "begin_s": 2, "end_s": 3},
    )
    path = [{"rank": -1, "track": "critical path", "name": "x"} | one for one in ways]
    (axes,) = (figure := timelines.build_replayed([*spans, *path], [], "dlrm")).axes
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
    below = timelines.build_replayed(SPANS, held).axes[1]
    lefts, lengths = ([getattr(bar, f"get_{of}")() for bar in below.patches] for of in ("x", "width"))
    assert lefts == pytest.approx([0, -0.95, -0.05])
    assert lengths == pytest.approx([3, 0.95, 0.05])
    assert [text.get_text() for text in below.texts] == ["150.0%", "-47.5%", "-2.5%"]


def test_latency_is_drawn_lighter_in_front_of_its_message():
    one = {"rank": 0, "track": "send", "name": "a", "begin_s": 0.0, "end_s": 3.0, "latency_s": 1.0}
    (axes,) = timelines.build_replayed([one], []).axes
    lighter, full = (bars.get_paths()[0].get_extents().intervalx.tolist() for bars in axes.collections[:2])
    assert (lighter, full) == ([0, 3], [1, 3])


def test_bars_are_unions():
    times = [(0.0, 2.0), (5.0, 6.0), (1.0, 1.5), (1.0, 3.0), (4.0, 4.0)]
    sent = [{"rank": 0, "track": "send", "name": "", "begin_s": begin, "end_s": end} for begin, end in times]
    (axes,) = timelines.build_replayed(sent, []).axes
    bars = [path.get_extents().intervalx.tolist() for path in axes.collections[1].get_paths()]
    assert bars == [[0, 3], [5, 6]]
