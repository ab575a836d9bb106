"""Steps of an index rule: the cross-entropy method over its five numbers, for allocation has no slope.

Source: Rubinstein, Methodology and Computing in Applied Probability 1, 1999.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mfabric_jax.learning._lessons import Lesson
from mfabric_jax.learning.judging import over_bound
from mfabric_jax.learning.settings import Training
from mfabric_jax.policies._index import Index

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
