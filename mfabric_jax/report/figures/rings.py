"""The circuits of one region as a graph: its servers on a circle, a line for every pair that is joined. In inches."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.report import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CIRCUIT = style.FABRICS["mfabric"].colour
DETAILED = 24  # servers up to which each is a disc with its number
_BOW = 0.22  # how far a line near the centre bends around it
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73)  # where on its line a number may stand
_SMALLEST = 5.0  # points: smaller text is left out
_MARK = 0.085  # radius of a number's disc


def ring(
    axes: Axes,
    centre: tuple[float, float],
    radius: tuple[float, float],
    count: np.ndarray,
    first: int,
    colour: Callable[[int, int], str],
) -> None:
    """Draw circuits [S S] among the servers `first`, `first` + 1, ...; `colour` is given a pair within the region.

    Few servers stand on an ellipse with these radii, many on a circle of the smaller one.
    """
    size = len(count)
    small = min(radius)
    disc = min(0.15, 0.16 * small, 0.8 * math.pi * small / size) if size <= DETAILED else 0.0
    if size == 2:
        disc = 0.15
    reach = np.array(radius) - disc if disc else np.full(2, small - 0.28)
    angle = (math.pi if size == 2 else math.pi / 2) - 2 * math.pi * np.arange(size) / size
    place = np.array(centre) + reach * np.stack([np.cos(angle), np.sin(angle)], axis=1)
    pairs = np.argwhere(np.triu(count))
    paths = [_path(place[i], place[j], np.array(centre), reach, bends=2 < size <= DETAILED) for i, j in pairs]
    _lines(axes, paths, [int(count[i, j]) for i, j in pairs], [colour(i, j) for i, j in pairs], size, small)
    if not disc:
        _dots(axes, place, np.array(centre), float(reach[0]), first)
        return
    if size == 2 or small > 0.6:
        _marks(axes, paths, [int(count[i, j]) for i, j in pairs], [(x, y, disc) for x, y in place])
    _discs(axes, place, disc, first)


def _path(start: np.ndarray, end: np.ndarray, centre: np.ndarray, radius: np.ndarray, bends: bool) -> np.ndarray:
    """[points 2] of a line that bends away from the centre if it would come near it."""
    middle, along = (start + end) / 2, end - start
    aside = np.array([along[1], -along[0]])
    out = middle - centre
    near = bends and float(np.hypot(*(out / radius))) < 0.3
    bend = middle + aside * (math.copysign(_BOW, round(float(aside @ out), 9) or 1.0) if near else 0.0)
    t = np.linspace(0, 1, 25 if near else 2)[:, None]
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end


def _at(path: np.ndarray, t: float) -> np.ndarray:
    """The point that far along a line."""
    place = t * (len(path) - 1)
    low = min(int(place), len(path) - 2)
    return path[low] + (place - low) * (path[low + 1] - path[low])


def _lines(axes: Axes, paths: list, counts: list[int], colours: list[str], size: int, radius: float) -> None:
    from matplotlib.collections import LineCollection

    most = max(counts, default=1)
    thin = 1.1 if size <= DETAILED else max(0.15, 0.8 * min(1.0, 70 * radius / max(len(paths), 1)))
    widths = [thin * (1 + min(n - 1, 3 * (n - 1) / max(most - 1, 1))) for n in counts]
    alpha = 1.0 if size <= DETAILED else min(0.8, max(0.1, 700 / max(len(paths), 1)))
    axes.add_collection(LineCollection(paths, colors=colours, linewidths=widths, alpha=alpha, zorder=3))


def _marks(axes: Axes, paths: list, counts: list[int], taken: list[tuple[float, float, float]]) -> None:
    """The number of parallel circuits on a line, if not one, wherever it covers nothing."""
    for path, count in sorted(zip(paths, counts, strict=True), key=lambda line: -line[1]):
        reach = _MARK * (1 + 0.3 * max(0, len(str(count)) - 1))
        for t in _ALONG if count > 1 else ():
            x, y = _at(path, t)
            if all(math.hypot(x - u, y - v) > reach + other + 0.02 for u, v, other in taken):
                box = {"boxstyle": "circle,pad=0.12", "facecolor": "white", "edgecolor": CIRCUIT, "linewidth": 0.6}
                axes.text(x, y, str(count), ha="center", va="center", fontsize=6.5, bbox=box, zorder=4)
                taken.append((x, y, reach))
                break


def _discs(axes: Axes, place: np.ndarray, disc: float, first: int) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle

    axes.add_collection(PatchCollection([Circle((x, y), disc) for x, y in place], facecolor=style.INK, zorder=5))
    font = min(8.0, 72 * disc * 2 * 0.86 / (0.6 * len(str(first + len(place) - 1))), 72 * disc)
    for number, (x, y) in enumerate(place, first) if font >= _SMALLEST else ():
        axes.text(x, y, str(number), color="white", ha="center", va="center", fontsize=font, zorder=6)


def _dots(axes: Axes, place: np.ndarray, centre: np.ndarray, radius: float, first: int) -> None:
    """Servers too many for discs: dots, and the number of every so many outside the circle."""
    size = len(place)
    marker: dict[str, Any] = {"color": style.INK, "linestyle": "", "zorder": 5}
    axes.plot(*place.T, "o", markersize=min(5.0, 72 * 2 * math.pi * radius / size * 0.7), markeredgewidth=0, **marker)
    numbered = 16 if radius > 0.8 else 8
    for i in range(0, size, 1 << max(0, math.ceil(math.log2(size / numbered)))):
        out = (place[i] - centre) / radius
        x, y = centre + out * (radius + 0.1 + 0.03 * abs(out[0]) * len(str(first + i)))
        axes.text(x, y, str(first + i), ha="center", va="center", fontsize=7, zorder=6)
