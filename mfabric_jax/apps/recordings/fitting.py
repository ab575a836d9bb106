"""Fit the knobs of the traffic generator to a recording's statistics, by the method of moments with common random
numbers."""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mfabric_jax import checks
from mfabric_jax.apps.recordings import statistics
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.generator import Normals, TrafficShape, base_popularity, draw, normals
from mfabric_jax.traffic.knobs import POPULARITIES, Knobs, Popularity
from mfabric_jax.traffic.recording import Recording, Sources
from mfabric_jax.traffic.tokens import Tokens

SKEWS = (0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0)  # starting points of the search for popularity
SPREADS = (0.0, 0.3, 0.6)
SPARSITIES = (0.0, 0.2)
DRIFTS = (0.01, 0.03, 0.1, 0.3)
JITTERS = (0.0, 0.05)
MEMORIES = (3.0, 30.0, 300.0)  # records after which a deviation has decayed to 1/e
SEED = 0  # of the traffic drawn in trials
LARGEST_NOISE = 3.0  # standard deviation of a logarithm
NOISE_ROUNDS = 4
TRIED, TRIED_COUNTS = (3, 8), 200_000  # fewest and most iterations drawn per trial, and counts that they aim at
TRIED_LAYERS, TRIED_RECORDS = 16, 6  # in trials of drift: most layers, and records to start from
PARTS_OF_RUN = 5  # parts of the run in which the phase is measured
LEAST_PHASE = 0.05  # least detectable change of the amplitude
EXPERTS_COUNT = 3  # weight of experts over pairs in the error of popularity
EMPTY_COUNT = 10  # weight of pairs without traffic in that error
HALVINGS = 3  # times that a search halves its steps
TINY = 1e-6  # least argument of a logarithm
EXPLAINED = 0.5  # part of the amplitude's change that a phase must explain


