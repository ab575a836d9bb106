"""One OCS region: what its servers send each other, and the circuits that were chosen for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import numerals, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_DETAILED = 16  # servers up to which numbers and electrical links are drawn
_BOW = 0.25  # how far a line near the centre bends around it
_CIRCUIT = "#D55E00"


def region(demand: Any, circuits: Any, path: str | Path, title: str = "", servers: Sequence[str] | None = None) -> Path:
    """Draw demand [S S] in bytes as a heat map beside circuits [S S] as a graph; returns the path written."""
    return style.save(lambda: build(demand, circuits, title, servers), path)


def build(demand: Any, circuits: Any, title: str = "", servers: Sequence[str] | None = None) -> Figure:
    """The figure itself. The diagonals are ignored."""
    sent, count = np.array(demand, dtype=float), np.array(circuits, dtype=float)
    size = _checked_size(sent, count)
    names = [str(i) for i in range(size)] if servers is None else [str(name) for name in servers]
    if len(names) != size:
        raise InputError(f"servers must name all {size} servers, got {len(names)} names.")
    np.fill_diagonal(sent, 0.0)
    np.fill_diagonal(count, 0.0)
    figure = style.blank(13.0, 6.3)
    left, right = figure.subplots(1, 2)
    _heat_map(figure, left, units.to_gigabytes(sent), names)
    _graph(right, sent, count, names)
    if title:
        figure.suptitle(title, fontsize=style.FONT + 3, fontweight="bold")
    return figure


def _checked_size(sent: np.ndarray, count: np.ndarray) -> int:
    if sent.ndim != 2 or sent.shape[0] != sent.shape[1] or sent.shape[0] < 2:
        raise InputError(f"demand must be a square matrix of two servers or more, got the shape {sent.shape}.")
    if count.shape != sent.shape:
        raise InputError(f"circuits must have the shape of demand {sent.shape}, got {count.shape}.")
    return sent.shape[0]


def _heat_map(figure: Figure, axes: Axes, sent: np.ndarray, names: list[str]) -> None:
    unit, scale = numerals.bytes_unit(float(sent.max()))
    sent = sent * scale
    size, most = len(names), float(sent.max())
    shown = np.ma.masked_array(sent, mask=np.eye(size, dtype=bool))
    image = axes.imshow(shown, cmap="Blues", vmin=0, vmax=most or 1.0)
    axes.set_facecolor("#eeeeee")
    turned = 90 if max(map(len, names)) > 3 else 0
    step = 1 if size <= _DETAILED else math.ceil(size / _DETAILED)
    small = style.FONT if size <= _DETAILED else style.FONT - 2.5
    axes.set_xticks(range(0, size, step), names[::step], rotation=turned, fontsize=small)
    axes.set_yticks(range(0, size, step), names[::step], fontsize=small)
    axes.tick_params(length=0)
    axes.set(xlabel="to server", ylabel="from server", title=f"Demand [{unit}]")
    axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=axes, shrink=0.7, label=unit)
    if size <= _DETAILED:
        _numbers(axes, sent, most)


def _numbers(axes: Axes, sent: np.ndarray, most: float) -> None:
    """Each demand in its cell, three significant digits of the largest; nothing where there is none."""
    places = numerals.decimals(most, 3)
    font = min(style.FONT, 112 / len(sent))
    for (i, j), value in np.ndenumerate(sent):
        if i != j and value > 0:
            colour = "white" if value > 0.6 * most else style.INK
            axes.text(j, i, f"{value:.{places}f}", ha="center", va="center", fontsize=font, color=colour)


def _graph(axes: Axes, sent: np.ndarray, count: np.ndarray, names: list[str]) -> None:
    """Servers on a circle; circuits between them, thicker where there are several; the rest goes by the EPS."""
    size = len(names)
    angle = math.pi / 2 - 2 * math.pi * np.arange(size) / size
    place = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    both = sent + sent.T
    electrical = (both > 0) & (count == 0)
    if size <= _DETAILED and electrical.any():
        _electrical(axes, place, electrical)
    for i, j in zip(*np.nonzero(np.triu(count)), strict=True):
        _circuit(axes, place[i], place[j], float(count[i, j]), float(count.max()), straight=size == 2)
    _servers(axes, place, names)
    held = both[count > 0].sum() / both.sum() if both.sum() > 0 else 0.0
    total = np.triu(count).sum()
    noun = "circuit" if total == 1 else "circuits"
    axes.set_title(f"{total:g} {noun}, {held:.0%} of the bytes between joined pairs")
    edge = 1.15 if _inside(names) else 1.4
    axes.set(xlim=(-edge, edge), ylim=(-edge - 0.1, min(edge, 1.2)), aspect="equal")
    axes.set_axis_off()
    _key(axes, bool(electrical.any()), size)


def _electrical(axes: Axes, place: np.ndarray, electrical: np.ndarray) -> None:
    """A spoke to the packet switch for every server with demand to one it has no circuit to."""
    for x, y in place[electrical.any(axis=1)]:
        axes.plot([0, x], [0, y], color=style.FAINT, linewidth=1.0, linestyle=(0, (4, 4)), zorder=1)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": style.FAINT}
    axes.text(0, 0, "EPS", ha="center", va="center", color="#555555", bbox=box, zorder=5, fontsize=style.FONT - 1)


def _circuit(axes: Axes, start: np.ndarray, end: np.ndarray, count: float, most: float, straight: bool) -> None:
    """A line that bends away from the centre if it would come near it; its number of circuits, if not one."""
    from matplotlib.patches import FancyArrowPatch

    middle, along = (start + end) / 2, end - start
    aside = np.array([along[1], -along[0]])
    near = not straight and float(np.hypot(*middle)) < 0.3
    bow = 0.0 if not near else math.copysign(_BOW, float(aside @ middle) or 1.0)
    bend, width = f"arc3,rad={bow}", 1.2 + min(count - 1, 4 * (count - 1) / max(most - 1, 1))
    line = {"arrowstyle": "-", "color": _CIRCUIT, "linewidth": width, "zorder": 2, "shrinkA": 0, "shrinkB": 0}
    axes.add_patch(FancyArrowPatch(tuple(start), tuple(end), connectionstyle=bend, **line))
    if count != 1:
        skips = 0.8 < float(np.hypot(*middle)) < 0.95  # its middle may lie under the server it passes by
        x, y = start + 0.3 * along if skips else middle + aside * bow / 2
        box = {"boxstyle": "circle,pad=0.15", "facecolor": "white", "edgecolor": _CIRCUIT, "linewidth": 0.6}
        axes.text(x, y, f"{count:.3g}", ha="center", va="center", fontsize=style.FONT - 2, bbox=box, zorder=4)


def _inside(names: list[str]) -> bool:
    """Whether every name fits into the disc of its server."""
    return max(map(len, names)) <= 3


def _servers(axes: Axes, place: np.ndarray, names: list[str]) -> None:
    """Discs with their names inside if short, outside if long."""
    inside = _inside(names)
    disc = 20.0 if len(names) <= _DETAILED else 240 / len(names) + 4
    axes.plot(*place.T, "o", color=style.INK, markersize=disc if inside else 10, zorder=6)
    for (x, y), name in zip(place, names, strict=True):
        if inside:
            axes.text(x, y, name, color="white", ha="center", va="center", fontsize=disc / 2.2, zorder=7)
        else:
            across = "left" if x > 0.1 else "right" if x < -0.1 else "center"
            along = "bottom" if y > 0.1 else "top" if y < -0.1 else "center"
            axes.text(1.07 * x, 1.07 * y, name, zorder=7, ha=across, va=along)


def _key(axes: Axes, electrical: bool, size: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=_CIRCUIT, linewidth=2, label="circuits (number: several in parallel)")]
    if electrical and size <= _DETAILED:
        dashes = {"color": style.FAINT, "linewidth": 1.0, "linestyle": (0, (4, 4))}
        handles.append(Line2D([], [], label="demand without a circuit, by packet switch", **dashes))
    axes.legend(handles=handles, loc="lower center", ncols=2, fontsize=style.FONT - 1, bbox_to_anchor=(0.5, -0.04))
