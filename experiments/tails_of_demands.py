"""Circuits for the mean of many likely demands, or for the worst of them: what does the mean pay for the tail?

sample-average plans for scenarios of a forecast that errs, as in `many_demands`: for their mean, for the mean of their
worst quarter ("cvar:0.25"), or for the worst. Its plans, those of joint on the forecast, and uniform circuits carry the
true demand, and fresh scenarios of the same forecast, for which nothing was planned.
"""

import dataclasses
import functools
import sys

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.fabric import Region
from mfabric_jax.learning.judging import over_bound, plan_over_bound
from mfabric_jax.learning.planning import PLANNED, SAMPLED, Forecast, plans_from, scenarios_of
from mfabric_jax.policies.samples import risk_of, tail_of
from mfabric_jax.report import style
from mfabric_jax.report.figures.groups import Dots
from mfabric_jax.report.figures.panels import Axis, Picture
from mfabric_jax.routing import Plan

from .demand_cases import OnCases, check_counts, prepared
from .many_demands import EVEN, JOINT, ROUTES, shares_for
from .rows import Row, adding, measured, of, pivots, summed, then
from .script import Found, Script, check

LOOKS = {
    "mean": style.Look("Sample average for the mean", "#D55E00", "o"),
    "cvar:0.25": style.Look("Sample average for the worst quarter", "#E69F00", "s"),
    "worst": style.Look("Sample average for the worst", "#7A2E00", "X"),
    JOINT: style.Look("Joint on the forecast", "#0072B2", "D"),
    EVEN: style.Look("Uniform", "#7F7F7F", "s"),
}
OTHERS = (JOINT, EVEN)
TAIL = tail_of("cvar:0.25")
FRESH = 1_000_003  # added to the seed: other scenarios than those planned for


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(OnCases):
    """What to draw, how wrong forecasts are, and what is planned for."""

    sigmas: tuple[float, ...] = (0.6,)  # Standard deviations of the logarithms of forecasts.
    risks: tuple[str, ...] = ("mean", "cvar:0.25", "worst")  # What sample-average makes low: mean, cvar:Q, worst.
    routes: tuple[str, ...] = tuple(ROUTES)  # Shares for each demand, or planned: adaptive, fixed.
    demands: int = 24  # Of each family.
    scenarios: int = 64  # For which sample-average plans, and as many fresh ones.
    share_steps: int = 100  # Towards relay shares, at most.

    def __post_init__(self):
        super().__post_init__()
        check(self, known={"routes": ROUTES}, distinct="sigmas risks", positive="sigmas")
        check_counts(self, demands=1, scenarios=1, share_steps=1)
        for risk in self.risks:
            tail_of(risk)


def run(config: Config) -> Found:
    """A row for each number of servers, family, sigma, routes and plan: times over the degree bound.

    - `plan`: the risk that sample-average made low, or the policy.   - `true`: of the true demand.
    - `mean`, `tail`, `worst`: of fresh scenarios; the tail is their worst quarter.

    All are means over the demands.
    """
    for place, case, region in prepared(config, config.demands, 1):
        for sigma in config.sigmas:
            forecast = case.forecast(sigma, config.seed)
            fresh = scenarios_of(forecast, config.scenarios, config.seed + FRESH)
            for routes in config.routes:
                for plan in (*config.risks, *OTHERS):
                    plans = _planned(config, region, forecast, ROUTES[routes], plan)
                    judged = functools.partial(_times, region, plans, steps=config.share_steps)
                    found = {"true": judged(case.true[:, None]).mean()} | _risks(judged(fresh))
                    row = place | {"sigma": sigma, "routes": routes, "plan": plan}
                    yield row | {name: float(value) for name, value in found.items()}
                    words = ", ".join(f"{name} {value:.3f}" for name, value in found.items())
                    print(*row.values(), words, file=sys.stderr, flush=True)


