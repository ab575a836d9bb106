"""The star kernel: N endpoints, each with a port up and a port down; ports may form groups.

The max-min rate of flow i -> j is the smaller of two levels, x_ij = min(row_i, column_j). So ports fill lowest first,
and a completion changes only ports above the ended flow's rate. The batch is the last axis; most lanes continue while a
few still fill. Exact without tolerances. Source: Bertsekas & Gallager, Data Networks, 2nd ed., 6.5.2.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, UInt32

BIG = 1e30  # stands for "none" and "no limit"; instances are scaled to about 1
WAIT = 0.3  # largest fraction of lanes that may still fill while the others continue
barrier = lax.optimization_barrier  # keeps the CPU backend from computing a producer once per consumer


class StarPorts(NamedTuple):
    """Capacities of one chunk: leaves [2N B], sources first, and groups [2G B] (G may be 0)."""

    leaf: Float[Array, "P B"]
    group: Float[Array, "Q B"]

    def group_sum(self, value: Float[Array, "P B"]) -> Float[Array, "Q B"]:
        groups = self.group.shape[0]
        return value.reshape(groups, -1, value.shape[-1]).sum(1) if groups else self.group

    def of_group(self, value: Float[Array, "Q B"]) -> Float[Array, "P B"]:
        return jnp.repeat(value, self.leaf.shape[0] // self.group.shape[0], axis=0)


class Levels(NamedTuple):
    """Filling in progress. A frozen port's `room` is minus its level, its `count` 0."""

    room: Float[Array, "P B"]  # capacity left to unfrozen flows
    # number of unfrozen flows
    count: Float[Array, "P B"]  # pyright: ignore[reportIncompatibleMethodOverride]
    group_room: Float[Array, "Q B"]
    group_count: Float[Array, "Q B"]
    shares: Float[Array, "P B"]  # room / count, or the group's if that is less; BIG if no flow is left
    share: Float[Array, "B"]  # the smallest share
    last: Float[Array, "B"]  # level frozen last: levels never fall


class Simulation(NamedTuple):
    left: Float[Array, "N N B"]  # bytes left; BIG without a flow
    finish: Float[Array, "N N B"]
    words: tuple[UInt32[Array, "P B"], ...]  # each port's running flows: one bit per port opposite
    levels: Levels
    now: Float[Array, "B"]
    flows: Int[Array, "B"]
    steps: Int[Array, ""]


def low(a: Any, b: Any):  # without the NaN rules of jnp.minimum: one vector instruction
    return jnp.where(a < b, a, b)


def high(a: Any, b: Any):
    return jnp.where(a > b, a, b)


def lowest(x: Array):
    """Return the minimum over axis 0, by a reducer that vectorises."""
    top = jnp.asarray(BIG if jnp.issubdtype(x.dtype, jnp.floating) else 1 << 30, x.dtype)
    return barrier(lax.reduce(x, top, lambda a, b: lax.select(a < b, a, b), (0,)))


def unroll(op: Callable[[Array, Array], Array], n: int, term: Callable[[int], Array]):
    """Return op(term(0), term(1), ...), unrolled: one elementwise pass instead of a slow reduction."""
    total = term(0)
    for i in range(1, n):
        total = op(total, term(i))
    return barrier(total)


take = functools.partial(jnp.take_along_axis, mode="promise_in_bounds")


