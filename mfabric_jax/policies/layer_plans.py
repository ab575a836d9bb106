"""Plans kept by layer: each layer's all-to-all is planned from the circuits that the same layer had last."""

from typing import TYPE_CHECKING

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.checks import of_type, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.static import uniform
from mfabric_jax.routing import Plan

if TYPE_CHECKING:
    from mfabric_jax.policies import Policy


class LayerPlans(eqx.Module):
    """The latest circuits of every layer: a pytree, for `lax.scan` to carry.

    - `count` [L S S]: circuits of each layer's latest plan.

    Example: `plan, kept = kept.plan_layer(get("joint", start="previous"), layer, demand, region)`.
    """

    count: Int[Array, "L S S"]

    @staticmethod
    def first(region: Region, layers: int) -> "LayerPlans":
        """Return uniform circuits for every layer."""
        count = uniform(None, of_type("region", region, Region)).circuits.count.astype(jnp.int32)
        return LayerPlans(jnp.broadcast_to(count, (whole("layers", layers), *count.shape)))

    def plan_layer(
        self,
        policy: "Policy",
        layer: Int[Array, ""] | int,
        demand: Float[Array, "S S"],
        region: Region,
        *,
        key: PRNGKeyArray | None = None,
    ) -> tuple[Plan, "LayerPlans"]:
        """Return the policy's plan for one layer, whose `previous` is that layer's latest, and all plans after it.

        `layer` may be traced.
        """
        plan = policy(demand, region, previous=Plan(Circuits(self.count[layer])), key=key)
        return plan, LayerPlans(self.count.at[layer].set(plan.circuits.count.astype(jnp.int32)))
