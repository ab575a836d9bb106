"""Which circuits are worth moving under relay routing: swaps ranked by what capacity is worth on every link.

At the best shares a link's price is how much earlier the all-to-all ends per capacity added there (the dual of the
linear programme of `best_relay_shares`); links that are busy till the end have one, others have none. What a circuit
between servers without one would be worth follows from the prices too: the dearest pair's cheapest path so far, less
the price of the rest of the path that the circuit would open.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

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
