"""Round scores of pairs to legal circuits, for the environment, networks and your own policies."""

import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, Num

from mfabric_jax.checks import InputError, of_type
from mfabric_jax.fabric import Region
from mfabric_jax.policies.arguments import demand_of, unless_nan
from mfabric_jax.policies.greedy import allocate_greedily
from mfabric_jax.policies.index_rule import allocate_by_index, shipped_index
from mfabric_jax.policies.samples import NormalisedDemand, normalise
from mfabric_jax.support.arrays import floats
from mfabric_jax.support.host_arrays import NO_NAN

FAINT = 1e-4  # circuits added to every pair, so that spare NICs go to pairs without circuits


def round_scores(
    scores: Num[ArrayLike, "S S"], region: Region, *, demand: Num[ArrayLike, "S S"] | None = None
) -> Int[Array, "S S"]:
    """Return legal circuits for any scores: one at a time, to the pair with the largest score for its next circuit.

    - `scores` [S S]: both directions are added; negative scores and the diagonal count as 0. The unit does not matter.
    - `demand`: None divides a pair's score by its circuits + 1 and gives none to pairs with score 0 (`greedy`, rule
      "next"). Demand [S S] bytes selects the learned `Index` instead. It prefers servers whose electrical ports are
      still busy, and gives left-over NICs to pairs without a score. It is better if scores are real-valued circuits.

    Not differentiable: train through `relaxed.soft_circuits`, or by `mfabric train --method evolution`. Works under
    `jit` and `vmap`. Raise `InputError` if scores have another shape or are NaN. Inside a compiled program, a pair with
    a NaN score has -1 circuits, which is illegal.
    """
    scores, servers = floats("scores", scores, NO_NAN), of_type("region", region, Region).servers
    if scores.shape != (servers, servers):
        raise InputError(f"scores must be [S S] with S = {servers} servers, got {list(scores.shape)}.")
    largest = jnp.finfo(scores.dtype).max / (4 * servers)  # sums of two stay finite
    clipped = jnp.clip(scores, 0, largest)  # NaN stays
    if demand is None:
        return allocate_greedily(clipped, region.degrees, "next")
    own = jnp.eye(servers, dtype=bool)
    both = jnp.where(own, 0, (clipped + clipped.T) / 2)
    need = normalise(demand_of(demand, region), region)
    return unless_nan(
        deal_circuits(jnp.nan_to_num(both), need, region.degrees), jnp.where(own, 0, clipped) + need.pairs
    )


def deal_circuits(count: Float[Array, "S S"], need: NormalisedDemand, degrees: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Return whole circuits from real-valued symmetric ones, by the package's index."""
    return allocate_by_index(shipped_index(), need.single(), count.astype(jnp.float32) + FAINT, degrees)
