"""Megatron's router trace: a JSON object a line for every forward pass of a router, a file per rank.

Source: megatron/core/transformer/moe/router_trace.py of github.com/NVIDIA/Megatron-LM.
"""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.recording import Recording

BLOCK = "decoder"
STAGE = "pre_dispatch"
Key = tuple[int, int, int]  # step, layer, rank


class _Pass(NamedTuple):
    """One line: where it belongs and its selections of each expert."""

    key: Key
    count: np.ndarray


def read(path: pathlib.Path) -> Recording:
    """Selections from a folder of `*.jsonl`, or from one such file.

    Fields of a line: `step`, `layer`, `rank`, `num_tokens`, `topk`, `top_indices` [num_tokens][topk], and
    optionally `block` and `stage`. Lines of another block than "decoder" (multi-token prediction is no layer of the
    model) and of another stage than "pre_dispatch" are skipped, and empty ones. Lines of the same step, layer and
    rank are its micro-batches, in the order in which they stand (files in the order of their names). Steps, layers
    and ranks are the sorted numbers that occur. The number of experts is not recorded: it is the largest index + 1,
    rounded up to a multiple of the ranks.

    `InputError` with file and line for what is no such line, and where a step, layer and rank has more or fewer
    micro-batches than the others.
    """
    found = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    passes: dict[Key, list[np.ndarray]] = {}
    for file in found:
        for one in _passes(file):
            passes.setdefault(one.key, []).append(one.count)
    if not passes:
        raise InputError(f"router trace {path} must have lines of block {BLOCK!r} and stage {STAGE!r}, got none.")
    return _arranged(path, passes)


def _arranged(path: pathlib.Path, passes: dict[Key, list[np.ndarray]]) -> Recording:
    """Passes as an array, if they fill one."""
    steps, layers, ranks = (sorted(set(numbers)) for numbers in zip(*passes, strict=True))
    most = max(map(len, passes.values()))
    experts = max(len(count) for batches in passes.values() for count in batches)
    experts = -(-experts // len(ranks)) * len(ranks)
    filled = np.zeros((len(steps), len(layers), most, len(ranks), experts), np.int64)
    for s, step in enumerate(steps):
        for i, layer in enumerate(layers):
            for r, rank in enumerate(ranks):
                batches = passes.get((step, layer, rank), [])
                if len(batches) != most:
                    raise InputError(
                        f"router trace {path} must have as many micro-batches of every step, layer and rank; step "
                        f"{step}, layer {layer}, rank {rank} has {len(batches)}, another one {most}."
                    )
                for m, count in enumerate(batches):
                    filled[s, i, m, r, : len(count)] = count
    return Recording(filled, np.array(steps), str(path), "Megatron router trace")


def _passes(file: pathlib.Path) -> Iterator[_Pass]:
    try:
        with file.open(encoding="utf-8") as opened:
            for line, text in enumerate(opened, start=1):
                if text.strip():
                    record = _object(text, f"line {line} of router trace {file}", whole=text.endswith("\n"))
                    if record.get("block", BLOCK) == BLOCK and record.get("stage", STAGE) == STAGE:
                        yield _pass(record, f"line {line} of router trace {file}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"router trace {file} must be a readable text file, got {type(error).__name__}.") from error


def _object(text: str, where: str, whole: bool) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except ValueError:
        cut = "" if whole else " (the file ends inside it: the run was stopped while writing, delete the line)"
        raise InputError(f"{where} must be a JSON object, got {text.strip()[:40]!r}...{cut}.") from None
    if not isinstance(record, dict):
        raise InputError(f"{where} must be a JSON object, got {text.strip()[:40]!r}.")
    return record


def _pass(record: dict[str, Any], where: str) -> _Pass:
    numbers = {field: record.get(field) for field in ("step", "layer", "rank", "num_tokens", "topk")}
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InputError(f"{field} in {where} must be a whole number of at least 0, got {value!r}.")
    tokens, topk = numbers["num_tokens"], numbers["topk"]
    try:
        indices = np.array(record["top_indices"], dtype=object if not tokens else None)
        good = indices.shape == (tokens, topk) or (not tokens and not indices.size)
    except (KeyError, ValueError):
        good = False
    if not good or (tokens and topk and (indices.dtype.kind != "i" or indices.min() < 0)):
        raise InputError(
            f"top_indices in {where} must be {tokens} rows (num_tokens) of {topk} expert numbers (topk), none below 0."
        )
    return _Pass((record["step"], record["layer"], record["rank"]), np.bincount(indices.astype(np.int64).ravel()))
