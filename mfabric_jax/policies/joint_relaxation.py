"""Real-valued circuits shared by many demands, each with relay potentials of its own, by one gradient for all."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.policies._soft_circuits import annealed, drawn_to_whole, soft_circuits
from mfabric_jax.policies.samples import Samples, counting

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
