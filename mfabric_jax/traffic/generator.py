"""Generated traffic: from knobs, from measured expert shares, or from the paper authors' matrix.

Each purpose has its own random stream, so more iterations or layers leave earlier draws unchanged. Letters: T
iterations, M micro-batches, R ranks, E experts.
"""

import enum
import functools
import importlib.resources
import statistics
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.knobs import POWER_LAW, Knobs
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload
from mfabric_jax.workload.models import Architecture

ROW_NOISE_PER_SKEW = 0.5
LEAST = 1e-200  # least popularity of an expert that receives anything, relative to the hottest one


def generated_tokens(
    workload: Workload,
    skew: float = 0.0,
    iterations: int = 1,
    micro_batches: int = 4,
    seed: int = 0,
    drift: float = 0.0,
) -> Tokens:
    """Return expected selections (reals) with power-law popularity: the expert of rank r has popularity r^-`skew`.

    This is `from_knobs` with this `skew` and `drift` and a `row_noise` of 0.5 `skew`; if both are 0, traffic is exactly
    balanced.
    """
    checks.not_negative("skew", skew)
    knobs = Knobs(skew=skew, row_noise=ROW_NOISE_PER_SKEW * skew, drift=drift)
    tokens = from_knobs(workload, knobs, iterations, micro_batches, seed)
    return Tokens(tokens.count, f"generated, skew {skew:g}, drift {drift:g}, seed {seed}")


def from_knobs(workload: Workload, knobs: Knobs, iterations: int = 1, micro_batches: int = 4, seed: int = 0) -> Tokens:
    """Return selections [iteration, layer, micro_batch, source_rank, expert] drawn by `knobs`.

    `seed` decides everything random; more iterations or micro-batches leave the earlier ones unchanged. Every source
    rank sends `workload.selections`, as int32 if `knobs.sampled`, else as reals. Raise `InputError` if a setting is out
    of range or the workload has too few experts or ranks for the knobs.
    """
    _check_run(iterations, micro_batches, seed)
    experts = workload.architecture.experts
    shape = TrafficShape(workload.moe_layers, micro_batches, workload.ep, experts, workload.selections)
    return Tokens(draw(shape, knobs, seed, np.arange(iterations)), f"generated, {knobs.words}, seed {seed}")


def _check_run(iterations: int, micro_batches: int, seed: int) -> None:
    for field, value, least in (("iterations", iterations, 1), ("micro_batches", micro_batches, 1), ("seed", seed, 0)):
        checks.whole(field, value, at_least=least)


class Purpose(enum.IntEnum):
    """What a stream of random numbers decides."""

    ORDER = 0
    DRIFT = 1
    SELECTIONS = 2
    ROW_NOISE = 3
    MICRO_DRIFT = 4
    LAYER = 5
    SPARSITY = 6
    PAIRS = 7
    HOT = 8
    SHARED_NOISE = 9


def stream(seed: int, purpose: Purpose, layer: int, iteration: int = 0) -> np.random.Generator:
    return np.random.default_rng([seed, iteration, layer, purpose])


