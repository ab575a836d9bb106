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
    """Reproduce figures of the paper, and compare every published number with the simulated one.

    Each figure is an experiment in its own process. The output folder gets its rows with their configuration, its
    picture and tables, and verdicts.csv for all figures. Figures of the same configuration and code are reused.
    """

    figures: Annotated[tuple[str, ...], Positional("FIGURE")] = ()
    """Names of figures (see --list), or all."""
    quick: bool = False
    """Run fewer and smaller cases: minutes instead of hours."""
    out: str = "results"
    """Output folder for rows, pictures and tables."""
    trace: str | None = None
    """Recorded routing for the experiments that use it (default: generated traffic)."""
    jobs: int | None = None
    """Number of experiments that run at the same time (default: 2)."""
    again: bool = False
    """Compute figures again that the folder already has."""
    list: bool = False
    """List the figures and exit."""


def run(options: Options) -> int:
    """Return the exit status."""
    from mfabric_jax import report
    from mfabric_jax.support.atomic import check_folder

    if options.list:
        check_unread(
            options, ("figures", "quick", "out", "trace", "jobs", "again"), "figures that are drawn, not listed"
        )
        print(paper.listing())
        return 0
    modules, jobs = paper.choose_figures(options.figures), paper.job_count(options.jobs)
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
