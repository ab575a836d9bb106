"""Recordings that are one array: our own tokens, arrays of any named axes, Megatron's tokens per expert, expert loads.

Files: `.npy`, `.npz`, `.npy.xz`, `.json`, and `.pt`, which is read without torch.
"""

import io
import json
import lzma
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError
from mfabric_jax.text_files import parsed_json, value_in
from mfabric_jax.traffic import expert_loads
from mfabric_jax.traffic.named_axes import AXES, arranged, axes_of, guessed, kinds
from mfabric_jax.traffic.recording import Recording, Sources, Targets, add_slices
from mfabric_jax.traffic.tokens import Tokens
from mfabric_jax.traffic.torch_file import read_torch

OWN, META, NAMES = "tokens", "meta", "axes"
SUFFIXES = (".npy", ".npz", ".pt", ".json", ".xz")
SCHEMA_VERSION = 1
LARGEST_JSON = 1 << 30  # bytes

_SLICES = ("tp", "ep", "expert")
_LOADS = (("layer", "expert"), ("iteration", "layer", "expert"))


class _Format(NamedTuple):
    """One key: words, the axes that are read (none: named, or guessed), and whether a serving engine fills a buffer."""

    words: str
    axes: tuple[tuple[str, ...], ...] = ()
    buffered: bool = False


_FORMATS: dict[str, _Format] = {
    "num_global_tokens_per_expert": _Format(
        "Megatron tokens per expert", (_SLICES, ("layer", *_SLICES), ("iteration", "layer", *_SLICES))
    ),
    "logical_count": _Format("SGLang expert counts", _LOADS, buffered=True),
    "physical_count": _Format("SGLang expert counts", _LOADS, buffered=True),
    "expert_load_window": _Format("vLLM expert load", _LOADS, buffered=True),
    "expert_load_pass": _Format("vLLM expert load", _LOADS, buffered=True),
    "weight": _Format("EPLB expert weights", (("layer", "expert"),)),
    "counts": _Format("counts"),
    OWN: _Format("tokens"),
}


