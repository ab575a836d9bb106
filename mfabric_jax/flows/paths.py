"""Sums and minima between flows and the links they cross: the two directions of the incidence, in two layouts.

"Hop arrays" have the layout's own shape: [F H] for the padded table, [N] for the flat list.
"""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.flows.problem import FlowList, FlowProblem


class Paths(eqx.Module):
    """Hops of either layout. `slot` holds the link of every hop, L where there is none."""

    slot: Int[Array, "..."]
    share: Float[Array, "..."]
    flow: Int[Array, "N"] | None  # None: the padded table, one row a flow
    flows: int = eqx.field(static=True)
    links: int = eqx.field(static=True)

    @property
    def present(self) -> Bool[Array, "..."]:
        """Which hops are not padding."""
        return self.slot < self.links

    def spread(self, value: Array) -> Array:
        """[F] -> at the hops of each flow."""
        return jnp.broadcast_to(value[:, None], self.slot.shape) if self.flow is None else value[self.flow]

    def at_hops(self, value: Float[Array, "L"], fill: float) -> Array:
        """[L] -> at the hops on each link; `fill` at padding."""
        return jnp.concatenate([value, jnp.full(1, fill, value.dtype)])[self.slot]

    def path_min(self, hop: Array, none: float) -> Array:
        """Hop array -> smallest along every path [F]; `none` where there is no hop."""
        if self.flow is None:
            return hop.min(axis=1, initial=none)
        return jnp.full(self.flows, none, hop.dtype).at[self.flow].min(hop)

    def path_any(self, hop: Bool[Array, "..."]) -> Bool[Array, "F"]:
        """Whether any hop of the path holds."""
        return hop.any(axis=1) if self.flow is None else jnp.zeros(self.flows, bool).at[self.flow].max(hop)

    def path_sum(self, hop: Array) -> Float[Array, "F"]:
        """Sum along every path."""
        return hop.sum(axis=1) if self.flow is None else jnp.zeros(self.flows, hop.dtype).at[self.flow].add(hop)

    def hop_sum(self, hop: Array) -> Float[Array, "L"]:
        """Sum of what the hops on every link hold."""
        return jnp.zeros(self.links + 1, hop.dtype).at[self.slot].add(hop)[:-1]

    def link_sum(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Sum over the flows of every link of share * value."""
        return self.hop_sum(jnp.where(self.present, self.share * self.spread(value), 0))

    def link_min(self, value: Float[Array, "F"]) -> Float[Array, "L"]:
        """Smallest value among the flows of every link (infinity where there is none)."""
        return jnp.full(self.links + 1, jnp.inf, value.dtype).at[self.slot].min(self.spread(value))[:-1]


def paths_of(problem: FlowProblem | FlowList) -> Paths:
    """The hops of a problem."""
    links, flows = problem.capacity.size, problem.weight.size
    table = isinstance(problem, FlowProblem)
    link = (problem.hops if table else problem.link).astype(jnp.int32)
    return Paths(jnp.where(link >= 0, link, links), problem.share, None if table else problem.flow, flows, links)
