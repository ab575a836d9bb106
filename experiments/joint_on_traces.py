"""How near the degree bound do circuits and relay routing chosen together come on recorded MoE traffic?

The paper's greedy with unsplit routing and greedy circuits with relay routing stand beside `policies.joint`. Times are
of paced flows (the busiest link); with the same shares, flows that share links max-min fairly end later. All-to-alls
and region are those of `relay_on_traces`, whose traffic is generated where no recording is given.

Below efficiency 1 the degree bound is out of reach: a server has circuits to so many others at most, and what comes
from further ones is relayed and counts more on its way in. `relay_limit` knows this. On the recorded traffic every
server sends a hot one about as much, so that with 6 + 2 NICs, 16 servers and efficiency 0.8 it is 1.081 times the
degree bound.

Mean time over the degree bound of 60 all-to-alls (records 2011 to 5001, 6 + 2 NICs), unsplit, relay and joint: 8
servers 1.24, 1.11 and 1.000; 16 servers 2.40, 1.67 and 1.000; at efficiency 0.8 joint is at 1.000 and 1.082.

    python -m experiments.joint_on_traces --trace FOLDER --out results
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report, traffic, workload
from mfabric_jax.checks import InputError, whole
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy
from mfabric_jax.policies._joint import joint
from mfabric_jax.policies.joint_relaxation import relay_limit
from mfabric_jax.report import style
from mfabric_jax.routing import Plan, all_to_all_time, degree_bound, fluid_lower_bound, relay_shares

from . import relay_on_traces
from .recording import MODEL, resolved, said, titled
from .relay_on_traces import drawn
from .script import Rows, Script, Verdict, grouped

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = "joint_on_traces"
GROUP = ("servers", "efficiency", "policy")
LOOKS = {
    "unsplit": style.Look("Paper's greedy, unsplit", "#D55E00"),
    "relay": style.Look("Paper's greedy, relay", "#E69F00"),
    "relay-next": style.Look("Greedy “next”, relay", "#0072B2"),
    "joint": style.Look("Joint", "#009E73"),
}


@dataclasses.dataclass(frozen=True)
class Config(relay_on_traces.Config):
    """What to draw, the region, and how long to search."""

    joint_steps: int = 300
    """Gradient steps of the relaxation."""
    joint_samples: int = 2
    """Starts of the relaxation."""
    joint_rounds: int = 12
    """Rounds of swaps at most."""

    def __post_init__(self):
        super().__post_init__()
        whole("joint_steps", self.joint_steps, at_least=0)
        whole("joint_samples", self.joint_samples)
        whole("joint_rounds", self.joint_rounds, at_least=0)


def run(config: Config) -> Iterator[dict[str, Any]]:
    """A row for each all-to-all, servers, efficiency and policy; what has no bytes between servers is left out.

    - `policy`: "unsplit" and "relay" (greedy circuits by `rule`), "relay-next" (by the rule "next") or "joint".
    - `time_s`, `max_min_s`: paced, and with max-min fair flows; `bound_s`, `limit_s`: degree bound, `relay_limit`.
    - `over_bound`: paced time over the degree bound.
    - `decision_s`: to choose circuits and shares, compiled, one at a time.
    """
    job, count = workload.get(MODEL), config.tokens(config.seed).count
    places = drawn(config, count.shape[:3])
    for servers in config.servers:
        for efficiency in config.efficiencies:
            at = jnp.asarray(efficiency, jnp.result_type(float))
            where = eqx.tree_at(lambda region: region.relay_efficiency, config.region(servers), at)
            where = jax.tree.map(jnp.asarray, where)
            for policy in LOOKS:  # compile, so that decisions are timed alone
                _planned(policy, where, jnp.ones((servers,) * 2, jnp.float32), _asked(config))
            for record, layer, micro_batch in places:
                tokens = count[record, layer, micro_batch]
                selected = traffic.rank_bytes(jnp.asarray(tokens), job.dispatch_bytes_per_selection)
                demand = traffic.server_bytes(selected, len(tokens) // servers)
                place = {"traffic": config.traffic, "servers": servers, "efficiency": efficiency}
                place |= {"record": int(record), "layer": int(layer), "micro_batch": int(micro_batch)}
                yield from (place | row for row in _rows(config, where, demand))


def _asked(config: Config) -> dict[str, Any]:
    """What decides a plan, besides the demand and the region."""
    return {
        field: getattr(config, field) for field in ("rule", "steps", "joint_steps", "joint_samples", "joint_rounds")
    }


@eqx.filter_jit
def _planned(policy: str, where: Region, demand, asked: Mapping[str, Any]) -> Plan:
    if policy == "joint":
        steps, samples, rounds = asked["joint_steps"], asked["joint_samples"], asked["joint_rounds"]
        return joint(demand, where, steps=steps, samples=samples, rounds=rounds)
    plan = greedy(demand, where, rule="next" if policy == "relay-next" else asked["rule"])
    if policy == "unsplit":
        return plan
    return Plan(plan.circuits, relay_shares(where, plan.circuits, demand, steps=asked["steps"]))


def _rows(config: Config, where: Region, demand) -> Iterator[dict[str, Any]]:
    bound = float(degree_bound(where, demand))
    if not bound > 0:
        return
    limit = float(relay_limit(where, demand))
    known = jnp.asarray(demand, jnp.float32)  # what a controller would compute in
    for name in LOOKS:
        start = time.perf_counter()
        plan = jax.block_until_ready(_planned(name, where, known, _asked(config)))
        decision = time.perf_counter() - start
        paced, max_min = _times(where, plan, demand, "unsplit" if name == "unsplit" else "relay")
        yield {
            "policy": name,
            "time_s": float(paced),
            "max_min_s": float(max_min),
            "bound_s": bound,
            "limit_s": limit,
            "over_bound": float(paced) / bound,
            "decision_s": decision,
        }


@eqx.filter_jit
def _times(where: Region, plan: Plan, demand, routing: str) -> tuple[jax.Array, jax.Array]:
    """Paced and max-min fair [s]."""
    return fluid_lower_bound(where, plan, demand, routing=routing), all_to_all_time(
        where, plan, demand, routing=routing
    )


def groups(rows: Rows) -> dict[tuple, list[Mapping[str, Any]]]:
    """Rows by (servers, efficiency, policy), in their order."""
    return grouped(rows, *GROUP)


def summary(rows: Rows) -> list[dict[str, Any]]:
    """Mean, 90th percentile and largest of the time over the degree bound; means of the rest; a line per group."""
    lines = []
    for group, members in groups(rows).items():
        over = [row["over_bound"] for row in members]
        lines.append(
            dict(zip(GROUP, group, strict=True))
            | {"mean": np.mean(over), "p90": np.quantile(over, 0.9), "worst": max(over)}
            | {"limit": np.mean([row["limit_s"] / row["bound_s"] for row in members])}
            | {"max_min": np.mean([row["max_min_s"] / row["bound_s"] for row in members])}
            | {"decision_s": np.mean([row["decision_s"] for row in members]), "samples": len(members)}
        )
    return lines


def table(rows: Rows) -> str:
    """A line per group."""
    return report.plain(summary(rows))


def draw(rows: Rows, path: str | Path) -> Path:
    """Every time over the degree bound, a panel per number of servers; returns the path written."""
    return style.save(lambda: build(rows), path)


def build(rows: Rows) -> Figure:
    """The figure itself: a line of dots per policy and efficiency, their mean, and the bound that knows relaying."""
    if not rows:
        raise InputError("the figure needs all-to-alls with bytes between servers, but there are none.")
    found = groups(rows)
    sizes = list(dict.fromkeys(group[0] for group in found))
    lines = max(sum(group[0] == servers for group in found) for servers in sizes)
    figure = style.blank(3.6 + 4.0 * len(sizes), 1.7 + 0.4 * lines)
    axes = figure.subplots(1, len(sizes), sharey=True, sharex=True, squeeze=False)[0]
    for panel, servers in zip(axes, sizes, strict=True):
        _panel(panel, {group[1:]: members for group, members in found.items() if group[0] == servers})
        panel.set_title(f"{servers} servers", loc="left")
    latest = max(row["over_bound"] for row in rows)
    axes[0].set_xlim(1 - 0.04 * (latest - 1), latest + 0.05 * (latest - 1))
    figure.suptitle(titled(rows), fontsize=style.FONT)
    return figure


def _panel(axes: Axes, found: Mapping[tuple, Sequence[Mapping[str, Any]]]) -> None:
    rng, before, beside = np.random.default_rng(0), None, {"xycoords": ("axes fraction", "data"), "va": "center"}
    for place, ((efficiency, policy), members) in enumerate(found.items()):
        if before not in (None, efficiency):
            axes.axhline(place - 0.5, color=style.FAINT, linewidth=0.6)
        before = efficiency
        over = [row["over_bound"] for row in members]
        colour, middle = LOOKS[policy].colour, float(np.mean(over))
        axes.plot(over, place + rng.uniform(-0.22, 0.22, len(over)), ".", color=colour, markersize=4, alpha=0.6)
        axes.plot([middle, middle], [place - 0.34, place + 0.34], color=style.INK, linewidth=1.8, zorder=1)
        limit = float(np.mean([row["limit_s"] / row["bound_s"] for row in members]))
        axes.plot([limit, limit], [place - 0.5, place + 0.5], "--", color=style.FAINT, linewidth=1, zorder=1)
        axes.annotate(f"{middle:.2f}", (1.02, place), **beside)
    axes.annotate("mean", (1.02, -0.9), color=style.FAINT, annotation_clip=False, **beside)
    axes.set_yticks(range(len(found)), [f"{LOOKS[policy].label}, efficiency {at:g}" for at, policy in found])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.set_xlabel("paced time over the degree bound\n(dashed: the least any relaying can reach)")
    axes.grid(axis="x")


def verdicts(rows: Rows) -> list[Verdict]:
    """Mean time over the degree bound; nothing is published."""
    return [
        Verdict(
            f"over degree bound, {policy}, {servers} servers, efficiency {efficiency:g} ({said(here)})",
            f"{np.mean([row['over_bound'] for row in here]):.3f}",
        )
        for (servers, efficiency, policy), here in groups(rows).items()
    ]


SCRIPT = Script(
    name=NAME,
    question="Choose circuits and relay routing together: a row per all-to-all, efficiency and policy.",
    config=Config,
    run=run,
    table=table,
    draw=draw,
    verdicts=verdicts,
    quick={"samples": 4, "servers": (8,), "efficiencies": (1.0,)},
    resolved=resolved,
    dtype="float64",
)
main = SCRIPT.main

if __name__ == "__main__":
    sys.exit(main())
