"""The best pools on every fabric within `serving.tpot_ms`: how many GPUs share the experts in each, and the batch.

The space of a search: every size of a group that decodes (`sizes_of`) with every batch and both ways of overlap, beside
every size of a group that prefills, with its tokens of a pass and overlap; under a load with every number of groups.
`sizing` finds the best of each size that decodes; a row stands for it.
"""

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

from mfabric_jax.apps.serving import load
from mfabric_jax.apps.serving.deployment import DECODES_WITH, PREFILLS_WITH, check_size
from mfabric_jax.apps.serving.group import check_network
from mfabric_jax.apps.serving.loads import SURE
from mfabric_jax.apps.serving.rows import SHOWN, best_members, full_row, known
from mfabric_jax.apps.serving.sizing import Reader, silent
from mfabric_jax.case import Case, Cases
from mfabric_jax.case.paths import named_files
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import gpu_of, model_of
from mfabric_jax.support.text_files import cached_by_files

PASSES = 1024, 2048, 4096, 8192  # tokens of a micro-batch of prefill
LEAST, MOST = 4, 320  # GPUs that share the experts


@cached_by_files(named_files, maxsize=256)
def sizes_of(case: Case) -> tuple[int, ...]:
    """Groups from 4 to 320 GPUs that decode: whole servers (multiples of 4 where these have fewer GPUs), or parts that
    fill a server (kernels of DeepEP run on 2, 4 or 8 GPUs of one). The fabric and the kernels have room for them, and
    each GPU has at least one slot; experts and stated copies fill all GPUs evenly. `Misfit` if no size is left."""
    check_network(case)
    serving = case.serving
    slots = model_of(case).architecture.experts + (serving.redundant_experts or 0)
    sizes = _with_room(case, serving.kernels, DECODES_WITH, slots)
    filled = tuple(size for size in sizes if serving.redundant_experts is None or slots % size == 0)
    return filled or _refuse(case, "serving.ep")


def _prefill_sizes(case: Case) -> tuple[int, ...]:
    """As `sizes_of`, of the GPUs that prefill."""
    most = model_of(case).architecture.experts
    found = _with_room(case, case.serving.prefill.kernels, PREFILLS_WITH, most)
    return found or _refuse(case, "serving.prefill.ep")


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
    """Rows of `serve` for every size that decodes, of every case, one after the other; `start` as there. A row is the
    best of its size; where a time of the first token makes another pool the cheapest one, that has a row, too."""
    arriving = any(map(load.stated, cases))
    for case in cases:
        sizes_of(case)  # refuses all that is wrong before anything is solved
    each = ((case, size) for case in cases for size in sizes_of(case))
    if arriving:  # a row a size
        each, start = itertools.islice(each, start, None), 0
    rows = (row for case, size in each for row in _rows(case, size, cases, arriving, progress))
    yield from itertools.islice(rows, start, None)


def _rows(
    case: Case, size: int, cases: Cases, arriving: bool, progress: Callable[[str], None]
) -> Iterator[dict[str, Any]]:
    progress(f"{case.model.name} on {case.network.fabric}, ep {size}")
    prefill = prefill_choices(_of_prefill(case, size))
    deployed = known(case.with_({"serving.ep": size, "serving.prefill.ep": prefill[0].deployed.prefill.model.gpus}))
    for member, outcome in best_members(deployed, prefill, progress):
        yield full_row(member, outcome, arriving=arriving) | cases.differences(case, SHOWN)


def _of_prefill(case: Case, size: int) -> Case:
    """The case without what its prefill pools do not read, so that these are found once."""
    return case.with_({"serving.ep": size if case.serving.redundant_experts is not None else sizes_of(case)[0]})


@cached_by_files(named_files, maxsize=64)
def prefill_choices(case: Case) -> list[Reader]:
    """Pools that prefill, where they are open: the size of their groups, tokens of a pass and overlap, of those whose
    memory holds the weights (the largest group where none does). Those that read the most tokens a second of a GPU come
    first; of each size only those that no other one beats in tokens a second and, where a time of the first token is
    stated, in the time of a lone prompt."""
    serving = case.serving
    sizes = (serving.prefill.ep,) if serving.prefill.ep else _prefill_sizes(case)
    tokens = (serving.prefill.tokens,) if serving.prefill.tokens else PASSES
    own = serving.overlap if serving.prefill.overlap is None else serving.prefill.overlap
    kept: list[Reader] = []
    for size in sizes:
        deployed, some = known(case.with_({"serving.prefill.ep": size})), []
        for count, overlap in itertools.product(tokens, (True, False) if own is None else (own,)):
            said = {"serving.prefill.ep": size, "serving.prefill.tokens": count, "serving.prefill.overlap": overlap}
            one = dataclasses.replace(deployed, case=case.with_(said))
            some += [Reader.of(one)] if one.prefill_fits else []
        kept += [one for one in some if not any(_beats(other, one) for other in some)]
    if not kept:
        return [Reader.of(known(case.with_({"serving.prefill.ep": sizes[-1]})))]
    return sorted(kept, key=lambda one: one.read_s)


def _beats(one: Reader, other: Reader) -> bool:
    """Whether a pool is better than another of its size."""
    timed = one.deployed.case.serving.load.ttft_ms is not None
    each, than = ((pool.read_s, pool.lone_s) if timed else (pool.read_s,) for pool in (one, other))
    return each != than and all(mine <= theirs for mine, theirs in zip(each, than, strict=True))


def in_time(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those that fit their memory and keep to their times: from token to token, and to the first token; at the slow end
    of the band or as predicted, as `by` says. Under a load, those that keep `serving.load.keep` of its requests in time
    and whose pools are asked for no more than they can do: others keep up with a short load alone."""
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
    """The most tokens a second of a GPU, under a load the fewest GPUs of both pools; of several the smallest group."""
    return max(rows, key=lambda row: (_of_a_gpu(row), -row["ep"]))


def gpus_of(row: dict[str, Any]) -> int | None:
    """GPUs of both pools under a load; None without one."""
    return None if row.get("load_requests") is None else row["load_prefill_gpus"] + row["load_decode_gpus"]


def _of_a_gpu(row: dict[str, Any]) -> float:
    gpus = gpus_of(row)
    return row["tokens_per_s_per_gpu"] if gpus is None else -gpus


def cheapest(rows: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The fewest dollars a million tokens, both pools together, at its load where there is one; None without prices."""
    priced = [row for row in rows if usd_of(row) is not None]
    return min(priced, key=usd_of, default=None)


def usd_of(row: dict[str, Any]) -> Any:
    """Dollars a million tokens: at the load of a row, or of full pools."""
    return row["usd_per_million_tokens"] if row.get("load_requests") is None else row["load_usd_per_million_tokens"]
