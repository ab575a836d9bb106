"""Predict rows of served models: a CSV file with a model, GPU, engine, degrees and requests in each row.

`NEEDED` are its columns; further ones are kept. A row that cannot be predicted has a `reason` instead of numbers.
Nothing is fitted to such rows.
"""

import csv
import functools
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax import checks, units
from mfabric_jax.apps.serving.replica import ServedReplica, TokenSeconds, replica, token_seconds
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.bands import HELD, holds_left_out
from mfabric_jax.support.text_files import read_text
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.gpus import GPUS, Gpu
from mfabric_jax.workload.measured_kernels import ENGINES
from mfabric_jax.workload.public_models import PublicModel, public_model

COUNTS = ("tp_size", "moe_ep_size", "isl", "osl", "batch_size")
NEEDED = ("model_path", "system", "backend", "gemm_quant_mode", *COUNTS)
MEASURED, PEER = "silicon_tpot_ms", "peer_tpot_ms"
PREDICTED = "predicted_tpot_ms", "low_ms", "high_ms", "error", "unexplained_s"
# Measured over predicted time of 8 in 10 of 666 measured rows of served models. Bands made without the rows of the same
# model, GPU and engine held 80 % of these (`hold_left_out`).
BAND = (0.86, 1.24)
NOT_SPLIT = ("dp_size", "attention_dp_size", "pp_size")  # degrees that must be 1, where a file has them
DRAFTS = ("draft_tokens", "nextn")  # that must be 0, where a file has them
SYSTEMS = {
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200-SXM",
    "b200_sxm": "B200-HGX",
    "b300_sxm": "B300-HGX",
    "gb200": "GB200-NVL72",
    "gb300": "GB300-NVL72",
    "a100_sxm": "A100-80GB-SXM",
}
WEIGHTS = {  # formats of replicas by those of rows
    **dict.fromkeys(("fp8", "fp8_block", "fp8_static"), "fp8"),
    **dict.fromkeys(("bfloat16", "bf16", "float16"), "bf16"),
    **dict.fromkeys(("mxfp4", "w4a16_mxfp4", "w4a8_mxfp4_mxfp8"), "mxfp4"),
    **dict.fromkeys(("int4", "int4_wo"), "int4"),
    "nvfp4": "nvfp4",
}

CACHED_IN = "kvcache_quant_mode"  # optional: format of cached keys and values
CACHES = {"": None, **dict.fromkeys(("bfloat16", "bf16", "float16"), "bf16"), "fp8": "fp8"}