@dataclasses.dataclass(frozen=True)
class TrafficFit:
    """Fitted `knobs`, and the statistics (`moments_of`) of the recording and of the fitted traffic by name."""

    knobs: Knobs
    recorded: dict[str, float]
    fitted: dict[str, float]

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per statistic: `recorded`, `fitted`, and `error`, their relative difference."""
        return [
            {
                "statistic": name,
                "recorded": value,
                "fitted": self.fitted.get(name),
                "error": self.fitted[name] / value - 1 if value and name in self.fitted else None,
            }
            for name, value in self.recorded.items()
        ]


def fit(recording: Recording | Tokens, iterations: int | None = None) -> TrafficFit:
    """Return knobs whose traffic has the statistics of the recording; one iteration stands for one record.

    - `iterations`: number to generate for `TrafficFit.fitted`, with another seed (default: as recorded).

    Fits quantiles of load and pairs, Gini coefficients, pairs without traffic, source rows, micro-batches and
    correlations, as far as `moments_of` defines them. `distinct` is the largest value that no row contradicts. Hot
    spots and `pair_sparsity` are not fitted. Raise `InputError` for a recording without selections.
    """
    wanted = len(recording.count) if iterations is None else checks.whole("iterations", iterations)
    target = _Target.of(recording)
    knobs = target.noise(target.popularity(target.start()))
    knobs = target.drift(target.phase(knobs))
    knobs = target.drift(target.noise(target.popularity(knobs, again=True)))
    knobs = target.noise(target.popularity(knobs, again=True))
    values = dataclasses.asdict(knobs).items()
    rounded: dict[str, Any] = {field: float(f"{v:.6g}") if isinstance(v, float) else v for field, v in values}
    knobs = Knobs(**rounded)
    made = draw(target.shape, knobs, SEED + TRIED[1], np.arange(wanted))
    return TrafficFit(knobs, target.recorded, statistics.moments_of(made, target.pairs))


@dataclasses.dataclass(frozen=True)
class _Target:
    """A recording and the steps of its fit; each step takes knobs and returns them with its own ones fitted."""

    count: np.ndarray
    pairs: bool
    shape: TrafficShape
    recorded: dict[str, float]
    normals: Normals

    @classmethod
    def of(cls, recording: Recording | Tokens) -> "_Target":
        tokens = recording.tokens() if isinstance(recording, Recording) else recording
        count = tokens.count
        if not count.any():
            raise InputError(f"a recording to fit must have selections, got none in {tokens.source}.")
        pairs = not isinstance(recording, Recording) or recording.sources is Sources.RANKS
        selections = max(round(float(count.sum(axis=-1, dtype=np.float64).mean())), 1)
        layers, batches, ranks, experts = count.shape[1:]
        shape = TrafficShape(layers, batches, ranks, experts, selections)
        return cls(count, pairs, shape, statistics.moments_of(count, pairs), functools.cache(normals))

    def start(self) -> Knobs:
        """Knobs that follow directly from the counts. Whole counts mean sampling, unless rows are too similar."""
        total = self.count.sum(axis=-1, dtype=np.float64)
        most = float(np.divide(self.count.max(axis=-1), total, out=np.zeros_like(total), where=total > 0).max())
        whole = self.count.dtype.kind in "iu" or bool(np.all(self.count == np.round(self.count)))
        chance = ((statistics.ROWS, statistics.ROWS_CHANCE), (statistics.MICRO, statistics.MICRO_CHANCE))
        even = any(self.recorded.get(off, 1) < self.recorded.get(by_chance, 0) / 2 for off, by_chance in chance)
        return Knobs(distinct=max(int(1 / most), 1), sampled=whole and not even)

    def try_knobs(self, knobs: Knobs, pooled: bool = False) -> dict[str, float]:
        few, many = TRIED
        number = min(max(TRIED_COUNTS // math.prod(self.shape[:4]), few), many)
        iterations = np.linspace(0, len(self.count) - 1, number).astype(int) if knobs.has_phase else np.arange(number)
        loose = dataclasses.replace(knobs, drift=knobs.drift_spread, persistence=0.0)
        shape = self.shape
        if pooled:  # noise that is drawn anew per micro-batch averages out in their sum
            batches = shape.micro_batches
            row_noise = knobs.row_noise * math.sqrt(knobs.row_shared + (1 - knobs.row_shared) / batches)
            micro_drift = knobs.micro_drift / math.sqrt(batches)
            loose = dataclasses.replace(loose, row_noise=row_noise, micro_drift=micro_drift)
            shape = shape._replace(micro_batches=1, selections=shape.selections * batches)
        made = [draw(shape, loose, SEED + n, iterations[n : n + 1], self.normals) for n in range(number)]
        return statistics.moments_of(np.concatenate(made), self.pairs)

    def popularity(self, knobs: Knobs, again: bool = False) -> Knobs:
        sparse = statistics.ZERO in self.recorded and self.recorded[statistics.ZERO] > 0
        most = 1 - max(knobs.distinct, 1) / self.shape.experts

        def knobs_at(family: Popularity, point: Sequence[float]) -> Knobs:
            skew, spread, sparsity = point
            return dataclasses.replace(
                knobs, popularity=family, skew=skew, layer_spread=spread, sparsity=sparsity if sparse else 0.0
            )

        families: tuple[Popularity, ...] = (knobs.popularity,) if again else POPULARITIES
        steps = (0.3, 0.15, 0.1)
        starts = [*itertools.product(SKEWS, SPREADS, SPARSITIES if sparse else (0.0,))]
        if again:
            steps = (0.1 * knobs.skew, 0.1, 0.05)
            starts = [(knobs.skew, knobs.layer_spread, knobs.sparsity)]
        fits = []
        for family in families:

            def error(point: Sequence[float], family: Popularity = family) -> float:
                return self._popularity_error(self.try_knobs(knobs_at(family, point), pooled=True))

            start = min((point for point in starts if point[2] <= most), key=error)
            best, least = _descend(error, start, steps, [(0, 8), (0, 1), (0, most if sparse else 0)])
            fits.append((least, family, best))
        _, family, best = min(fits)
        return knobs_at(family, best)

    def _popularity_error(self, tried: dict[str, float]) -> float:
        # Chance decides which experts share a rank, so pairs have less weight.
        errors, weights = [], []
        for name, value in self.recorded.items():
            if name.startswith((statistics.LOAD, statistics.LOAD_GINI)):
                errors.append(EXPERTS_COUNT * _apart(tried[name], value))
                weights.append(EXPERTS_COUNT)
            elif name.startswith((statistics.GINI, *statistics.TOPS.values(), statistics.ZERO)):
                zero = name == statistics.ZERO
                errors.append(EMPTY_COUNT * abs(tried[name] - value) if zero else _apart(tried[name], value))
                weights.append(1)
        return sum(errors) / sum(weights)

    def phase(self, knobs: Knobs) -> Knobs:
        if len(self.count) < 2 * PARTS_OF_RUN:
            return knobs
        load = statistics.source_rows(self.count).sum(axis=2)
        parts = np.array_split(np.arange(len(load)), PARTS_OF_RUN)
        uneven = np.nanmean(statistics.gini(load), axis=1)
        single = self.shape._replace(ranks=1, micro_batches=1)

        def gini(amplitude: float) -> float:
            tried = dataclasses.replace(knobs, phase_start=amplitude, phase_floor=amplitude, sampled=False)
            load = draw(single, tried, SEED, np.arange(TRIED[0]), self.normals)[:, :, 0, 0]
            return float(statistics.gini(load).mean())

        whole = gini(1.0)
        if whole == 0:
            return knobs
        shift = whole / uneven.mean()  # compare parts of the run with each other, not with the fit
        seen = np.array([_solve(gini, shift * float(uneven[part].mean()), 3.0) for part in parts])
        return dataclasses.replace(knobs, **_decay(seen, np.array([part.mean() for part in parts]), len(load)))

    def noise(self, knobs: Knobs) -> Knobs:
        if statistics.ROWS in self.recorded and self.recorded[statistics.ROWS] > self.recorded[statistics.ROWS_CHANCE]:
            knobs = dataclasses.replace(knobs, row_shared=self._row_shared())
            knobs = self._solve_knob(knobs, "row_noise", statistics.ROWS)
        if statistics.MICRO in self.recorded:
            knobs = self._solve_knob(knobs, "micro_drift", statistics.MICRO)
        return knobs

    def _solve_knob(self, knobs: Knobs, field: str, statistic: str) -> Knobs:
        """Find the value of a noise knob. Independent noise adds in squares: f(x) is about sqrt(f(0)^2 + (k x)^2)."""
        wanted = self.recorded[statistic]

        def knobs_with(value: float) -> Knobs:
            return dataclasses.replace(knobs, **{field: value})

        least = self.try_knobs(knobs_with(0.0))[statistic]
        if least >= wanted:
            return knobs_with(0.0)
        value = 0.1
        for _ in range(NOISE_ROUNDS):
            above = self.try_knobs(knobs_with(value))[statistic] ** 2 - least**2
            step = math.sqrt((wanted**2 - least**2) / above) if above > 0 else 2
            value = min(value * step, LARGEST_NOISE)
        return knobs_with(value)

    def _row_shared(self) -> float:
        """Compare the noise of single micro-batches with that of their sum, in which unshared noise averages out."""
        batches = self.shape.micro_batches
        if batches == 1:
            return 0.0
        off, chance = statistics.single_rows(self.count)
        if off is None or chance is None:
            return 0.0
        single = off**2 - chance**2
        summed = self.recorded[statistics.ROWS] ** 2 - self.recorded[statistics.ROWS_CHANCE] ** 2
        return min(max((summed / single - 1 / batches) / (1 - 1 / batches), 0.0), 1.0) if single > 0 else 0.0

    def drift(self, knobs: Knobs) -> Knobs:
        """Fit spread and memory to the correlations of loads at several lags."""
        wanted = {lag: self.recorded[name] for lag, name in statistics.LAGGED.items() if name in self.recorded}
        if not wanted:
            return knobs
        layers = min(self.shape.layers, TRIED_LAYERS)
        single = self.shape._replace(layers=layers, ranks=1, selections=self.shape.selections * self.shape.ranks)
        pooled = knobs.row_noise / math.sqrt(self.shape.ranks)
        last = len(self.count) - 1 - max(wanted)
        number = min(TRIED_RECORDS, last + 1)
        starts = np.linspace(0, last, number).astype(int) if knobs.has_phase else np.arange(number)
        iterations = np.unique(np.concatenate([starts, *(starts + lag for lag in wanted)]))

        def error(point: Sequence[float]) -> float:
            tried = _drifting(knobs, self.shape.experts, point)
            if tried is None:
                return math.inf
            load = draw(single, dataclasses.replace(tried, row_noise=pooled), SEED, iterations, self.normals)
            load = load.sum(axis=(2, 3), dtype=np.float64)
            off = []
            for lag, value in wanted.items():
                both = np.stack(
                    [load[np.searchsorted(iterations, starts)], load[np.searchsorted(iterations, starts + lag)]]
                )
                got = float(np.nanmean(statistics.correlation(both, 1)))
                off.append(_apart(1 - got, 1 - value))
            return sum(off) / len(off)

        if knobs.drift:
            memory = -1 / math.log(knobs.persistence)
            first, steps = [(math.log(knobs.drift_spread), math.log(memory), knobs.jitter)], (0.3, 0.6, 0.02)
        else:
            memories = [math.log(memory) for memory in MEMORIES if memory <= max(2 * len(self.count), MEMORIES[0])]
            first = itertools.product(map(math.log, DRIFTS), memories, JITTERS)
            steps = (0.5, 1.0, 0.02)
        bounds = [(math.log(DRIFTS[0] / 10), math.log(LARGEST_NOISE)), (0, math.log(4 * len(self.count)))]
        best, least = _descend(error, min(first, key=error), steps, [*bounds, (0, LARGEST_NOISE)])
        return (_drifting(knobs, self.shape.experts, best) if math.isfinite(least) else None) or knobs


def _drifting(knobs: Knobs, experts: int, point: Sequence[float]) -> Knobs | None:
    """Knobs with the log spread, log memory [records] and jitter of `point`; None if their variance exceeds the
    skew's."""
    spread, keep, jitter = math.exp(point[0]), math.exp(-1 / math.exp(point[1])), point[2]
    unit = float(np.log(base_popularity(Knobs(popularity=knobs.popularity, skew=1.0), 1, experts, 0, 0)).std())
    moved = knobs.drift_spread**2 + knobs.jitter**2 - spread**2 - jitter**2
    skew = (unit * knobs.skew) ** 2 + moved
    if skew < 0:
        return None
    drift = spread * math.sqrt(1 - keep**2)
    return dataclasses.replace(knobs, skew=math.sqrt(skew) / unit, drift=drift, persistence=keep, jitter=jitter)


