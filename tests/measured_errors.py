"""`python -m tests.measured_errors STEPS.csv` writes errors by GPU of a run of `mfabric validate training`."""

import datetime
import math
import sys
from pathlib import Path

from mfabric_jax import report
from mfabric_jax.apps.validation.training_steps import training_ratios
from mfabric_jax.report import read_rows
from mfabric_jax.report.measured_errors import TABLE, Ratios, StepErrors


def errors_in(rows):
    """{GPU: its errors}, of rows with a measurement."""
    found = {}
    for row in rows:
        if row["error"] is not None:
            found.setdefault(row["gpu"], []).append(row["error"])
    return {gpu: StepErrors(len(some), sum(some) / len(some), max(some, key=abs)) for gpu, some in found.items()}


def ratios_in(rows):
    """How far ratios inside a source were off: nine in ten are within."""
    errors = sorted(abs(one["error"]) for one in training_ratios(rows) if one["error"] is not None)
    return Ratios(len(errors), errors[math.ceil(0.9 * len(errors)) - 1])


def written(rows, date, version, commit):
    """The text of the file."""
    lines = [
        "# Errors of predicted training steps by GPU: predicted over measured - 1 (`mean` and `worst` are signed).",
        "# Made by `mfabric validate training --out steps.csv` and `python -m tests.measured_errors steps.csv`.",
        *(f'date = "{date}"', f'version = "{version}"', f'commit = "{commit}"'),
    ]
    for gpu, one in sorted(errors_in(rows).items()):
        lines += ["", f"[gpus.{gpu}]", f"steps = {one.steps}", f"mean = {one.mean:.4f}", f"worst = {one.worst:.4f}"]
    ratios = ratios_in(rows)
    lines += ["", "[ratios] # within a source: nine in ten errors are at most this"]
    lines += [f"count = {ratios.count}", f"nine_in_ten = {ratios.nine_in_ten:.4f}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    rows, config = read_rows(sys.argv[1])
    commit = str(config.get("commit") or "")[:12]
    text = written(rows, datetime.date.today().isoformat(), config["version"], commit)
    (Path(report.__file__).parent / TABLE).write_text(text, encoding="utf-8")
