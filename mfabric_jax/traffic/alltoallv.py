"""Write the bytes of one all-to-all for nccl-tests' `alltoallv_perf`, so that a prediction can be measured.

The file (`NCCL_TESTS_ALLTOALLV_MATRIX_FILE`) is a square matrix of whole bytes, a line for each source rank. The
program rounds up to 16 bytes. The diagonal is what a rank keeps; the program copies it too.
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
STEP = 16  # the program rounds up to multiples of this many bytes
MOST_RANKS = 4096  # most ranks of a file, whose text is then 300 MB


class ExchangeIndex(NamedTuple):
    """One all-to-all of a run, by numbers that start at 0; `block` counts only blocks with experts."""

    iteration: int = 0
    block: int = 0
    micro_batch: int = 0


def dispatch_matrix(workload: Workload, tokens: Tokens, which: ExchangeIndex) -> Num[np.ndarray, "R R"]:
    """Return the bytes [R R] from EP rank to EP rank in one dispatch. Raise `InputError` if it does not exist."""
    sent = sent_tokens(workload, tokens)
    for name, number, many in zip(ExchangeIndex._fields, which, sent.shape, strict=False):
        if whole(name, number, at_least=0) >= many:
            raise InputError(f"{name} must be below the {many} that the traffic has, got {number}.")
    return np.asarray(dispatched_bytes(workload, np.asarray(sent[tuple(which)], np.float64)))


def check_alltoallv(path: str | Path, ranks: int) -> None:
    """Raise `InputError` if the matrix of this many ranks cannot be written."""
    check_file("alltoallv", path, (SUFFIX,))
    if ranks > MOST_RANKS:
        raise InputError(f"alltoallv must be of at most {MOST_RANKS:,} ranks (ep), got {ranks:,}.")


def write_alltoallv(demand: Num[np.ndarray, "R R"], path: str | Path) -> Path:
    """Write the bytes from rank to rank, rounded to whole bytes; return the path."""
    check_alltoallv(path, len(demand))
    lines = (" ".join(map(str, row)) for row in np.rint(demand).astype(np.int64).tolist())
    with replacing(path := Path(path)) as (part,):
        part.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def buffer_bytes(demand: Num[np.ndarray, "R R"]) -> int:
    """Return the bytes for the program's -b and -e: the largest row or column sum, with each cell rounded up."""
    cells = -(-np.rint(demand).astype(np.int64) // STEP) * STEP
    return int(max(cells.sum(axis=0).max(), cells.sum(axis=1).max()))
