"""What does it pay to learn that turning costs? Chains of all-to-alls: learned, untrained and searched circuits.

Demand of the test split drifts from one all-to-all to the next ("drift", and "butterfly", which no policy was trained
on), or follows a recording. Policies see forecasts: the truth with log-normal errors, or ("predicted") the demand of
the step before, whose errors are known from the validation split. A change of circuits costs the delay. Relay shares
know the true demand. Circuits are uniform at first; those of "previous" stay as greedy-next sets them for the demand
before the chain. "if it pays": the same proposals, kept or turned as a network does (`policies.weighing`); "learned
always": what the network proposes, without weighing. With `--trained` learned is what those files hold.
"""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax import policies, traffic, units
from mfabric_jax.apps.learning.chains import Chain, chain_time_over_bound, error_spread, serve_chain
from mfabric_jax.apps.learning.judging import over_bound
from mfabric_jax.apps.learning.sources import BYTES_PER_SERVER
from mfabric_jax.apps.learning.step_costs import change_s
from mfabric_jax.apps.learning.trajectories import Trajectory
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import greedy, uniform
from mfabric_jax.policies.learned import shipped_network
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.weighing import relative_delay, weigh_circuits
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.traffic.demand_families import noisy_forecast
from mfabric_jax.traffic.samplers import drifting, split_key
from mfabric_jax.traffic.scenarios import likely_demands

from .many_demands import butterfly
from .pictures import lines
from .rows import Row, Rows, group_rows, half_interval, of, picked, pivot, summed, then, told, where
from .script import Found, Ports, Script, Verdict, cells, check

DRIFT, UNSEEN, RECORDED = "drift", "butterfly", "smartmoe"
FAMILIES = (DRIFT, UNSEEN, RECORDED)
PREDICTED = "predicted"
LEARNED, ALWAYS = "learned", "learned always"
NETWORKS = (LEARNED, ALWAYS, "untrained")
STILL = ("uniform", "previous")
SAMPLED = "sample-average"
SEARCHED = ("greedy", "joint", SAMPLED)
PAYING = " if it pays"
POLICIES = (*NETWORKS, *STILL, *SEARCHED, *(name + PAYING for name in SEARCHED))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(Ports):
    """What drifts, how wrong forecasts are, what a turn costs, and who plans."""

    servers: tuple[int, ...] = (8, 16)  # Sizes of the region.
    families: tuple[str, ...] = FAMILIES  # Demand; smartmoe needs trace.
    trace: str | None = None  # Folder of the SmartMoE gate trace.
    forecasts: tuple[str, ...] = ("0", "0.6", "1", PREDICTED)  # Standard deviations of logarithms, or predicted.
    delays_ms: tuple[float, ...] = (0.0, 1.0, 25.0)  # Reconfiguration delays that nothing hides.
    policies: tuple[str, ...] = POLICIES  # Who plans.
    trained: tuple[str, ...] | None = None  # Files of learned policies, one for each seed; none: the one that ships.
    steps: int = 6  # All-to-alls of a chain.
    chains: int = 8  # Of every seed.
    seeds: int = 5  # Of draws, over which intervals are.
    scenarios: int = 8  # For which sample-average plans.
    share_steps: int = 100  # Towards relay shares.

    def __post_init__(self):
        check(
            self,
            known={"families": FAMILIES, "policies": POLICIES},
            whole={2: "servers steps seeds", 1: "chains scenarios share_steps"},
            not_negative="delays_ms",
        )
        for forecast in self.forecasts:
            if forecast != PREDICTED and not forecast.replace(".", "", 1).isdecimal():
                raise InputError(f"forecasts must be numbers or {PREDICTED}, got {forecast!r}.")
        if not self.cases():
            raise InputError("families 'smartmoe' needs trace, and nothing else is left.")

    def cases(self) -> list[str]:
        return [name for name in self.families if name != RECORDED or self.trace is not None]


# -- chains
class Drawn(NamedTuple):
    """Demands [B T+1 S S] bytes of the test split, and the error of the demand before as a prediction."""

    demand: Float[Array, "B T+1 S S"]
    error: float


def drawn(config: Config, family: str, servers: int, seed: int) -> Drawn:
    def of(split: str):
        keys = jax.random.split(jax.random.key(seed), config.chains)
        if family == UNSEEN:
            return jax.vmap(lambda key: _butterflies(split_key(key, split), servers, config.steps + 1))(keys)
        return _sampled(
            _sampler(str(config.trace) if family == RECORDED else family, split), keys, servers, config.steps + 1
        )

    error = float(_apart(of("validation")))
    demand = of("test")
    total = demand.sum((2, 3), keepdims=True)
    return Drawn(demand / jnp.where(total > 0, total, 1) * BYTES_PER_SERVER * servers, error)


