"""`mfabric query PATH ...`: questions to rows on disk."""

import dataclasses
import pathlib
import sys
from typing import Annotated

from mfabric_jax.checks import in_file, whole
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional, divided

SHOWN = 20  # rows of a table on the screen, unless --limit says how many


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Filter, group and sort the rows of sweeps and other commands; find their Pareto front.

    Lists are separated by commas. Order: where, over, pareto, by, sort, columns, limit.
    """

    paths: Annotated[tuple[str, ...], Positional("PATH", "a folder of a sweep or a file of rows first")]
    """Folders of sweeps, .parquet or .csv files."""
    where: str | None = None
    """Conditions such as "fabric = mfabric|fat-tree, nic_gbps >= 400"."""
    pareto: str | None = None
    """Columns to have small (tokens a second, mfu and the like large; column:min, column:max: as said), such as
    network_cost_usd,tokens_per_s; with --by in every group."""
    by: str | None = None
    """Columns of groups."""
    measures: str | None = None
    """column:measure of every group; mean, min, max, median, std (of a sample, by n - 1), ci95 (half of the 95 %
    interval of the mean, by Student's t), sum (default: the mean time)."""
    over: str | None = None
    """Measures of ratios, over rows of one condition such as "policy = uniform" that are otherwise set alike."""
    sort: str | None = None
    """Column to sort by; column:down for the largest first."""
    columns: str | None = None
    """Columns to keep."""
    limit: int | None = None
    """Rows at most; all of them are shown (without it the first 20)."""
    out: str | None = None
    """Rows to a .csv or .parquet file."""
    figure: str | None = None
    """Means of groups to a picture, over the last column of numbers in --by."""


def run(options: Options) -> None:
    from mfabric_jax import report
    from mfabric_jax.report.numerals import number
    from mfabric_jax.report.query import COUNT, notes, pairing, without_values

    if options.limit is not None:
        whole("limit", options.limit)
    shared.check_outputs(options.out, picture=options.figure)
    lists = {
        name: tuple(divided(getattr(options, name) or "")) for name in ("where", "by", "measures", "pareto", "columns")
    }
    asked = report.Asked(**lists, sort=options.sort, limit=options.limit, over=options.over)
    with in_file(options.paths[0] if len(options.paths) == 1 else None):
        rows, config = report.query(options.paths, asked)
    said = [*notes(options.paths), without_values(options.paths, asked), pairing(options.paths, asked)]
    for note in filter(None, said):
        print(f"query: {note}", file=sys.stderr)
    if not rows:
        print("no row fulfils this")
    else:
        alike = {name: value for name, value in rows[0].items() if all(row[name] == value for row in rows)}
        same = {name: value for name, value in alike.items() if len(rows) > 1 and not (asked.by and name == COUNT)}
        same = same if len(same) < len(rows[0]) else {}
        if same:
            said = (f"{name} {number(value)}" for name, value in same.items())
            print(f"in every row: {', '.join(said)}\n")
        shown = options.limit or SHOWN
        print(report.plain(rows[:shown], [name for name in rows[0] if name not in same]))
        if len(rows) > shown:
            more = f"... {len(rows) - shown:,} more rows; --limit {len(rows)} shows all"
            print(more + ("" if options.out else ", --out writes them"))
    for line in [] if asked.by or asked.pareto or asked.limit else report.remarks(rows, config):  # of all that there is
        print(line)
    about = {"command": "query", "paths": [str(pathlib.Path(path)) for path in options.paths]} | asked._asdict()
    shared.write(rows, options.out, about | {"of": config})
    if options.figure is not None:
        from mfabric_jax.report import figures

        shared.tell(figures.groups(rows, options.figure, by=asked.by))
