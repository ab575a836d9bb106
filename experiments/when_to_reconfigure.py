"""When does it pay to reconfigure on recorded MoE traffic? Rules over time against the offline optimum, by delay.

Every trace is what one region carries: the dispatches of its MoE blocks in turn, micro-batch after micro-batch, record
after record. Nothing of the delay is hidden unless asked for. The optimum knows all demands and chooses, at every step,
among the circuits for any of the trace's demands, those for their sum and the even ones of the start. Rules know the
demand of a step when they choose for it, as the gate tells it, but for "predicted", which has seen that of the same
block before. Recording: the gate trace of SmartMoE, USENIX ATC'23 (github.com/thu-pacman/SmartMoE-AE repacked), 16
ranks with two experts each: two ranks a server make 8 servers. It was taken at every tenth iteration: neighbouring
steps of one block are four micro-batches of one iteration, then those of ten iterations later. Without a recording
traffic is generated (`recording`).

    python -m experiments.when_to_reconfigure --trace FOLDER --out results
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from mfabric_jax import policies, report, traffic, workload
from mfabric_jax.checks import InputError, distinct, names, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.report import style
from mfabric_jax.routing import degree_bound
from mfabric_jax.schedule import best_trajectory, follow, last

from .recording import MODEL, Source, resolved, said, titled
from .script import Rows, Script, Verdict, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "when_to_reconfigure"
ROUTINGS = ("unsplit", "best-path", "split")
RULES: dict[str, style.Look] = {
    "always": style.Look("Always", "#D55E00", "o"),
    "every": style.Look("Every n-th", "#E69F00", "v"),
    "never": style.Look("Never (even circuits)", "#4D4D4D", "X"),
    "threshold": style.Look("Threshold", "#0072B2", "s"),
    "rent-or-buy": style.Look("Rent or buy", "#009E73", "D"),
    "predicted": style.Look("Rent or buy, predicted", "#CC79A7", "^"),
}
FLOOR = 1e-4  # where the figure draws the optimum itself


@dataclasses.dataclass(frozen=True)
class Config(Source):
    """What to draw, the region, and what to sweep."""

    delays_s: tuple[float, ...] = (1e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2.5e-2, 0.1, 1.0)
    """Reconfiguration delays."""
    rules: tuple[str, ...] = tuple(RULES)
    """Rules over time."""
    routings: tuple[str, ...] = ("unsplit", "split")
    """How bytes are divided between circuits and packet switches."""
    blocks: tuple[int, ...] = (1, 6)
    """MoE blocks that the region serves in turn."""
    samples: int = 4
    """Traces drawn for each number of blocks."""
    steps: int = 240
    """All-to-alls of a trace."""
    every: int = 24
    """n of "every"."""
    policy: str = "threshold"
    """Which circuits a change brings, by name; one that does not look at those in place."""
    servers: int = 8
    """Over how many servers the ranks are spread."""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    optical_degree: int = 6
    """NICs of a server on the optical switch."""
    electrical_nics: int = 2
    """NICs of a server on the electrical fabric."""
    hidden_s: float = 0.0
    """What computation before a step hides of the delay."""
    seed: int = 0
    """Of the draw, and of generated traffic."""

    def __post_init__(self):
        super().__post_init__()
        names("rules", self.rules, RULES)
        names("routings", self.routings, ROUTINGS)
        one_of("policy", self.policy, policies.REGISTRY)
        for field in ("delays_s", "blocks"):
            distinct(field, getattr(self, field))
        positive("delays_s", self.delays_s)
        for blocks in self.blocks:
            whole("blocks", blocks)
        ranks = workload.get(MODEL).ep
        if ranks % whole("servers", self.servers, at_least=2):
            raise InputError(f"servers must divide the {ranks} ranks of the recording, got {self.servers}.")
        for field in ("samples", "steps", "every", "electrical_nics"):
            whole(field, getattr(self, field))
        for field in ("optical_degree", "seed"):
            whole(field, getattr(self, field), at_least=0)
        positive("nic_gbps", self.nic_gbps)
        not_negative("hidden_s", self.hidden_s)

    def region(self, delay_s: Any) -> Region:
        """With a switch of that delay, which may be traced."""
        return Region(self.servers, self.nic_gbps, self.optical_degree, self.electrical_nics, delay_s)

    def chosen(self, routing: str) -> Policy:
        """The policy, for a routing if it asks for one."""
        return policies.suited(self.policy, routing=routing)


def run(config: Config) -> list[dict[str, Any]]:
    """A row for each number of blocks, routing, trace, rule and delay.

    - `time_s`: of all steps, delays included; `best_s` of the optimum, `bound_s` of the degree bounds.
    - `over_best`, `over_bound`: `time_s` over these.   - `changes`, `best_changes`: part of the steps that changed.
    """
    job, rows = workload.get(MODEL), []
    count = config.tokens(config.seed).count
    cells = [(blocks, routing) for blocks in config.blocks for routing in config.routings]
    for blocks, routing in tqdm(cells, desc=NAME, unit="case", file=sys.stderr, disable=None):
        tokens = traces(config, np.asarray(count), blocks)
        demands = _demands(tokens, job.dispatch_bytes_per_selection, tokens.shape[2] // config.servers)
        for sample, demand in enumerate(demands):
            here = {"traffic": config.traffic, "blocks": blocks, "routing": routing, "sample": sample}
            rows += [here | row for row in _rows(config, blocks, routing, demand)]
    return rows


def traces(config: Config, count: np.ndarray, blocks: int) -> np.ndarray:
    """Tokens [samples steps R E] of traces that begin at a drawn record and, `blocks` at a time, a drawn layer."""
    records, layers, micro_batches = count.shape[:3]
    needed = -(-config.steps // (blocks * micro_batches))
    if blocks > layers:
        raise InputError(f"blocks must be at most the {layers} layers of the recording, got {blocks}.")
    if needed > records:
        most = records * blocks * micro_batches
        raise InputError(f"steps must be at most {most} for {blocks} blocks in {records} records, got {config.steps}.")
    rng, found = np.random.default_rng(config.seed), []
    for _ in range(config.samples):
        first, layer = rng.integers(records - needed + 1), blocks * rng.integers(layers // blocks)
        part = count[first : first + needed, layer : layer + blocks].swapaxes(1, 2)
        found.append(part.reshape(-1, *count.shape[3:])[: config.steps])
    return np.stack(found)


@functools.partial(jax.jit, static_argnums=2)
def _demands(tokens, bytes_per_selection, ranks_per_server: int) -> jax.Array:
    def one(tokens):
        return traffic.server_bytes(traffic.rank_bytes(tokens, bytes_per_selection), ranks_per_server)

    return jax.vmap(jax.vmap(one))(jnp.asarray(tokens))


def _rows(config: Config, blocks: int, routing: str, demand: jax.Array) -> list[dict[str, Any]]:
    """Of one trace."""
    delays, choose = jnp.asarray(config.delays_s, demand.dtype), config.chosen(routing)
    settings = {"routing": routing, "hidden_s": config.hidden_s}
    bound = float(jax.vmap(lambda one: degree_bound(config.region(0.0), one))(demand).sum())
    circuits = jax.vmap(lambda one: choose(one, config.region(0.0)).circuits.count)(
        jnp.concatenate([demand, demand.sum(0)[None]])
    )

    def over(course):
        found = jax.vmap(lambda delay_s: course(config.region(delay_s)))(delays)
        return np.asarray(found.exchange_s + found.paid_s).sum(1), np.asarray(found.changed).mean(1)

    best, best_changes = over(lambda region: best_trajectory(demand, region, circuits, **settings))
    rows = []
    for rule in config.rules:
        time, changes = over(functools.partial(_course, config, rule, blocks, demand, (choose, uniform), settings))
        for at, delay_s in enumerate(config.delays_s):
            row = {"rule": rule, "delay_s": delay_s, "time_s": time[at], "best_s": best[at], "bound_s": bound}
            row |= {"over_best": time[at] / best[at], "over_bound": time[at] / bound}
            row |= {"changes": changes[at], "best_changes": best_changes[at]}
            rows.append({name: value if isinstance(value, str) else float(value) for name, value in row.items()})
    return rows


def _course(config: Config, rule: str, blocks: int, demand, options: tuple[Policy, ...], settings, region: Region):
    if rule == "predicted":
        return follow(demand, region, options, rule="rent-or-buy", forecast=last(demand, blocks), **settings)
    return follow(demand, region, options, rule=rule, every=config.every, **settings)


def summary(rows: Rows) -> dict[tuple[int, str], dict[str, dict[float, tuple[float, float]]]]:
    """By (blocks, routing), rule and delay: means over the traces of (time over the optimum, part that changed)."""
    found: dict[tuple[int, str], dict[str, dict[float, list[Mapping[str, Any]]]]] = {}
    for row in rows:
        group = found.setdefault((row["blocks"], row["routing"]), {}).setdefault(row["rule"], {})
        group.setdefault(row["delay_s"], []).append(row)
    return {
        panel: {
            rule: {
                delay: (float(np.mean([r["over_best"] for r in same])), float(np.mean([r["changes"] for r in same])))
                for delay, same in line.items()
            }
            for rule, line in lines.items()
        }
        for panel, lines in found.items()
    }


def table(rows: Rows) -> str:
    """Time over the optimum: a line per blocks, routing and delay, a column per rule."""
    lines = []
    for (blocks, routing), found in summary(rows).items():
        for delay_s in dict.fromkeys(row["delay_s"] for row in rows):
            line = {"blocks": blocks, "routing": routing, "delay": _said(delay_s)}
            lines.append(line | {rule: f"{line_of[delay_s][0]:.3f}" for rule, line_of in found.items()})
    return f"time over that of the offline optimum\n\n{report.plain(lines)}"


def _said(delay_s: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if delay_s >= 0.9999 * size:
            return f"{delay_s / size:g} {unit}"
    return f"{delay_s * 1e6:g} us"


def draw(rows: Rows, path: str | Path) -> Path:
    """What every rule takes longer than the optimum, against the delay; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a panel per routing (down) and number of blocks (across)."""
    found = summary(rows)
    blocks, routings = (list(dict.fromkeys(panel[at] for panel in found)) for at in (0, 1))
    figure = style.blank(1.4 + 4.2 * len(blocks), 1.4 + 2.9 * len(routings))
    grid = figure.subplots(len(routings), len(blocks), sharex=True, sharey=True, squeeze=False)
    for (many, routing), lines in found.items():
        axes = grid[routings.index(routing)][blocks.index(many)]
        _panel(axes, lines)
        axes.set_title(f"{routing}, {many} block{'s' if many > 1 else ''} in turn", loc="left")
    for axes in grid[:, 0]:
        axes.set_ylabel("longer than the optimum")
    for axes in grid[-1]:
        axes.set_xlabel("reconfiguration delay")
    handles, _ = grid[0][0].get_legend_handles_labels()
    figure.legend(handles=handles, loc="outside lower center", ncols=3)
    figure.suptitle(titled(rows), fontsize=style.FONT)
    return figure


def _panel(axes: Axes, lines: Mapping[str, Mapping[float, tuple[float, float]]]) -> None:
    for rule, line in lines.items():
        look = RULES[rule]
        excess = [max(over - 1, FLOOR) for over, _ in line.values()]
        axes.plot(list(line), excess, color=look.colour, marker=look.marker, markersize=4.5, label=look.label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(FLOOR / 1.5, None)
    ticks = [FLOOR, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0]
    axes.set_yticks(ticks, [f"≤ {100 * FLOOR:g} %", *(f"{100 * tick:g} %" for tick in ticks[1:])])
    axes.set_xticks([1e-6, 1e-4, 1e-2, 1.0], ["1 us", "100 us", "10 ms", "1 s"])
    axes.minorticks_off()
    axes.grid()


def verdicts(rows: Rows) -> list[Verdict]:
    """Every rule over the optimum: mean over the traces, from the best to the worst delay; nothing is published."""
    found: dict[tuple[str, str], list[float]] = {}
    for (_, routing), lines in summary(rows).items():
        for rule, line in lines.items():
            found.setdefault((routing, rule), []).extend(over for over, _ in line.values())
    return [
        spread(f"over the offline optimum, {rule}, {routing} ({said(rows)})", over)
        for (routing, rule), over in found.items()
    ]


SCRIPT = Script(
    name=NAME,
    question="Walk recorded traces under every rule: a row per blocks, routing, trace, rule and delay.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={
        "delays_s": (1e-6, 1e-4, 1e-3, 1e-2, 2.5e-2, 0.1, 1.0),
        "routings": ("unsplit",),
        "blocks": (1,),
        "samples": 2,
    },
    resolved=resolved,
    dtype="float64",
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
