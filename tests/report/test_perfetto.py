"""The trace that Perfetto reads: schema, names, arrows, what is refused."""

import itertools
import json

import numpy as np
import pytest

from mfabric_jax.report import write_perfetto, write_task_trace
from mfabric_jax.report.perfetto import THREADS, in_lanes
from tests.report.synthetic import SPANS, segment

KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "M": {"name", "ph", "pid", "tid", "args"},
    "s": {"name", "cat", "id", "ph", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ph", "ts", "pid", "tid", "bp"},
}


def iteration():
    """One micro-batch forward through stages 0 and 1 and back; gradients on stage 0 are nobody's."""
    nobody = dict.fromkeys(("place", "micro_batch", "block", "direction"))
    return [
        segment(0, "compute", "attention", 0.0, 0.5),
        segment(0, "NVSwitch", "tp", 0.5, 0.75),
        segment(1, "waiting", "waiting", 0.0, 1.0, block=None, label="pipeline"),
        segment(1, "OCS", "reconfigure", 0.25, 1.25, block=7),
        segment(1, "compute", "experts", 1.0, 2.0, block=7),
        segment(1, "EPS", "all-to-all", 2.0, 2.5, direction="backward", block=7, label="combine grad"),
        segment(0, "compute", "attention", 3.0, 4.0, direction="backward"),
        segment(0, "EPS", "dp", 4.0, 4.5) | nobody,
    ]


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "new" / "trace.json"
    config = {"model": "tiny", "nic_gbps": 400.0, "shape": np.ones(1).shape, "seed": np.int64(3)}
    assert write_perfetto(iteration(), path, config) == path
    return json.loads(path.read_text())


def events(trace, kind):
    return [one for one in trace["traceEvents"] if one["ph"] == kind]


def test_every_event_has_what_the_format_asks_for_and_slices_are_the_segments(trace):
    assert set(trace) == {"traceEvents", "displayTimeUnit", "otherData"}
    told = trace["otherData"]
    assert (trace["displayTimeUnit"], told["model"], told["nic_gbps"]) == ("ms", "tiny", 400)
    for one in trace["traceEvents"]:
        assert set(one) == KEYS[one["ph"]]
        assert one["pid"] in (0, 1)
        assert 0 <= one["tid"] < len(THREADS)
        assert one.get("ts", 0) >= 0
        assert one.get("dur", 1) > 0
    named = {(m["name"], m["pid"], m["tid"]): m["args"].get("name") for m in events(trace, "M")}
    processes = [name for (kind, *_), name in named.items() if kind == "process_name"]
    assert processes == ["stage 0", "stage 1"]
    for stage in (0, 1):
        assert [named["thread_name", stage, n] for n in range(len(THREADS))] == list(THREADS)
    assert {"compute", "EPS", "OCS", "NVSwitch", "reconfiguration", "waiting"} < set(THREADS)
    got = [one for one in events(trace, "X") if one["cat"] != "pass"]
    assert len(got) == len(iteration())
    for one, want in zip(got, iteration(), strict=True):
        assert (one["pid"], one["name"], one["cat"]) == (want["stage"], want["label"], want["kind"])
        track = "reconfiguration" if want["kind"] == "reconfigure" else want["track"]
        assert THREADS[one["tid"]] == track
        assert (one["ts"], one["ts"] + one["dur"]) == (want["start_s"] * 1e6, want["end_s"] * 1e6)
        args = {key: want[key] for key in ("micro_batch", "block", "direction") if want[key] is not None}
        assert one["args"] == args


def test_passes_and_the_arrows_between_them(trace):
    # Forward: 0 to 0.75 on stage 0, 1 to 2 on stage 1; backward: 2 to 2.5, then 3 to 4. What turns or waits is no pass.
    passes = [one for one in events(trace, "X") if one["cat"] == "pass"]
    assert sorted((one["ts"], one["dur"], one["pid"], one["name"]) for one in passes) == [
        (0, 750_000, 0, "forward 0"),
        (1_000_000, 1_000_000, 1, "forward 0"),
        (2_000_000, 500_000, 1, "backward 0"),
        (3_000_000, 1_000_000, 0, "backward 0"),
    ]
    starts, ends = ({one["id"]: one for one in events(trace, kind)} for kind in "sf")
    arrows = sorted((starts[i]["ts"], starts[i]["pid"], ends[i]["ts"], ends[i]["pid"]) for i in starts)
    assert arrows == [(749_999, 0, 1_000_000, 1), (2_499_999, 1, 3_000_000, 0)]
    assert starts.keys() == ends.keys()
    for one in events(trace, "s") + events(trace, "f"):  # an arrow hangs on a slice around its end
        around = [p for p in passes if p["pid"] == one["pid"] and p["ts"] <= one["ts"] < p["ts"] + p["dur"]]
        assert len(around) == 1
        assert one["tid"] == around[0]["tid"]


def test_neighbours_do_not_overlap_when_times_are_rounded(tmp_path):
    edges = np.cumsum(np.random.default_rng(0).uniform(1e-6, 1e-3, 300)) + 50.0
    row = [segment(0, "compute", "experts", float(a), float(b)) for a, b in itertools.pairwise(edges)]
    got = events(json.loads(write_perfetto(row, tmp_path / "t.json").read_text()), "X")[:-1]
    assert all(round(one["ts"] + one["dur"], 3) == two["ts"] for one, two in itertools.pairwise(got))


def test_a_trace_that_cannot_be_made_leaves_the_old_file(tmp_path):
    path = tmp_path / "t.json"
    path.write_text("old")
    with pytest.raises(KeyError):
        write_perfetto([{"stage": 0}], path)
    assert path.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir()] == ["t.json"]


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


def test_as_few_lanes_as_keep_spans_apart():
    lanes = in_lanes([{"name": n, "begin_s": b, "end_s": e} for n, b, e in [("x", 0, 4), ("y", 1, 2), ("z", 2, 3)]])
    assert [[one["name"] for one in lane] for lane in lanes] == [["x"], ["y", "z"]]
