"""Loops of the host: compiled by numba once, and kept on disk by the contents of the files of their folder.

Numba is loaded with the first file of loops, and such files `at_first_call`.
"""

import functools
import hashlib
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mfabric_jax.support.lazily import loaded


def made_once(make: Callable[[], Any]) -> Callable[[], Any]:
    """The function, which makes something once, whatever threads ask for it."""
    lock, once = threading.Lock(), functools.cache(make)

    @functools.wraps(make)
    def made() -> Any:
        with lock:
            return once()

    return made


def at_first_call(name: str) -> Callable[..., Any]:
    """The function MODULE:FUNCTION of a file of loops, which is loaded, and the function compiled, when it is first
    called; with the liberties of arithmetic `FAST` of its module, if that has them."""

    @made_once
    def compiled() -> Callable[..., Any]:
        module, _, function = name.partition(":")
        loops = loaded(module)
        return kept(getattr(loops, function), **({"fastmath": loops.FAST} if hasattr(loops, "FAST") else {}))

    return lambda *arguments: compiled()(*arguments)


@functools.cache
def stamp(folder: Path) -> str:
    """Of the contents of a folder's files."""
    sources = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def kept(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """The function, compiled without the lock of the interpreter; where no folder can be written, in each process."""
    from numba import njit

    stamped = f"_{stamp(Path(inspect.getfile(function)).parent)}"
    function.__qualname__ = f"{function.__qualname__.removesuffix(stamped)}{stamped}"
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # numba has no folder for it
        return njit(**options)(function)

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        nonlocal compiled
        try:
            return compiled(*arguments)
        except OSError:  # the disk is full, or was closed meanwhile: loops themselves know no files
            compiled = njit(**options)(function)
            return compiled(*arguments)

    return run


def part_of_loops(fast: set[str], inlined: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """A decorator for what such functions call: compiled into them, with these liberties of arithmetic. Large
    ones that are called from several places compile in a tenth of the time if they are not `inlined`."""
    from numba import njit

    # Nothing is allocated, so references need no counting; what is inlined costs no call.
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": fast, "_nrt": False, "forceinline": inlined}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python never calls them
    return njit(nogil=True, **options)
