"""Gaps of policies to the clairvoyant trajectory, by regime and delay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mfabric_jax import units
from mfabric_jax.report.grid import group_rows
from mfabric_jax.report.tables import TableColumn, plain

Rows = Sequence[dict[str, Any]]
REGIME = ("demand", "servers", "optical", "electrical", "memory", "pairs", "skew", "sigma", "routing")
LINES = ("renewal of greedy", "renewal", "learned", "tuned horizon", "next 4 known")  # beside `BEST`
BEST = "one all-to-all ahead, best"
UNSHOWN = ("clairvoyant", "next 1 known", "next 12 known")
AHEAD = ("always", "pays")  # last word of policies that weigh one all-to-all


def gaps_table(rows: Rows) -> str:
    """Return the gap of the main policies in per cent with its interval: a table for each regime, a line for each
    policy, a column for each delay."""
    tables = []
    for name, by in rows_by_regime(rows).items():
        delays = dict.fromkeys(delay for own in by.values() for delay in own)
        columns = [TableColumn("policy", name), *(TableColumn(str(each), f"{delay_words(each):>4}") for each in delays)]
        lines = [
            {"policy": policy} | {str(delay): _with_interval(row) for delay, row in own.items()}
            for policy, own in by.items()
        ]
        tables.append(plain(lines, columns, width=160))
    words = [
        "Per cent of time beyond the best trajectory for demand that is known in advance,",
        "+- half of the 95 % interval over seeds.",
    ]
    if any(row["policy"] == "learned" for row in rows):
        words.append("learned: network `ahead` with rule `renewal`; the policy `learned` is another.")
    return "\n\n".join([*tables, "\n".join(words)])


def rows_by_regime(rows: Rows) -> dict[str, dict[str, dict[float, dict[str, Any]]]]:
    """Return rows by regime, policy and delay, those of all policies of one all-to-all reduced to the least gap."""
    found: dict[str, dict[str, dict[float, dict[str, Any]]]] = {}
    for regime, own in group_rows(rows, *REGIME).items():
        by: dict[str, dict[float, dict[str, Any]]] = {BEST: {}}
        for row in own:
            name, delay = row["policy"], row["delay_s"]
            if name == "uniform" or name.rsplit(" ", 1)[-1] in AHEAD:
                by[BEST][delay] = min(row, by[BEST].get(delay, row), key=lambda each: each["gap"])
            elif name not in UNSHOWN:
                by.setdefault(name, {})[delay] = row
        order = [name for name in (BEST, *LINES) if name in by]
        found[_words(dict(zip(REGIME, regime, strict=True)))] = {
            name: by[name] for name in dict.fromkeys([*order, *by])
        }
    return found


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


def _with_interval(row: dict[str, Any]) -> str:
    half = (row["gap_high"] - row["gap_low"]) / 2
    width = f"{half:.0f}" if half >= 9.5 else f"{half:.1f}"
    return f"{gap_words(row['gap']):>4}" + (f"+-{width}" if width != "0.0" else "")
