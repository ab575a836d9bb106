"""Completion times and rates on a star of ports. A call solves one instance; `jax.vmap` runs the batched kernel."""

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.typing import ArrayLike
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.flows.device_events import Release, in_known_order
from mfabric_jax.flows.kernels import AUTO, StarKernel, fused, kernel_of, usual
from mfabric_jax.flows.max_min import max_min_rates
from mfabric_jax.flows.problem import FlowProblem, once
from mfabric_jax.flows.star_kernel import BIG, StarPorts, finish_times, rates
from mfabric_jax.support.arrays import floats
from mfabric_jax.support.host_arrays import NAN_OR_NOT_NEGATIVE, NOT_NEGATIVE


def star_completion(
    size: ArrayLike,
    up: ArrayLike,
    down: ArrayLike,
    group_up: ArrayLike | None = None,
    group_down: ArrayLike | None = None,
    *,
    kernel: str = AUTO,
) -> Float[Array, "N N"]:
    """Return when each flow of a star ends [s]; all start at 0 and share the ports max-min fairly.

    - `size` [N N]: bytes from endpoint i to endpoint j (the diagonal is a flow like any other).
    - `up`, `down` [N]: port capacities [bytes/s], finite.
    - `group_up`, `group_down` [G]: capacities of the ports that N/G neighbouring endpoints share; infinity is no limit.
    - `kernel`: a kernel of `flows.kernels`; "auto" chooses by the table there.

    The result is 0 without bytes, and infinity at a dead port. All of it is NaN if an input is NaN, a size is infinite,
    or (inside a program) an input is negative. Differentiable once, forward and reverse, by replay through
    `completion_times`; a second derivative raises `InputError`.
    """
    inputs = _check_inputs(size, up, down, group_up, group_down)
    return _finish(kernel_of(kernel, len(inputs[0])), *inputs)


@functools.partial(jax.jit, static_argnums=0)
def _finish(kernel: StarKernel | None, *inputs: Array) -> Float[Array, "N N"]:
    batch = _finish_batch(kernel)(*(x[None] for x in lax.stop_gradient(inputs)))
    return _finish_tangents(batch[0], *inputs)


def star_rates(
    flows: ArrayLike,
    up: ArrayLike,
    down: ArrayLike,
    group_up: ArrayLike | None = None,
    group_down: ArrayLike | None = None,
    *,
    kernel: str = AUTO,
) -> Float[Array, "N N"]:
    """Return the max-min fair rates [bytes/s] of a star's flows; ports and kernel as in `star_completion`.

    - `flows` [N N]: above 0 where there is a flow (e.g. bytes). Rates are 0 elsewhere and at dead ports.
    """
    inputs = _check_inputs(flows, up, down, group_up, group_down)
    return _rates(kernel_of(kernel, len(inputs[0])), *inputs)


@functools.partial(jax.jit, static_argnums=0)
def _rates(kernel: StarKernel | None, *inputs: Array) -> Float[Array, "N N"]:
    batch = _rate_batch(kernel)(*(x[None] for x in lax.stop_gradient(inputs)))
    return _rate_tangents(batch[0], *inputs)


def _check_inputs(
    size: ArrayLike, up: ArrayLike, down: ArrayLike, group_up: ArrayLike | None, group_down: ArrayLike | None
):
    size = floats("size", size, NAN_OR_NOT_NEGATIVE)
    dtype, n = size.dtype, size.shape[0] if size.ndim else 0
    if (group_up is None) != (group_down is None):
        raise InputError("group_up and group_down go together: give both or neither.")
    groups = jnp.zeros((2, 0), dtype)
    if group_up is not None:
        ends = ("group_up", group_up), ("group_down", group_down)
        groups = jnp.stack([floats(field, value, NAN_OR_NOT_NEGATIVE, dtype) for field, value in ends])
    ports = [floats(field, value, NOT_NEGATIVE, dtype, wait=True) for field, value in (("up", up), ("down", down))]
    shapes = [array.shape for array in (size, *ports)]
    if n == 0 or shapes != [(n, n), (n,), (n,)]:
        raise InputError(f"size, up, down must be [N N], [N], [N], got {', '.join(map(str, shapes))}.")
    if groups.shape[1] and n % groups.shape[1]:
        raise InputError(f"group_up has {groups.shape[1]} groups, which do not divide {n} endpoints.")
    return size, jnp.stack(ports), groups


def _batchable(make: Callable[..., Array]):
    """Make a kernel a function of [B ...] arrays whose `vmap` merges the new axis into the batch."""

    @functools.cache
    def batched_kernel(kernel: StarKernel | None):
        function = custom_vmap(functools.partial(make, kernel))

        @function.def_vmap
        def _(axis_size: int, in_batched: list[bool], *args: Array):
            def merge_axis(x: Array, has_axis: bool):
                x = x if has_axis else jnp.broadcast_to(x[None], (axis_size, *x.shape))
                return x.reshape(axis_size * x.shape[1], *x.shape[2:])

            out = function(*(merge_axis(x, has) for x, has in zip(args, in_batched, strict=True)))
            each = args[0].shape[1 if in_batched[0] else 0]
            return out.reshape(axis_size, each, *out.shape[1:]), True

        return function

    return batched_kernel


def largest(x: Array):
    """Return the largest value per instance, [B ...] -> [B 1 1], or 1 if it is 0; instances are divided by it."""
    top = jnp.max(x, axis=(1, 2))
    return jnp.where(top > 0, top, 1)[:, None, None]


