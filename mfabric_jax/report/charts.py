"""Charts as data: panels of curves and bars. `drawing.drawn` draws them for files and the HTML page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mfabric_jax.report import style
from mfabric_jax.report.grid import Point
from mfabric_jax.report.numerals import LARGEST

LITERAL: dict[str, Any] = {"text.parse_math": False}  # a $ in a name is literal


@dataclass(frozen=True)
class Curve:
    """Points of one look. `joined`: a line joins them. `tips`: hover texts. `spread`: lowest and highest y of each."""

    look: style.Look
    points: Sequence[Point]
    tips: Sequence[str] = ()
    joined: bool = True
    spread: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Bar:
    """A piece of a horizontal bar from `start` to `end` in row `row`; `text` is drawn inside if it fits."""

    look: style.Look
    row: int
    start: float
    end: float
    tip: str
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """A pair of axes with curves, or with rows of bars, points (value, row) or both.

    - `names`: of the rows. `totals`: of each row, (its end, the text after it). `spread`: range of a row's end, by
      row. `reach`: values that the axis of values must include, so that panels share a scale; `reach_x`: those of the
      x axis of curves.
    - `columns`: names of 0, 1, .. on the x axis. `stairs`: draw the Pareto front of all points. `percent`: values are
      fractions; show them as percent.
    """

    title: str
    x: str
    y: str = ""
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()
    names: Sequence[str] = ()
    totals: Sequence[tuple[float, str]] = ()
    spread: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    columns: Sequence[str] = ()
    stairs: bool = False
    percent: bool = False
    reach: Sequence[float] = ()
    reach_x: Sequence[float] = ()

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]


@dataclass(frozen=True)
class Chart:
    """Panels with a title, a note and a key. `folded`: further panels by heading, collapsed on the HTML page."""

    title: str
    note: str
    key: Sequence[style.Look]
    panels: Sequence[Panel]
    folded: Mapping[str, Sequence[Panel]] = field(default_factory=dict)


def drawable_panel(panel: Panel) -> Panel:
    """Return the panel without values that no axis can show, such as infinities in edited rows."""
    curves = [_drawable_curve(curve) for curve in panel.curves]
    return replace(
        panel,
        curves=[curve for curve in curves if curve.points],
        bars=[bar for bar in panel.bars if _is_drawable(bar.start) and _is_drawable(bar.end)],
        totals=[(end if _is_drawable(end) else 0.0, text) for end, text in panel.totals],
        spread={row: ends for row, ends in panel.spread.items() if all(map(_is_drawable, ends))},
        reach=[value for value in panel.reach if _is_drawable(value)],
        reach_x=[value for value in panel.reach_x if _is_drawable(value)],
    )


def _drawable_curve(curve: Curve) -> Curve:
    ends = curve.spread or [()] * len(curve.points)
    there = [all(map(_is_drawable, (*point, *both))) for point, both in zip(curve.points, ends, strict=True)]
    kept = lambda values: [value for value, known in zip(values, there, strict=False) if known]  # noqa: E731
    return replace(curve, points=kept(curve.points), tips=kept(curve.tips), spread=kept(curve.spread))


def _is_drawable(value: float) -> bool:
    return abs(value) <= LARGEST
