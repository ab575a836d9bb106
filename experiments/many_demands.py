"""One set of circuits planned from a forecast that errs: how much of what errors cost do scenarios win back?

Policies see the truth times log-normal errors; their circuits then carry the true demand under relay routing.
"sample-average" plans for scenarios of the truth (`traffic.likely_demands`); how large errors are (sigma) is known, or
estimated from earlier forecasts. Routes are adaptive (shares chosen for the true demand) or fixed (shares planned with
the circuits, or for them, from what the policy sees; uniform circuits have shares for the scenarios). Without errors
there is one scenario, and sample-average is joint. "clairvoyant" is joint that sees the truth.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from mfabric_jax.fabric import Region
from mfabric_jax.learning.judging import times_over_bound
from mfabric_jax.learning.planning import PLANNED, SAMPLED, Forecast, decided_for, interval, plans_from, scenarios_of
from mfabric_jax.policies.delivery import fixed, shares_of
from mfabric_jax.policies.samples import samples_of
from mfabric_jax.routing import Plan

from .demand_cases import KIND, OnCases, case_of
from .pictures import lines
from .rows import Row, Rows, measured, of, pivot, summed, then, told, where
from .script import Found, Script, cells, check

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(OnCases):
    """What to draw, how wrong forecasts are, and who plans from them."""

    sigmas: tuple[float, ...] = (0.0, 0.3, 0.6, 1.0)  # Standard deviations of the logarithms of forecasts.
    policies: tuple[str, ...] = tuple(WAYS)  # Who plans.
    routes: tuple[str, ...] = tuple(ROUTES)  # Shares for the true demand, or planned: adaptive, fixed.
    demands: int = 24  # Of each family.
    scenarios: int = 64  # For which sample-average plans.
    few: int = 8  # For which "few-scenarios" does.
    past: int = 8  # Earlier forecasts, from whose errors sigma is estimated.
    share_steps: int = 200  # Towards relay shares, at most.

    def __post_init__(self):
        super().__post_init__()
        check(self, known={"policies": WAYS, "routes": ROUTES}, not_negative="sigmas")
        check(self, whole={1: "demands scenarios few past share_steps"})


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
    plan = plans(policy, decided_for(policy, ROUTES[routes]), many)
    if way.policy == EVEN and routes == "fixed":
        plan = Plan(plan.circuits, shares_for(region, plan, scenarios_of(forecast, config.scenarios)))
    return plan


@eqx.filter_jit
def shares_for(region: Region, plans: Plan, scenarios: jax.Array) -> jax.Array:
    """One set of shares for all scenarios of each demand, on circuits that are there [N S S S+2]."""
    way = fixed(1.0)

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
AXES = ("sigma", "sigma of the forecast"), ("mean", "time over the degree bound")
build = then(everywhere, lines(*AXES, "{policy}", panel="{servers} servers, {routes} routes"))

# nothing is published
CLAIM = "over the degree bound, {servers} servers, {routes} routes, sigma {sigma:g}, {kind}"
CLOSED = "gap closed, {servers} servers, {routes} routes, sigma {sigma:g}, {kind}"


def verdicts(rows: Rows) -> list:
    """What sample-average takes, and how much of the gap it closes."""
    sampled = where(policy=SAMPLED)
    closed = [row for row in sampled(gaps(rows)) if row["closed"] is not None]
    means_of = measured(PLACE, CLAIM, of("mean"), "{:.3f}")(sampled(means(rows)))
    return [*means_of, *measured(PLACE, CLOSED, of("closed"), "{:.0%}")(closed)]


QUICK = {"servers": (8,), "families": ("near-permutation", "gate"), "sigmas": (0.3, 1.0), "routes": ("adaptive",)}
QUICK |= {"policies": (SAMPLED, JOINT, "learned", EVEN, CLAIRVOYANT), "demands": 8, "scenarios": 16}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
