"""How far predicted steps of trainings were from measured ones, by GPU: of a run of `mfabric validate training`.

`training_errors.toml` holds it, so that remarks can say it without running anything; `python -m tests.measured_errors`
writes it.
"""

import functools
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any, NamedTuple

from mfabric_jax.report.numerals import percent

TABLE = "training_errors.toml"


class Measured(NamedTuple):
    """Of one GPU: measured steps, and their errors, predicted over measured, less 1 (`mean` signed)."""

    steps: int
    mean: float
    worst: float

    @property
    def words(self) -> str:
        """In a sentence."""
        if self.steps == 1:
            return f"1 step, {percent(self.mean, signed=True)}"
        mean, worst = (percent(error, signed=True) for error in (self.mean, self.worst))
        return f"{self.steps} steps, {mean} on average, {worst} at worst"


class Ratios(NamedTuple):
    """How far predicted ratios of two steps of a source were from measured ones: nine in ten within a share."""

    count: int
    nine_in_ten: float


@functools.cache
def _table() -> Mapping[str, Any]:
    return tomllib.loads((resources.files("mfabric_jax.report") / TABLE).read_text(encoding="utf-8"))


def measured_errors() -> dict[str, Measured]:
    """By the name of the GPU."""
    return {gpu: Measured(**facts) for gpu, facts in _table()["gpus"].items()}


def measured_ratios() -> Ratios:
    return Ratios(**_table()["ratios"])


def measured_words(gpus: Iterable[str], loads: Iterable[float] = ()) -> str:
    """Sentences on what was measured of some GPUs, with evenly routed tokens; `loads`: what the busiest rank of each
    row receives over the mean."""
    known, asked = measured_errors(), list(dict.fromkeys(gpus))
    said = [f"{gpu} {known[gpu].words}" for gpu in asked if gpu in known]
    without = [gpu for gpu in asked if gpu not in known]
    nothing = [f"no step of {' or '.join(without)} was measured"] if without else []
    made = f"predicted over measured, less 1; mfabric validate training, {_table()['date']}"
    found = f"Measured steps of trainings, of evenly routed tokens ({made}): {'; '.join([*said, *nothing])}."
    each = list(dict.fromkeys(f"{load:.2f}" for load in sorted(loads)))
    if not each:
        return found
    over = each[0] if len(each) == 1 else f"{each[0]} to {each[-1]}"
    return f"{found} In these rows the busiest rank receives {over} times the mean."
