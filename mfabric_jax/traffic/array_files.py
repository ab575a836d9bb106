"""Recordings that are one array: our own tokens, Megatron's tokens per expert, SGLang's and EPLB's counts.

Files: `.npy`, `.npz`, `.npy.xz`, and `.pt` where torch is installed.
"""

import io
import json
import lzma
import pathlib
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.recording import Recording, Sources, Targets, add_slices
from mfabric_jax.traffic.tokens import AXES, Tokens

UNREADABLE = (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile)
OWN, META = "tokens", "meta"
SCHEMA_VERSION = 1

_EXPERTS = ("tp", "ep", "expert")
_FORMATS: dict[str, tuple[str, tuple[tuple[str, ...], ...]]] = {  # by key: words, and the axes that are read
    "num_global_tokens_per_expert": (
        "Megatron tokens per expert",
        (_EXPERTS, ("layer", *_EXPERTS), ("iteration", "layer", *_EXPERTS)),
    ),
    "logical_count": ("SGLang expert counts", (("iteration", "layer", "expert"),)),
    "weight": ("EPLB expert weights", (("layer", "expert"),)),
    OWN: ("tokens", (AXES,)),
}


def load_arrays(path: pathlib.Path) -> Mapping[str, np.ndarray]:
    """Every array of a file by its key; a bare array has the key that is in the file's name, else `tokens`.

    A plain `.npy` is mapped, so that only the records used are read. `InputError` for a file that cannot be read.
    """
    try:
        if path.suffix == ".pt":
            loaded: Any = _torch(path)
        elif path.suffix == ".xz":
            with lzma.open(path) as opened:
                loaded = np.load(io.BytesIO(opened.read()), allow_pickle=False)
        else:
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.lib.npyio.NpzFile):
            with loaded:
                return {key: loaded[key] for key in loaded}
    except UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        why = "but it is cut off or of another kind"
        if isinstance(error, OSError) and error.strerror:
            why = f"but it cannot be opened ({error.strerror})"
        elif "pickle" in str(error) or "Python objects" in str(error):
            why = "but it holds Python objects; save an array of numbers"
        raise InputError(f"trace {path} must be a readable NumPy file, {why}.") from error
    if isinstance(loaded, Mapping):
        return loaded
    return {next((key for key in _FORMATS if key in path.name), OWN): loaded}


def _torch(path: pathlib.Path) -> np.ndarray | dict[str, np.ndarray]:
    """The tensors of a `.pt` file; nothing else in it is unpickled."""
    try:
        import torch  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            f"trace {path} needs torch, which is not installed; or save its arrays with numpy.savez."
        ) from None
    try:
        loaded: Any = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch names no error of its own for a file that is none of its own
        raise InputError(f"trace {path} must be a readable torch file, got {type(error).__name__}.") from error
    if isinstance(loaded, torch.Tensor):
        return loaded.numpy()
    return {str(key): value.numpy() for key, value in loaded.items() if isinstance(value, torch.Tensor)}


def array_recording(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> Recording:
    """The recording in the arrays of a file.

    - `tokens` [iteration, layer, micro_batch, source_rank, expert], with `meta` beside it if `save_tokens` wrote it.
    - `num_global_tokens_per_expert` [tp, ep, expert], or [layer, ...] or [iteration, layer, ...]: tokens that each
      rank of Megatron's token dispatcher routes; TP slices are added up (`add_slices`).
    - `logical_count` [iteration, layer, expert], `weight` [layer, expert]: expert loads without sources.

    `InputError` for other keys or axes.
    """
    key = next((key for key in (OWN, *_FORMATS) if key in arrays), None)
    if key is None:
        others = ", ".join(key for key in _FORMATS if key != OWN)
        raise InputError(
            f"trace {path} must have the key {OWN!r}, got {', '.join(arrays) or 'none'}; also read: {others}."
        )
    (words, axes), count = _FORMATS[key], arrays[key]
    if count.ndim not in map(len, axes) or 0 in count.shape:
        allowed = " or ".join(f"[{', '.join(names)}]" for names in axes)
        raise InputError(f"trace {path} must have the axes {allowed}, none empty, got shape {count.shape}.")
    if key == OWN:
        return _own(path, count, arrays.get(META))
    with_sources = axes[0] == _EXPERTS
    count = add_slices(count)[..., None, :, :] if with_sources else count[..., None, None, :]
    count = count.reshape((1,) * (5 - count.ndim) + count.shape)
    sources = Sources.RANKS if with_sources else Sources.UNKNOWN
    return Recording(count, np.arange(len(count)), str(path), words, sources=sources, experts=count.shape[-1])


def _own(path: pathlib.Path, count: np.ndarray, packed: np.ndarray | None) -> Recording:
    words = _FORMATS[OWN][0]
    if packed is None:
        return Recording(count, np.arange(len(count)), str(path), words, experts=count.shape[-1])
    try:
        meta = json.loads(str(packed[()]))
        version = int(meta["schema_version"])
        known: dict[str, Any] = {
            "sources": Sources(meta["sources"]),
            "targets": Targets(meta["targets"]),
            "experts": None if meta["experts"] is None else int(meta["experts"]),
            "origin": str(meta["source"]),
        }
        number = np.array(meta["records"], dtype=np.int64)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{META} of trace {path} must be the JSON that save_tokens wrote, got {packed!s:.80}."
        ) from error
    if version > SCHEMA_VERSION:
        raise InputError(f"schema_version of trace {path} must be at most {SCHEMA_VERSION}, got {version}.")
    if number.shape != (len(count),):
        raise InputError(f"records of trace {path} must be one number for each of {len(count)} iterations.")
    return Recording(count, number, str(path), words, **known)


def save_tokens(tokens: Tokens | Recording, path: str | pathlib.Path) -> pathlib.Path:
    """Write tokens or a recording as `.npz`, whole or not at all; returns the path.

    Keys: `tokens` [iteration, layer, micro_batch, source_rank, expert], and `meta`, a JSON text: `schema_version`,
    `source` (what this is), `records` (number of each iteration), `sources` and `targets` (what the last two axes
    are), `experts`. `InputError` for another extension, and for what the operating system refuses.
    """
    path = pathlib.Path(path)
    if path.suffix != ".npz":
        raise InputError(f"a trace is saved as .npz, got {str(path)!r}.")
    source = tokens.source if isinstance(tokens, Tokens) else f"{tokens.format}: {tokens.words}"
    if isinstance(tokens, Tokens):
        tokens = Recording(tokens.count, np.arange(len(tokens.count)), "", "", experts=tokens.count.shape[-1])
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
