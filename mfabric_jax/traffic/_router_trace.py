"""Megatron's router trace: a JSON object a line for every forward pass of a router, a file per global rank.

Source: megatron/core/transformer/moe/router_trace.py of github.com/NVIDIA/Megatron-LM.
"""

import itertools
import json
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.text_files import parsed_json
from mfabric_jax.traffic.recording import Recording, add_slices
from mfabric_jax.workload import RankLayout

BLOCK = "decoder"
STAGE = "pre_dispatch"
LARGEST = 2**31  # of steps, layers, ranks
MOST_EXPERTS = 2**16
HINT = "name the degrees of its job (mfabric traces convert: --model, or --tp, --ep, --dp, --pp, --order)"


class _Pass(NamedTuple):
    """One line: where it belongs, its selections of each expert, and its tokens for groups of experts."""

    step: int
    layer: int
    rank: int
    count: np.ndarray
    reached: np.ndarray


def router_trace(path: pathlib.Path, layout: RankLayout) -> Recording:
    """Selections from a folder of `*.jsonl`, or from one such file.

    - `layout`: what the global ranks are. Without `experts`, these are the largest number that occurs + 1, rounded up
      to a multiple of `ep`.

    Fields of a line: `step`, `layer`, `rank`, `num_tokens`, `topk`, `top_indices` [num_tokens][topk], and
    optionally `block` and `stage`. Lines of another block than "decoder" (multi-token prediction is no layer of the
    model) and of another stage than "pre_dispatch" are skipped, and empty ones. Lines of the same step, layer and
    rank are its micro-batches, in the order in which they stand (files in the order of their names).

    The source ranks are those of one expert-parallel group. Tensor-parallel slices are added up (`add_slices`);
    data-parallel replicas stand one after the other as further micro-batches. Layers are in order of their pipeline
    stage and then of their number, so it may count from the first layer of the stage or of the model. With several
    `chunks` it must count from the first layer of the model. Where `layout` says how many experts there are, tokens
    for each server are counted, too, for all numbers of servers that divide `ep`.

    `InputError` with file and line for what is no such line, for ranks, experts and layers that do not fit `layout`,
    and where a step, layer and rank has more or fewer micro-batches than the others.
    """
    batches: dict[tuple[int, int, int], list[_Pass]] = {}  # of every step, layer and rank
    parts = [n for n in range(1, layout.ep + 1) if layout.experts and layout.ep % n == 0]
    for file in sorted(path.glob("*.jsonl")) if path.is_dir() else [path]:
        for each in _passes(file, layout.experts, parts):
            batches.setdefault((each.step, each.layer, each.rank), []).append(each)
    if not batches:
        raise InputError(f"router trace {path} must have lines of block {BLOCK!r} and stage {STAGE!r}, got none.")
    steps, ranks = (sorted({key[axis] for key in batches}) for axis in (0, 2))
    _check_ranks(path, layout, np.array(ranks))
    experts = _experts(path, layout, max(len(each.count) for passes in batches.values() for each in passes))
    index = layout.index(np.array(ranks))
    stage_of = dict(zip(ranks, index["pp"].tolist(), strict=True))
    layers = _layers(path, layout, {(stage_of[rank], layer) for _, layer, rank in batches})
    replicas, most = len(np.unique(index["dp"])), max(map(len, batches.values()))
    columns = experts + sum(parts)
    filled = np.zeros((len(steps), len(layers), replicas, most, layout.tp, layout.ep, columns), np.int64)
    places = itertools.product(enumerate(steps), enumerate(layers), enumerate(ranks))
    for (s, step), (i, (stage, layer)), (r, rank) in places:
        if stage_of[rank] != stage:
            continue
        counts = batches.get((step, layer, rank), [])
        if len(counts) != most:
            raise InputError(
                f"router trace {path} must have as many micro-batches of every step, layer and rank; step {step}, "
                f"layer {layer}, rank {rank} has {len(counts)}, another one {most}."
            )
        for m, each in enumerate(counts):
            row = filled[s, i, index["dp"][r] % replicas, m, index["tp"][r], index["ep"][r]]
            row[: len(each.count)], row[experts:] = each.count, each.reached
    every = add_slices(filled).reshape(len(steps), len(layers), replicas * most, layout.ep, columns)
    count, *known = np.split(every, np.cumsum([experts, *parts])[:-1] if parts else [], axis=-1)
    facts: dict[str, Any] = {"experts": layout.experts, "layout": layout}
    facts |= {"reached": dict(zip(parts, known, strict=True)) or None}
    return Recording(count, np.array(steps), str(path), "Megatron router trace", **facts)


