"""Is there anything to learn in when to reconfigure? `Renewal`, a trained network and clairvoyance, same proposals.

In every drawn regime, all rules propose the circuits of `Renewal`, learned proposals among them. They choose only
whether to change to these. The network sees what the circuits in place and the fresh ones take for the demand expected
and for demands imagined, how circuits age, the delay, the age, and what is left of the chain; it scales the saving that
`Renewal` counts. The expected time over all trajectories of a chain is computed exactly, and so is its gradient.
Evolution on whole decisions is compared with it. A gain counts only on regimes that no training saw. "clairvoyant": the
best decisions on the same circuits if demand is known.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.apps.learning.evolution import count_weights, evolve
from mfabric_jax.apps.learning.regimes.cells import PREVIOUS, Regime
from mfabric_jax.apps.learning.regimes.chains import SEEN, draw_chains
from mfabric_jax.apps.learning.regimes.controls import FAMILIES, expectations, propose_for_expected
from mfabric_jax.apps.learning.regimes.learned import HORIZONS, errors_so_far, histories, look_ahead
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.ahead import SCENARIOS, TRIES, imagine, shipped_ahead
from mfabric_jax.policies.horizon import cycle_cost, least_saving
from mfabric_jax.policies.renewal import RECENT, Ageing, Renewal
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.report import style
from mfabric_jax.report.charts import Chart, Curve, Panel
from mfabric_jax.routing import fluid_lower_bound
from mfabric_jax.support.progress import bar

from .pictures import Row, Rows
from .rows import duration, group_rows, half_interval, pivot, then, told
from .script import Found, Script, Verdict, check

ROUTING = "split"
NICS = ((6, 2), (4, 1), (7, 1), (4, 4))  # optical and electrical
PAIRS, SKEW = (0.3, 2.5), (0.3, 2.0)
FORGETFUL = 0.08  # part of the regimes without memory; others lose 10^-3 to 10^-0.7 of it in a step
LOST = (-3.0, -0.7)
FORECASTS = (PREVIOUS, PREVIOUS, PREVIOUS, 0.0, 0.3, 1.0)
WIDTH, FEATURES = 16, 14
SOFT = 0.02  # of the time of fresh circuits: how far from 0 a margin decides for sure, in training
FUTURE = 12  # all-to-alls that are imagined
NOISE = 0.1  # of evolution, on weights
TINY = 1e-9
RATE = 0.01
METHODS = ("gradient", "evolution")


@dataclasses.dataclass(frozen=True)
class Config:
    """How many regimes, and how long to train."""

    regimes: int = 64  # Drawn; a quarter is held out.
    servers: int = 8  # Of a region.
    steps: int = 200  # Of training.
    trials: int = 16  # Of a step of evolution.
    batch: int = 8  # Regimes of a step.
    delays_s: tuple[float, ...] = (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1)  # Of a reconfiguration.
    chains: int = 8  # Of each regime.
    decisions: int = 32  # Of each chain.

    def __post_init__(self):
        check(self, whole={1: "servers steps batch chains decisions", 2: "trials", 8: "regimes"}, positive="delays_s")


class Tables(NamedTuple):
    """A regime: seconds a byte of the circuits [K] proposed before each of T all-to-alls, on each of T demands.

    - `seconds`, `expected_s`, `imagined_s` [B F T T]: on the demand that came, on the one expected before, and on
      those imagined before. Even circuits are family 0. `sent` [B T]: bytes.
    - `ageing` [T ..]: what `Renewal` knows before each all-to-all.
    """

    seconds: Float[Array, "*C B F T T"]
    expected_s: Float[Array, "*C B F T T"]
    imagined_s: Float[Array, "*C B F T T"]
    sent: Float[Array, "*C B T"]
    ageing: Ageing


# --------------------------------------------------------------------------------------------------------- the regimes
def draw_regimes(config: Config) -> Iterator[Regime]:
    rng = np.random.default_rng(0)
    for _ in range(config.regimes):
        optical, electrical = NICS[rng.integers(len(NICS))]
        memory = 0.0 if rng.random() < FORGETFUL else float(1 - 10 ** rng.uniform(*LOST))
        pairs, skew = float(rng.uniform(*PAIRS)), float(rng.uniform(*SKEW))
        sigma = FORECASTS[rng.integers(len(FORECASTS))]
        yield Regime(config.servers, optical, electrical, pairs, memory, skew, sigma)


def tables_of(regime: Regime, seed: int, config: Config) -> Tables:
    chains = draw_chains(regime, [seed], config.chains, config.decisions)
    expected = expectations(chains, ROUTING)
    families = [propose_for_expected(name, chains, ROUTING) for name in FAMILIES]
    families += look_ahead(chains, expected, ROUTING, shipped_ahead(), HORIZONS, TRIES, SCENARIOS)
    count = jnp.stack([family.count for family in families], axis=1)
    sigma = errors_so_far(expected, chains.demand) if chains.noisy or not regime.sigma else None
    past = histories(chains)
    seconds = _time(chains.region, count, expected, chains.demand, past, sigma)
    ageing = _age(chains.region, count, expected, chains.forecast, chains.demand)
    return Tables(*seconds, chains.demand.sum((2, 3)), jax.tree.map(lambda value: value[0], ageing))


@jax.jit
def _time(region: Region, count: Int[Array, "B F T S S"], expected, demand, past, sigma) -> tuple[Array, Array, Array]:
    def unit(demand: Array):
        return demand / demand.sum((-2, -1), keepdims=True)

    def time(circuits: Array, demands: Array):
        def seconds(demand: Array):
            return fluid_lower_bound(region, Circuits(circuits), demand, routing=ROUTING)

        return jax.vmap(seconds)(demands)

    def chain(arguments: Any):
        count, expected, demand, past = arguments
        flat = count.reshape(-1, *count.shape[-2:])

        def imagined(now: Any):
            expected, past, sigma = now
            drawn = unit(imagine(expected, past, jax.random.key(1), float(FUTURE), sigma, 2 * FUTURE))
            return jax.vmap(lambda circuits: time(circuits, drawn).mean())(flat)

        tables = [lax.map(lambda circuits, at=at: time(circuits, unit(at)), flat) for at in (demand, expected)]
        tables.append(lax.map(imagined, (expected, past, sigma)).T)
        return tuple(table.reshape(*count.shape[:2], -1) for table in tables)

    return lax.map(chain, (count, expected, demand, past))


@jax.jit
def _age(region: Region, count, expected, forecast, demand) -> Ageing:
    controller = Renewal(region, routing=ROUTING, shared="chains")

    def chain(count: Array, expected: Array, forecast: Array, demand: Array):
        def step(state: Any, now: Any):
            expected, forecast, fresh, demand = now
            ageing = controller.ageing(state)
            state, _ = controller.decide(state, expected, fresh, 0.0, forecast=forecast, may=False)
            return controller.observe(state, demand), ageing

        start = controller.start(uniform_circuits(region.degrees).astype(count.dtype), len(count))
        return lax.scan(step, start, (expected, forecast, jnp.moveaxis(count, 1, 0), demand))[1]

    return jax.vmap(chain, axis_name="chains")(count, expected, forecast, demand)


# -------------------------------------------------------------------------------------------------------- the decision
class TimingNetwork(eqx.Module):
    """The logarithm of a factor on the saving; 0 before training, which is `Renewal`."""

    lift: eqx.nn.Linear
    drop: eqx.nn.Linear

    def __init__(self, key: PRNGKeyArray):
        lift, drop = jax.random.split(key)
        self.lift = eqx.nn.Linear(FEATURES, WIDTH, dtype=jnp.float32, key=lift)
        self.drop = jax.tree.map(jnp.zeros_like, eqx.nn.Linear(WIDTH, 1, dtype=jnp.float32, key=drop))

    def __call__(self, features: Float[Array, "F"]) -> Float[Array, ""]:
        return self.drop(jnp.tanh(self.lift(features)))[0]


class Followed(NamedTuple):
    """Circuits that may be in place: those proposed before each of T all-to-alls, and even ones (T).

    `kept_s`, `expected_s`, `imagined_s` [B T+1 T]; `family` [T]; `still` [T+1]: even circuits.
    """

    kept_s: Float[Array, "B K T"]
    expected_s: Float[Array, "B K T"]
    imagined_s: Float[Array, "B K T"]
    family: Int[Array, "T"]
    even: Array


def follow_families(tables: Tables, delay_s: Array) -> Followed:
    """Return the circuits of the family that `Renewal` takes before each all-to-all."""
    ageing, steps = tables.ageing, jnp.arange(tables.sent.shape[1], dtype=jnp.int32)
    delay = delay_s / jnp.where(ageing.mean_bytes > 0, ageing.mean_bytes, jnp.inf)
    cost = ageing.fresh + cycle_cost(ageing.loss, jnp.broadcast_to(delay[:, None], ageing.fresh.shape))
    family = cost.argmin(1).astype(jnp.int32)

    def pick(values: Array):
        return jnp.concatenate([values[:, family, steps], values[:, 0, :1]], axis=1)

    every = (tables.seconds, tables.expected_s, tables.imagined_s)
    return Followed(*map(pick, every), family, jnp.append(family == 0, True))


def expected_time(network: TimingNetwork, tables: Tables, delay_s: Array, soft: float) -> Float[Array, "B"]:
    """Return the expected seconds of each chain over all trajectories, if the margin decides by a logistic chance.

    The chance of each set of circuits to be in place goes from step to step. `soft` 0: the margin decides for sure.
    """
    chains, steps = tables.sent.shape
    followed = follow_families(tables, delay_s)

    def step(carry: tuple[Array, Array], now: Array):
        chance, age = carry
        state = _state_at(tables, followed, now, chance, age, delay_s)
        factor = jnp.exp(jax.vmap(jax.vmap(network))(_features(state)))
        margin = (factor * state.saving - state.least) / state.mean
        change = jax.nn.sigmoid(margin / soft) if soft else (margin > 0).astype(jnp.float32)
        change = jnp.where((followed.even & (followed.family[now] == 0))[None], 0, change)
        sent = tables.sent[:, now, None]
        changed_s, kept_s = followed.kept_s[:, now, now, None] * sent + delay_s, followed.kept_s[:, :, now] * sent
        seconds = (chance * (change * changed_s + (1 - change) * kept_s)).sum(1)
        moved = (chance * change).sum(1)
        chance = (chance * (1 - change)).at[:, now].add(moved)
        return (chance, age.at[now].set(0) + 1), seconds

    chance = jnp.zeros((chains, steps + 1), jnp.float32).at[:, steps].set(1)
    age = jnp.full(steps + 1, RECENT, jnp.float32).at[steps].set(2 * RECENT)
    return lax.scan(step, (chance, age), jnp.arange(SEEN, steps, dtype=jnp.int32))[1].sum(0)


class State(NamedTuple):
    """What is known before an all-to-all, for each set of circuits that may be in place [B K]; seconds a byte.

    - `saving`, `future`, `lost`: by fresh circuits on the demand expected, on those imagined, and on recent ones.
    - `least`: the saving from which `Renewal` reconfigures; `usual`, `loss` [J], `slope`, `delay`: its terms.
    - `age`; `left`: all-to-alls to come. `mean`: the time on fresh circuits.
    """

    saving: Float[Array, "B K"]
    future: Float[Array, "B K"]
    lost: Float[Array, "B K"]
    least: Float[Array, "1 K"]
    usual: Float[Array, "1 K"]
    loss: Float[Array, "J"]
    slope: Float[Array, ""]
    delay: Float[Array, ""]
    age: Float[Array, "1 K"]
    left: Float[Array, ""]
    mean: Float[Array, ""]


def _state_at(tables: Tables, followed: Followed, now: Array, chance: Array, age: Array, delay_s: Array) -> State:
    ageing, family = tables.ageing, followed.family[now]
    before = now - jnp.arange(1, RECENT + 1, dtype=jnp.int32)
    fresh = tables.seconds[:, family][:, before, before]
    lost = (followed.kept_s[:, :, before] - fresh[:, None]).mean(2)
    old = chance * (age >= RECENT)[None]
    usual = lax.stop_gradient((lost * old).sum() / jnp.maximum(old.sum(), TINY))  # chains share it, as in `Renewal`
    loss, slope, delay = ageing.loss[now, family], ageing.slope[now, family], delay_s / ageing.mean_bytes[now]
    usual = jnp.where(age < RECENT, lax.cummax(jnp.where(jnp.isfinite(loss), loss, 0))[-1], usual)
    left = (tables.sent.shape[1] - now).astype(jnp.float32)
    every, many = jnp.broadcast_to(loss, (len(age), len(loss))), jnp.ones(len(age), jnp.float32)
    least = least_saving(every, many * delay, usual_s=usual, remaining=many * left)
    saved, imagined = (
        values[:, :, now] - values[:, now, now, None] for values in (followed.expected_s, followed.imagined_s)
    )
    every = slope * saved, imagined, lost, least[None], usual[None]
    return State(*every, loss, slope, delay, age[None], left, ageing.fresh[now].min())


def _features(state: State) -> Float[Array, "B K F"]:
    seconds = (state.saving, state.future, state.lost, state.saving - state.least, state.least, state.usual)
    rising = lax.cummax(jnp.where(jnp.isfinite(state.loss), state.loss, 0))[jnp.asarray((1, 4, 12, -1))]
    times = [jnp.arcsinh(10 * value / state.mean) for value in (*seconds, *rising)]
    others = state.slope, jnp.log(state.delay / state.mean + SOFT) / 3, state.age / RECENT, state.left / RECENT
    return jnp.stack([jnp.broadcast_to(value, state.saving.shape) for value in (*times, *others)], axis=2)


def clairvoyant_time(tables: Tables, delay_s: Array) -> Float[Array, "B"]:
    """Return the least seconds of each chain on the same circuits, by dynamic programming."""
    followed, steps = follow_families(tables, delay_s), tables.sent.shape[1]
    seconds = followed.kept_s * tables.sent[:, None]

    def step(left: Array, now: Array):
        changed = seconds[:, now, now] + delay_s + left[:, now]
        return jnp.minimum(seconds[:, :, now] + left, changed[:, None]), None

    backwards = jnp.arange(steps - 1, SEEN - 1, -1, dtype=jnp.int32)
    return lax.scan(step, jnp.zeros(seconds.shape[:2], seconds.dtype), backwards)[0][:, steps]


# ------------------------------------------------------------------------------------------------------------ training
def _total(network: TimingNetwork, every: Tables, delays: Float[Array, "D"], soft: float) -> Float[Array, "C D"]:
    def of_regime(tables: Tables):
        return jax.vmap(lambda delay_s: expected_time(network, tables, delay_s, soft).sum())(delays)

    return lax.map(of_regime, every)


total = eqx.filter_jit(_total)


@jax.jit
def clairvoyant_total(every: Tables, delays: Float[Array, "D"]) -> Float[Array, "C D"]:
    return lax.map(lambda tables: jax.vmap(lambda delay_s: clairvoyant_time(tables, delay_s).sum())(delays), every)


def train(method: str, every: Tables, delays: Array, config: Config) -> TimingNetwork:
    """Return the network with the least time on these regimes, relative to `Renewal`; regimes count alike."""
    network = TimingNetwork(jax.random.key(0))
    usual = total(network, every, delays, 0.0)
    adam = optax.adam(optax.cosine_decay_schedule(RATE, config.steps))
    moments = adam.init(eqx.filter(network, eqx.is_array))

    @eqx.filter_jit
    def improve(network: TimingNetwork, moments: Any, key: PRNGKeyArray):
        drawing, trying = jax.random.split(key)
        some = jax.random.randint(drawing, (config.batch,), 0, len(usual))
        tables, before = jax.tree.map(lambda value: value[some], every), usual[some]

        def loss(network: TimingNetwork, soft: float):
            return (_total(network, tables, delays, soft) / before).mean()

        if method == "gradient":
            slope = eqx.filter_grad(loss)(network, SOFT)
        else:
            noise = jax.random.normal(trying, (config.trials // 2, count_weights(network)), jnp.float32)
            slope = evolve(lambda network: loss(network, 0.0), network, noise, NOISE)[1]
        with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
            change, moments = adam.update(slope, moments)
        return eqx.apply_updates(network, change), moments

    for key in jax.random.split(jax.random.key(1), config.steps):
        network, moments = improve(network, moments, key)
    return network


def run(config: Config) -> Found:
    """A row for each held-out regime and delay: per cent of time over `Renewal`."""
    regimes, every = list(draw_regimes(config)), []
    with bar("learned_timing", "regime", len(regimes)) as shown:
        for seed, regime in enumerate(regimes):
            every.append(tables_of(regime, seed, config))
            shown.update()
    held = max(1, len(every) // 4)
    judged, trained = (jax.tree.map(lambda *values: jnp.stack(values), *some) for some in (every[:held], every[held:]))
    delays = jnp.asarray(config.delays_s, jnp.float32)
    usual = total(TimingNetwork(jax.random.key(0)), judged, delays, 0.0)
    changes = {method: total(train(method, trained, delays, config), judged, delays, 0.0) for method in METHODS}
    changes["clairvoyant"] = clairvoyant_total(judged, delays)
    for (number, regime), (column, delay_s) in itertools.product(enumerate(regimes[:held]), enumerate(config.delays_s)):
        facts = {"regime": number, **regime._asdict(), "delay_s": delay_s}
        for rule, seconds in changes.items():
            change = 100 * float(seconds[number, column] / usual[number, column] - 1)
            yield facts | {"rule": rule, "change": change}


def means(rows: Rows) -> list[Row]:
    """Return the mean over regimes of each rule's change, and half of its 95 % interval, by delay."""
    found = []
    for (rule, delay_s), some in group_rows(rows, "rule", "delay_s").items():
        changes = [row["change"] for row in some]
        mean, half = float(np.mean(changes)), half_interval(changes)
        found.append({"rule": rule, "delay_s": delay_s, "delay": duration(delay_s), "mean": mean, "half": half})
    return found


