"""Whether a policy looks at more than the demand: one that does not is asked once for each, not block after block."""

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy
from mfabric_jax.routing import Plan


def remembers(policy: Policy, region: Region, demand, start, key) -> bool:
    """Whether its circuits can depend on the plan in place or on the key, as far as its program shows.

    - `demand` [S S], `start` [S S]: of the shapes and types that it is called with.
    """

    def circuits(demand, before, key):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    program = jax.make_jaxpr(circuits)(demand, jnp.zeros_like(start), key).jaxpr
    _, used = partial_eval.dce_jaxpr(program, [True])
    return any(used[1:])
