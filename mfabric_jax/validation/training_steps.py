"""Steps of trainings on real clusters, predicted beside what was measured (`trainings.toml`); nothing is fitted."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.case import Case, cases
from mfabric_jax.case.paths import stated
from mfabric_jax.checks import one_of

# The clusters of all rows: servers with a NIC a GPU on a tree that is not oversubscribed, and evenly routed tokens, as
# benchmarks force them.
CLUSTER = {
    "network.fabric": "fat-tree",
    "traffic.generated.skew": 0.0,
    "traffic.generated.drift": 0.0,
    "compute.experts": "balanced",
    "job.recompute": "none",
}
PARTS = ("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")
FACTS = ("memory_gb", "gpu_memory_gb", "fits", "mfu", *PARTS)


class Training(NamedTuple):
    """One row: a model on GPUs; `job`: settings of a case below `job`; `measured_s` None: kept apart."""

    name: str
    model: str
    gpu: str
    gpus: int
    job: Mapping[str, Any]
    printed: str
    source: str
    measured_s: float | None = None
    nic_gbps: float = 400.0
    note: str = ""

    @property
    def case(self) -> Case:
        """The case that says it."""
        own = resources.files("mfabric_jax.validation") / "models" / f"{self.model}.toml"
        said = {"model.name": str(own) if own.is_file() else self.model, "gpu.name": self.gpu}
        said |= {"job.parallel.gpus": self.gpus, "network.nic_gbps": self.nic_gbps}
        return Case().with_(CLUSTER | said | dict(stated({"job": dict(self.job)}, f"{self.name}: ")))


def trainings(names: Sequence[str] = ()) -> list[Training]:
    """The rows of these names, or all. `InputError` for an unknown one."""
    text = (resources.files("mfabric_jax.validation") / "trainings.toml").read_text(encoding="utf-8")
    known = {name: Training(name, **facts) for name, facts in tomllib.loads(text).items()}
    asked = [part for name in names for part in name.split(",")]
    return [known[one_of("row", name, known)] for name in dict.fromkeys(asked or known)]


def training_rows(rows: Iterable[Training]) -> Iterator[dict[str, Any]]:
    """Each with its prediction [s], its error (predicted over measured, less 1), parts, memory and source."""
    from mfabric_jax.simulation.results import simulate

    for one in rows:
        (found,) = simulate(cases(one.case)).rows()
        predicted, measured = found["iteration_s"], one.measured_s
        yield {
            **{"row": one.name, "model": one.model, "gpu": one.gpu, "gpus": one.gpus},
            **{"predicted_s": predicted, "measured_s": measured},
            "error": None if measured is None else predicted / measured - 1,
            **{name: found[name] for name in FACTS},
            **{"printed": one.printed, "source": one.source, "note": one.note},
        }


def training_summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Mean and worst of the absolute errors, by GPU; only rows that were measured."""
    found = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        errors = np.array([row["error"] for row in rows if row["gpu"] == gpu and row["error"] is not None])
        if len(errors):
            worst = errors[np.abs(errors).argmax()]
            mean = float(np.abs(errors).mean())
            found.append({"gpu": gpu, "rows": len(errors), "mean_error": mean, "worst_error": float(worst)})
    return found
