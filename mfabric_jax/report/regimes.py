"""Gaps of policies to the clairvoyant trajectory, by regime and delay."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mfabric_jax import units
from mfabric_jax.report.grid import group_rows
from mfabric_jax.report.tables import plain

Rows = Sequence[dict[str, Any]]
REGIME = ("demand", "servers", "optical", "electrical", "memory", "pairs", "skew", "sigma", "routing")
LINES = ("renewal of greedy", "renewal", "learned", "tuned horizon", "next 4 known")  # beside `BEST`
BEST = "one all-to-all ahead, best"
UNSHOWN = ("clairvoyant", "next 1 known", "next 12 known")
AHEAD = ("always", "pays")  # last word of policies that weigh one all-to-all


def gaps_table(rows: Rows) -> str:
    """Return the gap of the main policies in per cent, a line for each regime and policy, a column for each delay."""
    lines = []
    for name, gaps in gaps_by_regime(rows).items():
        for policy, values in gaps.items():
            line = {delay_words(delay): gap_words(gap) for delay, gap in values.items()}
            lines.append({"regime": name, "policy": policy} | line)
            name = ""
    words = "Per cent of time beyond the best trajectory for demand that is known in advance."
    return f"{plain(lines, width=160)}\n{words}"


def gaps_by_regime(rows: Rows) -> dict[str, dict[str, dict[float, float]]]:
    """Return gaps by regime, policy and delay, those of all policies of one all-to-all reduced to the least."""
    gaps: dict[str, dict[str, dict[float, float]]] = {}
    for regime, own in group_rows(rows, *REGIME).items():
        by: dict[str, dict[float, float]] = {BEST: {}}
        for row in own:
            name, delay = row["policy"], row["delay_s"]
            if name == "uniform" or name.rsplit(" ", 1)[-1] in AHEAD:
                by[BEST][delay] = min(row["gap"], by[BEST].get(delay, math.inf))
            elif name not in UNSHOWN:
                by.setdefault(name, {})[delay] = row["gap"]
        order = [name for name in (BEST, *LINES) if name in by]
        gaps[_words(dict(zip(REGIME, regime, strict=True)))] = {name: by[name] for name in dict.fromkeys([*order, *by])}
    return gaps


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
    return f"{gap:.0f}" if abs(gap) >= 99.5 else f"{gap:.1f}"
