"""Elements of HTML and SVG as text: what a caller passes as a value is escaped, what is inside is markup already."""

from collections.abc import Sequence
from html import escape
from typing import Any

_MOST_NAMES = 12


def words(value: Any) -> str:
    """A value as text of a page."""
    return escape(str(value))


def tag(name: str, *inside: str, **attributes: Any) -> str:
    """An element: `class_` is class, `stroke_width` stroke-width; None is left out, True has no value.

    Numbers are written with two decimals at most, which is finer than any screen.
    """
    written = "".join(_attribute(key.strip("_").replace("_", "-"), value) for key, value in attributes.items())
    return f"<{name}{written}>{''.join(inside)}</{name}>"


def tip(text: str) -> str:
    """What a mark of a chart says when it is pointed at."""
    return tag("title", words(text))


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return f" {name}"
    return f' {name}="{escape(number(value) if isinstance(value, float) else str(value))}"'


def number(value: float) -> str:
    """A coordinate: 12.5, 3."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def counted(rows: Sequence[Any]) -> str:
    """1 row, 2 rows."""
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}"


def listed(names: Sequence[Any], last: str = "and") -> str:
    """a, b and c; many are cut short."""
    said = [str(name) for name in names]
    if len(said) > _MOST_NAMES:
        said = [*said[:_MOST_NAMES], f"{len(said) - _MOST_NAMES} more"]
    return f" {last} ".join(filter(None, [", ".join(said[:-1]), *said[-1:]])) or "none"
