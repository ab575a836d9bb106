"""Facts and tables of serving on the page: GPUs of both pools, times beside their limits, the part in time."""

from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax import units
from mfabric_jax.report.html.contenders import Contender
from mfabric_jax.report.html.markup import small_table, tag, words
from mfabric_jax.report.numerals import number, percent, usable
from mfabric_jax.report.served import (
    ARRIVING,
    DECODE_GPUS,
    PREFILL_GPUS,
    half_load_usd,
    has_load,
    is_replica,
    is_served,
)

TPOT, TTFT = "tpot", "ttft"
_NAMES = {TPOT: "Time per token", TTFT: "Time to the first token"}
_FIRST_PASS = "First pass"
_UNKNOWN = "-"


def served_facts(best: Contender) -> list[tuple[str, str, str]]:
    """Return facts on a design of serving: its GPUs, its times and their limits; [] for other rows."""
    row = best.design.rows[0]
    if not is_served(row):
        return []
    facts = [_gpus(row), *(_time(row, what) for what in (TPOT, TTFT))]
    if (kept := usable(row.get("in_slo"))) is not None:
        least = usable(row.get("in_slo_limit"))
        needed = "of requests" + (f"; at least {percent(least)} must be." if least is not None else ".")
        facts.append(("In time", percent(kept), needed))
    return facts


def pools_words(row: Mapping[str, Any]) -> str:
    """Return the GPUs of both pools of a row of serving."""
    if is_replica(row):
        return f"one replica of {number(row.get('tp'))}"
    if not has_load(row):
        return f"{number(row.get('prefill_gpus'))} prefill for each decode GPU"
    return f"{number(row[DECODE_GPUS])} decode + {number(row[PREFILL_GPUS])} prefill"


def _gpus(row: Mapping[str, Any]) -> tuple[str, str, str]:
    if is_replica(row):
        return "GPUs", number(row.get("tp")), f"{pools_words(row)}; ep {number(row.get('ep'))}."
    sizes = f"ep {number(row.get('ep'))}, batch {number(row.get('batch'))}, prefill ep {number(row.get('prefill_ep'))}."
    total = row[DECODE_GPUS] + row[PREFILL_GPUS] if has_load(row) else f"groups of {number(row.get('ep'))}"
    half = half_load_usd(row)
    cost = "" if half is None else f" At half this load on average, a million answer tokens cost about ${number(half)}."
    return "GPUs", number(total), f"{pools_words(row)}; {sizes}{cost}"


def _time(row: Mapping[str, Any], what: str) -> tuple[str, str, str]:
    """A time under the load (p99), else the predicted one, beside its limit and its band."""
    if what == TTFT and is_replica(row):
        return _FIRST_PASS, _ms(row.get("ttft_s")), "of a lone prompt; a first token also waits in a queue."
    limit = usable(row.get(f"{what}_limit_s"))
    known = (
        f"limit {_ms(limit)}; " if limit is not None else "no limit was stated; " if f"{what}_limit_s" in row else ""
    )
    band = [usable(row.get(f"{what}_{end}_s")) for end in ("low", "high")]
    ends = f"band {_ms(band[0], '')} to {_ms(band[1])}" if None not in band else ""
    alone = f"{_ms(row.get(f'{what}_s'))}"
    p99 = usable(row.get(f"load_{what}_p99_s"))
    if p99 is None:
        return _NAMES[what], alone, f"{known}{ends}".strip("; ") + "."
    usual = "predicted in full batches" if what == TPOT else "in a full pass, without a queue"
    return f"{_NAMES[what]}, p99", _ms(p99), f"{known}{alone} {usual}{', ' * bool(ends)}{ends}."


def _ms(seconds: Any, unit: str = " ms") -> str:
    value = usable(seconds)
    return _UNKNOWN if value is None else f"{number(units.to_ms(value))}{unit}"


def times_section(own: Sequence[Contender]) -> str:
    """Return the times of each design as a table, with the limits above; "" for rows that are not of serving."""
    rows = [each.design.rows[0] for each in own]
    if not all(map(is_served, rows)):
        return ""
    lines = [_line(row) for row in rows]
    known = [name for name in lines[0] if any(line[name] != _UNKNOWN for line in lines)]
    table = small_table(
        [{name: line[name] for name in known} for line in lines], {"design": [each.label for each in own]}
    )
    limits = _limits(rows)
    return (tag("p", words(limits), class_="note") if limits else "") + table


def _line(row: Mapping[str, Any]) -> dict[str, str]:
    kept, arriving = usable(row.get("in_slo")), usable(row.get(ARRIVING))
    return {
        "token [ms]": _ms(row.get("tpot_s"), ""),
        "slow end [ms]": _ms(row.get("tpot_high_s"), ""),
        "token, p99 [ms]": _ms(row.get("load_tpot_p99_s"), ""),
        f"{'first pass' if is_replica(row) else 'first token'} [ms]": _ms(row.get("ttft_s"), ""),
        "first token, p99 [ms]": _ms(row.get("load_ttft_p99_s"), ""),
        "arrived after the warm-up [1/s]": _UNKNOWN if arriving is None else number(arriving),
        "in time": _UNKNOWN if kept is None else percent(kept),
    }


def _limits(rows: Sequence[Mapping[str, Any]]) -> str:
    values = {what: [usable(row.get(f"{what}_limit_s")) for row in rows] for what in (TPOT, TTFT)}
    known = {what: {value for value in own if value is not None} for what, own in values.items()}
    texts = {TPOT: "a token", TTFT: "to the first token"}
    each = [f"{' or '.join(map(_ms, sorted(limits)))} {texts[what]}" for what, limits in known.items() if limits]
    return f"Limits: {' and '.join(each)}." if each else ""
