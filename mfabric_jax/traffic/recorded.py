"""Traffic read from a recording: a NumPy array with the five axes of `Tokens`, or a SmartMoE gate trace."""

import io
import lzma
import pathlib
import zipfile
from typing import NamedTuple

import numpy as np

from mfabric_jax import checks
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.tokens import AXES, Tokens
from mfabric_jax.workload import Workload

ARRAY_KEY = "tokens"
GATE_TRACE = "counts_layer_expert_iter_rank_mb.npy"
GATE_TRACE_AXES = ("layer", "expert", "iteration", "source_rank", "micro_batch")
ITERATIONS = "iterations.txt"
STEADY_RECORDS = (2011, 5001)
UNREADABLE = (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile)


class _Recording(NamedTuple):
    """`count` with its own axes; `number` [record] is what a record is called: its iteration, or its index."""

    count: np.ndarray
    axes: tuple[str, ...]
    number: np.ndarray


def recorded(
    path: str | pathlib.Path,
    workload: Workload,
    records: tuple[int, int] | None = None,
    iterations: int | None = None,
) -> Tokens:
    """Recorded selections, fitted to the workload.

    - `path`: `.npy`, or `.npz` with the key `tokens`, of axes [iteration, layer, micro_batch, source_rank,
      expert]; or a folder in the layout of the SmartMoE gate trace (github.com/thu-pacman/SmartMoE-AE repacked):
      `counts_layer_expert_iter_rank_mb.npy`, or the same with `.xz`, and `iterations.txt`.
    - `records`: first and last record to use, both included: by index for an array (default all), by recorded
      iteration number for a folder (default 2011 to 5001: before, the gate of that training is collapsed).
    - `iterations`: how many to return, default one per record; more than there are records read them cyclically.

    Layer l reads recorded layer l mod L; neighbouring experts are added up to the model's number; every source rank
    is scaled to `workload.selections`. Raises `InputError` for a file that is missing, unreadable or of other axes,
    for an empty range of records, and for source ranks or experts that do not fit the workload.
    """
    path = pathlib.Path(path)
    recording = _gate_trace(path) if path.is_dir() else _array(path)
    ranks = recording.count.shape[recording.axes.index("source_rank")]
    if ranks != workload.ep:
        raise InputError(f"ep of the workload must equal the {ranks} source ranks of {path}, got {workload.ep}.")
    chosen = _chosen(recording.number, records, path)
    wanted = len(chosen) if iterations is None else checks.whole("iterations", iterations)
    count = np.take(recording.count, chosen[np.arange(wanted) % len(chosen)], axis=recording.axes.index("iteration"))
    count = np.transpose(count, [recording.axes.index(axis) for axis in AXES])
    first, last = recording.number[chosen[[0, -1]]]
    folded = Tokens(count, f"recorded {path}, records {first} to {last}").fold_experts(workload.architecture.experts)
    layer = np.arange(workload.moe_layers) % folded.count.shape[1]
    return Tokens(folded.count[:, layer], folded.source).scaled_to(workload)


def _chosen(number: np.ndarray, records: tuple[int, int] | None, path: pathlib.Path) -> np.ndarray:
    """Indices of the records whose number is in the range asked for."""
    steady = STEADY_RECORDS if path.is_dir() else (number.min(), number.max())
    asked = steady if records is None else tuple(records)
    if len(asked) != 2:
        raise InputError(f"records must be a pair (first, last), got {records!r}.")
    first, last = asked
    chosen = np.flatnonzero((number >= first) & (number <= last))
    if not chosen.size:
        raise InputError(
            f"records must overlap what {path} holds, {number.min()} to {number.max()}, got {first} to {last}."
        )
    return chosen


def _array(path: pathlib.Path) -> _Recording:
    if path.suffix not in (".npy", ".npz"):
        raise InputError(f"trace must be a .npy or .npz file or a folder, got {path}.")
    if not path.is_file():
        raise InputError(f"trace must be an existing file or folder, got {path}.")
    count = _load(path)
    if count.ndim != len(AXES) or 0 in count.shape:
        raise InputError(f"trace {path} must have the axes [{', '.join(AXES)}], none empty, got shape {count.shape}.")
    return _Recording(count, AXES, np.arange(len(count)))


def _gate_trace(folder: pathlib.Path) -> _Recording:
    packed, plain = folder / f"{GATE_TRACE}.xz", folder / GATE_TRACE
    if not (packed.is_file() or plain.is_file()) or not (folder / ITERATIONS).is_file():
        raise InputError(f"trace folder must hold {GATE_TRACE}[.xz] and {ITERATIONS}, got {folder}.")
    count = _load(plain if plain.is_file() else packed)
    try:
        number = np.array((folder / ITERATIONS).read_text().split(), dtype=np.int64)
    except UNREADABLE as error:
        raise InputError(f"{folder / ITERATIONS} must hold one whole number per record.") from error
    if count.ndim != len(GATE_TRACE_AXES) or 0 in count.shape or count.shape[2] != len(number):
        raise InputError(
            f"trace {folder} must have the axes [{', '.join(GATE_TRACE_AXES)}] and {len(number)} iterations, "
            f"as {ITERATIONS} says, got shape {count.shape}."
        )
    return _Recording(count, GATE_TRACE_AXES, number)


def _load(path: pathlib.Path) -> np.ndarray:
    """The array in a file; a plain .npy is mapped, so that only the records used are read."""
    try:
        if path.suffix == ".xz":
            with lzma.open(path) as opened:
                return np.load(io.BytesIO(opened.read()), allow_pickle=False)
        loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            return _of_archive(loaded, path)
    except UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"trace {path} must be a readable NumPy file, got {type(error).__name__}.") from error


def _of_archive(archive: np.lib.npyio.NpzFile, path: pathlib.Path) -> np.ndarray:
    if ARRAY_KEY not in archive:
        raise InputError(f"trace {path} must have the key {ARRAY_KEY!r}, got {', '.join(archive) or 'none'}.")
    return archive[ARRAY_KEY]
