"""Steps of a network down the gradient of the time that its circuits give the true demand.

Allocation has no slope, so real-valued circuits stand for whole ones, their capacities drawn to whole numbers
(`drawn_to_whole`) more and more in the first half of the steps. Relay potentials take a few steps for the true demand
over these circuits and are then held: near the best shares the time changes with circuits as if they were fixed.
The score-function gradient of rounded circuits needs no stand-in, but takes six times as long a step and got less far
in as many (docs/policies.md).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.learning._lessons import Lesson
from mfabric_jax.learning.settings import Training
from mfabric_jax.policies.circuit_search import ENOUGH
from mfabric_jax.policies.joint_relaxation import softened_time, width_of
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.normalised_demand import normalised
from mfabric_jax.policies.samples import samples_of
from mfabric_jax.routing.potentials import Potentials, descended
from mfabric_jax.traffic.scenarios import expected

TEMPERATURE = 0.03  # of the softened largest link time, in degree bounds
WHOLE_AFTER = 0.5  # of the steps: from then on capacities are those of whole circuits
LAST_RATE = 0.01  # of the first


class NetworkState(NamedTuple):
    """What a step changes."""

    model: PolicyNetwork
    moments: optax.OptState


def first_network(config: Training) -> NetworkState:
    """Before any step."""
    model = PolicyNetwork(config.width, config.depth, key=jax.random.key(config.seed))
    return NetworkState(model, _adam(config).init(eqx.filter(model, eqx.is_array)))


@eqx.filter_jit
def network_step(
    state: NetworkState, batch: Lesson, step: Int[Array, ""], config: Training
) -> tuple[NetworkState, dict[str, Float[Array, ""]]]:
    """One step of Adam; "time": the batch's mean of what it lessens, over the degree bound."""
    strength = jnp.clip(step.astype(jnp.float32) / (WHOLE_AFTER * config.steps), 0, 1)
    held = jax.vmap(lambda lesson: settled_for(state.model, lesson, strength, config.share_steps))(batch)
    time, slope = eqx.filter_value_and_grad(mean_time)(state.model, batch, held, strength)
    with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
        change, moments = _adam(config).update(slope, state.moments)
    return NetworkState(eqx.apply_updates(state.model, change), moments), {"time": time}


def _adam(config: Training) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(config.learning_rate, config.steps, LAST_RATE)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def mean_time(
    model: PolicyNetwork, batch: Lesson, potentials: Float[Array, "B 1 3S+2 S"], strength: Float[Array, ""]
) -> Float[Array, ""]:
    """Softened time of the true demands over the circuits for their forecasts, with these potentials."""

    def one(lesson: Lesson, potentials):
        true = samples_of(lesson.demand[None], lesson.region)
        return softened_time(true, _logits(model, lesson), potentials, TEMPERATURE, strength, tail=1.0)

    return jax.vmap(one)(batch, potentials).mean()


def settled_for(model: PolicyNetwork, lesson: Lesson, strength: Float[Array, ""], steps: int) -> Potentials:
    """Potentials [1 ...] of the true demand after so many steps; no derivatives flow through."""
    true = samples_of(lesson.demand[None], lesson.region)
    links, _ = true.links(true.pairs[0], width_of(true, lax.stop_gradient(_logits(model, lesson)), strength))
    found, _ = descended(links.softened, true.cold[0], steps, enough=true.limit[0] * (1 + ENOUGH / 2))
    return found[None]


def _logits(model: PolicyNetwork, lesson: Lesson) -> Float[Array, "S S"]:
    seen, spread = expected(lesson.forecast, lesson.sigma)
    return model.logits(normalised(seen, lesson.region), lesson.region.degrees, spread)
