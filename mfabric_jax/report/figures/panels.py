"""Pictures described by data: lines over an axis, dots by group, bars and heat maps, in panels by columns of the rows.

A panel says which column is on which axis and which one decides the colour. A `Picture` has a panel for each value of
two columns. Panels may also be drawn alone, on axes that the caller has arranged.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import Rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#4D4D4D", "#E69F00")
MARKERS = "osD^vXP"
BAND = "#E69F00"
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": style.FONT - 2}

Looks = Mapping[Any, style.Look]


def looks(labels: Mapping[Any, str] | Iterable[Any], markers: str = MARKERS) -> dict[Any, style.Look]:
    """A look for each value, in the order of the palette; labels are the values themselves unless given."""
    named = labels if isinstance(labels, Mapping) else {value: str(value) for value in labels}
    many = len(PALETTE), len(markers) or 1
    return {
        value: style.Look(label, PALETTE[rank % many[0]], markers[rank % many[1] : rank % many[1] + 1])
        for rank, (value, label) in enumerate(named.items())
    }


def values_of(rows: Rows, key: str) -> list[Any]:
    """The values of a column, each once, in their order."""
    return list(dict.fromkeys(row[key] for row in rows))


def grouped(rows: Rows, *keys: str) -> dict[tuple, list[Mapping[str, Any]]]:
    """Rows by the values of columns, in their order."""
    groups: dict[tuple, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


@dataclasses.dataclass(frozen=True)
class Axis:
    """A column of the rows on an axis.

    - `ticks`: texts by value, or a function that writes the values of the column; None: round numbers.
    - `low`, `high`: its ends; from `low` alone it goes on to `room` times the range of what is drawn.
    - `lines`: values with a line across the panel.
    """

    key: str
    label: str = ""
    log: bool = False
    percent: bool = False
    ticks: Mapping[float, str] | Callable[[Any], str] | None = None
    low: float | None = None
    high: float | None = None
    room: float = 1.08
    lines: tuple[float, ...] = ()

    def known(self, rows: Rows) -> list[float]:
        """The values of the column, without gaps."""
        return [row[self.key] for row in rows if row.get(self.key) is not None]

    def dress(self, axes: Axes, name: str, rows: Rows) -> None:
        """Scale, ticks, limits and lines; call it when all panels that share the axis have been drawn."""
        axis, values = getattr(axes, f"{name}axis"), self.known(rows)
        if self.log and axis.get_scale() != "log":  # once: a new scale forgets the ticks of panels that share it
            getattr(axes, f"set_{name}scale")("log")
        if self.ticks is not None and values:
            self._tick(axis, values)
        elif self.log and values:
            _round_ticks(axis, values)
        elif self.percent:
            axis.set_major_formatter(lambda value, _: f"{value:.0%}")
        limits, share = getattr(axes, f"set_{name}lim"), getattr(axes, f"get_shared_{name}_axes")()
        if self.low is not None and self.high is None and not self.log:
            top = max(getattr(sibling.dataLim, f"{name}1") for sibling in share.get_siblings(axes))
            limits(self.low, self.low + self.room * (top - self.low))
        elif self.low is not None or self.high is not None:
            limits(self.low, self.high)
        for value in self.lines:
            (axes.axvline if name == "x" else axes.axhline)(value, color=style.INK, linewidth=0.8, zorder=0.9)

    def _tick(self, axis: Any, values: Sequence[float]) -> None:
        if isinstance(self.ticks, Mapping):
            low, high = min(values) / 2, max(values) * 2
            texts = {at: text for at, text in self.ticks.items() if low < at < high}
        else:
            texts = {at: self.ticks(at) for at in sorted(set(values))}  # pyright: ignore
        axis.set_ticks(list(texts), labels=list(texts.values()))
        axis.set_ticks([], minor=True)


def _round_ticks(axis: Any, values: Sequence[float]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    wide = max(values) > 300 * min(values)
    axis.set_major_locator(LogLocator(subs=(1,) if wide else (1, 2, 5)))
    axis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.set_minor_formatter(NullFormatter())


@dataclasses.dataclass(frozen=True, kw_only=True)
class Panel:
    """Rows on two axes, coloured by the column `by`; `title` is a format of a row.

    - `looks`: by value; without any, colours of the palette and labels of the form `named`.
    """

    x: Axis
    y: Axis
    by: str = ""
    looks: Looks = dataclasses.field(default_factory=dict)
    named: str = "{}"
    markers: str = MARKERS
    title: str = ""
    high: float = 2.7  # inches

    @abstractmethod
    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> Any:
        """The marks of the rows; `everything` holds the rows of all panels, which share places and colours."""

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        """Scales, grid and title."""
        self.x.dress(axes, "x", everything)
        self.y.dress(axes, "y", everything)
        axes.grid()
        if self.title:
            axes.set_title(self.title.format(**rows[0]), loc="left")

    def inches(self, rows: Rows) -> float:
        """The height that a panel needs."""
        return self.high

    def handles(self, rows: Rows) -> list:
        """The key: one entry for each value that the rows have."""
        from matplotlib.lines import Line2D

        shown = [self.look(value) for value in values_of(rows, self.by)] if self.by else []
        return [Line2D([], [], color=look.colour, marker=look.marker, label=look.label) for look in shown]

    def fitted(self, rows: Rows) -> Panel:
        """With a look for each value of all panels."""
        if self.looks or not self.by:
            return self
        values = {value: self.named.format(value) for value in values_of(rows, self.by)}
        return dataclasses.replace(self, looks=looks(values, self.markers))

    def look(self, value: Any) -> style.Look:
        """How a value of `by` is drawn."""
        return self.looks.get(value, style.Look(str(value), style.INK))

    def alone(self, axes: Axes, rows: Rows) -> Any:
        """Draw the panel on axes of its own, with the labels of both."""
        image = self.draw(axes, rows, rows)
        self.dress(axes, rows, rows)
        axes.set(xlabel=self.x.label, ylabel=self.y.label)
        return image


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lines(Panel):
    """A line for each value of a column.

    - `under`: its line is wide, because others lie on it.   - `empty`: what to say where no row has a value.
    - `dashed`: a column; rows in which it is true make a dashed line of their own.   - `published`: crosses.
    """

    under: Any = None
    empty: str = ""
    dashed: str = ""
    published: str = ""
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # what "dashed" and "published" are called

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        known = [row for row in rows if row.get(self.y.key) is not None]
        lines = grouped([row | {"dashed": bool(row.get(self.dashed))} for row in known], self.by, "dashed")
        for (value, dashed), line in lines.items():
            points = sorted((row[self.x.key], row[self.y.key]) for row in line)
            axes.plot(*zip(*points, strict=True), **self._marks(self.look(value), dashed, value == self.under))
        crosses = [(row[self.x.key], row[self.published]) for row in known if row.get(self.published) is not None]
        if crosses:
            axes.plot(*zip(*crosses, strict=True), "x", color=style.INK, markersize=8, markeredgewidth=1.6, zorder=5)
        if not known:
            axes.text(0.5, 0.5, self.empty, transform=axes.transAxes, ha="center", color=style.FAINT)

    def _marks(self, look: style.Look, dashed: bool, wide: bool) -> dict[str, Any]:
        width, size = (3.6, 8.5) if wide and not dashed else (1.4, 5)
        marks = {"color": look.colour, "marker": look.marker, "linewidth": width, "markersize": size}
        return marks | ({"linestyle": "--", "markerfacecolor": "white"} if dashed else {"linestyle": "-"})

    def handles(self, rows: Rows) -> list:
        from matplotlib.lines import Line2D

        values = values_of(rows, self.by)
        found = [
            Line2D([], [], label=self.look(one).label, **self._marks(self.look(one), False, one == self.under))
            for one in values
        ]
        if "dashed" in self.names and any(row.get(self.dashed) for row in rows):
            grey = style.Look("", style.FAINT)
            found.append(Line2D([], [], label=self.names["dashed"], **self._marks(grey, True, False)))
        if "published" in self.names:
            cross = {"linestyle": "", "marker": "x", "color": style.INK, "markersize": 7}
            found.append(Line2D([], [], label=self.names["published"], **cross))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Grouped(Panel):
    """A line of the panel for each value of `y`, from above; in blocks by another column, if one is named.

    - `blocks_named`: the labels of the axis name blocks instead of lines.
    """

    block: str = ""
    blocks_named: bool = False
    each: float = 0.27  # inches of a line

    def places(self, rows: Rows) -> dict[tuple, float]:
        """Where each (block, line) is."""
        if not self.blocks_named:
            return {pair: float(place) for place, pair in enumerate(dict.fromkeys(self.place(row) for row in rows))}
        blocks, lines = values_of(rows, self.block), values_of(rows, self.y.key)
        pairs = dict.fromkeys(self.place(row) for row in rows)
        return {(b, one): blocks.index(b) * (len(lines) + 1.0) + lines.index(one) for b, one in pairs}

    def place(self, row: Mapping[str, Any]) -> tuple:
        """The (block, line) of a row."""
        return (row[self.block] if self.block else None, row[self.y.key])

    def inches(self, rows: Rows) -> float:
        return max(1.6, 0.5 + self.each * (max(self.places(rows).values()) + 1))

    def offsets(self, rows: Rows, room: float) -> dict[Any, float]:
        """The values of the colour side by side, within a part of a line."""
        values = values_of(rows, self.by)
        return {value: (rank - (len(values) - 1) / 2) * room / len(values) for rank, value in enumerate(values)}

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        super().dress(axes, rows, everything)
        places = self.places(everything)
        blocks: dict[Any, list[float]] = {}
        for (block, _), place in places.items():
            blocks.setdefault(block, []).append(place)
        for middle in [(min(after) + max(before)) / 2 for before, after in _pairs(list(blocks.values()))]:
            axes.axhline(middle, color=style.FAINT, linewidth=0.6)
        if self.blocks_named:
            axes.set_yticks([float(np.mean(at)) for at in blocks.values()], [str(name) for name in blocks])
        else:
            axes.set_yticks(list(places.values()), [str(name) for _, name in places])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(max(places.values()) + 0.6, -0.6)
        axes.grid(visible=False, axis="y")


def _pairs(values: Sequence) -> list[tuple]:
    return list(zip(values, values[1:], strict=False))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dots(Grouped):
    """A dot for each row, in the line of its group.

    - `dodge`: colours of one line stand apart.   - `note`: a column of texts beside dots.   - `hollow`: a column.
    - `size`: a column with the size of dots.   - `base`: a line of the panel whose dots go on as dashed lines.
    - `middle`: of the dots of a line, such as the mean: dots are small and spread, the middle is a stroke, and
      `beside` writes something to the right under the heading `head`; with `box` a line from the 10th to the 90th
      percentile and a box between quartiles stand for the dots.
    - `limit`: a column whose mean in a line of the panel is a dashed stroke.
    - `band`: columns with the ends of a shaded range of the panel, and what it is called.
    """

    dodge: bool = False
    note: str = ""
    hollow: str = ""
    size: str = ""
    base: Any = None
    middle: Callable[[Sequence[float]], Any] | None = None
    beside: Callable[[Sequence[float]], str] | None = None
    head: str = ""
    box: bool = False
    limit: str = ""
    band: tuple[str, str, str] | None = None

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places = self.places(everything)
        if self.band:
            low, high = (rows[0][key] for key in self.band[:2])
            axes.axvspan(low or 0.0, high, color=BAND, alpha=0.3 if low else 0.18, linewidth=0)
        if self.middle is None:
            offsets = self.offsets(everything, 0.72 if self.dodge else 0.0)
            for row in rows:
                self._dot(axes, row, places[self.place(row)] + offsets[row[self.by]])
            return
        rng, lines = np.random.default_rng(0), grouped([row | {"place": self.place(row)} for row in rows], "place")
        for (pair,), line in lines.items():
            self._summary(axes, line, places[pair], rng)
        if self.head:
            note = {"xycoords": ("axes fraction", "axes fraction"), "annotation_clip": False, "va": "bottom"}
            axes.annotate(self.head, (1.02, 1.02), color=style.FAINT, **note)

    def _dot(self, axes: Axes, row: Mapping[str, Any], place: float) -> None:
        look, value = self.look(row[self.by]), row[self.x.key]
        fill = "white" if self.hollow and row[self.hollow] else look.colour
        size = row[self.size] if self.size else 5
        axes.plot(value, place, look.marker, color=look.colour, markerfacecolor=fill, markersize=size)
        if self.base is not None and row[self.y.key] == self.base:
            axes.axvline(value, color=look.colour, linestyle=(0, (3, 3)), linewidth=1.0)
        if self.note and row[self.note]:
            axes.annotate(row[self.note], (value, place), (8, 0), **BESIDE)

    def _summary(self, axes: Axes, rows: Rows, place: float, rng: np.random.Generator) -> None:
        values, colour = self.x.known(rows), self.look(rows[0][self.by]).colour
        if self.box:
            low, early, late, high = np.quantile(values, [0.1, 0.25, 0.75, 0.9])
            axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
            axes.barh(place, late - early, left=early, height=0.5, color=colour, alpha=0.45)
        else:
            spread = place + rng.uniform(-0.24, 0.24, len(values))
            axes.plot(values, spread, ".", color=colour, markersize=4, alpha=0.6)
        assert self.middle is not None
        for value, ink, dashes in (
            (self.middle(values), style.INK, "-"),
            *([(np.mean([row[self.limit] for row in rows]), style.FAINT, "--")] if self.limit else []),
        ):
            axes.plot([value] * 2, [place - 0.38, place + 0.38], dashes, color=ink, linewidth=1.8, zorder=1.9)
        if self.beside:
            at = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": style.FONT - 1.5}
            axes.annotate(self.beside(values), (1.02, place), **at)

    def handles(self, rows: Rows) -> list:
        from matplotlib.patches import Patch

        found = super().handles(rows)
        for handle in found:
            handle.set_linestyle("")
        return [*found, *([Patch(color=BAND, alpha=0.3, label=self.band[2])] if self.band else [])]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bars(Grouped):
    """Lying bars: the colours of a line one after the other if `stacked`, else side by side.

    - `inside`, `note`: columns of texts, within bars that are wide enough, and behind them.
    - `hatched`: a column; bars in which it is true are hatched.
    """

    each: float = 0.6
    stacked: bool = False
    inside: str = ""
    note: str = ""
    hatched: str = ""
    edge: str = "white"
    thick: float = 0.72

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places, offsets = self.places(everything), self.offsets(everything, 0.0 if self.stacked else self.thick)
        thick = self.thick if self.stacked else 0.92 * self.thick / len(offsets)
        ends: dict[tuple, float] = {}
        total = self.x.high or max(row[self.x.key] for row in everything)
        for row in rows:
            pair, look, value = self.place(row), self.look(row[self.by]), row[self.x.key]
            left, place = ends.get(pair, 0.0) if self.stacked else 0.0, places[pair] + offsets[row[self.by]]
            hatched = self.hatched and row[self.hatched]
            filled = {"facecolor": look.colour, "edgecolor": self.edge}
            empty = {"facecolor": "white", "edgecolor": look.colour, "hatch": "////"}
            axes.barh(place, value, thick, left, linewidth=0.6, **(empty if hatched else filled))
            if self.inside and value > 0.05 * total:
                ink = style.INK if hatched else style.ink_on(look.colour)
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0} if hatched else None
                text = {"ha": "center", "va": "center", "color": ink, "bbox": box}
                axes.text(left + value / 2, place, row[self.inside], **text)
            ends[pair] = left + value
            if self.note and row[self.note]:
                axes.annotate(row[self.note], (left + value, place), (4, 0), **BESIDE)

    def handles(self, rows: Rows) -> list:
        from matplotlib.patches import Patch

        shown = [self.look(value) for value in values_of(rows, self.by)]
        return [Patch(facecolor=look.colour, edgecolor=self.edge, label=look.label) for look in shown]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Heat(Panel):
    """A coloured cell for each pair of values; `by` is the column of the colour. Cells without a row are grey.

    - `norm`: of the values of all panels.   - `number`: how a value is written into its cell.
    - `frames`: rows of a panel whose cells have a frame, by its line.
    """

    colours: str = "Blues"
    norm: Callable[[Sequence[float]], Any]
    number: str = ""
    frames: Callable[[Rows], Mapping[str, Mapping[str, Any]]] = lambda rows: {}
    down: bool = False  # the y axis begins above
    high: float = 3.5

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> Any:
        across, along = (sorted(set(values_of(everything, axis.key))) for axis in (self.x, self.y))
        if self.number:  # a cell for every whole number
            across, along = (list(range(values[0], values[-1] + 1)) for values in (across, along))
        columns, lines = ({value: place for place, value in enumerate(values)} for values in (across, along))
        cells = np.full((len(along), len(across)), np.nan)
        for row in rows:
            cells[lines[row[self.y.key]], columns[row[self.x.key]]] = row[self.by]
        extent = (across[0] - 0.5, across[-1] + 0.5, along[0] - 0.5, along[-1] + 0.5)
        extent = extent[:2] + extent[:1:-1] if self.down else extent
        norm = self.norm([row[self.by] for row in everything])
        image = axes.imshow(
            cells,
            cmap=self.colours,
            norm=norm,
            extent=extent,
            origin="upper" if self.down else "lower",
            aspect="equal" if self.down else "auto",
            interpolation="nearest",
        )
        for row in rows if self.number else []:
            red, green, blue, _ = image.cmap(norm(row[self.by]))
            ink = style.INK if 0.299 * red + 0.587 * green + 0.114 * blue > 0.47 else "white"
            text = self.number.format(row[self.by])
            axes.text(row[self.x.key], row[self.y.key], text, ha="center", va="center", fontsize=7, color=ink)
        self._frame(axes, rows)
        return image

    def _frame(self, axes: Axes, rows: Rows) -> None:
        from matplotlib.patches import Rectangle

        for dashes, row in self.frames(rows).items():
            corner = row[self.x.key] - 0.5, row[self.y.key] - 0.5
            axes.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=style.INK, linestyle=dashes, linewidth=1.6))

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        from matplotlib.ticker import MaxNLocator

        super().dress(axes, rows, everything)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(9 if self.number else 5, integer=True))
        axes.set_facecolor("#eeeeee")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0 if self.number else 2)
        axes.grid(visible=False)

    def handles(self, rows: Rows) -> list:
        return []


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """Panels over one another, for each value of `down` and `across`, with one key for all.

    - `width`: inches of a panel.   - `scale`: what the colours of heat maps mean.
    - `shown`: rows as they are drawn, with computed columns.   - `heading`: of those rows.
    - `needs`: what rows are called when there are none.
    """

    panels: tuple[Panel, ...]
    across: str = ""
    down: str = ""
    width: float = 3.4
    left: float = 0.8
    share_x: bool = True
    share_y: bool | str = False
    scale: str = ""
    columns: int | None = None
    key: bool = True
    shown: Callable[[Rows], Iterable[Mapping[str, Any]]] = list
    heading: Callable[[Rows], str] = lambda rows: ""
    needs: str = "rows"

    def draw(self, rows: Rows, path: str | Path) -> Path:
        """Write the picture of the rows; returns the path."""
        return style.save(lambda: self.build(rows), path)

    def build(self, rows: Rows) -> Figure:
        """The figure itself."""
        if not self.parts(rows):
            raise InputError(f"the figure needs {self.needs}, but there are none.")
        figure = style.blank(*self.size(rows))
        self.fill(figure, rows)
        if heading := self.heading(rows):
            figure.suptitle(heading, fontsize=style.FONT)
        return figure

    def parts(self, rows: Rows) -> list:
        """The rows as they are drawn."""
        return list(self.shown(rows))

    def size(self, rows: Rows) -> tuple[float, float]:
        """Inches."""
        rows = self.parts(rows)
        down, across = self._sides(rows)
        high = sum(panel.inches(rows) for panel in self.panels)
        return self.left + self.width * len(across), 0.9 + high * len(down)

    def _sides(self, rows: Rows) -> list[list]:
        return [values_of(rows, key) if key else [None] for key in (self.down, self.across)]

    def fill(self, figure: Figure | SubFigure, rows: Rows) -> None:
        """Draw the panels and their key into a figure or a part of one."""
        wide, rows = self.size(rows)[0], self.parts(rows)
        panels = [panel.fitted(rows) for panel in self.panels]
        down, across = self._sides(rows)
        heights = [panel.inches(rows) for panel in panels] * len(down)
        shared: dict[str, Any] = {"sharex": self.share_x, "sharey": self.share_y}
        grid = figure.subplots(len(heights), len(across), squeeze=False, height_ratios=heights, **shared)
        images = self._draw(grid, panels, rows, down, across)
        if self.scale:
            bar = figure.colorbar(images[-1], ax=list(grid.ravel()), shrink=0.7, aspect=30, pad=0.01, format="%g")
            bar.set_label(self.scale)
        handles = {handle.get_label(): handle for panel in panels for handle in panel.handles(rows)}
        if handles and self.key:
            columns = self.columns or max(2, min(len(handles), round(wide / 2.2)))
            figure.legend(handles=list(handles.values()), loc="outside lower center", ncols=columns)

    def _draw(self, grid: np.ndarray, panels: Sequence[Panel], rows: Rows, down: Sequence, across: Sequence) -> list:
        """Draw every panel, then dress them: axes that panels share take the values of all."""
        drawn, images = [], []
        for line, column in np.ndindex(*grid.shape):
            panel, axes = panels[line % len(panels)], grid[line, column]
            wanted = {self.down: down[line // len(panels)], self.across: across[column]}
            here = [row for row in rows if all(row[key] == value for key, value in wanted.items() if key)]
            if here:
                images.append(panel.draw(axes, here, rows))
                drawn.append((panel, axes, here))
            else:
                axes.set_axis_off()
        for panel, axes, here in drawn:
            panel.dress(axes, here, rows)
        for axes_of_line, panel in zip(grid, [*panels] * len(down), strict=True):
            axes_of_line[0].set_ylabel(panel.y.label)
        for axes in grid[-1]:
            axes.set_xlabel(panels[-1].x.label)
        return images


@dataclasses.dataclass(frozen=True)
class Pictures:
    """Several pictures of the same rows in one figure, side by side or `over` one another.

    Each shows its own part of the rows; those that show none are left out.
    """

    pictures: tuple[Any, ...]
    over: bool = False
    heading: Callable[[Rows], str] = lambda rows: ""
    needs: str = "rows"

    draw = Picture.draw
    build = Picture.build

    def parts(self, rows: Rows) -> list:
        """The pictures that show something."""
        return [picture for picture in self.pictures if picture.parts(rows)]

    def size(self, rows: Rows) -> tuple[float, float]:
        """Inches."""
        widths, heights = zip(*(picture.size(rows) for picture in self.parts(rows)), strict=True)
        return (max(widths), sum(heights)) if self.over else (sum(widths), max(heights))

    def fill(self, figure: Figure | SubFigure, rows: Rows) -> None:
        """Draw all of them into a figure or a part of one."""
        pictures = self.parts(rows)
        widths, heights = zip(*(picture.size(rows) for picture in pictures), strict=True)
        places = (
            figure.subfigures(len(pictures), 1, height_ratios=heights)
            if self.over
            else figure.subfigures(1, len(pictures), width_ratios=widths)
        )
        for picture, place in zip(pictures, np.ravel(np.asarray(places)), strict=True):
            picture.fill(place, rows)
