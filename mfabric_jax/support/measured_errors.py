"""Measured training steps beside their predictions, and what follows from them: errors by GPU, the bands of a step and
of a ratio of two steps, and a calibration.

They stand in `training_errors.toml`, so that nobody needs a new run; `python -m tests.measured_errors STEPS.csv` writes
it from the rows of `mfabric validate training`.
"""

import functools
import tomllib
from collections.abc import Mapping
from importlib import resources
from typing import Any, NamedTuple

TABLE = "training_errors.toml"
MEASURED = "measured_steps"  # of serving, in the configuration beside rows


class MeasuredStep(NamedTuple):
    """A measured step [s], with its source (`group`) and the two parts of its prediction."""

    group: str
    gpu: str
    compute_s: float
    communication_s: float
    measured_s: float

    @property
    def predicted_s(self) -> float:
        return self.compute_s + self.communication_s

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured_s / self.predicted_s


class StepErrors(NamedTuple):
    """Measured steps of a GPU: their number, and the mean and worst error (predicted over measured - 1)."""

    steps: int
    mean: float
    worst: float


class StepBand(NamedTuple):
    """Ends of the band of a step, over its prediction: 8 of 10 measured steps lie within."""

    low: float
    high: float


class RatioErrors(NamedTuple):
    """Errors of predicted ratios of two steps from one source: 8 in 10 of `count` are at most `eight_in_ten`."""

    count: int
    eight_in_ten: float


class Calibration(NamedTuple):
    """Factors of the seconds of computation and of communication, fitted to measured steps.

    - `mean_error`: mean absolute error of steps by factors that were fitted without their source.
    - `low`, `high`: as in `StepBand`, over such a prediction.
    """

    compute: float
    communication: float
    mean_error: float
    low: float
    high: float


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads((resources.files("mfabric_jax.support") / TABLE).read_text(encoding="utf-8"))


def date_of_errors() -> str:
    """Return the day of the run, in ISO 8601."""
    return _table()["date"]


def errors_by_gpu() -> dict[str, StepErrors]:
    """Return the errors of measured steps by GPU."""
    return {gpu: StepErrors(**facts) for gpu, facts in _table()["gpus"].items()}


def step_band() -> StepBand:
    return StepBand(**_table()["band"])


def ratio_errors() -> RatioErrors:
    return RatioErrors(**_table()["ratios"])


def calibration() -> Calibration:
    return Calibration(**_table()["calibration"])


def measured_steps() -> dict[str, MeasuredStep]:
    """Return the measured steps by row of `mfabric validate training`."""
    return {row: MeasuredStep(**facts) for row, facts in _table()["steps"].items()}
