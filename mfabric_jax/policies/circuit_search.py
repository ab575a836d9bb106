"""Search for one set of circuits for many demands, in rounds of circuit swaps.

Swaps are ranked by link prices. The price of a link is how much earlier the all-to-all ends per unit of capacity added
to it: prices are the dual of the linear programme of the best relay shares. A circuit that opens a new path for a pair
is worth the price of the pair's cheapest path minus the price of the other links of the new path; the largest
difference counts.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import export, lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.policies.samples import NEVER, Samples, counting, risk_of
from mfabric_jax.routing.potentials import DIRECT, HOT, RATE, RelayLinks, minimise
from mfabric_jax.routing.relay import is_path, link_seconds
from mfabric_jax.support.platforms import map_members

SOFTNESS = 0.1  # of the softmax of link prices, relative to the latest time
BLUR = 0.3  # standard deviation of the log noise on the worth of swaps
ENOUGH = 1e-3  # relative gap to the bound at which the search stops, unless stated
PATIENCE = 4  # rounds without improvement after which the search stops
TRIED = 16  # number of demands that compare circuits
COLD_STEPS, WARM_STEPS = 60, 40  # gradient steps towards shares: at first and after a swap
WARM, WARM_RATE = 0.2, 0.1  # softness and step size after a swap
LANES = 8  # demands that a CPU runs together until all are done
FROM_COLD, FROM_WARM = (COLD_STEPS, HOT, RATE), (WARM_STEPS, WARM, WARM_RATE)


class Worth(NamedTuple):
    """Relative change of the completion time per circuit; symmetric, as a circuit is capacity in both directions."""

    held: Float[Array, "S S"]  # time lost by removing a circuit; infinite without one
    added: Float[Array, "S S"]  # time saved by one more circuit


def circuit_worth(links: RelayLinks, seconds: Float[Array, "links S"]) -> Worth:
    """Return the worth of circuits to first order, from the `seconds` of circuits, ports up and ports down.

    The shares behind `seconds` must be nearly best. It needs about S^3 floats.
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
    first_hop = (cheapest[:, None, :] - circuit[None] / efficiency).max(2)  # new circuit a -> b, then b -> j as before
    second_hop = (cheapest.T[None] - circuit.T[:, None, :]).max(2) * efficiency  # i -> a as before, then a -> b
    opened = jnp.maximum(jnp.maximum(cheapest, first_hop), jnp.maximum(second_hop, 0))
    added = jnp.where(jnp.isfinite(circuit), circuit, opened)
    return Worth(circuit + circuit.T, added + added.T)


