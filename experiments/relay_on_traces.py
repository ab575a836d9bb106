"""How close to the degree bound do routings of a region come on recorded MoE traffic, and what does relaying add?

Circuits by the paper's greedy; demand is the dispatch of one micro-batch. Unsplit and best-path share ports max-min
fairly, split paces its flows. Relay routing divides every pair's bytes by a linear programme or by gradient steps that
make the busiest link's time short, which is when paced flows end; with the same shares, flows that share links max-min
fairly end later. Source: arXiv 2501.03905 (fabric and greedy); recording: the gate trace of SmartMoE, USENIX ATC'23
(github.com/thu-pacman/SmartMoE-AE repacked), 16 ranks with two experts each: two ranks a server make 8 servers. Without
a recording traffic is generated (`recording`).

    python -m experiments.relay_on_traces --trace FOLDER --out results
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError, distinct, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import RULES, greedy
from mfabric_jax.report import style
from mfabric_jax.routing import (
    Plan,
    all_to_all_time,
    best_relay_shares,
    degree_bound,
    relay_bound,
    relay_shares,
)

from .recording import MODEL, Source, resolved, said, titled
from .script import Rows, Script, Verdict, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "relay_on_traces"
WITHOUT_SHARES = ("unsplit", "best-path", "split")
GROUP = ("servers", "routing", "efficiency", "shares", "flows")
LOOKS = {
    "unsplit": style.Look("Unsplit", "#D55E00"),
    "best-path": style.Look("Best path", "#E69F00"),
    "split": style.Look("Split", "#0072B2"),
    "relay": style.Look("Relay", "#009E73"),
}
SHARES = {"best": "best shares", "steps": "gradient steps"}


@dataclasses.dataclass(frozen=True)
class Config(Source):
    """What to draw from the recording, and the region."""

    samples: int = 60
    """All-to-alls drawn: a record, a layer, a micro-batch each."""
    servers: tuple[int, ...] = (8, 16)
    """Over how many servers the ranks are spread."""
    efficiencies: tuple[float, ...] = (1.0, 0.8)
    """Relay efficiencies."""
    rule: str = "printed"
    """greedy's rule: printed, released, next."""
    steps: int = 200
    """Gradient steps towards the shares."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    seed: int = 0
    """Of the draw, and of generated traffic."""

    def __post_init__(self):
        super().__post_init__()
        ranks = workload.get(MODEL).ep
        for field in ("servers", "efficiencies"):
            distinct(field, getattr(self, field))
        for servers in self.servers:
            if ranks % whole("servers", servers, at_least=2):
                raise InputError(f"servers must divide the {ranks} ranks of the recording, got {servers}.")
        for efficiency in self.efficiencies:
            if positive("efficiencies", efficiency) > 1:
                raise InputError(f"efficiencies must be at most 1, got {efficiency}.")
        one_of("rule", self.rule, RULES)
        whole("samples", self.samples)
        positive("nic_gbps", self.nic_gbps)
        for field in ("steps", "electrical_nics", "optical_degree", "seed"):
            whole(field, getattr(self, field), at_least=0)

    def region(self, servers: int) -> Region:
        """So many servers; efficiency 1."""
        numbers = (self.nic_gbps, self.electrical_nics, 1.0)
        gbps, electrical, efficiency = (jnp.asarray(number, jnp.result_type(float)) for number in numbers)
        return Region(servers, gbps, self.optical_degree, electrical, relay_efficiency=efficiency)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each all-to-all, number of servers and routing; what has no bytes between servers is left out.

    - `record`: its place among the records used.
    - `shares`: of relay routing: "best" (linear programme) or "steps".
    - `flows`: "paced" (all end together) or "max-min".
    - `over_bound`: time over the degree bound.
    """
    job, count = workload.get(MODEL), config.tokens(config.seed).count
    places = drawn(config, count.shape[:3])
    rows = []
    for servers in config.servers:
        where = config.region(servers)
        for record, layer, micro_batch in places:
            tokens = count[record, layer, micro_batch]
            demand = traffic.server_bytes(
                traffic.rank_bytes(tokens, job.dispatch_bytes_per_selection), len(tokens) // servers
            )
            place = {"traffic": config.traffic, "servers": servers, "record": int(record), "layer": int(layer)}
            place["micro_batch"] = int(micro_batch)
            rows += [place | row for row in _rows(config, where, demand)]
    return rows


def drawn(config: Config, shape: tuple[int, ...]) -> np.ndarray:
    """The all-to-alls [samples 3] (record, layer, micro-batch), none twice, in order."""
    total = int(np.prod(shape))
    chosen = np.random.default_rng(config.seed).choice(total, min(config.samples, total), replace=False)
    return np.stack(np.unravel_index(np.sort(chosen), shape), axis=1)


