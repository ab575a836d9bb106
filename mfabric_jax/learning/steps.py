"""Steps of training: of a network down the gradient of the time that its circuits give the true demand.

An index rule's are of the cross-entropy method over its five numbers, for allocation has no slope.
For a network real-valued circuits stand for whole ones, their capacities drawn to whole numbers (`drawn_to_whole`) more
and more in the first half of the steps. Relay potentials take a few steps for the true demand over these circuits and
are then held: near the best shares the time changes with circuits as if they were fixed. The score-function gradient of
rounded circuits needs no stand-in, but takes six times as long a step and got less far in as many (docs/policies.md).
Source of the cross-entropy method: Rubinstein, Methodology and Computing in Applied Probability 1, 1999.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.learning.judging import over_bound
from mfabric_jax.learning.settings import Lesson, Training
from mfabric_jax.policies._index import Index
from mfabric_jax.policies._soft_circuits import softened_time, width_of
from mfabric_jax.policies.circuit_search import ENOUGH
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.samples import normalised, samples_of
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


TRIED = 12  # rules of a step, drawn around the present one
BEST = 4  # of them that the next is made of
MOVE = 0.4  # of the way to what they agree on
FIRST_SPREAD, LEAST_SPREAD = 0.7, 0.05  # standard deviations that rules are drawn with
NEXT = (0.0, 0.0, 0.0, -1.0, -1.0)  # close to greedy's rule "next", but for what it spreads


class IndexState(NamedTuple):
    """Where rules are drawn: `centre` and `spread` [5], free of limits (`rule_at`)."""

    centre: Float[Array, "5"]
    spread: Float[Array, "5"]


def first_index() -> IndexState:
    """Before any step."""
    return IndexState(jnp.asarray(NEXT, jnp.float32), jnp.full(len(NEXT), FIRST_SPREAD, jnp.float32))


def rule_at(place: Float[Array, "5"]) -> Index:
    """Of five real numbers: offset, power and relief above 0, `larger` and `spread` between 0 and 1."""
    offset, power, larger, spread, relief = place
    return Index(jnp.exp(offset), jnp.exp(power), jax.nn.sigmoid(larger), jax.nn.sigmoid(spread), jnp.exp(relief))


@functools.partial(jax.jit, static_argnames="config")
def index_step(
    state: IndexState, batch: Lesson, step: Int[Array, ""], config: Training
) -> tuple[IndexState, dict[str, Float[Array, ""]]]:
    """Towards the best of the rules drawn; all are judged on the same batch."""
    key = jax.random.fold_in(jax.random.key(config.seed + 1), step)
    away = jax.random.normal(key, (TRIED, len(NEXT)), jnp.float32).at[0].set(0)
    places = state.centre[None] + state.spread[None] * away
    times = jax.vmap(lambda place: _mean_time(rule_at(place), batch, config))(places)
    best = places[jnp.argsort(times)[:BEST]]
    centre = state.centre + MOVE * (best.mean(0) - state.centre)
    spread = jnp.maximum(state.spread + MOVE * (best.std(0) - state.spread), LEAST_SPREAD)
    rule = rule_at(centre)
    return IndexState(centre, spread), {"time": times[0], "best": times.min()} | {
        name: jnp.asarray(value) for name, value in vars(rule).items()
    }


def _mean_time(rule: Index, batch: Lesson, config: Training) -> Float[Array, ""]:
    def one(lesson: Lesson):
        circuits = rule(lesson.forecast, lesson.region).circuits
        return over_bound(lesson.region, circuits, lesson.demand, config.routing, config.share_steps)

    return jax.vmap(one)(batch).mean()