_sampler = functools.cache(traffic.sampler)


@functools.partial(jax.jit, static_argnames=("sampler", "servers", "steps"))
def _sampled(sampler: Callable, keys: Array, servers: int, steps: int) -> Array:
    return jax.vmap(lambda key: sampler(key, servers, steps))(keys)


@jax.jit
def _apart(demand: Float[Array, "B T S S"]) -> Float[Array, ""]:
    return jax.vmap(lambda one: error_spread(one[:-1], one[1:]))(demand).mean()


@functools.partial(jax.jit, static_argnames=("servers", "steps"))
def _butterflies(key, servers: int, steps: int) -> Array:
    draw, walk = jax.random.split(key)
    return drifting(walk, butterfly(draw, servers), steps)


def chains_of(found: Drawn, region: Region, forecast: str, seed: int) -> Chain:
    """As batches [B ...]; the first demand is of the past."""
    past, true = found.demand[:, :-1], found.demand[:, 1:]
    sigma = found.error if forecast == PREDICTED else float(forecast)
    keys = jax.random.split(jax.random.key(seed + 1), true.shape[:2])
    noisy = jax.vmap(jax.vmap(lambda key, one: noisy_forecast(key, one, sigma)))(keys, true)
    many = len(true)
    every = jax.tree.map(lambda x: jnp.broadcast_to(jnp.asarray(x), (many, *jnp.shape(x))), region)
    guess = past if forecast == PREDICTED else noisy
    return Chain(every, true, guess, jnp.full(many, sigma, jnp.float32), jnp.zeros(many, jnp.float32))


# -- plans
def proposals(config: Config, name: str, chains: Chain) -> Int[Array, "B T S S"]:
    """What a searching policy proposes for every forecast."""
    sampled = name == SAMPLED
    policy = policies.get(name, **({"share_steps": 0} if sampled else {}))
    return _proposed(policy, config.scenarios if sampled else 1, sampled, chains)


@functools.partial(jax.jit, static_argnames=("policy", "many", "sampled"))
def _proposed(policy: Callable, many: int, sampled: bool, chains: Chain) -> Int[Array, "B T S S"]:
    def one(region, forecast, sigma, key):
        seen = likely_demands(key, forecast, sigma, many) if sampled else forecast
        return policy(seen, region, previous=None, key=key).circuits.count

    def chain(chain: Chain, key):
        keys = jax.random.split(key, len(chain.forecast))
        return jax.vmap(lambda forecast, key: one(chain.region, forecast, chain.sigma, key))(chain.forecast, keys)

    return jax.vmap(chain)(chains, jax.random.split(jax.random.key(0), len(chains.demand)))


@functools.partial(jax.jit, static_argnames=("paying", "steps"))
def carried(chains: Chain, proposed: Int[Array, "B T S S"], start: Int[Array, "B S S"], *, paying: bool, steps: int):
    """Time over the degree bounds [B] and the part of steps that turn [B], with proposals that are always taken, or
    taken where that pays."""

    def one(chain: Chain, proposed, start) -> Trajectory:
        def step(before, now):
            demand, forecast, count = now
            if paying:
                delay = relative_delay(chain.region, forecast, chain.hidden_s)
                count = weigh_circuits(count, forecast, chain.region, previous=before, sigma=chain.sigma, delay=delay)
            bound = degree_bound(chain.region, demand)
            late = over_bound(chain.region, Circuits(count), demand, "relay", steps) * bound
            paid = jnp.maximum(change_s(before, count, chain.region.delay_s, 0.0) - chain.hidden_s, 0)
            return count, Trajectory(count, jnp.any(count != before), late, paid)

        return lax.scan(step, start, (chain.demand, chain.forecast, proposed))[1]

    found = jax.vmap(one)(chains, proposed, start)
    return chain_time_over_bound(chains, found), found.changed.mean(1)


@eqx.filter_jit
def by_network(model: PolicyNetwork, chains: Chain, steps: int, always: bool):
    """As `carried`, by a network that weighs what it proposes, or takes it `always`."""

    def proposing(demand, region, *, previous, key, sigma=0.0, hidden_s=0.0) -> Plan:
        count = model.propose_circuits(demand, region, previous.circuits.count, sigma=sigma, hidden_s=hidden_s)
        return Plan(Circuits(count))

    policy = proposing if always else functools.partial(model, share_steps=0)
    keys = jax.random.split(jax.random.key(0), len(chains.demand))
    found = jax.vmap(lambda chain, key: serve_chain(policy, chain, key, steps))(chains, keys)
    return chain_time_over_bound(chains, found), found.changed.mean(1)


