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
from mfabric_jax.report.figures import parts
from mfabric_jax.report.figures.network_layout import ENDPOINTS, Placed, placed_boxes
from mfabric_jax.report.figures.parts import LINK
from mfabric_jax.report.style import mixed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_NODES = 500
_LINE_HEIGHT = 0.18
_LABELLED = 30  # pairs up to which each line carries its capacity
_COLOURS = {**dict.fromkeys(ENDPOINTS, LINK), "nvswitch": "#4D4D4D"}
_ORDER = ("fat-tree", "rail-optimized", "mfabric-cpo", "topoopt", "rail-only", "mfabric", "oversub-fat-tree")
_OTHERS = tuple(style.FABRICS[name].colour for name in _ORDER)
_LINES = (LINK, *(style.FABRICS[name].colour for name in ("mfabric", "rail-optimized", "topoopt", "fat-tree")))


def draw_graph(network: Any, path: str | Path, *, utilisation: Any = None, title: str = "") -> Path:
    """Draw a network (`mfabric_jax.fabric.Network`); returns the path written.

    `utilisation` [L] of its links, 0 to 1, colours them. Nodes stand in layers above the kinds gpu, host and server if
    links lead up from these; else joined nodes stand near each other.
    """
    return style.save(lambda: build_graph(network, utilisation=utilisation, title=title), path)


@dataclass
class _Pairs:
    """Nodes that are joined [P 2], lower number first; what leads there and back.

    - `gbps`, `exists` [P 2]: in each direction.   - `kind` [P]: of the links.   - `links`: of each pair.
    """

    ends: np.ndarray
    gbps: np.ndarray
    exists: np.ndarray
    kind: list[str]
    links: list[np.ndarray]

    @property
    def rate(self) -> np.ndarray:
        """[P] Gbps in the direction that has more."""
        return self.gbps.max(axis=1)

    @property
    def rates(self) -> list[float]:
        """What rates there are, each once, the largest first."""
        return sorted({float(f"{rate:.4g}") for rate in self.rate}, reverse=True)

    def label(self, pair: int) -> str:
        """ "400", or "400/100" where the directions differ."""
        there, back = self.gbps[pair]
        return f"{there:.4g}/{back:.4g}" if self.exists[pair].all() and there != back else f"{max(there, back):.4g}"


def _joined(network: Any) -> _Pairs:
    link = np.flatnonzero(network.tail != network.head)
    both = np.stack([network.tail, network.head], axis=1)[link]
    ends, pair = np.unique(np.sort(both, axis=1), axis=0, return_inverse=True)
    pair, back = pair.reshape(-1), (both[:, 0] > both[:, 1]).astype(int)
    gbps, exists = np.zeros((len(ends), 2)), np.zeros((len(ends), 2), bool)
    np.add.at(gbps, (pair, back), units.to_gbps(network.capacity[link].astype(float)))
    exists[pair, back] = True
    kinds = [kind.removesuffix(" up").removesuffix(" down") for kind, _ in network.links]
    order = np.argsort(pair, kind="stable")
    links = np.split(link[order], np.flatnonzero(np.diff(pair[order])) + 1) if len(link) else []
    of_link = network.kind_of_links()
    return _Pairs(ends, gbps, exists, [kinds[of_link[own[0]]] for own in links], links)


def build_graph(network: Any, *, utilisation: Any = None, title: str = "", places: Any = None) -> Figure:
    """The figure itself; `places` [N, 2 or 3] where the nodes have places of their own."""
    if not 1 <= network.size <= MOST_NODES:
        raise InputError(f"network must have 1 to {MOST_NODES} nodes to be drawn, got {network.size:,}.")
    busy = None if utilisation is None else parts.LinkHeat(network, utilisation)
    kinds = [kind for kind, count in network.nodes for _ in range(count)]
    names = [str(i) for _, count in network.nodes for i in range(count)]
    names = names if network.names is None else [str(name) for name in network.names]
    pairs = _joined(network)
    placed, layered = placed_boxes(kinds, names, pairs.ends, places)
    paths = [_path(placed, start, end, layered, places is not None) for start, end in pairs.ends]
    low, high = placed.corners(paths)
    broad, middle = high[0] - low[0], (low[0] + high[0]) / 2
    keys, words = _keys(network, pairs, kinds, busy), _words(network, pairs, bool(placed.font), broad)
    columns = style.key_columns(keys, broad)
    low[1] -= _LINE_HEIGHT * len(words) + 0.24 * math.ceil(len(keys) / columns)
    base = 0.72 if busy else 0.12
    figure = style.blank(broad, high[1] - low[1] + base + (0.35 if title else 0.0), arranged=False)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(low[0], high[0]), ylim=(low[1] - base, high[1] + (0.35 if title else 0.0)))
    axes.set_axis_off()
    _draw_lines(axes, pairs, paths, busy)
    if len(paths) <= _LABELLED and len(pairs.rates) > 1:
        _draw_rates(axes, pairs, paths, placed)
    _draw_nodes(axes, kinds, names, placed)
    for line, text in enumerate(reversed(words)):
        place = {"fontsize": style.FONT - 1.5, "ha": "center", "va": "bottom", "color": "#444444"}
        axes.text(middle, low[1] + _LINE_HEIGHT * line, text, **place)
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
        parts.bar(figure, broad / 2 - 1.5, 0.32, 3.0)
    return figure


