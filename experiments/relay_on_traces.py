"""How close to the degree bound do routings of a region come on recorded MoE traffic, and what does relaying add?

Circuits by the paper's greedy; demand is the dispatch of one micro-batch. Unsplit and best-path share ports max-min
fairly, split paces its flows. Relay routing divides every pair's bytes by a linear programme or by gradient steps that
make the busiest link's time short, which is when paced flows end; with the same shares, flows that share links max-min
fairly end later. Source: arXiv 2501.03905 (fabric and greedy); traffic: `recording`.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report
from mfabric_jax.checks import InputError, positive
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import greedy
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture, looks
from mfabric_jax.routing import Plan, all_to_all_time, best_relay_shares, degree_bound, relay_shares
from mfabric_jax.routing.region import relay_bound

from .recording import OnRegion, resolved, titled
from .script import Row, Rows, Script, Verdict, check, measured, of, p90, summed

WITHOUT_SHARES = ("unsplit", "best-path", "split")
GROUP = ("servers", "routing", "efficiency", "shares", "flows")
LOOKS = looks({"unsplit": "Unsplit", "split": "Split", "relay": "Relay", "best-path": "Best path"})
SHARES = {"best": "best shares", "steps": "gradient steps"}


@dataclasses.dataclass(frozen=True)
class Config(OnRegion):
    """What to draw from the recording, and the region."""

    efficiencies: tuple[float, ...] = (1.0, 0.8)  # Relay efficiencies.
    steps: int = 200  # Gradient steps towards the shares.

    def __post_init__(self):
        super().__post_init__()
        check(self, distinct="efficiencies", whole={0: "steps"})
        for efficiency in self.efficiencies:
            if positive("efficiencies", efficiency) > 1:
                raise InputError(f"efficiencies must be at most 1, got {efficiency}.")


def run(config: Config) -> Iterator[Row]:
    """A row for each all-to-all, number of servers and routing; what has no bytes between servers is left out.

    - `record`: its place among the records used.
    - `shares`: of relay routing: "best" (linear programme) or "steps".
    - `flows`: "paced" (all end together) or "max-min".
    - `over_bound`: time over the degree bound.
    """
    for servers in config.servers:
        where = config.region(servers)
        for place, demand in config.all_to_alls(servers):
            yield from (place | row for row in _rows(config, where, demand))


def _rows(config: Config, where: Region, demand) -> list[Row]:
    bound, circuits, times = _without_shares(where, demand, config.rule)
    if not bound > 0:
        return []
    rows = [(name, None, None, "paced" if name == "split" else "max-min", times[name]) for name in WITHOUT_SHARES]
    for efficiency in config.efficiencies:
        rows += _relayed(config, where, circuits, demand, efficiency)
    return [
        {"routing": routing, "efficiency": efficiency, "shares": shares, "flows": flows}
        | {"time_s": float(time), "bound_s": float(bound), "over_bound": float(time / bound)}
        for routing, efficiency, shares, flows, time in rows
    ]


@eqx.filter_jit
def _without_shares(where: Region, demand, rule: str) -> tuple[jax.Array, Circuits, dict[str, jax.Array]]:
    """Degree bound, circuits, and the time of every routing that needs no shares [s]."""
    circuits = greedy(demand, where, rule=rule).circuits
    times = {routing: all_to_all_time(where, circuits, demand, routing=routing) for routing in WITHOUT_SHARES}
    return degree_bound(where, demand), circuits, times


def _relayed(config: Config, where: Region, circuits: Circuits, demand, efficiency: float) -> Iterator[tuple]:
    """(routing, efficiency, shares, flows, seconds) of relay routing."""
    at = jnp.asarray(efficiency, demand.dtype)
    where = eqx.tree_at(lambda region: region.relay_efficiency, where, at)
    found = {
        "best": best_relay_shares(where, circuits, demand)[0],
        "steps": relay_shares(where, circuits, demand, steps=config.steps),
    }
    for name, shares in found.items():
        paced, max_min = _relay_times(where, Plan(circuits, jnp.asarray(shares)), demand)
        yield "relay", efficiency, name, "paced", paced
        yield "relay", efficiency, name, "max-min", max_min


@eqx.filter_jit
def _relay_times(where: Region, plan: Plan, demand) -> tuple[jax.Array, jax.Array]:
    return relay_bound(where, plan, demand), all_to_all_time(where, plan, demand, routing="relay")


def summary(rows: Rows) -> list[Row]:
    """Mean, median and 90th percentile of the time over the degree bound, a line per group."""
    over = {"mean": of("over_bound"), "median": of("over_bound", np.median), "p90": of("over_bound", p90)}
    return summed(rows, GROUP, **over, samples=len)


def table(rows: Rows) -> str:
    """A line per group."""
    return report.plain(summary(rows))


def _named(rows: Rows) -> Iterator[Row]:
    for row in rows:
        label, flows, shares = LOOKS[row["routing"]].label, row["flows"], SHARES.get(row["shares"])
        relay = f" at efficiency {row['efficiency']:g}: {shares}" if shares else ""
        yield dict(row) | {"name": f"{label}{relay}, {flows}"}


MEDIAN: dict[str, Any] = {"block": "efficiency", "middle": np.median, "head": "median", "title": "{servers} servers"}
PANEL = Dots(Axis("over_bound", "time over the degree bound"), Axis("name"), "routing", LOOKS, **MEDIAN)
SAME: dict[str, Any] = {"heading": titled, "needs": "all-to-alls with bytes between servers", "key": False}
PICTURE = Picture((PANEL,), "", "servers", shown=_named, width=4.4, **SAME)


def verdicts(rows: Rows) -> list[Verdict]:
    """Mean time over the degree bound, paced flows at the first efficiency; nothing is published."""
    paced = [row for row in rows if row["flows"] == "paced" or row["routing"] in WITHOUT_SHARES]
    first = next((row["efficiency"] for row in paced if row["efficiency"] is not None), None)
    kept = [row for row in paced if row["efficiency"] in (None, first) and row["shares"] in (None, "best")]
    claim = "over the degree bound, {routing}, {servers} servers ({traffic})"
    return measured(kept, ("servers", "routing"), claim, "{:.2f}", of("over_bound"))


SCRIPT = Script(Config, quick={"samples": 10}, resolved=resolved, dtype="float64")
SCRIPT.start(__name__)
