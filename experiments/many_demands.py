"""One set of circuits planned from a forecast that errs: how much of what errors cost do scenarios win back?

Policies see the truth times log-normal errors; their circuits then carry the true demand under relay routing.
"sample-average" plans for scenarios of the truth (`traffic.likely_demands`); how large errors are (sigma) is known, or
estimated from earlier forecasts. Routes are adaptive (shares chosen for the true demand) or fixed (shares planned with
the circuits, or for them, from what the policy sees; uniform circuits have shares for the scenarios). Without errors
there is one scenario, and sample-average is joint. "clairvoyant" is joint that sees the truth.

- Drawn: the families of `traffic.broad_families`, and those of `UNSEEN`, that nothing was trained on or chosen by:
  partners a power of two away, rows and columns of a grid, and a tree. Only proportions matter: no unit is meant.
- "olmoe": tokens drawn from the packaged expert shares of OLMoE (`traffic.measured_tokens`), whose popularity walks;
  source rank r reads text domain r mod 5.
- "smartmoe": the SmartMoE gate trace, source ranks and experts folded to servers.
- "laer": what every rank of LAER-MoE processed (its recording with most records), spread equally over sources. Server s
  stands for the ranks r with r mod S = s, which have one place in their expert-parallel groups of four, so that servers
  differ as experts do.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Key

from mfabric_jax import traffic, workload
from mfabric_jax.apps.learning.judging import (
    PLANNED,
    SAMPLED,
    Forecast,
    decision_routing,
    interval,
    plans_from,
    scenarios_of,
    times_over_bound,
)
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies.circuit_search import fixed_delivery, shares_of
from mfabric_jax.policies.samples import samples_of
from mfabric_jax.routing import Plan
from mfabric_jax.traffic.demand_families import (
    BROAD,
    TRACED,
    draw_family,
    fold_to_servers,
    gate_trace,
    noisy_forecasts,
    without_diagonal,
)
from mfabric_jax.traffic.log_errors import error_of

from .pictures import lines
from .rows import Row, Rows, of, pivot, summed, then, told
from .script import Found, Ports, Script, cells, check

ROUTES = {"adaptive": "relay", "fixed": PLANNED}
AGAIN = 4  # descents towards shares for scenarios, after the first
CLAIRVOYANT, JOINT, EVEN = "clairvoyant", "joint", "uniform"
NEAR = 0.005  # degree bounds between joint and clairvoyant below which there is no gap to close


class Way(NamedTuple):
    """A policy of the registry, and what it knows of the truth.

    - `scenarios`: the field of the configuration that says how many.   - `estimated`: so is the size of errors.
    """

    policy: str
    scenarios: str = ""
    estimated: bool = False


WAYS = {
    SAMPLED: Way(SAMPLED, "scenarios"),
    "sigma-estimated": Way(SAMPLED, "scenarios", True),
    "few-scenarios": Way(SAMPLED, "few"),
    **{name: Way(name) for name in (JOINT, "local-search", "greedy", "index", "learned", EVEN)},
    CLAIRVOYANT: Way(JOINT),
}


# -- demands that belong together

Demand = Float[Array, "S S"]


def butterfly(key: Key[Array, ""], servers: int) -> Demand:
    """Recursive doubling: to the server 1, 2, 4, ... places on; each distance has its own log-normal bytes."""
    order, size, noise = jax.random.split(key, 3)
    place = jax.random.permutation(order, servers)
    on = (place[None] - place[:, None]) % servers
    much = jnp.exp(jax.random.normal(size, (servers,), jnp.float32))
    power = (on & (on - 1)) == 0
    return jnp.where(power & (on > 0), much[on], 0) * _noise(noise, servers, 0.2)


def grid(key: Key[Array, ""], servers: int) -> Demand:
    """Servers in random order on a grid send along its rows, and along its columns: each way has its own bytes."""
    order, size, noise = jax.random.split(key, 3)
    wide = max(many for many in range(1, math.isqrt(servers) + 1) if servers % many == 0)
    place = jax.random.permutation(order, servers)
    row, column = place // wide, place % wide
    much = jnp.exp(jax.random.normal(size, (2,), jnp.float32))
    along = jnp.where(row[:, None] == row[None], much[0], 0) + jnp.where(column[:, None] == column[None], much[1], 0)
    return along * _noise(noise, servers, 0.3)


def tree(key: Key[Array, ""], servers: int) -> Demand:
    """A gather along a binary tree in random order: more from larger branches; 20 to 100 % come back from the root."""
    order, part, noise = jax.random.split(key, 3)
    parent = (np.arange(servers) - 1) // 2
    size = np.ones(servers, np.float32)
    for child in range(servers - 1, 0, -1):
        size[parent[child]] += size[child]
    up = np.zeros((servers, servers), np.float32)
    up[np.arange(1, servers), parent[1:]] = size[1:]
    both = up + jax.random.uniform(part, (), jnp.float32, 0.2, 1.0) * up.T
    place = jax.random.permutation(order, servers)
    return both[place[:, None], place[None]] * _noise(noise, servers, 0.3)


UNSEEN: dict[str, Callable[[Key[Array, ""], int], Demand]] = {"butterfly": butterfly, "grid": grid, "tree": tree}
DRAWN = BROAD | UNSEEN


def demands_of(keys: Key[Array, N], family: str, servers: int) -> Float[Array, "N S S"]:
    """One demand of the family of `DRAWN` for every key; diagonals are zero."""
    return draw_family(keys, DRAWN[family], servers)


def _noise(key: Key[Array, ""], servers: int, spread: float) -> Demand:
    return jnp.exp(spread * jax.random.normal(key, (servers, servers), jnp.float32))


TABLES, GATE_TRACE, LOADS = "olmoe", "smartmoe", "laer"
RECORDED = (TABLES, GATE_TRACE, LOADS)
NEEDS = {GATE_TRACE: "trace", LOADS: "laer"}  # the field of the configuration that names the file
KIND = dict.fromkeys(BROAD, "broad") | dict.fromkeys(UNSEEN, "unseen") | dict.fromkeys(RECORDED, "recorded")
ITERATIONS, DRIFT = 20, 0.1  # of what is drawn from tables: popularity walks
LAER_RANKS = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Ports):
    """What to draw, how wrong forecasts are, and who plans from them."""

    servers: tuple[int, ...] = (8, 16)  # Sizes of the region.
    families: tuple[str, ...] = tuple(KIND)  # Kinds of demand; smartmoe needs trace, laer needs laer.
    trace: str | None = None  # Folder of the SmartMoE gate trace.
    laer: str | None = None  # File or folder of LAER-MoE's token analysis.
    sigmas: tuple[float, ...] = (0.0, 0.3, 0.6, 1.0)  # Standard deviations of the logarithms of forecasts.
    policies: tuple[str, ...] = tuple(WAYS)  # Who plans.
    routes: tuple[str, ...] = tuple(ROUTES)  # Shares for the true demand, or planned: adaptive, fixed.
    demands: int = 24  # Of each family.
    scenarios: int = 64  # For which sample-average plans.
    few: int = 8  # For which "few-scenarios" does.
    past: int = 8  # Earlier forecasts, from whose errors sigma is estimated.
    share_steps: int = 200  # Towards relay shares, at most.
    seed: int = 0  # Of draws, noise and scenarios.

    def __post_init__(self):
        known = {"families": KIND, "policies": WAYS, "routes": ROUTES}
        whole = {2: "servers", 1: "demands scenarios few past share_steps", 0: "optical_degree electrical_nics seed"}
        check(self, known=known, positive="nic_gbps", not_negative="sigmas", whole=whole)
        if not self.cases():
            wanted = " and ".join(f"{name!r} needs {NEEDS[name]}" for name in self.families)
            raise InputError(f"families {wanted}, and nothing else is left.")
        for name in set(self.cases()) & set(RECORDED):
            ranks = LAER_RANKS if name == LOADS else workload.get(TRACED).ep
            for servers in self.servers:
                if ranks % servers:
                    raise InputError(f"servers must divide the {ranks} ranks of {name!r}, got {servers}.")

    def cases(self) -> list[str]:
        """The families whose files are there."""
        return [name for name in self.families if name not in NEEDS or getattr(self, NEEDS[name]) is not None]


class Case(NamedTuple):
    """Demands that are judged, and earlier ones whose forecasts are known to have erred.

    - `true` [N S S], `past` [H S S]: bytes up to a factor, diagonals 0.   - `key`: of the errors of forecasts.
    """

    name: str
    true: Float[jax.Array, "N S S"]
    past: Float[jax.Array, "H S S"]
    key: Key[jax.Array, ""]

    def forecast(self, sigma: float) -> Forecast:
        """The truth times log-normal errors; the same noise for every sigma, only larger."""
        keys = jax.random.split(self.key, len(self.true))
        return Forecast(f"{sigma:g}", noisy_forecasts(keys, self.true, sigma), sigma, self.true.mean(0))

    def estimated(self, sigma: float) -> float:
        """The standard deviation of the errors of such forecasts, from those of earlier demands."""
        keys = jax.random.split(jax.random.fold_in(self.key, 0), len(self.past))
        return error_of(np.asarray(noisy_forecasts(keys, self.past, sigma)), np.asarray(self.past))


def case_of(config: Config, name: str, servers: int, many: int, past: int) -> Case:
    """So many demands to judge and so many earlier ones: of a recording, from its second and its first half."""
    draw, noise = jax.random.split(key_of(config, name))
    if name not in RECORDED:
        demand = demands_of(jax.random.split(draw, many + past), name, servers)
        return Case(name, demand[:many], demand[many:], noise)
    demand, rng = recorded_demand(config, name, servers), np.random.default_rng(config.seed)
    half = len(demand) // 2
    early, late = demand[:half], demand[half:]
    late, early = (jnp.asarray(_some(rng, part, count)) for part, count in ((late, many), (early, past)))
    return Case(name, late, early, noise)


def key_of(config: Config, name: str) -> jax.Array:
    """Random numbers of a family: the same whatever else is run."""
    return jax.random.fold_in(jax.random.key(config.seed), list(KIND).index(name))


def _some(rng: np.random.Generator, demand: Float[np.ndarray, "I L M S S"], many: int) -> Float[np.ndarray, "N S S"]:
    """So many that have bytes, none twice."""
    demand = demand.reshape(-1, *demand.shape[-2:])
    some = np.flatnonzero(demand.any((1, 2)))
    if len(some) < many:
        raise InputError(f"demands must be at most the {len(some)} of half a recording, got {many}.")
    return demand[rng.choice(some, many, replace=False)]


def recorded_demand(config: Config, name: str, servers: int) -> Float[np.ndarray, "I L M S S"]:
    """All that a recording holds: records in order, of each its layers, of each its micro-batches."""
    if name == LOADS:
        return _spread(_loads(str(config.laer)), servers)
    count = _gate(str(config.trace)) if name == GATE_TRACE else _tables(config.seed)
    return fold_to_servers(count, servers).reshape(*count.shape[:3], servers, servers)


@functools.lru_cache(maxsize=1)
def _gate(trace: str) -> np.ndarray:
    return gate_trace(trace, None).count


@functools.lru_cache(maxsize=1)
def _tables(seed: int) -> np.ndarray:
    return traffic.measured_tokens(workload.get(TRACED), ITERATIONS, 1, DRIFT, seed).count


@functools.lru_cache(maxsize=1)
def _loads(path: str) -> np.ndarray:
    """Of the recording with most records [record, layer, rank]."""
    count = max((each.count for each in traffic.open_trace(path)), key=len)
    loads = count.reshape(*count.shape[:2], -1)
    if loads.shape[2] != LAER_RANKS:
        raise InputError(f"laer {path} must hold {LAER_RANKS} ranks, got {loads.shape[2]}.")
    return loads


def _spread(loads: np.ndarray, servers: int) -> Float[np.ndarray, "I L M S S"]:
    received = loads.reshape(*loads.shape[:2], 1, -1, 1, servers).sum(3)
    return without_diagonal(np.repeat(received, servers, axis=3) / servers)


# -- who plans, and how long it takes


def run(config: Config) -> Found:
    """A row for each number of servers, family, sigma, routes and policy.

    - `over_bound`: mean time over the degree bound; `low`, `high`: its 95 % interval by bootstrap over demands; `p90`.
    - `sigma_used`: what sample-average takes errors to be, None for others.
    """
    for servers, family in cells(config, config.servers, config.cases()):
        place, region = {"servers": servers, "kind": KIND[family], "family": family}, config.region(servers)
        case = case_of(config, family, servers, config.demands, config.past)
        exact = _plans(case.forecast(0.0), region)
        for sigma in config.sigmas:
            given = case.forecast(sigma)
            guessed = given._replace(sigma=case.estimated(sigma))
            plans = {False: _plans(given, region), True: _plans(guessed, region)}
            for policy in config.policies:
                way = WAYS[policy]
                forecast, planned = (guessed if way.estimated else given), plans[way.estimated]
                if policy == CLAIRVOYANT:
                    forecast, planned = case.forecast(0.0), exact
                for routes in config.routes:
                    plan = _plan(config, region, way, forecast, planned, routes)
                    times = times_over_bound(region, plan, case.true, forecast.seen, ROUTES[routes], config.share_steps)
                    row = place | {"sigma": sigma, "routes": routes, "policy": policy} | _summary(times, config)
                    yield row | {"sigma_used": forecast.sigma if way.policy == SAMPLED else None}


def _plans(forecast: Forecast, region: Region) -> Any:
    """`plans_from` of a policy, a routing and a number of scenarios, once for each."""
    return functools.cache(functools.partial(plans_from, forecast, region))


def _plan(config: Config, region: Region, way: Way, forecast: Forecast, plans: Any, routes: str) -> Plan:
    """For every demand."""
    many = getattr(config, way.scenarios) if way.scenarios else 1
    sampled = way.policy == SAMPLED and forecast.sigma > 0
    policy = way.policy if sampled or way.policy != SAMPLED else JOINT
    plan = plans(policy, decision_routing(policy, ROUTES[routes]), many)
    if way.policy == EVEN and routes == "fixed":
        plan = Plan(plan.circuits, shares_for(region, plan, scenarios_of(forecast, config.scenarios)))
    return plan


@eqx.filter_jit
def shares_for(region: Region, plans: Plan, scenarios: jax.Array) -> jax.Array:
    """One set of shares for all scenarios of each demand, on circuits that are there [N S S S+2]."""
    way = fixed_delivery(1.0)

    def one(circuits, several):
        samples = samples_of(several, region)
        state, _ = way.settle(samples, circuits.count, way.cold(samples), False)
        for _ in range(AGAIN):
            state, _ = way.settle(samples, circuits.count, state, True)
        return shares_of(samples, circuits.count, state)

    return jax.vmap(one)(plans.circuits, scenarios)


def _summary(times: np.ndarray, config: Config) -> Row:
    times = times.astype(float)
    low, high = interval(times, config.seed)
    found = {"over_bound": times.mean(), "low": low, "high": high, "p90": np.quantile(times, 0.9)}
    return {name: float(value) for name, value in found.items()} | {"demands": len(times)}


PLACE = ("servers", "routes", "kind", "sigma")


def by_place(rows: Rows) -> list[Row]:
    """Rows of one number of servers and routes together, policies in their order."""
    names = list(WAYS)
    return sorted(rows, key=lambda row: (row["servers"], row["routes"], names.index(row["policy"])))


means = then(by_place, summed((*PLACE, "policy"), mean=of("over_bound"), families=len))


def gaps(rows: Rows) -> list[Row]:
    """What part of joint's distance from clairvoyant scenarios close, in means over families; None without a gap."""
    mean = {tuple(row[key] for key in (*PLACE, "policy")): row["mean"] for row in means(rows)}
    found = []
    for (*place, policy), over in mean.items():
        joint, best = (mean.get((*place, other)) for other in (JOINT, CLAIRVOYANT))
        if WAYS[policy].policy == SAMPLED and joint is not None and best is not None:
            part = (joint - over) / (joint - best) if joint - best > NEAR else None
            found.append(dict(zip(PLACE, place, strict=True)) | {"policy": policy, "closed": part})
    return found


table = told(
    "mean time over the degree bound, over families",
    then(means, pivot(("servers", "routes", "policy"), "{kind} {sigma:g}", "{mean:.3f}")),
    "part of the gap between joint on the forecast and joint on the truth that is closed",
    then(gaps, pivot(("servers", "routes", "policy"), "{kind} {sigma:g}", "{closed:.0%}")),
)

everywhere = summed(("servers", "routes", "sigma", "policy"), mean=of("over_bound"))
TITLE = "One set of circuits planned from a forecast that errs"
AXES = ("sigma", "sigma of the forecast"), ("mean", "time over the degree bound")
build = then(everywhere, lines(*AXES, "{policy}", panel="{servers} servers, {routes} routes", title=TITLE))

QUICK = {"servers": (8,), "families": ("near-permutation", "gate"), "sigmas": (0.3, 1.0), "routes": ("adaptive",)}
QUICK |= {"policies": (SAMPLED, JOINT, "learned", EVEN, CLAIRVOYANT), "demands": 8, "scenarios": 16}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
