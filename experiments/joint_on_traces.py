"""How near the degree bound do circuits and relay routing chosen together come on recorded MoE traffic?

The paper's greedy with unsplit routing and greedy circuits with relay routing stand beside `policies.joint`, on the
all-to-alls and the region of `relay_on_traces`. Times are of paced flows (the busiest link); with the same shares,
flows that share links max-min fairly end later.

Below efficiency 1 the degree bound is out of reach: a server has circuits to so many others at most, and what comes
from further ones is relayed and counts more on its way in. `relay_limit` knows this.
"""

import dataclasses
import time
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import report
from mfabric_jax.fabric import Region
from mfabric_jax.policies import greedy, joint
from mfabric_jax.policies.samples import relay_limit
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture, looks
from mfabric_jax.routing import Plan, relay_shares

from . import relay_on_traces
from .recording import paced_and_max_min, resolved
from .rows import Row, adding, measured, of, p90, summed, then
from .script import Found, Script, check

GROUP = ("servers", "efficiency", "policy")
LABELS = "Paper's greedy, unsplit", "Greedy “next”, relay", "Joint", "Paper's greedy, relay"
LOOKS = looks(dict(zip(("unsplit", "relay-next", "joint", "relay"), LABELS, strict=True)))
POLICIES = ("unsplit", "relay", "relay-next", "joint")


@dataclasses.dataclass(frozen=True)
class Config(relay_on_traces.Config):
    """What to draw, the region, and how long to search."""

    joint_steps: int = 150  # Gradient steps of the relaxation.
    joint_samples: int = 2  # Starts of the relaxation.
    joint_rounds: int = 12  # Rounds of swaps at most.

    def __post_init__(self):
        super().__post_init__()
        check(self, whole={0: "joint_steps joint_rounds", 1: "joint_samples"})


def run(config: Config) -> Found:
    """A row for each all-to-all, servers, efficiency and policy; what has no bytes between servers is left out.

    - `policy`: "unsplit" and "relay" (greedy circuits by `rule`), "relay-next" (by the rule "next") or "joint".
    - `time_s`, `max_min_s`: paced, and with max-min fair flows; `bound_s`, `limit_s`: degree bound, `relay_limit`.
    - `over_bound`: paced time over the degree bound.
    - `decision_s`: to choose circuits and shares, compiled, one at a time.
    """
    settings = config.rule, config.steps, config.joint_steps, config.joint_samples, config.joint_rounds
    for servers in config.servers:
        all_to_alls = list(config.all_to_alls(servers))
        for efficiency in config.efficiencies:
            where = config.region(servers, relay_efficiency=efficiency)
            for policy in POLICIES:  # compile, so that decisions are timed alone
                _planned(policy, where, jnp.ones((servers,) * 2, jnp.float32), settings)
            for (place, demand, bound), policy in product(all_to_alls, POLICIES):
                known = jnp.asarray(demand, jnp.float32)  # what a controller would compute in
                start = time.perf_counter()
                plan = jax.block_until_ready(_planned(policy, where, known, settings))
                decision = time.perf_counter() - start
                routing = "unsplit" if policy == "unsplit" else "relay"
                paced, max_min = map(float, paced_and_max_min(where, plan, demand, routing))
                row = {"traffic": config.traffic, "servers": servers, "efficiency": efficiency, **place}
                row |= {"policy": policy, "time_s": paced, "max_min_s": max_min, "bound_s": bound}
                row |= {"limit_s": float(relay_limit(where, demand))}
                yield row | {"over_bound": paced / bound, "decision_s": decision}


@eqx.filter_jit
def _planned(policy: str, where: Region, demand: jax.Array, settings: tuple) -> Plan:
    rule, steps, joint_steps, samples, rounds = settings
    if policy == "joint":
        return joint(demand, where, steps=joint_steps, samples=samples, rounds=rounds)
    plan = greedy(demand, where, rule="next" if policy == "relay-next" else rule)
    return plan if policy == "unsplit" else Plan(plan.circuits, relay_shares(where, plan.circuits, demand, steps=steps))


def _name(row: Row) -> str:
    return f"{LOOKS[row['policy']].label}, efficiency {row['efficiency']:g}"


bounds = adding(
    name=_name,
    limit=lambda row: row["limit_s"] / row["bound_s"],
    max_min=lambda row: row["max_min_s"] / row["bound_s"],
)
OVER = {"mean": of("over_bound"), "p90": of("over_bound", p90), "worst": of("over_bound", max)}
REST = {key: of(key) for key in ("limit", "max_min", "decision_s")}
summary = then(bounds, summed(GROUP, **OVER, **REST, samples=len))
table = then(summary, report.plain)

RATIO = Axis("over_bound", "paced time over the degree bound\n(dashed: the least any relaying can reach)")
MEAN = {"block": "efficiency", "middle": np.mean, "head": "mean", "title": "{servers} servers"}
PANEL = Dots(RATIO, Axis("name"), "policy", LOOKS, limit="limit", **MEAN)
PICTURE = Picture((PANEL,), "", "servers", shown=bounds, **relay_on_traces.SAME)

# nothing is published
CLAIM = "over degree bound, {policy}, {servers} servers, efficiency {efficiency:g} ({traffic})"
verdicts = measured(GROUP, CLAIM, of("over_bound"), "{:.3f}")

SCRIPT = Script(
    Config, quick={"samples": 4, "servers": (8,), "efficiencies": (1.0,)}, resolved=resolved, dtype="float64"
)
SCRIPT.start(__name__)