class Bits:
    """Sets of ports as bits of 32-bit words; `n` ports on each side."""

    def __init__(self, n: int):
        self.n, self.words = n, -(-n // 32)
        self.place = (jnp.arange(n, dtype=jnp.uint32) % 32)[:, None]

    def pack(self, mask: Array) -> list[Array]:
        """mask [... N B] -> words [... B]"""
        bits = mask.astype(jnp.uint32) << self.place
        return [bits[..., 32 * w : 32 * w + 32, :].sum(-2, dtype=jnp.uint32) for w in range(self.words)]

    def at_ports(self, flows: Array) -> list[Array]:
        """flows [N N B] -> words [2N B]: the flows present, at both of their ports"""
        return [jnp.concatenate(pair) for pair in zip(self.pack(flows), self.pack(flows.swapaxes(0, 1)), strict=True)]

    def facing(self, mask: Array) -> list[Array]:
        """mask [2N B] -> words [2N B]: for every port, the opposite ports in the mask"""
        sources, sinks = barrier((self.pack(mask[: self.n]), self.pack(mask[self.n :])))
        is_source = jnp.arange(2 * self.n, dtype=jnp.int32)[:, None] < self.n
        return [jnp.where(is_source, sink, source) for source, sink in zip(sources, sinks, strict=True)]

    def count(self, words: Any, dtype: Any):
        """words [2N B] -> number of bits set"""
        return functools.reduce(lax.add, [lax.population_count(word) for word in words]).astype(dtype)


def _open(ports: StarPorts, room: Array, count: Array, group_room: Array, group_count: Array, last: Array) -> Levels:
    shares = room / high(count, 1)
    if ports.group.shape[0]:
        shares = low(shares, ports.of_group(group_room / high(group_count, 1)))
    shares = barrier(jnp.where(count > 0, shares, BIG))
    return Levels(room, count, group_room, group_count, shares, lowest(shares), last)


def _freeze(ports: StarPorts, bits: Bits, words: Any, levels: Levels) -> Levels:
    on = levels.share < BIG
    level = jnp.where(on, high(levels.share, levels.last), 0)
    frozen = barrier((levels.shares == levels.share) & on)
    gone = bits.count([word & face for word, face in zip(words, bits.facing(frozen), strict=True)], level.dtype)
    leaves = jnp.where(frozen, levels.count, jnp.where(levels.count > 0, gone, 0))
    room = jnp.where(levels.room < 0, levels.room, high(levels.room - leaves * level, 0))
    room, count = barrier((jnp.where(frozen, -level, room), levels.count - leaves))
    group_room, group_count = levels.group_room, levels.group_count
    if ports.group.shape[0]:
        off = ports.group_sum(leaves)
        group_room, group_count = barrier((high(group_room - level * off, 0), group_count - off))
    return _open(ports, room, count, group_room, group_count, jnp.where(on, level, levels.last))


def _refill(ports: StarPorts, bits: Bits, left: Array, words: Any, level: Array, keep: Array, floor: Array) -> Levels:
    n = bits.n
    kept = barrier(jnp.where(keep, level, BIG))

    def rows(j: int):
        held = low(kept[:n], kept[n + j])
        return jnp.where((left[:, j] < BIG) & (held < BIG), held, 0)

    def columns(i: int):
        held = low(kept[n:], kept[i])
        return jnp.where((left[i] < BIG) & (held < BIG), held, 0)

    used = jnp.concatenate([unroll(lax.add, n, rows), unroll(lax.add, n, columns)])
    open_flows = [word & ~face for word, face in zip(words, bits.facing(keep), strict=True)]
    room = jnp.where(keep, -level, high(ports.leaf - used, 0))
    count = jnp.where(keep, 0, bits.count(open_flows, left.dtype))
    group_room = high(ports.group - ports.group_sum(used), 0) if ports.group.shape[0] else ports.group
    return _open(ports, room, count, group_room, ports.group_sum(count), floor)


def _next_end(left: Array, level: Array, n: int):
    slow = 1 / level
    level, slow = barrier((level, slow))
    until = unroll(low, n, lambda i: left[i] * high(slow[i], slow[n:]))  # [N B] over destinations
    step = lowest(until)
    half = jnp.arange(n, dtype=jnp.int32)[:, None]
    to = lowest(jnp.where(until == step, half, n - 1))
    column = barrier(take(left, to[None, None], 1)[:, 0] * high(slow[:n], take(slow, (n + to)[None], 0)))
    source = lowest(jnp.where(column == lowest(column), half, n - 1))
    return step, source, to


def _end_flows(ports: StarPorts, bits: Bits, state: Simulation) -> Simulation:
    n, levels = bits.n, state.levels
    lane = jnp.arange(state.now.size, dtype=jnp.int32)
    index = jnp.arange(2 * n, dtype=jnp.int32)[:, None]
    ends = (state.flows > 0) & (levels.share >= BIG)
    level = _level(ports, levels)
    step, source, to = _next_end(state.left, level, n)
    rate = low(take(level, source[None], 0)[0], take(level, (n + to)[None], 0)[0])
    step = jnp.where(ends, step, 0)
    now = state.now + step
    source, to = jnp.where(ends, source, n), jnp.where(ends, to, n)
    step, now, rate, source, to = barrier((step, now, rate, source, to))
    left = barrier(high(state.left - step * low(level[:n, None], level[None, n:]), 0))
    left = left.at[source, to, lane].set(BIG, mode="drop", unique_indices=True)
    finish = state.finish.at[source, to, lane].set(now, mode="drop", unique_indices=True)
    none = 32 * bits.words
    gone = jnp.where(index < n, jnp.where(index == source, to, none), jnp.where(index == n + to, source, none))
    bit = jnp.uint32(1) << (gone % 32).astype(jnp.uint32)
    words = barrier([w & ~jnp.where(gone // 32 == k, bit, jnp.uint32(0)) for k, w in enumerate(state.words)])
    keep = barrier((levels.room < 0) & (level < rate))
    fresh = _refill(ports, bits, left, words, level, keep, rate)
    levels = Levels(*(jnp.where(ends, new, old) for new, old in zip(fresh, levels, strict=True)))
    flows = state.flows - ends.astype(state.flows.dtype)
    return Simulation(left, finish, tuple(words), levels, now, flows, state.steps + 1)


def _filling(ports: StarPorts, bits: Bits, words: Any, levels: Levels, goal: Array | float) -> Levels:
    def filling(state: tuple[Any, ...]):
        return ((state[0].share < BIG).sum(dtype=jnp.float32) > goal) & (state[1] < bits.n)

    def fill_twice(state: tuple[Any, ...]):
        return _freeze(ports, bits, words, _freeze(ports, bits, words, state[0])), state[1] + 1

    return lax.while_loop(filling, fill_twice, (levels, jnp.zeros((), jnp.int32)))[0]


def _level(ports: StarPorts, levels: Levels):
    return jnp.where(levels.room < 0, -levels.room, ports.leaf)


def rates(flows: Array, ports: StarPorts) -> Float[Array, "N N B"]:
    """Return max-min fair rates of one chunk, for capacities scaled to about 1. flows [N N B]: which are present."""
    bits = Bits(n := flows.shape[0])
    words = bits.at_ports(flows)
    count = bits.count(words, ports.leaf.dtype)
    levels = _open(ports, ports.leaf, count, ports.group, ports.group_sum(count), jnp.zeros_like(ports.leaf[0]))
    level = _level(ports, _filling(ports, bits, words, levels, 0.0))
    return jnp.where(flows, low(level[:n, None], level[None, n:]), 0)


def finish_times(size: Array, ports: StarPorts) -> Float[Array, "N N B"]:
    """Return the finish times of one chunk, scaled to about 1. size [N N B]: 0 without a flow."""
    n, batch = size.shape[0], size.shape[-1]
    bits, sends = Bits(n), size > 0
    words, left = bits.at_ports(sends), jnp.where(sends, size, BIG)
    nothing, zero = jnp.zeros((2 * n, batch), bool), jnp.zeros(batch, size.dtype)
    levels = _refill(ports, bits, left, words, jnp.zeros((2 * n, batch), size.dtype), nothing, zero)
    flows = sends.sum((0, 1), dtype=jnp.int32)
    bound = flows.sum(dtype=jnp.int32)  # every step of the outer loop ends a flow in some lane

    def event(state: Simulation) -> Simulation:
        goal = WAIT * (state.flows > 0).sum(dtype=jnp.float32)
        levels = _filling(ports, bits, state.words, state.levels, goal)
        return _end_flows(ports, bits, state._replace(levels=levels))

    def running(state: Simulation):
        return (state.flows > 0).any() & (state.steps < bound)

    first = Simulation(left, jnp.zeros_like(left), tuple(words), levels, zero, flows, jnp.zeros((), jnp.int32))
    return lax.while_loop(running, event, first).finish
