"""The weight matrix of the mFabric simulator: what part of its tokens each rank dispatches to each rank."""

import json
import pathlib

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.recording import Recording, Targets


def read(path: pathlib.Path) -> Recording:
    """One record of one layer from text: a nested list [source rank][destination rank] of whole numbers.

    Rows have equal sums (32768 in the published files). The matrix is that of the dispatch; combine runs against it.
    Destinations are ranks: what one receives is spread equally over its experts. `InputError` for a file that is no
    such list, and for a matrix that is not square, has unequal rows, or none but zeros.
    """
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        matrix = np.array(rows)
    except (OSError, ValueError) as error:
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
    return Recording(
        matrix[None, None, None], np.zeros(1, int), str(path), "mFabric weight matrix", targets=Targets.RANKS
    )
