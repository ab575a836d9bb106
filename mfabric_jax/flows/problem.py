"""A max-min problem: flows on fixed paths over links. Arrays only; what a link or a flow is, others know."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.platforms import platform

COMPARED = 1 << 18  # links times hops up to which an accelerator compares rather than scatters


class Outcome(eqx.Enumeration):
    """How a solve ended: the members are the sentences a user reads."""

    solved = ""
    starved = "A flow never finishes: its cap or a link on its way is zero, or it waits for one that never finishes."
    nonfinite = "A capacity, share, weight, cap, size or start is NaN."
    unfinished = "The solver reached its bound on rounds: please report this instance."


class FlowProblem(eqx.Module):
    """Flows that share links.

    - `capacity` [L]: what each link carries [bytes/s], 0 or more.
    - `hops` [F H]: the links each flow crosses; -1 pads and may stand anywhere; no link twice in one row.
    - `share` [F H]: part of the flow's rate that crosses the hop (multipath splitting), above 0; at padding anything.
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
        self, capacity: ArrayLike, hops: ArrayLike, share: ArrayLike = 1, weight: ArrayLike = 1, cap: ArrayLike = np.inf
    ):
        links = jnp.asarray(capacity)
        if links.ndim != 1:
            raise InputError(f"capacity must have the shape [L], got {list(links.shape)}.")
        floating = jnp.issubdtype(links.dtype, jnp.floating)
        self.capacity = links if floating else links.astype(jnp.result_type(float))
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


def of_shape(field: str, value: ArrayLike, dtype, shape: tuple[int, ...]) -> Array:
    """The value for each, of one number or of an array that has the shape; else `InputError`."""
    array = jnp.asarray(value).astype(dtype)
    if array.ndim not in (0, len(shape)) or any(a not in (1, b) for a, b in zip(array.shape, shape, strict=False)):
        raise InputError(f"{field} must be a number or have the shape {list(shape)}, got {list(array.shape)}.")
    return jnp.broadcast_to(array.reshape((1,) * (len(shape) - array.ndim) + array.shape), shape)


def refuse_negative(**terms: ArrayLike) -> None:
    """`InputError` for numbers below 0, where they are known before tracing. NaN passes: it ends in an outcome."""
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
    """Sums and minima between flows and the links they cross.

    `slot` holds the link of every hop, L where there is none. `compared`: sums over links compare every hop with every
    link, in place of scattering, which on a GPU adds in another order from run to run.
    """

    slot: Int[Array, "F H"]
    share: Float[Array, "F H"]
    links: int = eqx.field(static=True)
    compared: bool = eqx.field(static=True)

    @property
    def present(self) -> Bool[Array, "F H"]:
        """Which hops are not padding."""
        return self.slot < self.links

    def spread(self, value: Array) -> Array:
        """[F] -> at the hops of each flow [F H]."""
        return jnp.broadcast_to(value[:, None], self.slot.shape)

    def at_hops(self, value: Float[Array, "L"], fill: float) -> Array:
        """[L] -> at the hops on each link [F H]; `fill` at padding."""
        return jnp.concatenate([value, jnp.full(1, fill, value.dtype)])[self.slot]

    def hop_sum(self, hop: Array) -> Float[Array, "L"]:
        """Sum of what the hops on every link hold."""
        if self.compared:
            return self._on_link(hop, 0).sum(1)
        return jnp.zeros(self.links + 1, hop.dtype).at[self.slot].add(hop)[:-1]

    def link_sum(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Sum over the flows of every link of share * value."""
        return self.hop_sum(jnp.where(self.present, self.share * self.spread(value), 0))

    def link_min(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Smallest value among the flows of every link (infinity where there is none)."""
        if self.compared:
            return self._on_link(self.spread(value), jnp.inf).min(1, initial=jnp.inf)
        return jnp.full(self.links + 1, jnp.inf, value.dtype).at[self.slot].min(self.spread(value))[:-1]

    def _on_link(self, hop: Array, none: float) -> Float[Array, "L N"]:
        """What hops hold, at their own links; `none` at others."""
        on = self.slot.reshape(1, -1) == jnp.arange(self.links, dtype=self.slot.dtype)[:, None]
        return jnp.where(on, hop.reshape(1, -1), jnp.asarray(none, hop.dtype))


def paths_of(problem: FlowProblem) -> Paths:
    """The hops of a problem."""
    links, hops = problem.capacity.size, problem.hops.astype(jnp.int32)
    compared = platform() != "cpu" and hops.size * links <= COMPARED
    return Paths(jnp.where(hops >= 0, hops, links), problem.share, links, compared)


# --------------------------------------------------------------------------------------------------- first derivatives
def once(primals: Any) -> Any:
    """The `primals` of a rule for derivatives, which cannot be differentiated again."""
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
