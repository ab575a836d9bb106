"""Real-valued circuits that gradient steps can move, within every server's degree; and whole ones made of them."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.policies.samples import Samples, counting

SCALINGS = 12  # rounds; what then still exceeds a degree is cut off
HOT, COLD = 0.3, 0.005  # softness of the latest time, first and last, in units of the degree bound
RATE, LAST_RATE = 0.15, 0.0075  # Adam's steps in the logits, first and last
MEMORY = (0.8, 0.95)  # Adam's, of slopes and of their squares: short, for the temperature falls
FLOOR = 0.1  # bytes of a pair, in mean ones, that its first circuits are never below
STAIRS_FROM = 1 / 3  # part of the steps before counts are first drawn to whole numbers

Objective = Callable[[Any, Array, Array], Array]


def demand_logits(demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Logits in proportion to the larger direction of a pair's bytes; of a pair without bytes as of a tenth of the
    mean."""
    pairs = jnp.maximum(demand, demand.T)
    mean = pairs.mean()
    usable = (mean > 0) & jnp.isfinite(mean)
    return jnp.log(jnp.where(usable, pairs / jnp.where(usable, mean, 1), 1) + jnp.asarray(FLOOR, demand.dtype))


def first_logits(demand: Float[Array, "S S"], key: PRNGKeyArray, samples: int) -> Float[Array, "K S S"]:
    """Where `samples` relaxations start: at `demand_logits`, with Gumbel noise on top, none in the first, of scale 1 in
    the others."""
    level = demand_logits(demand)
    noise = jax.random.gumbel(key, (samples, *demand.shape), demand.dtype).at[0].set(0)
    return level[None] + noise


def soft_circuits(logits: Float[Array, "S S"], degrees: Int[Array, "S"]) -> Float[Array, "S S"]:
    """Symmetric, zero diagonal, row sums at most the degrees and nearly all used: exp(logits) scaled to them.

    The symmetric form of Sinkhorn's scaling, in logarithms: c_ij = exp(l_ij + u_i + u_j) with
    u <- (u + log degree - logsumexp_j(l_ij + u_j)) / 2; half steps, for whole ones alternate between two solutions.
    Entries may exceed 1, since pairs may have parallel circuits: a fractional b-matching. Logits are averaged over both
    directions. Differentiable. Source: symmetric scaling after Knight, Ruiz and Ucar, SIAM J. Matrix Anal. Appl.
    35(3), 2014.
    """
    servers, dtype = len(degrees), logits.dtype
    some = degrees > 0
    open_ = some[:, None] & some[None, :] & ~jnp.eye(servers, dtype=bool)
    partners = open_.any(1)
    level = jnp.where(open_, (logits + logits.T) / 2, 0)
    degree = degrees.astype(dtype)
    wanted = jnp.log(jnp.where(some, degree, 1))

    def scale(u, _):
        terms = jnp.where(open_, level + u[None, :], -jnp.inf)
        total = jax.nn.logsumexp(jnp.where(partners[:, None], terms, 0), axis=1)
        return jnp.where(partners, (u + wanted - total) / 2, 0), None

    u, _ = lax.scan(scale, jnp.zeros(servers, dtype), length=SCALINGS)
    count = jnp.where(open_, jnp.exp(level + u[:, None] + u[None, :]), 0)
    return within_degrees(count, degrees)


def within_degrees(count: Float[Array, "S S"], degrees: Int[Array, "S"]) -> Float[Array, "S S"]:
    """The circuits, those of a server that has too many scaled down."""
    used, degree = count.sum(1), degrees.astype(count.dtype)
    fits = jnp.where(used > degree, degree / jnp.where(used > degree, used, 1), 1)
    return count * jnp.minimum(fits[:, None], fits[None, :])


def drawn_to_whole(count: Float[Array, "S S"], strength: Float[Array, ""]) -> Float[Array, "S S"]:
    """Counts as capacity counts them while circuits become whole: c - strength sin(2 pi c) / (2 pi).

    At strength 1 a staircase with smooth steps: flat at whole numbers, steep at the halves, so that the slope of a time
    drives every count to a whole number; 0: the counts.
    """
    turn = jnp.asarray(2 * np.pi, count.dtype)
    return count - strength * jnp.sin(turn * count) / turn


