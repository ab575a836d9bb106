"""Reader of Megatron's router trace: one file per global rank, one JSON object per line and forward pass of a router.

Source: megatron/core/transformer/moe/router_trace.py of github.com/NVIDIA/Megatron-LM.
"""

import itertools
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Annotated, NamedTuple

import msgspec
import numpy as np

from mfabric_jax.apps.recordings.arrays import add_slices
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import parse_json
from mfabric_jax.support.unpacking import check_size
from mfabric_jax.support.unread import name_unread
from mfabric_jax.traffic.recording import Recording
from mfabric_jax.workload import RankLayout

BLOCK, STAGE = "decoder", "pre_dispatch"
HINT = "state the degrees of its job (mfabric traces convert: --model, or --tp, --ep, --dp, --pp, --order)"
Index = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
Expert = Annotated[int, msgspec.Meta(ge=0, lt=2**16)]


class _Where(msgspec.Struct):
    block: str = BLOCK
    stage: str = STAGE


KEY = re.compile(rb'"\w+"\s*:')


class _Line(msgspec.Struct):
    step: Index
    layer: Index
    rank: Index
    num_tokens: Index
    topk: Index
    top_indices: list[list[Expert]]


class _Pass(NamedTuple):
    step: int
    layer: int
    rank: int
    count: np.ndarray
    reached: np.ndarray


def router_trace(path: pathlib.Path, layout: RankLayout) -> Recording:
    """Read selections from a folder of `*.jsonl` files, or from one such file.

    A line has `step`, `layer`, `rank`, `num_tokens`, `topk`, `top_indices` [num_tokens][topk], and optionally `block`
    and `stage`. The reader skips empty lines, blocks other than "decoder" (multi-token prediction is not a layer of
    the model) and stages other than "pre_dispatch". Lines with the same step, layer and rank are micro-batches, in the
    order of file names and lines.

    Source ranks are those of one expert-parallel group: tensor-parallel slices are summed (`add_slices`), and
    data-parallel replicas become further micro-batches. Layers are ordered by pipeline stage, then by number. Numbers
    count from the first layer of the stage or of the model; with several `chunks`, only of the model.

    If `layout` does not state `experts`, their number is the largest index + 1, rounded up to a multiple of `ep`. If it
    does, tokens per server are counted too, for every number of servers that divides `ep`.

    Raise `InputError`, with file and line, for a malformed line; also for ranks, experts or layers that do not fit
    `layout`, and for unequal numbers of micro-batches.
    """
    batches: dict[tuple[int, int, int], list[_Pass]] = {}  # of every step, layer and rank
    passes, widest = 0, 0
    parts = [n for n in range(1, layout.ep + 1) if layout.experts and layout.ep % n == 0]
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    packed = sum(file.stat().st_size for file in files if file.is_file())
    for file in files:
        for each in _passes(file, layout.experts, parts):
            passes, widest = passes + 1, max(widest, len(each.count) + len(each.reached))
            check_size(path, each.count.itemsize * passes * widest, packed)
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
    shape = (len(steps), len(layers), replicas, most, layout.tp, layout.ep, columns)
    check_size(path, np.int64(0).itemsize * math.prod(shape), packed)
    filled = np.zeros(shape, np.int64)
    places = itertools.product(enumerate(steps), enumerate(layers), enumerate(ranks))
    for (s, step), (i, (stage, layer)), (r, rank) in places:
        if stage_of[rank] != stage:
            continue
        counts = batches.get((step, layer, rank), [])
        if len(counts) != most:
            raise InputError(
                f"router trace {path} must have equally many micro-batches for every step, layer and rank; "
                f"step {step}, layer {layer}, rank {rank} has {len(counts)}, another has {most}."
            )
        for m, each in enumerate(counts):
            row = filled[s, i, index["dp"][r] % replicas, m, index["tp"][r], index["ep"][r]]
            row[: len(each.count)], row[experts:] = each.count, each.reached
    every = add_slices(filled).reshape(len(steps), len(layers), replicas * most, layout.ep, columns)
    count, *known = np.split(every, np.cumsum([experts, *parts])[:-1] if parts else [], axis=-1)
    reached = dict(zip(parts, known, strict=True)) or None
    words = "Megatron router trace"
    number = np.array(steps)
    return Recording(count, number, str(path), words, experts=layout.experts, layout=layout, reached=reached)


