"""The star kernel fused for a GPU: one Pallas program (Triton) per instance simulates in registers.

It runs the algorithm of `star_kernel`, but flows that end at the same instant share an event. Ports are [2 N], up
before down. Exact without tolerances, although Triton's float32 division is not correctly rounded.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Bool, Float, Int

ABSENT = -1  # `left` where there is no flow
TINY = 1e-37  # least finish time of an ended flow: `left` holds its negative, which must not be 0
WORD = 32  # bits per word; signed, which Triton can count
Words = tuple[Int[Array, "2 N"], ...]


class _Ports(NamedTuple):
    """Port capacities, each port's group capacity, and which ports share a group (both None without groups)."""

    leaf: Float[Array, "2 N"]
    group: Float[Array, "2 N"] | None
    together: Bool[Array, "N N"] | None

    def group_sum(self, value: Float[Array, "2 N"]) -> Float[Array, "2 N"]:
        assert self.together is not None
        each = lax.broadcast_in_dim(value, (*value.shape, value.shape[1]), (0, 2))
        return jnp.where(lax.broadcast_in_dim(self.together, each.shape, (1, 2)), each, 0).sum(2)


class _Filling(NamedTuple):
    """Filling in progress. `level` is infinite until a port saturates; `share` is infinite if no flow is left."""

    level: Float[Array, "2 N"]
    room: Float[Array, "2 N"]  # capacity left to unsettled flows
    # number of unsettled flows; 0 once the port has saturated
    count: Float[Array, "2 N"]  # pyright: ignore[reportIncompatibleMethodOverride]
    group_room: Float[Array, "2 N"] | None
    group_count: Float[Array, "2 N"] | None
    share: Float[Array, "2 N"]
    least: Float[Array, ""]
    last: Float[Array, ""]  # level settled last: levels never fall
    steps: Int[Array, ""]


class _State(NamedTuple):
    left: Float[Array, "N N"]  # bytes left; after the end, minus the finish time; ABSENT without a flow
    level: Float[Array, "2 N"]
    now: Float[Array, ""]
    step: Float[Array, ""]  # time since the previous event; infinity once no flow is left
    rate: Float[Array, ""]  # rate of the flow that ended; levels below it are kept
    events: Int[Array, ""]


def fused_finish_times(size: Array, leaf: Any, groups: Array, *, warps: int, interpret: bool) -> Float[Array, "B N N"]:
    """Return when each flow of each star ends, for inputs scaled to about 1 and without flows on dead ports.

    `size` [B N N]; capacities `leaf` [B 2 N] and `groups` [B 2 G]; `warps`: a power of two; `interpret`: run it as JAX
    operations, slowly.
    """
    return _programs(_simulate, "star", size, leaf, groups, warps, interpret)


def fused_rates(flows: Array, leaf: Any, groups: Array, *, warps: int, interpret: bool) -> Float[Array, "B N N"]:
    """Return max-min fair rates, 0 where `flows` is 0; arguments as in `fused_finish_times`."""
    return _programs(_share_out, "star_rates", flows, leaf, groups, warps, interpret)


def _programs(
    program: Callable[..., Any], name: str, size: Array, leaf: Any, groups: Array, warps: int, interpret: bool
) -> Float[Array, "B N N"]:
    batch, n, _ = size.shape
    wide = max(2, 1 << (n - 1).bit_length())  # Triton's shapes are powers of two
    per = n // groups.shape[2] if groups.shape[2] else 0
    matrix = pl.BlockSpec((None, wide, wide), lambda b: (b, 0, 0))
    ports = pl.BlockSpec((None, 2, wide), lambda b: (b, 0, 0))
    none, more = (0, 0), (0, wide - n)
    operands = [jnp.pad(size, (none, more, more)), jnp.pad(leaf, (none, none, more))]
    if per:
        operands.append(jnp.pad(jnp.repeat(groups, per, axis=2), (none, none, more)))
    run = pl.pallas_call(
        functools.partial(program, per=per),
        out_shape=jax.ShapeDtypeStruct((batch, wide, wide), size.dtype),
        grid=(batch,),
        in_specs=[matrix, *[ports] * (len(operands) - 1)],
        out_specs=matrix,
        compiler_params=triton.CompilerParams(num_warps=warps, num_stages=1),
        interpret=interpret,
        name=f"{name}_{wide}",
    )
    return run(*operands)[:, :n, :n]


