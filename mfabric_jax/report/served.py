"""Rows of serving as candidates of a ranking: those in time, each with its job and its price.

Under a load, dollars are those at the load; else those of full pools. Rows of different loads or time limits are
different jobs.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mfabric_jax import units
from mfabric_jax.fabric.registry import joins_groups, keep_joined
from mfabric_jax.report.grid import GPU, TOKEN_USD, Rows, group_rows, setting_name, values_of
from mfabric_jax.report.numerals import join_names, number, percent, usable
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.measured_errors import MEASURED
from mfabric_jax.workload.gpus import GPUS

pools = LazyModule("mfabric_jax.case.pools_of_row")

PER_USER, PER_GPU = "tokens_per_s_per_user", "tokens_per_s_per_gpu"
LIMIT, FIRST_LIMIT = "tpot_limit_s", "ttft_limit_s"
IN_TIME, LOAD_USD = "in_time", "load_usd_per_million_tokens"
POOLS = DECODE_GPUS, PREFILL_GPUS = "load_decode_gpus", "load_prefill_gpus"
RATE, ARRIVING = "serving.load.rate", "load_requests_per_s"
_OF_LOAD = "serving.load.", "serving.prompt", "serving.answer"
_LIMITS = {  # settings by column, the first stated one, and what turns their values into those of rows
    LIMIT: (("serving.load.tpot_ms", "serving.tpot_ms"), units.ms),
    FIRST_LIMIT: (("serving.load.ttft_ms",), units.ms),
    "in_slo_limit": (("serving.load.keep",), float),
}
_TIME_LIMITS = {LIMIT: "a token", FIRST_LIMIT: "to the first token"}  # in words
_TOLD = "serving.by", *(path for name in _TIME_LIMITS for path in _LIMITS[name][0])  # settings that have a column
HEADROOM = "headroom"  # sentences in the configuration beside rows
_GROUPS = "_groups"  # numbers of groups are a choice, not a load
_CHOICES = (
    *("kernels", "precision", "ep", "tp", "batch", "context", "overlap", "expert_load", "prefill_ep"),
    *("attention_gpus", "expert_gpus", "micro_batches", "by"),
)
NIC = "nic_gbps"
NAMED = GPU, "ep"  # choices that names of all designs have if rows differ in them
_SAME = 0.0001  # relative: two times or prices within it count as equal


def is_served(row: Mapping[str, Any]) -> bool:
    """Return whether a row is one of `mfabric serve`."""
    return PER_USER in row and usable(row.get(PER_GPU)) is not None


def is_replica(row: Mapping[str, Any]) -> bool:
    """Return whether a row is one of `mfabric serve --clients`: of GPUs that prefill and decode, without a network."""
    return is_served(row) and row.get("fabric") is None


def has_load(row: Mapping[str, Any]) -> bool:
    return row.get(DECODE_GPUS) is not None


def with_limits(rows: Rows, resolved: Mapping[str, Any]) -> Rows:
    """Return rows of serving with their limits: those of their columns, else of the settings of all rows."""
    if not is_served(rows[0]):
        return rows
    return [{**row, **_limits(row, resolved)} for row in rows]


def _limits(row: Mapping[str, Any], resolved: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that no column of a row has, from the settings in which runs differ, or those of all rows."""
    known = {}
    for name, (paths, of) in _LIMITS.items():
        if row.get(name) is not None:
            continue
        values = [(row if path in row else resolved)[path] for path in paths if path in row or path in resolved]
        value = next((value for value in values if value is not None), None)
        if values and not isinstance(value, list):
            known[name] = None if value is None else of(value)
    return known


def usd_column(row: Mapping[str, Any]) -> str:
    """Return the column of the dollars that rank a row."""
    return LOAD_USD if has_load(row) else TOKEN_USD


def is_late(row: Mapping[str, Any]) -> bool:
    """Return whether a row fits the memory but is not in time."""
    return row.get(IN_TIME) is False and row.get("fits") is not False


def candidates(rows: Rows) -> Rows:
    """Return the rows with their job as `model`, their GPU as `gpu.name`, and one kind of dollars.

    Of rows with equal settings, the cheapest one stays; of equal dollars, the one with the sooner first token. Rows
    whose dollars lack links between groups stay only if all of a job do.
    """
    every = list(map(_candidate, _rows_to_rank(rows)))
    keys = [name for name in ("model", "fabric", NIC, *choices(every)) if name in every[0]]
    return [min(same, key=lambda row: (_usd(row), first_token_s(row))) for same in group_rows(every, *keys).values()]


