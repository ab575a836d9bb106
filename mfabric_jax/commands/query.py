"""`mfabric query PATH ...`: select, group and sort rows on disk."""

import dataclasses
import itertools
import pathlib
import sys
from typing import Annotated

from mfabric_jax.checks import in_file, whole
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional, split_words

SHOWN = 20  # rows printed without --limit


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Filter, group and sort rows of sweeps and other commands; find their Pareto front.

    Commas separate lists. Options apply in this order: where, over, pareto, by, sort, columns, limit.
    """

    paths: Annotated[tuple[str, ...], Positional("PATH", "a folder of a sweep or a file of rows first")]
    """Folders of sweeps, or .parquet or .csv files of rows."""
    where: str | None = None
    """Conditions such as "fabric = mfabric|fat-tree, nic_gbps >= 400"."""
    pareto: str | None = None
    """Columns of the Pareto front, such as network_cost_usd,tokens_per_s. They are minimised, or maximised if they are
    tokens per second, mfu and the like (column:min, column:max override this). With --by, one front per group."""
    by: str | None = None
    """Columns whose values define groups, which are sorted by them."""
    measures: str | None = None
    """Measures of every group, as column:measure: mean, min, max, median, std (sample, n - 1), ci95 (half of the 95 %
    confidence interval of the mean, Student's t), sum (default: the mean time)."""
    over: str | None = None
    """Baseline rows, by conditions such as "policy = uniform, circuits.delay_s = 0". Measures are then of
    ratios: each row over the baseline row with otherwise equal settings."""
    sort: str | None = None
    """Column to sort by; column:down puts the largest first."""
    columns: str | None = None
    """Columns to keep."""
    limit: int | None = None
    """Largest number of rows to select. All of them are printed; without --limit, the first 20."""
    out: str | None = None
    """Write the rows to this .csv or .parquet file."""
    figure: str | None = None
    """Draw the means of groups against the last numeric column of --by, to this picture."""


def run(options: Options) -> None:
    from mfabric_jax import report
    from mfabric_jax.report.numerals import number
    from mfabric_jax.report.query import COUNT, FILE, equal_over_seeds, notes, pairing, without_values

    if options.limit is not None:
        whole("limit", options.limit)
    shared.check_outputs(options.out, picture=options.figure)
    lists = {
        name: tuple(split_words(getattr(options, name) or ""))
        for name in ("where", "by", "measures", "pareto", "columns")
    }
    question = report.QueryOptions(**lists, sort=options.sort, limit=options.limit, over=options.over)
    with in_file(options.paths[0] if len(options.paths) == 1 else None):
        rows, config = report.query(options.paths, question)
    findings = (without_values, pairing, equal_over_seeds)
    texts = [*notes(options.paths), *(note(options.paths, question) for note in findings)]
    for note in filter(None, texts):
        print(f"query: {note}", file=sys.stderr)
    if not rows:
        print("no row matches")
    else:
        alike = {name: value for name, value in rows[0].items() if all(row[name] == value for row in rows)}
        same = {name: value for name, value in alike.items() if len(rows) > 1 and not (question.by and name == COUNT)}
        same = same if len(same) < len(rows[0]) else {}
        if same:
            texts = (f"{name} {number(value)}" for name, value in same.items())
            print(f"in every row: {', '.join(texts)}\n")
        shown = options.limit or SHOWN
        groups = set(itertools.takewhile(lambda name: name != COUNT, rows[0])) if COUNT in rows[0] else set()
        groups |= {*question.by, FILE}
        errors = {name: f"{name.removesuffix('_mean')}_ci95" for name in rows[0] if name.endswith("_mean")}
        shown_names = [name for name in rows[0] if name not in same]
        columns = [report.TableColumn(name, apart=name in groups, error=errors.get(name)) for name in shown_names]
        print(report.plain(rows[:shown], columns))
        if len(rows) > shown:
            more = f"... {len(rows) - shown:,} more rows; --limit {len(rows)} shows all"
            print(more + ("" if options.out else ", --out writes them"))
    for line in (
        [] if question.by or question.pareto or question.limit else report.remarks(rows, config)
    ):  # of all that there is
        print(line)
    about = {"command": "query", "paths": [str(pathlib.Path(path)) for path in options.paths]} | question._asdict()
    shared.write(rows, options.out, about | {"of": config})
    if options.figure is not None:
        from mfabric_jax.report import figures

        shared.tell(figures.groups(rows, options.figure, by=question.by, over=options.over))
