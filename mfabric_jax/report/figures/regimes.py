"""Gaps of policies to the clairvoyant trajectory, as coloured cells by regime and delay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import PowerNorm, to_hex
from matplotlib.figure import Figure

from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.regimes import BEST, Rows, delay_words, gap_words, gaps_by_regime

MOST = 60.0  # per cent: larger gaps have the darkest colour
CELL = 0.27  # inches


def draw_gaps(rows: Rows, path: str | Path) -> Path:
    """Draw the gaps of the main policies, a panel for each, and return the path."""
    return paper.save(lambda: build_gaps(rows), path)


def build_gaps(rows: Rows) -> Figure:
    gaps = gaps_by_regime(rows)
    shown = list(dict.fromkeys(policy for by in gaps.values() for policy in by))
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
                axes.text(across, down, gap_words(gap), ha="center", va="center", fontsize=style.FONT - 3, color=ink)
        axes.set_title(policy if policy != BEST else "one all-to-all\nahead, best", loc="left", fontsize=style.FONT - 1)
        axes.set_xticks(range(len(delays)), [delay_words(each).replace(" ", "\n") for each in delays])
        axes.tick_params(length=0, labelsize=style.FONT - 3)
        axes.spines[:].set_visible(False)
    panels[0].set_yticks(range(len(gaps)), list(gaps))
    figure.supxlabel("delay of a reconfiguration", fontsize=style.FONT - 1)
    figure.suptitle("Per cent over the clairvoyant trajectory", x=0.01, ha="left", fontsize=style.FONT + 1)
    return figure