def load_arrays(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """Every array of a file by its key; a bare array has the key that is in the file's name, else `tokens`.

    A plain `.npy` is mapped, so that only the records used are read. `InputError` for a file that cannot be read, and
    for what is no array.
    """
    loaded: Any = read_torch(path) if path.suffix == ".pt" else _loaded(path)
    if isinstance(loaded, np.ndarray):
        return {next((key for key in _FORMATS if key in path.name), OWN): loaded}
    if not isinstance(loaded, dict):
        raise InputError(f"trace {path} must hold an array or arrays by name, got {type(loaded).__name__}.")
    if expert_loads.RECORDS in loaded:
        loaded = loaded | expert_loads.of_passes(path, [loaded])
    arrays = {str(key): value for key, value in loaded.items() if isinstance(value, np.ndarray)}
    if wrong := [key for key in loaded if key in _FORMATS and key not in arrays]:
        raise InputError(
            f"{wrong[0]} of trace {path} must be an array of numbers, got {type(loaded[wrong[0]]).__name__}."
        )
    return arrays


def load_ranks(folder: pathlib.Path, files: Sequence[pathlib.Path]) -> Mapping[str, np.ndarray]:
    """The counts of the files that every rank of a serving engine wrote, added up."""
    dumps = [read_torch(file) for file in files]
    if not all(isinstance(dump, dict) and expert_loads.RECORDS in dump for dump in dumps):
        raise InputError(f"trace folder {folder} must hold one recording; name one of its .pt files.")
    return expert_loads.of_passes(folder, dumps)


def _loaded(path: pathlib.Path) -> Any:
    """An array, or what a file holds by name."""
    try:
        if path.suffix == ".json":
            return _of_json(path)
        if path.suffix == ".xz":
            with lzma.open(path) as opened:
                loaded = np.load(io.BytesIO(opened.read()), allow_pickle=False)
        else:
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return {key: loaded[key] for key in loaded}
        return loaded
    except InputError:
        raise
    except Exception as error:  # whatever the bytes make of an array
        why = "but it is cut off or of another kind"
        if isinstance(error, MemoryError):
            why = "but it says to be larger than memory"
        elif isinstance(error, OSError) and error.strerror:
            why = f"but it cannot be opened ({error.strerror})"
        elif "pickle" in str(error) or "Python objects" in str(error):
            why = "but it holds Python objects; save an array of numbers"
        raise InputError(f"trace {path} must be a readable NumPy file, {why}.") from error


def _of_json(path: pathlib.Path) -> Any:
    """A nested list as an array, or one by name."""
    if path.stat().st_size > LARGEST_JSON:
        raise InputError(f"trace {path} must be at most {LARGEST_JSON:,} bytes of JSON; save its arrays as .npz.")
    value = value_in(path.read_bytes(), repr(str(path)), "counts")
    named = value if isinstance(value, dict) else {OWN: value}
    try:
        arrays = {key: np.array(each) for key, each in named.items() if isinstance(each, list | str)}
    except ValueError as error:
        raise InputError(f"trace {path} must hold lists of equal lengths, got others.") from error
    return arrays if isinstance(value, dict) else arrays.get(OWN, {})


def array_recording(path: pathlib.Path, arrays: Mapping[str, np.ndarray], axes: str | None = None) -> Recording:
    """The recording in the arrays of a file.

    - `tokens` or `counts`, or the only array: [layer, expert], or [iteration, layer, micro-batch, source, expert], or
      the axes that the entry `axes` names; with `meta` beside it if `save_tokens` wrote it.
    - `num_global_tokens_per_expert` [tp, ep, expert], or [layer, ...] or [iteration, layer, ...]: tokens that each
      rank of Megatron's token dispatcher routes; TP slices are added up (`add_slices`).
    - `logical_count`, `physical_count`, `expert_load_window` [iteration, layer, expert], `weight` [layer, expert]:
      loads without sources; of physical experts those of one logical expert are added up (`expert_loads`).
    - `axes`: names of the axes, whatever the key.

    `InputError` for other keys or axes, and for what is no whole number or real.
    """
    key = next((key for key in (OWN, *_FORMATS) if key in arrays), None)
    if key is None and len(arrays) == 1:
        (key,) = arrays
    if key is None:
        others = ", ".join(key for key in _FORMATS if key != OWN)
        raise InputError(
            f"trace {path} must have the key {OWN!r}, got {', '.join(arrays) or 'none'}; also read: {others}."
        )
    known, count = _FORMATS.get(key, _FORMATS["counts"]), np.asarray(arrays[key])
    if count.dtype.kind not in "iuf":
        raise InputError(f"tokens of trace {path} must be integers or reals, got dtype {count.dtype}.")
    if count.dtype == np.float16:
        count = count.astype(np.float32)  # sums are larger than it can hold
    if key == OWN and META in arrays and axes is None:
        return _own(path, count, arrays[META])
    if axes is not None or NAMES in arrays or not known.axes:
        return _named(path, count, known.words, axes if axes is not None else arrays.get(NAMES))
    if count.ndim not in map(len, known.axes) or 0 in count.shape:
        allowed = " or ".join(f"[{', '.join(names)}]" for names in known.axes)
        raise InputError(f"trace {path} must have the axes {allowed}, none empty, got shape {count.shape}.")
    with_sources, origin = known.axes[0] == _SLICES, ""
    if known.buffered:
        count, origin = expert_loads.filled(path, expert_loads.logical(path, count, arrays))
    count = add_slices(count)[..., None, :, :] if with_sources else count[..., None, None, :]
    count = count.reshape((1,) * (5 - count.ndim) + count.shape)
    sources = Sources.RANKS if with_sources else Sources.UNKNOWN
    about: dict[str, Any] = {"sources": sources, "experts": count.shape[-1], "origin": origin}
    return Recording(count, np.arange(len(count)), str(path), known.words, **about)


def _named(path: pathlib.Path, count: np.ndarray, words: str, axes: Any) -> Recording:
    """An array whose axes are named, or plain to see."""
    if axes is None:
        names = guessed(path, count.shape)
    else:
        names = axes_of(axes if isinstance(axes, str) else ",".join(map(str, np.ravel(axes).tolist())))
    count, known = arranged(path, count, names), kinds(names)
    experts = count.shape[-1] if known["targets"] is Targets.EXPERTS else None
    about: dict[str, Any] = {**known, "experts": experts}
    return Recording(count, np.arange(len(count)), str(path), words, **about)


def _own(path: pathlib.Path, count: np.ndarray, packed: np.ndarray) -> Recording:
    count = arranged(path, count, AXES)
    try:
        meta = parsed_json(str(packed[()]))
        version = int(meta["schema_version"])
        known: dict[str, Any] = {
            "sources": Sources(meta["sources"]),
            "targets": Targets(meta["targets"]),
            "experts": None if meta["experts"] is None else int(meta["experts"]),
            "origin": str(meta["source"]),
        }
        number = np.array(meta["records"], dtype=np.int64)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise InputError(
            f"{META} of trace {path} must be the JSON that save_tokens wrote, got {packed!s:.80}."
        ) from error
    if version > SCHEMA_VERSION:
        raise InputError(f"schema_version of trace {path} must be at most {SCHEMA_VERSION}, got {version}.")
    if number.shape != (len(count),):
        raise InputError(f"records of trace {path} must be one number for each of {len(count)} iterations.")
    return Recording(count, number, str(path), _FORMATS[OWN].words, **known)


def save_tokens(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write tokens or a recording as `.npz`, whole or not at all; returns the path.

    Keys: `tokens` [iteration, layer, micro_batch, source_rank, expert], and `meta`, a JSON text: `schema_version`,
    `source` (what this is), `records` (number of each iteration), `sources` and `targets` (what the last two axes
    are), `experts`. `InputError` for another extension, for counts that are negative, not finite or no numbers, and
    for what the operating system refuses.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise InputError(f"a trace is saved as .npz, got {str(path)!r}.")
    source = tokens.source if isinstance(tokens, Tokens) else f"{tokens.format}: {tokens.words}"
    if isinstance(tokens, Tokens):
        tokens = Recording(tokens.count, np.arange(len(tokens.count)), "", "", experts=tokens.count.shape[-1])
    tokens.tokens()
    meta = {
        "schema_version": SCHEMA_VERSION,
        "source": source,
        "records": tokens.number.tolist(),
        "sources": tokens.sources.value,
        "targets": tokens.targets.value,
        "experts": tokens.experts,
    }
    with replacing(path) as (part,), part.open("wb") as opened:
        np.savez_compressed(opened, allow_pickle=False, **{OWN: tokens.count, META: np.array(json.dumps(meta))})
    return path
