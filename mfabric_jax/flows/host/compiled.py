"""Loops compiled by numba once, and kept on disk by the contents of this folder's files."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any


@functools.cache
def stamp() -> str:
    """Of the contents of this folder's files."""
    sources = (path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def kept(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled without the lock of the interpreter."""
    from numba import njit

    function.__qualname__ += f"_{stamp()}"
    return njit(cache=True, nogil=True, error_model="numpy", **options)(function)
