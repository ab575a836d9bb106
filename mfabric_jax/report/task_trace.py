"""A replayed graph of tasks as a trace for Perfetto or Chrome: a process per rank, a thread for each thing at a time.

Format: "Trace Event Format" of Chromium, JSON object form; what overlaps on one track is on several threads.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.report.perfetto import DIGITS, Event, rounded_us, write_events

TRACKS = ("compute", "send", "receive")
PATH = "critical path"

Spans = Sequence[Mapping[str, Any]]


def write_task_trace(spans: Spans, path: str | Path, config: Mapping[str, Any] | None = None) -> Path:
    """Write spans as Chrome JSON, whole or not at all; returns the path. Open it at https://ui.perfetto.dev.

    - `spans`: dicts of `rank` (-1: of the critical path), `track` (compute, send, receive, critical path), `name`,
      `begin_s`, `end_s`, and `args`, what is shown beside.   - `config`: kept under "otherData".

    Raises `InputError` for another extension than .json, or a place that cannot be written.
    """
    return write_events(list(span_events(spans)), path, config)


def span_events(spans: Spans) -> Iterator[Event]:
    """Names of processes and threads, and a slice for every span."""
    ranks: dict[int, list[Mapping[str, Any]]] = {}
    for one in spans:
        ranks.setdefault(one["rank"], []).append(one)
    for rank in sorted(ranks):
        process = rank + 1
        yield _told("process_name", process, 0, name=PATH if rank < 0 else f"rank {rank}")
        yield _told("process_sort_index", process, 0, sort_index=process)
        thread = 0
        for track in (*TRACKS, PATH):
            for lane in in_lanes([one for one in ranks[rank] if one["track"] == track]):
                yield _told("thread_name", process, thread, name=track)
                yield _told("thread_sort_index", process, thread, sort_index=thread)
                yield from (_slice(one, process, thread) for one in lane)
                thread += 1


def in_lanes(spans: Spans) -> list[list[Mapping[str, Any]]]:
    """Spans on as few lanes as keep them from overlapping."""
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


def _told(what: str, process: int, thread: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": args}


def _slice(one: Mapping[str, Any], process: int, thread: int) -> Event:
    """Ends are rounded, not lengths, so that neighbours do not overlap."""
    begin, end = rounded_us(one["begin_s"]), rounded_us(one["end_s"])
    where = {"pid": process, "tid": thread, "ts": begin, "dur": round(end - begin, DIGITS)}
    return {"ph": "X", "name": one["name"], "cat": one["track"]} | where | {"args": dict(one.get("args", {}))}
