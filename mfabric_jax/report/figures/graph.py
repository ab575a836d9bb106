"""Any network as a picture: boxes with the names of its nodes, a line for every joined pair, capacities on lines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.figures import heat
from mfabric_jax.report.figures.boxes import mixed, rounded
from mfabric_jax.report.figures.graph_boxes import Placed, placed_boxes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES = 500
_LINE_HEIGHT = 0.18
_LABELLED = 30  # pairs up to which each line carries its capacity
_LINE = "#5F7488"
_COLOURS = {"gpu": "#5F7488", "host": "#5F7488", "server": "#5F7488", "nvswitch": "#4D4D4D"}
_OTHERS = tuple(style.FABRICS[name].colour for name in ("fat-tree", "rail-optimized", "mfabric-cpo", "topoopt"))
_OTHERS += tuple(style.FABRICS[name].colour for name in ("rail-only", "mfabric", "oversub-fat-tree"))


def graph(network: Any, path: str | Path, *, utilisation: Any = None, title: str = "") -> Path:
    """Draw a network (`mfabric_jax.fabric.Network`); returns the path written.

    `utilisation` [L] of its links, 0 to 1, colours them. Nodes stand in layers above the kinds gpu, host and server if
    links lead up from these; else joined nodes stand near each other.
    """
    return style.save(lambda: build_graph(network, utilisation=utilisation, title=title), path)


@dataclass
class _Pair:
    """Nodes that are joined, lower number first, and what leads from one to the other."""

    ends: tuple[int, int]
    there: list[int]
    back: list[int]

    @property
    def links(self) -> list[int]:
        return self.there + self.back


def build_graph(network: Any, *, utilisation: Any = None, title: str = "") -> Figure:
    """The figure itself."""
    if not 1 <= network.size <= MOST_NODES:
        raise InputError(f"network must have 1 to {MOST_NODES} nodes to be drawn, got {network.size:,}.")
    busy = None if utilisation is None else heat.Heat(network, utilisation)
    kinds = [kind for kind, count in network.nodes for _ in range(count)]
    names = _names(network)
    pairs = _pairs(network)
    ends = np.array([pair.ends for pair in pairs], dtype=int).reshape(-1, 2)
    placed, layered = placed_boxes(kinds, names, ends)
    capacities = _classes(network, pairs)
    words = _words(network, capacities, len(pairs), placed)
    base = 0.72 if busy else 0.12
    below = base + _LINE_HEIGHT * len(words) + 0.24 * _rows_of_key(network, placed.broad)
    paths = {pair.ends: _path(placed, pair.ends, layered) for pair in pairs}
    placed.sag = max(0.0, *(float(placed.place[:, 1].min() - path[:, 1].min()) for path in paths.values()), 0.0)
    figure, axes = _canvas(placed, below, 0.35 if title else 0.0)
    _draw_lines(axes, network, pairs, paths, busy)
    if len(pairs) <= _LABELLED and len(capacities) > 1:
        _draw_capacities(axes, network, pairs, paths, placed)
    _draw_nodes(axes, kinds, names, placed)
    _draw_words(axes, network, words, base)
    if title:
        place = {"va": "top", "fontsize": style.FONT + 2, "fontweight": "bold"}
        axes.text(axes.get_xlim()[0] + 0.25, axes.get_ylim()[1] - 0.15, title, **place)
    if busy is not None:
        heat.bar(figure, figure.get_figwidth() / 2 - 1.5, 0.32, 3.0)
    return figure


def _names(network: Any) -> list[str]:
    """What stands in each box: the name, or the number within its kind."""
    if network.names is not None:
        return [str(name) for name in network.names]
    return [str(i) for _, count in network.nodes for i in range(count)]


def _pairs(network: Any) -> list[_Pair]:
    """Every pair of nodes that are joined, in order of their numbers."""
    found: dict[tuple[int, int], _Pair] = {}
    for link, (tail, head) in enumerate(zip(network.tail.tolist(), network.head.tolist(), strict=True)):
        if tail != head:
            ends = (min(tail, head), max(tail, head))
            pair = found.setdefault(ends, _Pair(ends, [], []))
            (pair.there if tail == ends[0] else pair.back).append(link)
    return [found[ends] for ends in sorted(found)]


def _canvas(placed: Placed, below: float, above: float) -> tuple[Figure, Axes]:
    """Axes in inches over the whole figure, with room for the words."""
    low, high = placed.corners
    middle = (low[0] + high[0]) / 2
    figure = style.blank(placed.broad, high[1] - low[1] + below + above, arranged=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(middle - placed.broad / 2, middle + placed.broad / 2), ylim=(low[1] - below, high[1] + above))
    axes.set_axis_off()
    return figure, axes


# -- lines


def _path(placed: Placed, ends: tuple[int, int], layered: bool) -> np.ndarray:
    """[points 2] of a line: straight, or a bow where it would run through the boxes of its own row.

    In layers it leads from the top of one box to the bottom of the other.
    """
    start, end = placed.place[ends[0]], placed.place[ends[1]]
    level = layered and start[1] == end[1]
    if not level or not _through(placed, ends):
        rise = np.sign(end[1] - start[1]) * placed.height / 2 if layered else 0.0
        return np.stack([start + np.array([0, rise]), end - np.array([0, rise])])
    drop = min(0.6, 0.18 + 0.12 * abs(end[0] - start[0]))
    t = np.linspace(0, 1, 25)[:, None]
    bend = (start + end) / 2 - np.array([0, 2 * drop])
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end


def _through(placed: Placed, ends: tuple[int, int]) -> bool:
    """Whether a box of the same row stands between two."""
    (left, y), (right, _) = sorted(placed.place[list(ends)].tolist())
    x = placed.place[:, 0]
    return bool(((x > left) & (x < right) & (placed.place[:, 1] == y)).any())


def _classes(network: Any, pairs: list[_Pair]) -> list[float]:
    """Capacities of the pairs, per direction, each once; the largest first."""
    return sorted({float(f"{_capacity(network, pair):.4g}") for pair in pairs}, reverse=True)


def _capacity(network: Any, pair: _Pair) -> float:
    """Gbps of a pair in the direction that has more."""
    return units.to_gbps(max(float(network.capacity[links].sum()) for links in (pair.there, pair.back)))


def _thick(capacity: float, most: float) -> float:
    return 0.7 + 2.0 * math.sqrt(capacity / most) if most > 0 else 1.0


def _crowd(pairs: int) -> float:
    """How much thinner lines are where there are many."""
    return min(1.0, math.sqrt(120 / max(pairs, 1)))


def _draw_lines(axes: Axes, network: Any, pairs: list[_Pair], paths: dict, busy: heat.Heat | None) -> None:
    from matplotlib.collections import LineCollection

    if not pairs:
        return
    rates = [_capacity(network, pair) for pair in pairs]
    most, alike = max(rates), len(_classes(network, pairs)) == 1
    lines: dict[str, Any] = {
        "colors": [_LINE if busy is None else busy.of(pair.links) for pair in pairs],
        "linewidths": [_crowd(len(pairs)) * (1.0 if alike else _thick(rate, most)) for rate in rates],
        "linestyles": ["-" if rate > 0 else (0, (3, 3)) for rate in rates],
    }
    axes.add_collection(LineCollection([paths[pair.ends] for pair in pairs], zorder=2, **lines))
    for pair, colour in zip(pairs, lines["colors"], strict=True):
        if not (pair.there and pair.back):
            _arrow(axes, paths[pair.ends][:: 1 if pair.there else -1], colour)


def _arrow(axes: Axes, path: np.ndarray, colour: str) -> None:
    """A head on the middle of a line that leads one way."""
    middle = len(path) // 2
    start, end = path[middle - 1], path[middle]
    tip = start + 0.72 * (end - start) if len(path) == 2 else end
    arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    axes.annotate("", tip, start, arrowprops=arrow, zorder=2)


def _draw_capacities(axes: Axes, network: Any, pairs: list[_Pair], paths: dict, placed: Placed) -> None:
    """Gbps on each line, where it covers nothing."""
    taken = [(x, y, w, placed.height) for (x, y), w in zip(placed.place, placed.width, strict=True)]
    for pair in pairs:
        text = _rates(network, pair)
        width, height = (0.62 * len(text) * 7 + 3) / 72, 0.14
        for t in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74):
            x, y = _along(paths[pair.ends], t)
            if all(abs(x - u) > (width + w) / 2 or abs(y - v) > (height + h) / 2 for u, v, w, h in taken):
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
                axes.text(x, y, text, fontsize=7, ha="center", va="center", zorder=2.5, bbox=box, color="#444444")
                taken.append((x, y, width, height))
                break


def _along(path: np.ndarray, t: float) -> np.ndarray:
    low = min(int(t * (len(path) - 1)), len(path) - 2)
    return path[low] + (t * (len(path) - 1) - low) * (path[low + 1] - path[low])


def _rates(network: Any, pair: _Pair) -> str:
    """ "400", or "400/100" where the directions differ."""
    there, back = (units.to_gbps(float(network.capacity[links].sum())) for links in (pair.there, pair.back))
    if pair.there and pair.back and there != back:
        return f"{there:.4g}/{back:.4g}"
    return f"{max(there, back):.4g}"


# -- nodes and words


def _colour(kind: str, kinds: list[str]) -> str:
    others = [k for k in dict.fromkeys(kinds) if k not in _COLOURS]
    return _COLOURS[kind] if kind in _COLOURS else _OTHERS[others.index(kind) % len(_OTHERS)]


def _draw_nodes(axes: Axes, kinds: list[str], names: list[str], placed: Placed) -> None:
    height = placed.height
    for (x, y), width, kind, name in zip(placed.place, placed.width, kinds, names, strict=True):
        colour = _colour(kind, kinds)
        fill = mixed(colour, 0.8) if placed.font else colour
        axes.add_patch(rounded(x - width / 2, y - height / 2, width, height, facecolor=fill, edgecolor=colour))
        if placed.font:
            turned: dict[str, Any] = {"rotation": 90, "va": "center"} if placed.upright else {"va": "center_baseline"}
            axes.text(x, y, name, fontsize=placed.font, ha="center", zorder=5, parse_math=False, **turned)


def _words(network: Any, capacities: list[float], pairs: int, placed: Placed) -> list[str]:
    """What the boxes and lines do not say by themselves."""
    words = f"{network.size:,} nodes, {len(network.tail):,} links"
    if len(capacities) == 1:
        words += f"; {capacities[0]:g} Gbps between joined nodes"
    elif capacities:
        told = f"{capacities[-1]:g} to {capacities[0]:g}" if len(capacities) > 5 else _listed(capacities)
        words += f"; {told} Gbps between joined nodes"
        words += " (numbers on lines)" if pairs <= _LABELLED else " (thicker lines: more)"
    return wrap(words if placed.font else words + "; names have no room", int((placed.broad - 0.2) / 0.065))


def _listed(capacities: list[float]) -> str:
    """ "100, 200 and 400"."""
    *others, last = [f"{value:g}" for value in reversed(capacities)]
    return f"{', '.join(others)} and {last}"


def _draw_words(axes: Axes, network: Any, words: list[str], base: float) -> None:
    """How many nodes there are of each kind, and other words, below the picture."""
    from matplotlib.patches import Patch

    kinds = [kind for kind, _ in network.nodes]
    (left, right), bottom = axes.get_xlim(), axes.get_ylim()[0] + base
    for line, text in enumerate(reversed(words)):
        place = {"fontsize": style.FONT - 1.5, "ha": "center", "va": "bottom", "color": "#444444"}
        axes.text((left + right) / 2, bottom + _LINE_HEIGHT * line, text, **place)
    if len(kinds) == 1:
        return
    handles = [
        Patch(facecolor=mixed(_colour(kind, kinds), 0.8), edgecolor=_colour(kind, kinds), label=f"{count:,} {kind}")
        for kind, count in network.nodes
    ]
    place = {"bbox_to_anchor": ((left + right) / 2, bottom + _LINE_HEIGHT * len(words) + 0.04), "borderaxespad": 0}
    columns = _columns(network, right - left)
    axes.legend(handles=handles, loc="lower center", ncols=columns, fontsize=9, bbox_transform=axes.transData, **place)


def _rows_of_key(network: Any, width: float) -> int:
    return 0 if len(network.nodes) == 1 else math.ceil(len(network.nodes) / _columns(network, width))


def _columns(network: Any, width: float) -> int:
    """Of the key of kinds."""
    longest = max(len(f"{count:,} {kind}") for kind, count in network.nodes)
    return max(1, min(len(network.nodes), int(width / (0.075 * longest + 0.6))))
