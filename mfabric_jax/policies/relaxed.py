"""The policy `relaxed`: Adam lowers a softened all-to-all time over real-valued circuits, which are then rounded.

`soft_circuits` keeps circuits within the degrees. Counts are drawn to whole numbers while the temperature falls.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Float, Int, PRNGKeyArray

from mfabric_jax.checks import one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.arguments import ROUTINGS, demand_of, unless_nan
from mfabric_jax.policies.circuit_search import Delivery, Found, best, improve_circuits, settle_each
from mfabric_jax.policies.local_search import tabu_search
from mfabric_jax.policies.paced import paced_delivery, split_latest, unsplit_latest
from mfabric_jax.policies.samples import Samples, counting, risk_of, samples_of
from mfabric_jax.routing import Plan, fluid_lower_bound, relay_shares
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.platforms import map_members

SCALINGS = 12  # rounds of Sinkhorn scaling; `within_degrees` removes the excess that remains
HOT, COLD = 0.3, 0.005  # first and last softness of the latest time, in degree bounds
RATE, LAST_RATE = 0.15, 0.0075  # first and last step size of Adam in the logits
MEMORY = (0.8, 0.95)  # Adam's decay rates b1, b2: short, because the temperature falls
FLOOR = 0.1  # bytes added to every pair for the first circuits, relative to the mean pair
STAIRS_FROM = 1 / 3  # fraction of the steps after which counts are drawn to whole numbers
INACTIVE = 1e-3  # circuits assumed for a pair without any, to keep times finite
HALF = 0.5  # circuits; some roundings give none to a pair that lacks less
PATIENCE = 3  # rounds of swaps without improvement after which one of several starts stops
NOISES = (0.0, 0.15, 0.3)  # standard deviations of the noise of the roundings

Objective = Callable[[Any, Array, Array], Array]


def demand_logits(demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Return logits of circuits proportional to a pair's bytes (larger direction) plus a tenth of the mean."""
    pairs = jnp.maximum(demand, demand.T)
    mean = pairs.mean()
    usable = (mean > 0) & jnp.isfinite(mean)
    return jnp.log(jnp.where(usable, pairs / jnp.where(usable, mean, 1), 1) + jnp.asarray(FLOOR, demand.dtype))


def first_logits(demand: Float[Array, "S S"], key: PRNGKeyArray, samples: int) -> Float[Array, "K S S"]:
    noise = jax.random.gumbel(key, (samples, *demand.shape), demand.dtype).at[0].set(0)
    return demand_logits(demand)[None] + noise


def soft_circuits(logits: Float[Array, "S S"], degrees: Int[Array, "S"]) -> Float[Array, "S S"]:
    """Return real-valued circuits: exp(logits), with both directions averaged, scaled to the degrees; differentiable.

    Symmetric Sinkhorn scaling in logarithms: c_ij = exp(l_ij + u_i + u_j), u <- (u + log degree - logsumexp_j(l_ij +
    u_j)) / 2; without the half, u alternates between two solutions.
    Source: Knight, Ruiz and Ucar, SIAM J. Matrix Anal. Appl. 35(3), 2014.
    """
    servers, dtype = len(degrees), logits.dtype
    some = degrees > 0
    open_ = some[:, None] & some[None, :] & ~jnp.eye(servers, dtype=bool)
    partners = open_.any(1)
    level = jnp.where(open_, (logits + logits.T) / 2, 0)
    degree = degrees.astype(dtype)
    wanted = jnp.log(jnp.where(some, degree, 1))

    def scale(u: Array, _):
        terms = jnp.where(open_, level + u[None, :], -jnp.inf)
        total = jax.nn.logsumexp(jnp.where(partners[:, None], terms, 0), axis=1)
        return jnp.where(partners, (u + wanted - total) / 2, 0), None

    u, _ = lax.scan(scale, jnp.zeros(servers, dtype), length=SCALINGS)
    count = jnp.where(open_, jnp.exp(level + u[:, None] + u[None, :]), 0)
    return within_degrees(count, degrees)


