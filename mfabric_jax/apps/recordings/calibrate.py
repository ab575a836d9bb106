"""Fit the computation time of models to published fat-tree times; `resolving.resolved` uses the result."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from mfabric_jax.case import Case, load
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import InputError, names
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.resolving.resolved import BANDWIDTHS, PUBLISHED, CalibrationFit
from mfabric_jax.evaluate.rows.results import provenance
from mfabric_jax.evaluate.solving import problem_at, solve, times_of
from mfabric_jax.support.atomic import replacing

ROUNDS, POINTS = 6, 25
RANGE = (1e-2, 1e2)  # searched range of achieved over peak FLOP/s


def calibrate(
    case: Case | None = None, models: Sequence[str] = tuple(PUBLISHED), *, progress: Callable | None = None
) -> dict[str, CalibrationFit]:
    """Return, by model, the achieved over peak FLOP/s that bring fat-tree times closest to the published ratios.

    - `case`: all other settings (None: preset paper); its model, fabric and bandwidth are ignored.

    Method: a search over one number for the least squares of the logarithms of the three ratios to the time at
    800 Gbps.
    """
    for model in models:
        if model not in PUBLISHED:
            known = ", ".join(PUBLISHED)
            raise InputError(
                f"models must have published fat-tree times to fit a rate to ({known}), got {model!r}; for "
                "other models, state --gpu and --efficiency."
            )
    names("models", tuple(models), PUBLISHED)
    base = load(preset="paper") if case is None else case
    assert isinstance(base, Case)
    return {name: _calibrate_model(base, name, progress) for name in models}


def _calibrate_model(case: Case, model: str, progress: Callable | None) -> CalibrationFit:
    there = case.with_({"model.name": model, "network.fabric": "fat-tree", "compute.efficiency": 1.0})
    problem = problem_at(resolve(there), BANDWIDTHS)
    solved = solve(problem)
    wanted = np.log(np.asarray(PUBLISHED[model][:-1]) / PUBLISHED[model][-1])
    whole = problem.resolved.block_seconds(problem.workload, 1.0)

    def times(efficiency: np.ndarray):
        each = [times_of(problem, solved, jax.tree.map(lambda x, by=by: x / by, whole)) for by in efficiency.tolist()]
        mean = jax.tree.map(lambda *x: np.stack(x).mean(axis=1), *each)
        return mean.iteration_s, mean.compute_s[:, -1]

    low, high = RANGE
    for _ in range(ROUNDS):
        tried = np.geomspace(low, high, POINTS)
        seconds, compute_s = times(tried)
        ratios = seconds / seconds[:, -1:]
        off = ((np.log(ratios[:, :-1]) - wanted) ** 2).sum(axis=1)
        best = int(off.argmin())
        low, high = tried[max(best - 1, 0)], tried[min(best + 1, POINTS - 1)]
    if progress:
        progress(model)
    ratios = ratios[best, :-1]
    residuals = ratios / np.exp(wanted) - 1
    return CalibrationFit(float(tried[best]), float(compute_s[best]), _floats(ratios), _floats(residuals))


def _floats(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def calibration_rows(calibrations: dict[str, CalibrationFit]) -> list[dict[str, Any]]:
    """Return a row per model and bandwidth: fitted and published time, relative to 800 Gbps."""
    return [
        {
            "model": model,
            "nic_gbps": gbps,
            "fitted": calibration.ratios[index],
            "published": PUBLISHED[model][index] / PUBLISHED[model][-1],
            "off": calibration.residuals[index],
            "efficiency": calibration.efficiency,
            "compute_s": calibration.compute_s,
        }
        for model, calibration in calibrations.items()
        for index, gbps in enumerate(BANDWIDTHS[:-1])
    ]


def check_calibration(path: str | Path) -> Path:
    """Return the path of a calibration. Raise `InputError` if it cannot be written there."""
    path = Path(path)
    if path.suffix != ".json":
        raise InputError(f"out must be a .json file, got {path}.")
    if not path.parent.is_dir():
        raise InputError(f"out must be in an existing folder, got {path}.")
    return path


def write_calibration(calibrations: dict[str, CalibrationFit], case: Case, path: str | Path) -> Path:
    """Write a calibration and its assumptions as JSON; return the path."""
    path = check_calibration(path)
    facts = provenance(case.run.dtype)
    same = {path: str(value) for path, value in flat(case).items()} | {name: facts[name] for name in ("version", "jax")}
    kept = {
        "models": {name: calibration._asdict() for name, calibration in calibrations.items()},
        "configuration": same,
    }
    with replacing(path) as (part,):
        part.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return path
