"""Loops on the host, compiled once by numba; numba's disk cache is keyed by the contents of the files in their folder.

A file of loops, and numba with it, is loaded `at_first_call`.
"""

import functools
import hashlib
import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mfabric_jax.support.lazily import load_module


def make_once(make: Callable[[], Any]) -> Callable[[], Any]:
    """Return a function that calls `make` once and returns its result to all threads."""
    lock, once = threading.Lock(), functools.cache(make)

    @functools.wraps(make)
    def get() -> Any:
        with lock:
            return once()

    return get


def at_first_call(name: str) -> Callable[..., Any]:
    """Return the loop MODULE:FUNCTION; its first call loads the module and compiles the loop.

    `FAST` of the module, if defined, is numba's `fastmath`.
    """

    @make_once
    def compile_function() -> Callable[..., Any]:
        module, _, function = name.partition(":")
        loops = load_module(module)
        return compile_loop(getattr(loops, function), **({"fastmath": loops.FAST} if hasattr(loops, "FAST") else {}))

    return lambda *arguments: compile_function()(*arguments)


@functools.cache
def stamp(folder: Path) -> str:
    """Return a digest of the contents of a folder's Python files."""
    sources = (path.read_bytes() for path in sorted(folder.glob("*.py")))
    return hashlib.sha256(b"".join(sources)).hexdigest()[:16]


def compile_loop(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Return the function, compiled to run without the GIL and cached on disk if a folder is writable."""
    from numba import njit

    stamped = f"_{stamp(Path(inspect.getfile(function)).parent)}"
    function.__qualname__ = f"{function.__qualname__.removesuffix(stamped)}{stamped}"
    options |= {"nogil": True, "error_model": "numpy"}
    try:
        compiled = njit(cache=True, **options)(function)
    except RuntimeError:  # numba finds no writable folder
        return njit(**options)(function)

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:
        nonlocal compiled
        try:
            return compiled(*arguments)
        except OSError:  # numba's cache failed (disk full or closed): loops use no files
            compiled = njit(**options)(function)
            return compiled(*arguments)

    return run


def part_of_loops(fast: set[str], inlined: bool = True) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator for functions that loops call, compiled into them; `fast`: numba's `fastmath` flags.

    A large function with several callers compiles in a tenth of the time if it is not `inlined`.
    """
    from numba import njit

    # Nothing is allocated, so no references are counted; inlining saves the calls.
    options: dict[str, Any] = {"error_model": "numpy", "fastmath": fast, "_nrt": False, "forceinline": inlined}
    options |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # Python never calls them
    return njit(nogil=True, **options)
