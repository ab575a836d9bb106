"""`mfabric failures`: the cost of failures."""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.commands import shared

ROUNDING = 1e-9  # of a difference of times, over the time
LOST = {  # lost hours a month: failures x (hours per stop + repair hours x (1 - 1 / (1 + slow-down)))
    "devices": "devices",
    "failures_per_month": "failures",
    "hours_a_stop": "h a stop",
    "stopped_hours_per_month": "h stopped",
    "repair_hours": "h to repair",
    "slower_hours_per_month": "h slower",
    "lost_hours_per_month": "lost h/month",
}
MONTHS = {
    "kinds": "kinds",
    "lost_hours_per_month": "lost h/month",
    "usd_per_million_tokens": "$/M tokens, nothing fails",
    "usd_per_million_tokens_with_failures": "$/M tokens, with failures",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """Show the cost of failures on a fabric: iteration time with a broken part, beside published figures.

    One failure hits one region; circuits are chosen again without the broken part. Kinds of failures: --help failures.
    """


Rows = list[dict[str, Any]]


def _design(row: dict[str, Any]) -> str:
    """Return the network of a row in words; links of a graph have bandwidths of their own."""
    return row.get("network.graph") or f"{row['fabric']}, {row['nic_gbps']:g} Gbps"


def _where(row: dict[str, Any]) -> str:
    """Return the case of a row in words."""
    return f"{row['model']} on {_design(row)}, {row['nic_use']} NICs"


def kinds_words(kinds: Iterable[str]) -> str:
    """Return kinds of failures in words; `electrical-nics` is no misprint of `electrical-nic`."""
    explained = {"electrical-nics": "electrical-nics (all of a server at once)"}
    return ", ".join(explained.get(kind, kind) for kind in kinds)


def month_loss_lines(rows: Rows, hours_a_month: float) -> Iterator[str]:
    """Yield the hours of a month lost to all failures with a rate: by stops of the job, and by running slower."""
    from mfabric_jax.apps.failures.months import months

    for month in months(rows):
        where, lost, waits = _where(month.first), month.lost_h, month.waiting_h
        waiting = f", {waits:.3g} h of them waiting for a repair, because nothing takes over" if waits else ""
        yield (
            f"{where}: {lost:.3g} of a month's {hours_a_month:g} h lost ({lost / hours_a_month:.2%}) to "
            f"{len(month.rows)} kinds of failures: {month.stopped_h:.3g} h because the job stops (half a checkpoint "
            f"interval and the restart{waiting}), {month.slower_h:.3g} h because it runs slower."
        )
        if month.without:
            yield f"{where}: no rate is given for {kinds_words(month.without)}; hours and dollars leave them out."
        if month.usd is not None and month.usd_with is None:
            yield f"{where}: more hours are lost than a month has, so a million tokens have no price with failures."


def month_price_lines(rows: Rows) -> Iterator[str]:
    """Yield dollars per million tokens with failures, and the cheapest case with and without failures."""
    from mfabric_jax.apps.failures.months import months

    priced = [month for month in months(rows) if month.usd_with is not None]
    for month in priced:
        none = f"; spares of {', '.join(month.unpriced_kinds)} have no price" if month.unpriced_kinds else ""
        where = _where(month.first)
        yield (
            f"{where}: ${month.usd_with:.4g} a million tokens with failures, ${month.usd:.4g} without: "
            f"{month.lost_h:.3g} h of a month lost, and ${month.spares_usd:,.0f} a month for spares{none}."
        )
    if len(priced) > 1:
        best, bare = (min(priced, key=lambda month: getattr(month, name)) for name in ("usd_with", "usd"))
        also = "also if nothing fails" if best is bare else f"if nothing fails, {_where(bare.first)}"
        yield f"Cheapest a million tokens with failures: {_where(best.first)}; {also}."


def remedies(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield what replaces a broken GPU, by fabric."""
    named = {"spare-gpu": "its work moves to a GPU of a spare server", "spare-server": "a spare server takes over"}
    named["repair"] = "the job waits for the repair"
    taken: dict[str, list[str]] = {}
    for row in rows:
        if row["failure"] == "gpu" and row.get("remedy") in named:
            taken.setdefault(named[row["remedy"]], []).append(_where(row))
    for how, where in taken.items():
        chosen = "" if how == named["repair"] else "; failures.gpu_remedy chooses"
        yield f"gpu: {how} ({'; '.join(dict.fromkeys(where))}){chosen}."


def slow_switches(rows: list[dict[str, Any]], changes: dict[str, str]) -> Iterator[str]:
    """Yield a warning for each model and fabric, by its worst row, if reconfigurations take most of an iteration.

    `changes`: when circuits change, by fabric.
    """
    from mfabric_jax.report.row_remarks import slow_switch_words

    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        for state, before, time in (("", "healthy_", "healthy_s"), (f" with {row['failure']} broken", "", "failed_s")):
            if row[time] is None:  # the job waits for the repair
                continue
            reconfiguration_s, bubble = (row[f"{before}{name}"] for name in ("reconfig_s", "bubble_s"))
            what, seconds = f"{row['model']}{state}", (reconfiguration_s, row[time], bubble)
            words = slow_switch_words(row["fabric"], what, *seconds, changes=changes[row["fabric"]])
            key = row["model"], row["fabric"]
            if words is not None and reconfiguration_s > worst.get(key, (0.0, ""))[0]:
                worst[key] = reconfiguration_s, words
    yield from (words for _, words in worst.values())


def _without_noise(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row whose bubble is 0 where it is a rounding of its iteration."""
    noise = row["bubble_s"] is not None and abs(row["bubble_s"]) < ROUNDING * row["healthy_s"]
    return row | {"bubble_s": 0.0} if noise else row


def _table(rows: list[dict[str, Any]], names: list[str], numbers: dict[str, str]) -> str:
    """Return a table of the columns that have values."""
    from mfabric_jax import report

    rows = [row | {"fabric": _design(row)} for row in rows]
    there = [key for key in (*names, *numbers) if any(row.get(key) is not None for row in rows)]
    return report.plain(rows, [report.TableColumn(key, numbers.get(key)) for key in there])


def run(cases: Cases, options: Options) -> None:
    shared.check_cases(cases)
    shared.start_jax(shared.dtype_of(cases), options.device)
    from mfabric_jax.apps.failures.iterations import check_before_search, failures_of_cases

    for block in cases.blocks:
        check_before_search(block.case)
    cases = shared.settle(cases, options.device)
    from mfabric_jax import report
    from mfabric_jax.apps.failures import failures
    from mfabric_jax.apps.failures.failure_rows import HOURS_A_MONTH
    from mfabric_jax.apps.failures.months import months
    from mfabric_jax.apps.failures.spare_ports import spare_port_lines
    from mfabric_jax.evaluate.rows.results import record_of_cases
    from mfabric_jax.report.grid import distinguishing_columns

    every = failures_of_cases(cases)
    shared.check_outputs(options.out, figures=options.figures)
    for line in dict.fromkeys(note for plan in every for note in plan.notes):
        print(line, file=sys.stderr)
    rows_of, columns = functools.partial(failures, cases), options.columns("failures")
    total = sum(len(config.present) for config in every)
    rows = shared.collect_rows("failures", options.out, record_of_cases(cases), rows_of, total, columns)
    uses = distinguishing_columns(rows, "nic_gbps", "network.graph")
    parts = {"reconfig_s": "reconf", "ep_comm_s": "EP", "bubble_s": "bubble"}
    of_row = ["failure", "fabric", *uses, *(["model"] if len({row["model"] for row in rows}) > 1 else [])]
    shown = [*of_row, report.TableColumn("healthy_s", "healthy [s]")]
    shown += [report.TableColumn("failed_s", "failed [s]"), report.TableColumn("slow_down", "slow-down", percent=True)]
    if any(row["published"] is not None for row in rows):
        shown.append(report.TableColumn("published", percent=True))
    if any(plan.case.failures.iteration for plan in every):
        shown.append(report.TableColumn("run_slow_down", "of the run", percent=True))
    shown += [report.TableColumn(key, title) for key, title in parts.items()]
    shared.print_jobs(rows)
    print(report.plain([_without_noise(row) | {"fabric": _design(row)} for row in rows], shown))
    spares = {"spare_part_usd": "spare part [$]", "spare_usd": "spare server [$]"}
    print("\n" + _table(rows, [*of_row, "remedy"], spares))
    if every_month := months(rows):
        print("\n" + _table(rows, of_row, LOST))
        print("\n" + _table([month.row for month in every_month], ["model", "fabric", *uses], MONTHS))
    shared.print_lines(month_loss_lines(rows, HOURS_A_MONTH))
    shared.print_lines(month_price_lines(rows))
    shared.print_lines(remedies(rows))
    shared.print_lines(spare_port_lines(cases, rows))
    changes = {plan.case.network.fabric: shared.changes_of(plan.case) for plan in every}
    shared.print_lines(slow_switches(rows, changes))
    for row in rows:
        if row.get("faster_by"):
            print(f"{_where(row)}, {row['failure']}: faster than without the failure, by {row['faster_by']}.")
    shared.print_lines(shared.case_notes(cases))
    if any(row["published"] is not None for row in rows):
        print("published: arXiv 2501.03905, 400 Gbps and 1,024 GPUs; --preset paper is its set-up.")
    print('The page "Assumptions and limits" explains what is modelled.')
    if options.figures is not None:
        from mfabric_jax.report import figures

        shared.tell(figures.failures(rows, pathlib.Path(options.figures) / "failures.png"))
