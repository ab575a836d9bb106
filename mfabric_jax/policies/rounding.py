"""Whole circuits from real-valued ones, within every server's degree."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.policies.soft_circuits import within_degrees


@jax.jit
def rounded(
    count: Float[Array, "S S"],
    degrees: Int[Array, "S"],
    *,
    least: Float[Array, ""] | float = -jnp.inf,
    noise: Float[Array, ""] | float = 0.0,
    key: PRNGKeyArray | None = None,
) -> Int[Array, "S S"]:
    """The whole part of every pair's circuits, then one more at a time to the pair that lacks most while NICs are free.

    - `count` [S S]: wanted circuits; both directions are averaged, the diagonal, what is below 0 and what is not a
      number count as 0, and what exceeds a server's degree is scaled down.
    - `degrees` [S]: the most circuits of each server.
    - `least`: a pair that lacks less takes no circuit; by default NICs stay free only where there is no pair left.
    - `noise`: standard deviation of what is added to the lacks, drawn with `key`: another rounding each time.

    Legal for any `count`. Ties go to the lower (i, j). At most S * degree / 2 rounds.
    """
    servers, dtype = len(degrees), count.dtype
    upper = jnp.triu(jnp.ones((servers, servers), bool), 1)
    most = jnp.minimum(degrees[:, None], degrees[None, :]).astype(dtype)
    wanted = jnp.where(upper, jnp.clip(jnp.nan_to_num((count + count.T) / 2, nan=0), 0, most), 0)
    wanted = jnp.triu(within_degrees(wanted + wanted.T, degrees), 1)
    whole = jnp.floor(wanted)
    allocated = whole.astype(jnp.int32)
    lack = wanted - whole
    if key is not None:
        lack += jnp.asarray(noise, dtype) * jax.random.normal(key, lack.shape, dtype)
    enough = upper & (lack >= jnp.asarray(least, dtype))

    def open_(state):
        _, free, lack = state
        return enough & (lack >= jnp.asarray(least, dtype)) & (free > 0)[:, None] & (free > 0)[None, :]

    def deal(state):
        allocated, free, lack = state
        i, j = jnp.divmod(jnp.argmax(jnp.where(open_(state), lack, -jnp.inf)), servers)
        return allocated.at[i, j].add(1), free.at[i].add(-1).at[j].add(-1), lack.at[i, j].add(-1)

    free = degrees - (allocated + allocated.T).sum(1, dtype=degrees.dtype)
    allocated = lax.while_loop(lambda state: open_(state).any(), deal, (allocated, free, lack))[0]
    return allocated + allocated.T
