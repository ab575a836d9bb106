"""Demand matrices of the all-to-alls of one MoE block: bytes from each rank (or server) to each other.

For one micro-batch of one EP group; callers `jax.vmap`. Neighbouring ranks share a server.
Letters: R ranks, E experts, S servers, g ranks per server.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from mfabric_jax.checks import InputError, whole


def rank_bytes(tokens: Num[Array, "R E"], bytes_per_selection: float | Float[Array, ""]) -> Float[Array, "R R"]:
    """Bytes that each rank dispatches to each rank; expert e lives on rank e // (E / R).

    - `tokens`: selections of each source rank for each expert.

    The diagonal is what a rank keeps. `InputError` where the experts do not divide evenly over the ranks.
    """
    tokens = jnp.asarray(tokens)
    if tokens.ndim != 2 or tokens.shape[1] % tokens.shape[0]:
        raise InputError(f"tokens must be [ranks, experts], experts a multiple of ranks, got shape {tokens.shape}.")
    if not jnp.issubdtype(tokens.dtype, jnp.floating):
        tokens = tokens.astype(jnp.result_type(float))  # bytes overflow 32-bit integers
    ranks, experts = tokens.shape
    received = tokens.reshape(ranks, ranks, experts // ranks).sum(axis=-1)
    return received * jnp.asarray(bytes_per_selection, received.dtype)


def server_bytes(demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, "S S"]:
    """Bytes from each server to each; the diagonal stays inside."""
    return by_server(demand, ranks_per_server).sum(axis=(1, 3))


def inside_bytes(demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, "S g g"]:
    """Bytes between the ranks of each server; the diagonal stays on its rank."""
    blocks = by_server(demand, ranks_per_server)
    server = jnp.arange(len(blocks))
    return blocks[server, :, server, :]


def by_server(demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, "S g S g"]:
    """Bytes from each rank of each server to each; `InputError` where the ranks do not fill whole servers."""
    if demand.ndim != 2 or demand.shape[0] != demand.shape[1]:
        raise InputError(f"demand must be square, got shape {demand.shape}.")
    ranks = demand.shape[0]
    if ranks % whole("ranks_per_server", ranks_per_server):
        raise InputError(f"ranks_per_server must divide the {ranks} ranks of the demand, got {ranks_per_server}.")
    servers = ranks // ranks_per_server
    return demand.reshape(servers, ranks_per_server, servers, ranks_per_server)
