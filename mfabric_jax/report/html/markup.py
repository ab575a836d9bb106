"""HTML elements, lists and small tables as text."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from mfabric_jax.report.tables import cells_of

NUMBERS = ("over best", "with failures", "share")  # columns of numbers that are written with words


def words(*values: Any) -> str:
    return escape("".join(map(str, values)))


def tag(name: str, *inside: str, **attributes: Any) -> str:
    """Return an HTML element. `class_` sets class, `aria_label` aria-label; None and False are omitted."""
    named = {key.strip("_").replace("_", "-"): value for key, value in attributes.items()}
    written = [
        f" {key}" if value is True else f' {key}="{escape(f"{value:.4g}" if isinstance(value, float) else str(value))}"'
        for key, value in named.items()
        if value is not None and value is not False
    ]
    return f"<{name}{''.join(written)}>{''.join(inside)}</{name}>"


def section(heading: str, *inside: str, **attributes: Any) -> str:
    return "\n" + tag("section", tag("h2", heading), *inside, **attributes) + "\n"


def bullets(lines: Sequence[str]) -> str:
    return tag("ul", *(tag("li", words(line)) for line in lines)) if lines else ""


def small_table(lines: Sequence[Mapping[str, Any]], first: Mapping[str, Sequence[str]] | None = None) -> str:
    """Return a table of a few lines; on a phone, the cells of a line stand below each other with their names.

    `first`: cells of first columns, as HTML, by name.
    """
    texts = {name.strip(): cells for name, *cells in cells_of(lines)}
    kinds = {name: "number" if _is_number(name, lines) else None for name in texts}
    cells = dict(first or {}) | {name: [words(text.strip()) for text in own] for name, own in texts.items()}
    titles = [tag("th", words(name), scope="col", class_=kinds.get(name)) for name in cells]
    named = [[tag("td", text, class_=kinds.get(name), data_label=name) for text in own] for name, own in cells.items()]
    body = (tag("tr", *line) for line in zip(*named, strict=True))
    return tag("table", tag("thead", tag("tr", *titles)), tag("tbody", *body), class_="small")


def _is_number(name: str, lines: Sequence[Mapping[str, Any]]) -> bool:
    return name in NUMBERS or any(isinstance(line.get(name), float | int) for line in lines)