def _path(placed: Placed, one: int, other: int, layered: bool, bends: bool) -> np.ndarray:
    """[points 2] of a line: straight, or a bow where it would run through other boxes of its row.

    In layers it leads from the top of one box to the bottom of the other. `bends`: rows run in any direction.
    """
    start, end = placed.place[one], placed.place[other]
    run = end - start
    if (layered and start[1] == end[1]) or bends:
        others = np.delete(placed.place, (one, other), axis=0) - start
        t = others @ run / (run @ run)
        aside = np.abs(others @ np.array([-run[1], run[0]])) / np.linalg.norm(run)
        if ((t > 0) & (t < 1) & (aside < 0.05)).any():
            drop = min(0.6, 0.18 + 0.12 * float(np.linalg.norm(run)))
            normal = np.array([run[1], -run[0]]) / np.linalg.norm(run)
            bend = (start + end) / 2 + 2 * drop * normal * (1 if normal[1] < 0 or not layered else -1)
            return parts.bow(start, bend, end)
    rise = np.array([0.0, np.sign(run[1]) * placed.height / 2 if layered and start[1] != end[1] else 0.0])
    return np.stack([start + rise, end - rise])


def _line_colours(pairs: _Pairs) -> dict[str, str]:
    """A colour for each kind of link."""
    return {kind: _LINES[rank % len(_LINES)] for rank, kind in enumerate(dict.fromkeys(pairs.kind))}


def _draw_lines(axes: Axes, pairs: _Pairs, paths: list[np.ndarray], busy: parts.LinkHeat | None) -> None:
    if not paths:
        return
    most, crowd = float(pairs.rate.max()), min(1.0, math.sqrt(120 / len(paths)))
    thick = 0.7 + 2.0 * np.sqrt(pairs.rate / most) if most > 0 and len(pairs.rates) > 1 else np.ones(len(paths))
    look_of = _line_colours(pairs)
    colours = [busy.of(links) for links in pairs.links] if busy else [look_of[kind] for kind in pairs.kind]
    dashes = ["-" if rate > 0 else (0, (3, 3)) for rate in pairs.rate]
    parts.draw_segments(axes, paths, colours, crowd * thick, linestyles=dashes)
    for pair in np.flatnonzero(~pairs.exists.all(axis=1)):
        _arrow(axes, paths[pair][:: 1 if pairs.exists[pair, 0] else -1], colours[pair])


def _arrow(axes: Axes, path: np.ndarray, colour: str) -> None:
    """A head on the middle of a line that leads one way."""
    middle = len(path) // 2
    start, end = path[middle - 1], path[middle]
    tip = start + 0.72 * (end - start) if len(path) == 2 else end
    arrow = {"arrowstyle": "-|>", "color": colour, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
    axes.annotate("", tip, start, arrowprops=arrow, zorder=2)


def _draw_rates(axes: Axes, pairs: _Pairs, paths: list[np.ndarray], placed: Placed) -> None:
    """Gbps on each line, where it covers nothing."""
    taken = [(x, y, w, placed.height) for (x, y), w in zip(placed.place, placed.width, strict=True)]
    for pair, path in enumerate(paths):
        text = pairs.label(pair)
        width, height = (0.62 * len(text) * 7 + 3) / 72, 0.14
        if free := style.free_place(parts.places_on(path), width, height, taken):
            box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
            parts.write(axes, *free, text, 7, zorder=2.5, bbox=box, color="#444444")


# -- nodes and words


def _colour(kind: str, kinds: list[str]) -> str:
    others = [own for own in dict.fromkeys(kinds) if own not in _COLOURS]
    return _COLOURS[kind] if kind in _COLOURS else _OTHERS[others.index(kind) % len(_OTHERS)]


def _draw_nodes(axes: Axes, kinds: list[str], names: list[str], placed: Placed) -> None:
    height = placed.height
    for (x, y), width, kind, name in zip(placed.place, placed.width, kinds, names, strict=True):
        colour = _colour(kind, kinds)
        fill = mixed(colour, 0.8) if placed.font else colour
        parts.draw_box(axes, (x - width / 2, y - height / 2), (width, height), fill, colour)
        if placed.font:
            turned: dict[str, Any] = {"rotation": 90} if placed.upright else {"va": "center_baseline"}
            parts.write(axes, x, y, name, placed.font, parse_math=False, **turned)


def _keys(network: Any, pairs: _Pairs, kinds: list[str], busy: parts.LinkHeat | None) -> list[Any]:
    """What the colours of boxes and lines mean, where there are several kinds."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    nodes = [
        Patch(facecolor=mixed(_colour(kind, kinds), 0.8), edgecolor=_colour(kind, kinds), label=f"{count:,} {kind}")
        for kind, count in network.nodes
    ]
    lines = [Line2D([], [], color=colour, label=kind) for kind, colour in _line_colours(pairs).items()]
    return (nodes if len(nodes) > 1 else []) + (lines if len(lines) > 1 and busy is None else [])


def _words(network: Any, pairs: _Pairs, named: bool, broad: float) -> list[str]:
    """What the boxes and lines do not say by themselves."""
    rates, words = pairs.rates, f"{network.size:,} nodes, {len(network.tail):,} links"
    if len(rates) == 1:
        words += f"; {rates[0]:g} Gbps between joined nodes"
    elif rates:
        *others, last = [f"{rate:g}" for rate in reversed(rates)]
        several = f"{rates[-1]:g} to {rates[0]:g}" if len(rates) > 5 else f"{', '.join(others)} and {last}"
        words += f"; {several} Gbps between joined nodes"
        words += " (numbers on lines)" if len(pairs.ends) <= _LABELLED else " (thicker lines: more)"
    return wrap(words if named else words + "; names have no room", int((broad - 0.2) / 0.065))
