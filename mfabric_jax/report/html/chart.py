"""A chart: a title, a sentence, a key and panels; and rows arranged for one, or the reason why they cannot be."""

from collections.abc import Sequence
from dataclasses import dataclass

from mfabric_jax.checks import InputError
from mfabric_jax.report.grid import Grid, Rows, arrange
from mfabric_jax.report.html.markup import listed, tag, words
from mfabric_jax.report.numerals import usable

_PLACE = ("model", "fabric", "nic_gbps")


@dataclass(frozen=True)
class Chart:
    """One chart of a page; `more` is markup that follows its panels."""

    title: str
    note: str
    key: str
    panels: Sequence[str]
    more: str = ""

    def markup(self) -> str:
        """The chart as a section of the page."""
        head = tag("h3", words(self.title)) + tag("p", words(self.note), class_="note")
        return tag("section", head, self.key, panels(self.panels), self.more, class_="chart")


def panels(drawn: Sequence[str]) -> str:
    """Panels side by side, as many as there is room for."""
    return tag("div", *drawn, class_="panels")


def gridded(rows: Rows, needs: Sequence[str]) -> Grid:
    """Rows by model, series and bandwidth. `InputError` says which column is missing or holds no number."""
    for names in (_PLACE, needs):
        if missing := [name for name in names if name not in rows[0]]:
            raise InputError(f"the rows have no column {listed(missing, 'or')}.")
    placed = [
        row
        for row in rows
        if row["model"] is not None and row["fabric"] is not None and usable(row["nic_gbps"]) is not None
    ]
    if not placed:
        raise InputError(f"no row has a value in each of the columns {', '.join(_PLACE)}.")
    for name in needs:
        if all(usable(row[name]) is None for row in placed):
            raise InputError(f"no row has a number in column {name}.")
    return arrange(placed, needs)
