"""Traffic from knobs: expert popularity of a chosen skew, moved by noise, drift and hot spots."""

from typing import NamedTuple

import numpy as np

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.traffic import popularity
from mfabric_jax.traffic.knobs import Knobs
from mfabric_jax.traffic.popularity import Normals, Purpose, capped, normals, stream, to_shares
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

ROW_NOISE_PER_SKEW = 0.5


def generated(
    workload: Workload,
    skew: float = 0.0,
    iterations: int = 1,
    micro_batches: int = 4,
    seed: int = 0,
    drift: float = 0.0,
) -> Tokens:
    """Expected selections (reals): an expert's popularity is its popularity rank to the power -`skew`.

    This is `from_knobs` with a `row_noise` of 0.5 `skew` and this `drift`; with neither it is exactly balanced.
    """
    checks.not_negative("skew", skew)
    knobs = Knobs(skew=skew, row_noise=ROW_NOISE_PER_SKEW * skew, drift=drift)
    tokens = from_knobs(workload, knobs, iterations, micro_batches, seed)
    return Tokens(tokens.count, f"generated, skew {skew:g}, drift {drift:g}, seed {seed}")


def from_knobs(workload: Workload, knobs: Knobs, iterations: int = 1, micro_batches: int = 4, seed: int = 0) -> Tokens:
    """Selections [iteration, layer, micro_batch, source_rank, expert] as `knobs` say.

    `seed` decides everything random; a longer run starts with the shorter one, more micro-batches with the fewer
    (of an iteration). Every source rank sends `workload.selections`: int32 where `knobs.sampled`, else reals.
    `InputError` for settings out of range, and for knobs that the workload has too few experts or ranks for.
    """
    for field, value, least in (("iterations", iterations, 1), ("micro_batches", micro_batches, 1), ("seed", seed, 0)):
        checks.whole(field, value, at_least=least)
    experts = workload.architecture.experts
    shape = Shape(workload.moe_layers, micro_batches, workload.ep, experts, workload.selections)
    return Tokens(draw(shape, knobs, seed, np.arange(iterations)), f"generated, {knobs.words}, seed {seed}")


class Shape(NamedTuple):
    """What traffic is generated for; `selections` are those of one source rank in one micro-batch."""

    layers: int
    micro_batches: int
    ranks: int
    experts: int
    selections: int


def draw(shape: Shape, knobs: Knobs, seed: int, at: np.ndarray, normals: Normals = normals) -> np.ndarray:
    """[T layer micro_batch source_rank expert] selections in the iterations `at` [T], ascending."""
    count = np.empty((len(at), *shape[:4]), np.int32 if knobs.sampled else np.float64)
    for layer in range(shape.layers):
        share = _shares(shape, knobs, seed, layer, at, normals)
        if not knobs.sampled:
            count[:, layer] = shape.selections * share
            continue
        for t, i in enumerate(at):
            draws = stream(seed, Purpose.SELECTIONS, layer, int(i))
            count[t, layer] = draws.multinomial(shape.selections, share[t])
    return count


def _shares(shape: Shape, knobs: Knobs, seed: int, layer: int, at: np.ndarray, normals: Normals) -> np.ndarray:
    """[T M R E] of one layer; rows sum to 1."""
    popular = popularity.base_popularity(knobs, shape.layers, shape.experts, seed, layer)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = popular ** popularity.amplitude(knobs, at)[:, None]
        weight = weight * np.exp(popularity.deviation(knobs, shape.experts, seed, layer, at, normals))
        weight = np.broadcast_to(weight[:, None, None], (len(at), *shape[1:4]))
        shared, own = (knobs.row_noise * part**0.5 for part in (knobs.row_shared, 1 - knobs.row_shared))
        for spread, purpose, rows in (
            (knobs.micro_drift, Purpose.MICRO_DRIFT, (shape.micro_batches, 1)),
            (shared, Purpose.SHARED_NOISE, (1, shape.ranks)),
            (own, Purpose.ROW_NOISE, (shape.micro_batches, shape.ranks)),
        ):
            if spread:
                noise = np.stack([normals(seed, purpose, layer, int(i), (*rows, shape.experts)) for i in at])
                weight = weight * np.exp(spread * noise)
        total = weight.sum()
    if not np.isfinite(total):
        raise InputError(f"drift and noise must keep popularities finite, got {knobs.words}, {len(at)} iterations.")
    share = to_shares(weight * _reached(knobs, shape, seed, layer) if knobs.pair_sparsity else weight)
    if knobs.hot_share:
        extra = popularity.hot_spot(knobs, shape.ranks, shape.experts, seed, layer, at)[:, None, None]
        share = share * (1 - extra.sum(axis=-1, keepdims=True)) + extra
    return capped(share, 1 / knobs.distinct) if knobs.distinct > 1 else share


def _reached(knobs: Knobs, shape: Shape, seed: int, layer: int) -> np.ndarray:
    """[R E] bool: pairs of a source rank and an expert that the rank sends to."""
    receiving = popularity.receiving_experts(knobs, shape.experts, seed, layer)
    number = int(receiving.sum())
    left = number - round(knobs.pair_sparsity * number)
    if left < knobs.distinct:
        raise InputError(
            f"pair_sparsity {knobs.pair_sparsity:g} must leave at least {knobs.distinct} (distinct) of {number} "
            f"experts to each source rank, got {left}."
        )
    order = stream(seed, Purpose.PAIRS, layer).random((shape.ranks, shape.experts))
    order = np.where(receiving, order, np.inf)
    return np.argsort(np.argsort(order, axis=-1), axis=-1) < left
