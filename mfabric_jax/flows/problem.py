"""The max-min problem as arrays: flows on fixed paths over links."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.platforms import platform

COMPARED = 1 << 18  # largest links * hops for which an accelerator compares instead of scattering


class Outcome(eqx.Enumeration):
    """How a solve ended; the members are the sentences shown to users."""

    solved = ""
    starved = "A flow never finishes: its cap or a link on its way is zero, or it waits for one that never finishes."
    nonfinite = "A capacity, share, weight, cap, size or start is NaN."
    unfinished = "The solver reached its bound on rounds: please report this instance."


class FlowProblem(eqx.Module):
    """Flows that share links.

    - `capacity` [L]: capacity of each link [bytes/s], 0 or more.
    - `hops` [F H]: links that each flow crosses; -1 pads, anywhere; no link twice in a row.
    - `share` [F H]: fraction of the flow's rate on the hop (multipath splitting), above 0; ignored at padding.
    - `weight` [F]: fair-share weight; the allocation is max-min on rate / weight. 0 means absent.
    - `cap` [F]: limit on the flow's own rate [bytes/s].

    Scalars broadcast to [F]. One instance; use `jax.vmap` for batches. In float32, weights and capacities of an
    instance may span a factor of about 1e6 before digits are lost. Raises `InputError` for wrong shapes, and for wrong
    values known before tracing.
    """

    capacity: Float[Array, "L"]
    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    weight: Float[Array, "F"]
    cap: Float[Array, "F"]

    def __init__(
        self, capacity: ArrayLike, hops: ArrayLike, share: ArrayLike = 1, weight: ArrayLike = 1, cap: ArrayLike = np.inf
    ):
        self.capacity = as_floats(capacity)
        if self.capacity.ndim != 1:
            raise InputError(f"capacity must have the shape [L], got {list(self.capacity.shape)}.")
        self.hops = jnp.asarray(hops)
        if self.hops.ndim != 2 or not jnp.issubdtype(self.hops.dtype, jnp.integer):
            raise InputError(f"hops must be integers [F H], got {self.hops.dtype} {list(self.hops.shape)}.")
        dtype, flows = self.capacity.dtype, self.hops.shape[:1]
        self.share = of_shape("share", share, dtype, self.hops.shape)
        self.weight = of_shape("weight", weight, dtype, flows)
        self.cap = of_shape("cap", cap, dtype, flows)
        refuse_negative(capacity=capacity, weight=weight, cap=cap)
        if self.hops.size and not isinstance(hops, Tracer) and not isinstance(share, Tracer):
            _check_hops(np.asarray(hops), np.asarray(share), self.capacity.size)


def as_floats(value: ArrayLike) -> Array:
    """The array as floats of 32 or 64 bits: integers would truncate bandwidths, and the 8 bits of bfloat16 are too few
    to add bytes up, so half precision becomes float32."""
    array = jnp.asarray(value)
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array.astype(jnp.result_type(float))
    return array.astype(jnp.float32) if jnp.finfo(array.dtype).bits < 32 else array


def of_shape(field: str, value: ArrayLike, dtype, shape: tuple[int, ...]) -> Array:
    """Broadcast one number or check an array's shape; raises `InputError`."""
    array = jnp.asarray(value).astype(dtype)
    if array.ndim not in (0, len(shape)) or any(a not in (1, b) for a, b in zip(array.shape, shape, strict=False)):
        raise InputError(f"{field} must be a number or have the shape {list(shape)}, got {list(array.shape)}.")
    return jnp.broadcast_to(array.reshape((1,) * (len(shape) - array.ndim) + array.shape), shape)


def refuse_negative(**terms: ArrayLike) -> None:
    """Raise `InputError` for negative numbers known before tracing. NaN passes and ends in an outcome."""
    for name, value in terms.items():
        if not isinstance(value, Tracer) and np.any(np.asarray(value) < 0):
            raise InputError(f"{name} must not be negative, got {np.nanmin(np.asarray(value))}.")


def _check_hops(hops: np.ndarray, share: np.ndarray, links: int) -> None:
    if hops.min() < -1 or hops.max() >= links:
        raise InputError(f"hops must lie in -1..{links - 1} (links of capacity), got {hops.min()}..{hops.max()}.")
    used = np.where(hops >= 0, share, 1)
    if np.any(used <= 0):
        raise InputError(f"share must be above 0, got {np.nanmin(used)}.")
    rows = np.sort(hops, axis=1)
    twice = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)
    if twice.any():
        raise InputError(f"hops must not name a link twice in one row, but row {np.argwhere(twice)[0, 0]} does.")


class Paths(eqx.Module):
    """Sums and minima between flows and their links. `slot` holds the link of every hop, L at padding. `compared`: sum
    by comparing every hop with every link; scattering on a GPU adds in an order that varies from run to run."""

    slot: Int[Array, "F H"]
    share: Float[Array, "F H"]
    links: int = eqx.field(static=True)
    compared: bool = eqx.field(static=True)

    @property
    def present(self) -> Bool[Array, "F H"]:
        return self.slot < self.links

    def spread(self, value: Array) -> Array:
        return jnp.broadcast_to(value[:, None], self.slot.shape)

    def at_hops(self, value: Float[Array, "L"], fill: float) -> Array:
        """Values of links [L] at their hops [F H]; `fill` at padding."""
        return jnp.concatenate([value, jnp.full(1, fill, value.dtype)])[self.slot]

    def hop_sum(self, hop: Array) -> Float[Array, "L"]:
        if self.compared:
            return self._on_link(hop, 0).sum(1)
        return jnp.zeros(self.links + 1, hop.dtype).at[self.slot].add(hop)[:-1]

    def link_sum(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Sum of share * value over the flows of every link."""
        return self.hop_sum(jnp.where(self.present, self.share * self.spread(value), 0))

    def link_min(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Smallest value among the flows of every link; infinity without flows."""
        if self.compared:
            return self._on_link(self.spread(value), jnp.inf).min(1, initial=jnp.inf)
        return jnp.full(self.links + 1, jnp.inf, value.dtype).at[self.slot].min(self.spread(value))[:-1]

    def _on_link(self, hop: Array, none: float) -> Float[Array, "L N"]:
        on = self.slot.reshape(1, -1) == jnp.arange(self.links, dtype=self.slot.dtype)[:, None]
        return jnp.where(on, hop.reshape(1, -1), jnp.asarray(none, hop.dtype))


def paths_of(problem: FlowProblem) -> Paths:
    links, hops = problem.capacity.size, problem.hops.astype(jnp.int32)
    compared = platform() != "cpu" and hops.size * links <= COMPARED
    return Paths(jnp.where(hops >= 0, hops, links), problem.share, links, compared)


# --------------------------------------------------------------------------------------------------- first derivatives
def once(primals: Any) -> Any:
    """The `primals` of a derivative rule, with second derivatives refused."""
    return _identity(primals)


@jax.custom_jvp
def _identity(primals):
    return primals


@_identity.defjvp
def _refuse(primals, tangents):
    raise InputError(
        "rates and completion times of flows have first derivatives alone; take the second by finite differences of "
        "the first, or put jax.lax.stop_gradient around the inputs of a first derivative that is meant as a constant."
    )