def normals(seed: int, purpose: Purpose, layer: int, iteration: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the first standard normal numbers of a stream."""
    return stream(seed, purpose, layer, iteration).standard_normal(shape)


Normals = Callable[[int, Purpose, int, int, tuple[int, ...]], np.ndarray]  # `normals`, or a version that caches


class TrafficShape(NamedTuple):
    """Size of the generated traffic; `selections` are per source rank and micro-batch."""

    layers: int
    micro_batches: int
    ranks: int
    experts: int
    selections: int


def draw(
    shape: TrafficShape, knobs: Knobs, seed: int, iterations: np.ndarray, normals: Normals = normals
) -> np.ndarray:
    """Return selections [T layer micro_batch source_rank expert] in the `iterations` [T], which must ascend."""
    count = np.empty((len(iterations), *shape[:4]), np.int32 if knobs.sampled else np.float64)
    for layer in range(shape.layers):
        share = _shares(shape, knobs, seed, layer, iterations, normals)
        if not knobs.sampled:
            count[:, layer] = shape.selections * share
            continue
        for t, i in enumerate(iterations):
            draws = stream(seed, Purpose.SELECTIONS, layer, int(i))
            count[t, layer] = draws.multinomial(shape.selections, share[t])
    return count


def _shares(
    shape: TrafficShape, knobs: Knobs, seed: int, layer: int, iterations: np.ndarray, normals: Normals
) -> np.ndarray:
    """Return the shares [T M R E] of one layer; rows sum to 1."""
    share = to_shares(_weights(shape, knobs, seed, layer, iterations, normals))
    if knobs.hot_share:
        extra = _hot_spot(knobs, shape.ranks, shape.experts, seed, layer, iterations)[:, None, None]
        share = share * (1 - extra.sum(axis=-1, keepdims=True)) + extra
    return cap_rows(share, 1 / knobs.distinct) if knobs.distinct > 1 else share


def _weights(
    shape: TrafficShape, knobs: Knobs, seed: int, layer: int, iterations: np.ndarray, normals: Normals
) -> np.ndarray:
    """Return the weights [T M R E] of one layer's experts, without hot spots; every row has a finite, positive sum."""
    drawn = shape, knobs, seed, layer, iterations, normals
    popular = base_popularity(knobs, shape.layers, shape.experts, seed, layer)
    amplitude = knobs.phase_floor + (knobs.phase_start - knobs.phase_floor) * 2.0 ** (-iterations / knobs.half_life)
    amplitude = amplitude[:, None, None, None]
    allowed = (_pairs(knobs, shape, seed, layer) if knobs.pair_sparsity else True) & (popular > 0)
    with np.errstate(over="ignore", invalid="ignore"):
        weight = popular**amplitude
        for exponent in _exponents(*drawn):
            weight = weight * np.exp(exponent)
        weight = np.where(allowed, np.broadcast_to(weight, (len(iterations), *shape[1:4])), 0)
        total = weight.sum(axis=-1)
    extreme = ~((total > 0) & np.isfinite(total))
    if extreme.any():
        log = amplitude * np.log(np.where(popular > 0, popular, 1)) + sum(_exponents(*drawn))
        log = np.where(allowed, np.broadcast_to(log, weight.shape), -np.inf)[extreme]
        weight[extreme] = np.exp(log - log.max(axis=-1, keepdims=True))
    return weight


def _exponents(
    shape: TrafficShape, knobs: Knobs, seed: int, layer: int, iterations: np.ndarray, normals: Normals
) -> Iterator[np.ndarray]:
    """Yield what drift and noise add to log popularities; each broadcasts to [T M R E]."""
    yield _deviation(knobs, shape.experts, seed, layer, iterations, normals)[:, None, None]
    shared, apart = (knobs.row_noise * part**0.5 for part in (knobs.row_shared, 1 - knobs.row_shared))
    for spread, purpose, rows in (
        (knobs.micro_drift, Purpose.MICRO_DRIFT, (shape.micro_batches, 1)),
        (shared, Purpose.SHARED_NOISE, (1, shape.ranks)),
        (apart, Purpose.ROW_NOISE, (shape.micro_batches, shape.ranks)),
    ):
        if spread:
            noise = [normals(seed, purpose, layer, int(i), (*rows, shape.experts)) for i in iterations]
            yield spread * np.stack(noise)


def _receiving(knobs: Knobs, experts: int, seed: int, layer: int) -> np.ndarray:
    """Return which experts receive something [E]. Raise `InputError` if they are fewer than a token needs."""
    left = experts - round(knobs.sparsity * experts)
    if left < knobs.distinct:
        raise InputError(
            f"sparsity {knobs.sparsity:g} must leave at least {knobs.distinct} (distinct) of {experts} experts, "
            f"got {left}."
        )
    if left == experts:
        return np.ones(experts, bool)
    return _order(seed, Purpose.SPARSITY, layer, experts) < left


def _pairs(knobs: Knobs, shape: TrafficShape, seed: int, layer: int) -> np.ndarray:
    """Return which pairs of a source rank and an expert have traffic [R E]."""
    receiving = _receiving(knobs, shape.experts, seed, layer)
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


@functools.lru_cache(maxsize=4096)
def _order(seed: int, purpose: Purpose, layer: int, number: int) -> np.ndarray:
    return stream(seed, purpose, layer).permutation(number)


@functools.cache
def _normal_quantiles(number: int) -> np.ndarray:
    normal = statistics.NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / number) for i in range(number)])


def base_popularity(knobs: Knobs, layers: int, experts: int, seed: int, layer: int) -> np.ndarray:
    """Return the popularity [E] relative to the largest; 0 for an expert that receives nothing."""
    receiving = _receiving(knobs, experts, seed, layer)
    skew = knobs.skew
    if knobs.layer_spread:
        quantile = _order(seed, Purpose.LAYER, 0, layers)[layer]
        skew *= np.exp(knobs.layer_spread * _normal_quantiles(layers)[quantile])
    number = int(receiving.sum())
    if knobs.popularity == POWER_LAW:
        ordered = np.arange(1, number + 1) ** -float(skew)
    else:
        quantiles = _normal_quantiles(number)[::-1]
        ordered = np.exp(skew * (quantiles - quantiles[0]))
    weight = np.zeros(experts)
    weight[receiving] = np.maximum(ordered, LEAST)[_order(seed, Purpose.ORDER, layer, number)]
    return weight


