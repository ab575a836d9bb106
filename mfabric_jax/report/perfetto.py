"""Traces for Perfetto or Chrome: of iterations (a process per stage, a thread per track) and of replays.

Format: Chromium's "Trace Event Format", JSON object form. Slices are `X` events in microseconds. Arrows (`s`, `f`)
lead from a pass to the pass on another stage that it feeds. One thread shows whole passes.
"""

import heapq
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.support.atomic import check_file, replacing, suffix

THREADS = ("passes", "compute", "EPS", "OCS", "NVSwitch", "reconfiguration", "waiting")
EXTENSIONS = (".json",)
_ARGS = ("micro_batch", "block", "direction")
_PASS = ("direction", "micro_batch", "place")
DIGITS = 3  # decimals of microseconds: nanoseconds

TRACKS = ("compute", "send", "receive")
PATH = "critical path"

Segments = Sequence[Mapping[str, Any]]
Spans = Sequence[Mapping[str, Any]]
Event = dict[str, Any]


def check_trace(path: str | Path) -> None:
    check_file("trace", path, EXTENSIONS)


def write_perfetto(segments: Segments, path: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    """Write segments as Chrome JSON atomically and return the path; https://ui.perfetto.dev opens it.

    - `segments`: dicts of `stage`, `track`, `kind`, `label`, `start_s`, `end_s`, and optionally `micro_batch`, `place`,
      `block`, `direction`.
    - `config`: stored under "otherData".

    Raise InputError if there are no segments, the extension is not .json, or the path cannot be written.
    """
    if not segments:
        raise InputError("segments must hold at least one segment, got none.")
    return write_events(list(events(segments)), path, config)


def write_events(events: Sequence[Event], path: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    path = Path(path)
    suffix("trace", path, EXTENSIONS)
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": dict(config or {})}
    text = json.dumps(trace, default=str)
    with replacing(path) as (part,):
        part.write_text(text + "\n", encoding="utf-8")
    return path


def events(segments: Segments) -> Iterator[Event]:
    """Yield the events of an iteration: names of processes and threads, slices, arrows."""
    passes = _passes(segments)
    for stage in sorted({span["stage"] for span in segments}):
        yield from _names(stage, stage, f"stage {stage}", THREADS)
    for span in segments:
        args = {key: span[key] for key in _ARGS if span.get(key) is not None}
        track = span["stage"], THREADS.index(thread(span))
        yield _slice(track, (span["start_s"], span["end_s"]), span["label"], span["kind"], args)
    for span in passes.values():
        args = {key: span[key] for key in ("micro_batch", "direction")}
        track, name = (span["stage"], THREADS.index("passes")), f"{span['direction']} {span['micro_batch']}"
        yield _slice(track, (span["start_s"], span["end_s"]), name, "pass", args)
    yield from _arrows(passes)


def thread(segment: Mapping[str, Any]) -> str:
    return "reconfiguration" if segment["kind"] == "reconfigure" else segment["track"]


def _names(process: int, order: int, name: str, threads: Sequence[str]) -> Iterator[Event]:
    for thread, what, args in (
        (0, "process_name", {"name": name}),
        (0, "process_sort_index", {"sort_index": order}),
        *((number, "thread_name", {"name": thread}) for number, thread in enumerate(threads)),
        *((number, "thread_sort_index", {"sort_index": number}) for number in range(len(threads))),
    ):
        yield {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _slice(track: tuple[int, int], times: tuple[float, float], label: str, kind: str, args: Mapping[str, Any]) -> Event:
    start, end = map(microseconds, times)
    where = {"pid": track[0], "tid": track[1], "ts": start, "dur": round(end - start, DIGITS)}
    return {"ph": "X", "name": label, "cat": kind} | where | {"args": dict(args)}


def microseconds(seconds: float) -> float:
    return round(float(seconds / units.us(1.0)), DIGITS)


def _passes(segments: Segments) -> dict[tuple, dict[str, Any]]:
    passes: dict[tuple, dict[str, Any]] = {}
    for segment in segments:
        if segment.get("place") is None or segment["kind"] in ("reconfigure", "waiting"):
            continue
        key = tuple(segment[part] for part in _PASS)
        who = dict(zip(_PASS, key, strict=True)) | {"stage": segment["stage"]}
        span = passes.setdefault(key, who | {"start_s": segment["start_s"], "end_s": segment["end_s"]})
        span["start_s"], span["end_s"] = min(span["start_s"], segment["start_s"]), max(span["end_s"], segment["end_s"])
    return passes


def _arrows(passes: Mapping[tuple, Mapping[str, Any]]) -> Iterator[Event]:
    """Yield arrows from the end of each pass to the start of the pass on another stage that it feeds."""
    for number, ((direction, micro_batch, position), source) in enumerate(passes.items()):
        fed = passes.get((direction, micro_batch, position + (1 if direction == "forward" else -1)))
        if fed is None or fed["stage"] == source["stage"]:
            continue
        start, end = microseconds(source["start_s"]), microseconds(source["end_s"])
        same = {"name": "send", "cat": "send", "id": number, "tid": THREADS.index("passes")}
        yield same | {"ph": "s", "pid": source["stage"], "ts": max(start, round(end - 1, DIGITS))}
        yield same | {"ph": "f", "bp": "e", "pid": fed["stage"], "ts": microseconds(fed["start_s"])}


# -- a replayed task graph: a process per rank, threads without overlaps


def write_task_trace(spans: Spans, path: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    """Write spans as Chrome JSON atomically and return the path; https://ui.perfetto.dev opens it.

    - `spans`: dicts of `rank` (-1: the critical path), `track` (compute, send, receive, critical path), `name`,
      `begin_s`, `end_s`, and `args`, details to show.
    - `config`: stored under "otherData".

    Raise InputError if the extension is not .json, or the path cannot be written.
    """
    return write_events(list(span_events(spans)), path, config)


def span_events(spans: Spans) -> Iterator[Event]:
    ranks: dict[int, list[Mapping[str, Any]]] = {}
    for span in spans:
        ranks.setdefault(span["rank"], []).append(span)
    for rank in sorted(ranks):
        lanes = [
            (track, lane)
            for track in (*TRACKS, PATH)
            for lane in in_lanes([span for span in ranks[rank] if span["track"] == track])
        ]
        yield from _names(rank + 1, rank + 1, PATH if rank < 0 else f"rank {rank}", [track for track, _ in lanes])
        for thread, (track, lane) in enumerate(lanes):
            for span in lane:
                times = span["begin_s"], span["end_s"]
                yield _slice((rank + 1, thread), times, span["name"], track, span.get("args", {}))


def in_lanes(spans: Spans) -> list[list[Mapping[str, Any]]]:
    """Distribute spans over the fewest lanes without overlaps in a lane."""
    lanes: list[list[Mapping[str, Any]]] = []
    free: list[tuple[float, int]] = []  # when each lane is free
    for span in sorted(spans, key=lambda span: (span["begin_s"], span["end_s"])):
        if free and free[0][0] <= span["begin_s"]:
            _, lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(span)
        heapq.heappush(free, (span["end_s"], lane))
    return lanes
