"""Predicted and measured steps of trainings on real clusters (`trainings.toml`); nothing is fitted to them."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.case import Case, cases
from mfabric_jax.case.paths import stated
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


class Training(NamedTuple):
    """A model trained on GPUs. `job`: settings of a case below `job`; `measured_s`: None if only predicted."""

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
    note: str = ""

    @property
    def case(self) -> Case:
        """The case of the training."""
        own = resources.files("mfabric_jax.apps.validation") / "models" / f"{self.model}.toml"
        said = {"model.name": str(own) if own.is_file() else self.model, "gpu.name": self.gpu}
        said |= {"model.recipe": self.recipe}
        said |= {"network.fabric": self.fabric, "job.parallel.gpus": self.gpus, "network.nic_gbps": self.nic_gbps}
        return Case().with_(CLUSTER | said | dict(stated({"job": dict(self.job)}, f"{self.name}: ")))


def trainings(names: Sequence[str] = ()) -> list[Training]:
    """Return the trainings of these names, or all. Raise InputError for an unknown name."""
    text = (resources.files("mfabric_jax.apps.validation") / "trainings.toml").read_text(encoding="utf-8")
    known = {name: Training(name, **facts) for name, facts in tomllib.loads(text).items()}
    asked = [part for name in names for part in name.split(",")]
    return [known[one_of("row", name, known)] for name in dict.fromkeys(asked or known)]


def training_rows(rows: Iterable[Training]) -> Iterator[dict[str, Any]]:
    """Yield a row per training: prediction [s], error (predicted / measured - 1), parts, memory and source."""
    for one in rows:
        (found,) = simulate(cases(one.case)).rows()
        predicted, measured = found["iteration_s"], one.measured_s
        yield {
            **{"row": one.name, "model": one.model, "gpu": one.gpu, "gpus": one.gpus},
            **{"predicted_s": predicted, "measured_s": measured, "low_s": found["low_s"], "high_s": found["high_s"]},
            "error": None if measured is None else predicted / measured - 1,
            "inside": None if measured is None else found["low_s"] <= measured <= found["high_s"],
            **{name: found[name] for name in FACTS},
            **{"printed": one.printed, "source": one.source, "note": one.note},
        }


def training_summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per GPU over its measured trainings: mean and worst absolute error, the fraction of measurements
    inside the band, and the band's mean width over the prediction."""
    found = []
    for gpu in dict.fromkeys(row["gpu"] for row in rows):
        some = [row for row in rows if row["gpu"] == gpu and row["error"] is not None]
        if some:
            errors = np.array([row["error"] for row in some])
            width = np.mean([(row["high_s"] - row["low_s"]) / row["predicted_s"] for row in some])
            found.append(
                {
                    **{"gpu": gpu, "rows": len(some), "mean_error": float(np.abs(errors).mean())},
                    "worst_error": float(errors[np.abs(errors).argmax()]),
                    **{"inside": float(np.mean([row["inside"] for row in some])), "band": float(width)},
                }
            )
    return found


def training_ratios(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return ratios of two rows of one source (`RATIOS`): predicted, measured, and error (predicted / measured - 1).
    Ratios of missing rows are left out."""
    known, found = {row["row"]: row for row in rows}, []
    for what, pairs in RATIOS.items():
        for one, other in pairs:
            if one in known and other in known:
                (p1, m1), (p2, m2) = ((known[name]["predicted_s"], known[name]["measured_s"]) for name in (one, other))
                measured = None if m1 is None or m2 is None else m1 / m2
                error = None if measured is None else p1 / p2 / measured - 1
                words = {"ratio": what, "row": one, "over": other}
                found.append(words | {"predicted": p1 / p2, "measured": measured, "error": error})
    return found


def _scaled(name: str, *gpus: str) -> tuple[tuple[str, str], ...]:
    first, *rest = (name.format(count) for count in gpus)
    return tuple((one, first) for one in rest)


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
        *_scaled("megascale-{}", "240", "480", "720", "960", "1440"),
        *_scaled("megatron-{}", "240", "480", "720", "960", "1440"),
        *_scaled("mixtral-8x22b-{}-1024", "128", "256", "512", "1024"),
        *_scaled("qwen2-57b-{}-1024", "64", "128", "256", "512", "1024"),
        *_scaled("g8t8-{}-1024", "128", "256", "512", "1024"),
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
