"""Files that place ranks on GPUs."""

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.text_files import read_mapping


def gpus_in(path: str, ranks: int, gpus: int) -> np.ndarray:
    """Read the GPU of every rank [R] from a .json file `{"gpus": [GPU of rank 0, of rank 1, ...]}`.

    Raise `InputError` unless they are `ranks` different GPUs, numbered below `gpus`.
    """
    data = read_mapping(path, "the GPUs of ranks", ".json")
    for name in data:
        one_of(f"field of {path!r}", name, ("gpus",))
    listed = data.get("gpus")
    if not isinstance(listed, list) or not all(type(gpu) is int and 0 <= gpu < gpus for gpu in listed):
        raise InputError(f"gpus of {path!r} must be a list of whole numbers from 0 to {gpus - 1}, got {listed!r:.80}.")
    if len(listed) != ranks or len(set(listed)) < ranks:
        raise InputError(f"gpus of {path!r} must be {ranks} different GPUs, one per rank, got {len(listed)}.")
    return np.array(listed, np.int64)
