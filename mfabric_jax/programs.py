"""Compiled programs, asked for by function and arguments: each compiles once in a process, and once on a machine.

A program is a function at the top of its module. Arrays among its arguments are inputs: their shapes and dtypes decide
the program, their values do not. All other leaves are static. `keep_in` keeps programs on disk for later processes.
"""

import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.core import Tracer

from mfabric_jax import program_store
from mfabric_jax.program_key import Key, is_input, is_key, key_of, name_of, shape_of


class Counts(NamedTuple):
    """Programs of this process by where they came from."""

    loaded: int  # from disk
    compiled: int  # here


def run(function: Callable[..., Any], *arguments: Any, options: dict[str, Any] | None = None) -> Any:
    """What `function(*arguments)` returns, computed by its compiled program, with NumPy arrays (JAX arrays for keys).

    - `arguments`: trees of arrays, which are inputs, and of text, numbers and booleans, which are static.
    - `options`: of the XLA compiler, by name.

    Tracing may depend on nothing but the arguments and this package: what it reads of other files or of variables that
    change must be among the arguments. `ValueError` for a function inside another one and for traced arguments.
    """
    leaves, tree = jax.tree.flatten(arguments)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise ValueError(f"a program runs with values, got traced arguments of {function!r}: call the function.")
    key = key_of(function, leaves, tree, options or {})
    with _lock:
        if (program := _programs.get(key)) is None:
            program = _programs[key] = _Program(key, function, leaves, tree, options)
    return program.run([_as_input(leaf) for leaf in leaves if is_input(leaf)])


def keep_in(folder: str | os.PathLike[str] | None = None) -> None:
    """Keep programs on disk, and load those that are there; from now on, for programs not yet asked for.

    - `folder`: None: MFABRIC_PROGRAMS, or else `programs` in `cache_folder()`. "off": keep none.

    Files are trusted: the folder must be this user's and closed to others, else it is not used (`store()` says why).
    """
    global _folder, _store
    with _lock:
        _folder, _store = program_store.folder_of(folder), None


def folder() -> pathlib.Path | None:
    """Where programs are kept, if the folder can be used; None: nowhere."""
    return _folder


def opened() -> program_store.Store | None:
    """`store()` if a program was asked of it."""
    return _store


def store() -> program_store.Store | None:
    """The programs on disk; None without `keep_in`."""
    global _store
    with _lock:
        if _store is None and _folder is not None:
            _store = program_store.Store(_folder)
        return _store


def asked() -> list[str]:
    """Names of the programs of this process, in the order they were first asked for."""
    return [program.name for program in _all()]


def counts() -> Counts:
    return Counts(sum(program.loaded for program in _all()), sum(program.compiled for program in _all()))


def forget() -> None:
    """Drop all programs of this process; those on disk stay."""
    with _lock:
        _programs.clear()


_lock = threading.Lock()
_programs: dict[Key, "_Program"] = {}
_folder: pathlib.Path | None = None
_store: program_store.Store | None = None


def _all() -> list["_Program"]:
    with _lock:
        return list(_programs.values())


class _Found(NamedTuple):
    results: Any


class _Program:
    """A function with its static arguments, compiled when it first runs."""

    def __init__(self, key: Key, function: Callable[..., Any], leaves: list[Any], tree: Any, options: Any) -> None:
        self.key = key
        self.name = name_of(function, leaves)
        self.loaded, self.compiled = 0, 0
        self._call: Callable[..., Any] | None = None
        self._kept_as: tuple[program_store.Store, str] | None = None  # where it was loaded from
        self._making = threading.Lock()
        self._function, self._tree, self._options = function, tree, options
        self._places = [i for i, leaf in enumerate(leaves) if is_input(leaf)]
        self._shapes = [_input_shape(leaves[i]) for i in self._places]
        self._kinds = [jax.random.key_impl(leaves[i]) if is_key(leaves[i]) else None for i in self._places]
        self._leaves = [None if is_input(leaf) else leaf for leaf in leaves]

    def run(self, inputs: list[np.ndarray]) -> Any:
        with self._making:
            if (call := self._call) is None:
                return self._first_run(inputs)
        try:
            return _computed(call, inputs)
        except Exception as error:
            if not self.loaded:
                raise
            self._give_up(error)
        return self.run(inputs)

    def _first_run(self, inputs: list[np.ndarray]) -> Any:
        kept = store()
        words = None if kept is None else kept.words(self.key)
        if kept is None or words is None:
            return self._compiled(self._lowered().compile(self._options), inputs)
        if (found := self._loaded(kept, words, inputs)) is not None:
            return found.results
        if not kept.takes_more:
            return self._compiled(self._lowered().compile(self._options), inputs)
        with kept.writing(words):
            if (found := self._loaded(kept, words, inputs)) is not None:  # by who had the lock
                return found.results
            lowered = self._lowered()
            try:
                call = program_store.compiled_afresh(lowered, self._options)
            except Exception:  # the compiler may lack the option that tells programs apart
                return self._compiled(lowered.compile(self._options), inputs)
            content = kept.content(words, call)
            results = self._compiled(call, inputs)
            if content is not None:
                kept.keep(words, content, lambda file: _computes(file, inputs, results))
            return results

    def _compiled(self, call: Callable[..., Any], inputs: list[np.ndarray]) -> Any:
        self._call = call
        self.compiled += 1
        return _computed(call, inputs)

    def _loaded(self, kept: program_store.Store, words: str, inputs: list[np.ndarray]) -> "_Found | None":
        if (call := kept.load(words)) is None:
            return None
        try:
            found = _Found(_computed(call, inputs))
        except Exception as error:  # some executables fail only when they run
            kept.drop(words, error)
            return None
        self._call, self._kept_as, self.loaded = call, (kept, words), 1
        return found

    def _give_up(self, why: Exception) -> None:
        """A program from disk failed after its first run: compile it."""
        with self._making:
            if self._kept_as is not None:
                kept, words = self._kept_as
                kept.drop(words, why)
                self._call, self._kept_as, self.loaded = None, None, 0

    def _lowered(self) -> Any:
        def program(*inputs: Any) -> Any:
            leaves = list(self._leaves)
            for i, kind, value in zip(self._places, self._kinds, inputs, strict=True):
                leaves[i] = value if kind is None else jax.random.wrap_key_data(value, impl=kind)
            return self._function(*jax.tree.unflatten(self._tree, leaves))

        program.__name__ = self._function.__name__
        return jax.jit(program).lower(*self._shapes)


def _computed(call: Callable[..., Any], inputs: list[np.ndarray]) -> Any:
    """Results in NumPy: whatever fails has failed here."""
    return jax.tree.map(lambda out: jax.block_until_ready(out) if is_key(out) else np.asarray(out), call(*inputs))


def _computes(call: Callable[..., Any], inputs: list[np.ndarray], results: Any) -> bool:
    """Whether a program has these results, bit for bit."""
    found, tree = jax.tree.flatten(_computed(call, inputs))
    wanted, wanted_tree = jax.tree.flatten(results)
    return tree == wanted_tree and all(_same_bits(*pair) for pair in zip(found, wanted, strict=True))


def _same_bits(one: Any, other: Any) -> bool:
    if is_key(one):
        one, other = (np.asarray(jax.random.key_data(each)) for each in (one, other))
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def _as_input(leaf: Any) -> np.ndarray:
    """On the host, whatever device it was on; of a random key its numbers."""
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf, _input_shape(leaf).dtype)


def _input_shape(leaf: Any) -> jax.ShapeDtypeStruct:
    return shape_of(jax.random.key_data(leaf)) if is_key(leaf) else shape_of(leaf)
