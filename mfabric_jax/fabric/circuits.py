"""Circuits of one optical region, and what makes them legal."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int

from mfabric_jax.checks import InputError


class Circuits(eqx.Module):
    """How many circuits join each pair of servers in one region.

    - `count` [S S]: symmetric, zero diagonal, row sums at most the region's degree: one circuit takes one NIC at
      each end, transmit and receive together. Integer when legal; real while a relaxation works on it.
    """

    count: Int[Array, "S S"] | Float[Array, "S S"]

    def __init__(self, count: ArrayLike):
        self.count = jnp.asarray(count)
        if self.count.ndim != 2 or self.count.shape[0] != self.count.shape[1]:
            raise InputError(f"circuits join servers to servers: count must be [S S], got {list(self.count.shape)}.")

    def checked(self, degree: ArrayLike) -> "Circuits":
        """Self, or a runtime error (also under jit) that names the broken rule.

        - `degree` () or [S]: optical NICs of a server.
        """
        used = self.count.sum(axis=1)
        rules = {
            "not symmetric": jnp.any(self.count != self.count.T),
            "a server joined to itself": jnp.any(jnp.diagonal(self.count) != 0),
            "a negative count": jnp.any(self.count < 0),
            "more circuits at a server than its optical degree": jnp.any(used > jnp.asarray(degree, used.dtype)),
        }
        broken = jnp.stack([*rules.values()])
        return eqx.branched_error_if(self, broken.any(), jnp.argmax(broken), [f"circuits: {rule}" for rule in rules])


def round_robin(servers: int) -> np.ndarray:
    """The matchings of a round-robin tournament [rounds S S]: every pair of servers meets exactly once.

    S - 1 rounds for even S; S rounds, in each of which one server rests, for odd S (circle method).
    """
    seats = servers + servers % 2
    rounds = np.zeros((max(seats - 1, 0), servers, servers), np.int32)
    for turn in range(len(rounds)):
        ring = [seats - 1, *((turn + k) % (seats - 1) for k in range(seats - 1))]
        for a, b in zip(ring[: seats // 2], reversed(ring[seats // 2 :]), strict=True):
            if a < servers and b < servers:
                rounds[turn, a, b] = rounds[turn, b, a] = 1
    return rounds