def network_of(config: Config, name: str, seed: int) -> PolicyNetwork:
    if name == "untrained":
        return PolicyNetwork(weighs=True, key=jax.random.key(seed))
    if config.trained:
        return policies.load(config.trained[seed % len(config.trained)]).model  # type: ignore[return-value]
    return shipped_network().model  # type: ignore[return-value]


def run(config: Config) -> Found:
    """Rows of two kinds.

    - "chains", for each place, policy and seed: `over`, time over the degree bounds; `turned`, part of the steps.
    - "decision", for each size and policy that plans: `decision_ms`, on this machine.
    """
    for (servers,) in cells(config, config.servers):
        for name, milliseconds in decision_ms(config, servers).items():
            yield {"row": "decision", "servers": servers, "policy": name, "decision_ms": milliseconds}
    for servers, family, seed in cells(config, config.servers, config.cases(), range(config.seeds)):
        region = dataclasses.replace(config.region(servers), delay_s=jnp.zeros((), jnp.float32))
        found = drawn(config, family, servers, seed)
        for forecast in config.forecasts:
            chains = chains_of(found, region, forecast, seed)
            place = {"row": "chains", "servers": servers, "family": family, "forecast": forecast, "seed": seed}
            judged = _judged(config, chains, found, region, seed)
            for delay_ms in config.delays_ms:
                delayed = jnp.full(len(chains.demand), units.ms(delay_ms), jnp.float32)
                now = chains._replace(region=eqx.tree_at(lambda region: region.delay_s, chains.region, delayed))
                for name in config.policies:
                    over, turned = judged(name, now)
                    row = place | {"delay_ms": delay_ms, "policy": name}
                    yield row | {"over": float(over.mean()), "turned": float(turned.mean())}


def _judged(config: Config, chains: Chain, found: Drawn, region: Region, seed: int) -> Callable:
    even = jnp.broadcast_to(uniform(None, region).circuits.count, chains.demand.shape[:1] + chains.demand.shape[2:])
    proposed = functools.cache(lambda name: proposals(config, name, chains))
    steps = config.share_steps

    def judged(name: str, now: Chain):
        if name in NETWORKS:
            return by_network(network_of(config, name, seed), now, steps, name == ALWAYS)
        if name in STILL:
            still = even if name == "uniform" else _before(found.demand[:, 0], region)
            staying = jnp.broadcast_to(still[:, None], chains.demand.shape).astype(even.dtype)
            return carried(now, staying, still, paying=False, steps=steps)
        plain = name.removesuffix(PAYING)
        return carried(now, proposed(plain), even, paying=plain != name, steps=steps)

    return judged


@jax.jit
def _before(demand: Float[Array, "B S S"], region: Region) -> Int[Array, "B S S"]:
    return jax.vmap(lambda one: greedy(one, region, rule="next").circuits.count)(demand)


def decision_ms(config: Config, servers: int, repeats: int = 3) -> dict[str, float]:
    """Processor milliseconds of a decision in a batch of all chains and steps of drifting demand, compiled before."""
    found, region = drawn(config, DRIFT, servers, 0), config.region(servers)
    chains = chains_of(found, dataclasses.replace(region, delay_s=jnp.float32(units.ms(1))), "1", 0)
    model, even = network_of(config, LEARNED, 0), uniform(None, region).circuits.count
    ways: dict[str, Callable] = {
        LEARNED: functools.partial(_decided, model, chains, even, False),
        ALWAYS: functools.partial(_decided, model, chains, even, True),
    }
    ways |= {name: functools.partial(proposals, config, name, chains) for name in SEARCHED}
    times = {}
    for name in (name for name in config.policies if name in ways):
        jax.block_until_ready(ways[name]())
        began = time.process_time()
        for _ in range(repeats):
            jax.block_until_ready(ways[name]())
        times[name] = units.to_ms(time.process_time() - began) / repeats / (config.chains * config.steps)
    return times