def _deviation(
    knobs: Knobs, experts: int, seed: int, layer: int, iterations: np.ndarray, normals: Normals = normals
) -> np.ndarray:
    """Return the deviation [T E] of log popularity due to drift and jitter."""
    if not (knobs.drift or knobs.jitter):
        return np.zeros((len(iterations), experts))
    last, keep = int(iterations.max()), knobs.persistence
    drawn = np.zeros((last + 1, 2, experts))
    for i in range(last + 1) if keep else iterations:  # without memory, other iterations do not matter
        drawn[i] = normals(seed, Purpose.DRIFT, layer, int(i), (2, experts))
    total = knobs.drift * drawn[:, 0]
    total[0] *= (1 - keep**2) ** -0.5 if keep < 1 else 0
    for i in range(1, len(total)):
        total[i] += keep * total[i - 1]
    return total[iterations] + knobs.jitter * drawn[iterations, 1]


def _hot_spot(knobs: Knobs, ranks: int, experts: int, seed: int, layer: int, iterations: np.ndarray) -> np.ndarray:
    """Return the fraction [T E] of a row that each expert gets for being hot; 0 without a hot spot."""
    field, wanted, places = (
        ("hot_ranks", knobs.hot_ranks, ranks) if knobs.hot_ranks else ("hot_experts", knobs.hot_experts, experts)
    )
    if wanted > places:
        raise InputError(f"{field} must be at most {places}, got {wanted}.")
    first = int(stream(seed, Purpose.HOT, layer).integers(places))
    spread = knobs.hot_spread and not knobs.hot_ranks
    offset = np.arange(wanted) * places // wanted if spread else np.arange(wanted)
    moves = iterations // knobs.rotation if knobs.rotation else np.zeros_like(iterations)
    hot = (first + moves[:, None] * (1 if spread else wanted) + offset) % places
    chosen = np.zeros((len(iterations), places))
    np.put_along_axis(chosen, hot, 1.0, axis=1)
    if knobs.burst_every:
        chosen[iterations % knobs.burst_every < knobs.burst_every - knobs.burst_length] = 0
    per_place = experts // places
    return np.repeat(chosen, per_place, axis=1) * (knobs.hot_share / (wanted * per_place))


def to_shares(weight: np.ndarray) -> np.ndarray:
    return weight / weight.sum(axis=-1, keepdims=True)


def cap_rows(share: np.ndarray, most: float) -> np.ndarray:
    """Return rows [... E] cut at `most`; others share the excess in proportion, or all equally if too few remain."""
    held = np.zeros(share.shape, bool)
    while True:
        free = np.where(held, 0, share)
        remainder, room = free.sum(axis=-1, keepdims=True), 1 - most * held.sum(axis=-1, keepdims=True)
        capped = np.where(
            held, most, free * np.divide(room, remainder, out=np.zeros_like(remainder), where=remainder > 0)
        )
        above = capped > most
        if not above.any():
            return to_shares(capped)
        held |= above


# ---------------------------------------------------------------- measured shares: OLMoE (64 experts), Mixtral 8x7B (8)
# Source: routing counts published with OLMoE, arXiv 2409.02060; see data/NOTICE.


def measured_tokens(
    workload: Workload, iterations: int = 1, micro_batches: int = 4, drift: float = 0.05, seed: int = 0
) -> Tokens:
    """Return multinomial selections (int32) with the measured expert shares of OLMoE or Mixtral.

    - `micro_batches`: number of distinct micro-batches per iteration.
    - `drift`: the log popularity of each (layer, expert) walks at random with this standard deviation per iteration,
      equally for all source ranks; iteration 0 has the measured shares.
    - `seed`: decides everything random; more iterations leave the earlier ones unchanged.

    Mixtral models read the Mixtral table, all others OLMoE's. If a model has fewer experts than its table, neighbours
    are added up; if it has more, shares are copied. If neither number divides the other, `shares_of_others` resamples.
    Layer l reads table slot round(2 l / (layers - 1)), with experts permuted per layer; source rank r reads text domain
    r mod 5. A token may draw the same expert twice. Raise `InputError` if a setting is out of range.
    """
    _check_run(iterations, micro_batches, seed)
    checks.not_negative("drift", drift)
    layers, experts = workload.moe_layers, workload.architecture.experts
    bases, note = layer_shares(workload.architecture, layers, seed)
    domain, knobs = np.arange(workload.ep) % bases.shape[1], Knobs(drift=drift)
    count = np.empty((iterations, layers, micro_batches, workload.ep, experts), np.int32)
    for layer in range(layers):
        base = bases[layer, domain]
        walk = np.exp(_deviation(knobs, experts, seed, layer, np.arange(iterations)))
        for iteration in range(iterations):
            share = np.broadcast_to(to_shares(base * walk[iteration]), count.shape[2:])
            draws = stream(seed, Purpose.SELECTIONS, layer, iteration)
            count[iteration, layer] = draws.multinomial(workload.selections, share)
    return Tokens(count, f"measured expert shares (arXiv 2409.02060){note}, drift {drift:g}, seed {seed}")