def _candidate(row: Mapping[str, Any]) -> dict[str, Any]:
    own = {GPU if name == "gpu" else name: value for name, value in row.items()}
    if all(name in row for name in pools.POOL_COLUMNS.values()):  # groups that one file states, another one finds
        own |= {path: value for path, value in pools.settings_of_pools(row).items() if path in own}
    return own | ({TOKEN_USD: None} if has_load(row) else {LOAD_USD: None})


def _rows_to_rank(rows: Rows) -> Rows:
    """The rows that may rank by dollars and those without dollars, with their job as `model`."""
    named = [{**row, "model": job} for row, job in zip(rows, _jobs(rows), strict=True)]
    kept: list[Mapping[str, Any]] = []
    for own in group_rows(named, "model").values():
        kept += keep_joined([row for row in own if _usd(row) < math.inf])
        kept += [row for row in own if _usd(row) == math.inf]
    return kept


def unjoined_words(rows: Rows) -> Iterator[str]:
    """Yield which fabrics lack links between groups in their dollars, so that they do not rank or only with each
    other. `rows`: in time."""
    if not (every := [name for name in values_of(rows, "fabric") if not joins_groups(name)]):
        return
    ranked = [name for name in values_of(_rows_to_rank(rows), "fabric") if name in every]
    lack = "the dollars lack the links that carry caches from prefill to decode groups"
    if apart := [name for name in every if name not in ranked]:
        yield f"Not ranked, because {lack}: {join_names(apart)}."
    if ranked:
        yield f"{join_names(ranked)}: {lack}."


def _usd(row: Mapping[str, Any]) -> float:
    usd = usable(row.get(usd_column(row)))
    return math.inf if usd is None else usd


def first_token_s(row: Mapping[str, Any]) -> float:
    """Return the seconds to a first token that break ties in dollars: under the load (p99), else without a queue."""
    known = (usable(row.get(name)) for name in ("load_ttft_p99_s", "ttft_s"))
    return next((value for value in known if value is not None), math.inf)


def choices(rows: Rows) -> list[str]:
    """Return the columns that make a design: choices of serving, and settings that do not change the load."""
    names = [name for name in settings_apart(rows[0]) if name != GPU]
    others = [name for name in names if not name.startswith(_OF_LOAD) or name.endswith(_GROUPS)]
    return [GPU, *(name for name in _CHOICES if name in rows[0]), *others]


def settings_apart(row: Mapping[str, Any]) -> list[str]:
    """Return the columns of settings in which rows differ, without those that another column tells."""
    return [name for name in row if "." in name and name not in (*_TOLD, *pools.POOL_COLUMNS)]


def _jobs(rows: Rows) -> list[str]:
    """The model of each row, with what differs between loads, and the time limits if these differ."""
    names = [name for name in settings_apart(rows[0]) if name.startswith(_OF_LOAD) and not name.endswith(_GROUPS)]
    names = [name for name in names if len({_comparable(row.get(name)) for row in rows if has_load(row)}) > 1]
    several = len({(has_load(row), row.get(ARRIVING)) for row in rows}) > 1
    limits = [name for name in _TIME_LIMITS if len({usable(row.get(name)) for row in rows}) > 1]
    return [
        ", ".join([str(row.get("model") or ""), *_load_words(row, names, several), *_limit_words(row, limits)])
        for row in rows
    ]


def _limit_words(row: Mapping[str, Any], names: Sequence[str]) -> Iterator[str]:
    """The limits of a row, such as "40 ms a token"."""
    for name in names:
        limit_s = usable(row.get(name))
        yield f"{'no limit' if limit_s is None else f'{number(units.to_ms(limit_s))} ms'} {_TIME_LIMITS[name]}"


def _load_words(row: Mapping[str, Any], names: Sequence[str], several: bool) -> list[str]:
    """The settings of the load of a row; without them the requests that arrive, if rows have several loads."""
    if several and not has_load(row):
        return ["without a load"]
    known = [f"{setting_name(name)} {number(_comparable(row[name]))}" for name in names if row.get(name) is not None]
    rate = usable(row.get(ARRIVING))
    return known or ([f"{number(rate)} requests/s"] if several and rate is not None else [])


def _comparable(value: Any) -> Any:
    """A number for a number that is written as text, since columns with a text have texts alone."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return str(value)


def have_equal_errors(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two rows have equal times and equal pools, so that the model's error scales both alike."""
    times = [usable(each.get("tpot_s")) or 0.0 for each in (row, other)]
    same = math.isclose(*times, rel_tol=_SAME)
    return same and all(row.get(name) == other.get(name) for name in (*POOLS, "prefill_gpus"))