def annealed(objective: Objective, start, steps: int):
    """Parameters after `steps` of Adam down `objective(parameters, temperature, strength)`.

    The temperature falls from 0.3 to 0.005; the strength (of `drawn_to_whole`) is 0 for the first third of the steps,
    then rises to 1.
    """
    dtype = jax.tree.leaves(start)[0].dtype
    adam = optax.adam(optax.cosine_decay_schedule(RATE, max(steps, 1), LAST_RATE / RATE), *MEMORY)
    temperature = jnp.asarray(np.geomspace(HOT, COLD, steps), dtype)
    part = np.linspace(0, 1, steps)
    strength = jnp.asarray(np.clip((part - STAIRS_FROM) / (1 - STAIRS_FROM), 0, 1), dtype)

    def step(state, at):
        parameters, moments = state
        slope = jax.grad(objective)(parameters, *at)
        with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
            change, moments = adam.update(slope, moments)
        return (jax.tree.map(jnp.add, parameters, change), moments), None

    return lax.scan(step, (start, adam.init(start)), (temperature, strength))[0][0]


@jax.jit
def rounded(
    count: Float[Array, "S S"],
    degrees: Int[Array, "S"],
    *,
    least: Float[Array, ""] | float = -jnp.inf,
    noise: Float[Array, ""] | float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Int[Array, "S S"]:
    """The whole part of every pair's circuits, then one more at a time to the pair that lacks most while NICs are free.

    - `count` [S S]: wanted circuits; both directions are averaged, the diagonal, what is below 0 and what is not a
      number count as 0, and what exceeds a server's degree is scaled down.
    - `degrees` [S]: the most circuits of each server.
    - `least`: a pair that lacks less takes no circuit; by default NICs stay free only where there is no pair left.
    - `noise`: standard deviation of what is added to the lacks, drawn with `key`: another rounding each time.

    Legal for any `count`. Ties go to the lower (i, j). At most S * degree / 2 rounds.
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

    def open_(state):
        _, free, lack = state
        return enough & (lack >= jnp.asarray(least, dtype)) & (free > 0)[:, None] & (free > 0)[None, :]

    def deal(state):
        allocated, free, lack = state
        i, j = jnp.divmod(jnp.argmax(jnp.where(open_(state), lack, -jnp.inf)), servers)
        return allocated.at[i, j].add(1), free.at[i].add(-1).at[j].add(-1), lack.at[i, j].add(-1)

    free = degrees - (allocated + allocated.T).sum(1, dtype=degrees.dtype)
    allocated = lax.while_loop(lambda state: open_(state).any(), deal, (allocated, free, lack))[0]
    return allocated + allocated.T


INACTIVE = 1e-3  # circuits that a pair without any is taken to have: finite times


@functools.partial(jax.jit, static_argnames=("steps", "tail"))
def relaxed_jointly(
    samples: Samples, logits: Float[Array, "S S"], steps: int, tail: float = 1.0
) -> Float[Array, "S S"]:
    """Circuits [S S], mostly near whole numbers, from first `logits` of them (`soft_circuits`).

    `annealed` lowers `softened_time` in the logits of circuits and all potentials together; the potentials are dropped:
    those of the rounded circuits are other ones. `tail`: what counts of the samples (`samples.risk_of`).
    """

    def objective(parameters, temperature, strength):
        logits, potentials = parameters
        return softened_time(samples, logits, potentials, temperature, strength, tail)

    return soft_circuits(annealed(objective, (logits, samples.cold), steps)[0], samples.degrees)


def softened_time(
    samples: Samples,
    logits: Float[Array, "S S"],
    potentials: Float[Array, "K 3S+2 S"],
    temperature,
    strength,
    tail: float,
) -> Float[Array, ""]:
    """What is lowered: the samples' softened times over circuits of these logits, those that count."""
    width = width_of(samples, logits, strength)

    def one(pairs, potentials):
        links, late = samples.links(pairs, width)
        return temperature * jax.nn.logsumexp(links.seconds(potentials) / temperature) + late

    seconds = jax.vmap(one)(samples.pairs, potentials)
    counts = jax.lax.stop_gradient(counting(seconds, samples.weight, tail))
    return jnp.where(counts > 0, counts * seconds, 0).sum()


def width_of(samples: Samples, logits: Float[Array, "S S"], strength) -> Float[Array, "S S"]:
    """What circuits of these logits carry."""
    count = soft_circuits(logits, samples.degrees)
    return drawn_to_whole(count, strength) + jnp.asarray(INACTIVE, logits.dtype)
