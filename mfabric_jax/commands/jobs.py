"""`mfabric jobs FILE`: several jobs on one fabric."""

import dataclasses
import pathlib
from typing import Annotated

from mfabric_jax.apps.graphs.jobs.sharing import JobsStudy
from mfabric_jax.checks import in_file
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional
from mfabric_jax.report.grid import Rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions, shared.OnDevice):
    """Simulate training jobs that share links: iteration times, slowdown over running alone, fairness, use of links.

    The file has the jobs (phases of computation and communication) and the links or fabric that they share; see
    docs/jobs.md.
    """

    file: Annotated[str, Positional("FILE", "a .toml or .json file of jobs and what they share first")]
    """A .toml or .json file of jobs and what they share."""
    study: JobsStudy
    out: str | None = None
    """Write a row per way of sharing and job to this .csv or .parquet file."""
    links: str | None = None
    """Write the use of the busiest link over time (start and end of the first run) to this .csv or .parquet file."""
    figures: str | None = None
    """Draw the use of the busiest link, to a picture in this folder."""


def run(options: Options) -> None:
    shared.start_jax("float64", options.device)
    from mfabric_jax import report
    from mfabric_jax.apps.graphs.jobs import compare_jobs, read_jobs
    from mfabric_jax.apps.graphs.jobs.compared import both_ends, job_remarks
    from mfabric_jax.apps.graphs.jobs.jobs_file import contents
    from mfabric_jax.evaluate.rows.results import provenance

    jobs = read_jobs(options.file)
    shared.check_outputs(options.out, options.links, figures=options.figures)
    with in_file(options.file):
        comparison = compare_jobs(jobs, options.study)
    effective = dataclasses.asdict(options.study) | {"shared": contents(jobs)} | provenance("float64")
    shared.write(comparison.jobs, options.out, effective | {"table": "jobs"}, options.columns("jobs"))
    rows = both_ends(comparison) if options.links is not None or options.figures is not None else []
    shared.write(rows, options.links, effective | {"table": "links"}, options.columns("jobs --links"))
    print(_times(comparison.jobs))
    shown = {"slowdown": "slowdown", "p99_slowdown": "p99 slowdown", "mean_gain": "mean gain"}
    shown |= {"p99_gain": "p99 gain", "fairness": "fairness", "cassini_score": "score"}
    use = report.TableColumn("busiest_link_use", "busiest link", percent=True)
    print(
        "\n"
        + report.plain(comparison.ways, ["way", *(report.TableColumn(key, title) for key, title in shown.items()), use])
    )
    shared.print_lines(job_remarks(comparison))
    if options.figures is not None:
        from mfabric_jax.report import figures

        title = f"{len(jobs.jobs)} jobs on {rows[0]['link']}"
        shared.tell(figures.interleaving(rows, pathlib.Path(options.figures) / "interleaving.png", title))


def _times(rows: Rows) -> str:
    """Return the table of jobs, with all times in one unit."""
    from mfabric_jax import report
    from mfabric_jax.report import numerals

    shortest = min(row["alone_s"] for row in rows)
    unit, scale = numerals.time_unit(shortest, least=0.1)
    titles = {"alone_s": "alone", "mean_s": "mean", "p99_s": "p99"}
    titles |= {"shift_s": "shift"}
    scaled = [dict(row) | {key: None if row[key] is None else row[key] * scale for key in titles} for row in rows]
    times = (report.TableColumn(key, f"{title} [{unit}]") for key, title in titles.items())
    return report.plain(scaled, ["way", "job", "iterations", *times, "slowdown"])
