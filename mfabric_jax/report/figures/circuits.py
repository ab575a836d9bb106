"""Circuits as a graph, servers on a circle; and one OCS region: what its servers send beside the circuits they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import numerals, style
from mfabric_jax.report.charts import saved
from mfabric_jax.report.figures import parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CIRCUIT = style.FABRICS["mfabric"].colour
DETAILED = 24  # servers up to which each is a disc with its name
_NUMBERED = 16  # servers up to which a heat map carries numbers, and each of its rows a name
_BOW = 0.22  # how far a line near the centre bends around it
_SMALLEST = 5.0  # points: smaller text is left out
_MARK = 0.085  # radius of a number's disc
_DASHED = {"color": style.FAINT, "linewidth": 1.0, "linestyle": (0, (4, 4))}


def ring(
    axes: Axes,
    centre: tuple[float, float],
    radius: tuple[float, float],
    count: np.ndarray,
    names: Sequence[str],
    colour: Callable[[int, int], str] = lambda i, j: CIRCUIT,
) -> np.ndarray:
    """Draw circuits [S S] among named servers, in axes of inches; returns where the servers stand [S 2].

    Few servers stand on an ellipse with these radii, many on a circle of the smaller one.
    """
    size, small, few = len(count), min(radius), len(count) <= DETAILED
    disc = 0.15 if size == 2 else min(0.15, 0.16 * small, 0.8 * math.pi * small / size)
    reach = np.array(radius) - disc if few else np.full(2, small - 0.28)
    angle = (math.pi if size == 2 else math.pi / 2) - 2 * math.pi * np.arange(size) / size
    place = np.array(centre) + reach * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pairs = np.argwhere(np.triu(count))
    bends = few and size > 2
    paths = [place[[i, j]] if not bends else _chord(place[i], place[j], np.array(centre), reach) for i, j in pairs]
    counts = [float(count[i, j]) for i, j in pairs]
    most, crowd = max(counts, default=1), max(len(paths), 1)
    thin = 1.1 if few else max(0.15, 0.8 * min(1.0, 70 * small / crowd))
    widths = [thin * (1 + min(n - 1, 3 * (n - 1) / max(most - 1, 1))) for n in counts]
    alpha = 1.0 if few else min(0.8, max(0.1, 700 / crowd))
    parts.draw_segments(axes, paths, [colour(i, j) for i, j in pairs], widths, alpha=alpha, zorder=3)
    if few and (size == 2 or small > 0.6):
        _marks(axes, paths, counts, [(x, y, 1.8 * disc, 1.8 * disc) for x, y in place])
    wide = 144 * disc if few else min(5.0, 72 * 2 * math.pi * small / size * 0.7)  # points
    axes.plot(*place.T, "o", color=style.INK, markersize=wide, markeredgewidth=0, zorder=5)
    _names(axes, place, (place - centre) / reach, names, disc if few else 0.0)
    return place


def _chord(start: np.ndarray, end: np.ndarray, centre: np.ndarray, reach: np.ndarray) -> np.ndarray:
    """[points 2] of a line that bends around the centre if it would come near it."""
    middle, aside = (start + end) / 2, np.array([start[1] - end[1], end[0] - start[0]])
    out = middle - centre
    if float(np.hypot(*(out / reach))) >= 0.3:
        return np.stack([start, end])
    return parts.bow(start, middle + aside * math.copysign(_BOW, round(float(aside @ out), 9) or 1.0), end)


def _marks(axes: Axes, paths: list, counts: list[float], taken: list[style.Box]) -> None:
    """The number of parallel circuits on a line, if not one, wherever it covers nothing."""
    for path, count in sorted(zip(paths, counts, strict=True), key=lambda line: -line[1]):
        text = f"{count:.3g}"
        wide = 2 * _MARK * (1 + 0.3 * (len(text) - 1)) + 0.02
        if count != 1 and (free := style.free_place(parts.places_on(path), wide, wide, taken)):
            box = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": CIRCUIT, "linewidth": 0.6}
            parts.write(axes, *free, text, 6.5, bbox=box, zorder=4)


def _names(axes: Axes, place: np.ndarray, out: np.ndarray, names: Sequence[str], disc: float) -> None:
    """Names inside of discs if they are short, else outside of the circle; of dots (no disc) every so many."""
    longest, size = max(map(len, names)), len(names)
    font = min(8.0, 72 * disc * 2 * 0.86 / (0.6 * longest), 72 * disc)
    step = 1 if disc else 1 << max(0, math.ceil(math.log2(size / (16 if np.ptp(place) > 1.6 else 8))))
    for number in range(0, size, step):
        x, y = place[number]
        if font >= _SMALLEST:
            parts.write(axes, x, y, names[number], font, color="white", zorder=6)
        elif not disc or longest > 3:
            right, up = np.round(out[number]).astype(int) if disc else (0, 0)
            ha, va = ("center", "left", "right")[right], ("center", "bottom", "top")[up]
            x, y = place[number] + out[number] * (1.2 * disc if disc else 0.1 + 0.03 * len(names[number]))
            parts.write(axes, x, y, names[number], style.FONT if disc else 7, ha=ha, va=va, zorder=6)


# -- one region


def build_region(demand: Any, circuits: Any, title: str = "", servers: Sequence[str] | None = None) -> Figure:
    """Draw demand [S S] in bytes as a heat map beside circuits [S S] as a graph; the diagonals are ignored."""
    sent, count = np.array(demand, dtype=float), np.array(circuits, dtype=float)
    if sent.ndim != 2 or sent.shape[0] != sent.shape[1] or sent.shape[0] < 2:
        raise InputError(f"demand must be a square matrix of two servers or more, got the shape {sent.shape}.")
    if count.shape != sent.shape:
        raise InputError(f"circuits must have the shape of demand {sent.shape}, got {count.shape}.")
    names = [str(i) for i in range(len(sent))] if servers is None else [str(name) for name in servers]
    if len(names) != len(sent):
        raise InputError(f"servers must name all {len(sent)} servers, got {len(names)} names.")
    np.fill_diagonal(sent, 0.0)
    np.fill_diagonal(count, 0.0)
    figure = style.blank(13.0, 6.3)
    left, right = figure.subplots(1, 2)
    _heat_map(figure, left, units.to_gigabytes(sent), names)
    _graph(right, sent, count, names)
    if title:
        figure.suptitle(title, fontsize=style.FONT + 3, fontweight="bold")
    return figure


def _heat_map(figure: Figure, axes: Axes, sent: np.ndarray, names: list[str]) -> None:
    unit, scale = numerals.bytes_unit(float(sent.max()))
    sent, size, step = sent * scale, len(names), math.ceil(len(names) / _NUMBERED)
    most = float(sent.max())
    shown = np.ma.masked_array(sent, mask=np.eye(size, dtype=bool))
    image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=most or 1.0)
    axes.set_facecolor("#eeeeee")
    small: dict[str, Any] = {"fontsize": style.FONT if step == 1 else style.FONT - 2.5}
    axes.set_xticks(range(0, size, step), names[::step], rotation=90 if max(map(len, names)) > 3 else 0, **small)
    axes.set_yticks(range(0, size, step), names[::step], **small)
    axes.tick_params(length=0)
    axes.set(xlabel="to server", ylabel="from server", title=f"Demand [{unit}]")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.7, label=unit)
    for (i, j), value in np.ndenumerate(sent) if step == 1 else ():
        if i != j and value > 0:
            ink = "white" if value > 0.6 * most else style.INK
            text = f"{value:.{numerals.decimals(most, 3)}f}"
            parts.write(axes, j, i, text, min(style.FONT, 112 / size), color=ink)


def _graph(axes: Axes, sent: np.ndarray, count: np.ndarray, names: list[str]) -> None:
    """Circuits, and a spoke to the packet switch for every server with demand to one it has no circuit to."""
    from matplotlib.lines import Line2D

    both = sent + sent.T
    electrical = (both > 0) & (count == 0)
    keys = [Line2D([], [], color=CIRCUIT, linewidth=2, label="circuits (number: several in parallel)")]
    place = ring(axes, (0.0, 0.0), (2.4, 2.4), count, names)
    if len(names) <= DETAILED and electrical.any():
        for x, y in place[electrical.any(axis=1)]:
            axes.plot([0, x], [0, y], zorder=1, **_DASHED)
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.FAINT}
        parts.write(axes, 0, 0, "EPS", style.FONT - 1, color="#555555", bbox=box)
        keys.append(Line2D([], [], label="demand without a circuit, by packet switch", **_DASHED))
    held, total = both[count > 0].sum() / both.sum() if both.sum() > 0 else 0.0, np.triu(count).sum()
    noun = "circuit" if total == 1 else "circuits"
    axes.set_title(f"{total:g} {noun}, {held:.0%} of the bytes between joined pairs")
    edge = 2.5 if max(map(len, names)) <= 3 else 3.1
    axes.set(xlim=(-edge, edge), ylim=(-edge - 0.25, edge), aspect="equal")
    axes.set_axis_off()
    axes.legend(handles=keys, loc="lower center", ncols=2, fontsize=style.FONT - 1, bbox_to_anchor=(0.5, -0.04))


region = saved(build_region, data=2)
