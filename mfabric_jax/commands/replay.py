"""`mfabric replay WORKLOAD`: a graph of tasks on fabrics."""

import dataclasses
import pathlib
import sys
from typing import Annotated

import tyro

from mfabric_jax.commands import shared
from mfabric_jax.study._replay import Replay

GIVEN = ("ranks", "communicators", "tflops", "memory_gigabytes_per_s", "unbounded_bytes", "weights")
BUSIEST = 5
SHOWN_STEPS = 12


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Run a graph of tasks on fabrics: when it ends, what GPUs wait for, and what more bandwidth would bring.

    The graph is a file of any format of docs/task_graphs.md. Lists are separated by commas; a row for each fabric and
    bandwidth. Links, ranks, critical path, timeline and picture are of the first.
    """

    workload: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WORKLOAD")]
    """A file of a graph of tasks; job, of a set job.0.et, job.1.et, ... with a file for every rank."""
    config: Replay
    ranks: int | None = None
    """GPUs of the job, where the file does not say."""
    communicators: str | None = None
    """JSON file of a Chakra set's communicators (default: the one beside it)."""
    tflops: float | None = None
    """Of a GPU, for computations that say operations, not how long they take."""
    memory_gigabytes_per_s: float | None = None
    """Of a GPU, for those that say bytes of memory, too."""
    unbounded_bytes: float | None = None
    """Of a flow that never ends."""
    weights: str | None = None
    """MixNet's matrix of weights, a .txt file, for the all-to-alls of its graphs."""
    gradient: bool = True
    """What holds the makespan, and what more of it would bring: the derivative, as long again as the replay."""
    out: str | None = None
    """A row per fabric and bandwidth to a .csv or .parquet file."""
    links: str | None = None
    """A row per link to a .csv or .parquet file."""
    per_rank: str | None = None
    """A row per rank to a .csv or .parquet file: computation, exposed communication, idle."""
    steps: str | None = None
    """A row per step of the critical path to a .csv or .parquet file."""
    timeline: str | None = None
    """Everything every rank does to a .json file for Perfetto (ui.perfetto.dev) or chrome://tracing."""
    picture: str | None = None
    """What ranks do when, and what holds the makespan, as a .png, .pdf or .svg file."""
    device: str = "cpu"
    """cpu, whose engine touches only what an event changes; gpu, tpu."""


def run(options: Options) -> int:
    """Returns the exit status."""
    config = options.config
    shared.start_jax(config.dtype, options.device)
    from tqdm import tqdm

    from mfabric_jax import report, study
    from mfabric_jax.report.perfetto import check_trace
    from mfabric_jax.report.style import check_picture
    from mfabric_jax.study import _replayed as found
    from mfabric_jax.study._replay import effective_replay
    from mfabric_jax.tasks.formats.registry import read_with_remarks

    for file in (options.out, options.links, options.per_rank, options.steps):
        shared.check_outputs(file, None)
    if options.timeline is not None:
        check_trace(options.timeline)
    if options.picture is not None:
        check_picture(options.picture)
    given = {name: getattr(options, name) for name in GIVEN if getattr(options, name) is not None}
    job = read_with_remarks(options.workload, **given)
    name = pathlib.Path(options.workload).name
    rows, first, owed = [], None, None
    with tqdm(total=len(config.places), desc="replay", unit="run", file=sys.stderr, disable=None) as bar:
        for done in study.replay(job.graph, config, progress=bar.set_postfix_str):
            bar.set_postfix_str(f"{done.prepared.title}: what holds the makespan")
            held = found.gains(done) if options.gradient else None
            rows.append({"workload": name} | found.replay_row(done, held))
            first, owed = (done, held) if first is None else (first, owed)
            bar.update()
    assert first is not None
    effective = {"workload": options.workload, "format": job.format} | effective_replay(config)
    tables = {
        "out": lambda: rows,
        "links": lambda: found.carried_rows(first, owed),
        "per_rank": lambda: found.rank_rows(first),
        "steps": lambda: found.path_rows(first),
    }
    for option, table in tables.items():
        if (file := getattr(options, option)) is not None:
            print(report.write_rows(table(), file, effective | {"table": option}), file=sys.stderr)
    print(f"{name} ({job.format}): {rows[0]['ranks']:,} ranks, {rows[0]['tasks']:,} tasks, {rows[0]['flows']:,} flows")
    print(report.plain(rows, _columns(rows)))
    for said in job.remarks:
        print(said)
    _tell_first(first, owed)
    if options.timeline is not None:
        print(report.write_task_trace(found.spans(first), options.timeline, effective), file=sys.stderr)
    if options.picture is not None:
        print(_draw(first, owed, options.picture), file=sys.stderr)
    return 0


def _columns(rows) -> list:
    from mfabric_jax import report

    named = {"makespan_s": "makespan [s]", "compute_s": "compute", "exposed_comm_s": "exposed comm", "idle_s": "idle"}
    named |= {"held_by": "held by", "held_share": "part"}
    found = [report.Column(key, title, percent=key == "held_share") for key, title in named.items() if key in rows[0]]
    return ["fabric", report.Column("nic_gbps", "Gbps"), "servers", *found]


def _tell_first(done, owed) -> None:
    """The first replay in detail."""
    from mfabric_jax import report
    from mfabric_jax.study import _replayed as found

    where = done.prepared.title
    if owed is not None:
        print(f"\nwhat holds the makespan on {where}, and what more of it would save")
        print(report.plain(found.gain_rows(done, owed)))
    print(f"\nbusiest links on {where}")
    links = sorted(found.carried_rows(done, owed), key=lambda row: -row["utilisation"])[:BUSIEST]
    print(report.plain(links, ["link", "kind", "from", "to", report.Column("utilisation", percent=True)]))
    steps = [row | {"seconds": row["finish_s"] - row["released_s"]} for row in found.path_rows(done)]
    print(f"\ncritical path on {where}: {len(steps):,} steps, the longest")
    took = sorted(steps, key=lambda row: -row["seconds"])[:SHOWN_STEPS]
    print(report.plain(took, ["name", "rank", "to", "released_s", "seconds", "held_by"]))


def _draw(done, owed, picture: str):
    from mfabric_jax.report import figures
    from mfabric_jax.study import _replayed as found

    held = [] if owed is None else found.gain_rows(done, owed)
    title = f"{done.prepared.title}: {done.makespan_s:.4g} s"
    return figures.replay_picture(found.spans(done), held, picture, title)
