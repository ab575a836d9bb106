"""Search for the best pools on every fabric within `serving.tpot_ms`: GPUs per expert-parallel group, and batch.

The search combines every group size for decoding (`sizes_of`), every batch, and overlap on or off, with every group
size for prefill, its tokens per pass and its overlap. Under a load it also varies the numbers of groups. `sizing` finds
the best for each decoding group size, which gives one row.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mfabric_jax.apps.serving import request_load
from mfabric_jax.apps.serving.deployment import DECODES_WITH, PREFILLS_WITH, check_size
from mfabric_jax.apps.serving.expert_load import SURE
from mfabric_jax.apps.serving.group import check_network
from mfabric_jax.apps.serving.kinds import prefill_case
from mfabric_jax.apps.serving.rows import SHOWN, best_members, cached_deployment, full_row
from mfabric_jax.apps.serving.sizing import PrefillChoice, silent
from mfabric_jax.case import Case, Cases
from mfabric_jax.case.paths import files_of_case
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import gpu_of, model_of
from mfabric_jax.support.text_files import cached_by_files

PASSES = 1024, 2048, 4096, 8192  # tokens of a prefill micro-batch
LEAST, MOST = 4, 320  # GPUs that share the experts


@cached_by_files(files_of_case, maxsize=256)
def sizes_of(case: Case) -> tuple[int, ...]:
    """Return the group sizes to search for decoding, from 4 to 320 GPUs.

    A group is whole servers (multiples of 4 GPUs if servers are smaller), or a part that divides a server, since
    DeepEP's kernels run on 2, 4 or 8 GPUs of one. Fabric and kernels must have room for it, each GPU must have a slot,
    and experts with stated copies must fill all GPUs evenly. Raise `Misfit` if no size is left.
    """
    check_network(case)
    serving = case.serving
    slots = model_of(case).architecture.experts + (serving.redundant_experts or 0)
    sizes = _with_room(case, serving.kernels, DECODES_WITH, slots)
    filled = tuple(size for size in sizes if serving.redundant_experts is None or slots % size == 0)
    return filled or _refuse(case, "serving.ep")


def _prefill_sizes(case: Case) -> tuple[int, ...]:
    """The group sizes to search for prefill, as in `sizes_of`."""
    most = model_of(case).architecture.experts
    sizes = _with_room(prefill_case(case), case.serving.prefill.kernels, PREFILLS_WITH, most)
    return sizes or _refuse(case, "serving.prefill.ep")


def _refuse(case: Case, path: str) -> NoReturn:
    raise Misfit(
        f"{path} must be stated for {case.model.name} on {case.network.fabric}: none of {LEAST} to {MOST} GPUs fits."
    )


def _with_room(case: Case, kernels: str | None, usual: str, slots: int) -> tuple[int, ...]:
    server = gpu_of(case).gpus_per_server
    every = range(LEAST, min(MOST, slots) + 1)
    step = server if server >= LEAST else math.lcm(server, LEAST)
    whole = (size for size in every if server % size == 0 or size % step == 0)
    return tuple(size for size in whole if _has_room(case, size, kernels, usual))


def _has_room(case: Case, size: int, kernels: str | None, usual: str) -> bool:
    try:
        check_size(case, size, kernels, usual)
    except Misfit:
        return False
    return True


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
    prefill = prefill_choices(_of_prefill(loaded, size))
    deployed = cached_deployment(
        loaded.with_({"serving.ep": size, "serving.prefill.ep": prefill[0].deployed.prefill.model.gpus})
    )
    for member, outcome in best_members(deployed, prefill, progress):
        yield full_row(member, outcome, arriving=arriving) | cases.differences(case, SHOWN)


def _of_prefill(case: Case, size: int) -> Case:
    """The case with fixed values for settings that prefill pools do not read, so that these are searched once."""
    return case.with_({"serving.ep": size if case.serving.redundant_experts is not None else sizes_of(case)[0]})


@cached_by_files(files_of_case, maxsize=64)
def prefill_choices(case: Case) -> list[PrefillChoice]:
    """Return the prefill pools to search: every open group size, tokens per pass and overlap that fits the memory.

    If none fits, return the largest group. Pools with the most prompt tokens per second and GPU come first. A pool is
    left out if another one of its size is no worse by any criterion and better by one. Criteria are tokens per second
    and, if the time to first token has a limit, the time of a lone prompt.
    """
    serving = case.serving
    sizes = (serving.prefill.ep,) if serving.prefill.ep else _prefill_sizes(case)
    tokens = (serving.prefill.tokens,) if serving.prefill.tokens else PASSES
    own = serving.overlap if serving.prefill.overlap is None else serving.prefill.overlap
    kept: list[PrefillChoice] = []
    for size in sizes:
        deployed, some = cached_deployment(case.with_({"serving.prefill.ep": size})), []
        for count, overlap in itertools.product(tokens, (True, False) if own is None else (own,)):
            changes = {"serving.prefill.ep": size, "serving.prefill.tokens": count, "serving.prefill.overlap": overlap}
            choice = dataclasses.replace(deployed, case=case.with_(changes))
            some += [PrefillChoice.of(choice)] if choice.prefill_fits else []
        kept += [choice for choice in some if not any(_beats(other, choice) for other in some)]
    if not kept:
        return [PrefillChoice.of(cached_deployment(case.with_({"serving.prefill.ep": sizes[-1]})))]
    return sorted(kept, key=lambda choice: choice.s_per_token)


def _beats(choice: PrefillChoice, other: PrefillChoice) -> bool:
    """Whether a pool is no worse than another of its size in any respect, and better in one."""
    timed = choice.deployed.case.serving.load.ttft_ms is not None
    each, than = ((pool.s_per_token, pool.lone_s) if timed else (pool.s_per_token,) for pool in (choice, other))
    return each != than and all(mine <= theirs for mine, theirs in zip(each, than, strict=True))


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
