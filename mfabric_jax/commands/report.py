"""`mfabric report ROWS --out PAGE`: an HTML page of rows."""

import dataclasses
import pathlib
import sys
from typing import Annotated

from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional

FIRST = "the rows first, a .csv or .parquet file or the folder of a sweep"
MOST_ROWS = 20_000  # most rows that a browser sorts and filters quickly


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Make an HTML page of rows: which design is best and why, charts, assumptions, a table to sort and filter, the
    configuration. It works offline and prints on A4.
    """

    rows: Annotated[tuple[str, ...], Positional("ROWS", FIRST)]
    """.csv or .parquet files written by --out of other commands, or folders of sweeps; several share one page."""
    out: str
    """A .html file for the page."""
    pictures: str | None = None
    """Folder of .png and .svg files to include, such as that of compare --figures."""
    title: str | None = None
    """Heading of the page."""


def run(options: Options) -> None:
    from mfabric_jax import report
    from mfabric_jax.report.html import check_page
    from mfabric_jax.report.query import notes

    check_page(options.out, options.pictures)
    if not options.rows:
        raise InputError("report needs ROWS: files of rows or folders of sweeps, got none.")
    first, *others = options.rows
    if others or pathlib.Path(first).is_dir():
        rows, effective = report.query(options.rows, report.QueryOptions())
    else:
        rows, effective = report.read_rows(first)
    for note in notes(options.rows):
        print(f"report: {note}", file=sys.stderr)
    if len(rows) > MOST_ROWS:
        fewer = "select fewer with mfabric query --out"
        raise InputError(
            f"{', '.join(options.rows)} holds {len(rows):,} rows, but a page at most {MOST_ROWS:,}: {fewer}."
        )
    again = shared.command_line()
    shared.tell(report.html_report(rows, effective, options.out, options.pictures, options.title, command=again))
