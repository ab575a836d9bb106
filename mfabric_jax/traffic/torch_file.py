"""Tensors of a `torch.save` file without torch: nothing of the file is run, and what is no tensor is left out.

Layout: a zip archive with `NAME/data.pkl`, a pickle in which every storage is a persistent id ("storage", type, key,
device, elements), and `NAME/data/KEY`, its bytes. Source: torch/serialization.py of github.com/pytorch/pytorch.
"""

import collections
import math
import pathlib
import pickle
import zipfile
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError

_TYPES = {"Float": "<f4", "Double": "<f8", "Half": "<f2", "Long": "<i8", "Int": "<i4", "Short": "<i2"}
_TYPES |= {"Char": "i1", "Byte": "u1", "Bool": "?", "BFloat16": "<u2"}
_MOST = 2**33  # elements of a tensor
_HALF = "BFloat16"  # the upper half of a float32


class _LeftOut:
    """Stands where an object of any other class was."""

    def __new__(cls, *given: Any, **named: Any) -> "_LeftOut":
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        return


class _Reader(pickle.Unpickler):
    """Builds arrays, dictionaries, lists, numbers and texts; of other classes nothing is made."""

    def __init__(self, archive: zipfile.ZipFile, pickled: str) -> None:
        super().__init__(archive.open(pickled))
        self._archive, self._folder = archive, pickled.removesuffix("data.pkl")

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if module == "torch" and name.endswith("Storage"):
            return name.removesuffix("Storage")
        return _LeftOut

    def persistent_load(self, pid: Any) -> np.ndarray:
        _, kind, key, *_ = pid
        values = np.frombuffer(self._archive.read(f"{self._folder}data/{key}"), _TYPES[kind])
        return (values.astype("<u4") << 16).view("<f4") if kind == _HALF else values


def _rebuilt(storage: np.ndarray, offset: int, size: tuple, stride: tuple, *rest: Any) -> np.ndarray:
    """The view of a storage that a tensor is; `ValueError` for one that reaches outside."""
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if min(size, default=1) < 0 or min(stride, default=1) < 0 or offset < 0 or math.prod(size) > _MOST:
        raise ValueError("sizes")
    if math.prod(size) and last >= len(storage):
        raise ValueError("outside of its storage")
    steps = [step * storage.itemsize for step in stride]
    return np.lib.stride_tricks.as_strided(storage[offset:], size, steps, writeable=False)


def read_torch(path: pathlib.Path) -> Any:
    """What the file holds: an array, or a dictionary or list of anything. `InputError` for a file of another kind."""
    try:
        with zipfile.ZipFile(path) as archive:
            (pickled,) = [name for name in archive.namelist() if name.split("/")[1:] == ["data.pkl"]]
            return _Reader(archive, pickled).load()
    except Exception as error:  # whatever the bytes make of a pickle
        raise InputError(
            f"trace {path} must be a file of torch.save (since torch 1.6), got {type(error).__name__}; or save its "
            f"arrays with numpy.savez."
        ) from error