def _decay(seen: np.ndarray, iterations: np.ndarray, length: int) -> dict[str, float]:
    """Start, floor and half-life of the amplitudes `seen` at the `iterations`; empty if they hardly change."""
    if np.ptp(seen) < LEAST_PHASE * seen.mean():
        return {}
    change = float(np.abs(seen - seen.mean()).sum())
    phases = []
    for half_life in np.geomspace(length / (2 * PARTS_OF_RUN), length / 2, 20):
        columns = np.stack([np.ones_like(iterations), 2.0 ** (-iterations / half_life)], axis=1)
        (floor, above), *_ = np.linalg.lstsq(columns, seen, rcond=None)
        floor, start = max(floor, 0.0), max(floor + above, 0.0)
        off = np.abs(floor + (start - floor) * columns[:, 1] - seen).sum()
        phases.append((float(off), {"phase_start": start, "phase_floor": floor, "half_life": float(half_life)}))
    off, phase = min(phases, key=lambda each: each[0])
    return phase if off < (1 - EXPLAINED) * change else {}


def _apart(value: float, other: float) -> float:
    return abs(math.log(max(value, TINY) / max(other, TINY)))


def _solve(function: Callable[[float], float], wanted: float, most: float) -> float:
    """Find x in [0, most] at which an increasing function equals `wanted`, by bisection; an end if there is none."""
    low, high = 0.0, most
    if function(low) >= wanted:
        return low
    for _ in range(9):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < wanted else (low, middle)
    return (low + high) / 2


def _descend(
    function: Callable[[Sequence[float]], float], start: Sequence[float], steps, bounds
) -> tuple[Sequence[float], float]:
    """Find a local minimum near `start`, and its value. Steps along the axes are halved when none helps."""
    best, least = list(start), function(start)
    sizes = list(steps)
    for _ in range(4 * HALVINGS):
        before = least
        for axis, sign in itertools.product(range(len(best)), (1, -1)):
            tried = list(best)
            tried[axis] = min(max(tried[axis] + sign * sizes[axis], bounds[axis][0]), bounds[axis][1])
            if tried != best and (value := function(tried)) < least:
                best, least = tried, value
        if least == before:
            sizes = [size / 2 for size in sizes]
            if sizes[0] < steps[0] / 2**HALVINGS:
                break
    return best, least
