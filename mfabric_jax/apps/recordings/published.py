"""Readers of published recordings: SmartMoE's gate trace, OLMoE's expert counts, LAER-MoE's token analysis and
mFabric's weight matrix."""

import itertools
import json
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mfabric_jax.apps.recordings.arrays import load_arrays
from mfabric_jax.apps.recordings.tables import csv_lines
from mfabric_jax.checks import InputError
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.text_files import parse_json
from mfabric_jax.support.unread import name_unread
from mfabric_jax.traffic.recording import Recording, Sources, Targets
from mfabric_jax.traffic.tokens import Tokens

GATE_TRACE = "counts_layer_expert_iter_rank_mb.npy"
GATE_TRACE_AXES = ("layer", "expert", "iteration", "source_rank", "micro_batch")
ITERATIONS = "iterations.txt"
STEADY_RECORDS = (2011, 5001)  # in earlier records the gate has collapsed

OLMOE = "*expert_counts*.npz"
OLMOE_MODELS = ("olmoe", "mistral")
OLMOE_ARRAY = re.compile(rf"domains|({'|'.join(OLMOE_MODELS)})_(topk|top1|crosslayer|crosslayer_top1)")  # known arrays

LAER = "*token_analysis*.csv*"
LAER_COLUMNS = ("rank", "method", "model_name", "layer", "iter", "token_num")
LAER_METHOD = "FSDP"  # the other methods move experts between ranks
LAER_GROUP = 4
LARGEST = 2**53  # a float64 holds all whole numbers up to here


def gate_trace(folder: pathlib.Path) -> Recording:
    """Read SmartMoE's selections [layer, expert, iteration, rank, micro-batch] (github.com/thu-pacman/SmartMoE-AE)."""
    plain = folder / GATE_TRACE
    (count,) = load_arrays(plain if plain.is_file() else folder / f"{GATE_TRACE}.xz").values()
    try:
        number = np.array((folder / ITERATIONS).read_text().split(), dtype=np.int64)
    except (OSError, ValueError, OverflowError) as error:
        raise InputError(f"{folder / ITERATIONS} must hold one whole number per record.") from error
    if count.ndim != len(GATE_TRACE_AXES) or 0 in count.shape or count.shape[2] != len(number):
        raise InputError(
            f"trace {folder} must have the axes [{', '.join(GATE_TRACE_AXES)}] and {len(number)} iterations, "
            f"as {ITERATIONS} says, got shape {count.shape}."
        )
    count = np.transpose(count, (2, 0, 4, 3, 1))
    return Recording(count, number, str(folder), "SmartMoE gate trace", experts=count.shape[-1], steady=STEADY_RECORDS)