def _planned(config: Config, region: Region, forecast: Forecast, routing: str, plan: str) -> Plan:
    """For every demand; with shares where these are planned."""
    policy, risk = (plan, "mean") if plan in OTHERS else (SAMPLED, plan)
    plans = plans_from(forecast, region, policy, routing, config.scenarios, risk)
    if routing != PLANNED:
        return Plan(plans.circuits)
    if plan == EVEN:
        return Plan(plans.circuits, shares_for(region, plans, scenarios_of(forecast, config.scenarios)))
    return plans


@functools.partial(jax.jit, static_argnames="steps")
def _times(region: Region, plans: Plan, demands: Float[Array, "N M S S"], *, steps: int) -> Float[Array, "N M"]:
    """Time over the degree bound of every plan's demands; without shares, with shares that know the demand."""

    def seconds(plan: Plan, demand):
        if plan.shares is None:
            return over_bound(region, plan.circuits, demand, "relay", steps)
        return plan_over_bound(region, plan, demand, "relay")

    return lax.map(lambda given: jax.vmap(lambda demand: seconds(given[0], demand))(given[1]), (plans, demands))


@jax.jit
def _risks(times: Float[Array, "N M"]) -> dict[str, Float[Array, ""]]:
    weight = jnp.full(times.shape[1], 1 / times.shape[1], times.dtype)
    tail = jax.vmap(lambda each: risk_of(each, weight, TAIL))(times)
    return {"mean": times.mean(), "tail": tail.mean(), "worst": times.max(1).mean()}


KEYS = ("true", "mean", "tail", "worst")
GROUP = ("servers", "routes", "kind", "sigma", "plan")
means = summed(GROUP, **{key: of(key) for key in KEYS})
TITLES = {
    "true": "mean over the degree bound of the true demand, over families",
    "mean": "of fresh scenarios",
    "tail": "of the worst quarter of them",
    "worst": "of the worst",
}
table = then(means, pivots(("servers", "routes", "plan"), "{kind} {sigma:g}", TITLES, ".3f"))

PARTS = ("mean", "tail", "worst")
PANEL = Dots(Axis("over", "time over the degree bound of fresh scenarios"), Axis("of"), "plan", LOOKS, dodge=True)
PANEL = dataclasses.replace(PANEL, each=0.7, title="{servers} servers, {routes} routes, sigma {sigma:g}")


def shown(rows) -> list[Row]:
    """A row for each of the three, means over all families at the largest sigma."""
    largest = max((row["sigma"] for row in rows), default=0)
    here = summed(("servers", "routes", "sigma", "plan"), **{key: of(key) for key in PARTS})
    words = dict(zip(PARTS, ("mean", "worst quarter", "worst"), strict=True))
    lines = here([row for row in rows if row["sigma"] == largest])
    return [line | {"of": words[part], "over": line[part]} for part in PARTS for line in lines]


PICTURE = Picture((PANEL,), "routes", "servers", shown=shown, share_x=False, width=4.0)


def paid(rows) -> list[Row]:
    """What a plan for a tail changes beside the plan for the mean, in fresh scenarios [degree bounds]."""
    place = GROUP[:-1]
    base = {tuple(row[key] for key in place): row for row in means(rows) if row["plan"] == "mean"}
    found = []
    for row in means(rows):
        beside = base.get(tuple(row[key] for key in place))
        if beside is not None and row["plan"] not in ("mean", *OTHERS):
            found.append(row | {f"{key}_more": row[key] - beside[key] for key in PARTS})
    return found


# nothing is published
CLAIM = "mean, worst quarter and worst over the plan for the mean's, {plan}, {servers} servers, {routes}, {kind}"
CHANGES = adding(changes="{mean_more:+.3f}, {tail_more:+.3f}, {worst_more:+.3f}")
verdicts = then(paid, CHANGES, measured(GROUP, CLAIM, lambda here: here[0]["changes"]))

QUICK = {"servers": (8,), "families": ("near-permutation", "gate"), "routes": ("adaptive",), "demands": 4}
SCRIPT = Script(Config, quick=QUICK | {"scenarios": 16, "risks": ("mean", "worst")})
SCRIPT.start(__name__)
