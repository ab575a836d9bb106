"""Errors of predicted training steps by GPU, from a run of `mfabric validate training`.

They are stored in `training_errors.toml`, so that remarks need no new run; `python -m tests.measured_errors` writes the
file.
"""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from mfabric_jax.report.numerals import percent

TABLE = "training_errors.toml"


class StepErrors(NamedTuple):
    """Measured steps of a GPU: their number, and the mean and worst error (predicted over measured - 1)."""

    steps: int
    mean: float
    worst: float

    @property
    def words(self) -> str:
        """The errors as part of a sentence on predicted times."""
        mean, worst = (f"{percent(abs(e))} {'less' if e < 0 else 'more'}" for e in (self.mean, self.worst))
        if self.steps == 1:
            return f"{mean} than the one step measured"
        return f"{mean} on average over {self.steps} steps, {worst} at worst"


class Ratios(NamedTuple):
    """Errors of predicted ratios of two steps from one source: nine in ten of `count` are within `nine_in_ten`."""

    count: int
    nine_in_ten: float


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads((resources.files("mfabric_jax.report") / TABLE).read_text(encoding="utf-8"))


def errors_by_gpu() -> dict[str, StepErrors]:
    """Return the errors of measured steps by GPU."""
    return {gpu: StepErrors(**facts) for gpu, facts in _table()["gpus"].items()}


def ratio_errors() -> Ratios:
    return Ratios(**_table()["ratios"])


def accuracy_words(gpus: Iterable[str], loads: Iterable[float] = ()) -> str:
    """Return sentences on the errors of measured steps of some GPUs.

    `loads`: load of the busiest rank over the mean, of each row; measured steps had evenly routed tokens.
    """
    known, listed = errors_by_gpu(), list(dict.fromkeys(gpus))
    errors = [f"{gpu} {known[gpu].words}" for gpu in listed if gpu in known]
    without = [gpu for gpu in listed if gpu not in known]
    nothing = [f"no step of {' or '.join(without)} was measured"] if without else []
    made = f"mfabric validate training, {_table()['date']}"
    sentence = (
        f"Predicted time against measured training steps, routed evenly ({made}): {'; '.join([*errors, *nothing])}."
    )
    each = list(dict.fromkeys(f"{load:.2f}" for load in sorted(loads)))
    if not each:
        return sentence
    over = each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"
    return f"{sentence} In these rows the busiest rank receives {over} times the mean."
