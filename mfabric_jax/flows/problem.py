"""The max-min problem as arrays: flows on fixed paths over links."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.arrays import floats, indices, known_values
from mfabric_jax.support.host_arrays import NAN_OR_NOT_NEGATIVE, NumberRule, whole_numbers
from mfabric_jax.support.platforms import platform

COMPARED = 1 << 18  # largest links * hops for which an accelerator compares instead of scattering (`FlowPaths`)


class SolveOutcome(eqx.Enumeration):
    """How a solve ended; the members are the sentences shown to users."""

    solved = ""
    starved = "A flow never finishes: its cap or a link on its path is zero, or it waits for one that never finishes."
    nonfinite = "A capacity, share, weight, cap, size, start or lag is NaN or not allowed, or a hop names no link."
    unfinished = "The solver reached its bound on rounds: please report this instance."


class FlowProblem(eqx.Module):
    """Flows that share links.

    - `capacity` [L]: capacity of each link [bytes/s], 0 or more.
    - `hops` [F H]: links that each flow crosses, none of them twice; -1 pads, anywhere.
    - `share` [F H]: fraction of the flow's rate on the hop (multipath splitting), above 0; ignored at padding.
    - `weight` [F]: fair-share weight; the allocation is max-min on rate / weight. 0 means absent.
    - `cap` [F]: limit on the flow's own rate [bytes/s].

    Scalars broadcast to [F]. This is one instance; use `jax.vmap` for batches. In float32, weights and capacities of an
    instance may span a factor of about 1e6 before digits are lost. Raise `InputError` for wrong shapes and kinds of
    numbers, and for wrong values known before tracing. Wrong traced values, and NaN, end in `SolveOutcome.nonfinite`.
    """

    capacity: Float[Array, "L"]
    hops: Int[Array, "F H"]
    share: Float[Array, "F H"]
    weight: Float[Array, "F"]
    cap: Float[Array, "F"]

    def __init__(
        self, capacity: ArrayLike, hops: ArrayLike, share: ArrayLike = 1, weight: ArrayLike = 1, cap: ArrayLike = np.inf
    ):
        self.capacity = floats("capacity", capacity, NAN_OR_NOT_NEGATIVE, wait=True)
        if self.capacity.ndim != 1:
            raise InputError(f"capacity must have the shape [L], got {list(self.capacity.shape)}.")
        table = whole_numbers("hops", hops)
        if len(shape := table.shape) != 2:
            raise InputError(f"hops must be integers [F H], got the shape {list(shape)}.")
        self.hops = indices("hops", table, -1, self.capacity.size - 1, wait=True)
        dtype, flows = self.capacity.dtype, shape[:1]
        self.share = of_shape("share", share, dtype, shape)
        self.weight = of_shape("weight", weight, dtype, flows, NAN_OR_NOT_NEGATIVE)
        self.cap = of_shape("cap", cap, dtype, flows, NAN_OR_NOT_NEGATIVE)
        _check_rows(table, share)


def of_shape(field: str, value: ArrayLike, dtype: Any, shape: tuple[int, ...], rule: NumberRule | None = None) -> Array:
    """Return `value` in that dtype, broadcast to the shape. Raise `InputError` for a wrong shape or a broken `rule`."""
    array = floats(field, value, rule, dtype, wait=True)
    if array.ndim not in (0, len(shape)) or any(a not in (1, b) for a, b in zip(array.shape, shape, strict=False)):
        raise InputError(f"{field} must be a number or have the shape {list(shape)}, got {list(array.shape)}.")
    return jnp.broadcast_to(array.reshape((1,) * (len(shape) - array.ndim) + array.shape), shape)


def _check_rows(hops: ArrayLike, share: ArrayLike) -> None:
    """Raise `InputError` for a share of 0 or less, or for a link twice in one row, if the values are known."""
    rows, part = known_values(hops, wait=True), known_values(share, wait=True)
    if rows is None or part is None or not rows.size:
        return
    used = np.where(rows >= 0, part, 1)
    if np.any(used <= 0):
        raise InputError(f"share must be above 0, got {np.nanmin(used)}.")
    rows = np.sort(rows, axis=1)
    twice = (rows[:, 1:] == rows[:, :-1]) & (rows[:, 1:] >= 0)
    if twice.any():
        raise InputError(f"hops must not name a link twice in one row, but row {np.argwhere(twice)[0, 0]} does.")


def is_ill_posed(problem: "FlowProblem", size: Any = 0.0, start: Any = 0.0, lag: Any = 0.0) -> Bool[Any, ""]:
    """Return whether a value is NaN or forbidden, or a hop names no link.

    These are the checks of `FlowProblem` and `completion_times` inside a program."""
    xp = array_module(problem, size, start, lag)
    hops, share, links = problem.hops, problem.share, len(problem.capacity)
    crossed = (hops >= 0) & (hops < links) & (share > 0)
    parts = [crossed | (hops == -1) & ~xp.isnan(share), ~xp.isnan(start)]
    parts += [x >= 0 for x in (problem.capacity, problem.weight, problem.cap, size, lag)]
    return ~xp.stack([xp.asarray(part).all() for part in parts]).all()


class FlowPaths(eqx.Module):
    """Sums and minima between flows and their links.

    - `slot`: the link of every hop, L at padding.
    - `compared`: sum by comparing every hop with every link. (Scattering on a GPU adds in an order that varies from run
      to run.)
    """

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
        """Return the values of links [L] at their hops [F H]; `fill` at padding."""
        return jnp.concatenate([value, jnp.full(1, fill, value.dtype)])[self.slot]

    def hop_sum(self, hop: Array) -> Float[Array, "L"]:
        if self.compared:
            return self._on_link(hop, 0).sum(1)
        return jnp.zeros(self.links + 1, hop.dtype).at[self.slot].add(hop)[:-1]

    def link_sum(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Return the sum of share * value over the flows of every link."""
        return self.hop_sum(jnp.where(self.present, self.share * self.spread(value), 0))

    def link_min(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Return the smallest value among the flows of every link; infinity without flows."""
        if self.compared:
            return self._on_link(self.spread(value), jnp.inf).min(1, initial=jnp.inf)
        return jnp.full(self.links + 1, jnp.inf, value.dtype).at[self.slot].min(self.spread(value))[:-1]

    def _on_link(self, hop: Array, none: float) -> Float[Array, "L N"]:
        on = self.slot.reshape(1, -1) == jnp.arange(self.links, dtype=self.slot.dtype)[:, None]
        return jnp.where(on, hop.reshape(1, -1), jnp.asarray(none, hop.dtype))


def paths_of(problem: FlowProblem) -> FlowPaths:
    links, hops = problem.capacity.size, problem.hops.astype(jnp.int32)
    compared = platform() != "cpu" and hops.size * links <= COMPARED
    return FlowPaths(jnp.where(hops >= 0, hops, links), problem.share, links, compared)


# --------------------------------------------------------------------------------------------------- first derivatives
def once(primals: Any) -> Any:
    """Return the `primals` of a derivative rule; differentiating them again raises `InputError`."""
    return _identity(primals)


@jax.custom_jvp
def _identity(primals: tuple[Any, ...]):
    return primals


@_identity.defjvp
def _refuse(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    raise InputError(
        "rates and completion times of flows have only first derivatives; take the second by finite differences of "
        "the first, or put jax.lax.stop_gradient around the inputs of a first derivative that is meant as a constant."
    )