def _check_ranks(path: pathlib.Path, layout: RankLayout, ranks: np.ndarray) -> None:
    """Check that the ranks form whole pipeline stages, or exactly one whole expert-parallel group."""
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
    if layout.experts is None:
        return -(-seen // layout.ep) * layout.ep
    if seen > layout.experts:
        raise InputError(
            f"experts of router trace {path} must be below the {layout.experts} of the model, got expert {seen - 1}; "
            f"read it with its own number of experts first (mfabric traces convert: --experts)."
        )
    return layout.experts


def _layers(path: pathlib.Path, layout: RankLayout, seen: set[tuple[int, int]]) -> list[tuple[int, int]]:
    if layout.chunks == 1:
        return sorted(seen)
    by_number = sorted(seen, key=lambda layer: layer[::-1])
    for (stage, layer), (other, next_layer) in itertools.pairwise(by_number):
        if layer == next_layer:
            raise InputError(
                f"layers of router trace {path} must be numbered over the whole model where a stage has "
                f"{layout.chunks} chunks, got layer {layer} on stages {stage} and {other}: its chunk is ambiguous."
            )
    return by_number


def _passes(file: pathlib.Path, experts: int | None, parts: list[int]) -> Iterator[_Pass]:
    where, line = msgspec.json.Decoder(_Where), msgspec.json.Decoder(_Line)
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    unread: dict[str, None] = {}
    try:
        opened = file.open("rb")
    except OSError as error:
        raise InputError(f"router trace {file} must be a readable file, got {type(error).__name__}.") from error
    with opened:
        for number, text in enumerate(opened, start=1):
            try:
                if not text.strip():
                    continue
                names = fields.decode(text)
                if len(KEY.findall(text)) != len(names):
                    parse_json(text)  # refuses a repeated key
                if where.decode(text) == _Where():
                    unread |= dict.fromkeys(names)
                    yield _pass(line.decode(text), experts, parts)
            except (msgspec.MsgspecError, ValueError, RecursionError) as error:
                known = ", ".join(_Line.__struct_fields__)
                sentence = f"line {number} of router trace {file} must be JSON of {known}, but: {error}."
                raise InputError(sentence) from None
    known = (*_Where.__struct_fields__, *_Line.__struct_fields__)
    name_unread(repr(str(file)), "fields", [name for name in unread if name not in known])


def _pass(line: _Line, experts: int | None, parts: list[int]) -> _Pass:
    if [len(row) for row in line.top_indices] != [line.topk] * line.num_tokens:
        raise msgspec.ValidationError(f"top_indices is not {line.num_tokens} rows (num_tokens) of {line.topk} (topk)")
    indices = np.array(line.top_indices, np.int64).reshape(line.num_tokens, line.topk)
    reached = [_tokens_for(indices, experts, groups) for groups in parts if experts]
    counts = np.bincount(indices.ravel()), np.concatenate(reached or [np.zeros(0, np.int64)])
    return _Pass(line.step, line.layer, line.rank, *counts)


def _tokens_for(indices: np.ndarray, experts: int, groups: int) -> np.ndarray:
    """Tokens with an expert in each of `groups` groups of neighbouring experts [groups]. Experts beyond the last are
    refused later."""
    chosen = np.zeros((len(indices), groups), bool)
    group = np.minimum(indices // (experts // groups), groups - 1)
    np.put_along_axis(chosen, group, True, axis=1)
    return chosen.sum(axis=0)
