"""Circuits by gradient steps on real-valued ones, rounded, then bettered move by move.

Logits become circuits within every server's degree by symmetric scaling (`soft_circuits`). Adam lowers the time of the
all-to-all, softened over ports and circuits, from a start in proportion to the demand and from others with Gumbel
noise, while the temperature falls and counts are drawn to whole numbers. The best of all roundings enters
`local_search.improved`.

Local search from greedy circuits alone (`local_search`) is as good on these; the relaxation matters by itself where
moves are not to be had, and for relay routing (`joint`).
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.checks import one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._local_search import improved
from mfabric_jax.policies._soft_circuits import (
    annealed,
    drawn_to_whole,
    first_logits,
    relaxed_jointly,
    rounded,
    soft_circuits,
)
from mfabric_jax.policies.samples import NormalisedDemand, normalised, samples_of
from mfabric_jax.routing import Plan, fluid_lower_bound, relay_shares
from mfabric_jax.routing.region import between_servers

ROUTINGS = ("unsplit", "split", "relay")
NEWTON = 6  # steps to a port's time under split routing; 2 to 5 in practice
FAINT = 1e-3  # EPS NICs of a server that has none: finite times
HALF = 0.5  # of a circuit: pairs that lack less may go without
NOISES = (0.0, 0.15, 0.3)  # of roundings


def relaxed(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous=None,
    key: PRNGKeyArray | None = None,
    routing: str = "split",
    steps: int = 150,
    samples: int = 4,
    rounds: int = 100,
) -> Plan:
    """Circuits with which one all-to-all ends early when its flows are paced (`fluid_lower_bound`).

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `key`: of noise; None: always the same.
    - `routing`: what to be good for: "split" by its exact time per port, "unsplit" by a smooth stand-in, "relay" by
      relaxed shares (`relaxed_jointly`); the plan then has shares (`relay_shares`).
    - `steps`, `samples`: gradient steps from each of so many starts.
    - `rounds`: of local search at the end; relay routing has none.

    Legal for any demand. Compiled once per shape; batched by `vmap`, at about 30 S^2 floats each sample. `previous` is
    not used. Quality: module docstring.
    """
    one_of("routing", routing, ROUTINGS)
    demand = between_servers(region, demand)
    whole("steps", steps, at_least=0)
    whole("samples", samples)
    whole("rounds", rounds, at_least=0)
    key = jax.random.key(0) if key is None else key
    if routing == "relay":
        return Plan(*_relaying(demand, region, key, steps, samples))
    return Plan(Circuits(_relaxed(demand, region, key, routing, steps, samples, rounds)))


@functools.partial(jax.jit, static_argnames=("routing", "steps", "samples", "rounds"))
def _relaxed(demand, region: Region, key, routing: str, steps: int, samples: int, rounds: int) -> Int[Array, "S S"]:
    start, deal = jax.random.split(key)
    need, degrees = normalised(demand, region), region.degrees
    latest = split_latest if routing == "split" else unsplit_latest

    def objective(logits, temperature, strength):
        return latest(need, drawn_to_whole(soft_circuits(logits, degrees), strength), temperature)

    def descended(logits):
        return soft_circuits(annealed(objective, logits, steps), degrees)

    soft = jax.vmap(descended)(first_logits(demand, start, samples))
    candidates = jax.vmap(lambda count, key: _roundings(count, degrees, key))(soft, jax.random.split(deal, samples))
    candidates = candidates.reshape(-1, *demand.shape)

    def seconds(count):
        return fluid_lower_bound(region, Circuits(count), demand, routing=routing)

    best = candidates[jnp.argmin(jax.vmap(seconds)(candidates))]
    return improved(best, demand, region, routing=routing, rounds=rounds)


def _roundings(count: Float[Array, "S S"], degrees, key) -> Int[Array, "K S S"]:
    """Plain and noisy ones, each with all NICs allocated and with pairs that lack less than half a circuit left out."""
    noise = jnp.asarray(NOISES, count.dtype)
    keys = jax.random.split(key, len(NOISES))
    least = jnp.asarray((-jnp.inf, HALF), count.dtype)
    every = jax.vmap(
        jax.vmap(lambda noise, key, least: rounded(count, degrees, least=least, noise=noise, key=key), (0, 0, None)),
        (None, None, 0),
    )
    return every(noise, keys, least).reshape(-1, *count.shape)


def split_latest(need: NormalisedDemand, count: Float[Array, "S S"], temperature) -> Float[Array, ""]:
    """Split routing's time in units of the degree bound, the largest over ports softened by a log-sum-exp.

    Every port's own time is the root t of sum_j max(D_j - C_j t, 0) = E t, by Newton from below as in `split_seconds`;
    its slope is that of the one ratio at the root.
    """
    demand = jnp.concatenate([need.pairs, need.pairs.T])
    circuit = jnp.concatenate([count, count])
    port = jnp.tile(jnp.maximum(need.ports, FAINT), 2)

    def ratio(at):
        late = demand > circuit * at[:, None]
        return jnp.where(late, demand, 0).sum(1) / (port + jnp.where(late, circuit, 0).sum(1))

    root = lax.fori_loop(0, NEWTON, lambda _, at: lax.stop_gradient(ratio(at)), jnp.zeros_like(port))
    return _softest(ratio(root), temperature)


def unsplit_latest(need: NormalisedDemand, count: Float[Array, "S S"], temperature) -> Float[Array, ""]:
    """A smooth stand-in for unsplit routing's time in units of the degree bound.

    A pair with less than one circuit uses it with that probability and else the EPS: its time on circuits, as fast as
    one, counts so much in the log-sum-exp, and the rest of its bytes in those of the EPS ports.
    """
    active = jnp.minimum(count, 1)
    on_circuits = need.pairs / jnp.maximum(count, 1)
    rest = need.pairs * (1 - active)
    port = jnp.maximum(need.ports, FAINT)
    times = jnp.concatenate([on_circuits.reshape(-1), rest.sum(1) / port, rest.sum(0) / port])
    weight = jnp.concatenate([jnp.where(need.pairs > 0, active, 0).reshape(-1), jnp.ones(2 * len(port), active.dtype)])
    return _softest(times, temperature, weight)


def _softest(times, temperature, weight=None):
    return temperature * jax.nn.logsumexp(times / temperature, b=weight)


@functools.partial(jax.jit, static_argnames=("steps", "samples"))
def _relaying(demand, region: Region, key, steps: int, samples: int) -> tuple[Circuits, Float[Array, "S S S+2"]]:
    one_sample = samples_of(demand[None], region)

    def one(logits):
        circuits = Circuits(rounded(relaxed_jointly(one_sample, logits, steps), region.degrees))
        shares = relay_shares(region, circuits, demand)
        return circuits, shares, fluid_lower_bound(region, Plan(circuits, shares), demand, routing="relay")

    circuits, shares, seconds = jax.vmap(one)(first_logits(demand, key, samples))
    best = jnp.argmin(seconds)
    return jax.tree.map(lambda x: x[best], (circuits, shares))
