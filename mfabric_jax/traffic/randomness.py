"""Random numbers keyed by what they are for: more iterations or layers never change the ones drawn before."""

import enum
from collections.abc import Callable

import numpy as np


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


def popularity(seed: int, layer: int, iterations: int, experts: int, drift: float) -> np.ndarray:
    """[iteration, expert] factors of a log-normal random walk that starts at 1.

    - `drift`: standard deviation of the logarithm of each step, independent for every expert.
    """
    steps = np.zeros((iterations, experts))
    for iteration in range(1, iterations):
        steps[iteration] = drift * stream(seed, Purpose.DRIFT, layer, iteration).standard_normal(experts)
    return np.exp(steps.cumsum(axis=0))


def normalised(weight: np.ndarray) -> np.ndarray:
    """`weight` over its sum along the last axis."""
    return weight / weight.sum(axis=-1, keepdims=True)
