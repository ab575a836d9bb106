"""Measured steps by source: errors, bands made without a source, and a calibration fitted without it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfabric_jax.support.bands import Ends, group_weights, holding_ends, holds_left_out
from mfabric_jax.support.measured_errors import MeasuredStep, measured_steps

# Rows of one paper or repository are one source, if one software system and one author measured them. By source: how
# the text of a row's source begins, and its name.
SOURCES = {
    "arXiv 2505.09343": ("arXiv 2505.09343", ""),
    "Megatron MoE model zoo": ("NVIDIA Megatron MoE model zoo", ""),
    "Megatron-Bridge, skills": ("NVIDIA Megatron-Bridge, skills", ""),
    "Megatron-Bridge, summary": ("NVIDIA Megatron-Bridge, performance summary", ""),
    "dgxc-benchmarking, Grok-1": ("NVIDIA dgxc-benchmarking v25.05.04, grok1", ""),
    "dgxc-benchmarking, DeepSeek-V3": ("NVIDIA dgxc-benchmarking v25.05.04, deepseek_v3", ""),
    "arXiv 2505.11432, MegaScale": ("arXiv 2505.11432", "megascale"),
    "arXiv 2505.11432, Megatron-LM": ("arXiv 2505.11432", "megatron"),
    "arXiv 2504.14960": ("arXiv 2504.14960", ""),
    "gpu-recipes": ("NVIDIA gpu-recipes", ""),
}
COMMUNICATION = ("tp_comm_s", "ep_comm_s", "dp_comm_s")
MOST_APART = 10.0  # between the two factors of a calibration
TRIED = 2001


def group_of(source: str, row: str) -> str:
    """Return the source that counts once in bands (`SOURCES`); the whole text if it is not listed."""
    begins = lambda names: source.startswith(names[0]) and row.startswith(names[1])  # noqa: E731
    return next((group for group, names in SOURCES.items() if begins(names)), source)


def steps_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, MeasuredStep]:
    """Return the measured ones of the rows of `training_rows`, by name.

    What neither computes nor communicates (bubbles) counts as both, in proportion.
    """
    steps = {}
    for row in rows:
        if row["measured_s"] is not None:
            communication = sum(row[name] for name in COMMUNICATION)
            compute_s = row["predicted_s"] * row["compute_s"] / (row["compute_s"] + communication)
            parts = compute_s, row["predicted_s"] - compute_s
            group = group_of(row["source"], row["row"])
            steps[row["row"]] = MeasuredStep(group, row["gpu"], *parts, row["measured_s"])
    return steps


# --------------------------------------------------------------------------------------------------------- calibration
def fit_factors(steps: Sequence[MeasuredStep]) -> tuple[float, float]:
    """Return the factors of the seconds of computation and of communication that fit measured steps best.

    Least squares of the logarithm of measured over calibrated seconds, all sources weighted alike. The first factor
    follows from the ratio of both, of which `TRIED` values up to `MOST_APART` are tried.
    """
    weights = group_weights([step.group for step in steps])
    compute, communication, measured = (
        np.array([getattr(step, name) for step in steps]) for name in ("compute_s", "communication_s", "measured_s")
    )
    over = np.geomspace(1 / MOST_APART, MOST_APART, TRIED)
    left = np.log(measured / (compute + over[:, None] * communication))  # [tried N]
    factor = np.exp(left @ weights)
    best = int(np.argmin((left - np.log(factor)[:, None]) ** 2 @ weights))
    return float(factor[best]), float(factor[best] * over[best])


def calibrated_ratios(steps: Sequence[MeasuredStep]) -> np.ndarray | None:
    """Return measured over calibrated seconds [N], with factors that were fitted without the step's source; None if
    there is no other source."""
    groups = {step.group for step in steps}
    if len(groups) < 2:
        return None
    ratios = np.zeros(len(steps))
    for group in groups:
        compute, communication = fit_factors([step for step in steps if step.group != group])
        for number, step in enumerate(steps):
            if step.group == group:
                ratios[number] = step.measured_s / (compute * step.compute_s + communication * step.communication_s)
    return ratios


# ----------------------------------------------------------------------------------------------------------- by source
def held_band(steps: Sequence[MeasuredStep]) -> Ends:
    """Return the ends of the band of a step, over its prediction."""
    return holding_ends([step.ratio for step in steps], [step.group for step in steps])


def summarize_sources(rows: Sequence[Mapping[str, Any]], ratios: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the errors of predicted steps by source, of all rows, and the mean of the sources.

    - `rows`, `ratios`: of `training_rows` and `training_ratios`. Sources without rows count as in the stored errors.
    - `mean_error`: of magnitudes; `bias`: the mean error; `calibrated`: mean magnitude with factors fitted without the
      source; `ratio_error`: mean magnitude of ratios inside a source.
    - `inside`: the fraction of measured steps inside their bands; `left_out`: inside bands made without the source.
    """
    own = steps_of(rows)
    known = measured_steps() | own
    steps, groups = list(known.values()), [step.group for step in known.values()]
    held, calibrated = holds_left_out([step.ratio for step in steps], groups), calibrated_ratios(steps)
    lines = []
    for row in rows:
        if row["row"] in own and held is not None and calibrated is not None:
            number = list(known).index(row["row"])
            error = {"error": row["error"], "inside": row["inside"], "left_out": held[number]}
            lines.append(error | {"group": groups[number], "calibrated": 1 / calibrated[number] - 1})
    apart = [{**line} | {"group": own[line["row"]].group} for line in ratios if line["error"] is not None]
    by_source = [
        _errors(group, [line for line in lines if line["group"] == group], [r for r in apart if r["group"] == group])
        for group in dict.fromkeys(line["group"] for line in lines)
    ]
    return [*by_source, _errors("all rows", lines, apart), _mean_of_sources(by_source)] if len(by_source) else []


def _errors(group: str, lines: Sequence[Mapping[str, Any]], ratios: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    errors = np.array([line["error"] for line in lines])
    means = {name: float(np.mean([line[name] for line in lines])) for name in ("inside", "left_out")}
    return {
        **{"group": group, "rows": len(lines), "mean_error": float(abs(errors).mean()), "bias": float(errors.mean())},
        **means,
        "calibrated": float(np.mean([abs(line["calibrated"]) for line in lines])),
        **{"ratios": len(ratios), "ratio_error": _mean([abs(line["error"]) for line in ratios])},
    }


def _mean_of_sources(by_source: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("mean_error", "bias", "inside", "left_out", "calibrated", "ratio_error")
    means = {name: _mean([line[name] for line in by_source if line[name] is not None]) for name in names}
    counts = {name: sum(line[name] for line in by_source) for name in ("rows", "ratios")}
    return {"group": "sources alike"} | counts | means


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
