"""A panel of a chart: its title, its axes and whatever marks are drawn between them."""

from collections.abc import Sequence
from dataclasses import dataclass

from mfabric_jax.report.html.markup import tag, words
from mfabric_jax.report.html.scales import Scale


@dataclass(frozen=True)
class Frame:
    """Size of a panel and of its margins, in units of its own (about a pixel each)."""

    width: float = 460
    height: float = 300
    left: float = 58
    right: float = 16
    top: float = 34
    bottom: float = 46

    @property
    def across(self) -> tuple[float, float]:
        """Left and right end of the drawing."""
        return self.left, self.width - self.right

    @property
    def upward(self) -> tuple[float, float]:
        """Lower and upper end of the drawing."""
        return self.height - self.bottom, self.top

    def drawn(self, title: str, *marks: str) -> str:
        """The panel with its marks."""
        heading = tag("text", words(title), class_="title", x=8, y=18)
        box = f"0 0 {self.width:g} {self.height:g}"
        return tag("svg", heading, *marks, viewBox=box, role="img", aria_label=title, class_="panel")


def x_axis(frame: Frame, scale: Scale, label: str, ticks: Sequence[float], grid: bool = True) -> str:
    """Ticks below the drawing, lines up from them, and the name of what they count."""
    bottom, top = frame.upward
    parts = [tag("line", class_="axis", x1=frame.left, y1=bottom, x2=frame.width - frame.right, y2=bottom)]
    for value in ticks:
        x = scale(value)
        parts += [tag("line", class_="grid", x1=x, y1=bottom, x2=x, y2=top)] if grid else []
        parts.append(tag("text", words(plain(value)), class_="tick", x=x, y=bottom + 16, text_anchor="middle"))
    return tag("g", *parts, _below(frame, label))


def x_names(frame: Frame, places: Sequence[tuple[float, str]], label: str) -> str:
    """Names below the drawing instead of numbers."""
    bottom, _ = frame.upward
    line = tag("line", class_="axis", x1=frame.left, y1=bottom, x2=frame.width - frame.right, y2=bottom)
    names = [tag("text", words(name), class_="tick", x=x, y=bottom + 16, text_anchor="middle") for x, name in places]
    return tag("g", line, *names, _below(frame, label))


def y_axis(frame: Frame, scale: Scale, label: str) -> str:
    """Ticks to the left of the drawing, lines across, and the name of what they count."""
    left, right = frame.across
    parts = []
    for value in scale.ticks():
        y = scale(value)
        parts.append(tag("line", class_="grid", x1=left, y1=y, x2=right, y2=y))
        parts.append(tag("text", words(plain(value)), class_="tick", x=left - 6, y=y + 4, text_anchor="end"))
    middle = sum(frame.upward) / 2
    turned = f"rotate(-90 14 {middle:g})"
    named = tag("text", words(label), class_="label", x=14, y=middle, text_anchor="middle", transform=turned)
    return tag("g", *parts, named)


def plain(value: float) -> str:
    """A tick: 0.5, 40, 20,000, 3e+09."""
    value = float(f"{value:.6g}")
    return f"{value:,.0f}" if 1000 <= abs(value) < 10_000_000 else f"{value:g}"


def _below(frame: Frame, label: str) -> str:
    middle = sum(frame.across) / 2
    return tag("text", words(label), class_="label", x=middle, y=frame.height - 8, text_anchor="middle")
