"""One set of circuits for many demands: starts, then rounds of the swaps that are worth most to the demands that count.

A `Delivery` says how demands run over circuits, and goes on from where the circuits before had left them.
Rounds are over early where no circuits can be better by 0.1 %.

Swaps are ranked by what capacity is worth on every link. At the best shares a link's price is how much earlier the
all-to-all ends per capacity added there (the dual of the linear programme of `best_relay_shares`); links that are busy
till the end have one, others have none. What a circuit between servers without one would be worth follows from the
prices too: the dearest pair's cheapest path so far, less the price of the rest of the path that the circuit would open.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.platforms import mapped
from mfabric_jax.policies.samples import Samples, counting, risk_of
from mfabric_jax.routing.potentials import Links

SOFTNESS = 0.1  # parts of the latest time: links that much earlier still have a price
BLUR = 0.3  # standard deviation of the logarithm of what swaps take worths to be


class Worth(NamedTuple):
    """By how much circuits change the time, in parts of it; symmetric: a circuit is capacity in both directions."""

    held: Float[Array, "S S"]  # later without one of those there are; infinite where there are none
    added: Float[Array, "S S"]  # earlier with one more


def circuit_worth(links: Links, seconds: Float[Array, "S+2 S"]) -> Worth:
    """What circuits are worth between each two servers, to first order, where links are through at nearly the best
    `seconds`: circuits, ports up, ports down.

    Circuits and ports of `links` are counted in NICs. Prices are a softmax over the links' times, at a tenth of the
    latest one. At most about S^3 floats.
    """
    latest = seconds.max()
    late = seconds / jnp.where(latest > 0, latest, 1)
    price = jax.nn.softmax(late.reshape(-1) / SOFTNESS).reshape(seconds.shape)
    servers = len(links.port)
    circuit = jnp.where(links.circuit > 0, price[:servers] / jnp.where(links.circuit > 0, links.circuit, 1), jnp.inf)
    port = jnp.where(links.port > 0, price[servers:] / jnp.where(links.port > 0, links.port, 1)[None], jnp.inf)
    efficiency = links.efficiency
    cheapest = jnp.minimum(circuit, port[0][:, None] + port[1][None])
    cheapest = jnp.minimum(cheapest, (circuit[:, None, :] + circuit.T[None] / efficiency).min(2))
    cheapest = jnp.where((links.demand > 0) & jnp.isfinite(cheapest), cheapest, 0)
    first_hop = (cheapest[:, None, :] - circuit[None] / efficiency).max(2)  # a -> b, then b -> j as before
    second_hop = (cheapest.T[None] - circuit.T[:, None, :]).max(2) * efficiency  # i -> a as before, then a -> b
    opened = jnp.maximum(jnp.maximum(cheapest, first_hop), jnp.maximum(second_hop, 0))
    added = jnp.where(jnp.isfinite(circuit), circuit, opened)
    return Worth(circuit + circuit.T, added + added.T)


def swaps(
    count: Int[Array, "S S"], degrees: Int[Array, "S"], worth: Worth, key: PRNGKeyArray, many: int
) -> Int[Array, "K S S"]:
    """The `many` most promising circuits one swap away; fewer than that exist: the rest are `count` itself.

    A swap adds a circuit a-c; a and c give one up where they have no free NIC, a-b and c-d, and b and d are then joined
    unless they are the same. Where a has two free NICs, it is a itself that d is joined to; b and c alike. The dearest
    2 S of a-c are tried, each with its best b and d: 2 S^3 floats. Worths are blurred by 30 % with `key`, so that
    another round finds other swaps.
    """
    servers, dtype = len(degrees), worth.added.dtype
    noise = jnp.triu(jnp.exp(BLUR * jax.random.normal(key, (servers, servers), dtype)), 1)
    noise += noise.T
    own = jnp.eye(servers, dtype=bool)
    free = degrees - count.sum(1, dtype=degrees.dtype)
    added = jnp.pad(jnp.where(own, 0, worth.added * noise), (0, 1))  # row and column S: no server
    held = jnp.where((count > 0) & ~own, worth.held * noise, jnp.inf)
    held = jnp.concatenate([held, jnp.where(free > 0, 0, jnp.inf)[:, None]], axis=1)  # [S S+1]
    usable = (degrees > 0)[:, None] & (degrees > 0)[None, :]
    ranked = jnp.where(jnp.triu(usable, 1), added[:-1, :-1], -jnp.inf)
    value, pair = lax.top_k(ranked.reshape(-1), min(2 * servers, servers * servers))
    a, c = jnp.divmod(pair, servers)
    other = jnp.arange(servers + 1, dtype=pair.dtype)[None]
    give_a = jnp.where(other == c[:, None], jnp.inf, held[a])  # [M S+1]
    give_c = jnp.where(other == a[:, None], jnp.inf, held[c])
    twice_a, twice_c = free[a] > 1, free[c] > 1
    joins = jnp.broadcast_to(added, (len(a), *added.shape))
    joins = joins.at[:, -1, :-1].set(jnp.where(twice_a[:, None], added[a, :-1], 0))
    joins = joins.at[:, :-1, -1].set(jnp.where(twice_c[:, None], added[c, :-1], 0))
    gain = joins - give_a[:, :, None] - give_c[:, None, :]
    best = gain.reshape(len(a), -1)
    place = jnp.argmax(best, axis=1).astype(pair.dtype)
    total = value + jnp.take_along_axis(best, place[:, None], axis=1)[:, 0]
    total, chosen = lax.top_k(total, min(many, len(a)))
    b, d = jnp.divmod(place, servers + 1)

    def swapped(a, b, c, d, possible):
        wide = jnp.pad(count, (0, 1))
        left, right = jnp.where((b == servers) & (free[a] > 1), a, b), jnp.where((d == servers) & (free[c] > 1), c, d)
        for i, j, change in ((a, c, 1), (a, b, -1), (c, d, -1), (left, right, 1)):
            wide = wide.at[i, j].add(change).at[j, i].add(change)
        new = jnp.where(own, 0, wide[:-1, :-1])
        return jnp.where(possible, new, count)

    return jax.vmap(swapped)(a[chosen], b[chosen], c[chosen], d[chosen], jnp.isfinite(total))


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
