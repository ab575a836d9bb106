"""What each cause moves in predicted training steps: every measured step again, with one cause left out at a time.

    python -m benchmarks.step_causes OUT.csv [ROW ...]

Takes minutes. OUT.csv has a row per step: predicted seconds, measured seconds, and the prediction without each
of `CAUSES`.
"""

import csv
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

from mfabric_jax.apps.validation.training_steps import MeasuredTraining, trainings
from mfabric_jax.evaluate.resolving import resolved
from mfabric_jax.evaluate.rows.timeline import problem_of_case, walk_problem
from mfabric_jax.workload.kernels import table

CODE = "compute.code."
WITHOUT_WAITS = {"counts": {"us": [1e-3, 1e-3, 1e-3]}}
CAUSES: dict[str, Mapping[str, Any]] = {
    "the last rank's wait": {"compute.kernels.table": WITHOUT_WAITS},
    "messages by size": {"compute.kernels.table": "as it is"},
    "transfers beside computation": {"compute.kernels.table": "beside"},
    "the host": {CODE + "host_us": 0.0},
    "loops of products": {CODE + "loop_us": 0.0},
    "unfused parts": {CODE + "unfused": "none"},
    "once a step": {CODE + "step_ms": 0.0},
    "FP8 sums by blocks": {CODE + "weights_rate": 1.0},
    "copies under TP": {"job.parallel.tp_reduces": "attention"},
}


def without(training: MeasuredTraining, cause: str, folder: Path) -> float | None:
    """Return the predicted seconds without a cause; None where the step does not have it."""
    changes = dict(CAUSES[cause])
    case = training.case
    if path := changes.get("compute.kernels.table"):
        changes["compute.kernels.table"] = str(_table(path, folder))
    changed = case.with_(changes) if changes else case
    if cause == "copies under TP" and case.job.parallel.tp_reduces != "copies":
        return None
    if changed == case:
        return None
    same = lambda shares, *_: shares  # noqa: E731
    with mock.patch.object(resolved, "by_size", same if cause == "messages by size" else resolved.by_size):
        return predicted(changed)


def _table(which: Any, folder: Path) -> Path:
    """The file of a user's table of kernels that only leaves the cause out; "as it is" changes nothing."""
    families = {name: dict(family) for name, family in table()["communication"].items()}
    alone = {name: family | ({"beside": 1.0} if "beside" in family else {}) for name, family in families.items()}
    named = {"beside": {"communication": alone}, "as it is": {"communication": families}}
    file = folder / f"{abs(hash(str(which)))}.json"
    file.write_text(json.dumps(named[which] if isinstance(which, str) else which))
    return file


def predicted(case: Any) -> float:
    return float(walk_problem(problem_of_case(case, "causes of a step are")).ends.max())


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        for training in trainings(names):
            if training.measured_s is not None:
                row = {"row": training.name, "measured_s": training.measured_s, "predicted_s": predicted(training.case)}
                yield row | {cause: without(training, cause, Path(folder)) for cause in CAUSES}


def main() -> None:
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file:
        writer = None
        for row in rows(sys.argv[2:]):
            if writer is None:
                writer = csv.DictWriter(file, list(row))
                writer.writeheader()
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main()