def dead_flows(size: Array, leaf: Array, groups: Array):
    """Return the flows over a port without capacity [B N N], and the instances with an invalid size or port [B 1 1]."""
    n, racks = size.shape[1], groups.shape[2]
    reach = leaf if not racks else jnp.minimum(leaf, jnp.repeat(groups, n // racks, axis=2))
    port = jnp.concatenate([leaf, groups], axis=2)
    bad = ~NOT_NEGATIVE.holds(size).all((1, 2)) | ~(port >= 0).all((1, 2))
    return (size > 0) & ((reach[:, 0, :, None] <= 0) | (reach[:, 1, None, :] <= 0)), bad[:, None, None]


@_batchable
def _finish_batch(kernel: StarKernel | None, size: Array, leaf: Array, groups: Array) -> Float[Array, "B N N"]:
    dead, bad = dead_flows(size, leaf, groups)
    scale, most = largest(leaf), largest(size)
    work = jnp.where(dead | bad, 0, size / most)
    finish = _run_kernel(kernel, finish_times, "fused_finish_times", work, leaf / scale, groups / scale)
    finish = finish * (most / scale)
    finish = jnp.where(dead, jnp.inf, jnp.where(size > 0, finish, 0))
    return jnp.where(bad, jnp.nan, finish)


@_batchable
def _rate_batch(kernel: StarKernel | None, size: Array, leaf: Array, groups: Array) -> Float[Array, "B N N"]:
    dead, bad = dead_flows(size, leaf, groups)
    scale = largest(leaf)
    flows = jnp.where((size > 0) & ~dead & ~bad, jnp.ones_like(size), 0)
    rate = _run_kernel(kernel, _rates_in_step, "fused_rates", flows, leaf / scale, groups / scale) * scale
    return jnp.where(bad, jnp.nan, rate)


def _rates_in_step(flows: Array, ports: StarPorts):
    return rates(flows > 0, ports)


def _run_kernel(
    kernel: StarKernel | None, in_step: Callable[..., Array], in_registers: str, work: Array, leaf: Array, groups: Array
) -> Array:
    def run(kernel: StarKernel, interpret: bool) -> Callable[..., Array]:
        def solve(work: Array, leaf: Array, groups: Array):
            limited = jnp.minimum(groups, BIG)
            if kernel.name == "fused":
                return getattr(fused, in_registers)(work, leaf, limited, warps=kernel.number, interpret=interpret)
            return _in_chunks(in_step, kernel.number, work, leaf, limited)

        return solve

    if not len(work):
        return work
    on_cpu, elsewhere = (kernel or usual(platform, work.shape[1]) for platform in ("cpu", "cuda"))
    if on_cpu == elsewhere and on_cpu.name == "xla":
        return run(on_cpu, True)(work, leaf, groups)
    there, here = run(elsewhere, False), run(on_cpu, True)
    return lax.platform_dependent(work, leaf, groups, cuda=there, rocm=there, default=here)


def _in_chunks(kernel: Callable[..., Array], lanes: int, work: Array, leaf: Array, groups: Array):
    batch, n, _ = work.shape
    lanes = min(batch, lanes) or batch
    chunks = -(-batch // lanes)

    def lanes_last(x: Array):  # [B ...] -> [chunks ... lanes]
        padded = jnp.concatenate([x, jnp.zeros((chunks * lanes - batch, *x.shape[1:]), x.dtype)])
        return jnp.moveaxis(padded.reshape(chunks, lanes, *x.shape[1:]), 1, -1)

    def run(chunk: tuple[Array, ...]):
        size, ends, racks = chunk
        with jax.numpy_rank_promotion("allow"):  # [P B] and [N N B] meet on the batch axis
            return kernel(size, StarPorts(ends.reshape(-1, lanes), racks.reshape(-1, lanes)))

    finish = lax.map(run, (lanes_last(work), lanes_last(leaf), lanes_last(groups)))
    return jnp.moveaxis(finish, -1, 1).reshape(chunks * lanes, n, n)[:batch]


@jax.custom_jvp
def _finish_tangents(finish: Array, size: Array, leaf: Array, groups: Array):
    return finish


@_finish_tangents.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    finish, *inputs = once(primals)

    def general(size: Array, leaf: Array, groups: Array):
        at_once = jnp.zeros(size.size, size.dtype)
        release = Release(at_once, at_once, jnp.zeros((0, 2), jnp.int32), jnp.arange(size.size))
        problem = as_problem(leaf, groups)
        return in_known_order((at_once, finish.reshape(-1)), problem, size.reshape(-1), release)[1].reshape(size.shape)

    return finish, jax.jvp(general, tuple(inputs), tuple(tangents[1:]))[1]


@jax.custom_jvp
def _rate_tangents(rate: Array, size: Array, leaf: Array, groups: Array):
    return rate


@_rate_tangents.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    rate, size, *ports = once(primals)

    def general(leaf: Array, groups: Array):
        problem = eqx.tree_at(lambda p: p.weight, as_problem(leaf, groups), (size > 0).astype(size.dtype).reshape(-1))
        return max_min_rates(problem).rate.reshape(size.shape)

    return rate, jax.jvp(general, tuple(ports), tuple(tangents[2:]))[1]


def as_problem(leaf: Float[Any, "2 N"], groups: Float[Any, "2 G"]) -> FlowProblem:
    """Return the star's N*N flows (row-major) as a `FlowProblem` over ports up, ports down, groups up, groups down."""
    n, racks = leaf.shape[1], groups.shape[1]
    source, to = np.divmod(np.arange(n * n), n)
    hops = [source, n + to]
    if racks:
        hops += [2 * n + source // (n // racks), 2 * n + racks + to // (n // racks)]
    return FlowProblem(jnp.concatenate([leaf.reshape(-1), groups.reshape(-1)]), np.stack(hops, axis=1))
