"""Flow level against packet level, for the terminal: a table of runs for each group, then a line for each group."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from mfabric_jax import units
from mfabric_jax.report.grid import Rows
from mfabric_jax.report.table import Column, plain

GROUPS = {
    "spraying": "spraying on a non-blocking tree",
    "one-path": "one path per flow on a non-blocking tree",
    "unknown-path": "one path per flow, not recorded: predicted by host ports alone",
    "leaf-spine": "oversubscribed leaf-spine",
    "incast": "incast on a non-blocking tree",
}
_RUNS = [
    Column("pattern"),
    Column("transport"),
    Column("routing"),
    Column("flows"),
    Column("MiB", digits=3),
    Column("measured"),
    Column("predicted"),
    Column("error", percent=True),
    Column("median", percent=True),
    Column("p90", percent=True),
]
_GROUPS = [
    Column("group"),
    Column("runs"),
    Column("error_median", "typical", percent=True),
    Column("worst_error", "worst", percent=True),
    Column("worst run"),
    Column("large_flows", "flows"),
    Column("flow_error_median", "median", percent=True),
    Column("flow_error_p90", "p90", percent=True),
]
_LEGEND = """MiB: payload of a mean pair; measured, predicted: collective time in ms;
error: predicted / measured - 1 of it; typical: median of |error| over runs;
median, p90: of |predicted / measured - 1| over single flows of 1 MiB or more."""


def agreement(rows: Rows, groups: Rows) -> str:
    """What `mfabric validate packet` found: the runs group by group, then the groups."""
    blocks = []
    for (group, topology), members in groupby(rows, lambda row: (row["group"], row["topology"])):
        shape = topology.partition(" (")[0]
        blocks.append(f"{GROUPS.get(group, group)}\n({shape})\n{plain([_run(row) for row in members], _RUNS)}")
    summary = plain([{**line, "worst run": _worst(line)} for line in groups], _GROUPS)
    return "\n\n".join([*blocks, summary, "\n".join(filter(None, [_LEGEND, _stated(rows)]))])


def _run(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {
        "pattern": row["pattern"],
        "transport": row["transport"],
        "routing": routing(row),
        "flows": row["flows"],
        "MiB": row["mean_pair_mib"],
        "measured": units.to_ms(row["measured_s"]),
        "predicted": units.to_ms(row["predicted_s"]),
        "error": row["error"],
        "median": row["flow_error_median"],
        "p90": row["flow_error_p90"],
    }


def routing(row: Mapping[str, Any]) -> str:
    """How the run spread its flows over links, in a word."""
    return "path" if row["paths_known"] else "spray" if "spraying" in row["routing"] else "unknown"


def _worst(line: Mapping[str, Any]) -> str:
    return f"{line['worst_pattern']} {line['worst_transport']}"


def _stated(rows: Rows) -> str | None:
    """How far the predictions are from the fluid times that the files state themselves."""
    apart = [abs(row["predicted_s"] / row["stated_fluid_s"] - 1) for row in rows if row.get("stated_fluid_s")]
    if not apart:
        return None
    return f"{len(apart)} of {len(rows)} files state a fluid time of their own; largest difference {max(apart):.1e}."
