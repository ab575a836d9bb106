"""Figures in the style of this package: paper, panels, keys, files."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from mfabric_jax.report.style import EXTENSIONS, FAINT, FONT, INK, PAPER, RULE, SOFT, wrap_text
from mfabric_jax.support.atomic import replacing, suffix

DPI = 150
_KEY_LINE = 0.25  # inches per line of the key
_HEADING, _NOTE_LINE, _BELOW, _LEFT, _TOP = 0.27, 0.175, 0.1, 0.12, 0.1  # inches
_RC: dict[str, Any] = {
    "font.size": FONT,
    "axes.titlesize": FONT + 1,
    "axes.titleweight": "bold",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": RULE,
    "figure.facecolor": PAPER,
    "legend.frameon": False,
}


def font(part: float) -> float:
    return part * matplotlib.rcParams["font.size"]


@contextmanager
def look(**settings: Any) -> Iterator[None]:
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "constrained_layout not applied")  # names may leave no room for axes
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC | settings)  # pyright: ignore
        yield


def blank(width: float, height: float, arranged: bool = True) -> Figure:
    """Return an empty figure of a size in inches; `arranged`: matplotlib lays out its contents."""
    engine = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12) if arranged else None
    figure = Figure(figsize=(width, height), dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
    return figure


def panels(
    count: int, key: Sequence[Artist] = (), width: float = 5.8, height: float = 3.3
) -> tuple[Figure, list[Axes]]:
    """Return a figure of `count` panels in two columns, with room for a key; a single panel is wider."""
    columns = min(count, 2)
    lines, wide = -(-count // columns), width * 1.4 if columns == 1 else width * columns
    below = 0 if count % columns or not key else -(-len(key) // key_columns(key, wide)) - 1
    figure = blank(wide, height * lines + 0.7 + _KEY_LINE * below)
    axes = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes


def set_heading(figure: Figure, heading: str, note: str = "") -> None:
    """Write a bold heading and a grey note above the panels, from the left; the figure grows by their height."""
    lines = wrap_text(note, figure.get_figwidth()) if note else ""
    first, below = _HEADING if heading else 0.0, _NOTE_LINE * len(lines.splitlines()) + (_BELOW if lines else 0.0)
    taken, high = first + below, figure.get_figheight()
    figure.set_figheight(high + taken)
    whole, left = high + taken, _LEFT / figure.get_figwidth()
    figure.suptitle(
        heading, x=left, y=1 - _TOP / whole, ha="left", va="top", fontsize=FONT + 2, fontweight="bold"
    ).set_in_layout(False)
    figure.text(left, 1 - (_TOP + first) / whole, lines, ha="left", va="top", fontsize=FONT, color=SOFT).set_in_layout(
        False
    )
    engine = figure.get_layout_engine()
    if isinstance(engine, ConstrainedLayoutEngine):
        engine.set(rect=(0, 0, 1, high / whole))


def key_columns(handles: Sequence[Artist], inches: float) -> int:
    """Return the number of columns of a key that fit into a width."""
    longest = max((len(str(handle.get_label())) for handle in handles), default=0)
    return max(1, min(len(handles), int(inches / (0.6 + 0.075 * longest))))


def legend(figure: Figure, axes: Sequence[Axes], count: int, handles: Sequence[Artist]) -> None:
    """Draw the key of a figure of `count` panels: in the free panel, or else below."""
    if len(axes) > count:
        axes[-1].legend(handles=list(handles), loc="center", fontsize=FONT + 1)
        return
    fit = key_columns(handles, figure.get_figwidth())
    figure.legend(handles=list(handles), loc="outside lower center", ncols=fit)


def save(build: Callable[[], Figure], path: str | Path) -> Path:
    """Build a figure in this style, write it atomically and return the path."""
    path = Path(path)
    form = suffix("figure", path, EXTENSIONS)[1:]
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form)  # same rows, same bytes
    with look(**{"svg.hashsalt": "mfabric"}):
        figure = build()
        with replacing(path) as (part,):
            figure.savefig(part, format=form, dpi=DPI, metadata=undated)
    return path
