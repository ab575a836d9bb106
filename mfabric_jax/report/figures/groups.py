"""Panels in which each group of rows has a line: dots and lying bars."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.report import style
from mfabric_jax.report.figures.panels import PicturePanel, Row, Rows
from mfabric_jax.report.grid import grouped, values_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BAND = "#E69F00"
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": style.FONT - 2}


@dataclasses.dataclass(frozen=True)
class Grouped(PicturePanel):
    """A line of the panel for each value of `y`, from above; in blocks by another column, if one is named.

    - `blocks_named`: the labels of the axis name blocks instead of lines.   - `each`: inches of a line.
    - `note`: a column of texts beside marks.
    """

    share_y = True
    block: str = ""
    blocks_named: bool = False
    each: float = 0.27
    note: str = ""

    def places(self, rows: Rows) -> dict[tuple, float]:
        """Where each (block, line) is."""
        pairs = list(dict.fromkeys(self.place(row) for row in rows))
        if not self.blocks_named:
            return {pair: float(place) for place, pair in enumerate(pairs)}
        blocks, lines = values_of(rows, self.block), values_of(rows, self.y.key)
        return {pair: blocks.index(pair[0]) * (len(lines) + 1.0) + lines.index(pair[1]) for pair in pairs}

    def place(self, row: Row) -> tuple:
        """The (block, line) of a row."""
        return (row[self.block] if self.block else None, row[self.y.key])

    def inches(self, rows: Rows) -> float:
        return max(1.6, 0.5 + self.each * (max(self.places(rows).values()) + 1))

    def left(self, rows: Rows) -> float:
        labels = values_of(rows, self.block if self.blocks_named else self.y.key)
        return 0.5 + 0.075 * max(len(line) for label in labels for line in str(label).split("\n"))

    def offsets(self, rows: Rows, room: float) -> dict[Any, float]:
        """The values of the colour side by side, within a part of a line."""
        values = values_of(rows, self.by)
        return {value: (rank - (len(values) - 1) / 2) * room / len(values) for rank, value in enumerate(values)}

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        super().dress(axes, rows, everything)
        blocks: dict[Any, dict[str, float]] = {}
        for (block, line), place in self.places(everything).items():
            blocks.setdefault(block, {})[str(line)] = place
        for above, below in pairwise(blocks.values()):
            axes.axhline((max(above.values()) + min(below.values())) / 2, color=style.FAINT, linewidth=0.6)
        if self.blocks_named:
            ticks = [(float(np.mean(list(lines.values()))), str(block)) for block, lines in blocks.items()]
        else:
            ticks = [(place, line) for lines in blocks.values() for line, place in lines.items()]
        axes.set_yticks(*zip(*ticks, strict=True))
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(max(max(lines.values()) for lines in blocks.values()) + 0.6, -0.6)
        axes.grid(visible=False, axis="y")


@dataclasses.dataclass(frozen=True)
class Dots(Grouped):
    """A dot for each row, in the line of its group.

    - `dodge`: colours of one line stand apart.   - `hollow`, `size`: columns that decide how dots look.
    - `base`: a line of the panel whose dots go on as dashed lines.
    - `band`: columns with the ends of a shaded range of the panel, and what it is called.
    - `middle`: of the dots of a line, such as the mean: dots are small and spread, the middle is a stroke, and
      `beside` is the form of the middle and the 90th percentile to the right, under the heading `head`; with `box` a
      line from the 10th to the 90th percentile and a box between quartiles stand for the dots.
    - `limit`: a column whose mean in a line of the panel is a dashed stroke.
    """

    dodge: bool = False
    hollow: str = ""
    size: str = ""
    base: Any = None
    band: tuple[str, str, str] | None = None
    middle: Callable[[Sequence[float]], Any] | None = None
    beside: str = "{:.2f}"
    head: str = ""
    box: bool = False
    limit: str = ""

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places, rng = self.places(everything), np.random.default_rng(0)
        if self.band:
            low, high = (rows[0][key] for key in self.band[:2])
            axes.axvspan(low or 0.0, high, color=BAND, alpha=0.3 if low else 0.18, linewidth=0)
        if self.middle is None:
            offsets = self.offsets(everything, 0.72 if self.dodge else 0.0)
            for row in rows:
                self._dot(axes, row, places[self.place(row)] + offsets[row[self.by]])
            return
        lines = grouped([{**row, "place": places[self.place(row)]} for row in rows], "place")
        for (place,), line in lines.items():
            self._summary(axes, line, place, rng)
        note = {"xycoords": ("axes fraction", "axes fraction"), "annotation_clip": False, "va": "bottom"}
        axes.annotate(self.head, (1.02, 1.02), color=style.FAINT, **note)

    def _dot(self, axes: Axes, row: Row, place: float) -> None:
        look, value = self.look(row[self.by]), row[self.x.key]
        fill = "white" if self.hollow and row[self.hollow] else look.colour
        size = row[self.size] if self.size else 5
        axes.plot(value, place, look.marker, color=look.colour, markerfacecolor=fill, markersize=size)
        if self.base is not None and row[self.y.key] == self.base:
            axes.axvline(value, color=look.colour, linestyle=(0, (3, 3)), linewidth=1.0)
        if self.note:
            axes.annotate(row[self.note], (value, place), (8, 0), **BESIDE)

    def _summary(self, axes: Axes, rows: Rows, place: float, rng: np.random.Generator) -> None:
        values, colour = [row[self.x.key] for row in rows], self.look(rows[0][self.by]).colour
        if self.box:
            low, early, late, high = np.quantile(values, [0.1, 0.25, 0.75, 0.9])
            axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
            axes.barh(place, late - early, left=early, height=0.5, color=colour, alpha=0.45)
        else:
            spread = place + rng.uniform(-0.24, 0.24, len(values))
            axes.plot(values, spread, ".", color=colour, markersize=4, alpha=0.6)
        assert self.middle is not None
        strokes = [(self.middle(values), style.INK, "-")]
        if self.limit:
            strokes.append((np.mean([row[self.limit] for row in rows]), style.FAINT, "--"))
        for value, ink, dashes in strokes:
            axes.plot([value] * 2, [place - 0.38, place + 0.38], dashes, color=ink, linewidth=1.8, zorder=1.9)
        where = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": style.FONT - 1.5}
        text = self.beside.format(self.middle(values), np.quantile(values, 0.9))
        axes.annotate(text, (1.02, place), **where)

    def handles(self, rows: Rows) -> list:
        from matplotlib.patches import Patch

        dots = super().handles(rows)
        for dot in dots:
            dot.set_linestyle("")
        return [*dots, *([Patch(color=BAND, alpha=0.3, label=self.band[2])] if self.band else [])]


@dataclasses.dataclass(frozen=True)
class Bars(Grouped):
    """Lying bars: the colours of a line one after the other if `stacked`, else side by side.

    - `inside`: a column of texts within bars that are wide enough.   - `hatched`: a column; where true, bars are.
    """

    each: float = 0.6
    stacked: bool = False
    inside: str = ""
    hatched: str = ""
    edge: str = "white"

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places, offsets = self.places(everything), self.offsets(everything, 0.0 if self.stacked else 0.72)
        thick = 0.72 if self.stacked else 0.66 / len(offsets)
        longest, ends = self.x.high or max(row[self.x.key] for row in everything), dict.fromkeys(places, 0.0)
        for row in rows:
            pair, look, value = self.place(row), self.look(row[self.by]), row[self.x.key]
            left, place = ends[pair] if self.stacked else 0.0, places[pair] + offsets[row[self.by]]
            ends[pair] += value
            hatched = bool(self.hatched and row[self.hatched])
            filled: dict[str, Any] = {"facecolor": look.colour, "edgecolor": self.edge}
            empty: dict[str, Any] = {"facecolor": "white", "edgecolor": look.colour, "hatch": "////"}
            axes.barh(place, value, thick, left, linewidth=0.6, **(empty if hatched else filled))
            if self.inside and value > 0.05 * longest:
                ink = style.INK if hatched else style.ink_on(look.colour)
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0} if hatched else None
                text = {"ha": "center", "va": "center", "color": ink, "bbox": box}
                axes.text(left + value / 2, place, row[self.inside], **text)
            if self.note:
                axes.annotate(row[self.note], (left + value, place), (4, 0), **BESIDE)

    def handles(self, rows: Rows) -> list:
        from matplotlib.patches import Patch

        shown = [self.look(value) for value in values_of(rows, self.by)]
        return [Patch(facecolor=look.colour, edgecolor=self.edge, label=look.label) for look in shown]
