"""A max-min problem: flows on fixed paths over links. Arrays only; what a link or a flow is, others know."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mfabric_jax.checks import InputError


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


def _check_values(capacity, hops, share, weight, cap) -> None:
    """What can be known before tracing. NaN passes: it ends in `Outcome.nonfinite`."""
    for field, value in (("capacity", capacity), ("weight", weight), ("cap", cap)):
        if not isinstance(value, Tracer) and np.any(np.asarray(value) < 0):
            raise InputError(f"{field} must not be negative, got {np.nanmin(np.asarray(value))}.")
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


class Paths(eqx.Module):
    """Sums and minima between flows and the links they cross: the two directions of the incidence."""

    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    links: int = eqx.field(static=True)

    @property
    def present(self) -> Bool[Array, "F H"]:
        return self.hops >= 0

    @property
    def _slot(self) -> Int[Array, "F H"]:
        return jnp.where(self.present, self.hops, self.links)

    def link_sum(self, value: Float[Array, "F"], mask: Bool[Array, "F H"] | None = None) -> Float[Array, "L"]:
        """Sum over the flows of every link of share * value, over the hops in `mask`."""
        kept = self.present if mask is None else self.present & mask
        return self.hop_sum(jnp.where(kept, self.share * value[:, None], 0))

    def hop_sum(self, value: Float[Array, "F H"]) -> Float[Array, "L"]:
        """Sum of what the hops of every link hold."""
        return jnp.zeros(self.links + 1, value.dtype).at[self._slot].add(value)[:-1]

    def link_min(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Smallest value among the flows of every link (infinity where there is none)."""
        spread = jnp.broadcast_to(value[:, None], self.hops.shape)
        return jnp.full(self.links + 1, jnp.inf, value.dtype).at[self._slot].min(spread)[:-1]

    def at_hops(self, value: Float[Array, "L"], fill: float) -> Float[Array, "F H"]:
        """The link's value at every hop; `fill` where there is none."""
        padded = jnp.concatenate([value, jnp.full(1, fill, value.dtype)])
        return padded[self._slot]

    def path_min(self, value: Float[Array, "L"]) -> Float[Array, "F"]:
        """Smallest value along every path (infinity for a path without links)."""
        return self.at_hops(value, jnp.inf).min(axis=1, initial=jnp.inf)