@eqx.filter_jit
def _decided(model: PolicyNetwork, chains: Chain, before: Int[Array, "S S"], always: bool) -> Int[Array, "B T S S"]:
    """The network's circuits for every forecast, with those `before` in place."""
    choose, steps = model.propose_circuits if always else model.choose_circuits, chains.demand.shape[1]
    forecasts = chains.forecast.reshape(-1, *chains.forecast.shape[2:])  # XLA for CPUs fails under two `vmap`
    region, sigma = jax.tree.map(lambda x: jnp.repeat(x, steps, axis=0), (chains.region, chains.sigma))
    found = jax.vmap(lambda now, region, sigma: choose(now, region, before, sigma=sigma))(forecasts, region, sigma)
    return found.reshape(chains.forecast.shape)


# -- what came out
PLACE = ("servers", "family", "forecast", "delay_ms")
chained = where(row="chains")
means: Callable[[Rows], list[Row]] = summed(
    (*PLACE, "policy"), over=of("over"), half=lambda rows: half_interval([row["over"] for row in rows])
)


def beside(rows: Rows) -> list[Row]:
    """How much longer `learned` takes than others do in the same chains: `over`, less 1, for each place and seed."""
    learned = {tuple(row[key] for key in (*PLACE, "seed")): row["over"] for row in picked(rows, policy=LEARNED)}
    others = [row for row in rows if row["policy"] != LEARNED and learned]
    return [row | {"over": learned[tuple(row[key] for key in (*PLACE, "seed"))] / row["over"] - 1} for row in others]


def overall(rows: Rows) -> list[Row]:
    """Means over families, for each of the rest of the place and seed."""
    key = ("servers", "forecast", "delay_ms", "policy", "seed")
    return [row | {"family": "mean"} for row in summed(key, over=of("over"))(rows)]


LINE = ("servers", "family", "delay_ms", "policy")
table = told(
    "time of the chain over its degree bounds, turns included, +- half of the 95 % interval over seeds",
    then(chained, means, pivot(LINE, "{forecast}", "{over:.3f} +-{half:.3f}")),
    "how much longer learned takes than each other policy, in the same chains",
    then(chained, beside, means, pivot(LINE, "{forecast}", "{over:+.1%} +-{half:.1%}")),
    "the same, of means over families",
    then(chained, overall, beside, means, pivot(LINE, "{forecast}", "{over:+.1%} +-{half:.1%}")),
    "milliseconds of processor time of a decision",
    then(where(row="decision"), pivot(("policy",), "{servers} servers", "{decision_ms:.3f}")),
)


def verdicts(rows: Rows) -> list[Verdict]:
    """Learned beside what it should be as good as, where it is worst; and its decision time."""
    gains = means(beside(chained(rows)))
    longest = max((row["delay_ms"] for row in gains), default=0)
    asked = [(f"{longest:g} ms", {"policy": name, "delay_ms": longest}) for name in (SAMPLED, SAMPLED + PAYING)]
    asked += [(PREDICTED, {"policy": "uniform", "forecast": PREDICTED})]
    asked += [(RECORDED, {"policy": "untrained", "family": RECORDED})]
    found = []
    for case, kept in asked:
        for (servers,), here in group_rows(picked(gains, **kept), "servers").items():
            worst = max(here, key=lambda row: row["over"])
            place = "{over:+.1%} +-{half:.1%} ({family}, forecast {forecast}, {delay_ms:g} ms)".format(**worst)
            found.append(Verdict(f"learned over {kept['policy']}, {case}, {servers} servers, most", place))
    for (servers,), here in group_rows(picked(rows, row="decision"), "servers").items():
        spent = {row["policy"]: row["decision_ms"] for row in here}
        if {LEARNED, SAMPLED} <= set(spent):
            times = f"{spent[SAMPLED] / spent[LEARNED]:.1f} times"
            found.append(Verdict(f"decision of {SAMPLED} over learned, {servers} servers", times))
    return found


def build(rows: Rows):
    """The mean over families by delay, with a panel for each number of servers and forecast."""
    whole = summed(("servers", "forecast", "delay_ms", "policy"), over=of("over"))
    shown = [row for row in whole(chained(rows)) if row["policy"] not in (ALWAYS, *SEARCHED)]
    axes = ("delay_ms", "delay [ms]"), ("over", "time over the degree bounds")
    return lines(*axes, "{policy}", panel="{servers} servers, forecast {forecast}")(shown)


QUICK = {"servers": (8,), "families": (DRIFT,), "forecasts": ("0", "1"), "seeds": 2, "chains": 2, "steps": 3}
QUICK |= {"scenarios": 2}
SCRIPT = Script(Config, quick=QUICK)
SCRIPT.start(__name__)