def olmoe(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> tuple[Recording, ...]:
    """Read OLMoE's selections [text domain, layer, expert] of each model (arXiv 2409.02060); empty for other arrays.

    A recording has one record, with one row per text domain. The file holds three of the models' 16 or 32 layers,
    numbered 0, 1, 2.
    """
    recordings = []
    for model in OLMOE_MODELS:
        count = arrays.get(f"{model}_topk")
        if count is None:
            continue
        if count.ndim != 3 or 0 in count.shape:
            raise InputError(f"{model}_topk of {path} must have the axes [domain, layer, expert], got {count.shape}.")
        count = count.swapaxes(0, 1)[None, :, None]
        kind: dict[str, Any] = {"name": model, "sources": Sources.DOMAINS, "experts": count.shape[-1]}
        recordings.append(Recording(count, np.zeros(1, int), str(path), "OLMoE expert counts", **kind))
    if recordings:
        name_unread(repr(str(path)), "arrays", [name for name in arrays if not OLMOE_ARRAY.fullmatch(name)])
    return tuple(recordings)


def laer(path: pathlib.Path) -> tuple[Recording, ...]:
    """Read LAER-MoE's loads of each model's ranks (arXiv 2602.11686); sources are unknown.

    Rank r is rank r % 4 of an expert-parallel group of 4, in replica r // 4; replicas become micro-batches. The model's
    name contains the number of experts (e8k2: 8).
    """
    rows = csv_lines(path)
    names = rows[0] if rows else []
    if not set(LAER_COLUMNS) <= set(names) or len(set(names)) < len(names):
        shown = " ".join(", ".join(names)[:200].split())
        raise InputError(f"trace {path} must have the columns {', '.join(LAER_COLUMNS)}, none twice, got {shown}.")
    name_unread(repr(str(path)), "columns", [name for name in names if name not in LAER_COLUMNS])
    cells: dict[str, list[list[int]]] = {}
    for line, row in enumerate((dict(itertools.zip_longest(names, row)) for row in rows[1:] if row), start=2):
        try:
            if row["method"] == LAER_METHOD:
                cell = [int(row[column]) for column in ("iter", "layer", "rank", "token_num")]
                if max(map(abs, cell)) > LARGEST:
                    raise ValueError(cell)
                cells.setdefault(str(row["model_name"]), []).append(cell)
        except (TypeError, ValueError) as error:
            raise InputError(f"line {line} of trace {path} must hold whole numbers, got {[*row.values()]}.") from error
    if not cells:
        raise InputError(f"trace {path} must have rows of method {LAER_METHOD}, got none.")
    return tuple(_positions(path, model, np.array(rows)) for model, rows in cells.items())


def _positions(path: pathlib.Path, model: str, rows: np.ndarray) -> Recording:
    axes = [np.unique(column, return_inverse=True) for column in rows[:, :3].T]
    shape = tuple(len(values) for values, _ in axes)
    cell = tuple(index for _, index in axes)
    once = len(rows) == math.prod(shape) == len(np.unique(rows[:, :3], axis=0))
    if not once or shape[2] % LAER_GROUP:
        raise InputError(
            f"trace {path} must have one row for every rank, layer and iteration of {model}, in groups of "
            f"{LAER_GROUP} ranks; got {len(rows)} rows for {' x '.join(map(str, shape))} (iterations, layers, ranks)."
        )
    count = np.zeros(shape, np.int64)
    count[cell] = rows[:, 3]
    experts = re.search(r"-e(\d+)k\d+$", model)
    kind: dict[str, Any] = {"name": model, "sources": Sources.UNKNOWN, "targets": Targets.RANKS}
    kind["experts"] = int(experts[1]) if experts else None
    groups = count.reshape(*shape[:2], shape[2] // LAER_GROUP, 1, LAER_GROUP)
    return Recording(groups, axes[0][0], str(path), "LAER-MoE token analysis", **kind)


# ---------------------------------------------------------------------------- the weight matrix of mFabric's simulator

ROW = 32768  # sum of a written row: 8 x 4096 tokens


def weight_matrix(path: pathlib.Path) -> Recording:
    """Read the mFabric simulator's matrix: which part of its tokens each rank dispatches to each rank.

    The text is a nested list [source rank][destination rank] of whole numbers with equal row sums. The recording has
    one record and one layer; the combine goes the opposite way. Raise `InputError` for any other content.
    """
    try:
        matrix = np.array(parse_json(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"weight matrix {path} must be one nested list of whole numbers.") from error
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.dtype.kind not in "iu" or matrix.min() < 0:
        raise InputError(
            f"weight matrix {path} must be [ep][ep] whole numbers of at least 0, got shape {list(matrix.shape)} "
            f"of {matrix.dtype}."
        )
    sums = matrix.sum(axis=1)
    if sums[0] == 0 or np.any(sums != sums[0]):
        row = int(np.argmax(sums != sums[0]))
        raise InputError(
            f"rows of weight matrix {path} must have equal sums above 0, got {sums[0]} (row 0) and {sums[row]} "
            f"(row {row})."
        )
    count = matrix[None, None, None]
    return Recording(count, np.zeros(1, int), str(path), "mFabric weight matrix", targets=Targets.RANKS)


def save_weight_matrix(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write what each rank sends to each rank as `.txt`, atomically; return the path.

    Iterations, layers and micro-batches are summed. The source ranks hold equal parts of the experts. Rows are scaled
    to whole numbers that sum to 32768; the largest remainders are rounded up. Raise `InputError` for another
    extension, a recording without source ranks, experts that the ranks do not divide, or a rank that sends nothing.
    """
    path = pathlib.Path(path)
    if path.suffix != ".txt":
        raise InputError(f"a weight matrix is saved as .txt, got {str(path)!r}.")
    if isinstance(tokens, Recording) and tokens.sources != Sources.RANKS:
        raise InputError(f"a weight matrix needs source ranks; {tokens.path} recorded {tokens.sources.value}.")
    count = np.asarray(tokens.count).sum(axis=(0, 1, 2), dtype=float)
    ranks, targets = count.shape
    if targets % ranks:
        raise InputError(f"a weight matrix needs a multiple of the {ranks} source ranks for experts, got {targets}.")
    sent = count.reshape(ranks, ranks, -1).sum(axis=2)
    if np.any(empty := sent.sum(axis=1) == 0):
        raise InputError(f"a weight matrix needs tokens of every source rank; rank {int(np.argmax(empty))} has none.")
    share = sent * (ROW / sent.sum(axis=1, keepdims=True))
    whole = np.floor(share).astype(np.int64)
    for row, part in zip(whole, share - whole, strict=True):
        row[np.argsort(-part, kind="stable")[: ROW - row.sum()]] += 1
    with replacing(path) as (part,):
        part.write_text(json.dumps(whole.tolist()) + "\n", encoding="utf-8")
    return path
