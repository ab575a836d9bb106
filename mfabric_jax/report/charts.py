"""Charts described once, as panels of curves and bars, for files and the HTML page; `drawing.drawn` draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from mfabric_jax.report import style
from mfabric_jax.report.grid import Point
from mfabric_jax.report.numerals import LARGEST

LITERAL: dict[str, Any] = {"text.parse_math": False}  # names are what they are, with $ too


@dataclass(frozen=True)
class Curve:
    """Points with one look, joined by a line or not. `tips`: hover texts. `spread`: range of each value."""

    look: style.Look
    points: Sequence[Point]
    tips: Sequence[str] = ()
    joined: bool = True
    spread: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class Bar:
    """A piece of a horizontal bar from `start` to `end`, in row `place`; `text` stands inside if it fits."""

    look: style.Look
    place: int
    start: float
    end: float
    tip: str
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """One pair of axes with curves, or with rows of `names` that hold bars, points (value, row) or both. `totals`: (end
    of the row, text) behind the bars. `spread`: range of a row's end, by row. `columns`: names of 0, 1, .. on the lower
    axis. `stairs`: draw the Pareto front of all points. `percent`: values are fractions, shown as percent. `reach`:
    values that the axis of rows holds at least, so that panels share a scale.
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

    @property
    def points(self) -> list[Point]:
        return [point for curve in self.curves for point in curve.points]


@dataclass(frozen=True)
class Chart:
    """Panels under a title, a sentence and a key; on the page, `folded` panels unfold below a line."""

    title: str
    note: str
    key: Sequence[style.Look]
    panels: Sequence[Panel]
    folded: Mapping[str, Sequence[Panel]] = field(default_factory=dict)


def placed(panel: Panel) -> Panel:
    """The panel without what has no place on an axis, such as infinities of rows that somebody edited."""
    curves = [_placed_curve(curve) for curve in panel.curves]
    return replace(
        panel,
        curves=[curve for curve in curves if curve.points],
        bars=[bar for bar in panel.bars if _has_place(bar.start) and _has_place(bar.end)],
        totals=[(end if _has_place(end) else 0.0, text) for end, text in panel.totals],
        spread={place: ends for place, ends in panel.spread.items() if all(map(_has_place, ends))},
        reach=[value for value in panel.reach if _has_place(value)],
    )


def _placed_curve(curve: Curve) -> Curve:
    ends = curve.spread or [()] * len(curve.points)
    there = [all(map(_has_place, (*point, *both))) for point, both in zip(curve.points, ends, strict=True)]
    kept = lambda values: [one for one, known in zip(values, there, strict=False) if known]  # noqa: E731
    return replace(curve, points=kept(curve.points), tips=kept(curve.tips), spread=kept(curve.spread))


def _has_place(value: float) -> bool:
    return abs(value) <= LARGEST
