"""Picture of any network: a box with the name of each node, a line for each linked pair, capacities on lines.

networkx lays it out. Lengths are inches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import Colormap, LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Patch
from matplotlib.ticker import PercentFormatter

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.drawing import paper
from mfabric_jax.report.figures.grouped import DrawnNetwork, part_of, whole
from mfabric_jax.report.figures.pairs import ENDPOINTS, Pair, pairs_of, rates_of
from mfabric_jax.report.numerals import count_phrase, number, percent
from mfabric_jax.report.style import mix_with_white
from mfabric_jax.support.extras import load_extra

LINK = "#5F7488"
_ALONG = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73)  # positions of a number along its line, best first
_NEAR, _FAR = (0.14, 0.2, 0.26, 0.32, 0.38), (0.86, 0.8, 0.74, 0.68, 0.62)
_STEPS = ("#CBD5DE", "#EFC75E", "#D55E00", "#6B0F1A")
MOST_NODES, MOST_LINES = 500, 700  # larger networks are drawn in part
_LARGER = 1.15
_WIDEST, _HIGHEST, _NARROWEST = 13.0, 9.5, 5.0
_MARGIN, _DOT = 0.3, 0.09
_FONTS = (9.0, 8.0, 7.0, 6.0)
_NAMED = 150  # most nodes with names, unless they are in layers
_DEPTH = (0.8, 0.55)  # how far the whole third dimension leads to the right and up, in steps
_STEP = 0.42  # distance of neighbours with given positions
_LINE_HEIGHT = 0.18
_LABELLED = 30  # most pairs whose lines carry capacities
_COLOURS = {**dict.fromkeys(ENDPOINTS, LINK), "nvswitch": "#4D4D4D"}
_ORDER = ("fat-tree", "rail-optimized", "mfabric-cpo", "topoopt", "rail-only", "mfabric", "oversub-fat-tree")
_OTHERS = tuple(style.FABRICS[name].colour for name in _ORDER)
_LINES = (LINK, *(style.FABRICS[name].colour for name in ("mfabric", "rail-optimized", "topoopt", "fat-tree")))


def draw_graph(network: Any, path: str | Path, *, utilisation: Any = None, title: str = "") -> Path:
    """Draw a network (`mfabric_jax.fabric.Network`) and return the path.

    `utilisation` [L], 0 to 1, colours its links. If links lead up from nodes of the kinds gpu, host and server, nodes
    stand in layers above these; else linked nodes stand near each other.
    """
    return paper.save(lambda: build_graph(network, utilisation=utilisation, title=title), path)


def build_graph(network: Any, *, utilisation: Any = None, title: str = "", places: Any = None) -> Figure:
    if not network.size:
        raise InputError("network must have nodes to be drawn, got none.")
    busy = None if utilisation is None else LinkHeat(network, utilisation)
    pairs = pairs_of(network)
    fits = network.size <= (MOST_NODES if len(network.nodes) > 1 else _NAMED) and len(pairs) <= MOST_LINES
    shown = whole(network, pairs) if fits else part_of(network, pairs)
    kinds, names, pairs, places = shown.kinds, shown.names, shown.pairs, places if fits else None
    placed, layered = lay_out_boxes(kinds, names, [pair.ends for pair in pairs], places)
    paths = [_path(placed, *pair.ends, layered, places is not None) for pair in pairs]
    low, high = placed.corners(paths)
    broad, middle = high[0] - low[0], (low[0] + high[0]) / 2
    keys, words = _keys(network, shown, busy), _words(network, shown, bool(placed.font), broad)
    columns = paper.key_columns(keys, broad)
    low[1] -= _LINE_HEIGHT * len(words) + 0.24 * math.ceil(len(keys) / columns)
    base = 0.72 if busy else 0.12
    figure = paper.blank(broad, high[1] - low[1] + base + (0.35 if title else 0.0), arranged=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(low[0], high[0]), ylim=(low[1] - base, high[1] + (0.35 if title else 0.0)))
    axes.set_axis_off()
    _draw_lines(axes, pairs, paths, busy)
    _draw_labels(axes, pairs, paths, placed)
    _draw_nodes(axes, kinds, names, placed)
    for line, text in enumerate(reversed(words)):
        text_style = {"fontsize": style.FONT - 1.5, "ha": "center", "va": "bottom", "color": style.SOFT}
        axes.text(middle, low[1] + _LINE_HEIGHT * line, text, **text_style)
    if keys:
        where = {
            "bbox_to_anchor": (middle, low[1] + _LINE_HEIGHT * len(words) + 0.04),
            "bbox_transform": axes.transData,
        }
        axes.legend(handles=keys, loc="lower center", ncols=columns, fontsize=9, borderaxespad=0, **where)
    if title:
        large = {"va": "top", "fontsize": style.FONT + 2, "fontweight": "bold"}
        axes.text(low[0] + 0.25, high[1] + 0.2, title, **large)
    if busy is not None:
        utilisation_bar(figure, broad / 2 - 1.5, 0.32, 3.0)
    return figure


def _path(placed: Boxes, node: int, other: int, layered: bool, bends: bool) -> np.ndarray:
    """The points [points 2] of a line: straight, or curved around other boxes of its row."""
    start, end = placed.centres[node], placed.centres[other]
    run = end - start
    if (layered and start[1] == end[1]) or bends:
        others = np.delete(placed.centres, (node, other), axis=0) - start
        t = others @ run / (run @ run)
        aside = np.abs(others @ np.array([-run[1], run[0]])) / np.linalg.norm(run)
        if ((t > 0) & (t < 1) & (aside < 0.05)).any():
            drop = min(0.6, 0.18 + 0.12 * float(np.linalg.norm(run)))
            normal = np.array([run[1], -run[0]]) / np.linalg.norm(run)
            bend = (start + end) / 2 + 2 * drop * normal * (1 if normal[1] < 0 or not layered else -1)
            return bow(start, bend, end)
    rise = np.array([0.0, np.sign(run[1]) * placed.height / 2 if layered and start[1] != end[1] else 0.0])
    return np.stack([start + rise, end - rise])


def _line_colours(pairs: Sequence[Pair]) -> dict[str, str]:
    return {kind: _LINES[rank % len(_LINES)] for rank, kind in enumerate(dict.fromkeys(pair.kind for pair in pairs))}


def _draw_lines(axes: Axes, pairs: Sequence[Pair], paths: list[np.ndarray], busy: LinkHeat | None) -> None:
    rates, crowd, look_of = rates_of(pairs), min(1.0, math.sqrt(120 / max(len(paths), 1))), _line_colours(pairs)
    colours = [busy.of(pair.links) if busy else look_of[pair.kind] for pair in pairs]
    thick = [0.7 + 2.0 * math.sqrt(max(pair.gbps) / rates[0]) if len(rates) > 1 else 1.0 for pair in pairs]
    dashes = ["-" if max(pair.gbps) > 0 else (0, (3, 3)) for pair in pairs]
    draw_segments(axes, paths, colours, [crowd * width for width in thick], linestyles=dashes)
    for pair, path, colour in zip(pairs, paths, colours, strict=True):
        if len(pair.directions) == 1:
            start, end = (
                path[len(path) // 2 - 1 :][:2] if pair.directions == {False} else path[::-1][len(path) // 2 - 1 :][:2]
            )
            tip = start + 0.72 * (end - start) if len(path) == 2 else end
            arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
            axes.annotate("", tip, start, arrowprops=arrow, zorder=2)


def _draw_labels(axes: Axes, pairs: Sequence[Pair], paths: list[np.ndarray], placed: Boxes) -> None:
    """Write Gbps in the middle of lines, if they differ and are few, and numbers of neighbours at the ends."""
    taken = [(x, y, w, placed.height) for (x, y), w in zip(placed.centres, placed.width, strict=True)]
    rated = len(paths) <= _LABELLED and len(rates_of(pairs)) > 1
    for pair, path in zip(pairs, paths, strict=True):
        texts = [(pair.label, _ALONG)] if rated else []
        texts += list(zip(pair.each, (_NEAR, _FAR), strict=True)) if pair.each else []
        for text, along in texts:
            width, height = (0.62 * len(text) * 7 + 3) / 72, 0.14
            if free := style.free_place(places_on(path, along), width, height, taken):
                colour = style.SOFT if along is _ALONG else style.INK
                box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
                write(axes, *free, text, 7, zorder=2.5, bbox=box, color=colour)


# -- positions of nodes: in layers if the graph is a hierarchy, else near their neighbours


@dataclass
class Boxes:
    """Boxes: `centres` [N 2], `width` [N]. `font` 0: dots without names. `upright`: vertical names."""

    centres: np.ndarray
    width: np.ndarray
    height: float
    font: float
    upright: bool = False

    def corners(self, paths: Sequence[np.ndarray] = ()) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower left and upper right corner of all boxes and lines, with margins and room for texts."""
        half = np.stack([self.width / 2, np.full(len(self.width), self.height / 2)], axis=1)
        every = np.concatenate([self.centres - half, self.centres + half, *paths])
        low, high = every.min(axis=0) - _MARGIN, every.max(axis=0) + _MARGIN
        more = np.array([max(0.0, _NARROWEST - (high - low)[0]) / 2, 0.0])
        return low - more, high + more