def remarks(shown: Rows) -> Iterator[str]:
    """Yield that other fabrics take the times of the best row, so that only their prices differ."""
    if not shown or not is_served(shown[0]):
        return
    best, *others = shown
    if words := locality_words(best, _server_of(best)):
        yield words
        return
    same = [str(row["fabric"]) for row in others if row.get(GPU) == best.get(GPU) and have_equal_errors(best, row)]
    if fabrics := [name for name in dict.fromkeys(same) if name != best["fabric"]]:
        yield (
            f"{best['fabric']} takes the same time per token as {' and '.join(fabrics)}: they differ only in the price "
            "of their network."
        )


def locality_words(row: Mapping[str, Any], server: int) -> str | None:
    """Return that the groups of a row lie inside servers of `server` GPUs, so that only caches cross its network; None
    if they do not."""
    sizes = [usable(row.get(name)) for name in ("ep", "prefill_ep")]
    if None in sizes or max(sizes) > server:  # type: ignore[type-var]
        return None
    busy = usable(row.get("kv_busiest_nic"))
    used = "" if busy is None else f" (busiest NIC {percent(busy)} of the time)"
    each = dict.fromkeys(map(number, sizes))
    return (
        f"EP {' and '.join(each)} {'fit' if len(each) > 1 else 'fits'} into one server; the network carries only "
        f"caches{used}. Take the simplest network; slower NICs may do (--nic-gbps 100,200,400)."
    )


def measured_words(facts: Mapping[str, Mapping[str, Any]], rows: Rows, best: Rows) -> str:
    """Return on which GPUs and sizes steps were measured, and which GPUs of rows and sizes of the best lie outside.

    - `facts`: of measured steps and passes, by what they are.
    """
    gpus = sorted({name for own in facts.values() for name in own["gpus"]})
    sizes = {what: join_names(list(map(str, own["ep"]))) for what, own in facts.items()}
    named = dict.fromkeys(row[name] for row in rows for name in ("gpu", "prefill_gpu") if row.get(name) is not None)
    without = [name for name in named if name not in gpus]
    without += [f"decoding at ep {size}" for size in sorted({row["ep"] for row in best} - {*facts["tpot"]["ep"]})]
    lacking = f"; {join_names(without)} {'was' if len(without) == 1 else 'were'} not measured" if without else ""
    steps = sum(own["steps"] for own in facts.values())
    return (
        f"{steps} steps and passes were measured, on {join_names(gpus)}: decoding "
        f"at ep {sizes['tpot']}, prefill at ep {sizes['prefill']}{lacking}."
    )


def page_remarks(rows: Rows, effective: Mapping[str, Any]) -> Iterator[str]:
    """Yield which steps were measured and the headroom of the best, as far as the configuration of pools says so."""
    known = [row for row in rows if is_served(row) and row.get(IN_TIME) is True]
    if known and MEASURED in effective:
        best = [min(own, key=_usd) for own in group_rows(known, "model").values()]
        yield measured_words(effective[MEASURED], rows, best)
    yield from effective.get(HEADROOM, ()) if known else ()


def _server_of(row: Mapping[str, Any]) -> int:
    """GPUs of a server of a row; 0 if its GPU is not in the catalogue."""
    known = GPUS.get(str(row.get(GPU)))
    return 0 if known is None else known.gpus_per_server


def are_tied(value: float, other: float) -> bool:
    return math.isclose(value, other, rel_tol=_SAME)


def verdict_without(rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Return that no row is in time, if rows are of serving and some fit; None otherwise."""
    known = [row for row in rows if is_served(row)]
    ranked = any(row.get(IN_TIME) is not False for row in known)
    return None if ranked or not any(map(is_late, known)) else "No design is in time"


def arrival_words(row: Mapping[str, Any], resolved: Mapping[str, Any]) -> str:
    """Return the load of a row, such as "at 40 requests/s": the stated rate, else that of the requests."""
    stated = [row.get(RATE), resolved.get(RATE), row.get(ARRIVING)]
    known = next((value for value in map(_number, stated) if value is not None), None)
    return "under the load" if known is None else f"at {number(known)} requests/s"


def half_load_usd(row: Mapping[str, Any]) -> float | None:
    """Return the dollars per million answer tokens where pools that are paid for a load have half of it on average."""
    usd = usable(row.get(LOAD_USD))
    return None if usd is None else 2 * usd


def replica_words(row: Mapping[str, Any]) -> str:
    """Return what stands behind the dollars of a replica: no network, and whether a limit on tokens was stated."""
    return " without a network" + ("; no limit was stated" if row.get(LIMIT) is None else "")


def _number(value: Any) -> float | None:
    return None if isinstance(value, list | dict) else usable(value)
