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
    for stage in sorted({one["stage"] for one in segments}):
        yield from _names(stage, stage, f"stage {stage}", THREADS)
    for one in segments:
        args = {key: one[key] for key in _ARGS if one.get(key) is not None}
        place = one["stage"], THREADS.index(thread(one))
        yield _slice(place, (one["start_s"], one["end_s"]), one["label"], one["kind"], args)
    for one in passes.values():
        args = {key: one[key] for key in ("micro_batch", "direction")}
        place, name = (one["stage"], THREADS.index("passes")), f"{one['direction']} {one['micro_batch']}"
        yield _slice(place, (one["start_s"], one["end_s"]), name, "pass", args)
    yield from _arrows(passes)


def thread(one: Mapping[str, Any]) -> str:
    return "reconfiguration" if one["kind"] == "reconfigure" else one["track"]


def _names(process: int, order: int, name: str, threads: Sequence[str]) -> Iterator[Event]:
    for thread, what, args in (
        (0, "process_name", {"name": name}),
        (0, "process_sort_index", {"sort_index": order}),
        *((number, "thread_name", {"name": thread}) for number, thread in enumerate(threads)),
        *((number, "thread_sort_index", {"sort_index": number}) for number in range(len(threads))),
    ):
        yield {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _slice(place: tuple[int, int], times: tuple[float, float], label: str, kind: str, args: Mapping[str, Any]) -> Event:
    start, end = map(rounded_us, times)
    where = {"pid": place[0], "tid": place[1], "ts": start, "dur": round(end - start, DIGITS)}
    return {"ph": "X", "name": label, "cat": kind} | where | {"args": dict(args)}


def rounded_us(seconds: float) -> float:
    return round(float(seconds / units.us(1.0)), DIGITS)


def _passes(segments: Segments) -> dict[tuple, dict[str, Any]]:
    found: dict[tuple, dict[str, Any]] = {}
    for one in segments:
        if one.get("place") is None or one["kind"] in ("reconfigure", "waiting"):
            continue
        key = tuple(one[part] for part in _PASS)
        who = dict(zip(_PASS, key, strict=True)) | {"stage": one["stage"]}
        span = found.setdefault(key, who | {"start_s": one["start_s"], "end_s": one["end_s"]})
        span["start_s"], span["end_s"] = min(span["start_s"], one["start_s"]), max(span["end_s"], one["end_s"])
    return found


def _arrows(passes: Mapping[tuple, Mapping[str, Any]]) -> Iterator[Event]:
    """Arrows from the end of each pass to the start of the pass on another stage that it feeds."""
    for number, ((direction, micro_batch, place), one) in enumerate(passes.items()):
        fed = passes.get((direction, micro_batch, place + (1 if direction == "forward" else -1)))
        if fed is None or fed["stage"] == one["stage"]:
            continue
        start, end = rounded_us(one["start_s"]), rounded_us(one["end_s"])
        same = {"name": "send", "cat": "send", "id": number, "tid": THREADS.index("passes")}
        yield same | {"ph": "s", "pid": one["stage"], "ts": max(start, round(end - 1, DIGITS))}
        yield same | {"ph": "f", "bp": "e", "pid": fed["stage"], "ts": rounded_us(fed["start_s"])}


# -- a replayed graph of tasks: a process per rank, threads without overlaps


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
    for one in spans:
        ranks.setdefault(one["rank"], []).append(one)
    for rank in sorted(ranks):
        lanes = [
            (track, lane)
            for track in (*TRACKS, PATH)
            for lane in in_lanes([one for one in ranks[rank] if one["track"] == track])
        ]
        yield from _names(rank + 1, rank + 1, PATH if rank < 0 else f"rank {rank}", [track for track, _ in lanes])
        for thread, (track, lane) in enumerate(lanes):
            for one in lane:
                times = one["begin_s"], one["end_s"]
                yield _slice((rank + 1, thread), times, one["name"], track, one.get("args", {}))


def in_lanes(spans: Spans) -> list[list[Mapping[str, Any]]]:
    """Distribute spans over the fewest lanes without overlaps in a lane."""
    lanes: list[list[Mapping[str, Any]]] = []
    free: list[tuple[float, int]] = []  # when each lane is free
    for one in sorted(spans, key=lambda one: (one["begin_s"], one["end_s"])):
        if free and free[0][0] <= one["begin_s"]:
            _, lane = heapq.heappop(free)
        else:
            lane = len(lanes)
            lanes.append([])
        lanes[lane].append(one)
        heapq.heappush(free, (one["end_s"], lane))
    return lanes