def swaps(
    count: Int[Array, "S S"], degrees: Int[Array, "S"], worth: Worth, key: PRNGKeyArray, many: int
) -> Int[Array, "K S S"]:
    """Return the `many` most promising circuits [K S S] one swap away; if fewer swaps exist, the rest equal `count`.

    A swap adds a circuit a-c. If a has no free NIC, it gives up a circuit a-b; likewise c gives up c-d. Then b and d
    get a circuit unless they are the same server. If a has two free NICs, it takes the role of b; likewise c that of d.
    Only the 2 S dearest pairs a-c are tried. Noise on the worth lets each round find other swaps.
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
    pick = jnp.argmax(best, axis=1).astype(pair.dtype)
    total = value + jnp.take_along_axis(best, pick[:, None], axis=1)[:, 0]
    total, chosen = lax.top_k(total, min(many, len(a)))
    b, d = jnp.divmod(pick, servers + 1)

    server = jnp.arange(servers + 1, dtype=pair.dtype)
    signs = jnp.asarray((1, -1, -1, 1), count.dtype)[:, None, None]

    def apply_swap(a: Array, b: Array, c: Array, d: Array, possible: Array):
        left, right = jnp.where((b == servers) & (free[a] > 1), a, b), jnp.where((d == servers) & (free[c] > 1), c, d)
        first, second = (jnp.stack(ends)[:, None] == server[None] for ends in ((a, a, c, left), (c, b, d, right)))
        change = jnp.where(first[:, :, None] & second[:, None, :], signs, 0).sum(0, dtype=count.dtype)[:-1, :-1]
        new = jnp.where(own, 0, count + change + change.T)
        return jnp.where(possible, new, count)

    return jax.vmap(apply_swap)(a[chosen], b[chosen], c[chosen], d[chosen], jnp.isfinite(total))


class Delivery(NamedTuple):
    """How demands use circuits: relay shares for each demand, one set of relay shares, or no shares."""

    cold: Callable[[Samples], Any]
    settle: Callable[[Samples, Int[Array, "S S"], Any, bool], tuple[Any, Float[Array, "K"]]]  # warm: after a swap
    worth: Callable[[Samples, Int[Array, "S S"], Any], Worth]  # [K S S] for every demand
    some: Callable[[Any, Int[Array, "R"]], Any]  # the state of some of the demands
    tried: int = TRIED  # number of demands that compare circuits


class Found(NamedTuple):
    count: Int[Array, "S S"]  # pyright: ignore[reportIncompatibleMethodOverride]
    state: Any
    seconds: Float[Array, "K"]  # over each demand's degree bound


export.register_namedtuple_serialization(Found, serialized_name="Found")  # for programs stored on disk


def settle_each(samples: Samples, how: Delivery, counts: Int[Array, "C S S"], state: Any, warm: bool) -> Found:
    return map_members(lambda count: Found(count, *how.settle(samples, count, state, warm)), counts, 1)


def best(samples: Samples, candidates: Found, tail: float, stay: bool = False) -> Found:
    """Return the candidate of [C ...] with the least risk; with `stay`, the first if it is within 0.1 % of it."""
    late = jax.vmap(lambda seconds: risk_of(seconds, samples.weight, tail))(candidates.seconds)
    index = jnp.argmin(late.at[0].divide(1 + ENOUGH) if stay else late)
    return jax.tree.map(lambda x: x[index], candidates)


def is_enough(samples: Samples, result: Found, tail: float, enough: float):
    limit = risk_of(samples.limit * (1 + enough), samples.weight, tail)
    return risk_of(result.seconds, samples.weight, tail) <= limit


def improve_circuits(
    samples: Samples,
    how: Delivery,
    start: Found,
    key: Array,
    rounds: int,
    many: int,
    tail: float,
    enough: float = ENOUGH,
    patience: int = PATIENCE,
) -> Found:
    def searching(state: tuple[Any, ...]):
        number, fruitless, now = state
        return (number < rounds) & (fruitless < patience) & ~is_enough(samples, now, tail, enough)

    def step(state: tuple[Any, ...]):
        number, fruitless, now = state
        late = now.seconds > samples.limit * (1 + enough)
        counts = jnp.where(late, counting(now.seconds, samples.weight, tail), 0)[:, None, None]
        worth = how.worth(samples, now.count, now.state)
        worth = jax.tree.map(lambda x: jnp.where(counts > 0, counts * x, 0).sum(0), worth)
        moves = swaps(now.count, samples.degrees, worth, jax.random.fold_in(key, number), many)
        then = most_promising(samples, how, moves, now.state, number, tail, True)
        better = risk_of(then.seconds, samples.weight, tail) < risk_of(now.seconds, samples.weight, tail)
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), then, now)
        return number + 1, jnp.where(better, 0, fruitless + 1), kept

    none = jnp.zeros((), jnp.int32)
    return lax.while_loop(searching, step, (none, none, start))[2]


def most_promising(
    samples: Samples,
    how: Delivery,
    counts: Int[Array, "C S S"],
    state: Any,
    number: Array | int,
    tail: float,
    warm: bool,
) -> Found:
    """Return the best candidate, judged by `how.tried` of the demands; each round takes other demands."""
    demands, tried = len(samples.pairs), how.tried
    if demands <= tried:
        return best(samples, settle_each(samples, how, counts, state, warm), tail)
    some = (number * tried + jnp.arange(tried, dtype=jnp.int32)) % demands
    few = samples.some(some)
    chosen = best(few, settle_each(few, how, counts, how.some(state, some), warm), tail)
    return Found(chosen.count, *how.settle(samples, chosen.count, state, warm))


# ------------------------------------------------------------------------------------------ how demands are routed
@functools.cache
def adaptive_delivery(enough: float = ENOUGH) -> Delivery:
    """Return the delivery by relay routing with near-best shares for each demand.

    Steps towards shares stop at half of the gap `enough`.
    """
    gap = min(enough, ENOUGH) / 2

    def settle(samples: Samples, count: Array, state: Any, warm: bool):
        steps, hot, rate = FROM_WARM if warm else FROM_COLD

        def descend(member: tuple[Any, ...]):
            pairs, limit, potentials = member
            links, late = samples.links(pairs, count)
            least = limit * (1 + gap)
            potentials, seconds = minimise(links.soft_time, potentials, steps, enough=least, hot=hot, rate=rate)
            return potentials, seconds + late

        return map_members(descend, (samples.pairs, samples.limit, state), LANES)

    def worth(samples: Samples, count: Array, state: Any) -> Worth:
        def demand_worth(pairs: Array, potentials: Array):
            links, _ = samples.links(pairs, count)
            return circuit_worth(links, links.seconds(potentials))

        return jax.vmap(demand_worth)(samples.pairs, state)

    return Delivery(lambda samples: samples.cold, settle, worth, lambda state, some: state[some])


@functools.cache
def fixed_delivery(tail: float, enough: float = ENOUGH) -> Delivery:
    """Return the delivery by relay routing with one set of shares for all demands."""
    gap = min(enough, ENOUGH) / 2

    def cold(samples: Samples):
        servers = samples.pairs.shape[-1]
        return jnp.zeros((servers, servers, servers + 2), samples.pairs.dtype)

    def seconds_of(samples: Samples, count: Array, logits: Array):
        shares = shares_of(samples, count, logits)
        circuit = count.astype(shares.dtype)
        served = shares.sum(2) > 0

        def link_times(pairs: Array):
            seconds = link_seconds(jnp.where(served, pairs, 0), circuit, samples.ports, shares, samples.efficiency)
            return seconds, NEVER * jnp.where(served, 0, pairs).sum()

        return jax.vmap(link_times)(samples.pairs)

    def settle(samples: Samples, count: Array, state: Any, warm: bool):
        def times(logits: Array):
            seconds, late = seconds_of(samples, count, logits)
            return seconds.max(1) + late

        def time_and_slope(logits: Array, temperature: Array):
            def soft(logits: Array):
                seconds, late = seconds_of(samples, count, logits)
                each = temperature * jax.nn.logsumexp(seconds / temperature, axis=1) + late
                hard = seconds.max(1) + late
                counts = jax.lax.stop_gradient(counting(hard, samples.weight, tail))
                return jnp.where(counts > 0, counts * each, 0).sum(), risk_of(hard, samples.weight, tail)

            (_, late), slope = jax.value_and_grad(soft, has_aux=True)(logits)
            return late, slope

        least = risk_of(samples.limit * (1 + gap), samples.weight, tail)
        steps, hot, rate = FROM_WARM if warm else FROM_COLD
        final_logits, _ = minimise(time_and_slope, state, steps, enough=least, hot=hot, rate=rate)
        return final_logits, times(final_logits)

    def worth(samples: Samples, count: Array, state: Any) -> Worth:
        servers = samples.pairs.shape[-1]
        seconds, _ = seconds_of(samples, count, state)

        def demand_worth(pairs: Array, seconds: Array):
            links, _ = samples.links(pairs, count)
            return circuit_worth(links, seconds.reshape(servers + 2, servers))

        return jax.vmap(demand_worth)(samples.pairs, seconds)

    return Delivery(cold, settle, worth, lambda state, some: state)


def shares_of(samples: Samples, count: Array, logits: Float[Array, "S S S+2"]) -> Float[Array, "S S S+2"]:
    """Return each path's share, in proportion to its width times exp(logit); 0 for a pair without a path."""
    circuit, port = count.astype(logits.dtype), samples.ports
    via = jnp.minimum(circuit[:, None, :], circuit.T[None])
    own = jnp.asarray(DIRECT, circuit.dtype) * circuit[..., None]
    eps = jnp.sqrt(port[:, None] * port[None])[..., None]
    wide = jnp.concatenate([via, own, eps], axis=2)
    paths = jnp.where(is_path(len(port)), wide * jnp.exp(logits), 0)
    total = paths.sum(2, keepdims=True)
    return jnp.where(total > 0, paths / jnp.where(total > 0, total, 1), 0)
