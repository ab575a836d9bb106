"""One look for all figures: the colour, marker and label of each fabric; paper, fonts and how a figure is saved.

Fabrics take the eight colours of Okabe and Ito (yellow darkened, to be seen on white), parts of an iteration and kinds
of work take Tol's muted ones: both are made for colour-blind readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mfabric_jax.atomic import check_folder, replacing, suffix
from mfabric_jax.extras import extra
from mfabric_jax.report.grid import Series

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DPI = 150
EXTENSIONS = (".png", ".pdf", ".svg")
INK = "#222222"
FAINT = "#8a8a8a"
FONT = 10.0


@dataclass(frozen=True)
class Look:
    """How one thing is drawn and what a reader calls it."""

    label: str
    colour: str
    marker: str = "o"


FABRICS = {
    "fat-tree": Look("Fat-tree", "#0072B2", "s"),
    "oversub-fat-tree": Look("Oversubscribed fat-tree", "#56B4E9", "v"),
    "rail-optimized": Look("Rail-optimized", "#009E73", "D"),
    "rail-only": Look("Rail-only", "#C9B400", "^"),
    "topoopt": Look("TopoOpt", "#CC79A7", "P"),
    "mfabric": Look("mFabric", "#D55E00", "o"),
    "nvl72": Look("NVL72", "#4D4D4D", "X"),
    "mfabric-cpo": Look("mFabric CPO", "#E69F00", "h"),
}
PARTS = {
    "compute_s": Look("Compute", "#C3CAD3"),
    "tp_comm_s": Look("TP communication", "#882255"),
    "ep_comm_s": Look("EP communication", "#CC6677"),
    "dp_comm_s": Look("DP communication", "#DDCC77"),
    "reconfig_s": Look("Reconfiguration", "#332288"),
    "bubble_s": Look("Pipeline bubble", "#FFFFFF"),
}
KINDS = {
    "attention": Look("Attention", "#88CCEE"),
    "experts": Look("Experts", "#44AA99"),
    "all-to-all": Look("All-to-all", PARTS["ep_comm_s"].colour),
    "tp": Look("TP communication", PARTS["tp_comm_s"].colour),
    "reconfigure": Look("Reconfiguration", PARTS["reconfig_s"].colour),
    "dense": Look("Dense", "#999933"),
    "dp": Look("DP communication", PARTS["dp_comm_s"].colour),
    "waiting": Look("Waiting", "#B9A6E0"),
}
HATCHES = ("", "///", "...", "xxx", "\\\\\\")

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
    "grid.color": "#e3e3e3",
    "hatch.linewidth": 0.8,
    "figure.facecolor": "white",
    "legend.frameon": False,
}


def fabric(name: str) -> Look:
    """The look of a fabric; one that is not in the palette is grey under its own name."""
    return FABRICS.get(name, Look(name, FAINT))


def kind(name: str) -> Look:
    """The look of a kind of work."""
    return KINDS.get(name, Look(name, FAINT))


def label(series: Series) -> str:
    """What a reader calls a series."""
    return series.named(fabric(series.fabric).label)


def hatch(series: Series) -> str:
    """The fill that tells series of one fabric apart; the first is plain."""
    return HATCHES[series.rank % len(HATCHES)]


def ink_on(colour: str) -> str:
    """Black or white, whichever can be read on a colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return INK if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "white"


@contextmanager
def look() -> Iterator[None]:
    """Matplotlib's own defaults and this style, whatever the reader's settings; put back afterwards."""
    with extra("plot", "drawing figures"):
        import matplotlib
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_RC)  # pyright: ignore
        yield


def blank(width: float, height: float, arranged: bool = True) -> Figure:
    """An empty figure of a size in inches, drawn without a display; matplotlib arranges what is in it, if asked."""
    with extra("plot", "drawing figures"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.layout_engine import ConstrainedLayoutEngine
    engine = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12) if arranged else None
    figure = Figure(figsize=(width, height), dpi=DPI, layout=engine)
    FigureCanvasAgg(figure)
    return figure


def panels(count: int, width: float = 5.8, height: float = 3.3) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels in two columns (one panel is wider instead)."""
    columns = min(count, 2)
    lines = -(-count // columns)
    figure = blank(width * 1.4 if columns == 1 else width * columns, height * lines + 0.7)
    axes = list(figure.subplots(lines, columns, squeeze=False).ravel())
    for spare in axes[count:]:
        spare.set_axis_off()
    return figure, axes


def legend(figure: Figure, axes: Sequence[Axes], count: int, handles: Sequence[Artist]) -> None:
    """The key of a figure of `count` panels: in the panel left over, or else below."""
    if len(axes) > count:
        axes[-1].legend(handles=list(handles), loc="center", fontsize=FONT + 1)
        return
    columns = max(1, min(len(handles), round(figure.get_figwidth() / 3)))
    figure.legend(handles=list(handles), loc="outside lower center", ncols=columns)


def check_picture(path: str | Path) -> None:
    """Say now, before a long run, that a figure could not be written there."""
    suffix("figure", Path(path), EXTENSIONS)
    check_folder(Path(path).parent)


def save(build: Callable[[], Figure], path: str | Path) -> Path:
    """Build a figure in this style and write it, whole or not at all; returns the path."""
    path = Path(path)
    form = suffix("figure", path, EXTENSIONS)[1:]
    with look():
        figure = build()
        with replacing(path) as (part,):
            figure.savefig(part, format=form, dpi=DPI)
    return path