def within_degrees(count: Float[Array, "S S"], degrees: Int[Array, "S"]) -> Float[Array, "S S"]:
    """Return the circuits, scaled down at servers that exceed their degree."""
    used, degree = count.sum(1), degrees.astype(count.dtype)
    fits = jnp.where(used > degree, degree / jnp.where(used > degree, used, 1), 1)
    return count * jnp.minimum(fits[:, None], fits[None, :])


def draw_to_whole(count: Float[Array, "*B"], strength: Float[Array, ""]) -> Float[Array, "*B"]:
    """Return capacities c - strength sin(2 pi c) / (2 pi) of circuits c; at strength 1, a staircase flat at whole c."""
    period = jnp.asarray(2 * np.pi, count.dtype)
    return count - strength * jnp.sin(period * count) / period


def anneal(objective: Objective, start: Any, steps: int):
    """Return the parameters after `steps` of Adam on `objective(parameters, temperature, strength)`.

    `strength` goes to `draw_to_whole`.
    """
    dtype = jax.tree.leaves(start)[0].dtype
    adam = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1), LAST_RATE / RATE), *MEMORY)
    temperature = jnp.asarray(np.geomspace(HOT, COLD, steps), dtype)
    part = np.linspace(0, 1, steps)
    strength = jnp.asarray(np.clip((part - STAIRS_FROM) / (1 - STAIRS_FROM), 0, 1), dtype)

    def step(state: tuple[Any, ...], annealing: Any):
        parameters, moments = state
        slope = jax.grad(objective)(parameters, *annealing)
        with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
            change, moments = adam.update(slope, moments)
        return (jax.tree.map(jnp.add, parameters, change), moments), None

    return lax.scan(step, (start, adam.init(start)), (temperature, strength))[0][0]


