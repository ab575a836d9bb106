"""Gaps of policies to the clairvoyant trajectory, by regime and delay: as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm, to_hex
from matplotlib.figure import Figure

from mfabric_jax import units
from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.grid import group_rows
from mfabric_jax.report.tables import plain

Rows = Sequence[dict[str, Any]]
REGIME = ("demand", "servers", "optical", "electrical", "memory", "pairs", "skew", "sigma", "routing")
LINES = ("renewal", "learned", "tuned horizon", "next 4 known")  # beside the best of all policies of one all-to-all
BEST = "one all-to-all ahead, best"
AHEAD = ("always", "pays")  # last word of policies that weigh one all-to-all
MOST = 60.0  # per cent: larger gaps have the darkest colour
CELL = 0.27  # inches


def gaps_table(rows: Rows) -> str:
    """Return the gap of the main policies in per cent, a line for each regime and policy, a column for each delay."""
    lines = []
    for name, gaps in _gaps(rows).items():
        for policy, values in gaps.items():
            line = {_delay(delay): _text(gap) for delay, gap in values.items()}
            lines.append({"regime": name, "policy": policy} | line)
            name = ""
    words = "Time over that of the best trajectory for demand that is known in advance, in per cent more."
    return f"{plain(lines, width=160)}\n{words}"


def draw_gaps(rows: Rows, path: str | Path) -> Path:
    """Draw the gaps of the main policies, a panel for each, and return the path."""
    return paper.save(lambda: build_gaps(rows), path)


def build_gaps(rows: Rows) -> Figure:
    gaps = _gaps(rows)
    shown = [policy for policy in (BEST, *LINES) if any(policy in by for by in gaps.values())]
    delays = list(dict.fromkeys(row["delay_s"] for row in rows))
    scale = ScalarMappable(PowerNorm(0.5, 0, MOST), "Blues")
    figure = Figure(figsize=(2.2 + 1.75 * len(shown), 1.1 + CELL * len(gaps)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    for axes, policy in zip(panels, shown, strict=True):
        cells = np.array([[by.get(policy, {}).get(delay, np.nan) for delay in delays] for by in gaps.values()])
        axes.imshow(np.clip(cells, 0, MOST), scale.cmap, scale.norm, aspect="auto", interpolation="nearest")
        for (down, across), gap in np.ndenumerate(cells):
            if np.isfinite(gap):
                colour: Any = scale.to_rgba(min(max(gap, 0), MOST))
                ink = style.ink_on(to_hex(colour))
                axes.text(across, down, _text(gap), ha="center", va="center", fontsize=style.FONT - 3, color=ink)
        axes.set_title(policy if policy != BEST else "one all-to-all\nahead, best", loc="left", fontsize=style.FONT - 1)
        axes.set_xticks(range(len(delays)), [_delay(each).replace(" ", "\n") for each in delays])
        axes.tick_params(length=0, labelsize=style.FONT - 3)
        axes.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(gaps)), list(gaps))
    figure.supxlabel("delay of a reconfiguration", fontsize=style.FONT - 1)
    figure.suptitle("Per cent over the clairvoyant trajectory", x=0.01, ha="left", fontsize=style.FONT + 1)
    return figure


def _gaps(rows: Rows) -> dict[str, dict[str, dict[float, float]]]:
    """Return gaps by regime, policy and delay, those of all policies of one all-to-all reduced to the least."""
    gaps: dict[str, dict[str, dict[float, float]]] = {}
    for regime, own in group_rows(rows, *REGIME).items():
        by: dict[str, dict[float, float]] = {BEST: {}}
        for row in own:
            name, delay = row["policy"], row["delay_s"]
            if name == "uniform" or name.rsplit(" ", 1)[-1] in AHEAD:
                by[BEST][delay] = min(row["gap"], by[BEST].get(delay, np.inf))
            elif name in LINES or row["learned"]:
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


def _delay(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{units.to_us(seconds):g} us" if seconds else "0"
    return f"{units.to_ms(seconds):g} ms"


def _text(gap: float) -> str:
    return f"{gap:.0f}" if abs(gap) >= 99.5 else f"{gap:.1f}"
