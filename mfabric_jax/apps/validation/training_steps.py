"""Predicted and measured steps of trainings on real clusters (`trainings.toml`); nothing is fitted to them."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.resources.abc import Traversable
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.validation.sources import group_of
from mfabric_jax.case import Case, cases
from mfabric_jax.case.paths import read_statement
from mfabric_jax.checks import one_of
from mfabric_jax.evaluate.resolving.set_up import MEMORY
from mfabric_jax.evaluate.rows.results import simulate

# Settings of all rows: servers with one NIC per GPU on a tree without oversubscription, and evenly routed tokens, as
# benchmarks force them.
CLUSTER = {
    "traffic.generated.skew": 0.0,
    "traffic.generated.drift": 0.0,
    "compute.experts": "balanced",
    "compute.rate": "kernels",
    "job.recompute": "none",
}
PARTS = ("compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")
FACTS = (*MEMORY, "mfu", *PARTS)


class MeasuredTraining(NamedTuple):
    """A model trained on GPUs. `job`, `code`: settings of a case below `job` and `compute.code`; `measured_s`: None if
    only predicted."""

    name: str
    model: str
    gpu: str
    gpus: int
    job: Mapping[str, Any]
    printed: str
    source: str
    measured_s: float | None = None
    nic_gbps: float = 400.0
    recipe: str = "none"
    fabric: str = "fat-tree"
    code: Mapping[str, Any] = MappingProxyType({})
    note: str = ""

    @property
    def group(self) -> str:
        """The source that counts once in bands."""
        return group_of(self.source, self.name)

    @property
    def case(self) -> Case:
        """The case of the training."""
        own = own_model_file(self.model)
        changes = {"model.name": self.model if own is None else str(own), "gpu.name": self.gpu}
        changes |= {"model.recipe": self.recipe}
        changes |= {"network.fabric": self.fabric, "job.parallel.gpus": self.gpus, "network.nic_gbps": self.nic_gbps}
        stated = {"job": dict(self.job), "compute": {"code": dict(self.code)}}
        return Case().with_(CLUSTER | changes | dict(read_statement(stated, f"{self.name}: ")))


def own_model_file(model: str) -> Traversable | None:
    """Return the file of a model that is in no catalogue; None for others."""
    file = resources.files("mfabric_jax.apps.validation") / "models" / f"{model}.toml"
    return file if file.is_file() else None


def trainings(names: Sequence[str] = ()) -> list[MeasuredTraining]:
    """Return the trainings of these names, or all. Raise InputError for an unknown name."""
    text = (resources.files("mfabric_jax.apps.validation") / "trainings.toml").read_text(encoding="utf-8")
    known = {name: MeasuredTraining(name, **facts) for name, facts in tomllib.loads(text).items()}
    row_names = [part for name in names for part in name.split(",")]
    return [known[one_of("row", name, known)] for name in dict.fromkeys(row_names or known)]


def training_rows(rows: Iterable[MeasuredTraining]) -> Iterator[dict[str, Any]]:
    """Yield a row per training: prediction [s], error (predicted / measured - 1), parts, memory and source."""
    for training in rows:
        (result,) = simulate(cases(training.case)).rows()
        predicted, measured = result["iteration_s"], training.measured_s
        yield {
            **{"row": training.name, "model": training.model, "gpu": training.gpu, "gpus": training.gpus},
            **{"predicted_s": predicted, "measured_s": measured, "low_s": result["low_s"], "high_s": result["high_s"]},
            "error": None if measured is None else predicted / measured - 1,
            "inside": None if measured is None else result["low_s"] <= measured <= result["high_s"],
            **{name: result[name] for name in FACTS},
            **{"printed": training.printed, "source": training.source, "note": training.note},
        }


def training_summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per GPU over its measured trainings: mean and worst absolute error, the fraction of measurements
    inside the band, and the band's mean width over the prediction."""
    summaries = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        some = [row for row in rows if row["gpu"] == gpu and row["error"] is not None]
        if some:
            errors = np.array([row["error"] for row in some])
            width = np.mean([(row["high_s"] - row["low_s"]) / row["predicted_s"] for row in some])
            summaries.append(
                {
                    **{"gpu": gpu, "rows": len(some), "mean_error": float(np.abs(errors).mean())},
                    "worst_error": float(errors[np.abs(errors).argmax()]),
                    **{"inside": float(np.mean([row["inside"] for row in some])), "band": float(width)},
                }
            )
    return summaries


def training_ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ratios of two rows of one source (`RATIOS`): predicted, measured, and error (predicted / measured - 1).
    Ratios of missing rows are left out."""
    known, ratios = {row["row"]: row for row in rows}, []
    for what, pairs in RATIOS.items():
        for numerator, other in pairs:
            if numerator in known and other in known:
                (p1, m1), (p2, m2) = (
                    (known[name]["predicted_s"], known[name]["measured_s"]) for name in (numerator, other)
                )
                measured = None if m1 is None or m2 is None else m1 / m2
                error = None if measured is None else p1 / p2 / measured - 1
                words = {"ratio": what, "row": numerator, "over": other}
                ratios.append(words | {"predicted": p1 / p2, "measured": measured, "error": error})
    return ratios


def _scaling_pairs(name: str, *gpus: str) -> tuple[tuple[str, str], ...]:
    first, *others = (name.format(count) for count in gpus)
    return tuple((other, first) for other in others)


RATIOS = {
    "overlap on / off": (
        ("qwen3-30b-16-overlapped", "qwen3-30b-16"),
        ("qwen3-30b-16-nccl-overlapped", "qwen3-30b-16-nccl"),
        ("qwen3-235b-256-overlapped", "qwen3-235b-256"),
    ),
    "experts across servers / inside": (
        ("gpt-oss-64-b200-ep64", "gpt-oss-64-b200-ep8"),
        ("gpt-oss-64-b300-ep64", "gpt-oss-64-b300-ep8"),
    ),
    "strong scaling": (
        *_scaling_pairs("megascale-{}", "240", "480", "720", "960", "1440"),
        *_scaling_pairs("megatron-{}", "240", "480", "720", "960", "1440"),
        *_scaling_pairs("mixtral-8x22b-{}-1024", "128", "256", "512", "1024"),
        *_scaling_pairs("qwen2-57b-{}-1024", "64", "128", "256", "512", "1024"),
        *_scaling_pairs("g8t8-{}-1024", "128", "256", "512", "1024"),
    ),
    "unfolded / folded": (
        ("mixtral-8x22b-128-unfolded", "mixtral-8x22b-128"),
        ("mixtral-8x22b-128-fp8-unfolded", "mixtral-8x22b-128-fp8"),
    ),
    "multi-rail / multi-plane": (("deepseek-v3-2048-rails", "deepseek-v3-2048"),),
    "FP8 / BF16": (("mixtral-8x22b-128-fp8", "mixtral-8x22b-128"), ("grok-1-512-fp8", "grok-1-512")),
    "more stages": (("deepseek-v3-1024-bf16", "deepseek-v3-512-bf16"),),
    "dispatcher": (("qwen3-30b-16-nccl", "qwen3-30b-16"),),
}
