"""Experts that begin as tokens arrive: computation of every part of a dispatch, and the return of its answers."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Float

from mfabric_jax.checks import InputError, of_type, positive
from mfabric_jax.routing.arrived import Arrivals
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import floats, floats_or_nan
from mfabric_jax.support.host_arrays import NO_NAN, NOT_NEGATIVE


class BlockEnds(NamedTuple):
    """Seconds from the start of the dispatch until every part is computed [P S], all experts end, and combine ends."""

    computed: Float[Array, "P S"]
    experts_s: Float[Array, ""]
    combine_s: Float[Array, ""]


def experts_end(arrival: Float[Array, "P S"], tokens: Float[Array, "P S"], batch_s, token_s) -> Float[Array, "P S"]:
    """Return when every server has computed each part that arrives there [s], one part after the other as listed.

    - `arrival` [P S] s; `tokens` [P S]: selections in each part.
    - `batch_s`: fixed seconds of every part that has tokens (launches, reads of weights); `token_s`: seconds per token;
      one number or [S] each.

    A part begins once it has arrived and the part before is computed; parts without tokens are skipped. So end =
    max(end before, arrival) + batch_s + tokens * token_s. Exact, differentiable, batched by `vmap`; O(P S).
    """
    arrival = floats_or_nan("arrival", arrival, NO_NAN)
    if arrival.ndim != 2:
        raise InputError(f"arrival must be [P S], seconds of each part at each server, got {list(arrival.shape)}.")
    tokens = floats_or_nan("tokens", tokens, NOT_NEGATIVE, arrival.dtype)
    if arrival.shape != tokens.shape:
        raise InputError(f"tokens must have the shape of arrival, {list(arrival.shape)}, got {list(tokens.shape)}.")
    batch, token = (_of_servers(*named, arrival) for named in (("batch_s", batch_s), ("token_s", token_s)))
    return _chain_ends(arrival, batch + tokens * token, jnp.zeros_like(arrival), tokens != 0, jnp.zeros_like(token[0]))


def _of_servers(field: str, seconds, arrival: Float[Array, "P S"]) -> Float[Array, "1 S"]:
    seconds = floats_or_nan(field, seconds, NOT_NEGATIVE, arrival.dtype)
    if seconds.shape not in ((), arrival.shape[1:]):
        wanted = f"a number or have the shape [S] = {list(arrival.shape[1:])}"
        raise InputError(f"{field} must be {wanted}, got {list(seconds.shape)}.")
    return jnp.broadcast_to(seconds, arrival.shape[1:])[None]


def block_ends(parts: Arrivals, bytes_per_token, batch_s, token_s) -> BlockEnds:
    """Return the ends of one block whose experts begin with each part of the dispatch as it arrives.

    - `parts`: `arrivals` of a schedule, or `equal_parts`; `parts.merged(1)` is one all-to-all and then computation.
    - `bytes_per_token`: of a dispatched selection. `batch_s`, `token_s`: as of `experts_end`.

    Answers return part by part, in the order of their dispatch, once every server has computed the part. Circuits
    reconfigure for the next part while they wait for it. Neither circuits nor packet NICs begin before the dispatch has
    ended. Equal parts without `batch_s` give the rule `Rules.parts` (`timing.blocks.overlapped`).
    """
    of_type("parts", parts, Arrivals, hint="equal_parts and arrivals make them")
    parts = Arrivals(*(floats_or_nan(f"{name} of parts", x, NO_NAN) for name, x in parts._asdict().items()))
    per_token = floats("bytes_per_token", positive("bytes_per_token", bytes_per_token), dtype=parts.bytes.dtype)
    tokens = parts.bytes / jnp.where(per_token > 0, per_token, jnp.nan)
    computed = experts_end(parts.time, tokens, batch_s, token_s)
    ready = jnp.where(tokens != 0, computed, 0).max(1)
    sent = jnp.where(parts.bytes != 0, parts.time, 0).max()
    some = (tokens != 0).any(1)
    circuits = _chain_ends(ready, parts.circuit_s, parts.reconfigure_s, some & (parts.circuit_s > 0), sent)
    packets = _chain_ends(ready, parts.packet_s, jnp.zeros_like(ready), some & (parts.packet_s > 0), sent)
    experts = ready.max()
    return BlockEnds(computed, experts, jnp.maximum(jnp.maximum(circuits[-1], packets[-1]), experts))


@jax.jit
def _chain_ends(ready, busy, gap, some, start) -> Array:
    """Return the ends [P ...] of parts in order: each in `some` begins `gap` after the previous, not before `ready`."""

    def step(now, part):
        ready, busy, gap, some = part
        now = jnp.where(some, jnp.maximum(now + gap, ready) + busy, now)
        return now, now

    return lax.scan(step, start, (ready, busy, gap, some))[1]
