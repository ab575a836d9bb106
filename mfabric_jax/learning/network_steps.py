"""Steps of a network: its shares by the gradient of the smooth time, its circuits by trying others nearby.

Allocation has no slope. Under relay routing real-valued circuits in their place do not help: nearly all of them
reach the degree bound, and the gradient says nothing about which ones survive rounding (tried: the smooth time with
shares bettered by 80 gradient steps fell from 1.074 to 1.066 while that of the circuits allocated rose from 1.04 to
1.2).
So scores are perturbed, the circuits allocated are judged exactly, and scores move towards the perturbations that did
well.
Source: Williams, Machine Learning 8, 1992 (score-function gradients); mirrored samples as in evolution strategies,
arXiv 1703.03864.
"""

import functools
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.fabric import Circuits
from mfabric_jax.learning._lessons import Lesson, taught
from mfabric_jax.learning.judging import over_bound
from mfabric_jax.learning.settings import Training
from mfabric_jax.policies._index import shipped
from mfabric_jax.policies.network import Chosen, PolicyNetwork
from mfabric_jax.policies.normalised_demand import NormalisedDemand, normalised
from mfabric_jax.routing.relay import link_seconds

TEMPERATURE = 0.02  # of the softened largest link time, in degree bounds
MIRRORED = 4  # perturbations, each tried both ways
AWAY = 0.3  # their standard deviation, in logarithms of circuits
LAST_RATE = 0.01  # of the first
LEAST = 1e-6  # part of the circuits of a pair, in logarithms


class NetworkState(NamedTuple):
    """What a step changes."""

    model: PolicyNetwork
    moments: optax.OptState


def first_network(config: Training) -> NetworkState:
    """Before any step."""
    model = PolicyNetwork(config.width, config.depth, shipped(), key=jax.random.key(config.seed))
    return NetworkState(model, _adam(config).init(eqx.filter(model, eqx.is_array)))


@eqx.filter_jit
def network_step(
    state: NetworkState, batch: Lesson, step: Int[Array, ""], config: Training
) -> tuple[NetworkState, dict[str, Float[Array, ""]]]:
    """One step of Adam, and what the batch measured before it: times over the degree bound.

    - "time": of circuits near those that the network allocates, with shares that know the true demand.
    - "planned", under relay routing: of its circuits with its own shares, chosen by the forecast.
    - "imitation": distance to the teacher's circuits, if there is a teacher.
    """
    keys = jax.random.split(jax.random.fold_in(jax.random.key(config.seed + 1), step), config.batch)
    target = taught(batch, config.teacher, config.routing) if config.imitation else None

    def loss(model: PolicyNetwork):
        losses, parts = jax.vmap(functools.partial(_measured, model, config))(keys, batch, target)
        parts = {name: part.mean() for name, part in parts.items()}
        return losses.mean(), parts

    (_, parts), slope = eqx.filter_value_and_grad(loss, has_aux=True)(state.model)
    with jax.numpy_dtype_promotion("standard"):  # optax divides floats by whole numbers
        change, moments = _adam(config).update(slope, state.moments)
    return NetworkState(eqx.apply_updates(state.model, change), moments), parts


def _adam(config: Training) -> optax.GradientTransformation:
    rate = optax.cosine_decay_schedule(config.learning_rate, config.steps, LAST_RATE)
    return optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))


def _measured(network: PolicyNetwork, config: Training, key: PRNGKeyArray, lesson: Lesson, target):
    """What to lessen, and figures to keep, of one lesson."""
    degree = lesson.region.degrees
    chosen = network.chosen(normalised(lesson.forecast, lesson.region), degree, lesson.previous)
    loss, time = explored(network, chosen, lesson, key, config)
    parts = {"time": time}
    if config.routing == "relay":
        count = network.allocated(chosen, chosen.score).astype(jnp.float32)
        links = _link_times(normalised(lesson.demand, lesson.region).single(), count, network.shares(chosen, count))
        loss += TEMPERATURE * jax.nn.logsumexp(links / TEMPERATURE)
        parts["planned"] = links.max()
    if target is not None:
        parts["imitation"] = _distance(network.real(chosen), target)
        loss += config.imitation * parts["imitation"]
    return loss, parts


def explored(
    network: PolicyNetwork, chosen: Chosen, lesson: Lesson, key: PRNGKeyArray, config: Training
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """A number whose slope in the scores is that of the mean time of circuits allocated near them, and that mean."""
    servers = lesson.region.servers
    away = jnp.triu(jax.random.normal(key, (MIRRORED, servers, servers), jnp.float32), 1)
    away = jnp.concatenate([away, -away])

    def time(away):
        circuits = Circuits(network.allocated(chosen, chosen.score + AWAY * (away + away.T)))
        return over_bound(lesson.region, circuits, lesson.demand, config.routing, config.share_steps)

    times = lax.stop_gradient(jax.vmap(time)(away))
    worse = times - times.mean()
    return (worse[:, None, None] * away * chosen.score[None]).sum() / (AWAY * len(away)), times.mean()


def _distance(circuits: Float[Array, "S S"], target: Int[Array, "S S"]) -> Float[Array, ""]:
    """Kullback-Leibler divergence of pairs' parts of the circuits from those of the target."""
    wanted = target.astype(circuits.dtype)
    wanted = wanted / jnp.maximum(wanted.sum(), 1)
    found = circuits / jnp.maximum(circuits.sum(), 1)
    return (wanted * (jnp.log(jnp.maximum(wanted, LEAST)) - jnp.log(jnp.maximum(found, LEAST)))).sum()


def _link_times(need: NormalisedDemand, circuits, shares) -> Float[Array, "L"]:
    """Of every link, over the degree bound."""
    return link_seconds(need.pairs, circuits, need.ports, shares, need.efficiency)
