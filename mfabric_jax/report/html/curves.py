"""A panel of curves as SVG that is as wide as its place: positions are percentages, and texts keep their size."""

from collections.abc import Mapping, Sequence

from mfabric_jax.report import style
from mfabric_jax.report.charts import Curve, Panel, drawable_panel
from mfabric_jax.report.grid import Point, front
from mfabric_jax.report.html.axis import Axis, axis_of
from mfabric_jax.report.html.colours import hue
from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.numerals import number

HEIGHT = 190  # pixels of the field between the axes
_LETTER = 7  # pixels of a character
_LINE = 15  # pixels of a line of text
SHAPES = {  # of markers, around (0, 0)
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M-3.6-3.6h7.2v7.2h-7.2z",
    "v": "M-4.5-3.6h9l-4.5 8z",
    "^": "M-4.5 3.6h9l-4.5-8z",
    "D": "M0-5l5 5l-5 5l-5-5z",
    "P": "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
    "X": "M-4.5-2.5l2-2l2.5 2.5l2.5-2.5l2 2l-2.5 2.5l2.5 2.5l-2 2l-2.5-2.5l-2.5 2.5l-2-2l2.5-2.5z",
    "h": "M0-4.8l4.2 2.4v4.8l-4.2 2.4l-4.2-2.4v-4.8z",
    "<": "M3.6-4.5v9l-8-4.5z",
    ">": "M-3.6-4.5v9l8-4.5z",
}


def shapes() -> str:
    """Return the markers that charts of the page use, once for all of them."""
    paths = (tag("path", id=f"m{list(SHAPES).index(name)}", d=path) for name, path in SHAPES.items())
    return tag("svg", tag("defs", *paths), width=0, height=0, aria_hidden="true", class_="shapes")


def marker(look: style.Look, x: str, y: str) -> str:
    shape = list(SHAPES).index(look.marker) if look.marker in SHAPES else 0
    paint = f"stroke:{hue(look.colour)};fill:{'var(--paper)' if look.hollow else hue(look.colour)}"
    return tag("use", href=f"#m{shape}", x=x, y=y, style=paint)


def sign(look: style.Look) -> str:
    """Return the marker of a look, for a key."""
    return tag("svg", marker(look, "7", "7"), width=14, height=14, aria_hidden="true")