def lay_out_boxes(
    kinds: list[str], names: list[str], pairs: list[tuple[int, int]], places: np.ndarray | None = None
) -> tuple[Boxes, bool]:
    """Return boxes with the largest font that fits, and whether they stand in layers.

    `places` [N, 2 or 3]: positions, with the third dimension as depth; None: links decide.
    """
    ends = np.array(pairs, int).reshape(-1, 2)
    if places is not None:
        own = np.asarray(places, dtype=float)
        flat = own[:, :2]
        if own.shape[1] == 3:
            flat = flat + own[:, 2:] * _DEPTH / (np.ptp(own[:, 2]) + 1)
        between = np.linalg.norm(flat[:, None] - flat[None], axis=2)
        return _spread(flat, names, ends, _STEP / between[between > 0].min(initial=1.0)), False
    layouts = load_extra("plot", "drawing figures", "mfabric_jax.report.figures.layouts")
    if rows := layouts.layers(kinds, pairs):
        return _in_rows(rows, names), True
    return _spread(layouts.near_joined(len(kinds), pairs), names, ends), False


def _boxes(names: Sequence[str], font: float) -> tuple[np.ndarray, float]:
    return np.array([max(0.26, (0.62 * len(name) * font + 7) / 72) for name in names]), (1.3 * font + 5) / 72


