"""What is switching worth? Circuits set once, once an iteration, or for every block, by delay and traffic.

A region serves the MoE blocks of one pipeline stage; each block's demand drifts from iteration to iteration. Circuits
are uniform; or chosen by `sample_average`: once, for past iterations ("static"); once an iteration, for the one before
("iteration"); for every block ahead, for scenarios of its forecast ("ahead"); or for its demand when the gate has run
("block"). A forecast is the block's demand of the iteration before, with errors on top; how large its errors are is
estimated from the iteration before that. Shares of relay routing always know the demand.

A pass of a block has two all-to-alls, forward and backward, and turns the switch before each pair: "block" waits for
decision and delay forward; what else there is hides behind the block's own computation. An iteration's turn is hidden
by nothing. The border is the delay up to which switching ends the all-to-alls earlier than the static circuits do.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from matplotlib.colors import LogNorm

from mfabric_jax import policies, report
from mfabric_jax.apps.learning import Drift
from mfabric_jax.apps.learning.judging import over_bound
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import degree_bound
from mfabric_jax.traffic.log_errors import error_of
from mfabric_jax.traffic.scenarios import likely_demands

from .pictures import BELOW_ABOVE, heat
from .rows import Row, adding, duration, of, pivot, summed, then, told
from .script import Found, Ports, Script, cells, check

USUAL: dict[str, Any] = {"servers": 16, "optical_degree": 6, "skew": 1.0, "pairs": 0.5, "memory": 0.9, "sigma": 0.3}
VARIED: dict[str, tuple] = {
    "usual": (None,),
    "servers": (4, 8, 32),
    "optical_degree": (2, 4),
    "skew": (0.0, 2.0),
    "pairs": (1.0, 2.0),
    "memory": (0.0, 0.5, 0.99),
    "sigma": (0.0, 1.0),
}
DESIGNS = ("uniform", "static", "iteration", "ahead", "block")
BLOCKS = 16  # demands that circuits are for: the blocks of an iteration; as many of the past, or scenarios
PAST = 4  # iterations
EXCHANGES = 4  # of a block and micro-batch, forward and backward


@dataclasses.dataclass(frozen=True)
class Config(Ports):
    """What to vary, one thing at a time, and the job."""

    varied: tuple[str, ...] = tuple(VARIED)  # usual, servers, optical_degree, skew, pairs, memory, sigma.
    routings: tuple[str, ...] = ("relay", "unsplit")  # relay, split, unsplit.
    delays_s: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0)  # Reconfiguration delays.
    decisions_s: tuple[float, ...] = (0.0, 5e-3)  # What a decision takes.
    hidden_s: float = 5e-3  # Of a delay, behind a block's own computation.
    micro_batches: int = 8  # Of an iteration.
    iterations: int = 2  # Judged; the circuits know those before.
    seed: int = 0  # Of the demand.

    def __post_init__(self):
        known = {"varied": VARIED, "routings": ("relay", "split", "unsplit")}
        least = {1: "micro_batches iterations electrical_nics", 0: "optical_degree seed"}
        numbers = {"positive": "delays_s nic_gbps", "not_negative": "decisions_s hidden_s"}
        check(self, known=known, whole=least, **numbers)


class Times(NamedTuple):
    """Mean seconds of an all-to-all by design, without delays, and of the degree bound."""

    seconds: dict[str, float]
    bound_s: float


def run(config: Config) -> Found:
    """A row for each routing, place, decision and delay.

    - `<design>_s`: mean seconds of an all-to-all and its part of what the switch is waited for.
    - `<design>`: without that, over the degree bound.   - `best`: the design that is first of all.
    - `gain`: the static circuits' time over that of the best that switches.
    - `border_s`: the delay up to which "block" or "ahead" is earlier than static; `iteration_border_s`: "iteration".
    """
    places = [(name, value) for name in config.varied for value in VARIED[name]]
    for routing, (name, value) in cells(config, config.routings, places):
        place = USUAL | ({} if value is None else {name: value})
        times = times_of(config, place, routing)
        here = {"routing": routing, "varied": name, "value": value} | place | {"bound_s": times.bound_s}
        here |= {design: seconds / times.bound_s for design, seconds in times.seconds.items()}
        for decision_s in config.decisions_s:
            borders = {"border_s": border(config, times, decision_s), "iteration_border_s": rare_border(config, times)}
            for delay_s in config.delays_s:
                total = with_delay(config, times.seconds, delay_s, decision_s)
                row = {"decision_s": decision_s, "delay_s": delay_s}
                row |= {f"{design}_s": seconds for design, seconds in total.items()}
                best = min(total, key=lambda design: total[design])
                gain = total["static"] / min(total[design] for design in ("iteration", "ahead", "block"))
                yield here | borders | row | {"best": best, "gain": gain}


def with_delay(config: Config, seconds: dict[str, float], delay_s: float, decision_s: float) -> dict[str, float]:
    """Seconds of an all-to-all, each with its part of what is waited for."""
    behind = max(delay_s - config.hidden_s, 0)
    late = max(delay_s + decision_s - config.hidden_s, 0)
    waited = {"block": delay_s + decision_s + behind, "ahead": late + behind}
    waited["iteration"] = delay_s / (BLOCKS * config.micro_batches)
    return {design: time + waited.get(design, 0) / EXCHANGES for design, time in seconds.items()}


def border(config: Config, times: Times, decision_s: float) -> float:
    """The largest delay with which switching for every block is not later than the static circuits; 0: none."""

    def first(delay_s: float) -> bool:
        total = with_delay(config, times.seconds, delay_s, decision_s)
        return min(total["block"], total["ahead"]) <= total["static"]

    low, high = 0.0, 10.0
    if not first(low):
        return 0.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if first(middle) else (low, middle)
    return low


def rare_border(config: Config, times: Times) -> float:
    """The same for switching once an iteration."""
    gain = times.seconds["static"] - times.seconds["iteration"]
    return max(gain, 0.0) * EXCHANGES * BLOCKS * config.micro_batches


def times_of(config: Config, place: Row, routing: str) -> Times:
    """What the designs take on demand that drifts."""
    ports = dataclasses.replace(config, optical_degree=place["optical_degree"])
    region = ports.region(place["servers"])
    demand = drifting(place, PAST + config.iterations, config.seed)
    seen, true = demand[:PAST], demand[PAST:]
    noise = np.random.default_rng(config.seed).normal(size=demand.shape)
    forecast = np.where(demand > 0, demand * np.exp(place["sigma"] * noise), 0)
    error = error_of(forecast[PAST - 2], demand[PAST - 1])
    past = seen.reshape(-1, *seen.shape[2:])[np.linspace(0, PAST * BLOCKS - 1, BLOCKS).astype(int)]
    key = jax.random.key(config.seed)
    chosen = {
        "static": _circuits(past[None], region, routing),
        "iteration": _circuits(demand[PAST - 1 : -1], region, routing),
    }
    blocks = true.reshape(-1, *true.shape[2:])
    before = forecast[PAST - 1 : -1].reshape(blocks.shape)
    likely = jax.vmap(lambda key, one: likely_demands(key, one, error, BLOCKS))(
        jax.random.split(key, len(blocks)), before
    )
    chosen["ahead"] = _circuits(likely, region, routing)
    chosen["block"] = _circuits(blocks[:, None], region, routing)
    chosen["uniform"] = policies.get("uniform")(None, region).circuits.count[None]
    bounds = np.asarray(jax.vmap(lambda one: degree_bound(region, one))(jnp.asarray(blocks)))
    over = {name: np.asarray(_over(region, _spread(chosen[name], len(blocks)), blocks, routing)) for name in DESIGNS}
    return Times({name: float((over[name] * bounds).mean()) for name in DESIGNS}, float(bounds.mean()))


def drifting(place: Row, iterations: int, seed: int) -> Float[np.ndarray, "I L S S"]:
    """Bytes between servers in every block of every iteration."""
    source = Drift(skew=place["skew"], pairs=place["pairs"], memory=place["memory"], heat=0.0, burst=0.0)

    def one(key):
        begin, *keys = jax.random.split(key, iterations)
        state, first = source.first(begin, place["servers"], jnp.float32)
        rest = jax.lax.scan(lambda state, key: source.next(key, state), state, jnp.stack(keys))[1]
        return jnp.concatenate([first[None], rest])

    return np.asarray(jax.vmap(one, out_axes=1)(jax.random.split(jax.random.key(seed), BLOCKS)))


def _spread(count: Array, blocks: int) -> Array:
    return jnp.repeat(count, blocks // len(count), axis=0)


@functools.partial(jax.jit, static_argnames="routing")
def _circuits(demands: Float[Array, "N K S S"], region: Region, routing: str) -> Array:
    """One set of circuits for every K demands."""
    policy = policies.get("sample-average", routing=routing, share_steps=0)

    def one(demands):
        weights = jax.vmap(lambda one: degree_bound(region, one))(demands)
        return policy(demands, region, weights=weights).circuits.count

    return jax.vmap(one)(jnp.asarray(demands))


@functools.partial(jax.jit, static_argnames="routing")
def _over(region: Region, counts: Array, demands: Array, routing: str) -> Array:
    return jax.vmap(lambda count, demand: over_bound(region, Circuits(count), demand, routing, 100))(counts, demands)


def _named(varied: str, value: float | None) -> str:
    return varied if value is None else f"{varied.replace('_', ' ')} {value:g}"


named = adding(
    place=lambda row: _named(row["varied"], row["value"]),
    delay=lambda row: duration(row["delay_s"]),
    decision=lambda row: duration(row["decision_s"]),
)


def _until(key: str) -> Callable[[Row], str]:
    return lambda row: duration(float(f"{row[key]:.2g}")) if row[key] else "never"


ONCE = summed(("routing", "place"), **{design: of(design) for design in DESIGNS})
RATIOS = then(ONCE, report.plain)
BORDERS = pivot(("routing", "place"), "decided in {decision}", _until("border_s"))
RARE = pivot(("routing", "place"), "once an iteration", _until("iteration_border_s"))
table = then(
    named,
    told(
        "time over the degree bound, without delays",
        RATIOS,
        "switching for every block pays up to a delay of",
        BORDERS,
        "switching once an iteration pays up to a delay of",
        RARE,
    ),
)


build = then(
    named,
    heat(
        ("delay", "reconfiguration delay"),
        ("place", ""),
        ("gain", "static circuits' time over the best that switches"),
        LogNorm(0.5, 2, clip=True),
        panel="{routing}, decided in {decision}",
        colours=BELOW_ABOVE,
        number="{:.2f}",
        title="Static circuits' time over that of the best that switches; above 1, switching pays",
    ),
)


SCRIPT = Script(
    Config,
    quick={"varied": ("usual",), "routings": ("unsplit",), "delays_s": (1e-6, 1e-3), "iterations": 1},
)
SCRIPT.start(__name__)
