"""`python -m tests.measured_errors STEPS.csv` writes what follows from a run of `mfabric validate training`."""

import datetime
import math
import sys
from pathlib import Path

import numpy as np

from mfabric_jax import support
from mfabric_jax.apps.validation.sources import calibrated_ratios, fit_factors, held_band, steps_of
from mfabric_jax.apps.validation.training_steps import training_ratios
from mfabric_jax.report import read_rows
from mfabric_jax.support.bands import HELD, holding_end, holding_ends
from mfabric_jax.support.measured_errors import TABLE, Calibration, RatioErrors, StepBand, StepErrors


def errors_in(steps):
    """{GPU: its errors}, of measured steps."""
    found = {}
    for step in steps.values():
        found.setdefault(step.gpu, []).append(1 / step.ratio - 1)
    return {gpu: StepErrors(len(some), sum(some) / len(some), max(some, key=abs)) for gpu, some in found.items()}


def ratios_in(steps):
    """How far ratios inside a source were off: 8 in 10 are within, sources weighted alike."""
    rows = [{"row": name, "predicted_s": one.predicted_s, "measured_s": one.measured_s} for name, one in steps.items()]
    known = training_ratios(rows)
    errors, groups = [abs(one["error"]) for one in known], [steps[one["row"]].group for one in known]
    return RatioErrors(len(errors), holding_end(errors, groups, HELD))


def outward(low, high):
    """Ends in thousandths that hold the same steps: a band ends at a step."""
    return math.floor(1000 * low) / 1000, math.ceil(1000 * high) / 1000


def band_in(steps):
    return StepBand(*outward(*held_band(list(steps.values()))))


def calibration_in(steps):
    """The factors, and the errors and the band of steps whose source was left out."""
    known = list(steps.values())
    left_out = calibrated_ratios(known)
    band = holding_ends(left_out, [step.group for step in known])
    return Calibration(*fit_factors(known), float(np.mean(abs(1 / left_out - 1))), *outward(*band))


def table_of(name, facts, words=""):
    """The lines of a table of numbers."""
    lines = [f"{key} = {value if isinstance(value, int) else f'{value:.4f}'}" for key, value in facts._asdict().items()]
    return ["", f"[{name}]{words and f' # {words}'}", *lines]


STEP = '"{}" = {{ group = "{}", gpu = "{}", compute_s = {:.5g}, communication_s = {:.5g}, measured_s = {:.6g} }}'


def written(rows, date, version, commit):
    """The text of the file."""
    steps = steps_of(rows)
    lines = [
        "# Measured training steps, and what follows from them. Errors by GPU: predicted over measured - 1 (`mean` and",
        "# `worst` are signed). All else weights sources of steps (`group`) alike.",
        "# Made by `mfabric validate training --out steps.csv` and `python -m tests.measured_errors steps.csv`.",
        *(f'date = "{date}"', f'version = "{version}"', f'commit = "{commit}"'),
    ]
    for gpu, one in sorted(errors_in(steps).items()):
        lines += table_of(f"gpus.{gpu}", one)
    lines += table_of("band", band_in(steps), "measured over predicted: 8 of 10 steps lie within")
    lines += table_of("ratios", ratios_in(steps), "within a source: 8 in 10 errors are at most this")
    lines += table_of("calibration", calibration_in(steps), "factors; errors and band are of steps left out by source")
    lines += ["", "[steps] # predicted: compute_s + communication_s"]
    lines += [STEP.format(name, *one) for name, one in steps.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    rows, config = read_rows(sys.argv[1])
    commit = str(config.get("commit") or "")[:12]
    text = written(rows, datetime.date.today().isoformat(), config["version"], commit)
    (Path(support.__file__).parent / TABLE).write_text(text, encoding="utf-8")