@jax.jit
def round_circuits(
    count: Float[Array, "S S"],
    degrees: Int[Array, "S"],
    *,
    least: Float[Array, ""] | float = -jnp.inf,
    noise: Float[Array, ""] | float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Int[Array, "S S"]:
    """Round circuits down, then give one at a time to the pair that lacks most while NICs are free.

    The result is legal for any `count` [S S]: both directions are averaged; the diagonal, NaN and negative values count
    as 0; a server's excess is scaled down. A pair that lacks less than `least` circuits gets no further one. `key` adds
    noise of standard deviation `noise` to what pairs lack. Ties go to the lower (i, j).
    """
    servers, dtype = len(degrees), count.dtype
    upper = jnp.triu(jnp.ones((servers, servers), bool), 1)
    most = jnp.minimum(degrees[:, None], degrees[None, :]).astype(dtype)
    wanted = jnp.where(upper, jnp.clip(jnp.nan_to_num((count + count.T) / 2, nan=0), 0, most), 0)
    wanted = jnp.triu(within_degrees(wanted + wanted.T, degrees), 1)
    whole = jnp.floor(wanted)
    allocated = whole.astype(jnp.int32)
    lack = wanted - whole
    if key is not None:
        lack += jnp.asarray(noise, dtype) * jax.random.normal(key, lack.shape, dtype)
    enough = upper & (lack >= jnp.asarray(least, dtype))

    def open_(state: tuple[Any, ...]):
        _, free, lack = state
        return enough & (lack >= jnp.asarray(least, dtype)) & (free > 0)[:, None] & (free > 0)[None, :]

    def deal(state: tuple[Any, ...]):
        allocated, free, lack = state
        i, j = jnp.divmod(jnp.argmax(jnp.where(open_(state), lack, -jnp.inf)), servers)
        return allocated.at[i, j].add(1), free.at[i].add(-1).at[j].add(-1), lack.at[i, j].add(-1)

    free = degrees - (allocated + allocated.T).sum(1, dtype=degrees.dtype)
    allocated = lax.while_loop(lambda state: open_(state).any(), deal, (allocated, free, lack))[0]
    return allocated + allocated.T


@functools.partial(jax.jit, static_argnames=("steps", "tail"))
def relax_jointly(samples: Samples, logits: Float[Array, "S S"], steps: int, tail: float = 1.0) -> Float[Array, "S S"]:
    """Return nearly whole circuits after gradient steps on `softened_time` in circuit logits and relay potentials."""

    def objective(parameters: Any, temperature: Array, strength: Array):
        logits, potentials = parameters
        return softened_time(samples, logits, potentials, temperature, strength, tail)

    return soft_circuits(anneal(objective, (logits, samples.cold), steps)[0], samples.degrees)


def softened_time(
    samples: Samples,
    logits: Float[Array, "S S"],
    potentials: Float[Array, "K links S"],
    temperature: Array,
    strength: Array,
    tail: float,
) -> Float[Array, ""]:
    """Return the softened time over the degree bound, averaged over the samples that count."""
    return softened_circuit_time(samples, width_of(samples, logits, strength), potentials, temperature, tail)


def softened_circuit_time(
    samples: Samples, width: Float[Array, "S S"], potentials: Float[Array, "K links S"], temperature: Array, tail: float
) -> Float[Array, ""]:
    """Return `softened_time` of real-valued circuits."""

    def sample_time(pairs: Array, potentials: Array):
        links, late = samples.links(pairs, width)
        return temperature * jax.nn.logsumexp(links.seconds(potentials) / temperature) + late

    seconds = jax.vmap(sample_time)(samples.pairs, potentials)
    counts = jax.lax.stop_gradient(counting(seconds, samples.weight, tail))
    return jnp.where(counts > 0, counts * seconds, 0).sum()


def width_of(samples: Samples, logits: Float[Array, "S S"], strength: Array) -> Float[Array, "S S"]:
    count = soft_circuits(logits, samples.degrees)
    return draw_to_whole(count, strength) + jnp.asarray(INACTIVE, logits.dtype)


def relaxed(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    routing: str = "split",
    steps: int = 150,
    samples: int = 4,
    rounds: int = 100,
) -> Plan:
    """Return circuits by gradient steps on real-valued circuits, then the best of several roundings, then local search.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `key`: random key; None: a fixed one.
    - `routing`: "split" minimises its exact time per port, "unsplit" a smooth approximation, "relay" the time of
      relaxed shares (`relax_jointly`); a relay plan has shares.
    - `steps`, `samples`: gradient steps and number of starts. `rounds`: of local search, which relay routing skips.

    `local_search` alone is as good; `joint` is better under relay routing. `previous` is not used.
    """
    one_of("routing", routing, ROUTINGS)
    demand = demand_of(demand, region)
    whole("steps", steps, at_least=0)
    whole("samples", samples)
    whole("rounds", rounds, at_least=0)
    key = jax.random.key(0) if key is None else key
    if routing == "relay":
        circuits, shares = _relax_with_relay(demand, region, key, steps, samples)
        return Plan(Circuits(unless_nan(circuits.count, demand)), shares)
    return Plan(Circuits(unless_nan(_relax(demand, region, key, routing, steps, samples, rounds), demand)))


@functools.partial(jax.jit, static_argnames=("routing", "steps", "samples", "rounds"))
def _relax(
    demand: Array, region: Region, key: Array, routing: str, steps: int, samples: int, rounds: int
) -> Int[Array, "S S"]:
    start, rounding = jax.random.split(key)
    sample = samples_of(demand[None], region)
    soft = relax_paced(sample, first_logits(demand, start, samples), steps, routing)
    rounded = round_best(soft, sample, paced_delivery(routing), rounding, starts=samples)
    return tabu_search(rounded.count, demand, region, None, jax.random.key(0), routing, rounds)[0]


@functools.partial(jax.jit, static_argnames=("steps", "routing", "tail"))
def relax_paced(
    samples: Samples, logits: Float[Array, "N S S"], steps: int, routing: str, tail: float = 1.0
) -> Float[Array, "N S S"]:
    """Return nearly whole circuits after gradient steps from each of N logits, under split or unsplit routing."""
    latest = split_latest if routing == "split" else unsplit_latest

    def objective(logits: Array, temperature: Array, strength: Array):
        count = draw_to_whole(soft_circuits(logits, samples.degrees), strength)
        seconds = latest(samples, count, temperature)
        counts = jax.lax.stop_gradient(counting(seconds, samples.weight, tail))
        return jnp.where(counts > 0, counts * seconds, 0).sum()

    return jax.vmap(lambda logits: soft_circuits(anneal(objective, logits, steps), samples.degrees))(logits)


def round_best(
    soft: Float[Array, "N S S"],
    samples: Samples,
    how: Delivery,
    key: PRNGKeyArray,
    *,
    others: Int[Array, "M S S"] | None = None,
    tail: float = 1.0,
    rounds: int = 12,
    swaps: int = 6,
    starts: int = 4,
) -> Found:
    """Return the best of several roundings of each of N real-valued circuits, after rounds of swaps.

    - `soft` [N S S]: circuits, any real numbers (`round_circuits`). `others`: legal circuits that compete.
    - `samples`: the demands [K S S], their weights and the region. `tail`: the part of them that counts (`tail_of`).
    - `how`: how demands use circuits, such as `paced_delivery("split")`; it times circuits and values swaps.
    - `starts`: number of circuits from which swaps go on. `rounds` of `swaps` trials: limits of each.

    The result has circuits [S S] and the time of each sample over its degree bound [K]. Legal for any `soft`; never
    worse than `others` and the roundings, of which `round_circuits` of each `soft` is the first. Works in `jit` and
    `vmap`; not differentiable.
    """
    noise, swapping = jax.random.split(key)
    counts = roundings(soft, samples.degrees, noise)
    counts = counts if others is None else jnp.concatenate([counts, others.astype(counts.dtype)])
    each = settle_each(samples, how, counts, how.cold(samples), False)
    late = jax.vmap(lambda seconds: risk_of(seconds, samples.weight, tail))(each.seconds)
    lanes = jnp.arange(min(starts, len(counts)), dtype=jnp.int32)
    member = jnp.arange(len(counts), dtype=jnp.int32) % len(lanes)
    first = jnp.argmin(jnp.where(member[None] == lanes[:, None], late[None], jnp.inf), axis=1)

    def improve(member: tuple[Found, Array]):
        return improve_circuits(samples, how, *member, rounds, swaps, tail, patience=PATIENCE)

    begun = jax.tree.map(lambda leaf: leaf[first], each)
    return best(samples, map_members(improve, (begun, jax.random.split(swapping, len(lanes))), 1), tail)


def roundings(soft: Float[Array, "N S S"], degrees: Int[Array, "S"], key: PRNGKeyArray) -> Int[Array, "M S S"]:
    """Return roundings without and with noise, using all NICs or skipping pairs that lack under half a circuit.

    The first N are `round_circuits` of each `soft`.
    """
    noise, least = (x.reshape(-1) for x in np.meshgrid(NOISES, (-np.inf, HALF)))
    many = len(soft) * len(noise)
    noise, least = (jnp.asarray(np.repeat(x, len(soft)), soft.dtype) for x in (noise, least))
    count = jnp.broadcast_to(soft, (many // len(soft), *soft.shape)).reshape(many, *soft.shape[1:])

    def round_each(count: Array, noise: Array, least: Array, key: Array) -> Array:
        return round_circuits(count, degrees, noise=noise, least=least, key=key)

    return jax.vmap(round_each)(count, noise, least, jax.random.split(key, many))


@functools.partial(jax.jit, static_argnames=("steps", "samples"))
def _relax_with_relay(
    demand: Array, region: Region, key: Array, steps: int, samples: int
) -> tuple[Circuits, Float[Array, "S S S+2"]]:
    sample = samples_of(demand[None], region)

    def plan_from(logits: Array):
        circuits = Circuits(round_circuits(relax_jointly(sample, logits, steps), region.degrees))
        shares = relay_shares(region, circuits, demand)
        return circuits, shares, fluid_lower_bound(region, Plan(circuits, shares), demand, routing="relay")

    circuits, shares, seconds = jax.vmap(plan_from)(first_logits(demand, key, samples))
    best = jnp.argmin(seconds)
    return jax.tree.map(lambda x: x[best], (circuits, shares))
