"""How long experts compute: as long as those of the busiest rank take for the tokens that they received."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import one_of
from mfabric_jax.routing.fixed import away_from_server
from mfabric_jax.traffic import rank_bytes
from mfabric_jax.workload import Workload

PORTS = ("rank", "server", "pair")
TILE = 128  # rows that a grouped matrix product computes together


def expert_load(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int = TILE) -> Float[Array, "layer M"]:
    """Selections that the busiest rank computes, over those of every rank if all experts had equally many.

    - `tokens`: selections of each source rank for each expert; expert e lives on rank e // (E / R).
    - `tile`: every expert's selections are rounded up to whole tiles, as its grouped matrix product computes them;
      1: not at all.
    """
    return _rank_load(workload, tokens, tile).max(axis=-1)


def _rank_load(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int) -> Float[Array, "layer M R"]:
    received = tokens.sum(axis=-2)  # [layer M E]
    rows = jnp.ceil(received / tile) * tile if tile > 1 else received
    return rows.reshape(*rows.shape[:-1], workload.ep, -1).sum(axis=-1) / workload.selections


class Early(NamedTuple):
    """What is left of a block's second all-to-all when all but the k busiest ranks (k = 1 .. R) have sent their part.

    - `ahead` [... R]: by how much of `expert_load` the k-th busiest rank is done before the busiest.
    - `between`, `inside` [... R]: what the k busiest ranks send, over what all do, at the busiest port between servers
      and inside one; the last is 1.
    """

    ahead: Float[Array, "... R"]
    between: Float[Array, "... R"]
    inside: Float[Array, "... R"]


def early(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int = TILE, *, ports: str = "rank") -> Early:
    """`Early` of every all-to-all; `tokens`, `tile`: as in `expert_load`.

    - `ports`: what limits between servers: every "rank" has NICs of its own; those of a "server" are its ranks'; or
      every "pair" of servers has links of its own, whichever of them has most left.
    """
    per_server, others = workload.ranks_per_server, 1 - np.eye(workload.ep)
    together = 1 if one_of("ports", ports, PORTS) == "rank" else per_server
    left = _left_of_pair if ports == "pair" else _left

    def one(load, tokens):
        order = jnp.argsort(-load)
        demand = rank_bytes(tokens, 1.0)
        away = away_from_server(demand, per_server)
        between = left(away, order, together)
        inside = _left((demand - away) * jnp.asarray(others, demand.dtype), order, 1)
        return Early(load.max() - load[order], between, inside)

    return jax.vmap(jax.vmap(one))(_rank_load(workload, tokens, tile), tokens)


def _left(demand: Float[Array, "R R"], order: Int[Array, "R"], together: int) -> Float[Array, "R"]:
    """What is left at the busiest port for the first k ranks of `order`, which send the columns of `demand` back;
    `together`: neighbouring ranks that share a port."""
    into, out = _by_port(demand, order, together)
    left = jnp.cumsum(jnp.concatenate([into, jnp.where(out, into.sum(0)[None], 0)]), axis=1).max(axis=0)
    return jnp.where(left[-1] > 0, left / jnp.where(left[-1] > 0, left[-1], 1), 1)


def _left_of_pair(demand: Float[Array, "R R"], order: Int[Array, "R"], together: int) -> Float[Array, "R"]:
    """The same of the pair of servers that has most left of what it has to send, as a part of that."""
    into, out = _by_port(demand, order, together)
    left = jnp.cumsum(jnp.where(out[:, None], into[None], 0), axis=-1)  # [from to k]
    every = left[..., -1:]
    part = jnp.where(every > 0, left / jnp.where(every > 0, every, 1), 0).max(axis=(0, 1))
    return jnp.where(part[-1] > 0, part, 1)


def _by_port(demand: Float[Array, "R R"], order: Int[Array, "R"], together: int) -> tuple[Array, Bool[Array, "port R"]]:
    """What each port receives [port R] of every rank in that order, and whose port a rank sends from [port R]."""
    into = demand[:, order].reshape(-1, together, len(order)).sum(1)
    return into, (order // together)[None] == np.arange(len(order) // together)[:, None]


def ends_earlier(seconds: Any, left: Float[Array, "... R"], ahead_s: Float[Array, "... R"]) -> Array:
    """How long after the busiest rank is done an all-to-all of `seconds` ends, if every rank starts when it is done.

    For no k does it end before the k busiest ranks, from when the first of them is done, have sent what they have:
    the latest of these is taken, as it is where ports keep busy.

    - `left`: of `Early`.   - `ahead_s`: seconds for its `ahead`.
    """
    return lax.max(left * seconds[..., None] - ahead_s, jnp.zeros_like(ahead_s)).max(axis=-1)
