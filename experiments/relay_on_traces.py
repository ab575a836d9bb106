"""How close to the degree bound do routings of a region come on recorded MoE traffic, and what does relaying add?

Circuits by the paper's greedy; demand is the dispatch of one micro-batch. Unsplit and best-path share ports max-min
fairly, split paces its flows. Relay routing divides every pair's bytes by a linear programme or by gradient steps that
make the busiest link's time short, which is when paced flows end; with the same shares, flows that share links max-min
fairly end later. Source: arXiv 2501.03905 (fabric and greedy); traffic: `recording`.
"""

import dataclasses
from collections.abc import Iterator

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report
from mfabric_jax.checks import InputError, positive
from mfabric_jax.policies import greedy
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture, looks
from mfabric_jax.routing import Plan, all_to_all_time, best_relay_shares, relay_shares

from .recording import OnRegion, paced_and_max_min, resolved, titled
from .rows import Row, Rows, adding, measured, of, p90, summed, then
from .script import Found, Script, Verdict, check

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


def run(config: Config) -> Found:
    """A row for each all-to-all, number of servers and routing; what has no bytes between servers is left out.

    - `record`: its place among the records used.
    - `shares`: of relay routing: "best" (linear programme) or "steps".
    - `flows`: "paced" (all end together) or "max-min".
    - `over_bound`: time over the degree bound.
    """
    for servers in config.servers:
        for place, demand, bound in config.all_to_alls(servers):
            for *way, time in _times(config, servers, demand):
                row = place | dict(zip(GROUP[1:], way, strict=True))
                yield row | {"time_s": float(time), "bound_s": bound, "over_bound": float(time) / bound}


def _times(config: Config, servers: int, demand) -> Iterator[tuple]:
    """(routing, efficiency, shares, flows, seconds)."""
    circuits, times = _without_shares(config.region(servers), demand, config.rule)
    for routing in WITHOUT_SHARES:
        yield routing, None, None, "paced" if routing == "split" else "max-min", times[routing]
    for efficiency in config.efficiencies:
        where = config.region(servers, relay_efficiency=efficiency)
        best, steps = (
            best_relay_shares(where, circuits, demand)[0],
            relay_shares(where, circuits, demand, steps=config.steps),
        )
        for name, shares in {"best": best, "steps": steps}.items():
            paced, max_min = paced_and_max_min(where, Plan(circuits, jnp.asarray(shares)), demand, "relay")
            yield "relay", efficiency, name, "paced", paced
            yield "relay", efficiency, name, "max-min", max_min


@eqx.filter_jit
def _without_shares(where, demand, rule: str):
    """Circuits, and the time of every routing that needs no shares [s]."""
    circuits = greedy(demand, where, rule=rule).circuits
    return circuits, {name: all_to_all_time(where, circuits, demand, routing=name) for name in WITHOUT_SHARES}


OVER = {"mean": of("over_bound"), "median": of("over_bound", np.median), "p90": of("over_bound", p90)}
summary = summed(GROUP, **OVER, samples=len)
table = then(summary, report.plain)


def _name(row: Row) -> str:
    relay = f" at efficiency {row['efficiency']:g}: {SHARES[row['shares']]}" if row["shares"] else ""
    return f"{LOOKS[row['routing']].label}{relay}, {row['flows']}"


MEDIAN = {"block": "efficiency", "middle": np.median, "head": "median", "title": "{servers} servers"}
PANEL = Dots(Axis("over_bound", "time over the degree bound"), Axis("name"), "routing", LOOKS, **MEDIAN)
SAME = {"heading": titled, "needs": "all-to-alls with bytes between servers", "key": False}
PICTURE = Picture((PANEL,), "", "servers", shown=adding(name=_name), width=4.4, **SAME)


def verdicts(rows: Rows) -> list[Verdict]:
    """Mean time over the degree bound, paced flows at the first efficiency; nothing is published."""
    paced = [row for row in rows if row["flows"] == "paced" or row["routing"] in WITHOUT_SHARES]
    first = next((row["efficiency"] for row in paced if row["efficiency"] is not None), None)
    kept = [row for row in paced if row["efficiency"] in (None, first) and row["shares"] in (None, "best")]
    claim = "over the degree bound, {routing}, {servers} servers ({traffic})"
    return measured(("servers", "routing"), claim, of("over_bound"), "{:.2f}")(kept)


SCRIPT = Script(Config, quick={"samples": 10}, resolved=resolved, dtype="float64")
SCRIPT.start(__name__)
