"""`mfabric failures`: what failures cost."""

import dataclasses
import functools
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.commands import shared


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """What a failure costs a fabric: iteration time with something broken, beside the published figures.

    One failure hits one region; circuits are chosen again without what failed. What fails: --help failures.
    """


def _where(row: dict[str, Any]) -> str:
    return f"{row['model']} on {row['fabric']}, {row['nic_use']} NICs"


def lost_months(rows: list[dict[str, Any]], hours_a_month: float) -> Iterator[str]:
    """What failures of all kinds with a rate take of a month, together."""
    lost: dict[str, list[float]] = {}
    for row in rows:
        if row.get("lost_hours_per_month") is not None:
            lost.setdefault(_where(row), []).append(row["lost_hours_per_month"])
    for where, hours in lost.items():
        total = sum(hours)
        yield f"{where}: {total:.3g} h of a month lost ({total / hours_a_month:.2%}), {len(hours)} kinds."


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
    spares |= {"lost_hours_per_month": "lost h/month", "lost_iterations_per_month": "lost iterations"}
    some = [report.Column(key, title) for key, title in spares.items() if any(row.get(key) is not None for row in rows)]
    print("\n" + report.plain(rows, ["model", "fabric", *uses, "failure", *some]))
    shared.print_lines(lost_months(rows, HOURS_A_MONTH))
    for row in rows:
        if row.get("faster_by"):
            print(f"{_where(row)}, {row['failure']}: faster than healthy, by {row['faster_by']}.")
    shared.print_lines(shared.case_notes(cases))
    print(
        "published: arXiv 2501.03905, 400 Gbps and 1,024 GPUs; --preset paper is its set-up; "
        "docs/assumptions.md says what is modelled."
    )
    if options.figures is not None:
        shared.tell(figures.failures(rows, pathlib.Path(options.figures) / "failures.png"))
