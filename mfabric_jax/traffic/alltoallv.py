"""Writes the bytes of one all-to-all as nccl-tests' `alltoallv_perf` reads them, to measure what is predicted.

A square matrix of whole bytes, a line for each source rank (`NCCL_TESTS_ALLTOALLV_MATRIX_FILE`); the program rounds up
to 16 bytes. The diagonal is what a rank keeps, which the program copies too.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Num

from mfabric_jax.checks import InputError, whole
from mfabric_jax.support.atomic import check_file, replacing
from mfabric_jax.traffic.dispatch import dispatched_bytes, sent_tokens
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.workload import Workload

SUFFIX = ".txt"
STEP = 16  # bytes to which the program rounds
MOST_RANKS = 4096  # of a file: its text is 300 MB then


class OneOf(NamedTuple):
    """Which all-to-all of a run: numbers from 0 on; `block` counts blocks with experts."""

    iteration: int = 0
    block: int = 0
    micro_batch: int = 0


def one_dispatch(workload: Workload, tokens: Tokens, which: OneOf) -> Num[np.ndarray, "R R"]:
    """Bytes that every EP rank dispatches to every EP rank in one all-to-all. `InputError` for one that lacks."""
    sent = sent_tokens(workload, tokens)
    for name, at, many in zip(OneOf._fields, which, sent.shape, strict=False):
        if whole(name, at, at_least=0) >= many:
            raise InputError(f"{name} must be below the {many} that the traffic has, got {at}.")
    return np.asarray(dispatched_bytes(workload, np.asarray(sent[tuple(which)], np.float64)))


def check_alltoallv(path: str | Path, ranks: int) -> None:
    """`InputError` where the matrix of so many ranks could not be written."""
    check_file("alltoallv", path, (SUFFIX,))
    if ranks > MOST_RANKS:
        raise InputError(f"alltoallv must be of at most {MOST_RANKS:,} ranks (ep), got {ranks:,}.")


def write_alltoallv(demand: Num[np.ndarray, "R R"], path: str | Path) -> Path:
    """Write bytes from rank to rank, rounded to whole ones; returns the path."""
    check_alltoallv(path, len(demand))
    lines = (" ".join(map(str, row)) for row in np.rint(demand).astype(np.int64).tolist())
    with replacing(path := Path(path)) as (part,):
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def buffer_bytes(demand: Num[np.ndarray, "R R"]) -> int:
    """What -b and -e of the program must be: the largest line of the matrix, each cell rounded up."""
    cells = -(-np.rint(demand).astype(np.int64) // STEP) * STEP
    return int(max(cells.sum(axis=0).max(), cells.sum(axis=1).max()))