def _in_rows(rows: list[list[int]], names: list[str]) -> Boxes:
    longest = max(map(len, rows))
    for upright, font in product((False, True), _FONTS):
        width, height = _boxes(names, font)
        if upright:
            width, height = np.full(len(names), height), float(width.max())
        step = width.max() + (0.02 if upright else 0.1)
        if longest * step <= _WIDEST:
            break
    else:
        font, step = 0.0, min(2 * _DOT, _WIDEST / longest)
        width, height = np.full(len(names), min(_DOT, 0.7 * step)), _DOT
    broad = max(longest * step, 3.5)
    rise, centres = height + min(1.6, max(0.75, broad / 9)), np.zeros((len(names), 2))
    for level, row in enumerate(rows):
        own = len(row) * step
        reach = max(own, min(broad, own + 0.35 * broad)) if len(row) > 1 else own
        centres[row, 0] = reach * ((np.arange(len(row)) + 0.5) / len(row) - 0.5)
        centres[row, 1] = level * rise
    return Boxes(centres, width, height, font, upright and font > 0)


def _spread(free: np.ndarray, names: list[str], ends: np.ndarray, least: float = 0.0) -> Boxes:
    along = np.linalg.norm(free[ends[:, 0]] - free[ends[:, 1]], axis=1) if len(ends) else np.ones(1)
    most = float((np.array([_WIDEST, _HIGHEST]) / np.maximum(np.ptp(free, axis=0), 0.001)).min())
    between = np.abs(free[:, None] - free[None])
    for font in _FONTS if len(names) <= _NAMED else ():
        width, height = _boxes(names, font)
        scale = min(most, max(least, 1.0, 1.7 * float(np.median(width))) / max(float(np.median(along)), 0.001))
        while scale <= most:
            apart = (between[:, :, 0] * scale > np.add.outer(width, width) / 2) | (between[:, :, 1] * scale > height)
            if (apart | np.eye(len(names), dtype=bool)).all():
                return Boxes(free * scale, width, height, font)
            scale *= _LARGER
    width = np.full(len(names), _DOT)
    return Boxes(free * most, width, _DOT, 0.0)


# -- keys and texts


def _colour(kind: str, kinds: list[str]) -> str:
    others = [own for own in dict.fromkeys(kinds) if own not in _COLOURS]
    return _COLOURS[kind] if kind in _COLOURS else _OTHERS[others.index(kind) % len(_OTHERS)]


def _draw_nodes(axes: Axes, kinds: list[str], names: list[str], placed: Boxes) -> None:
    height = placed.height
    for (x, y), width, kind, name in zip(placed.centres, placed.width, kinds, names, strict=True):
        colour = _colour(kind, kinds)
        fill = mix_with_white(colour, 0.8) if placed.font else colour
        draw_box(axes, (x - width / 2, y - height / 2), (width, height), fill, colour)
        if placed.font:
            rotation: dict[str, Any] = {"rotation": 90} if placed.upright else {"va": "center_baseline"}
            write(axes, x, y, name, placed.font, parse_math=False, **rotation)


def _keys(network: Any, shown: DrawnNetwork, busy: LinkHeat | None) -> list[Any]:
    kinds, counted = shown.kinds, any(pair.each for pair in shown.pairs)  # names of boxes then show counts
    nodes = [
        Patch(
            facecolor=mix_with_white(_colour(kind, kinds), 0.8),
            edgecolor=_colour(kind, kinds),
            label=f"{count:,} {kind}",
        )
        for kind, count in network.nodes
    ]
    lines = [Line2D([], [], color=colour, label=kind) for kind, colour in _line_colours(shown.pairs).items()]
    return (nodes if len(nodes) > 1 and not counted else []) + (lines if len(lines) > 1 and busy is None else [])


