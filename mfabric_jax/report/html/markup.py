"""Elements of HTML as text: what a caller passes as a value is escaped, what is inside is markup already."""

from collections.abc import Sequence
from html import escape
from typing import Any

_MOST_NAMES = 12


def words(*values: Any) -> str:
    """Values as text of a page."""
    return escape("".join(map(str, values)))


def tag(name: str, *inside: str, **attributes: Any) -> str:
    """An element: `class_` is class, `aria_label` aria-label; None and False are left out, True has no value."""
    named = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
    written = [
        f" {key}" if value is True else f' {key}="{escape(f"{value:.4g}" if isinstance(value, float) else str(value))}"'
        for key, value in named.items()
        if value is not None and value is not False
    ]
    return f"<{name}{''.join(written)}>{''.join(inside)}</{name}>"


def bullets(lines: Sequence[str]) -> str:
    """Sentences as a list; nothing of none."""
    return tag("ul", *(tag("li", words(line)) for line in lines)) if lines else ""


def counted(rows: Sequence[Any]) -> str:
    """1 row, 2 rows."""
    return f"{len(rows)} row{'' if len(rows) == 1 else 's'}"


def enumerated(names: Sequence[Any], last: str = "and") -> str:
    """a, b and c; many are cut short."""
    every = [str(name) for name in names]
    if len(every) > _MOST_NAMES:
        every = [*every[:_MOST_NAMES], f"{len(every) - _MOST_NAMES} more"]
    return f" {last} ".join(filter(None, [", ".join(every[:-1]), *every[-1:]])) or "none"