table = told(
    "change of time against `Renewal` on regimes that no training saw, per cent, and its 95 % interval over regimes",
    then(means, pivot(["rule"], "{delay}", "{mean:+.2f} +-{half:.2f}")),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """What each rule gains at most at any delay."""
    found = []
    for (rule,), some in group_rows(means(rows), "rule").items():
        most = min(some, key=lambda row: row["mean"])
        found.append(Verdict(f"{rule} over renewal, most", "{mean:+.2f} % +-{half:.2f} at {delay}".format(**most)))
    return found


def build(rows: Rows) -> Chart:
    """Draw a curve for each rule over the delay."""
    curves = means(rows)
    looks = style.distinct_looks(dict.fromkeys(row["rule"] for row in curves))
    drawn = []
    for (rule,), some in group_rows(curves, "rule").items():
        spread = [(row["mean"] - row["half"], row["mean"] + row["half"]) for row in some]
        drawn.append(Curve(looks[rule], [(x, row["mean"]) for x, row in enumerate(some)], spread=spread))
    delays = list(dict.fromkeys(row["delay"] for row in curves))
    panel = Panel("", "delay of a reconfiguration", "change of time against renewal [%]", drawn, columns=delays)
    return Chart("Deciding when, on the same circuits", "Bars: 95 % intervals.", list(looks.values()), [panel])


QUICK = {"regimes": 8, "steps": 4, "trials": 4, "batch": 2, "chains": 2, "decisions": 8}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
