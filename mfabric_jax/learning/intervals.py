"""Means of times with intervals by bootstrap."""

import numpy as np

RESAMPLED, CONFIDENCE = 2000, 0.95


def summary_of(times: np.ndarray, reference: np.ndarray, seed: int) -> dict[str, float]:
    """The mean and the late of `times` [N], what it gains on `reference` [N], and their intervals."""
    times, gain = times.astype(float), (reference - times).astype(float)
    low, high = interval(times, seed)
    gain_low, gain_high = interval(gain, seed)
    found = {"over_bound": times.mean(), "low": low, "high": high, "p90": np.quantile(times, 0.9)}
    found |= {"gain": gain.mean(), "gain_low": gain_low, "gain_high": gain_high}
    return {name: float(value) for name, value in found.items()}


def interval(values: np.ndarray, seed: int) -> tuple[float, float]:
    """Where the mean lies with 95 % confidence: percentiles of the means of samples drawn again with replacement."""
    again = np.random.default_rng(seed).integers(len(values), size=(RESAMPLED, len(values)))
    low, high = np.quantile(values[again].mean(axis=1), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
