"""Monthly loss from failures of all kinds: hours, dollars, and the price of a million tokens."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from mfabric_jax.apps.failures.failure_rows import HOURS_A_MONTH, MILLION, REPAIR

Row = dict[str, Any]
SAME_CASE = ("model", "fabric", "network.graph", "nic_gbps", "gpus", "policy", "routing", "nic_use")


class Month(NamedTuple):
    """One month of a cluster with failures, summed over the rows of one case.

    - `rows`: kinds with a failure rate; `without`: kinds of the cluster without one.
    - `spares_usd`: monthly cost of a spare server (if one takes over) and of one spare part per kind, depreciated like
      the cluster. Broken parts are repaired.
    - `usd`: dollars per million tokens without failures. `usd_with`: with failures, that is, the month's dollars plus
      those of the spares, divided by the tokens of the remaining hours. None: unknown, or no hours remain.
    """

    first: Row
    rows: tuple[Row, ...]
    without: tuple[str, ...]
    lost_h: float
    stopped_h: float
    usd: float | None
    spares_usd: float
    usd_with: float | None

    @property
    def slower_h(self) -> float:
        return self.lost_h - self.stopped_h

    @property
    def working_share(self) -> float:
        """Part of a month that failures leave; none remains at 0 or below."""
        return 1 - self.lost_h / HOURS_A_MONTH

    @property
    def spares_to_buy_usd(self) -> float:
        """Cost of the spares whose monthly cost is `spares_usd`."""
        return _usd_of_spares(self.rows)

    @property
    def waiting_h(self) -> float:
        """Stopped hours in which the job waits for repairs."""
        waits = (row for row in self.rows if row.get("remedy") == REPAIR)
        return sum(row["failures_per_month"] * row["repair_hours"] for row in waits)

    @property
    def unpriced_kinds(self) -> tuple[str, ...]:
        """Kinds whose spare has no known price."""
        bare = (row for row in self.rows if row["spare_part_usd"] is None and row["spare_usd"] is None)
        return tuple(row["failure"] for row in bare if row["failure"] != "server")

    @property
    def row(self) -> Row:
        """The month as a row of a table."""
        named = {name: self.first.get(name) for name in SAME_CASE}
        numbers = {"lost_hours_per_month": self.lost_h, "kinds": len(self.rows), "usd_per_million_tokens": self.usd}
        return named | numbers | {"usd_per_million_tokens_with_failures": self.usd_with}


def months(rows: Iterable[Row]) -> list[Month]:
    """Return the month of every case with failure rates. The `rows` of a case must be consecutive."""
    groups: list[list[Row]] = []
    for row in rows:
        new = not groups or any(groups[-1][0].get(name) != row.get(name) for name in SAME_CASE)
        if new or row["failure"] in (each["failure"] for each in groups[-1]):
            groups.append([])
        groups[-1].append(row)
    return [_month(some) for some in groups if any(row.get("lost_hours_per_month") is not None for row in some)]


def _usd_of_spares(rows: Sequence[Row], per: str = "") -> float:
    """Return what a spare server, if one takes over, and of a spare part of each kind cost. `per`: end of columns."""
    server = max((row.get(f"spare_usd{per}") or 0.0 for row in rows), default=0.0)
    return server + sum(row.get(f"spare_part_usd{per}") or 0.0 for row in rows)


def _month(every: Sequence[Row]) -> Month:
    rows = tuple(row for row in every if row.get("lost_hours_per_month") is not None)
    lost, stopped = (sum(row[name] for row in rows) for name in ("lost_hours_per_month", "stopped_hours_per_month"))
    first = every[0]
    spares = _usd_of_spares(rows, "_per_month")
    usd = first.get("usd_per_million_tokens")
    without = tuple(row["failure"] for row in every if row.get("lost_hours_per_month") is None)
    month = Month(first, rows, without, lost, stopped, usd, spares, None)
    if usd is None or month.working_share <= 0:
        return month
    tokens = first["tokens_per_iteration"] / first["healthy_s"] * 3600 * HOURS_A_MONTH / MILLION
    return month._replace(usd_with=(usd + spares / tokens) / month.working_share)
