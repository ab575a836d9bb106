"""Training without a gradient of the time: try legal circuits and make the faster ones likelier.

- `reinforce` adds noise to the logits of circuits and rounds them. It follows the score-function gradient (Williams,
  Machine Learning 8, 1992) with the opposite noise as its baseline.
- `evolve` adds noise to the weights, in pairs of opposite sign (`evolution`).

Both time what a deployed policy does: it keeps or changes whole circuits, and each change costs the delay.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from mfabric_jax.apps.learning import evolution
from mfabric_jax.apps.learning.chains import Chain, chain_time_over_bound, serve_chain
from mfabric_jax.fabric import Circuits
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.samples import normalise
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.policies.weighing import relative_delay
from mfabric_jax.routing import Plan
from mfabric_jax.traffic.scenarios import expected_demand

METHODS = ("gradient", "reinforce", "evolution")
OF_LOGITS = 0.3  # standard deviation of the noise on logits
OF_WEIGHTS = 0.05  # standard deviation of the noise on weights
PAIRS = 8  # pairs of opposite weight changes that one step of evolution tries
Slopes = tuple[Float[Array, ""], Any]


def reinforce(model: PolicyNetwork, batch: Chain, key: Key[Array, ""], steps: int) -> Slopes:
    """Return the mean time of the batch over its degree bounds, and slopes in a tree like the model."""
    keys = jax.random.split(key, len(batch.demand))
    late, advantage, before = jax.vmap(lambda chain, key: _try_noise(model, chain, key, steps))(batch, keys)

    def likely(model: PolicyNetwork):
        score = jax.vmap(lambda chain, key, before: _score(model, chain, key, before))(batch, keys, before)
        return (lax.stop_gradient(advantage) * score).mean()

    return late.mean(), eqx.filter_grad(likely)(model)


def _try_noise(model: PolicyNetwork, chain: Chain, key, steps: int):
    """Return the time with noise, half its excess over the time with opposite noise, and circuits before each step."""

    def serve_with_sign(sign):
        trajectory = serve_chain(_whole(model, sign), chain, key, steps)
        return _over(chain, trajectory), trajectory.count

    (late, again), (count, _) = lax.map(serve_with_sign, jnp.asarray([1, -1], jnp.float32))
    start = uniform_circuits(chain.region.degrees)[None].astype(count.dtype)
    return late, (late - again) / 2, jnp.concatenate([start, count[:-1]])


def _whole(model: PolicyNetwork, sign: Float[Array, ""] | None = None) -> Callable[..., Plan]:
    """Return the policy of the model's circuits without shares; `sign` scales the noise that a key adds to logits."""

    def policy(demand, region, *, previous, key, sigma=0.0, hidden_s=0.0):
        noise = 0.0 if sign is None else sign * _noise(key, len(demand))
        count = model.choose_circuits(
            demand, region, previous.circuits.count, sigma=sigma, hidden_s=hidden_s, noise=noise
        )
        return Plan(Circuits(count))

    return policy


def _noise(key, servers: int) -> Float[Array, "S S"]:
    noise = jax.random.normal(key, (servers, servers), jnp.float32)
    return OF_LOGITS * (jnp.triu(noise, 1) + jnp.triu(noise, 1).T)


def _score(model: PolicyNetwork, chain: Chain, key, before) -> Float[Array, ""]:
    """Return a score whose gradient is that of the log probability of the drawn noise."""

    def step_score(inputs):
        forecast, key, before = inputs
        seen, spread = expected_demand(forecast, chain.sigma)
        delay = relative_delay(chain.region, seen, chain.hidden_s)
        logits = model.logits(normalise(seen, chain.region), chain.region.degrees, spread, before, delay)
        return (logits * _noise(key, len(forecast))).sum() / (2 * OF_LOGITS**2)  # each pair's noise appears twice

    keys = jax.random.split(key, len(chain.demand))
    return lax.map(
        step_score, (chain.forecast, keys, before)
    ).sum()  # XLA for CPUs fails on these products under two `vmap`


def evolve(model: PolicyNetwork, batch: Chain, key: Key[Array, ""], steps: int) -> Slopes:
    """Return time and slopes like `reinforce`, from pairs of opposite weight changes; all pairs see the same batch."""
    size = evolution.count_weights(model)
    noise = jax.vmap(lambda key: jax.random.normal(key, (size,), jnp.float32))(jax.random.split(key, PAIRS))

    def late(model: PolicyNetwork):
        keys = jax.random.split(jax.random.key(0), len(batch.demand))
        return jax.vmap(lambda chain, key: _over(chain, serve_chain(_whole(model), chain, key, steps)))(
            batch, keys
        ).mean()

    return evolution.evolve(late, model, noise, OF_WEIGHTS)


def _over(chain: Chain, trajectory) -> Float[Array, ""]:
    return chain_time_over_bound(jax.tree.map(lambda x: x[None], chain), jax.tree.map(lambda x: x[None], trajectory))[0]
