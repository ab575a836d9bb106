"""Search for the best pools on every fabric within `serving.tpot_ms`: GPUs per expert-parallel group, and batch.

The search combines every group size for decoding (`sizes_of`), every batch, and overlap on or off, with every group
size for prefill, its tokens per pass and its overlap. Under a load it also varies the numbers of groups. `sizing` finds
the best for each decoding group size, which gives one row.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mfabric_jax.apps.serving import request_load
from mfabric_jax.apps.serving.expert_load import SURE
from mfabric_jax.apps.serving.pools import cached_deployment, prefill_choices, sizes_of, with_prefill_only
from mfabric_jax.apps.serving.rows import SHOWN, best_members, full_row
from mfabric_jax.apps.serving.sizing import silent
from mfabric_jax.case import Case, Cases


def search(cases: Cases, *, start: int = 0, progress: Callable[[str], None] = silent) -> Iterator[dict[str, Any]]:
    """Yield rows of `serve` for every case and decoding group size; `start` as in `serve`.

    A row is the best deployment of its size. If a limit on the time to first token makes a different prefill pool the
    cheapest, that pool has a row, too.
    """
    arriving = any(map(request_load.has_load, cases))
    for case in cases:
        sizes_of(case)  # raise errors before anything is solved
    each = ((case, size) for case in cases for size in sizes_of(case))
    if arriving:  # one row per size
        each, start = itertools.islice(each, start, None), 0
    rows = (row for case, size in each for row in _rows(case, size, cases, arriving, progress))
    yield from itertools.islice(rows, start, None)


def _rows(
    case: Case, size: int, cases: Cases, arriving: bool, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    progress(f"{case.model.name} on {case.network.fabric}, ep {size}")
    loaded = request_load.with_load_context(case)
    prefill = prefill_choices(with_prefill_only(loaded.with_({"serving.ep": size})))
    deployed = cached_deployment(
        loaded.with_({"serving.ep": size, "serving.prefill.ep": prefill[0].deployed.prefill.model.gpus})
    )
    for member, outcome in best_members(deployed, prefill, progress):
        yield full_row(member, outcome, arriving=arriving) | cases.differences(case, SHOWN)


def rows_within_limits(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that fit the memory and meet their limits on the time to first token and from token to token.

    `by` states whether the band's slow end or the prediction counts. Under a load, at least `serving.load.keep` of the
    requests must be in time, and no pool may be asked for more than its capacity: such a pool keeps up only with a
    short load.
    """
    return [row for row in rows if row["fits"] and (_keeps_up(row) if "in_slo" in row else _keeps(row))]


def _keeps(row: dict[str, Any]) -> bool:
    end = "_high" if row["by"] == "high" else ""
    limits = [(row[f"{what}{end}_s"], row[f"{what}_limit_s"]) for what in ("tpot", "ttft")]
    return all(limit is None or seconds <= limit for seconds, limit in limits)


def _keeps_up(row: dict[str, Any]) -> bool:
    if row["load_requests"] is None:  # a row without a load beside rows with one
        return _keeps(row)
    kept, least = row["in_slo"], row["in_slo_limit"]
    loads = [row[name] for name in ("decode_load", "prefill_load") if row[name] is not None]
    return (kept is None or least is None or kept >= least) and all(each <= 1 + SURE for each in loads)


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
    """Return the row with the fewest dollars per million tokens for both pools, at its load if it has one; None
    without prices."""
    priced = [row for row in rows if usd_of(row) is not None]
    return min(priced, key=usd_of, default=None)


def usd_of(row: dict[str, Any]) -> Any:
    """Return the dollars per million tokens: at the row's load, else of full pools."""
    return row["usd_per_million_tokens"] if row.get("load_requests") is None else row["load_usd_per_million_tokens"]
