"""Loops of the host: compiled by numba once, and kept on disk by the contents of the files of their folder."""

import functools
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any


@functools.cache
def stamp(folder: Path) -> str:
    """Of the contents of a folder's files."""
    sources = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def kept(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled without the lock of the interpreter."""
    from numba import njit

    function.__qualname__ += f"_{stamp(Path(inspect.getfile(function)).parent)}"
    return njit(cache=True, nogil=True, error_model="numpy", **options)(function)


def part_of_loops(fast: set[str]) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for what such functions call: compiled into them, with these liberties of arithmetic."""
    from numba import njit

    options: dict[str, Any] = {"error_model": "numpy", "fastmath": fast, "_nrt": False, "forceinline": True}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python never calls them
    return njit(nogil=True, **options)