def read_served(path: str | Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file, by column. Raise `InputError` if a column of `NEEDED` is missing."""
    text = read_text(path, "give a .csv file of served models")
    reader = csv.DictReader(io.StringIO(text))
    missing = [name for name in NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise InputError(f"{str(path)!r} must have the columns {', '.join(NEEDED)}; it lacks {', '.join(missing)}.")
    rows = [{name: value or "" for name, value in row.items() if name is not None} for row in reader]
    if not rows:
        raise InputError(f"{str(path)!r} must have at least one row below its columns.")
    return rows


def predict_rows(rows: Iterable[Mapping[str, str]]) -> Iterator[dict[str, Any]]:
    """Yield every row with its prediction: `predicted_tpot_ms`; `low_ms` and `high_ms`, the ends of its band (`BAND`);
    `error` (predicted / measured - 1); `unexplained_s`, the `serving.host_s` with which a prediction that is too short
    equals the measurement; and `reason` where it cannot be said."""
    for row in rows:
        predicted: dict[str, Any] = dict.fromkeys(PREDICTED)
        reason = ""
        try:
            predicted |= _prediction(row)
        except InputError as mistake:
            reason = str(mistake)
        yield {**row, **predicted, "reason": reason}


def _prediction(row: Mapping[str, str]) -> dict[str, Any]:
    seconds, measured = _token_seconds(row), _measured_ms(row, MEASURED)
    own, (low, high) = float(units.to_ms(seconds.tpot_s)), BAND
    compared: tuple[float | None, ...] = None, None
    if measured is not None:
        unexplained_s = (units.ms(measured) - seconds.tpot_s) / seconds.passes
        compared = own / measured - 1, unexplained_s if unexplained_s > 0 else None
    return dict(zip(PREDICTED, (own, low * own, high * own, *compared), strict=True))


def _token_seconds(row: Mapping[str, str]) -> TokenSeconds:
    count = {name: _count(row, name) for name in COUNTS}
    for name in NOT_SPLIT:
        if row.get(name) and _count(row, name) != 1:
            raise InputError(f"{name} must be 1, since GPUs of a replica split attention by heads, got {row[name]}.")
    for name in DRAFTS:
        if row.get(name) and float(row[name]) != 0:
            raise InputError(f"{name} must be 0, since a replica drafts no tokens, got {row[name]}.")
    model = _replica(
        *(row["model_path"], row["system"], one_of("backend", row["backend"], ENGINES)),
        *(one_of("gemm_quant_mode", row["gemm_quant_mode"], WEIGHTS), count["tp_size"], count["moe_ep_size"]),
        CACHES[one_of(CACHED_IN, row.get(CACHED_IN) or "", CACHES)],
    )
    return token_seconds(model, count["batch_size"], count["isl"], count["osl"])


@functools.lru_cache(maxsize=512)
def _replica(
    name: str, system: str, engine: str, number: str, gpus: int, expert_gpus: int, cache: str | None
) -> ServedReplica:
    model = _model(name)
    weights = model.weights or WEIGHTS[number]
    return replica(model.architecture, _gpu(system), gpus, expert_gpus, weights, engine=engine, cache=cache)


@functools.lru_cache(maxsize=64)
def _model(name: str) -> PublicModel:
    return public_model(name)


def _gpu(system: str) -> Gpu:
    if system in SYSTEMS or system in GPUS:
        return get_gpu(SYSTEMS.get(system, system))
    return get_gpu(one_of("system", system, [*SYSTEMS, *GPUS]))


def _count(row: Mapping[str, str], name: str) -> int:
    """A whole number, which may be written as 4.0."""
    try:
        value = float(row[name])
    except ValueError:
        raise InputError(f"{name} must be a whole number of at least 1, got {row[name]!r:.80}.") from None
    return checks.whole(name, int(value) if value.is_integer() else value)  # type: ignore[arg-type]


def _measured_ms(row: Mapping[str, Any], name: str) -> float | None:
    """Milliseconds in a column; None where it is empty."""
    text = row.get(name) or ""
    try:
        return checks.positive(name, float(text)) if text else None
    except ValueError:
        raise InputError(f"{name} must be a number above 0, got {text!r:.80}.") from None


# -------------------------------------------------------------------------------------------------------------- errors
def summarize_served(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the errors of predicted rows by model, by GPU, by engine, by all three together, and overall.

    - `inside`: the fraction of measured rows within their bands; `left_out`, overall: as `hold_left_out`.
    - `median_error`, `mean_error`: of magnitudes; `bias`: the mean error; `unsaid`: rows without a prediction;
    - `peer_rows`, `peer_median`, `peer_mean`: rows with a peer's prediction, and its errors; `beside_median`,
      `beside_mean`: our errors in these rows.
    """
    by: dict[str, tuple[str, ...]] = {"model": ("model_path",), "GPU": ("system",), "engine": ("backend",)}
    by["model, GPU, engine"] = ("model_path", "system", "backend")
    groups = [
        (what, ", ".join(key), [row for row in rows if tuple(row[name] for name in names) == key])
        for what, names in by.items()
        for key in dict.fromkeys(tuple(row[name] for name in names) for row in rows)
    ]
    whole = _errors("all", "all", rows) | {"left_out": hold_left_out(rows)}
    return [*(_errors(*group) for group in groups), whole]


def _errors(what: str, group: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    known = [row for row in rows if row["error"] is not None]
    ours = np.array([row["error"] for row in known])
    beside = [row for row in known if row.get(PEER)]
    peer = np.array([float(row[PEER]) / float(row[MEASURED]) - 1 for row in beside])
    own = np.array([row["error"] for row in beside])
    return {
        **{"by": what, "group": group, "rows": len(rows), "unsaid": sum(bool(row["reason"]) for row in rows)},
        **{
            "inside": _of(np.mean, (ours >= 1 / BAND[1] - 1) & (ours <= 1 / BAND[0] - 1)),
        },
        **{
            "median_error": _of(np.median, abs(ours)),
            "mean_error": _of(np.mean, abs(ours)),
            "bias": _of(np.mean, ours),
        },
        **{"peer_rows": len(beside), "peer_median": _of(np.median, abs(peer)), "peer_mean": _of(np.mean, abs(peer))},
        **{"beside_median": _of(np.median, abs(own)), "beside_mean": _of(np.mean, abs(own))},
    }


def hold_left_out(rows: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the fraction of measured rows within bands made from the rows of other models, GPUs and engines; None if
    there are no others.

    A band holds `HELD` of the ratios of measured to predicted time that it is made from (split conformal, asymmetric).
    """
    known = [row for row in rows if row["error"] is not None]
    groups = [", ".join(row[name] for name in ("model_path", "system", "backend")) for row in known]
    ends_of = lambda ratios, _: np.quantile(ratios, [(1 - HELD) / 2, (1 + HELD) / 2])  # noqa: E731
    inside = holds_left_out([1 / (1 + row["error"]) for row in known], groups, ends_of)
    return None if inside is None else float(inside.mean())


def _of(mean: Any, values: Any) -> float | None:
    return float(mean(values)) if len(values) else None
