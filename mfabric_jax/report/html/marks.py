"""What stands in a panel: markers, lines and bars of a series, and the key that names them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mfabric_jax.report import style
from mfabric_jax.report.grid import Series
from mfabric_jax.report.html.hues import hue, ink
from mfabric_jax.report.html.markup import number, tag, tip, words

Point = tuple[float, float]

RADIUS = 4.5
_SMALLER = 0.62  # a marker on top of another
_PLUS = [(-0.4, -1), (0.4, -1), (0.4, -0.4), (1, -0.4), (1, 0.4), (0.4, 0.4)]
_PLUS += [(0.4, 1), (-0.4, 1), (-0.4, 0.4), (-1, 0.4), (-1, -0.4), (-0.4, -0.4)]
_SHAPES: dict[str, list[Point]] = {  # as matplotlib names them
    "s": [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
    "D": [(0, -1.2), (1.2, 0), (0, 1.2), (-1.2, 0)],
    "v": [(-1.1, -0.8), (1.1, -0.8), (0, 1.1)],
    "^": [(-1.1, 0.8), (1.1, 0.8), (0, -1.1)],
    "P": _PLUS,
    "X": [((x - y) * math.sqrt(0.5), (x + y) * math.sqrt(0.5)) for x, y in _PLUS],
    "h": [(math.sin(k * math.pi / 3), math.cos(k * math.pi / 3)) for k in range(6)],
}


@dataclass(frozen=True)
class Drawn:
    """How a series is drawn: a colour, a marker, and whether it is hollow (a second series of the same colour)."""

    label: str
    colour: str
    marker: str = "o"
    hollow: bool = False

    def group(self, *marks: str) -> str:
        """Marks in the colour of the series."""
        return tag("g", *marks, class_="hollow" if self.hollow else "solid", style=colours(self.colour))


def colours(colour: str) -> str:
    """A colour and what can be read on it, for the style of an element."""
    return f"--hue:{hue(colour)};--on:{ink(colour)}"


def looks(names: Iterable[str]) -> dict[str, Drawn]:
    """A look for every name: that of the fabric, or one that no fabric here has; from the ninth on hollow."""
    names = list(dict.fromkeys(names))
    free = [look for key, look in style.FABRICS.items() if key not in names] or list(style.FABRICS.values())
    found: dict[str, Drawn] = {}
    spare = 0
    for name in names:
        if look := style.FABRICS.get(name):
            found[name] = Drawn(look.label, look.colour, look.marker)
            continue
        look = free[spare % len(free)]
        found[name] = Drawn(name, look.colour, look.marker, hollow=spare // len(free) % 2 == 1)
        spare += 1
    return found


def series_looks(series: Sequence[Series]) -> dict[Series, Drawn]:
    """A look for every series; those of one fabric share its colour."""
    found = looks(str(one.fabric) for one in series)
    return {one: _named(one, found[str(one.fabric)]) for one in series}


def _named(one: Series, look: Drawn) -> Drawn:
    return Drawn(one.named(look.label), look.colour, look.marker, hollow=one.rank % 2 == 1)


def marker(shape: str, at: Point, said: str, radius: float = RADIUS) -> str:
    """A marker that says something when it is pointed at."""
    x, y = at
    if shape not in _SHAPES:
        return tag("circle", tip(said), class_="mark", cx=x, cy=y, r=radius)
    corners = " ".join(f"{number(x + radius * u)},{number(y + radius * v)}" for u, v in _SHAPES[shape])
    return tag("polygon", tip(said), class_="mark", points=corners)


def line(points: Sequence[Point], class_: str = "line") -> str:
    """A line through points."""
    return tag("polyline", class_=class_, points=" ".join(f"{number(x)},{number(y)}" for x, y in points))


def curves(series: Sequence[tuple[Drawn, Sequence[tuple[Point, str]]]]) -> str:
    """Series: a line through the points of each and a marker on every point, with what it says.

    Where points coincide each says what all of them say, those on top are smaller, and a line on another is dashed.
    """
    there: dict[Point, list[str]] = {}
    below: list[list[int]] = []
    for _, points in series:
        below.append([len(there.setdefault(_pixel(at), [])) for at, _ in points])
        for at, said in points:
            there[_pixel(at)].append(said)
    return "".join(
        _curve(look, [at for at, _ in points], ["\n".join(there[_pixel(at)]) for at, _ in points], depths)
        for (look, points), depths in zip(series, below, strict=True)
    )


def _curve(look: Drawn, points: list[Point], said: list[str], depths: list[int]) -> str:
    """One series; `depths` are how many others lie below each of its points."""
    path = line(points, "line covered" if all(depths) else "line")
    radii = [RADIUS * _SMALLER**depth for depth in depths]
    return look.group(path, *(marker(look.marker, *one) for one in zip(points, said, radii, strict=True)))


def _pixel(at: Point) -> Point:
    return round(at[0]), round(at[1])


def bar(x: float, y: float, width: float, height: float, said: str, colour: str | None = None) -> str:
    """A bar that says something when it is pointed at; its colour is its group's if none is given."""
    own = None if colour is None else colours(colour)
    return tag("rect", tip(said), class_="bar", x=x, y=y, width=width, height=height, style=own)


def key(entries: Iterable[Drawn]) -> str:
    """What colours and markers mean."""
    return tag("ul", *map(_entry, dict.fromkeys(entries)), class_="key")


def parts_key(parts: Mapping[str, style.Look]) -> str:
    """What the colours of bars mean."""
    square = tag("rect", class_="bar", x=1, y=1, width=12, height=12)
    swatch = tag("svg", square, viewBox="0 0 14 14", aria_hidden="true")
    entries = [tag("li", swatch, words(part.label), style=colours(part.colour)) for part in parts.values()]
    return tag("ul", *entries, class_="key")


def _entry(look: Drawn) -> str:
    swatch = tag("svg", look.group(marker(look.marker, (7, 7), look.label)), viewBox="0 0 14 14", aria_hidden="true")
    return tag("li", swatch, words(look.label))
