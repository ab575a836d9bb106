"""Where the set-ups of measured trainings rank among those that a search finds for the same job, by the model.

    python -m benchmarks.recipes_ranked OUT.csv [ROW ...]

Takes half an hour on one core. OUT.csv has a row per measured training: measured seconds, predicted ones, those of the
best set-up found, how many set-ups with a coarse time the experts' one is behind, and both in words.
"""

import csv
import sys
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

from mfabric_jax.apps.validation.training_steps import MeasuredTraining, trainings
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolve import SEARCHED, resolve_without_jax
from mfabric_jax.evaluate.rows.results import simulate
from mfabric_jax.evaluate.setups.search import SetUpSearch

SEEN: dict[Any, list[float]] = {}  # coarse seconds of a search, by what it found: it is run once
OPEN = dict.fromkeys(SEARCHED) | {"job.search": "each", "job.recompute": "fit", "job.parallel.tp_reduces": None}


def ranked(training: MeasuredTraining) -> dict[str, Any]:
    """Return the row of a training."""
    (row,) = simulate(training.case).rows()
    settings = resolve_without_jax(training.case)
    seen: list[float] = []
    usual = SetUpSearch.coarse

    def coarse(self: SetUpSearch, set_up: Any) -> float:
        seen.append(usual(self, set_up))
        return seen[-1]

    started = time.process_time()
    with mock.patch.object(SetUpSearch, "coarse", coarse):
        found = resolve_without_jax(training.case.with_(OPEN | {"job.parallel.gpus": settings.job.gpus})).searched
    assert found is not None
    seen = SEEN.setdefault((found.best, found.seconds), seen)
    predicted = row["iteration_s"]
    return {
        "row": training.name,
        "measured_s": training.measured_s,
        "predicted_s": predicted,
        "best_s": found.seconds,
        "over_best": predicted / found.seconds,
        "behind": sum(seconds < predicted for seconds in seen),
        "cpu_s": time.process_time() - started,
        "best": found.best.words,
    }


def rows(names: list[str]) -> Iterator[dict[str, Any]]:
    for training in trainings(names):
        try:
            yield ranked(training)
        except InputError as error:
            yield {"row": training.name, "best": str(error)}


def main(out: str, *names: str) -> None:
    with open(out, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(
            file, ["row", "measured_s", "predicted_s", "best_s", "over_best", "behind", "cpu_s", "best"]
        )
        writer.writeheader()
        for row in rows(list(names)):
            writer.writerow(row)
            file.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
