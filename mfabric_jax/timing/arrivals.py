"""Experts that begin as tokens arrive: computation of every part of a dispatch, and its answers on the way back."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError, not_negative, positive
from mfabric_jax.routing.arrived import Arrivals


class Ends(NamedTuple):
    """Seconds from the start of the dispatch: when every part is computed [P S], all experts' and the combine's end."""

    computed: Float[Array, "P S"]
    experts_s: Float[Array, ""]
    combine_s: Float[Array, ""]


def experts_end(arrival: Float[Array, "P S"], tokens: Float[Array, "P S"], batch_s, token_s) -> Float[Array, "P S"]:
    """When every server has computed each of the parts that arrive there [s], one after the other as listed.

    - `arrival` [P S] s; `tokens` [P S]: selections in each part.
    - `batch_s`: fixed seconds of every part that has tokens (launches, weights that are read); `token_s`: seconds per
      token; one number or [S] each.

    A part begins when it is there and the one before is computed; one without tokens is skipped. So end = max(end
    before, arrival) + batch_s + tokens * token_s: exact, differentiable, under `vmap` a batch. O(P S).
    """
    if arrival.shape != tokens.shape:
        raise InputError(f"tokens must have the shape of arrival, {list(arrival.shape)}, got {list(tokens.shape)}.")
    batch_s, token_s = not_negative("batch_s", batch_s), not_negative("token_s", token_s)
    batch, token = (
        jnp.broadcast_to(jnp.asarray(x, arrival.dtype), arrival.shape[1:])[None] for x in (batch_s, token_s)
    )
    return _chained(arrival, batch + tokens * token, jnp.zeros_like(arrival), tokens > 0, jnp.zeros_like(token[0]))


def block_ends(parts: Arrivals, bytes_per_token, batch_s, token_s) -> Ends:
    """Dispatch, experts and combine of one block whose experts begin with each part of the dispatch as it arrives.

    - `parts`: `arrivals` of a schedule, or `equal_parts`; `parts.merged(1)` is one all-to-all and then computation.
    - `bytes_per_token`: of a dispatched selection. `batch_s`, `token_s`: as of `experts_end`.

    Answers go back part by part, in the order of their dispatch, once every server has computed the part. Circuits turn
    to the next part while they wait for it; neither they nor packet NICs begin before the dispatch has ended. Equal
    parts without `batch_s` are the rule `Rules.parts` (`timing.blocks.overlapped`).
    """
    tokens = parts.bytes / jnp.asarray(positive("bytes_per_token", bytes_per_token), parts.bytes.dtype)
    computed = experts_end(parts.time, tokens, batch_s, token_s)
    ready = jnp.where(tokens > 0, computed, 0).max(1)
    sent = jnp.where(parts.bytes > 0, parts.time, 0).max()
    some = (tokens > 0).any(1)
    circuits = _chained(ready, parts.circuit_s, parts.turn_s, some & (parts.circuit_s > 0), sent)
    packets = _chained(ready, parts.packet_s, jnp.zeros_like(ready), some & (parts.packet_s > 0), sent)
    experts = ready.max()
    return Ends(computed, experts, jnp.maximum(jnp.maximum(circuits[-1], packets[-1]), experts))


@jax.jit
def _chained(ready, busy, gap, some, start) -> Array:
    """Ends [P ...] of work that is done in order: each begins `gap` after the one before, but not before it is
    `ready`; `some` [P ...]: which are done at all."""

    def one(now, part):
        ready, busy, gap, some = part
        now = jnp.where(some, jnp.maximum(now + gap, ready) + busy, now)
        return now, now

    return lax.scan(one, start, (ready, busy, gap, some))[1]
