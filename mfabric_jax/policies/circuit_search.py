"""One set of circuits for many demands: starts, then rounds of the swaps that are worth most to the demands that count.

A `Delivery` says how demands run over circuits, and goes on from where the circuits before had left them.
Rounds are over early where no circuits can be better by 0.1 %.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.platforms import mapped
from mfabric_jax.policies.relay_swaps import Worth, swaps
from mfabric_jax.policies.samples import Samples, counting, risk_of

ENOUGH = 1e-3  # above the bound: nothing more is tried
PATIENCE = 4  # rounds in a row that better nothing
TRIED = 16  # demands by which one of several swaps is chosen


class Delivery(NamedTuple):
    """How demands run over circuits; `state` is whatever a descent goes on from."""

    cold: Callable[[Samples], Any]
    settle: Callable[[Samples, Int[Array, "S S"], Any, bool], tuple[Any, Float[Array, "K"]]]  # warm: after a swap
    worth: Callable[[Samples, Int[Array, "S S"], Any], Worth]  # [K S S] for every demand
    some: Callable[[Any, Int[Array, "R"]], Any]  # the state of some of the demands


class Found(NamedTuple):
    """Circuits, how the demands run over them, and every demand's time over its degree bound."""

    count: Int[Array, "S S"]
    state: Any
    seconds: Float[Array, "K"]


def settled_each(samples: Samples, how: Delivery, counts: Int[Array, "C S S"], state: Any, warm: bool) -> Found:
    """All of these circuits [C ...], on a CPU one after the other."""
    return mapped(lambda count: Found(count, *how.settle(samples, count, state, warm)), counts, 1)


def best(samples: Samples, found: Found, tail: float, stay: bool = False) -> Found:
    """Of [C ...] the one that is best for all demands; on ties the first. `stay`: the first if nearly so."""
    late = jax.vmap(lambda seconds: risk_of(seconds, samples.weight, tail))(found.seconds)
    place = jnp.argmin(late.at[0].divide(1 + ENOUGH) if stay else late)
    return jax.tree.map(lambda x: x[place], found)


def one_and_more(first: Found, others: Found) -> Found:
    """One and [C ...] more: [1 + C ...]."""
    return jax.tree.map(lambda one, more: jnp.concatenate([one[None], more]), first, others)


def is_enough(samples: Samples, found: Found, tail: float):
    """Whether no circuits can be better by 0.1 %."""
    limit = risk_of(samples.limit * (1 + ENOUGH), samples.weight, tail)
    return risk_of(found.seconds, samples.weight, tail) <= limit


def bettered(samples: Samples, how: Delivery, found: Found, key, rounds: int, many: int, tail: float) -> Found:
    """After rounds of `many` swaps each; what is kept is never worse."""

    def searching(state):
        turn, fruitless, now = state
        return (turn < rounds) & (fruitless < PATIENCE) & ~is_enough(samples, now, tail)

    def step(state):
        turn, fruitless, now = state
        late = now.seconds > samples.limit * (1 + ENOUGH)
        counts = jnp.where(late, counting(now.seconds, samples.weight, tail), 0)[:, None, None]
        worth = how.worth(samples, now.count, now.state)
        worth = jax.tree.map(lambda x: jnp.where(counts > 0, counts * x, 0).sum(0), worth)
        moves = swaps(now.count, samples.degrees, worth, jax.random.fold_in(key, turn), many)
        then = most_promising(samples, how, moves, now.state, turn, tail, True)
        better = risk_of(then.seconds, samples.weight, tail) < risk_of(now.seconds, samples.weight, tail)
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), then, now)
        return turn + 1, jnp.where(better, 0, fruitless + 1), kept

    none = jnp.zeros((), jnp.int32)
    return lax.while_loop(searching, step, (none, none, found))[2]


def most_promising(
    samples: Samples, how: Delivery, counts: Int[Array, "C S S"], state: Any, turn, tail: float, warm: bool
) -> Found:
    """The best of these circuits: found by some of the demands, others at every turn, where there are many."""
    demands = len(samples.pairs)
    if demands <= TRIED:
        return best(samples, settled_each(samples, how, counts, state, warm), tail)
    some = (turn * TRIED + jnp.arange(TRIED, dtype=jnp.int32)) % demands
    few = samples.some(some)
    found = best(few, settled_each(few, how, counts, how.some(state, some), warm), tail)
    return Found(found.count, *how.settle(samples, found.count, state, warm))