def layer_shares(architecture: Architecture, layers: int, seed: int) -> tuple[np.ndarray, str]:
    """Return the shares [layer, domain, expert] that `measured_tokens` draws from, and a note on how they were made."""
    table, note, experts = measured_shares()[_table_of(architecture)], "", architecture.experts
    *axes, known = table.shape
    if known % experts == 0:
        table = table.reshape(*axes, experts, known // experts).sum(axis=-1)
    elif experts % known == 0:
        table = np.tile(table, experts // known)
    else:
        table, note = shares_of_others(table, experts), f" of {known} experts resampled to {experts}"
    shares = []
    for layer in range(layers):
        order = stream(seed, Purpose.ORDER, layer).permutation(experts)
        slot = round(2 * layer / (layers - 1)) if layers > 1 else 0
        shares.append(table[:, slot][:, order])
    return np.array(shares), note


def _table_of(architecture: Architecture) -> str:
    return "mixtral" if architecture.name.lower().startswith("mixtral") else "olmoe"


def shares_description(architecture: Architecture) -> str:
    """Return in words which measured shares a model takes and how they are fitted to its number of experts."""
    name, experts = _table_of(architecture), architecture.experts
    known = measured_shares()[name].shape[-1]
    method = "added up" if known % experts == 0 else "copied" if experts % known == 0 else "resampled"
    of = {"mixtral": "Mixtral", "olmoe": "OLMoE"}[name]
    return f"{of}'s {known} experts" + (f", {method} to {experts}" if known != experts else "")


@functools.cache
def measured_shares() -> dict[str, np.ndarray]:
    """Return the shares [domain, slot, expert] of `olmoe` and `mixtral`; slots are layers."""
    file = importlib.resources.files("mfabric_jax.traffic") / "data" / "expert_shares.npz"
    with file.open("rb") as opened, np.load(opened, allow_pickle=False) as arrays:
        return {name: to_shares(arrays[name].astype(np.float64)) for name in ("olmoe", "mixtral")}


def shares_of_others(table: np.ndarray, experts: int) -> np.ndarray:
    """Return shares [domain, slot, expert] for another number of experts.

    The experts, sorted by popularity over all domains, are laid out on a line that is cut into `experts` equal parts.
    """
    order = np.argsort(-table.mean(axis=0, keepdims=True), axis=-1, kind="stable")
    ordered = np.take_along_axis(table, np.broadcast_to(order, table.shape), axis=-1)
    below = np.concatenate([np.zeros((*table.shape[:-1], 1)), np.cumsum(ordered, axis=-1)], axis=-1)
    cuts = np.linspace(0, table.shape[-1], experts + 1)
    left = np.minimum(cuts.astype(int), table.shape[-1] - 1)
    within = below[..., left] + (cuts - left) * ordered[..., left]
    return to_shares(np.diff(within, axis=-1))


# Selections of 8 sources (rows) for 8 destinations; a row is one micro-batch of 8 x 4096 tokens. Source: mixnet.cpp,
# Mixnet::weighted_connect, of the simulator released with arXiv 2501.03905. We guess that the figures used it.
MATRIX = np.array(
    [
        [9810, 5338, 1231, 3042, 4452, 2004, 841, 6050],
        [9278, 6282, 839, 3722, 3821, 2903, 909, 5014],
        [10684, 5165, 1044, 2634, 4344, 3333, 675, 4889],
        [10897, 5629, 1086, 2114, 2762, 3463, 1059, 5758],
        [8684, 5666, 1046, 3955, 4334, 2952, 944, 5187],
        [8361, 5908, 777, 3043, 3984, 3422, 897, 6376],
        [10208, 5507, 1117, 4148, 3967, 3119, 904, 3798],
        [9781, 5211, 902, 3343, 4289, 2839, 1008, 5395],
    ]
)


def authors_tokens(workload: Workload, iterations: int = 1) -> Tokens:
    """Return expected selections [iteration layer 1 R E] from the matrix of the paper's authors.

    All iterations and layers are equal. Rank s sends to rank d in proportion to the matrix at (s mod 8, d mod 8),
    evenly over d's experts. Every source rank sends `workload.selections`; the released code instead
    scales rows by the number of ranks.
    """
    ranks, experts = workload.ep, workload.architecture.experts
    index = np.arange(ranks) % len(MATRIX)
    weight = np.repeat(MATRIX[np.ix_(index, index)], experts // ranks, axis=1).astype(float)
    count = workload.selections * weight / weight.sum(axis=1, keepdims=True)
    shape = (iterations, workload.moe_layers, 1, ranks, experts)
    return Tokens(np.broadcast_to(count, shape), "the authors' 8 x 8 matrix, tiled")
