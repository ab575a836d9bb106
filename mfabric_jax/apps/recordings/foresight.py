"""Errors of expert-load predictors on a recording, by horizon.

At horizon h a predictor knows all iterations at least h records earlier. A predictor that works across layers also
knows earlier layers of the same iteration.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from mfabric_jax.apps.recordings.statistics import target_loads
from mfabric_jax.traffic.predictor import REGISTRY, predict_shares, total_variation
from mfabric_jax.traffic.recording import Recording

HORIZONS = (1, 2, 5, 10, 20, 50, 100)  # records
TRIALS = 4, 32  # fewest and most predicted iterations, spread evenly over those that every horizon can predict
WORK = 8e8  # limit for all fits of "transition" (horizons x iterations x layers x targets^4), about half a minute
FITTED = "transition"
KNOWS_NOTHING, REPEATS = "uniform", "previous-iteration"  # baselines
BETTER = 0.99  # ratio below which an error is noticeably smaller
DIGITS = 5  # of errors; more digits are rounding
_SIMPLE = ("uniform", "previous-iteration", "previous-layer", "moving-average", "transition")
_BALANCED = 0.001  # if even shares have a smaller error, there is nothing to predict


def foresight_rows(recording: Recording) -> list[dict[str, Any]]:
    """Return a row per predictor (simplest first) and horizon.

    Columns: `predictor`, `records` and `iterations` ahead (None if records are unevenly spaced), `error`, and
    `over_even`, the error over that of even shares. Horizons span at most half the recording. "transition" is omitted
    if its fits would take minutes.
    """
    load = target_loads(recording)
    last = len(load) - 1
    horizons = [horizon for horizon in HORIZONS if horizon <= max(1, len(load) // 2) and horizon <= last]
    if not horizons or not (load > 0).any():
        return []
    steps = np.unique(np.diff(recording.number))
    names, trials = _affordable(len(horizons), *load.shape[1:])
    trial_records = np.unique(
        np.linspace(max(horizons), last, min(trials, last - max(horizons) + 1)).round().astype(int)
    )
    filled = (load[trial_records] > 0).any(axis=-1)
    known = jnp.asarray(load, jnp.result_type(float))
    rows = []
    for name in names:
        for horizon in horizons:
            shares = predict_shares(known[:, :, None], jnp.asarray(trial_records), REGISTRY[name], horizon)[:, :, 0]
            missed = np.asarray(total_variation(shares, known[trial_records]))[filled]
            error = round(float(missed.mean()), DIGITS) if filled.any() else None
            iterations = int(horizon * steps[0]) if len(steps) == 1 else None
            rows.append({"predictor": name, "records": horizon, "iterations": iterations, "error": error})
    even = next(row["error"] for row in rows if row["predictor"] == KNOWS_NOTHING)
    return [row | {"over_even": row["error"] / even if row["error"] is not None and even else None} for row in rows]


def _affordable(horizons: int, layers: int, targets: int) -> tuple[list[str], int]:
    names = sorted(REGISTRY, key=lambda name: _SIMPLE.index(name) if name in _SIMPLE else len(_SIMPLE))
    fewest, most = TRIALS
    trials = int(WORK / (horizons * layers * targets**4))
    if trials < fewest:
        return [name for name in names if name != FITTED], most
    return names, min(trials, most)


def rank_predictors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the predictors from best to worst at the shortest horizon; ties go to the simplest.

    - `error`, `over_even`: at the shortest horizon.
    - `works_to`: longest horizon [records] up to which the predictor beats even shares by 1 %; 0 if it never does.
      `reaches_end`: whether that is the longest horizon tried.
    - `beats_repeating_to`: longest horizon up to which it beats repeating the last known iteration;
      `beats_repeating_from`: horizon from which it does (None if there is none). Both are None for that predictor.
    """
    by_name: dict[str, dict[int, float]] = {}
    for row in rows:
        by_name.setdefault(row["predictor"], {})[row["records"]] = row["error"]
    if not by_name:
        return []
    even, repeated = by_name[KNOWS_NOTHING], by_name[REPEATS]
    shortest, longest = min(even), max(even)
    ranking = []
    for name, errors in by_name.items():
        works = _reach(errors, even)
        ranking.append(
            {
                "predictor": name,
                "error": errors[shortest],
                "over_even": errors[shortest] / even[shortest] if even[shortest] else None,
                "works_to": works,
                "beats_repeating_to": None if name == REPEATS else _reach(errors, repeated),
                "beats_repeating_from": None if name == REPEATS else _from(errors, repeated),
                "reaches_end": works == longest,
            }
        )
    return sorted(ranking, key=lambda row: round(row["error"], 4))


def is_balanced(rows: list[dict[str, Any]]) -> bool:
    """Whether even shares already match the truth, so that there is nothing to predict."""
    return all(row["error"] < _BALANCED for row in rows if row["predictor"] == KNOWS_NOTHING)


def _from(errors: dict[int, float], others: dict[int, float]) -> int | None:
    first = None
    for horizon in sorted(errors, reverse=True):
        if errors[horizon] >= BETTER * others[horizon]:
            break
        first = horizon
    return first


def _reach(errors: dict[int, float], others: dict[int, float]) -> int:
    reach = 0
    for horizon in sorted(errors):
        if errors[horizon] >= BETTER * others[horizon]:
            break
        reach = horizon
    return reach
