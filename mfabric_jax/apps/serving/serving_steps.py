"""Compare predictions of serving with measurements (`serving.toml`): dispatch and combine, decoding, prefill."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.serving.rows import cached_deployment
from mfabric_jax.apps.serving.step import MEASURED_OVER_PREDICTED, band
from mfabric_jax.case import Case
from mfabric_jax.checks import one_of
from mfabric_jax.workload.catalog import get_model
from mfabric_jax.workload.dispatch_kernels import WIRE
from mfabric_jax.workload.kernels import HOW

CALLS = ("dispatch", "combine")
LEAST = 32  # tokens of a GPU; the summary leaves out smaller calls, which are only latency
MODEL = {"model.name": "deepseek-v3", "network.nic_gbps": 400.0}
SERVER = 8  # GPUs to which `tokens_per_s` refers
BEST_GROUPS = 4  # groups from which a token takes its experts in DeepEP's benchmark


class MeasuredServing(NamedTuple):
    """One measurement. `what`: a kernel call (`CALLS`), tpot or prefill; `batch`: a GPU's tokens in one micro-batch."""

    name: str
    what: str
    gpu: str
    kernels: str
    ep: int
    batch: float
    measured_s: float
    printed: str
    settings: Mapping[str, Any]
    source: str
    note: str = ""
    constant: bool = False

    @property
    def case(self) -> Case:
        """The case that predicts this measurement."""
        changes = {"gpu.name": self.gpu, "network.fabric": "fat-tree", "serving.ep": self.ep}
        return Case().with_(MODEL | changes | dict(self.settings))

    @property
    def is_call(self) -> bool:
        """Whether a single kernel was measured."""
        return self.what in CALLS


