"""What a policy decides: circuits and, for relay routing, the shares of every pair's paths."""

import equinox as eqx
from jaxtyping import Array, Float

from mfabric_jax.fabric import Circuits


class Plan(eqx.Module):
    """- `circuits`: how many join each pair of servers.
    - `shares` [S S S+2]: part of each pair's bytes (via server k, over direct circuits, over the EPS); None where
      the routing decides by itself.
    """

    circuits: Circuits
    shares: Float[Array, "S S S+2"] | None = None