def _rows(config: Config, where: Region, demand) -> list[dict[str, Any]]:
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


def groups(rows: Rows) -> dict[tuple, list[float]]:
    """Times over the degree bound by (servers, routing, efficiency, shares, flows), in the order of the rows."""
    found: dict[tuple, list[float]] = {}
    for row in rows:
        found.setdefault(tuple(row[field] for field in GROUP), []).append(row["over_bound"])
    return found


def summary(rows: Rows) -> list[dict[str, Any]]:
    """Mean, median and 90th percentile of the time over the degree bound, a line per group."""
    return [
        dict(zip(GROUP, group, strict=True))
        | {"mean": np.mean(over), "median": np.median(over), "p90": np.quantile(over, 0.9), "samples": len(over)}
        for group, over in groups(rows).items()
    ]


def table(rows: Rows) -> str:
    """A line per group."""
    return report.plain(summary(rows))


def draw(rows: Rows, path: str | Path) -> Path:
    """Every time over the degree bound, a panel per number of servers; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a line of dots per group, a box from quartile to quartile (hollow: max-min) and the median."""
    if not rows:
        raise InputError("the figure needs all-to-alls with bytes between servers, but there are none.")
    found = groups(rows)
    sizes = list(dict.fromkeys(group[0] for group in found))
    lines = max(sum(group[0] == servers for group in found) for servers in sizes)
    figure = style.blank(4.2 + 4.4 * len(sizes), 1.6 + 0.33 * lines)
    axes = figure.subplots(1, len(sizes), sharey=True, sharex=True, squeeze=False)[0]
    for panel, servers in zip(axes, sizes, strict=True):
        _panel(panel, {group[1:]: over for group, over in found.items() if group[0] == servers})
        panel.set_title(f"{servers} servers", loc="left")
    latest = max(row["over_bound"] for row in rows)
    axes[0].set_xlim(1 - 0.03 * (latest - 1), latest + 0.05 * (latest - 1))
    figure.suptitle(titled(rows), fontsize=style.FONT)
    return figure


def _panel(axes: Axes, found: Mapping[tuple, Sequence[float]]) -> None:
    rng, efficiency, beside = np.random.default_rng(0), None, {"xycoords": ("axes fraction", "data"), "va": "center"}
    for place, ((routing, at, _, flows), over) in enumerate(found.items()):
        if at != efficiency:
            axes.axhline(place - 0.5, color=style.FAINT, linewidth=0.6)
            efficiency = at
        colour = LOOKS[routing].colour
        low, middle, high = np.quantile(over, [0.25, 0.5, 0.75])
        box = {"facecolor": "none" if flows == "max-min" else colour, "edgecolor": colour, "linewidth": 1.2}
        axes.barh(place, high - low, left=low, height=0.56, alpha=0.5, **box)
        axes.plot(over, place + rng.uniform(-0.22, 0.22, len(over)), ".", color=colour, markersize=3.5, alpha=0.7)
        axes.plot([middle, middle], [place - 0.34, place + 0.34], color=style.INK, linewidth=1.8)
        axes.annotate(f"{middle:.2f}", (1.02, place), **beside)
    axes.annotate("median", (1.02, -0.9), color=style.FAINT, annotation_clip=False, **beside)
    axes.set_yticks(range(len(found)), [_named(*group) for group in found])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("time over the degree bound")
    axes.grid(axis="x")


def _named(routing: str, efficiency: float | None, shares: str | None, flows: str) -> str:
    label = LOOKS[routing].label
    return f"{label}, {flows}" if shares is None else f"{label} at efficiency {efficiency:g}: {SHARES[shares]}, {flows}"


def verdicts(rows: Rows) -> list[Verdict]:
    """Mean time over the degree bound, paced flows at the first efficiency; nothing is published."""
    paced = [row for row in rows if row["flows"] == "paced" or row["routing"] in WITHOUT_SHARES]
    first = next((row["efficiency"] for row in paced if row["efficiency"] is not None), None)
    kept = [row for row in paced if row["efficiency"] in (None, first) and row["shares"] in (None, "best")]
    return [
        Verdict(
            f"over the degree bound, {routing}, {servers} servers ({said(here)})",
            f"{np.mean([row['over_bound'] for row in here]):.2f}",
        )
        for (servers, routing), here in grouped(kept, "servers", "routing").items()
    ]


SCRIPT = Script(
    name=NAME,
    question="Route recorded all-to-alls over the circuits of a region: a row per all-to-all, servers and routing.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"samples": 10},
    resolved=resolved,
    dtype="float64",
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
