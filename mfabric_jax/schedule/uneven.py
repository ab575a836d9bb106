"""How long experts compute: as long as those of the busiest rank take for the tokens that they received."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.workload import Workload

TILE = 128  # rows that a grouped matrix product computes together


def expert_load(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int = TILE) -> Float[Array, "layer M"]:
    """Selections that the busiest rank computes, over those of every rank if all experts had equally many.

    - `tokens`: selections of each source rank for each expert; expert e lives on rank e // (E / R).
    - `tile`: every expert's selections are rounded up to whole tiles, as its grouped matrix product computes them;
      1: not at all.

    All ranks of a group wait for the busiest: the second all-to-all of a block begins when it is done.
    """
    received = tokens.sum(axis=-2)  # [layer M E]
    rows = jnp.ceil(received / tile) * tile if tile > 1 else received
    ranks = rows.reshape(*rows.shape[:-1], workload.ep, -1).sum(axis=-1)
    return ranks.max(axis=-1) / workload.selections
