"""Arrays in files: `.npy`, `.npz`, `.npy.xz`, and `.pt` where torch is installed."""

import io
import lzma
import pathlib
import zipfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError

UNREADABLE = (OSError, EOFError, ValueError, lzma.LZMAError, zipfile.BadZipFile)


def arrays(path: pathlib.Path, named: Iterable[str]) -> Mapping[str, np.ndarray]:
    """Every array of a file by its key; a file of one bare array has the first of `named` that its own name holds.

    A plain `.npy` is mapped, so that only the records used are read. `InputError` for a file that cannot be read.
    """
    try:
        if path.suffix == ".pt":
            return _torch(path, named)
        if path.suffix == ".xz":
            with lzma.open(path) as opened:
                loaded = np.load(io.BytesIO(opened.read()), allow_pickle=False)
        else:
            loaded = np.load(path, mmap_mode="r", allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            return {_key(path, named): loaded}
        with loaded:
            return {key: loaded[key] for key in loaded}
    except UNREADABLE as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"trace {path} must be a readable NumPy file, {_why(error)}.") from error


def _why(error: Exception) -> str:
    """What is wrong with a file, in words."""
    if isinstance(error, OSError) and error.strerror:
        return f"but it cannot be opened ({error.strerror})"
    if "pickle" in str(error) or "Python objects" in str(error):
        return "but it holds Python objects; save an array of numbers"
    return "but it is cut off or of another kind"


def _key(path: pathlib.Path, named: Iterable[str]) -> str:
    names = list(named)
    return next((name for name in names if name in path.name), names[-1])


def _torch(path: pathlib.Path, named: Iterable[str]) -> Mapping[str, np.ndarray]:
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
    tensors = loaded if isinstance(loaded, Mapping) else {_key(path, named): loaded}
    return {str(key): value.numpy() for key, value in tensors.items() if isinstance(value, torch.Tensor)}
