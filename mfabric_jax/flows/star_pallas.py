"""The star kernel fused for a GPU: one Pallas program (Triton) per instance runs its whole simulation in registers.

As plain XLA every filling step is several kernel launches, and all instances wait for the slowest. The algorithm is
that of `star_kernel`, with two differences: flows that end at the same instant end in one event, and the flows that
leave a port are counted by a masked sum over the matrix instead of by words of bits.

Exact: no tolerance anywhere, and nothing relies on a correctly rounded division (Triton's in float32 is not one).
Every loop is bounded. Only masks, reductions and elementwise operations on power-of-two shapes: what Triton has.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError, not_negative
from mfabric_jax.flows.star import dead_flows, largest

ABSENT = -1  # `left` where there is no flow
TINY = 1e-37  # least finish time of an ended flow, so that its sign can be told


class _Side(NamedTuple):
    """The N ports up, or the N ports down, while they are filled."""

    level: Float[Array, "N"]  # where the port saturated; infinity where it has not
    room: Float[Array, "N"]  # capacity left to the flows that are not settled yet
    count: Float[Array, "N"]  # number of those flows; 0 once the port has saturated
    share: Float[Array, "N"]  # room / count; infinity where no flow is left to share it


class _State(NamedTuple):
    """The simulation between events."""

    left: Float[Array, "N N"]  # bytes to go; once ended minus the finish time; ABSENT where no flow is
    row: Float[Array, "N"]  # levels of the ports up
    column: Float[Array, "N"]  # and down
    now: Float[Array, ""]
    step: Float[Array, ""]  # time since the event before; infinity once no flow is left
    rate: Float[Array, ""]  # of the flow that ended: the levels below it stand
    events: Int[Array, ""]


def star_completion_pallas(
    size, up, down, *, interpret: bool | None = None, warps: int | None = None
) -> Float[Array, "B N N"]:
    """When each flow of each star ends: `star_completion` for a whole batch, fused for a GPU, without derivatives.

    - `size` [B N N]: bytes from endpoint i to endpoint j.
    - `up`, `down` [B N]: port capacities [bytes/s], finite.
    - `interpret`: run as ordinary JAX operations, slowly; by default wherever the backend is not a GPU.
    - `warps`: groups of 32 threads per instance, a power of two; by default `default_warps`.
    """
    size, up, down = jnp.asarray(size), jnp.asarray(up), jnp.asarray(down)
    if size.ndim != 3 or 0 in size.shape[1:] or not size.shape[:2] == size.shape[::2] == up.shape == down.shape:
        raise InputError(f"size, up, down must be [B N N], [B N], [B N], got {size.shape}, {up.shape}, {down.shape}.")
    not_negative("up", up)
    not_negative("down", down)
    dtype = size.dtype if jnp.issubdtype(size.dtype, jnp.floating) else jnp.result_type(float)
    size, up, down = size.astype(dtype), up.astype(dtype), down.astype(dtype)
    leaf = jnp.stack([up, down], axis=1)
    (dead, bad), scale, most = dead_flows(size, leaf, leaf[:, :, :0]), largest(leaf), largest(size)
    work = jnp.where(dead | bad, 0, size / most)
    up, down = jnp.unstack(leaf / scale, axis=1)
    finish = _simulate_batch(work, up, down, interpret, warps) * (most / scale)
    finish = jnp.where(dead, math.inf, jnp.where(size > 0, finish, 0))
    return jnp.where(bad, math.nan, finish)


def _simulate_batch(size, up, down, interpret: bool | None, warps: int | None) -> Float[Array, "B N N"]:
    """Finish times of instances scaled to about 1, without flows on dead ports: size [B N N], up, down [B N]."""
    batch, n = up.shape
    if batch == 0:
        return size
    if interpret is None:
        interpret = jax.default_backend() != "gpu"
    wide = max(2, 1 << (n - 1).bit_length())  # Triton's shapes are powers of two
    matrix = pl.BlockSpec((None, wide, wide), lambda b: (b, 0, 0))
    ports = pl.BlockSpec((None, wide), lambda b: (b, 0))
    program = pl.pallas_call(
        _simulate,
        out_shape=jax.ShapeDtypeStruct((batch, wide, wide), size.dtype),
        grid=(batch,),
        in_specs=[matrix, ports, ports],
        out_specs=matrix,
        compiler_params=triton.CompilerParams(num_warps=warps or default_warps(wide), num_stages=1),
        interpret=interpret,
        name=f"star_{wide}",
    )
    none, more = (0, 0), (0, wide - n)
    finish = program(jnp.pad(size, (none, more, more)), jnp.pad(up, (none, more)), jnp.pad(down, (none, more)))
    return finish[:, :n, :n]


def default_warps(wide: int) -> int:
    """Warps for an instance of `wide` endpoints: 16 flows per thread, so that up to 64 endpoints stay in registers."""
    return min(max(wide * wide // 512, 1), 32)


def _simulate(size, up, down, finish):
    """The program of one instance; the arguments are references to its arrays."""
    demand, up, down = size[...], up[...], down[...]
    n, zero = up.size, jnp.zeros((), up.dtype)
    unfilled = jnp.full_like(up, math.inf)
    left = jnp.where(demand > 0, demand, ABSENT)
    start = _State(left, unfilled, unfilled, now=zero, step=zero, rate=zero, events=jnp.zeros((), jnp.int32))

    def running(state: _State):
        return (state.step < math.inf) & (state.events <= n * n)  # each ends a flow; one more finds none left

    last = lax.while_loop(running, lambda state: _event(state, up, down), start)
    ended = jnp.where(last.left < 0, -last.left, math.inf)
    finish[...] = jnp.where(size[...] > 0, ended, 0)  # read again: cheaper than to hold


def _event(state: _State, up, down) -> _State:
    """Settle the rates, run to the next completion, end all flows that complete there."""
    row, column = _fill(state, up, down)
    row_rate, column_rate = jnp.minimum(row, up), jnp.minimum(column, down)  # not saturated: the capacity is no limit
    rates = jnp.minimum(_per_row(row_rate), _per_column(column_rate))
    slow = jnp.maximum(_per_row(1 / row_rate), _per_column(1 / column_rate))  # divisions per port, not per flow
    sends = state.left >= 0
    until = jnp.where(sends, state.left * slow, math.inf)
    step = until.min()
    now = state.now + step
    ends = sends & (until == step)
    left = jnp.where(sends, jnp.maximum(state.left - step * rates, 0), state.left)
    left = jnp.where(ends, -jnp.maximum(now, TINY), left)
    rate = jnp.where(ends, rates, math.inf).min()
    return _State(left, row, column, now, step, rate, state.events + 1)


def _fill(state: _State, up, down):
    """Levels of all ports, up and down, filled from `state.rate` on; those below it stand."""
    flow = (state.left >= 0).astype(up.dtype)

    def over_row(value_down):
        """For each port up, the sum over its flows of a value of their ports down."""
        return (flow * _per_column(value_down)).sum(1)

    def over_column(value_up):
        return (flow * _per_row(value_up)).sum(0)

    ups = _open(up, state.row, state.column, state.rate, over_row)
    downs = _open(down, state.column, state.row, state.rate, over_column)

    def unsettled(filling):
        _, _, share, _, steps = filling
        return (share < math.inf) & (steps < 2 * up.size)  # each saturates a port

    def saturate(filling):
        """Saturate all ports whose share is the smallest; their flows leave the ports opposite."""
        ups, downs, share, last, steps = filling
        level = jnp.maximum(share, last)  # levels never fall
        full_up, full_down = ups.share == share, downs.share == share
        ups = _after(ups, level, full_up, over_row(full_down.astype(flow.dtype)))
        downs = _after(downs, level, full_down, over_column(full_up.astype(flow.dtype)))
        return ups, downs, _least_share(ups, downs), level, steps + 1

    filling = ups, downs, _least_share(ups, downs), state.rate, jnp.zeros((), jnp.int32)
    ups, downs, *_ = lax.while_loop(unsettled, saturate, filling)
    return ups.level, downs.level


def _open(capacity, level, opposite, floor, over_flows) -> _Side:
    """One side as filling starts: levels below `floor`, here and `opposite`, stand, and their flows are settled."""
    stands, stands_opposite = level < floor, opposite < floor
    settled = over_flows(jnp.where(stands_opposite, opposite, 0))
    loose = over_flows((~stands_opposite).astype(level.dtype))
    room, count = jnp.maximum(capacity - settled, 0), jnp.where(stands, 0, loose)
    return _Side(jnp.where(stands, level, math.inf), room, count, _share(room, count))


def _after(side: _Side, level, full, gone) -> _Side:
    """One side after its `full` ports saturated at `level` and `gone` flows of each of the others were settled."""
    still = (side.count > 0) & ~full
    room, count = jnp.maximum(side.room - level * gone, 0), jnp.where(still, side.count - gone, 0)
    return _Side(jnp.where(full, level, side.level), room, count, _share(room, count))


def _share(room, count):
    return jnp.where(count > 0, room / jnp.maximum(count, 1), math.inf)


def _least_share(ups: _Side, downs: _Side) -> Float[Array, ""]:
    return jnp.minimum(ups.share.min(), downs.share.min())


def _per_row(value: Float[Array, "N"]) -> Float[Array, "N N"]:
    """A value of each port up, at each of its flows."""
    return lax.broadcast_in_dim(value, (value.size, value.size), (0,))


def _per_column(value: Float[Array, "N"]) -> Float[Array, "N N"]:
    """A value of each port down, at each of its flows."""
    return lax.broadcast_in_dim(value, (value.size, value.size), (1,))