def servings(names: Sequence[str] = ()) -> list[MeasuredServing]:
    """Return the measurements with these names, by default all. A benchmark's name stands for all of its rows.

    Raise `InputError` for an unknown name.
    """
    text = (resources.files("mfabric_jax.apps.serving") / "serving.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    groups = {name: list(_calls(name, facts)) for name, facts in tables["calls"].items()}
    groups |= {name: [_step(name, facts)] for name, facts in tables["steps"].items()}
    rows = {row.name: row for some in groups.values() for row in some}
    wanted = [part for name in names for part in name.split(",")] or list(groups)
    named = groups | {name: [row] for name, row in rows.items()}
    chosen = [row for name in wanted for row in named[one_of("row", name, named)]]
    return list({row.name: row for row in chosen}.values())


def measured_steps() -> dict[str, list[MeasuredServing]]:
    """Return the measured steps and passes, from which the band comes, by what they are."""
    steps = [row for row in servings() if not row.is_call]
    return {what: [row for row in steps if row.what == what] for what in dict.fromkeys(row.what for row in steps)}


def measured_facts() -> dict[str, dict[str, Any]]:
    """Return the number of measured steps and passes, their GPUs and group sizes, by what they are."""
    return {
        what: {"steps": len(own), "gpus": sorted({row.gpu for row in own}), "ep": sorted({row.ep for row in own})}
        for what, own in measured_steps().items()
    }


def _calls(name: str, facts: Mapping[str, Any]) -> Iterator[MeasuredServing]:
    rates = "gigabytes_per_s" in facts
    cells, dispatch = facts["gigabytes_per_s" if rates else "microseconds"], facts.get("dispatch", "fp8")
    several = len({tokens for _, tokens, *_ in cells}) > 1
    for ep, tokens, *printed in cells:
        for what, value in zip(CALLS, printed, strict=False):
            precision = dispatch if what == "dispatch" else "bf16"
            label = f"{ep}-{tokens}" if several else f"{ep}"
            yield MeasuredServing(
                *(f"{name}-{label}-{what}", what, facts["gpu"], facts["kernels"], ep, float(tokens)),
                _logical_s(facts, ep, tokens, precision, value) if rates else float(units.us(value)),
                f"{value:g} {'GB/s' if rates else 'us'}",
                _of_benchmark(facts, ep) | {"serving.batch": float(tokens), "serving.formats.dispatch": dispatch},
                facts["source"],
                facts.get("note", ""),
                bool({f"{ep}", f"{label}-{what}"} & set(facts.get("constants", ()))),
            )


def _logical_s(facts: Mapping[str, Any], ep: int, tokens: int, precision: str, rate: float) -> float:
    """Seconds of a call from its printed bytes per second, which count the sender's own server as reached."""
    size = get_model(MODEL["model.name"]).architecture.hidden * WIRE[precision]
    return tokens * facts["reached"][str(ep)] * size / float(units.gigabytes_per_s(rate))


def _of_benchmark(facts: Mapping[str, Any], ep: int) -> dict[str, Any]:
    """Settings of a benchmark's case: network, kernels and experts."""
    changes = {"network.fabric": facts.get("fabric", "fat-tree"), "serving.kernels": facts["kernels"]}
    if "gpu_tbps" in facts:
        changes["network.gpu_tbps"] = facts["gpu_tbps"]
    if "experts_per_gpu" in facts:
        changes["model.experts"] = ep * facts["experts_per_gpu"]
    groups = facts.get("groups", {}).get(str(ep), 1)
    return changes | {"model.expert_groups": groups, "model.top_groups": min(BEST_GROUPS, groups)}


def _step(name: str, facts: Mapping[str, Any]) -> MeasuredServing:
    drafts, each_s = facts.get("drafts", {"tokens": 0, "accepted": 0.0}), facts["tokens_per_s"] / SERVER
    changes = {f"serving.drafts.{field}": value for field, value in drafts.items()}
    changes |= {"serving.context": float(facts["context"])}
    if facts["what"] == "prefill":
        batch, kernels = facts["requests"] * facts["context"] // 2, "serving.prefill.kernels"
        changes |= {"serving.prefill.tokens": batch}
    else:
        batch, kernels = facts["requests"] * (1 + drafts["tokens"]) / 2, "serving.kernels"
        changes |= {"serving.batch": batch}
    tokens = 2 * batch if facts["what"] == "prefill" else facts["requests"]
    return MeasuredServing(
        *(name, facts["what"], facts["gpu"], facts["kernels"], facts["ep"], float(batch), tokens / each_s),
        f"{facts['tokens_per_s']:,} tokens/s a server of {SERVER} GPUs",
        changes | {kernels: facts["kernels"]},
        *(facts["source"], facts["note"]),
    )


def serving_rows(rows: Iterable[MeasuredServing]) -> Iterator[dict[str, Any]]:
    """Yield each measurement with its prediction [s] and its error (predicted / measured - 1).

    Rows of steps also have the band (`step.band`) and whether the measurement is `inside` it. The rows from which the
    band was made all lie inside it.
    """
    most = {what: ends[1] for what, ends in MEASURED_OVER_PREDICTED.items()}
    for row in rows:
        predicted, low, high = _prediction(row)
        yield {
            **{"row": row.name, "what": row.what, "gpu": row.gpu, "kernels": row.kernels, "ep": row.ep},
            **{"batch": row.batch, "predicted_s": predicted, "measured_s": row.measured_s},
            **{"low_s": low, "high_s": high, "error": predicted / row.measured_s - 1},
            "inside": None if low is None else row.measured_s >= low and _over(row, predicted) <= most[row.what],
            **{"constant": row.constant, "counted": row.batch >= LEAST and not row.constant},
            **{"printed": row.printed, "source": row.source, "note": row.note},
        }


def _over(row: MeasuredServing, predicted_s: float) -> float:
    """Measured over predicted time, rounded as `MEASURED_OVER_PREDICTED`."""
    return round(row.measured_s / predicted_s, 2)


def _prediction(row: MeasuredServing) -> tuple[float, float | None, float | None]:
    """The predicted seconds, and the ends of the band."""
    case = row.case
    deployed, nic_gbps = cached_deployment(case), case.network.nic_gbps
    if row.is_call:
        wires = deployed.decode.wires(nic_gbps)
        return float(wires.call_s(row.batch, combine=row.what == "combine")), None, None
    if row.what == "prefill":
        pass_s = float(deployed.prefilling(nic_gbps).step_s)
        return pass_s, *band(deployed.prefilling(nic_gbps, HOW[-1]), pass_s, "prefill")
    tpot_s = float(deployed.decoding(deployed.numbers).tpot_s)
    return tpot_s, *band(deployed.decoding(deployed.numbers, HOW[-1]), tpot_s, "tpot")


def serving_summary(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per family of kernels, and one for all: mean absolute and worst error of the calls that count."""
    calls = [row for row in rows if row["what"] in CALLS and row["counted"]]
    names, summary = list(dict.fromkeys(row["kernels"] for row in calls)), []
    for name in [*names, *(["all"] if len(names) > 1 else [])]:
        errors = np.array([row["error"] for row in calls if name in (row["kernels"], "all")])
        each = {"mean_error": float(np.abs(errors).mean()), "worst_error": float(errors[np.abs(errors).argmax()])}
        summary.append({"kernels": name, "rows": len(errors)} | each)
    return summary


def serving_bands(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per kind of step: number of rows, number inside the band, and the widest band as high over low."""
    bands = []
    for what in dict.fromkeys(row["what"] for row in rows if row["what"] not in CALLS):
        some = [row for row in rows if row["what"] == what]
        widest = max(row["high_s"] / row["low_s"] for row in some)
        bands.append({"what": what, "rows": len(some), "inside": sum(row["inside"] for row in some), "widest": widest})
    return bands
