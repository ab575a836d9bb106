"""`mfabric replay WORKLOAD`: simulate a task graph on fabrics."""

import dataclasses
import pathlib
from typing import Annotated, Any, NamedTuple

from mfabric_jax.apps.graphs.replay.replay_settings import UNREAD, Replay
from mfabric_jax.case import Cases
from mfabric_jax.checks import InputError, check_unread
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional

GIVEN = ("ranks", "communicators", "tflops", "memory_gigabytes_per_s", "unbounded_bytes", "weights")
SCHEDULES = ("circuits.schedule", "circuits.switches", "circuits.all_stop", "circuits.directed")
READS = ("gpu.", "network.", "circuits.policy", "circuits.delay_s", "circuits.ocs", *SCHEDULES, "run.seed")
NEEDS = "a task graph first: a file, or the common prefix of one file per rank"
ROWS = ("out", "links", "per_rank", "steps")
SHOWN = ("network.fabric", "network.graph", "network.nic_gbps")  # settings with their own columns


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowOptions):
    """Simulate a task graph on fabrics: makespan, what GPUs wait for, and what more bandwidth would save.

    The graph is a file in any format of docs/task_graphs.md. Cases provide the GPU and the network; each gives a row.
    Links, ranks, critical path, timeline and picture show the first case.
    """

    workload: Annotated[str, Positional("WORKLOAD", NEEDS)]
    """The file of a task graph; or the common prefix of one file per rank (job for job.0.et, job.1.et, ...)."""
    config: Replay
    ranks: int | None = None
    """Number of GPUs of the job, if the file does not state it."""
    communicators: str | None = None
    """JSON file with the communicators of a set of Chakra files (default: the one beside them)."""
    tflops: float | None = None
    """Rate of a GPU [TFLOP/s], for computations given as operations instead of seconds."""
    memory_gigabytes_per_s: float | None = None
    """Memory bandwidth of a GPU, for computations that also have bytes of memory."""
    unbounded_bytes: float | None = None
    """Bytes to send for htsim flows of size 0, which never end in htsim (default: none)."""
    weights: str | None = None
    """MixNet's weight matrix (.txt), for the all-to-alls of MixNet graphs."""
    gradient: bool = True
    """Compute what determines the makespan and what more of it would save (a derivative; doubles the run time)."""
    out: str | None = None
    """Write a row per fabric and bandwidth to this .csv or .parquet file."""
    links: str | None = None
    """Write a row per link to this .csv or .parquet file."""
    per_rank: str | None = None
    """Write a row per rank to this .csv or .parquet file: computation, exposed communication, idle time."""
    steps: str | None = None
    """Write a row per step of the critical path to this .csv or .parquet file."""
    timeline: str | None = None
    """Write the timeline of every rank to this .json file for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    picture: str | None = None
    """Draw the timeline of ranks, and what determines the makespan, to this .png, .pdf or .svg file."""
    device: str = "cpu"
    """cpu (whose engine updates only what an event changes), gpu or tpu."""


def run(cases: Cases, options: Options) -> None:
    config = options.config
    shared.check_flags(cases, "replay", READS, config.graph, UNREAD)
    shared.start_jax("float64", options.device)
    from mfabric_jax import report
    from mfabric_jax.apps.graphs.replay import replayed as found
    from mfabric_jax.apps.graphs.tasks.formats.registry import read_with_remarks
    from mfabric_jax.evaluate.rows.results import provenance

    _check_circuits(cases, config)
    tables = (getattr(options, option) for option in ROWS)
    shared.check_outputs(*tables, trace=options.timeline, picture=options.picture)
    read_options = {name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None}
    job = read_with_remarks(options.workload, **read_options)
    effective = {"workload": options.workload, "format": job.format} | dataclasses.asdict(config)
    effective |= {"stated": dict(cases.stated), "sources": dict(cases.sources)} | provenance("float64")
    runs = _replays(cases, options, job.graph, effective)
    first, owed = runs.first, runs.owed
    tables = {
        "links": lambda: found.link_use_rows(first, owed),
        "per_rank": lambda: found.rank_rows(first),
        "steps": lambda: found.path_rows(first),
    }
    kinds = {"links": "replay --links", "per_rank": "replay --per-rank", "steps": "replay --steps"}
    columns = {name: options.columns(kind) for name, kind in kinds.items()}
    shared.write_tables(tables, {option: getattr(options, option) for option in tables}, effective, columns)
    title = f"{pathlib.Path(options.workload).name} ({job.format})"
    _tell(title, runs, job.remarks)
    if options.timeline is not None:
        shared.tell(report.write_task_trace(found.spans(first), options.timeline, effective))
    if options.picture is not None:
        shared.tell(_draw(title, runs, options.picture))


def _check_circuits(cases: Cases, config: Replay) -> None:
    """Raise InputError for an option of circuits that applies to no case."""
    from mfabric_jax import fabric

    each = [fabric.get(block.case.network.fabric) for block in cases.blocks]
    if not any(each_fabric.about.optics.wires for each_fabric in each):
        check_unread(config, ("region_servers",), "fabrics with optical regions")
    if not any(each_fabric.reconfigures for each_fabric in each):
        check_unread(config, ("circuits_for", "first"), "fabrics whose circuits change")
    if config.circuits_for != "all-to-all":
        check_unread(config, ("first",), "--circuits-for all-to-all")


class _Runs(NamedTuple):
    """Rows of all runs and their assumptions; the first run, its derivative, and what determines its makespan."""

    rows: list[dict[str, Any]]
    assumed: list[dict[str, Any]]
    first: Any
    owed: Any
    held: list[dict[str, Any]]


def _replays(cases: Cases, options: Options, graph, effective: dict[str, Any]) -> _Runs:
    """Run the graph on every case. Finished rows are written even after an interrupt."""
    from mfabric_jax.apps.graphs.replay import replay
    from mfabric_jax.apps.graphs.replay import replayed as found
    from mfabric_jax.apps.graphs.replay.run import replay_assumed

    rows, assumed, first, owed, held = [], [], None, None, []
    several = [(case, config) for config in _configs(options.config) for case in cases]
    bar = shared.bar("replay", "run", len(several))

    try:
        with bar:
            for case, config in several:
                (done,) = replay(graph, case, config, progress=bar.set_postfix_str)
                if options.picture is not None and first is None:
                    _check_drawable(options, done)
                bar.set_postfix_str(f"{done.prepared.title}: what determines the makespan")
                gains = found.gains(done) if options.gradient else None
                named = {"workload": pathlib.Path(options.workload).name} | cases.differences(case, SHOWN)
                rows.append(named | found.replay_row(done, gains))
                assumed.append(replay_assumed(done, config))
                if first is None:
                    first, owed = done, gains
                    held = [] if gains is None else found.savings_rows(done, found.gain_rows(done, gains))
                bar.update()
    finally:
        if rows:
            shared.write(rows, options.out, effective | {"table": "out"}, options.columns("replay"))
    return _Runs(rows, assumed, first, owed, held)


def _configs(config: Replay) -> list[Replay]:
    """The settings with each network graph that --graph names."""
    from mfabric_jax.fabric.graphs.files import graphs_in

    if config.graph is None:
        return [config]
    return [dataclasses.replace(config, graph=file) for file in graphs_in(config.graph)]


def _check_drawable(options: Options, done) -> None:
    from mfabric_jax.apps.graphs.replay.replayed import time_spent

    if not (time_spent(done).idle_s < done.makespan_s).any():
        raise InputError(
            f"picture needs tasks that take time; on {done.prepared.title} no task of {options.workload!r} does; "
            f"leave out --picture."
        )


def _tell(title: str, runs: _Runs, remarks) -> None:
    """Print a line for every run, their assumptions, and details of the first run."""
    from mfabric_jax.apps.graphs.replay import replayed as found
    from mfabric_jax.report import replay_text as text
    from mfabric_jax.report.numerals import count_phrase

    rows, done = runs.rows, runs.first
    parts = ", ".join(count_phrase(rows[0][f"{what}s"], what) for what in ("rank", "task", "flow"))
    print(f"{title}: {parts}")
    print(text.runs_text(rows))
    print("\n".join([text.assumptions_text(runs.assumed), *remarks]))
    where = done.prepared.title
    if runs.owed is not None:
        print(f"\nwhat determines the makespan on {where}, and what more of it would save")
        print(text.makespan_text(runs.held, done.makespan_s, found.at_a_tie(done, runs.held)))
    print(f"\nbusiest links on {where}")
    print(text.links_text(found.link_use_rows(done)))
    print(f"\ncritical path on {where}: {text.path_text(found.path_rows(done))}")


def _draw(title: str, runs: _Runs, picture: str):
    import numpy as np

    from mfabric_jax.apps.graphs.replay import replayed as found
    from mfabric_jax.report import figures
    from mfabric_jax.report.figures.timelines import choose_ranks
    from mfabric_jax.report.replay_text import in_unit

    done = runs.first
    title = f"{title} on {done.prepared.title}: {in_unit(done.makespan_s)}"
    busy = np.flatnonzero(found.time_spent(done).idle_s < done.makespan_s).tolist()
    shown = choose_ranks(busy, found.path_spans(done))
    if len(shown) < done.prepared.graph.ranks:
        title += f" ({len(shown)} of {done.prepared.graph.ranks} ranks)"
    return figures.replay_picture(found.spans(done, shown), runs.held, picture, title)
