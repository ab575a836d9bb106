"""A max-min problem: flows on fixed paths over links. Arrays only; what a link or a flow is, others know."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Float, Int

from mfabric_jax.checks import InputError, whole


class Outcome(eqx.Enumeration):
    """How a solve ended: the members are the sentences a user reads."""

    solved = ""
    starved = "A flow crosses a link of zero capacity, so it has rate 0 and never finishes."
    nonfinite = "A capacity, share, weight, cap, size or start is NaN."
    unfinished = "The solver reached its bound on rounds: please report this instance."


class FlowProblem(eqx.Module):
    """Flows that share links.

    - `capacity` [L]: what each link carries [bytes/s], 0 or more.
    - `hops` [F H]: the links each flow crosses; -1 pads and may stand anywhere; no link twice in one row.
    - `share` [F H]: part of the flow's rate that crosses the hop (multipath splitting), above 0.
    - `weight` [F]: fair-share weight; the allocation is max-min on rate / weight. 0 means absent.
    - `cap` [F]: limit on the flow's own rate [bytes/s].

    Scalars and [F] arrays broadcast. One instance; callers `jax.vmap`. Weights and capacities of one instance
    may span a factor of about 1e6 in float32 before digits are lost; instances may lie anywhere.
    Raises `InputError` for wrong shapes, and for wrong values when they are known before tracing.
    """

    capacity: Float[Array, "L"]
    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    weight: Float[Array, "F"]
    cap: Float[Array, "F"]

    def __init__(
        self,
        capacity: ArrayLike,
        hops: ArrayLike,
        share: ArrayLike = 1,
        weight: ArrayLike = 1,
        cap: ArrayLike = np.inf,
    ):
        _check_values(capacity, hops, share, weight, cap)
        self.capacity = _floats(capacity)
        self.hops = jnp.asarray(hops)
        if self.capacity.ndim != 1:
            raise InputError(f"capacity must have the shape [L], got {list(self.capacity.shape)}.")
        if self.hops.ndim != 2 or not jnp.issubdtype(self.hops.dtype, jnp.integer):
            raise InputError(f"hops must be integers [F H], got {self.hops.dtype} {list(self.hops.shape)}.")
        dtype, flows = self.capacity.dtype, self.hops.shape[:1]
        self.share = _broadcast("share", share, dtype, self.hops.shape)
        self.weight = _broadcast("weight", weight, dtype, flows)
        self.cap = _broadcast("cap", cap, dtype, flows)


def _floats(value: ArrayLike) -> Array:
    array = jnp.asarray(value)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(jnp.result_type(float))


def _broadcast(field: str, value: ArrayLike, dtype, shape: tuple[int, ...]) -> Array:
    array = jnp.asarray(value).astype(dtype)
    if array.ndim not in (0, len(shape)) or any(a not in (1, b) for a, b in zip(array.shape, shape, strict=False)):
        raise InputError(f"{field} must be a number or have the shape {list(shape)}, got {list(array.shape)}.")
    return jnp.broadcast_to(array.reshape((1,) * (len(shape) - array.ndim) + array.shape), shape)


def _check_signs(capacity, weight, cap) -> None:
    for field, value in (("capacity", capacity), ("weight", weight), ("cap", cap)):
        if not isinstance(value, Tracer) and np.any(np.asarray(value) < 0):
            raise InputError(f"{field} must not be negative, got {np.nanmin(np.asarray(value))}.")


def _check_values(capacity, hops, share, weight, cap) -> None:
    """What can be known before tracing. NaN passes: it ends in `Outcome.nonfinite`."""
    _check_signs(capacity, weight, cap)
    if any(isinstance(value, Tracer) for value in (capacity, hops, share)):
        return
    rows = np.asarray(hops)
    if rows.size == 0 or rows.ndim != 2:
        return
    links = np.shape(capacity)[0] if np.ndim(capacity) else 0
    if rows.min() < -1 or rows.max() >= links:
        raise InputError(f"hops must lie in -1..{links - 1} (links of capacity), got {rows.min()}..{rows.max()}.")
    ordered = np.sort(rows, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] >= 0)
    if twice.any():
        raise InputError(f"hops must not name a link twice in one row, but row {int(np.argwhere(twice)[0, 0])} does.")
    if np.any(np.asarray(share) <= 0):
        raise InputError(f"share must be above 0, got {np.nanmin(np.asarray(share))}.")


class FlowList(eqx.Module):
    """The same problem with its hops as one flat list [N], where paths differ much in length: memory goes with hops.

    - `link`, `flow` [N]: hop n is flow `flow[n]` crossing link `link[n]`; -1 in `link` pads.
    - `share` [N]; `capacity` [L]; `weight`, `cap` [F] as in `FlowProblem`; F is their length.
    """

    capacity: Float[Array, "L"]
    link: Int[Array, "N"]
    flow: Int[Array, "N"]
    share: Float[Array, "N"]
    weight: Float[Array, "F"]
    cap: Float[Array, "F"]

    def __init__(
        self,
        capacity: ArrayLike,
        link: ArrayLike,
        flow: ArrayLike,
        flows: int,
        share: ArrayLike = 1,
        weight: ArrayLike = 1,
        cap: ArrayLike = np.inf,
    ):
        _check_list(capacity, link, flow, flows, share, weight, cap)
        self.capacity, self.link, self.flow = _floats(capacity), jnp.asarray(link), jnp.asarray(flow)
        dtype = self.capacity.dtype
        self.share = _broadcast("share", share, dtype, self.link.shape)
        self.weight = _broadcast("weight", weight, dtype, (flows,))
        self.cap = _broadcast("cap", cap, dtype, (flows,))


def _check_list(capacity, link, flow, flows: int, share, weight, cap) -> None:
    whole("flows", flows, at_least=0)
    _check_signs(capacity, weight, cap)
    if any(isinstance(value, Tracer) for value in (capacity, link, flow, share)):
        return
    links, hop, owner = np.shape(capacity)[0], np.asarray(link), np.asarray(flow)
    if hop.ndim != 1 or hop.shape != owner.shape:
        raise InputError(f"link and flow must be lists of one length, got {list(hop.shape)} and {list(owner.shape)}.")
    if hop.size and (hop.min() < -1 or hop.max() >= links):
        raise InputError(f"link must lie in -1..{links - 1} (links of capacity), got {hop.min()}..{hop.max()}.")
    if hop.size and (owner.min() < 0 or owner.max() >= flows):
        raise InputError(f"flow must lie in 0..{flows - 1}, got {owner.min()}..{owner.max()}.")
    pair = np.sort((owner.astype(np.int64) * links + hop)[hop >= 0])
    if np.any(pair[1:] == pair[:-1]):
        raise InputError("a flow must not cross a link twice: link and flow repeat a pair.")
    if np.any(np.asarray(share) <= 0):
        raise InputError(f"share must be above 0, got {np.nanmin(np.asarray(share))}.")