def _words(network: Any, shown: DrawnNetwork, named: bool, broad: float) -> list[str]:
    pairs = shown.pairs
    rates, words = rates_of(pairs), f"{count_phrase(network.size, 'node')}, {count_phrase(len(network.tail), 'link')}"
    if len(rates) == 1:
        words += f"; {number(rates[0])} Gbps between linked nodes"
    elif rates:
        *others, last = [number(rate) for rate in reversed(rates)]
        several = f"{number(rates[-1])} to {number(rates[0])}" if len(rates) > 5 else f"{', '.join(others)} and {last}"
        words += f"; {several} Gbps between linked nodes"
        words += " (numbers on lines)" if len(pairs) <= _LABELLED else " (thicker lines: more)"
    words += f"; {shown.note}" if shown.note else ""
    return wrap(words if named else words + "; no room for names", int((broad - 0.2) / 0.065))


# -- lines and boxes, and utilisation of links as colours and words


def draw_box(axes: Axes, corner: tuple[float, float], size: tuple[float, float], fill: str, edge: str, z: float = 3):
    shape = f"round,pad=0,rounding_size={min(0.05, size[0] / 4):.4f}"
    line = {"facecolor": fill, "edgecolor": edge, "linewidth": 0.8, "zorder": z}
    axes.add_patch(FancyBboxPatch(corner, *size, boxstyle=shape, **line))


def write(axes: Axes, x: float, y: float, text: str, size: float, **more: Any) -> None:
    axes.text(x, y, text, fontsize=size, **{"ha": "center", "va": "center", "zorder": 5, **more})


def draw_segments(axes: Axes, paths: Sequence[Any], colours: Sequence[str], widths: Any, **line: Any) -> None:
    axes.add_collection(LineCollection(paths, colors=colours, linewidths=widths, **{"zorder": 2, **line}))


def bow(start: np.ndarray, bend: np.ndarray, end: np.ndarray) -> np.ndarray:
    t = np.linspace(0, 1, 25)[:, None]
    return (1 - t) ** 2 * start + 2 * t * (1 - t) * bend + t**2 * end


def places_on(path: np.ndarray, along: Sequence[float] = _ALONG) -> list[tuple[float, float]]:
    """Return possible positions of a number on a line: the middle, or towards an end."""
    x, y = (np.interp(along, np.linspace(0, 1, len(path)), values) for values in path.T)
    return list(zip(x.tolist(), y.tolist(), strict=True))


class LinkHeat:
    """The utilisation of each link of a network, 0 to 1, as colours and words."""

    def __init__(self, network: Any, utilisation: Any):
        self.network, self.value = network, np.asarray(utilisation, dtype=float)
        if self.value.shape != (len(network.tail),):
            raise InputError(f"utilisation must have the shape {[len(network.tail)]}, got {list(self.value.shape)}.")
        if not np.all((self.value >= 0) & (self.value <= 1 + np.finfo(np.float32).eps)):
            reach = f"{np.min(self.value):g}..{np.max(self.value):g}"
            raise InputError(f"utilisation must be between 0 and 1, got {reach}.")
        self.colours = colours()

    def of(self, links: Any) -> str:
        return to_hex(self.colours(float(np.max(self.value[links], initial=0.0))))

    def pair(self, kind: str, numbers: Any) -> str:
        starts = [self.network.run(f"{kind} {direction}").start for direction in ("up", "down")]
        return self.of(np.concatenate([start + np.asarray(numbers) for start in starts]))

    def words(self, *kinds: str) -> str:
        values = np.concatenate([self.value[self.network.run(kind)] for kind in kinds])
        return f"mean {percent(values.mean())}, max {percent(values.max())}"


def colours() -> Colormap:
    return LinearSegmentedColormap.from_list("utilisation", _STEPS)


def utilisation_bar(figure: Figure, left: float, bottom: float, width: float) -> None:
    """Draw the colour key of utilisation; `left`, `bottom`, `width`: inches from the lower left corner."""
    across, up = figure.get_size_inches()
    axes = figure.add_axes((left / across, bottom / up, width / across, 0.11 / up))
    key = figure.colorbar(ScalarMappable(Normalize(0, 1), colours()), cax=axes, orientation="horizontal")
    key.ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    key.ax.tick_params(labelsize=8, length=2)
    key.outline.set_visible(False)  # pyright: ignore
    axes.set_title("utilisation of the busier direction", fontsize=8, fontweight="normal", pad=3)
