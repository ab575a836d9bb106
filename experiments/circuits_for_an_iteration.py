"""One set of circuits for all layers of an iteration, or others for every all-to-all: what do circuits that stay cost?

"sample-average" plans one set for the demands of all layers as they were in the past, and later ones run over it;
"uniform" knows nothing; "reconfigured" is joint, which sets circuits anew for each all-to-all and knows its demand.
Routes are adaptive: shares are chosen for the true demand. No delay of the switch is counted.

Layers of drawn families are draws of one family; then every server's popularity as a receiver drifts, in each layer by
a log-normal factor. Recordings are planned for by sums of early records, and tested on single late ones.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.fabric import Region
from mfabric_jax.learning.judging import SAMPLED, decide, interval, legal, plan_for, times_over_bound
from mfabric_jax.report import style
from mfabric_jax.routing import Plan

from .demand_cases import KIND, RECORDED, OnCases, demands_of, key_of, recorded_demand
from .pictures import Axis, Dots, Picture
from .rows import measured, of, pivot, summed, then, told
from .script import Found, Script, cells, check

RECONFIGURED = "reconfigured"
LOOKS = {
    SAMPLED: style.Look("One set of circuits, sample average", "#D55E00", "o"),
    "uniform": style.Look("One set of circuits, uniform", "#7F7F7F", "s"),
    RECONFIGURED: style.Look("Reconfigured for each all-to-all, joint", "#0072B2", "D"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(OnCases):
    """What to draw, and how far it drifts."""

    layers: int = 24  # Of an iteration of a drawn family; recordings have their own.
    iterations: int = 4  # Each has its own past and circuits.
    drift: float = 0.3  # Standard deviation of the logarithm of popularity, from past to future.
    share_steps: int = 200  # Towards relay shares, at most.

    def __post_init__(self):
        super().__post_init__()
        check(self, not_negative="drift", whole={1: "layers iterations share_steps"})


class Layers(NamedTuple):
    """What layers sent, and what they send later; N iterations of K layers."""

    past: Float[Array, "N K S S"]
    later: Float[Array, "N K S S"]


def run(config: Config) -> Found:
    """A row for each number of servers, family and policy.

    - `over_bound`: mean time over the degree bound of later demands; `low`, `high`: its 95 % interval by bootstrap;
      `worst`.
    """
    for servers, family in cells(config, config.servers, config.cases()):
        layers = _recorded(config, family, servers) if family in RECORDED else _drawn(config, family, servers)
        for policy in LOOKS:
            times = _times(config, config.region(servers), layers, policy).astype(float)
            low, high = interval(times, config.seed)
            found = {"over_bound": times.mean(), "low": low, "high": high, "worst": times.max()}
            place = {"servers": servers, "kind": KIND[family], "family": family, "policy": policy}
            yield place | {name: float(value) for name, value in found.items()}


def _drawn(config: Config, family: str, servers: int) -> Layers:
    shape = (config.iterations, config.layers)
    draw, walk = jax.random.split(key_of(config, family))
    past = demands_of(jax.random.split(draw, shape[0] * shape[1]), family, servers).reshape(*shape, servers, servers)
    factor = jnp.exp(config.drift * jax.random.normal(walk, (*shape, 1, servers), past.dtype))
    return Layers(past, past * factor)


def _recorded(config: Config, family: str, servers: int) -> Layers:
    """The first micro-batch of records."""
    demand = recorded_demand(config, family, servers)[:, :, 0]
    half = len(demand) // 2
    early = np.stack([part.sum(0) for part in np.array_split(demand[:half], config.iterations)])
    late = demand[np.linspace(half, len(demand) - 1, config.iterations).astype(int)]
    return Layers(jnp.asarray(early), jnp.asarray(late))


def _times(config: Config, region: Region, layers: Layers, policy: str) -> np.ndarray:
    """Time over the degree bound of every later all-to-all [N K]."""
    later = layers.later.reshape(-1, *layers.later.shape[2:])
    if policy == RECONFIGURED:
        plans = _decided("joint", region, later)
    else:
        each = Plan(_decided(policy, region, layers.past).circuits)
        plans = jax.tree.map(lambda x: jnp.repeat(x, layers.later.shape[1], axis=0), each)
    return times_over_bound(region, plans, later, later, "relay", config.share_steps)


def _decided(policy: str, region: Region, seen: Float[Array, "N ..."]) -> Plan:
    """A plan for each; policies that plan for one demand see the sum of many."""
    if policy != SAMPLED and seen.ndim > 3:
        seen = seen.sum(1)
    keys = jax.random.split(jax.random.key(0), len(seen))
    return legal(policy, decide(plan_for(policy, "relay", seen[0], 0.0), region, seen, keys), region)


means = summed(("servers", "kind", "policy"), over_bound=of("over_bound"), families=len)
table = told(
    "mean time over the degree bound",
    pivot(("servers", "family"), "{policy}", "{over_bound:.3f}"),
    "its mean over families",
    then(means, pivot(("servers", "kind"), "{policy}", "{over_bound:.3f}")),
)

PANEL = Dots(Axis("over_bound", "mean time over the degree bound"), Axis("family"), "policy", LOOKS, dodge=True)
PANEL = dataclasses.replace(PANEL, each=0.4, title="{servers} servers")
PICTURE = Picture((PANEL,), "", "servers", needs="families")

# nothing is published
CLAIM = "over the degree bound, {policy}, {servers} servers, {kind}"
verdicts = measured(("servers", "kind", "policy"), CLAIM, of("over_bound"), "{:.3f}")

SCRIPT = Script(Config, quick={"servers": (8,), "families": ("near-permutation", "gate"), "iterations": 2})
SCRIPT.start(__name__)