def _check_ranks(path: pathlib.Path, layout: RankLayout, ranks: np.ndarray) -> None:
    """Every pipeline stage that occurs is whole, or there is one whole expert-parallel group alone."""
    degrees = f"{layout.tp} x {layout.ep} x {layout.dp} x {layout.pp}"
    product = f"tp x ep x dp x pp = {degrees} = {layout.ranks}"
    if ranks[-1] >= layout.ranks:
        raise InputError(f"global ranks of router trace {path} must be below {product}, got {ranks[-1]}; {HINT}.")
    here, every = layout.index(ranks), layout.index(np.arange(layout.ranks))
    wanted = np.isin(every["pp"], here["pp"])
    if len({*zip(here["dp"], here["pp"], strict=True)}) == 1:
        wanted &= every["dp"] == here["dp"][0]
    missing = np.setdiff1d(np.flatnonzero(wanted), ranks)
    if missing.size:
        raise InputError(
            f"router trace {path} must hold whole pipeline stages, or one expert-parallel group of {product} ranks, "
            f"but has no rank {missing[0]}; {HINT}."
        )


def _experts(path: pathlib.Path, layout: RankLayout, seen: int) -> int:
    """How many experts there are, of which the first `seen` may occur."""
    if layout.experts is None:
        return -(-seen // layout.ep) * layout.ep
    if seen > layout.experts:
        raise InputError(
            f"experts of router trace {path} must be below the {layout.experts} of the model, got expert {seen - 1}; "
            f"read it with its own number of experts first (mfabric traces convert: --experts)."
        )
    return layout.experts


def _layers(path: pathlib.Path, layout: RankLayout, found: set[tuple[int, int]]) -> list[tuple[int, int]]:
    """(stage, layer number) of every layer, in the order in which tokens pass them."""
    if layout.chunks == 1:
        return sorted(found)
    by_number = sorted(found, key=lambda layer: layer[::-1])
    for (stage, layer), (other, next_layer) in itertools.pairwise(by_number):
        if layer == next_layer:
            raise InputError(
                f"layers of router trace {path} must be numbered over the whole model where a stage has "
                f"{layout.chunks} chunks, got layer {layer} on stages {stage} and {other}: its chunk cannot be told."
            )
    return by_number


def _passes(file: pathlib.Path, experts: int | None, parts: list[int]) -> Iterator[_Pass]:
    try:
        with file.open(encoding="utf-8") as opened:
            for number, text in enumerate(opened, start=1):
                if text.strip():
                    where = f"line {number} of router trace {file}"
                    record = _object(text, where)
                    if record.get("block", BLOCK) == BLOCK and record.get("stage", STAGE) == STAGE:
                        yield _pass(record, where, experts, parts)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"router trace {file} must be a readable text file, got {type(error).__name__}.") from error


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        record = parsed_json(text)
    except json.JSONDecodeError:
        whole = text.endswith("\n")
        cut = "" if whole else " (the file ends inside it: the run was stopped while writing, delete the line)"
        raise InputError(f"{where} must be a JSON object, got {text.strip()[:40]!r}...{cut}.") from None
    except (ValueError, RecursionError) as error:
        why = error if isinstance(error, ValueError) else "it is nested too deeply"
        raise InputError(f"{where} must be a JSON object, but {why}.") from None
    if not isinstance(record, dict):
        raise InputError(f"{where} must be a JSON object, got {text.strip()[:40]!r}.")
    return record


def _pass(record: dict[str, Any], where: str, experts: int | None, parts: list[int]) -> _Pass:
    numbers = {field: record.get(field) for field in ("step", "layer", "rank", "num_tokens", "topk")}
    for field, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < LARGEST:
            raise InputError(
                f"{field} in {where} must be a whole number of at least 0 and below 2^31, got {value!r:.80}."
            )
    tokens, topk = numbers["num_tokens"], numbers["topk"]
    try:
        indices = np.array(record["top_indices"], dtype=object if not tokens else None)
        good = indices.shape == (tokens, topk) or (not tokens and not indices.size)
    except (KeyError, ValueError, OverflowError):
        good = False
    if not good or (tokens and topk and (indices.dtype.kind != "i" or indices.min() < 0)):
        raise InputError(
            f"top_indices in {where} must be {tokens} rows (num_tokens) of {topk} expert numbers (topk), none below 0."
        )
    if indices.size and int(indices.max()) >= MOST_EXPERTS:
        raise InputError(f"top_indices in {where} must be below {MOST_EXPERTS}, got {indices.max()}.")
    indices = indices.astype(np.int64).reshape(len(indices), -1 if indices.size else 0)
    reached = [_tokens_for(indices, experts, groups) for groups in parts if experts]
    counts = np.bincount(indices.ravel()), np.concatenate(reached or [np.zeros(0, np.int64)])
    return _Pass(record["step"], record["layer"], record["rank"], *counts)


def _tokens_for(indices: np.ndarray, experts: int, groups: int) -> np.ndarray:
    """How many tokens [n] have an expert in each of so many groups of neighbours; experts beyond the last are told
    later."""
    chosen = np.zeros((len(indices), groups), bool)
    at = np.minimum(indices // (experts // groups), groups - 1)
    np.put_along_axis(chosen, at, True, axis=1)
    return chosen.sum(axis=0)
