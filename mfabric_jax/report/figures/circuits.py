"""Pictures of circuits, with servers on a circle, and of the demand and circuits of one region."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.drawing.drawn import picture_writer
from mfabric_jax.report.figures.networks import draw_segments, places_on, write
from mfabric_jax.report.numerals import bytes_unit, number, percent

CIRCUIT = style.FABRICS["mfabric"].colour
DETAILED = 24  # most servers that are drawn as discs with names
_NUMBERED = 16  # most servers of a heat map that shows numbers and the name of each row
_SMALLEST = 5.0  # points: smaller text is left out
_MARK = 0.085  # radius of a number's disc


def draw_ring(
    axes: Axes,
    centre: tuple[float, float],
    radius: float,
    count: np.ndarray,
    names: Sequence[str],
    colour: Callable[[int, int], str] = lambda i, j: CIRCUIT,
) -> None:
    """Draw circuits [S S] between servers on a circle, on axes in inches; numbers count parallel circuits."""
    size, detailed = len(count), len(count) <= DETAILED
    disc = min(0.15, 0.16 * radius, 0.8 * math.pi * radius / size) if size > 2 else 0.15
    angle = (math.pi if size == 2 else math.pi / 2) - 2 * math.pi * np.arange(size) / size
    positions = np.array(centre) + (radius - disc) * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pairs = np.argwhere(np.triu(count))
    paths, counts = [positions[[i, j]] for i, j in pairs], [float(count[i, j]) for i, j in pairs]
    thin = 1.1 if detailed else max(0.15, 0.8 * min(1.0, 70 * radius / max(len(paths), 1)))
    widths = [thin * min(1 + 0.5 * (n - 1), 4.0) for n in counts]
    draw_segments(axes, paths, [colour(i, j) for i, j in pairs], widths, zorder=3)
    if detailed and (size == 2 or radius > 0.6):
        _marks(axes, paths, counts, [(x, y, 1.8 * disc, 1.8 * disc) for x, y in positions])
    axes.plot(*positions.T, "o", color=style.INK, markersize=144 * disc if detailed else 3, markeredgewidth=0, zorder=5)
    longest = max(map(len, names))
    font = min(8.0, 72 * disc * 2 * 0.86 / (0.6 * longest), 72 * disc)
    for (x, y), direction, name in zip(positions, angle, names, strict=True) if detailed else ():
        if font >= _SMALLEST:
            write(axes, x, y, name, font, color="white", zorder=6)
        elif longest > 3:
            across, up = round(math.cos(direction)), round(math.sin(direction))
            sides = {"ha": ("center", "left", "right")[across], "va": ("center", "bottom", "top")[up]}
            write(
                axes,
                x + 1.2 * disc * math.cos(direction),
                y + 1.2 * disc * math.sin(direction),
                name,
                style.FONT,
                **sides,
            )


def _marks(axes: Axes, paths: list, counts: list[float], taken: list[style.Box]) -> None:
    for path, count in sorted(zip(paths, counts, strict=True), key=lambda line: -line[1]):
        text, (middle, *places) = number(count), places_on(path)  # try the middle last: many lines cross there
        wide = 2 * _MARK * (1 + 0.3 * (len(text) - 1)) + 0.02
        if count != 1 and (free := style.free_place([*places, middle], wide, wide, taken)):
            box = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": CIRCUIT, "linewidth": 0.6}
            write(axes, *free, text, 6.5, bbox=box, zorder=4)


def build_region(demand: Any, circuits: Any, title: str = "", servers: Sequence[str] | None = None) -> Figure:
    """Draw demand [S S] in bytes as a heat map beside circuits [S S] as a graph; diagonals are ignored."""
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
    figure = paper.blank(13.0, 6.3)
    left, right = figure.subplots(1, 2)
    _heat_map(figure, left, units.to_gigabytes(sent), names)
    draw_ring(right, (0.0, 0.0), 2.4, count, names)
    held, total = sent[(count + count.T) > 0].sum() / max(sent.sum(), 1.0), np.triu(count).sum()
    noun = "circuit" if total == 1 else "circuits"
    right.set_title(f"{number(total)} {noun}, {percent(held)} of the bytes between pairs with circuits", loc="left")
    edge = 2.5 if max(map(len, names)) <= 3 else 3.1
    right.set(xlim=(-edge, edge), ylim=(-edge - 0.25, edge), aspect="equal")
    right.set_axis_off()
    numbered = "number: parallel circuits; " if count.max() > 1 else ""
    below = f"{numbered}pairs without circuits use packet switches"
    write(right, 0, -edge - 0.1, below, style.FONT - 1, color=style.SOFT)
    if title:
        paper.set_heading(figure, title)
    return figure


def _heat_map(figure: Figure, axes: Axes, sent: np.ndarray, names: list[str]) -> None:
    unit, scale = bytes_unit(float(sent.max()))
    sent, size, step = sent * scale, len(names), math.ceil(len(names) / _NUMBERED)
    most = float(sent.max())
    shown = np.ma.masked_array(sent, mask=np.eye(size, dtype=bool))
    image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=most or 1.0)
    axes.set_facecolor(style.RULE)
    small: dict[str, Any] = {"fontsize": style.FONT if step == 1 else style.FONT - 2.5}
    axes.set_xticks(range(0, size, step), names[::step], rotation=90 if max(map(len, names)) > 3 else 0, **small)
    axes.set_yticks(range(0, size, step), names[::step], **small)
    axes.tick_params(length=0)
    axes.set(xlabel="to server", ylabel="from server")
    axes.set_title(f"Demand [{unit}]", loc="left")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.7, label=unit)
    for (i, j), value in np.ndenumerate(sent) if step == 1 else ():
        if i != j and value > 0:
            ink = "white" if value > 0.6 * most else style.INK
            write(axes, j, i, number(value), min(style.FONT, 112 / size), color=ink)


region = picture_writer(build_region, data=2)
