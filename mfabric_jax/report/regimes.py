"""Gaps of policies to the clairvoyant trajectory, by regime and delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mfabric_jax import units
from mfabric_jax.report.grid import group_rows
from mfabric_jax.report.tables import TableColumn, plain, wrap

Rows = Sequence[dict[str, Any]]
REGIME = ("demand", "servers", "optical", "electrical", "memory", "pairs", "skew", "sigma", "routing")
LINES = ("renewal of greedy", "renewal", "learned", "tuned horizon", "next 4 known")  # beside `BEST`
BEST = "one all-to-all ahead, best"
PUBLISHED = "greedy always"  # the paper's; also one of those of `BEST`
UNSHOWN = ("clairvoyant", "next 1 known", "next 12 known")
AHEAD = ("always", "pays")  # last word of policies that weigh one all-to-all


def gaps_table(rows: Rows, bytes_per_server: float) -> str:
    """Return the gap of the main policies in per cent with its interval: a table for each regime, a line for each
    policy, a column for each delay. Then say how long an all-to-all takes at least, to judge delays against it."""
    tables = [_table(name, by) for name, by in rows_by_regime(rows).items()]
    words = [
        "gap: time beyond the best trajectory for demand that is known in advance,",
        "+- half of the 95 % interval over seeds.",
    ]
    if any(row["policy"] == "learned" for row in rows):
        words.append("learned: network `ahead` with rule `renewal`; the policy `learned` is another.")
    words.append(wrap(_load_words(rows, bytes_per_server)))
    return "\n\n".join([*tables, "\n".join(words)])


def _load_words(rows: Rows, bytes_per_server: float) -> str:
    """A server's mean bytes and their time on all its NICs: all-to-alls of equally loaded servers take that long."""
    speeds = {row["optical"] + row["electrical"]: row["nic_gbps"] for row in rows}
    times = [
        f"{units.to_ms(bytes_per_server / units.gbps(nics * gbps)):.3g} ms on {nics} NICs"
        for nics, gbps in sorted(speeds.items())
    ]
    sent = units.to_gigabytes(bytes_per_server)
    return f"A server sends {sent:.3g} GB in a mean all-to-all, which takes at least {' or '.join(times)}."


def _table(regime: str, by: dict[str, dict[float, dict[str, Any]]]) -> str:
    lines, columns = {policy: {"policy": policy} for policy in by}, [TableColumn("policy", f"{regime}: gap [%]")]
    for delay in dict.fromkeys(delay for own in by.values() for delay in own):
        rows = {policy: own[delay] for policy, own in by.items() if delay in own}
        wide = max(len(gap_words(row["gap"])) for row in rows.values())
        columns.append(TableColumn(str(delay), delay_words(delay).rjust(wide)))
        for policy, row in rows.items():
            lines[policy][str(delay)] = gap_words(row["gap"]).rjust(wide) + _half_words(row)
    return plain(list(lines.values()), columns, width=160)


def rows_by_regime(rows: Rows) -> dict[str, dict[str, dict[float, dict[str, Any]]]]:
    """Return rows by regime, policy and delay, those of all policies of one all-to-all reduced to the least gap.

    The published policy also has its own line."""
    regimes: dict[str, dict[str, dict[float, dict[str, Any]]]] = {}
    for regime, own in group_rows(rows, *REGIME).items():
        by: dict[str, dict[float, dict[str, Any]]] = {BEST: {}}
        for row in own:
            name, delay = row["policy"], row["delay_s"]
            if name == "uniform" or name.rsplit(" ", 1)[-1] in AHEAD:
                by[BEST][delay] = min(row, by[BEST].get(delay, row), key=lambda each: each["gap"])
                if name == PUBLISHED:
                    by.setdefault(name, {})[delay] = row
            elif name not in UNSHOWN:
                by.setdefault(name, {})[delay] = row
        order = [name for name in (PUBLISHED, BEST, *LINES) if name in by]
        regimes[_words(dict(zip(REGIME, regime, strict=True)))] = {
            name: by[name] for name in dict.fromkeys([*order, *by])
        }
    return regimes


def _words(regime: dict[str, Any]) -> str:
    words = [f"{regime['servers']} servers", f"{regime['optical']} + {regime['electrical']}"]
    if regime["demand"] == "drift":
        words += [f"{name} {regime[name]:g}" for name in ("memory", "pairs", "skew") if regime[name] != USUAL[name]]
    else:
        words.append(regime["demand"])
    if regime["sigma"] != USUAL["sigma"]:
        words.append("known" if float(regime["sigma"]) == 0 else f"sigma {regime['sigma']}")
    if regime["routing"] != USUAL["routing"]:
        words.append(regime["routing"])
    return ", ".join(words)


USUAL = {"memory": 0.98, "pairs": 0.5, "skew": 1.0, "sigma": "previous", "routing": "split"}  # left out of names


def delay_words(seconds: float) -> str:
    if seconds < units.ms(1):
        return f"{units.to_us(seconds):g} us" if seconds else "0"
    return f"{units.to_ms(seconds):g} ms"


def gap_words(gap: float) -> str:
    return f"{gap:z.0f}" if abs(gap) >= 99.5 else f"{gap:z.1f}"


def _half_words(row: dict[str, Any]) -> str:
    """Return half of the interval; nothing if it rounds to 0."""
    half = (row["gap_high"] - row["gap_low"]) / 2
    words = f"{half:.0f}" if half >= 9.5 else f"{half:.1f}"
    return f"+-{words}" if words != "0.0" else ""
