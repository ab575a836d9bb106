"""`mfabric failures`: what failures cost."""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.commands import shared

LOST = {  # of a month: failures x (hours a stop + repair hours x (1 - 1 / (1 + slow-down)))
    "devices": "devices",
    "failures_per_month": "failures",
    "hours_a_stop": "h a stop",
    "stopped_hours_per_month": "h stopped",
    "repair_hours": "h to repair",
    "slower_hours_per_month": "h slower",
    "lost_hours_per_month": "lost h/month",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """What a failure costs a fabric: iteration time with something broken, beside the published figures.

    One failure hits one region; circuits are chosen again without what failed. What fails: --help failures.
    """


def _where(row: dict[str, Any]) -> str:
    return f"{row['model']} on {row['fabric']}, {row['nic_use']} NICs"


def lost_months(rows: list[dict[str, Any]], hours_a_month: float) -> Iterator[str]:
    """What failures of all kinds with a rate take of a month, together: by stops of the job, and as it runs slower."""
    lost: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row.get("lost_hours_per_month") is not None:
            lost.setdefault(_where(row), []).append(row)
    for where, some in lost.items():
        total, stopped = (
            sum(row[name] for row in some) for name in ("lost_hours_per_month", "stopped_hours_per_month")
        )
        yield (
            f"{where}: {total:.3g} h of a month lost ({total / hours_a_month:.2%}), {len(some)} kinds: {stopped:.3g} h "
            f"as the job stops (half a checkpoint interval and the restart), {total - stopped:.3g} h as it runs slower."
        )


def remedies(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What takes over for a broken GPU, by fabric."""
    named = {"spare-gpu": "its work moves to a GPU of a spare server", "spare-server": "a spare server takes over"}
    taken: dict[str, list[str]] = {}
    for row in rows:
        if row["failure"] == "gpu" and row.get("remedy") in named:
            taken.setdefault(named[row["remedy"]], []).append(_where(row))
    for how, where in taken.items():
        yield f"gpu: {how} ({'; '.join(dict.fromkeys(where))}); failures.gpu_remedy chooses."


def slow_switches(rows: list[dict[str, Any]], changes: dict[str, str]) -> Iterator[str]:
    """Warnings of switches whose reconfigurations take most of an iteration, of the worst row of each model and fabric;
    `changes`: when circuits change, by fabric."""
    from mfabric_jax.report.noticed import slow_switch_words

    worst: dict[tuple[str, str], tuple[float, str]] = {}
    for row in rows:
        for state, before, time in (("", "healthy_", "healthy_s"), (f" with {row['failure']} broken", "", "failed_s")):
            turning, bubble = (row[f"{before}{name}"] for name in ("reconfig_s", "bubble_s"))
            what, seconds = f"{row['model']}{state}", (turning, row[time], bubble)
            words = slow_switch_words(row["fabric"], what, *seconds, changes=changes[row["fabric"]])
            place = row["model"], row["fabric"]
            if words is not None and turning > worst.get(place, (0.0, ""))[0]:
                worst[place] = turning, words
    yield from (words for _, words in worst.values())


def _table(rows: list[dict[str, Any]], names: list[str], numbers: dict[str, str]) -> str:
    """Columns that hold something."""
    from mfabric_jax import report

    there = [key for key in (*names, *numbers) if any(row.get(key) is not None for row in rows)]
    return report.plain(rows, [report.Column(key, numbers.get(key)) for key in there])


def run(cases: Cases, options: Options) -> None:
    shared.check_cases(cases)
    shared.start_jax(shared.dtype_of(cases), options.device)
    from mfabric_jax import report
    from mfabric_jax.failures import failures
    from mfabric_jax.failures.failure_rows import HOURS_A_MONTH
    from mfabric_jax.failures.iterations import plans
    from mfabric_jax.report import figures
    from mfabric_jax.simulation.results import effective

    every = plans(cases)
    shared.check_outputs(options.out, figures=options.figures)
    for said in dict.fromkeys(note for one in every for note in one.notes):
        print(said, file=sys.stderr)
    rows = shared.kept_rows("failures", options.out, effective(cases), functools.partial(failures, cases))
    seconds = {"healthy_s": "healthy [s]", "failed_s": "failed [s]"}
    seconds |= {"reconfig_s": "reconf", "ep_comm_s": "EP", "bubble_s": "bubble"}
    uses = ["nic_use"] if "network.nic_use" in cases.varied else []
    uses += ["network.graph"] if "network.graph" in cases.varied else []
    uses += ["nic_gbps"] if "network.nic_gbps" in cases.varied else []
    shown = ["model", "fabric", *uses, "failure", *(report.Column(key, title) for key, title in seconds.items())]
    shown += [report.Column("slow_down", "slow-down", percent=True)]
    if any(row["published"] is not None for row in rows):
        shown.append(report.Column("published", percent=True))
    if any(one.case.failures.iteration for one in every):
        shown.append(report.Column("run_slow_down", "of the run", percent=True))
    shared.print_jobs(rows)
    print(report.plain(rows, shown))
    spares = {"spare_part_usd": "spare part [$]", "spare_usd": "spare server [$]"}
    print("\n" + _table(rows, ["model", "fabric", *uses, "failure", "remedy"], spares))
    if any(row.get("lost_hours_per_month") is not None for row in rows):
        print("\n" + _table(rows, ["model", "fabric", *uses, "failure"], LOST))
    shared.print_lines(lost_months(rows, HOURS_A_MONTH))
    shared.print_lines(remedies(rows))
    changes = {one.case.network.fabric: shared.changes_of(one.case) for one in every}
    shared.print_lines(slow_switches(rows, changes))
    for row in rows:
        if row.get("faster_by"):
            print(f"{_where(row)}, {row['failure']}: faster than healthy, by {row['faster_by']}.")
    shared.print_lines(shared.case_notes(cases))
    if any(row["published"] is not None for row in rows):
        print("published: arXiv 2501.03905, 400 Gbps and 1,024 GPUs; --preset paper is its set-up.")
    print('The page "Assumptions and limits" says what is modelled.')
    if options.figures is not None:
        shared.tell(figures.failures(rows, pathlib.Path(options.figures) / "failures.png"))
