"""Texts that `mfabric replay` prints: runs, shares of the makespan, links, the critical path, assumptions."""

from collections.abc import Mapping, Sequence
from typing import Any

from mfabric_jax.report.grid import setting_name
from mfabric_jax.report.numerals import count_phrase, number, time_unit
from mfabric_jax.report.tables import TableColumn, plain

Rows = Sequence[Mapping[str, Any]]

BUSIEST = 5
SHOWN_STEPS = 12
NAME = 40  # most characters of a task's name
WIDE = 130
TIE = (
    "Shares below 0 or above 100 % hold for tiny changes only: events tie here, or a faster link delays another. "
    "The savings with 1 % more are from replays."
)


def shorten(name: str, most: int = NAME) -> str:
    half = (most - 3) // 2
    return name if len(name) <= most else f"{name[:half]}...{name[-half:]}"


def in_unit(seconds: float) -> str:
    """Return seconds in the best unit, such as "1.234 ms"."""
    unit, factor = time_unit(abs(seconds))
    return f"{number(seconds * factor)} {unit}"


def in_one_unit(rows: Rows, columns: Mapping[str, str | None]) -> tuple[list[dict[str, Any]], list[TableColumn]]:
    """Return the rows with the seconds in `columns` in one unit, that of the largest, and these columns with titles.

    `columns`: titles by key; None: the key.
    """
    there = {key: title or key for key, title in columns.items() if any(row.get(key) is not None for row in rows)}
    unit, factor = time_unit(
        max((abs(row[key]) for row in rows for key in there if row.get(key) is not None), default=0)
    )
    scaled = [dict(row) for row in rows]
    for row in scaled:
        row |= {key: row[key] * factor for key in there if row.get(key) is not None}
    return scaled, [TableColumn(key, f"{title} [{unit}]") for key, title in there.items()]


def runs_text(rows: Rows) -> str:
    named = {"makespan_s": "makespan", "compute_s": "compute", "exposed_comm_s": "exposed comm", "idle_s": "idle"}
    shown, times = in_one_unit([{**row, "fabric": row.get("graph") or row["fabric"]} for row in rows], named)
    held = (
        [TableColumn("held_by", "held by"), TableColumn("held_share", "part", percent=True)]
        if "held_by" in rows[0]
        else []
    )
    settings = [TableColumn(name, setting_name(name)) for name in rows[0] if "." in name]
    table = plain(shown, ["fabric", TableColumn("nic_gbps", "Gbps"), *settings, "servers", *times, *held], width=WIDE)
    return f"{table}\ncompute, exposed comm (not hidden by computation) and idle: means over ranks."


def makespan_text(rows: Rows, makespan_s: float, tie: bool) -> str:
    """Return the table of what accounts for the makespan; `tie`: the shares hold for tiny changes only."""
    named = {"holds_s": "holds", "saved_at_1_percent_s": "1 % more saves", "saved_per_100_gbps_s": "100 Gbps more"}
    if tie:
        del named["saved_per_100_gbps_s"]
    rows = [{**row, "share": row["holds_s"] / makespan_s} for row in rows]
    shown, (holds, *others) = in_one_unit(rows, named)
    table = plain(shown, ["what", "links", holds, TableColumn("share", "of all", percent=True), *others])
    return f"{table}\n{TIE}" if tie else table


def links_text(rows: Rows) -> str:
    busiest = sorted(rows, key=lambda row: -row["utilisation"])[:BUSIEST]
    return plain(busiest, ["link", "kind", "from", "to", TableColumn("utilisation", percent=True)])


def path_text(rows: Rows) -> str:
    """Return the critical path: the end of a heading, and a table of its (longest) steps in order of time."""
    took = {"takes_s": lambda row: row["finish_s"] - row["released_s"], "name": lambda row: shorten(row["name"])}
    steps = [{**row, **{key: of(row) for key, of in took.items()}} for row in rows]
    longest = sorted(range(len(steps)), key=lambda index: -steps[index]["takes_s"])[:SHOWN_STEPS]
    shown, times = in_one_unit([steps[index] for index in sorted(longest)], {"released_s": "from", "takes_s": "takes"})
    selection = f"the {len(shown)} longest of {count_phrase(len(steps), 'step')}"
    heading = selection if len(shown) < len(steps) else count_phrase(len(steps), "step")
    table = plain(shown, ["name", "rank", "to", *times, TableColumn("held_by", "held by")], width=WIDE)
    return f"{heading}\n{table}"


def assumptions_text(assumed: Rows) -> str:
    """Return the assumptions of a replay; `assumed`: rows of `replay.run.replay_assumed`, one per fabric."""
    together: dict[str, list[str]] = {}
    for name, servers in dict.fromkeys((row["fabric"], row["servers"]) for row in assumed):
        together.setdefault(servers, []).append(name)
    common = [f"Assumed: {sentence}." for sentence in dict.fromkeys(row["common"] for row in assumed)]
    each = [f"{', '.join(names)}: {servers}." for servers, names in together.items()]
    equal = [f"{' and '.join(names)} end at the same time: {why}" for names, why in _alike(assumed)]
    return "\n".join([*common, *each, *equal])


def _alike(assumed: Rows) -> list[tuple[list[str], str]]:
    """Fabrics that end at the same time for a known reason, with the reason."""
    same: dict[Any, list[str]] = {}
    for row in assumed:
        if row["like"] is not None:
            same.setdefault((row["nic_gbps"], float(f"{row['makespan_s']:.9g}"), row["like"]), []).append(row["fabric"])
    reasons = {tuple(names): key[2] for key, names in same.items() if len(names) > 1}
    return [(list(names), why) for names, why in reasons.items()]
