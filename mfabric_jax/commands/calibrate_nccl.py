"""`mfabric calibrate nccl FILE...`: latency and bandwidth from times measured on a cluster."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.commands.words import Positional


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Fit time = alpha + bytes / bandwidth to measured times, for each network tier, program, kind of communication
    and number of ranks.

    Bytes are those over the busiest port: a GPU's link inside a server, a GPU's NIC between servers. Files: nccl-tests
    as text or JSON (all_reduce, all_gather, reduce_scatter, alltoall, alltoallv, sendrecv), osu_alltoall and
    osu_alltoallv, perftest (ib_write_bw, ib_write_lat), DeepEP's tests. An option takes one value, or one per file.
    """

    files: Annotated[tuple[str, ...], Positional("FILE", "files of measured times; --help lists the tools")]
    """Output files of the tools."""
    tier: tuple[str, ...] | None = None
    """Network tier: server, leaf (servers under one leaf switch) or across; needed if a file spans several servers."""
    ranks: tuple[int, ...] | None = None
    """Number of ranks, if a file does not state it."""
    gpus_per_server: tuple[int, ...] | None = None
    """Number of ranks in each server, if a file does not state it."""
    nic_gbps: float | None = None
    """Bandwidth of a NIC; if given, network.transport can read the file of --out."""
    out: str | None = None
    """Write each alpha and bandwidth, with the range of measured sizes, to this .json file."""
    picture: str | None = None
    """Draw measured times and fitted lines to this .png, .pdf or .svg file."""


def run(options: Options) -> None:
    from mfabric_jax import report
    from mfabric_jax.apps.recordings.measurements import fit_points, points_of, read_times
    from mfabric_jax.apps.recordings.measurements.placed import UserFacts
    from mfabric_jax.apps.recordings.measurements.written import remarks, write_measured
    from mfabric_jax.support.atomic import check_file

    if options.out is not None:
        check_file("out", options.out, (".json",))
    shared.check_outputs(picture=options.picture)
    points = []
    for index, file in enumerate(options.files):
        stated = UserFacts(*(_of_file(options, field, index) for field in UserFacts._fields))
        points += points_of(read_times(file, stated.ranks), stated)
    fits = fit_points(points)
    shown = [_table_row(fit.row()) for fit in fits]
    notes = remarks(fits, options.nic_gbps)
    print(report.plain(shown, _columns(report, fits)))
    shared.print_lines(notes)
    if options.out is not None:
        shared.tell(write_measured(fits, options.out, options.nic_gbps))
    if options.picture is not None:
        from mfabric_jax.report.figures import draw_measured_times

        shared.tell(draw_measured_times(fits, options.picture))


def _of_file(options: Options, field: str, index: int) -> Any:
    """Return the value of an option for one file: the only value, or the file's own in a list."""
    values: Sequence[Any] | None = getattr(options, field)
    if values is None:
        return None
    if len(values) not in (1, len(options.files)):
        raise InputError(
            f"{field} must have one value, or one for each of the {len(options.files)} files, got {len(values)}."
        )
    return values[index if len(values) > 1 else 0]


def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    from mfabric_jax import units

    low, high = row["bytes"]
    return row | {
        "ranks": "" if row["ranks"] is None else row["ranks"],
        "each": "" if row["ranks_per_server"] is None else row["ranks_per_server"],
        "low": low,
        "high": high,
        "alpha_us": units.to_us(row["alpha_s"]),
        "GB/s": units.to_gigabytes(row["bandwidth_bytes_per_s"]),
    }


def _columns(report: Any, fits: Sequence[Any]) -> list[Any]:
    alike = {(fit.tier, fit.kind, fit.program, fit.ranks) for fit in fits}
    each = [report.TableColumn("each", "ranks in a server")] if len(alike) < len(fits) else []
    sizes = [report.TableColumn("low", "smallest [B]"), report.TableColumn("high", "largest [B]")]
    errors = [("error_median", "error"), ("error_worst", "worst")]
    return [
        *("tier", "kind", "points", "ranks"),
        *sizes,
        report.TableColumn("alpha_us", "alpha [us]"),
        "GB/s",
        *(report.TableColumn(key, title, percent=True) for key, title in errors),
        "program",
        *each,
    ]
