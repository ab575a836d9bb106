"""Demand matrices of the all-to-alls of one MoE block: bytes from each rank (or server) to each other.

For one micro-batch of one EP group; callers `jax.vmap`. Letters: R ranks, E experts, S servers, g ranks per server.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from mfabric_jax.checks import InputError, whole


class SplitDemand(NamedTuple):
    """Demand between servers, and inside each.

    - `between` [R R] bytes, 0 where both ranks share a server.
    - `inside` [S g g] bytes between the ranks of each server; the diagonal stays on its rank.
    """

    between: Float[Array, "R R"]
    inside: Float[Array, "S g g"]


def _real(values: Num[Array, "..."]) -> Float[Array, "..."]:
    """Integer counts become the default real type before bytes are counted: 32 bits would overflow."""
    values = jnp.asarray(values)
    return values if jnp.issubdtype(values.dtype, jnp.floating) else values.astype(jnp.result_type(float))


def _check_square(demand: Float[Array, "R R"]) -> None:
    if demand.ndim != 2 or demand.shape[0] != demand.shape[1]:
        raise InputError(f"demand must be square, got shape {demand.shape}.")


def _servers(demand: Float[Array, "R R"], ranks_per_server: int) -> int:
    _check_square(demand)
    ranks = demand.shape[0]
    if ranks % whole("ranks_per_server", ranks_per_server):
        raise InputError(f"ranks_per_server must divide the {ranks} ranks of the demand, got {ranks_per_server}.")
    return ranks // ranks_per_server


def rank_bytes(tokens: Num[Array, "R E"], bytes_per_selection: float | Float[Array, ""]) -> Float[Array, "R R"]:
    """Bytes that each rank dispatches to each rank; expert e lives on rank e // (E / R).

    - `tokens`: selections of each source rank for each expert.

    The diagonal is what a rank keeps. `InputError` where the experts do not divide evenly over the ranks.
    """
    tokens = _real(tokens)
    if tokens.ndim != 2 or tokens.shape[1] % tokens.shape[0]:
        raise InputError(f"tokens must be [ranks, experts], experts a multiple of ranks, got shape {tokens.shape}.")
    ranks, experts = tokens.shape
    received = tokens.reshape(ranks, ranks, experts // ranks).sum(axis=-1)
    return received * jnp.asarray(bytes_per_selection, received.dtype)


def server_bytes(demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, "S S"]:
    """Bytes from each server to each; the diagonal stays inside. Neighbouring ranks share a server."""
    servers = _servers(demand, ranks_per_server)
    return demand.reshape(servers, ranks_per_server, servers, ranks_per_server).sum(axis=(1, 3))


def split_local(demand: Float[Array, "R R"], ranks_per_server: int) -> SplitDemand:
    """The demand between servers and the demand inside each; together they are all of it."""
    servers = _servers(demand, ranks_per_server)
    blocks = demand.reshape(servers, ranks_per_server, servers, ranks_per_server)
    each = jnp.arange(servers)
    server = jnp.repeat(each, ranks_per_server)
    same_server = server[:, None] == server[None, :]
    return SplitDemand(jnp.where(same_server, 0, demand), blocks[each, :, each, :])


def phases(demand: Float[Array, "R R"], combine_over_dispatch: float | Float[Array, ""] = 1.0) -> Float[Array, "4 R R"]:
    """The four all-to-alls of a block in the order in which they run.

    - `demand`: bytes of the forward dispatch, D.
    - `combine_over_dispatch`: bytes of a combined element over those of a dispatched one (fp8 and bf16: 2), c.

    Forward dispatch D, forward combine c D^T, backward combine-gradient c D, backward dispatch-gradient D^T: a
    gradient runs against its forward transfer, in the same element size.
    """
    _check_square(demand)
    combined = demand * jnp.asarray(combine_over_dispatch, demand.dtype)
    return jnp.stack([demand, combined.T, combined, demand.T])
