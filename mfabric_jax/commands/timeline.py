"""`mfabric timeline`: the schedule of every pipeline stage."""

import dataclasses

from mfabric_jax.case import Cases
from mfabric_jax.case.grid import UNREAD_BY_TIMES
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.OnDevice):
    """Show what every pipeline stage does over time in an iteration (the last one, if there are several)."""

    out: str | None = None
    """Write all segments to this .json file for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    picture: str | None = None
    """Draw the iteration to this .png, .pdf or .svg file."""


def run(cases: Cases, options: Options) -> None:
    case = shared.one_case(cases, "timeline")
    shared.check_flags(cases, "timeline", shared.ALL, unread=UNREAD_BY_TIMES)
    shared.check_cases(cases)
    shared.start_jax(case.run.dtype, options.device)
    cases = shared.settle(cases, options.device)
    case = cases.blocks[0].case
    from mfabric_jax import report
    from mfabric_jax.evaluate import example_timeline, resolve
    from mfabric_jax.evaluate.rows.results import record_of_cases
    from mfabric_jax.evaluate.rows.rows import job_columns
    from mfabric_jax.report.row_remarks import slow_switch_words

    shared.check_outputs(trace=options.out, picture=options.picture)
    segments, rows = example_timeline(case)
    resolved = resolve(case)
    title = f"{resolved.job.model} on {case.network.fabric} at {case.network.nic_gbps:g} Gbps"
    print(f"{title}: an iteration of {rows[0]['iteration_s']:.4g} s; seconds of every pipeline stage")
    parts = {"compute_s": "compute", "tp_comm_s": "TP", "ep_comm_s": "EP", "dp_comm_s": "DP"}
    parts |= {"reconfig_s": "reconf", "bubble_s": "bubble"}
    model, columns = resolved.job.model, job_columns(resolved, resolved.job)
    shared.print_jobs([{"model": model, "gpus": resolved.job.gpus} | columns])
    print(report.plain(rows, ["stage", *(report.TableColumn(key, name) for key, name in parts.items())]))
    busiest = max(rows, key=lambda row: row["reconfig_s"])
    seconds = [busiest[name] for name in ("reconfig_s", "iteration_s", "bubble_s")]
    what = f"{model}, stage {busiest['stage']},"
    words = slow_switch_words(case.network.fabric, what, *seconds, changes=shared.changes_of(case))
    shared.print_lines([*([] if words is None else [words]), *shared.case_notes(cases)])
    if options.out is not None:
        shared.tell(report.write_perfetto(segments, options.out, record_of_cases(cases)))
    if options.picture is not None:
        from mfabric_jax.report import figures

        shared.tell(figures.gantt(segments, options.picture, title))
