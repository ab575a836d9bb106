"""How popular each expert is before tokens are drawn: its place in the layer, phase, drift and hot spots.

Random numbers are keyed by what they are for: more iterations or layers never change the ones drawn before.
Letters: T iterations (those asked for), E experts, R ranks. Everything is of one layer.
"""

import enum
import functools
import statistics
from collections.abc import Callable

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.knobs import POWER_LAW, Knobs

LEAST = 1e-200  # popularity of an expert that receives anything, over the hottest one's


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
    """The generator of one purpose in one layer and iteration."""
    return np.random.default_rng([seed, iteration, layer, purpose])


def normals(seed: int, purpose: Purpose, layer: int, iteration: int, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers, the first of a stream."""
    return stream(seed, purpose, layer, iteration).standard_normal(shape)


Normals = Callable[[int, Purpose, int, int, tuple[int, ...]], np.ndarray]  # `normals`, or one that remembers


@functools.lru_cache(maxsize=4096)
def _order(seed: int, purpose: Purpose, layer: int, number: int) -> np.ndarray:
    return stream(seed, purpose, layer).permutation(number)


def receiving_experts(knobs: Knobs, experts: int, seed: int, layer: int) -> np.ndarray:
    """[E] bool: experts that receive something. `InputError` where fewer are left than a token needs."""
    left = experts - round(knobs.sparsity * experts)
    if left < knobs.distinct:
        raise InputError(
            f"sparsity {knobs.sparsity:g} must leave at least {knobs.distinct} (distinct) of {experts} experts, "
            f"got {left}."
        )
    if left == experts:
        return np.ones(experts, bool)
    return _order(seed, Purpose.SPARSITY, layer, experts) < left


def base_popularity(knobs: Knobs, layers: int, experts: int, seed: int, layer: int) -> np.ndarray:
    """[E] popularity, the hottest 1; 0 for an expert that receives nothing."""
    receiving = receiving_experts(knobs, experts, seed, layer)
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


@functools.cache
def _normal_quantiles(number: int) -> np.ndarray:
    """Of the standard normal distribution in the middle of `number` equal parts, ascending."""
    normal = statistics.NormalDist()
    return np.array([normal.inv_cdf((i + 0.5) / number) for i in range(number)])


def amplitude(knobs: Knobs, at: np.ndarray) -> np.ndarray:
    """[T] what the logarithms of popularity are multiplied by."""
    return knobs.phase_floor + (knobs.phase_start - knobs.phase_floor) * 2.0 ** (-at / knobs.half_life)


def deviation(
    knobs: Knobs, experts: int, seed: int, layer: int, at: np.ndarray, normals: Normals = normals
) -> np.ndarray:
    """[T E] of the logarithm of popularity, by drift and jitter."""
    if not (knobs.drift or knobs.jitter):
        return np.zeros((len(at), experts))
    last, keep = int(at.max()), knobs.persistence
    drawn = np.zeros((last + 1, 2, experts))
    for i in range(last + 1) if keep else at:  # without memory the iterations between do not matter
        drawn[i] = normals(seed, Purpose.DRIFT, layer, int(i), (2, experts))
    total = knobs.drift * drawn[:, 0]
    total[0] *= (1 - keep**2) ** -0.5 if keep < 1 else 0
    for i in range(1, len(total)):
        total[i] += keep * total[i - 1]
    return total[at] + knobs.jitter * drawn[at, 1]


def hot_spot(knobs: Knobs, ranks: int, experts: int, seed: int, layer: int, at: np.ndarray) -> np.ndarray:
    """[T E] part of a row that each expert gets by being hot; all 0 in an iteration without a hot spot."""
    if not knobs.hot_share:
        return np.zeros((len(at), experts))
    field, wanted, places = (
        ("hot_ranks", knobs.hot_ranks, ranks) if knobs.hot_ranks else ("hot_experts", knobs.hot_experts, experts)
    )
    if wanted > places:
        raise InputError(f"{field} must be at most {places}, got {wanted}.")
    first = int(stream(seed, Purpose.HOT, layer).integers(places))
    spread = knobs.hot_spread and not knobs.hot_ranks
    offset = np.arange(wanted) * places // wanted if spread else np.arange(wanted)
    moves = at // knobs.rotation if knobs.rotation else np.zeros_like(at)
    hot = (first + moves[:, None] * (1 if spread else wanted) + offset) % places
    chosen = np.zeros((len(at), places))
    np.put_along_axis(chosen, hot, 1.0, axis=1)
    if knobs.burst_every:
        chosen[at % knobs.burst_every < knobs.burst_every - knobs.burst_length] = 0
    per_place = experts // places
    return np.repeat(chosen, per_place, axis=1) * (knobs.hot_share / (wanted * per_place))


def to_shares(weight: np.ndarray) -> np.ndarray:
    """`weight` over its sum along the last axis."""
    return weight / weight.sum(axis=-1, keepdims=True)


def capped(share: np.ndarray, most: float) -> np.ndarray:
    """Rows [... E] cut at `most`: the rest goes to others in proportion; with too few of them all share equally."""
    held = np.zeros(share.shape, bool)
    while True:
        free = np.where(held, 0, share)
        rest, room = free.sum(axis=-1, keepdims=True), 1 - most * held.sum(axis=-1, keepdims=True)
        capped = np.where(held, most, free * np.divide(room, rest, out=np.zeros_like(rest), where=rest > 0))
        above = capped > most
        if not above.any():
            return to_shares(capped)
        held |= above
