"""`mfabric reproduce [FIGURE ...]`: the figures of the paper."""

import dataclasses
import pathlib
from typing import Annotated

import mfabric_jax
from mfabric_jax.checks import InputError, check_unread
from mfabric_jax.commands import reproduction as paper
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional
from mfabric_jax.support import columns

WIDTH = 160


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Draw figures of the paper again, and put every published number beside what comes out.

    Each is an experiment in a process of its own. The folder gets its rows with their configuration, its picture and
    its tables, and verdicts.csv of all that it holds. What it has already, of the same configuration and code, is kept.
    """

    figures: Annotated[tuple[str, ...], Positional("FIGURE")] = ()
    """all, or names that --list lists."""
    quick: bool = False
    """Fewer cases and smaller ones: minutes instead of hours."""
    out: str = "results"
    """Folder for rows, pictures and tables."""
    trace: str | None = None
    """Recorded routing, for the experiments that read one (default: generated traffic)."""
    jobs: int | None = None
    """Experiments at once (default: 2)."""
    again: bool = False
    """Compute also what the folder has already."""
    list: bool = False
    """Only say which figures there are."""


def run(options: Options) -> int:
    """Returns the exit status."""
    from mfabric_jax import report
    from mfabric_jax.support.atomic import check_folder

    if options.list:
        check_unread(
            options, ("figures", "quick", "out", "trace", "jobs", "again"), "figures that are drawn, not listed"
        )
        print(paper.listing())
        return 0
    modules, jobs = paper.chosen(options.figures), paper.checked_jobs(options.jobs)
    if options.trace is not None and not pathlib.Path(options.trace).exists():
        raise InputError(f"trace must be an existing file or folder, got {options.trace}.")
    from mfabric_jax.report.drawing.paper import look  # before a long run

    with look():
        check_folder(options.out)
    made = paper.Reproduction(modules, options)
    made.all(jobs)
    file, rows = pathlib.Path(options.out) / "verdicts.csv", made.rows()
    if rows:
        print(report.plain(rows, paper.SHOWN, width=WIDTH))
    if kept := paper.with_earlier(rows, file, modules):
        config = {"figures": list(modules), "failed": made.failed, "quick": options.quick, "trace": options.trace}
        config |= {columns.KEY: columns.SCHEMA, "version": mfabric_jax.__version__}
        shared.write(kept, file, config)
    return 1 if made.failed else 0
