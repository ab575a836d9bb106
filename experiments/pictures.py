"""Pictures described by data: lines over an axis, heat maps, dots and lying bars, in panels by columns of the rows.

A panel says which column is on which axis and which column decides the colour. A `Picture` has a panel for each value
of two columns; several `Pictures` may share a figure.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report import style
from mfabric_jax.report.grid import grouped, values_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

PALETTE = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#56B4E9", "#4D4D4D", "#E69F00")
MARKERS = "osD^vXP"
ROOM = 1.08  # from the lower end of an axis to its upper end, over the range of what is drawn
THICK = 0.72  # height of the marks of a line of the panel, of the distance between lines
BESIDE: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": style.FONT - 2}

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = Sequence[Row]
Looks: TypeAlias = Mapping[Any, style.Look]


def looks(labels: Mapping[Any, str] | Iterable[Any], markers: str = MARKERS) -> dict[Any, style.Look]:
    """A look for each value, in the order of the palette; without a mapping of labels, a value is its own label."""
    labels = labels if isinstance(labels, Mapping) else {value: str(value) for value in labels}
    cycle = [(colour, markers[rank % len(markers)] if markers else "") for rank, colour in enumerate(PALETTE)]
    return {value: style.Look(label, *cycle[rank % len(cycle)]) for rank, (value, label) in enumerate(labels.items())}


@dataclasses.dataclass(frozen=True)
class Axis:
    """A column of the rows on an axis.

    - `ticks`: texts by value, or a function that writes the values of the column; None: round numbers.
    - `low`, `high`: its ends; with `low` alone, the upper end leaves some room above what is drawn.
    - `lines`: values with a line across the panel.
    """

    key: str
    label: str = ""
    log: bool = False
    percent: bool = False
    ticks: Mapping[float, str] | Callable[[Any], str] | None = None
    low: float | None = None
    high: float | None = None
    lines: tuple[float, ...] = ()

    def dress(self, axes: Axes, name: str, rows: Rows) -> None:
        """Scale, ticks, limits and lines; call it when all panels that share the axis have been drawn."""
        axis, values = getattr(axes, f"{name}axis"), [row[self.key] for row in rows if row.get(self.key) is not None]
        if self.log and axis.get_scale() != "log":  # once: a new scale forgets the ticks of panels that share it
            getattr(axes, f"set_{name}scale")("log")
        if values and (self.log or self.ticks is not None):
            self._tick(axis, values)
        elif self.percent:
            axis.set_major_formatter(lambda value, _: f"{value:.0%}")
        limits, share = getattr(axes, f"set_{name}lim"), getattr(axes, f"get_shared_{name}_axes")()
        if self.low is not None and self.high is None and not self.log:
            top = max(getattr(sibling.dataLim, f"{name}1") for sibling in share.get_siblings(axes))
            limits(self.low, self.low + ROOM * (top - self.low))
        elif self.low is not None or self.high is not None:
            limits(self.low, self.high)
        for value in self.lines:
            (axes.axvline if name == "x" else axes.axhline)(value, color=style.INK, linewidth=0.8, zorder=0.9)

    def _tick(self, axis: Any, values: Sequence[float]) -> None:
        from matplotlib.ticker import LogLocator, NullFormatter

        low, high = min(values), max(values)
        if self.ticks is None:
            axis.set_major_locator(LogLocator(subs=(1,) if high > 300 * low else (1, 2, 5)))
            axis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.set_minor_formatter(NullFormatter())
            return
        ticks = self.ticks if isinstance(self.ticks, Mapping) else {at: self.ticks(at) for at in sorted(set(values))}
        near = {at: text for at, text in ticks.items() if low <= at <= high or low / 2 < at < high * 2}
        axis.set_ticks(list(near), labels=list(near.values()))
        axis.set_ticks([], minor=True)


@dataclasses.dataclass(frozen=True)
class PicturePanel:
    """Rows on two axes, coloured by the column `by`.

    - `looks`: by value; if empty, colours of the palette and labels of the form `named`.
    - `title`: a format of a row.   - `high`: height in inches.
    """

    share_y: ClassVar[bool] = False  # panels side by side have one axis
    x: Axis
    y: Axis
    by: str
    looks: Looks = dataclasses.field(default_factory=dict)
    _: dataclasses.KW_ONLY
    named: str = "{}"
    markers: str = MARKERS
    title: str = ""
    high: float = 2.7

    @abstractmethod
    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> Any:
        """The marks of the rows; `everything` holds the rows of all panels, which share places and colours."""

    def handles(self, rows: Rows) -> list:
        """The key: one entry for each value that the rows have."""
        from matplotlib.lines import Line2D

        shown = [self.look(value) for value in values_of(rows, self.by)]
        return [Line2D([], [], color=look.colour, marker=look.marker, label=look.label) for look in shown]

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        """Scales, grid and title."""
        self.x.dress(axes, "x", everything)
        self.y.dress(axes, "y", everything)
        axes.grid()
        text = self.title.format(**rows[0])
        points = 72 * axes.bbox.width / axes.figure.dpi  # long titles are smaller
        axes.set_title(text, loc="left", fontsize=min(style.FONT + 1, 1.5 * points / max(len(text), 1)))

    def inches(self, rows: Rows) -> float:
        """The height that a panel needs."""
        return self.high

    def left(self, rows: Rows) -> float:
        """The width that its labels need, in inches."""
        return 0.8

    def fitted(self, rows: Rows) -> PicturePanel:
        """With a look for each value of all panels."""
        labels = {value: self.named.format(value) for value in values_of(rows, self.by)}
        return self if self.looks else dataclasses.replace(self, looks=looks(labels, self.markers))

    def look(self, value: Any) -> style.Look:
        """How a value of `by` is drawn."""
        return self.looks.get(value, style.Look(str(value), style.INK))


@dataclasses.dataclass(frozen=True)
class Lines(PicturePanel):
    """A line for each value of a column.

    - `under`: a value whose line is wide, because others lie on it.   - `empty`: text of a panel without values.
    - `dashed`: a column, and its label; rows in which it is true make a dashed line of their own.
    - `published`: a column of crosses, and their label.
    """

    under: Any = None
    empty: str = ""
    dashed: tuple[str, str] = ("", "")
    published: tuple[str, str] = ("", "")

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        known = [row for row in rows if row.get(self.y.key) is not None]
        lines = grouped([{**row, "dashed": bool(row.get(self.dashed[0]))} for row in known], self.by, "dashed")
        for (value, dashed), line in lines.items():
            points = sorted((row[self.x.key], row[self.y.key]) for row in line)
            axes.plot(*zip(*points, strict=True), **self._marks(self.look(value), dashed, value == self.under))
        crosses = self.published[0]
        if points := [(row[self.x.key], row[crosses]) for row in known if row.get(crosses) is not None]:
            axes.plot(*zip(*points, strict=True), "x", color=style.INK, markersize=8, markeredgewidth=1.6, zorder=5)
        if not known:
            axes.text(0.5, 0.5, self.empty, transform=axes.transAxes, ha="center", color=style.FAINT)

    def _marks(self, look: style.Look, dashed: bool, wide: bool) -> dict[str, Any]:
        width, size = (3.6, 8.5) if wide and not dashed else (1.4, 5)
        marks = {"color": look.colour, "marker": look.marker, "linewidth": width, "markersize": size}
        return marks | ({"linestyle": "--", "markerfacecolor": "white"} if dashed else {"linestyle": "-"})

    def handles(self, rows: Rows) -> list:
        from matplotlib.lines import Line2D

        marks = {
            self.look(value).label: self._marks(self.look(value), False, value == self.under)
            for value in values_of(rows, self.by)
        }
        if any(row.get(self.dashed[0]) for row in rows):
            marks[self.dashed[1]] = self._marks(style.Look("", style.FAINT), True, False)
        if any(row.get(self.published[0]) for row in rows):
            marks[self.published[1]] = {"linestyle": "", "marker": "x", "color": style.INK, "markersize": 7}
        return [Line2D([], [], label=label, **mark) for label, mark in marks.items()]


@dataclasses.dataclass(frozen=True)
class Heat(PicturePanel):
    """A cell for each pair of values, in the colour of the column `by`; cells without a row are grey.

    - `norm`: maps the values of all panels to a norm of matplotlib.   - `number`: a format that writes a value into
      its cell.   - `frames`: rows of a panel whose cells have a frame, by the style of its line.
    - `down`: the y axis begins at the top.
    """

    _: dataclasses.KW_ONLY
    norm: Callable[[Sequence[float]], Any]
    colours: str = "Blues"
    number: str = ""
    frames: Callable[[Rows], Mapping[str, Row]] = lambda rows: {}
    down: bool = False
    high: float = 3.5

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> Any:
        from matplotlib.colors import to_hex

        across, along = (sorted(values_of(everything, axis.key)) for axis in (self.x, self.y))
        if self.number:  # a cell for every whole number
            across, along = (list(range(values[0], values[-1] + 1)) for values in (across, along))
        columns, lines = ({value: place for place, value in enumerate(values)} for values in (across, along))
        cells = np.full((len(along), len(across)), np.nan)
        for row in rows:
            cells[lines[row[self.y.key]], columns[row[self.x.key]]] = row[self.by]
        ends = (along[-1] + 0.5, along[0] - 0.5) if self.down else (along[0] - 0.5, along[-1] + 0.5)
        way: dict[str, Any] = (
            {"origin": "upper", "aspect": "equal"} if self.down else {"origin": "lower", "aspect": "auto"}
        )
        way |= {"extent": (across[0] - 0.5, across[-1] + 0.5, *ends), "interpolation": "nearest"}
        image = axes.imshow(cells, self.colours, self.norm([row[self.by] for row in everything]), **way)
        for row in rows if self.number else []:
            shade: Any = image.cmap(image.norm(row[self.by]))
            text = {"ha": "center", "va": "center", "fontsize": 7, "color": style.ink_on(to_hex(shade))}
            axes.text(row[self.x.key], row[self.y.key], self.number.format(row[self.by]), **text)
        for dashes, row in self.frames(rows).items():
            x, y = ([row[axis.key] + side for side in (-0.5, 0.5)] for axis in (self.x, self.y))
            axes.plot([*x, *x[::-1], x[0]], np.repeat(y, 2).tolist() + y[:1], dashes, color=style.INK, linewidth=1.6)
        return image

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        super().dress(axes, rows, everything)
        nbins = 9 if self.number else 5
        if self.x.ticks is None:
            axes.locator_params("x", nbins=nbins, integer=True)
        if self.y.ticks is None:
            axes.locator_params("y", nbins=nbins, integer=True)
        axes.set_facecolor("#eeeeee")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0 if self.number else 2)
        axes.grid(visible=False)

    def fitted(self, rows: Rows) -> PicturePanel:
        return self

    def handles(self, rows: Rows) -> list:
        return []


@dataclasses.dataclass(frozen=True)
class Grouped(PicturePanel):
    """A line of the panel for each value of `y`, from the top; `block` names a column that parts the lines.

    `each`: inches of a line.
    """

    share_y = True
    block: str = ""
    each: float = 0.27

    def places(self, rows: Rows) -> dict[tuple, float]:
        """Where each (block, line) is."""
        return {pair: float(place) for place, pair in enumerate(dict.fromkeys(map(self.place, rows)))}

    def place(self, row: Row) -> tuple:
        """The (block, line) of a row."""
        return (row[self.block] if self.block else None, row[self.y.key])

    def inches(self, rows: Rows) -> float:
        return max(1.6, 0.5 + self.each * len(self.places(rows)))

    def left(self, rows: Rows) -> float:
        labels = values_of(rows, self.y.key)
        return 0.5 + 0.075 * max(len(line) for label in labels for line in str(label).split("\n"))

    def offsets(self, rows: Rows, room: float) -> dict[Any, float]:
        """Places of the values of the colour side by side, within a part of a line."""
        values = values_of(rows, self.by)
        return {value: (rank - (len(values) - 1) / 2) * room / len(values) for rank, value in enumerate(values)}

    def dress(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        super().dress(axes, rows, everything)
        places = self.places(everything)
        for ((block, _), above), ((other, _), below) in pairwise(places.items()):
            if block != other:
                axes.axhline((above + below) / 2, color=style.FAINT, linewidth=0.6)
        axes.set_yticks(list(places.values()), [str(line) for _, line in places])
        axes.tick_params(axis="y", length=0)
        axes.set_ylim(len(places) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")


@dataclasses.dataclass(frozen=True)
class Dots(Grouped):
    """A dot for each row, in the line of its group.

    - `dodge`: colours of one line stand apart.   - `hollow`: a column; where true, dots are hollow.
    - `base`: a line of the panel whose dots go on as dashed lines.   - `note`: a column of texts beside dots.
    """

    dodge: bool = False
    hollow: str = ""
    base: Any = None
    note: str = ""

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places, offsets = self.places(everything), self.offsets(everything, THICK if self.dodge else 0.0)
        for row in rows:
            look, value = self.look(row[self.by]), row[self.x.key]
            place = places[self.place(row)] + offsets[row[self.by]]
            fill = "white" if self.hollow and row[self.hollow] else look.colour
            axes.plot(value, place, look.marker, color=look.colour, markerfacecolor=fill, markersize=5)
            if self.base is not None and row[self.y.key] == self.base:
                axes.axvline(value, color=look.colour, linestyle=(0, (3, 3)), linewidth=1.0)
            if self.note:
                axes.annotate(row[self.note], (value, place), (8, 0), **BESIDE)

    def handles(self, rows: Rows) -> list:
        dots = super().handles(rows)
        for dot in dots:
            dot.set_linestyle("")
        return dots


@dataclasses.dataclass(frozen=True)
class Boxes(Grouped):
    """The spread of the rows of each line: a line from the 10th to the 90th percentile, a box between quartiles and a
    stroke at the mean; `beside` is the form of the mean, which is written to the right."""

    beside: str = "{:.2f}"

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places, lines = self.places(everything), grouped(rows, *filter(None, (self.block, self.y.key)))
        for line in lines.values():
            place, colour = places[self.place(line[0])], self.look(line[0][self.by]).colour
            values = [row[self.x.key] for row in line]
            mean, (low, early, late, high) = np.mean(values), np.quantile(values, [0.1, 0.25, 0.75, 0.9])
            axes.plot([low, high], [place, place], color=colour, linewidth=1.5)
            axes.barh(place, late - early, left=early, height=0.5, color=colour, alpha=0.45)
            axes.plot([mean] * 2, [place - 0.38, place + 0.38], color=style.INK, linewidth=1.8, zorder=1.9)
            text = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": style.FONT - 1.5}
            axes.annotate(self.beside.format(mean), (1.02, place), **text)


@dataclasses.dataclass(frozen=True)
class Bars(Grouped):
    """Lying bars: the colours of a line one after the other if `stacked`, else side by side.

    - `inside`: a column of texts within bars that are wide enough.   - `hatched`: a column; where true, bars are.
    """

    each: float = 0.6
    stacked: bool = False
    inside: str = ""
    hatched: str = ""

    def draw(self, axes: Axes, rows: Rows, everything: Rows) -> None:
        places, offsets = self.places(everything), self.offsets(everything, 0.0 if self.stacked else THICK)
        thick = THICK if self.stacked else 0.66 / len(offsets)
        longest, ends = self.x.high or max(row[self.x.key] for row in everything), dict.fromkeys(places, 0.0)
        for row in rows:
            pair, look, value = self.place(row), self.look(row[self.by]), row[self.x.key]
            left, place = ends[pair] if self.stacked else 0.0, places[pair] + offsets[row[self.by]]
            ends[pair] += value
            hatched = bool(self.hatched and row[self.hatched])
            filled: dict[str, Any] = {"facecolor": look.colour, "edgecolor": "white"}
            empty: dict[str, Any] = {"facecolor": "white", "edgecolor": look.colour, "hatch": "////"}
            axes.barh(place, value, thick, left, linewidth=0.6, **(empty if hatched else filled))
            if self.inside and value > 0.05 * longest:
                ink = style.INK if hatched else style.ink_on(look.colour)
                box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0} if hatched else None
                text = {"ha": "center", "va": "center", "color": ink, "bbox": box}
                axes.text(left + value / 2, place, row[self.inside], **text)

    def handles(self, rows: Rows) -> list:
        from matplotlib.patches import Patch

        shown = [self.look(value) for value in values_of(rows, self.by)]
        return [Patch(facecolor=look.colour, edgecolor="white", label=look.label) for look in shown]


class Drawing:
    """What becomes a figure: a picture, or several. It has `parts` to draw, a `size` in inches, and fills a figure or a
    part of a figure."""

    parts: Callable[[Rows], list]
    size: Callable[[Rows], tuple[float, float]]
    fill: Callable[[Figure | SubFigure, Rows], None]
    heading: Callable[[Rows], str]
    needs: str

    def draw(self, rows: Rows, path: str | Path) -> Path:
        """Write the figure of the rows; returns the path."""
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


@dataclasses.dataclass(frozen=True)
class Picture(Drawing):
    """Panels over one another, for each value of the columns `down` and `across`, with one key for all.

    - `width`: inches of a panel.   - `scale`: what the colours of heat maps mean.
    - `shown`: makes the rows that are drawn, with computed columns.   - `heading`: a text about the rows as they came.
    - `needs`: what an error calls the rows that lack.   - `key`: whether colours are explained.
    """

    panels: tuple[PicturePanel, ...]
    down: str = ""
    across: str = ""
    _: dataclasses.KW_ONLY
    width: float = 3.4
    share_x: bool = True
    share_y: bool | str = False
    scale: str = ""
    key: bool = True
    shown: Callable[[Rows], Iterable[Row]] = list
    heading: Callable[[Rows], str] = lambda rows: ""
    needs: str = "rows"

    def parts(self, rows: Rows) -> list:
        return list(self.shown(rows))

    def size(self, rows: Rows) -> tuple[float, float]:
        rows = self.parts(rows)
        down, across = self._sides(rows)
        high, left = sum(panel.inches(rows) for panel in self.panels), max(panel.left(rows) for panel in self.panels)
        return left + self.width * len(across), 0.9 + high * len(down)

    def _sides(self, rows: Rows) -> list[list]:
        return [values_of(rows, key) if key else [None] for key in (self.down, self.across)]

    def fill(self, figure: Figure | SubFigure, rows: Rows) -> None:
        wide, rows = self.size(rows)[0], self.parts(rows)
        panels = [panel.fitted(rows) for panel in self.panels]
        down, across = self._sides(rows)
        heights = [panel.inches(rows) for panel in panels] * len(down)
        shared: dict[str, Any] = {"sharex": self.share_x, "sharey": self.share_y or panels[0].share_y}
        grid = figure.subplots(len(heights), len(across), squeeze=False, height_ratios=heights, **shared)
        images = self._draw(grid, panels, rows, down, across)
        if self.scale:
            bar = figure.colorbar(images[-1], ax=list(grid.ravel()), shrink=0.7, aspect=30, pad=0.01, format="%g")
            bar.set_label(self.scale)
        handles = {handle.get_label(): handle for panel in panels for handle in panel.handles(rows)}
        if handles and self.key:
            every = list(handles.values())
            figure.legend(handles=every, loc="outside lower center", ncols=style.key_columns(every, wide))

    def _draw(self, grid: Any, panels: Sequence[PicturePanel], rows: Rows, down: Sequence, across: Sequence) -> list:
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
class Pictures(Drawing):
    """Several pictures of the same rows in one figure, side by side or `over` one another.

    Each shows its own part of the rows; those that show none are left out.
    """

    pictures: tuple[Drawing, ...]
    over: bool = False
    heading: Callable[[Rows], str] = lambda rows: ""
    needs: str = "rows"

    def parts(self, rows: Rows) -> list:
        return [picture for picture in self.pictures if picture.parts(rows)]

    def size(self, rows: Rows) -> tuple[float, float]:
        widths, heights = zip(*(picture.size(rows) for picture in self.parts(rows)), strict=True)
        return (max(widths), sum(heights)) if self.over else (sum(widths), max(heights))

    def fill(self, figure: Figure | SubFigure, rows: Rows) -> None:
        pictures = self.parts(rows)
        widths, heights = zip(*(picture.size(rows) for picture in pictures), strict=True)
        if self.over:
            places = figure.subfigures(len(pictures), 1, height_ratios=heights)
        else:
            places = figure.subfigures(1, len(pictures), width_ratios=widths)
        for picture, place in zip(pictures, np.ravel(np.asarray(places)), strict=True):
            picture.fill(place, rows)
