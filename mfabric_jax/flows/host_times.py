"""The CPU engine inside JAX programs: a callback that supports `vmap` and first derivatives, forward and reverse."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.buffer_callback import buffer_callback
from jax.flatten_util import ravel_pytree
from jaxtyping import Float, Int

from mfabric_jax.flows.dependencies import Successors, check_after, successors
from mfabric_jax.flows.problem import FlowProblem, once
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.platforms import cores

# The loops, and their compiler, load when the first instance is solved.
_host = LazyModule("mfabric_jax.flows.host.instance")


class Terms(NamedTuple):
    """The inputs in which times are differentiable."""

    capacity: Float[Array, "L"]
    share: Float[Array, "F H"]
    weight: Float[Array, "F"]
    cap: Float[Array, "F"]
    size: Float[Array, "F"]
    start: Float[Array, "F"]
    lag: Float[Array, "F"]


def times(
    problem: FlowProblem, size: Array, start: Array, lag: Array, order: Successors
) -> tuple[Array, Array, Array, Array]:
    """Return begin and end [F] s, the link that limited each flow as it ended [F] (-1: none), and the event count."""
    return _times(_terms(problem, size, start, lag), problem.hops, order)


def times_now(problem: FlowProblem, size: Array, start: Array, lag: Array, order: Successors) -> tuple[np.ndarray, ...]:
    """Return `times` for concrete arrays, as NumPy arrays."""
    terms, hops, order = jax.tree.map(np.asarray, (_terms(problem, size, start, lag), problem.hops, order))
    begin, finish, holder, events = _solve(terms, hops, order)
    dtype = terms.size.dtype
    return begin.astype(dtype), finish.astype(dtype), holder.astype(np.int32), np.asarray(events, np.int32)


def finish_times_now(
    capacity: Float[np.ndarray, "L"],
    hops: Int[np.ndarray, "F H"],
    share: Float[np.ndarray, "F H"],
    size: Float[np.ndarray, "B F"],
) -> Float[np.ndarray, "B F"]:
    """Return when the flows of B instances over the same paths end [s], infinity for never; all start at 0."""
    flows = len(hops)
    order, nothing = successors(check_after(None, flows), flows), np.zeros(flows)
    alike, unlimited = np.ones(flows), np.full(flows, np.inf)
    instance, _ = _instance(Terms(capacity, share, alike, unlimited, nothing, nothing, nothing), hops, order)
    ends = [_host.run_instance(instance._replace(size=each))[0].finish for each in np.ascontiguousarray(size, float)]
    return np.array(ends).reshape(size.shape)


def _terms(problem: FlowProblem, size: Array, start: Array, lag: Array) -> Terms:
    return Terms(problem.capacity, problem.share, problem.weight, problem.cap, size, start, lag)


@jax.custom_jvp
def _times(terms: Terms, hops: Array, order: Successors) -> tuple[Any, ...]:
    of_flow = jax.ShapeDtypeStruct(terms.size.shape, terms.size.dtype)
    whole = jax.ShapeDtypeStruct(terms.size.shape, jnp.int32)
    shapes = (of_flow, of_flow, whole, jax.ShapeDtypeStruct((), jnp.int32))
    return _call_host(_solve, shapes, lax.stop_gradient(terms), hops, order)


@_times.defjvp
def _(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    terms, hops, order = once(primals)
    begin, finish, holder, events = _times(terms, hops, order)
    d_begin, d_finish = _change(tangents[0], terms, hops, order)
    nothing = np.zeros(holder.shape, jax.dtypes.float0), np.zeros((), jax.dtypes.float0)
    return (begin, finish, holder, events), (d_begin, d_finish, *nothing)


def _change(d: Terms, terms: Terms, hops: Array, order: Successors) -> tuple[Array, Array]:
    """Return the linear change of begin and end, by a linear system that JAX can transpose and batch."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), terms)

    together, apart = ravel_pytree(d)  # a single operand, since some inputs have changes known to be zero

    def solve(_, change: Array) -> Array:
        begin, finish = _call_host(_push_forward, (shapes.start, shapes.size), terms, hops, order, apart(change))
        return ravel_pytree(jax.tree.map(jnp.zeros_like, terms)._replace(start=begin, size=finish))[0]

    def transpose(_, cotangents: Array) -> Array:
        of = apart(cotangents)
        return ravel_pytree(_call_host(_pull_back, shapes, terms, hops, order, (of.start, of.size)))[0]

    changed = apart(lax.custom_linear_solve(lambda x: x, together, solve, transpose))
    return changed.start, changed.size


