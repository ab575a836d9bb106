"""Seconds of waiting for the switch in a step."""

import jax.numpy as jnp
from jaxtyping import Float, Int

from mfabric_jax.fabric.region import new_circuits
from mfabric_jax.support.array_module import Array


def change_s(before: Int[Array, "S S"], after: Int[Array, "S S"], delay_s: Array, each_s) -> Float[Array, ""]:
    """Return the seconds of a change: `delay_s`, plus `each_s` per new circuit; minus infinity if nothing changes."""
    anew = new_circuits(before, after).astype(delay_s.dtype)
    return jnp.where(jnp.any(after != before), delay_s + each_s * anew, -jnp.inf)
