"""Search for the best pools on every fabric within `serving.tpot_ms`: GPUs per expert-parallel group, and batch.

The search combines every group size for decoding (`sizes_of`), every batch, and overlap on or off, with every group
size for prefill, its tokens per pass and its overlap. Under a load it also varies the numbers of groups. `sizing` finds
the best for each decoding group size, which gives one row.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mfabric_jax.apps.serving import request_load
from mfabric_jax.apps.serving.columns import LOADED
from mfabric_jax.apps.serving.limits import is_in_time
from mfabric_jax.apps.serving.pools import cached_deployment, prefill_choices, sizes_of, with_prefill_only
from mfabric_jax.apps.serving.rows import SHOWN, best_members, full_row, row_of, work_name
from mfabric_jax.apps.serving.sizing import TIE, UNKNOWN, Best, TooDear, silent
from mfabric_jax.case import Case, Cases
from mfabric_jax.fabric.registry import keep_joined

FIRST = 32, 16, 64, 8  # sizes whose loads are simulated first, so that dearer sizes need no simulation


def search(cases: Cases, *, start: int = 0, progress: Callable[[str], None] = silent) -> Iterator[dict[str, Any]]:
    """Yield rows of `serve` for every case and decoding group size; `start` as in `serve`.

    A row is the best deployment of its size. If a limit on the time to first token makes a different prefill pool the
    cheapest, that pool has a row, too. Under a load, sizes that provably cost more and need more GPUs than another one
    are not simulated (`unsimulated`).
    """
    arriving = any(map(request_load.has_load, cases))
    for case in cases:
        sizes_of(case)  # raise errors before anything is solved
    if arriving:  # one row per size
        for case in cases:
            yield from _rows_under_load(case, cases, start, progress)
            start = max(0, start - len(sizes_of(case)))
        return
    rows = (row for case in cases for size in sizes_of(case) for row in _rows(case, size, cases, progress))
    yield from itertools.islice(rows, start, None)


def _rows_under_load(case: Case, cases: Cases, start: int, progress: Callable[[str], None]) -> Iterator[dict[str, Any]]:
    sizes, known, best = sizes_of(case), {}, UNKNOWN
    wanted = sizes[start:]
    for turn, size in enumerate(order := [*(size for size in FIRST if wanted and size in sizes), *wanted]):
        if size not in known:
            known[size] = list(_rows(case, size, cases, progress, best, arriving=True))
            best = _better(best, rows_within_limits(known[size]))
        if turn >= len(order) - len(wanted):
            yield from known[size]


def _better(best: Best, rows: list[dict[str, Any]]) -> Best:
    """Return the best of `best` and of rows in time."""
    usd = [value for value in (best.usd, *map(usd_of, rows)) if value is not None]
    gpus = [value for value in (best.gpus, *map(gpus_of, rows)) if value is not None]
    return Best(min(usd, default=None), min(gpus, default=None))


def _rows(
    case: Case,
    size: int,
    cases: Cases,
    progress: Callable[[str], None],
    best: Best = UNKNOWN,
    *,
    arriving: bool = False,
) -> Iterator[dict[str, Any]]:
    progress(work_name(case, size))
    loaded = request_load.with_load_context(case)
    prefill = prefill_choices(with_prefill_only(loaded.with_({"serving.ep": size})))
    deployed = cached_deployment(
        loaded.with_({"serving.ep": size, "serving.prefill.ep": prefill[0].deployed.prefill.model.gpus})
    )
    where, differences = f"{case.network.fabric}, {case.gpu.name}", cases.differences(case, SHOWN)
    try:
        for member, outcome in best_members(deployed, prefill, lambda words: progress(f"{where}, {words}"), best):
            yield full_row(member, outcome, arriving=arriving) | differences
    except TooDear as dear:
        yield (
            row_of(dear.member) | dict.fromkeys(LOADED) | {"in_time": False, "unsimulated": "costs more"} | differences
        )


def rows_within_limits(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that are in time (`limits.is_in_time`)."""
    return [row for row in rows if is_in_time(row)]


def fastest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the row with the most tokens per second and GPU (under a load: the fewest GPUs of both pools). Ties go to
    the smallest group."""
    return max(rows, key=lambda row: (_of_a_gpu(row), -row["ep"]))


def gpus_of(row: dict[str, Any]) -> int | None:
    """Return the GPUs of both pools under a load; None without a load."""
    return None if row.get("load_requests") is None else row["load_prefill_gpus"] + row["load_decode_gpus"]


def _of_a_gpu(row: dict[str, Any]) -> float:
    gpus = gpus_of(row)
    return row["tokens_per_s_per_gpu"] if gpus is None else -gpus


def cheapest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the row with the fewest dollars per million answer tokens for both pools, at its load if it has one; None
    without prices. Ties within `TIE` go to the soonest first token under the load (p99), then to the shortest time from
    token to token; without a load to the most tokens per second and GPU. Rows whose dollars lack links between
    groups count only if all do."""
    priced = keep_joined([row for row in rows if usd_of(row) is not None])
    most = (1 + TIE) * min(map(usd_of, priced), default=0.0)
    return min((row for row in priced if usd_of(row) <= most), key=_after_dollars, default=None)


def _after_dollars(row: dict[str, Any]) -> tuple[float, ...]:
    if row.get("load_requests") is None:
        return -row["tokens_per_s_per_gpu"], usd_of(row)
    seconds = (row[f"load_{what}_p99_s"] for what in ("ttft", "tpot"))
    return *(math.inf if value is None else value for value in seconds), usd_of(row)


def usd_of(row: dict[str, Any]) -> Any:
    """Return the dollars per million answer tokens: at the row's load, else of full pools."""
    return row["usd_per_million_tokens"] if row.get("load_requests") is None else row["load_usd_per_million_tokens"]
