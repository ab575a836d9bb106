"""What failures cost in a month: how many there are, and the hours of work that they take.

A failure that stops the job loses half of a checkpoint interval on average, and the restart; until the repair the job
runs slower. Failures are rare: they do not meet.
"""

from typing import Any, NamedTuple

from mfabric_jax.checks import InputError, not_negative, number, one_of, positive
from mfabric_jax.fabric.failures import KINDS
from mfabric_jax.text_files import read_mapping

HOURS_A_MONTH = 730.0
MILLION = 1_000_000
FIELDS = ("per_million_hours", "mtbf_hours", "repair_hours", "stops")


class Rate(NamedTuple):
    """- `per_hour`: failures of one device.   - `repair_hours`: until it works again.   - `stops`: the job restarts."""

    per_hour: float
    repair_hours: float
    stops: bool


def read_rates(path: str) -> dict[str, Rate]:
    """{kind: rate} of a file with a table for each kind.

    Keys: `per_million_hours` (failures of a device in a million hours) or `mtbf_hours`; `repair_hours` (24);
    `stops` (true; controller: false). `InputError` for anything else.
    """
    found = {}
    for kind, given in read_mapping(path, "rates of failures").items():
        one_of(f"failure in {path!r}:", kind, KINDS)
        if not isinstance(given, dict):
            raise InputError(f"{kind} in {path!r} must be a table such as {{ mtbf_hours = 50000 }}, got {given!r}.")
        for name in given:
            one_of(f"{kind} in {path!r}: key", name, FIELDS)
        if ("per_million_hours" in given) == ("mtbf_hours" in given):
            raise InputError(f"{kind} in {path!r} needs per_million_hours or mtbf_hours, one of them.")
        for name in ("per_million_hours", "mtbf_hours", "repair_hours"):
            number(f"{kind}.{name}", given.get(name, 0))
        if "mtbf_hours" in given:
            per_hour = 1 / positive(f"{kind}.mtbf_hours", given["mtbf_hours"])
        else:
            per_hour = not_negative(f"{kind}.per_million_hours", given["per_million_hours"]) / MILLION
        stops = given.get("stops", kind != "controller")
        if not isinstance(stops, bool):
            raise InputError(f"{kind}.stops must be true or false, got {stops!r}.")
        repair = not_negative(f"{kind}.repair_hours", given.get("repair_hours", 24.0))
        found[kind] = Rate(per_hour, float(repair), stops)
    return found


def expected_loss(
    rate: Rate | None,
    count: int | None,
    slow_down: float,
    iteration_s: float,
    checkpoint_interval_s: float,
    restart_s: float,
) -> dict[str, Any]:
    """`failures_per_month` of `count` devices, and hours and iterations of work that they take; None without a rate.

    - `slow_down`: part by which an iteration is longer until the repair.
    """
    if rate is None or count is None:
        return dict.fromkeys(("failures_per_month", "lost_hours_per_month", "lost_iterations_per_month"))
    failures = count * rate.per_hour * HOURS_A_MONTH
    slower = rate.repair_hours * (1 - 1 / (1 + slow_down))
    stopped = (checkpoint_interval_s / 2 + restart_s) / 3600 if rate.stops else 0.0
    lost = failures * (slower + stopped)
    return {
        "failures_per_month": failures,
        "lost_hours_per_month": lost,
        "lost_iterations_per_month": lost * 3600 / iteration_s,
    }
