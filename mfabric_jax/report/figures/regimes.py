"""Gaps of policies to the clairvoyant trajectory: lines over delays for a few regimes, else coloured cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm, to_hex
from matplotlib.figure import Figure

from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.regimes import BEST, LINES, PUBLISHED, Rows, delay_words, gap_words, rows_by_regime

MOST = 60.0  # per cent: larger gaps have the darkest colour
CELL = 0.27  # inches
PANELS = 3  # regimes up to which each has a panel of lines
TITLE = "Per cent over the clairvoyant trajectory"
TICKS = (0, 1, 5, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)  # per cent
SPREAD = 0.2  # of the distance between two delays: policies stand side by side, so that intervals are apart
ROOM = 4  # the published policy widens the axis up to this multiple of the other policies' largest gap


def draw_gaps(rows: Rows, path: str | Path) -> Path:
    """Draw the gaps of the main policies and return the path: a panel for each policy, or for each of a few regimes."""
    return paper.save(lambda: build_gaps(rows), path)


def build_gaps(rows: Rows) -> Figure:
    by_regime = rows_by_regime(rows)
    shown = list(dict.fromkeys(policy for by in by_regime.values() for policy in by))
    delays = list(dict.fromkeys(row["delay_s"] for row in rows))
    return (_lines if len(by_regime) <= PANELS else _cells)(by_regime, shown, delays)


def _cells(by_regime: dict[str, Any], shown: list[str], delays: list[float]) -> Figure:
    scale = ScalarMappable(PowerNorm(0.5, 0, MOST), "Blues")
    figure = Figure(figsize=(2.2 + 1.75 * len(shown), 1.1 + CELL * len(by_regime)), layout="constrained")
    panels = np.atleast_1d(figure.subplots(1, len(shown), sharey=True))
    for axes, policy in zip(panels, shown, strict=True):
        cells = np.array([_values(by.get(policy, {}), delays, "gap") for by in by_regime.values()])
        axes.imshow(np.clip(cells, 0, MOST), scale.cmap, scale.norm, aspect="auto", interpolation="nearest")
        for (down, across), gap in np.ndenumerate(cells):
            if np.isfinite(gap):
                colour: Any = scale.to_rgba(min(max(gap, 0), MOST))
                ink = style.ink_on(to_hex(colour))
                axes.text(across, down, gap_words(gap), ha="center", va="center", fontsize=style.FONT - 3, color=ink)
        axes.set_title(policy if policy != BEST else "one all-to-all\nahead, best", loc="left", fontsize=style.FONT - 1)
        axes.set_xticks(range(len(delays)), [delay_words(each).replace(" ", "\n") for each in delays])
        axes.tick_params(length=0, labelsize=style.FONT - 3)
        axes.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(by_regime)), list(by_regime))
    figure.supxlabel("delay of a reconfiguration", fontsize=style.FONT - 1)
    paper.set_heading(figure, TITLE)
    return figure


def _lines(by_regime: dict[str, Any], shown: list[str], delays: list[float]) -> Figure:
    """Draw a panel for each regime: gap over delay with its interval, own policies thick and others thin."""
    looks = style.distinct_looks(shown)
    figure, panels = paper.panels(len(by_regime), [], width=5.8, height=4.0)
    for axes, (regime, by) in zip(panels, by_regime.items(), strict=False):
        for number, (policy, look) in enumerate(looks.items()):
            aside = SPREAD * ((number + 0.5) / len(shown) - 0.5)
            _line(axes, policy, look, aside, *(_values(by.get(policy, {}), delays, key) for key in ENDS))
        _scale(axes, _most(by))
        axes.set_xticks(range(len(delays)), [delay_words(each) for each in delays])
        axes.set_xlabel("delay of a reconfiguration")
        axes.set_ylabel("% over clairvoyant, 95 % intervals")
        axes.set_title(regime, loc="left")
    handles = panels[0].get_legend_handles_labels()[0]
    paper.legend(figure, panels, len(by_regime), handles)
    return figure


def _most(by: dict[str, Any]) -> float:
    """Return the largest gap of an axis: the published policy loses orders of magnitude at long delays."""
    largest = {policy: max(row["gap"] for row in own.values()) for policy, own in by.items()}
    others = max(gap for policy, gap in largest.items() if policy != PUBLISHED)
    return max(others, min(largest.get(PUBLISHED, 0.0), ROOM * others))


ENDS = ("gap", "gap_low", "gap_high")


def _line(axes: Axes, policy: str, look: style.Look, aside: float, gap: Any, low: Any, high: Any) -> None:
    thick = 1.2 if policy in (PUBLISHED, BEST, *LINES) else 2.2
    axes.errorbar(
        np.arange(len(gap)) + aside,
        gap,
        [gap - low, high - gap],
        label=policy,
        color=look.colour,
        marker=look.marker,
        markersize=5,
        linewidth=thick,
        linestyle="--" if policy.startswith("next ") else "-",
        elinewidth=0.8,
        capsize=0,
        markerfacecolor=style.PAPER if look.hollow else look.colour,
    )


def _scale(axes: Axes, most: float) -> None:
    """Make the axis that of roots, from 0 to a little over the largest gap; intervals may go beyond."""
    axes.set_yscale("function", functions=(lambda gap: np.sign(gap) * np.sqrt(np.abs(gap)), lambda root: root**2))
    top = 1.3 * max(most, 1.0)
    ticks = [tick for tick in TICKS if tick == 0 or 0.003 * top < tick <= top]
    axes.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.set_ylim(-0.002 * top, top)
    axes.grid(axis="y")


def _values(own: dict[float, dict[str, Any]], delays: list[float], key: str) -> np.ndarray:
    return np.array([own.get(delay, {}).get(key, np.nan) for delay in delays])