def curves_figure(panel: Panel, labels: Mapping[style.Look, str] | None = None) -> str:
    """Return a figure of a panel. `labels`: short texts at the ends of curves, by look."""
    panel = drawable_panel(panel)
    if not panel.curves:
        return tag("figure", tag("figcaption", words(panel.title)), tag("p", "No result."), class_="plot")
    count = len(panel.columns)
    every_x = [*(x for x, _ in panel.points), *panel.reach_x]
    across = Axis(-0.5, count - 0.5, False, range(count)) if count else axis_of(every_x, True)
    spread = [y for curve in panel.curves for ends in curve.spread for y in ends]
    up = axis_of([*(y for _, y in panel.points), *spread, *panel.reach])
    ends = _end_labels(panel.curves, labels or {}, across, up)
    stairs = _stairs(panel, across, up) if panel.stairs else ""
    inside = _grid(panel, across, up) + stairs + "".join(_lines(panel, across, up)) + "".join(_marks(panel, across, up))
    drawn = tag(
        "svg", inside, *(text for _, text in ends), width="100%", height=HEIGHT, role="img",
        aria_label=panel.title or panel.y, class_="panel",
    )  # fmt: off
    left = 12 + _LETTER * max(len(number(tick)) for tick in up.ticks)
    right = max([14, *(14 + _LETTER * wide for wide, _ in ends)])
    return tag(
        "figure",
        tag("figcaption", words(panel.title)) if panel.title else "",
        tag("div", words(panel.y), class_="of-y"),
        tag("div", drawn, class_="field", style=f"padding-left:{left}px;padding-right:{right}px"),
        tag("div", words(panel.x), class_="of-x"),
        class_="plot",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def _x(axis: Axis, value: float) -> str:
    return _percent(axis.share(value))


def _y(axis: Axis, value: float) -> str:
    return _percent(1 - axis.share(value))


def _grid(panel: Panel, across: Axis, up: Axis) -> str:
    drawn = []
    for tick in up.ticks:
        drawn.append(tag("line", x1="0", x2="100%", y1=_y(up, tick), y2=_y(up, tick), class_="rule"))
        drawn.append(tag("text", words(number(tick)), x="0", y=_y(up, tick), dx="-6", dy="4", class_="end"))
    for tick in across.ticks:
        text = panel.columns[int(tick)] if panel.columns else number(tick)
        drawn.append(tag("line", x1=_x(across, tick), x2=_x(across, tick), y1="0", y2="100%", class_="rule"))
        drawn.append(tag("text", words(text), x=_x(across, tick), y="100%", dy="17", class_="middle"))
    return "".join(drawn)


def _stairs(panel: Panel, across: Axis, up: Axis) -> str:
    """The Pareto front: from each of its points right, then down to the next."""
    points = front(panel.points)
    drawn = []
    for (x, y), after in zip(points, [*points[1:], None], strict=True):
        end = _x(across, after[0]) if after else "100%"
        drawn.append(tag("line", x1=_x(across, x), x2=end, y1=_y(up, y), y2=_y(up, y)))
        if after:
            drawn.append(tag("line", x1=end, x2=end, y1=_y(up, y), y2=_y(up, after[1])))
    return tag("g", *drawn, class_="stairs")


def _lines(panel: Panel, across: Axis, up: Axis) -> list[str]:
    """Lines of joined curves, dashed where others cover them, and the spread of their points."""
    drawn, under = [], set()
    for curve in panel.curves:
        pieces = []
        for (x, y), (u, v) in zip(curve.points, curve.points[1:], strict=False) if curve.joined else ():
            pieces.append(tag("line", x1=_x(across, x), y1=_y(up, y), x2=_x(across, u), y2=_y(up, v)))
        for (x, _), (low, high) in zip(curve.points, curve.spread, strict=bool(curve.spread)):
            ends = {"x1": _x(across, x), "x2": _x(across, x), "y1": _y(up, low), "y2": _y(up, high)}
            pieces.append(tag("line", **ends, class_="spread"))
        dashed = "dashed" if curve.points and under.issuperset(_nearby(across, up, p) for p in curve.points) else ""
        under |= {_nearby(across, up, point) for point in curve.points}
        paint = f"stroke:{hue(curve.look.colour)}"
        drawn += [tag("g", *pieces, class_=f"curve {dashed}".strip(), style=paint)] if pieces else []
    return drawn


def _marks(panel: Panel, across: Axis, up: Axis) -> list[str]:
    """A marker for every point; pointed at, it shows the tips of all points there."""
    tips: dict[Point, list[str]] = {}
    for curve in panel.curves:
        for point, tip in zip(curve.points, curve.tips, strict=bool(curve.tips)):
            tips.setdefault(_nearby(across, up, point), []).append(tip)
    drawn = []
    for curve in panel.curves:
        for point in curve.points:
            x, y = _x(across, point[0]), _y(up, point[1])
            every = tips.get(_nearby(across, up, point))
            title = tag("title", words("\n".join(every))) if every else ""
            room = tag("circle", cx=x, cy=y, r=9 if curve.joined else 5)
            drawn.append(tag("g", title, room, marker(curve.look, x, y), class_="mark"))
    return drawn


def _nearby(across: Axis, up: Axis, point: Point) -> Point:
    return round(300 * across.share(point[0])), round(200 * up.share(point[1]))


def _end_labels(
    curves: Sequence[Curve], labels: Mapping[style.Look, str], across: Axis, up: Axis
) -> list[tuple[int, str]]:
    """Labels at the ends of curves, joined where they would overlap, each with its number of characters."""
    ends = [(*curve.points[-1], labels[curve.look]) for curve in curves if curve.look in labels]
    groups: list[tuple[float, float, list[str]]] = []  # x, pixels from the top, texts
    for x, y, text in sorted(ends, key=lambda end: (end[0], -end[1])):
        top = HEIGHT * (1 - up.share(y))
        if groups and groups[-1][0] == x and top - groups[-1][1] < _LINE:
            groups[-1][2].append(text)
        else:
            groups.append((x, top, [text]))
    return [
        (
            len(text := ", ".join(sorted(texts, key=_as_number))),
            tag("text", words(text), x=_x(across, x), y=_percent(top / HEIGHT), dx=10, dy=4),
        )
        for x, top, texts in groups
    ]


def _as_number(text: str) -> tuple[int, str]:
    return (int(text), "") if text.isdecimal() else (0, text)
