"""Circuits for many demands under relay routing: starts, then rounds of the swaps that link prices favour.

Every candidate is judged by a few gradient steps towards shares of its own for each demand (`routing.potentials`), from
where the circuits before it had been left. Rounds are over early where no circuits can be better by 0.1 %.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.policies.relay_swaps import circuit_worth, swaps
from mfabric_jax.policies.samples import Samples, counting, judged
from mfabric_jax.routing.potentials import HOT, RATE, descended, level

ENOUGH = 1e-3  # above the bound: nothing more is tried
FIRST_STEPS, SWAP_STEPS = 40, 25  # towards shares: of starts, and after a swap
WARM, WARM_RATE = 0.06, 0.1  # softness and step at which a descent goes on


class Found(NamedTuple):
    """Circuits, where every demand's shares have got to, and its time over the degree bound."""

    count: Int[Array, "S S"]
    potentials: Float[Array, "K 3S+2 S"]
    seconds: Float[Array, "K"]


def settled(samples: Samples, count, start: Float[Array, "K 3S+2 S"], steps: int, hot=HOT, rate=RATE) -> Found:
    """These circuits after so many more steps towards the shares of every demand."""

    def one(pairs, limit, potentials):
        links, late = samples.links(pairs, count)
        found, seconds = descended(links, potentials, steps, enough=limit * (1 + ENOUGH / 2), hot=hot, rate=rate)
        return found, seconds + late

    potentials, seconds = jax.vmap(one)(samples.pairs, samples.limit, start)
    return Found(count, potentials, seconds)


def best_start(samples: Samples, counts: Int[Array, "C S S"], tail: float, stay: bool) -> Found:
    """Of the circuits, those that are best for all demands; on ties the first. `stay`: the first if nearly so."""
    servers = counts.shape[-1]
    cold = jnp.broadcast_to(level(servers, samples.pairs.dtype), (len(samples.pairs), 3 * servers + 2, servers))
    found = lax.map(lambda count: settled(samples, count, cold, FIRST_STEPS), counts)
    late = jax.vmap(lambda seconds: judged(seconds, samples.weight, tail))(found.seconds)
    best = jnp.argmin(late.at[0].divide(1 + ENOUGH) if stay else late)
    return jax.tree.map(lambda x: x[best], found)


def bettered(samples: Samples, found: Found, key, rounds: int, many: int, tail: float) -> Found:
    """After rounds of the `many` swaps each that link prices favour, averaged over the demands that count."""
    enough = judged(samples.limit * (1 + ENOUGH), samples.weight, tail)

    def late(seconds):
        return judged(seconds, samples.weight, tail)

    def searching(state):
        turn, best = state
        return (turn < rounds) & (late(best.seconds) > enough)

    def step(state):
        turn, best = state
        counts = counting(best.seconds, samples.weight, tail) * (best.seconds > samples.limit * (1 + ENOUGH))

        def worth_of(pairs, potentials):
            links, _ = samples.links(pairs, best.count)
            return circuit_worth(links, links.seconds(potentials))

        worth = jax.vmap(worth_of)(samples.pairs, best.potentials)
        worth = jax.tree.map(lambda x: jnp.where(counts[:, None, None] > 0, counts[:, None, None] * x, 0).sum(0), worth)
        tried = swaps(best.count, samples.degrees, worth, jax.random.fold_in(key, turn), many)
        then = lax.map(lambda count: settled(samples, count, best.potentials, SWAP_STEPS, WARM, WARM_RATE), tried)
        times = jax.vmap(late)(then.seconds)
        first = jax.tree.map(lambda x: x[jnp.argmin(times)], then)
        better = times.min() < late(best.seconds)
        return turn + 1, jax.tree.map(lambda new, old: jnp.where(better, new, old), first, best)

    return lax.while_loop(searching, step, (jnp.zeros((), jnp.int32), found))[1]
