"""The weight matrix of the mFabric simulator written, `.txt`, as `published.weight_matrix` reads it."""

import json
import pathlib

import numpy as np

from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.recording import Recording, Sources
from mfabric_jax.traffic.tokens import Tokens

ROW = 32768  # what a row adds up to: 8 x 4096 tokens


def save_weight_matrix(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write what each rank sends to each rank, whole or not at all; returns the path.

    All iterations, layers and micro-batches are added up; experts live in equal parts on as many ranks as send. Rows
    are scaled to whole numbers that add up to 32768, the largest remainders rounded up. `InputError` for another
    extension, for a recording without source ranks, experts that do not go into the ranks, and a rank that sends none.
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
        raise InputError(f"a weight matrix needs tokens of every source rank, rank {int(np.argmax(empty))} has none.")
    with replacing(path) as (part,):
        part.write_text(json.dumps(_whole(sent).tolist()) + "\n", encoding="utf-8")
    return path


def _whole(sent: np.ndarray) -> np.ndarray:
    """[ranks ranks] whole numbers in proportion, rows of `ROW`."""
    share = sent * (ROW / sent.sum(axis=1, keepdims=True))
    floor = np.floor(share).astype(np.int64)
    for row, part in zip(floor, share - floor, strict=True):
        row[np.argsort(-part, kind="stable")[: ROW - row.sum()]] += 1
    return floor