def _ports(leaf: Any, group: Any, per: int) -> _Ports:
    if not per:
        return _Ports(leaf[...], None, None)
    n = leaf.shape[1]
    rack = lax.broadcasted_iota(jnp.int32, (n, n), 0) // per
    return _Ports(leaf[...], group[...], rack == lax.broadcasted_iota(jnp.int32, (n, n), 1) // per)


def _simulate(size: Any, leaf: Any, *refs: Any, per: int) -> None:
    *group, finish = refs
    ports, demand = _ports(leaf, group[0] if group else None, per), size[...]
    n, zero = demand.shape[0], jnp.zeros((), demand.dtype)
    left = jnp.where(demand > 0, demand, ABSENT)
    start = _State(left, jnp.full_like(ports.leaf, math.inf), zero, zero, zero, jnp.zeros((), jnp.int32))

    def running(state: _State):
        return (state.step < math.inf) & (state.events <= n * n)  # each event ends a flow; one more finds none left

    last = lax.while_loop(running, lambda state: _event(state, ports), start)
    ended = jnp.where(last.left < 0, -last.left, math.inf)
    finish[...] = jnp.where(size[...] > 0, ended, 0)  # reading `size` again is cheaper than keeping it in registers


def _share_out(flows: Any, leaf: Any, *refs: Any, per: int) -> None:
    *group, rate = refs
    ports, active = _ports(leaf, group[0] if group else None, per), flows[...] > 0
    zero = jnp.zeros((), ports.leaf.dtype)
    level = _fill_levels(active, jnp.full_like(ports.leaf, math.inf), zero, ports)
    row, column = _sides(jnp.minimum(level, ports.leaf))
    rate[...] = jnp.where(active, jnp.minimum(_per_row(row), _per_column(column)), 0)


def _event(state: _State, ports: _Ports) -> _State:
    sends = state.left >= 0
    level = _fill_levels(sends, state.level, state.rate, ports)
    rate = jnp.minimum(level, ports.leaf)  # an unsaturated port limits no flow
    (row, column), (slow_row, slow_column) = _sides(rate), _sides(1 / rate)  # divisions per port, not per flow
    rates = jnp.minimum(_per_row(row), _per_column(column))
    slow = jnp.maximum(_per_row(slow_row), _per_column(slow_column))
    until = jnp.where(sends, state.left * slow, math.inf)
    step = until.min()
    now = state.now + step
    ends = sends & (until == step)
    left = jnp.where(sends, jnp.maximum(state.left - step * rates, 0), state.left)
    left = jnp.where(ends, -jnp.maximum(now, TINY), left)
    return _State(left, level, now, step, jnp.where(ends, rates, math.inf).min(), state.events + 1)


def _fill_levels(sends: Bool[Array, "N N"], level: Array, floor: Array, ports: _Ports) -> Float[Array, "2 N"]:
    """Return the levels of all ports, filled from `floor` on; levels below it are kept."""
    words = _words(sends)

    def is_unsettled(filling: _Filling):
        return (filling.least < math.inf) & (filling.steps < level.size)  # each step saturates a port

    def saturate(filling: _Filling) -> _Filling:
        full = filling.share == filling.least
        return _after(filling, full, _common(words, full, level.dtype), ports)

    return lax.while_loop(is_unsettled, saturate, _open(sends, words, level, floor, ports)).level


def _open(sends: Array, words: Words, level: Array, floor: Array, ports: _Ports) -> _Filling:
    stands = level < floor
    kept = jnp.where(stands, level, math.inf)
    row, column = _sides(kept)
    held = jnp.minimum(_per_row(row), _per_column(column))
    used = _both(jnp.where(sends & (held < math.inf), held, 0))
    count = jnp.where(stands, 0, _degree(words, level.dtype) - _common(words, stands, level.dtype))
    room = jnp.maximum(ports.leaf - used, 0)
    group_room = group_count = None
    if ports.group is not None:
        group_room, group_count = jnp.maximum(ports.group - ports.group_sum(used), 0), ports.group_sum(count)
    share = _shares(room, count, group_room, group_count)
    steps = jnp.zeros((), jnp.int32)
    return _Filling(kept, room, count, group_room, group_count, share, share.min(), floor, steps)


def _after(filling: _Filling, full: Array, gone: Array, ports: _Ports) -> _Filling:
    level = jnp.maximum(filling.least, filling.last)
    leaves = jnp.where(full, filling.count, jnp.where(filling.count > 0, gone, 0))
    room, count = jnp.maximum(filling.room - level * leaves, 0), filling.count - leaves
    group_room, group_count = filling.group_room, filling.group_count
    if group_room is not None and group_count is not None:
        off = ports.group_sum(leaves)
        group_room, group_count = jnp.maximum(group_room - level * off, 0), group_count - off
    share = _shares(room, count, group_room, group_count)
    levels = jnp.where(full, level, filling.level)
    return _Filling(levels, room, count, group_room, group_count, share, share.min(), level, filling.steps + 1)


def _shares(room: Array, count: Array, group_room: Array | None, group_count: Array | None):
    share = room / jnp.maximum(count, 1)
    if group_room is not None and group_count is not None:
        share = jnp.minimum(share, group_room / jnp.maximum(group_count, 1))
    return jnp.where(count > 0, share, math.inf)


def _bit(n: int, word: int) -> Int[Array, "2 N"]:
    port = lax.broadcasted_iota(jnp.int32, (2, n), 1)
    bit = jnp.int32(1) << (port % WORD)
    return bit if n <= WORD else jnp.where(port // WORD == word, bit, jnp.int32(0))


def _words(sends: Bool[Array, "N N"]) -> Words:
    n = sends.shape[0]
    zero = jnp.int32(0)
    words = []
    for word in range(-(-n // WORD)):
        bit = _bit(n, word).max(0)
        over_rows = jnp.where(sends, _per_column(bit), zero).sum(1, dtype=jnp.int32)
        words.append(_join_sides(over_rows, jnp.where(sends, _per_row(bit), zero).sum(0, dtype=jnp.int32)))
    return tuple(words)


def _common(words: Words, mask: Bool[Array, "2 N"], dtype: Any) -> Float[Array, "2 N"]:
    common = []
    for index, word in enumerate(words):
        own = jnp.where(mask, _bit(word.shape[1], index), jnp.int32(0)).sum(1, dtype=jnp.int32)
        opposite = own.sum(dtype=jnp.int32) - own
        common.append(word & lax.broadcast_in_dim(opposite, word.shape, (0,)))
    return _degree(tuple(common), dtype)


def _degree(words: Words, dtype: Any) -> Float[Array, "2 N"]:
    return functools.reduce(lax.add, [lax.population_count(word).astype(jnp.int32) for word in words]).astype(dtype)


def _sides(value: Float[Array, "2 N"]) -> tuple[Float[Array, "N"], Float[Array, "N"]]:
    up = lax.broadcasted_iota(jnp.int32, value.shape, 0) == 0
    return jnp.where(up, value, -math.inf).max(0), jnp.where(up, -math.inf, value).max(0)


def _join_sides(up: Array, down: Array) -> Array:
    shape = (2, up.size)
    first = lax.broadcasted_iota(jnp.int32, shape, 0) == 0
    return jnp.where(first, lax.broadcast_in_dim(up, shape, (1,)), lax.broadcast_in_dim(down, shape, (1,)))


def _both(value: Float[Array, "N N"]) -> Float[Array, "2 N"]:
    return _join_sides(value.sum(1), value.sum(0))


def _per_row(value: Array) -> Array:
    return lax.broadcast_in_dim(value, (value.size, value.size), (0,))


def _per_column(value: Array) -> Array:
    return lax.broadcast_in_dim(value, (value.size, value.size), (1,))