def _call_host(function: Callable[..., Any], shapes: Any, *operands: Any) -> Any:
    """Call the function on the host, once per instance of a batch.

    It reads the program's own memory: `jax.pure_callback` would copy large operands on threads that the program may
    occupy, and deadlock on a single core.
    """
    ranks = [np.ndim(leaf) for leaf in jax.tree.leaves(operands)]
    shape_of = jax.tree.structure(operands)

    def call(_, results: Any, *leaves: Any):
        values, into = ([np.asarray(leaf) for leaf in some] for some in (leaves, jax.tree.leaves(results)))
        batches = [leaf.shape[: leaf.ndim - rank] for leaf, rank in zip(values, ranks, strict=True)]
        batch = np.broadcast_shapes(*batches)
        full = [
            np.broadcast_to(leaf, batch + leaf.shape[leaf.ndim - rank :])
            for leaf, rank in zip(values, ranks, strict=True)
        ]

        def instance(index: tuple[int, ...]):
            for result, value in zip(into, function(*shape_of.unflatten([leaf[index] for leaf in full])), strict=True):
                result[index] = value

        places = list(np.ndindex(*batch))
        workers = min(len(places), cores())
        if workers > 1:
            with ThreadPoolExecutor(workers) as pool:
                list(pool.map(instance, places))
        else:
            for index in places:
                instance(index)

    return buffer_callback(call, shapes, vmap_method="expand_dims")(*jax.tree.leaves(operands))


def _instance(terms: Terms, hops: Array, order: Successors):
    capacity = np.asarray(terms.capacity, float)
    finite = np.append(np.isfinite(capacity), False)  # infinite links limit no flow; -1 selects the last entry
    finite_hops = np.flatnonzero(finite[np.ravel(hops)])
    flow, share = finite_hops // max(hops.shape[1], 1), np.ravel(terms.share)[finite_hops].astype(float)
    link = np.ravel(hops)[finite_hops].astype(np.int64)
    of_flows = {name: np.array(getattr(terms, name), float) for name in ("weight", "cap", "size", "start", "lag")}
    waits = {name: np.array(part, np.int32) for name, part in zip(("first", "then", "waits"), order, strict=True)}
    return _host.HostInstance(capacity, flow.astype(np.int64), link, share, **of_flows, **waits), finite_hops


def _solve(terms: Terms, hops: Array, order: Successors):
    got, events = _host.run_instance(_instance(terms, hops, order)[0])
    return *got, events


def _push_forward(terms: Terms, hops: Array, order: Successors, change: Terms):
    instance, finite_hops = _instance(terms, hops, order)
    d = [np.array(part, float) for part in change]
    d[1] = np.ravel(d[1])[finite_hops]
    return np.split(_host.push_forward_times(instance, tuple(d)), 2)


def _pull_back(terms: Terms, hops: Array, order: Successors, cotangents: tuple[Any, ...]):
    instance, finite_hops = _instance(terms, hops, order)
    back = list(_host.pull_back_times(instance, np.concatenate([np.array(count, float) for count in cotangents])))
    share = np.zeros(np.size(terms.share))
    share[finite_hops] = back[1]
    back[1] = share.reshape(np.shape(terms.share))
    return back
