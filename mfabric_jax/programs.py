"""Compiled programs by function and arguments: each compiles once in a process, and is traced once on a machine.

A program is a function at the top of its module. Arrays among its arguments are inputs: their shapes and dtypes decide
the program, their values do not. All other leaves are static. After `keep_in`, traced programs stay on disk as exported
StableHLO, and JAX's compilation cache keeps their executables. What cannot be exported, such as callbacks, and what
other processes cannot find by name, such as a user's function, is compiled without a file.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox
import jax
import jaxlib
import numpy as np
from jax import export
from jax.core import Tracer
from jax.experimental.compilation_cache import compilation_cache

import mfabric_jax
from mfabric_jax import platforms, tuned_file
from mfabric_jax.atomic import replacing
from mfabric_jax.checks import InputError

MOST = 512 << 20  # bytes of all files; those not used for longest go first
PACKAGE = pathlib.Path(__file__).parent
KNOWN = ("mfabric_jax", "builtins", "equinox", "jax", "jaxlib", "numpy")  # their functions stay while versions do
UNKNOWN = "\0"  # in a description: an object that only this process can find
CHECKSUM = 32  # bytes in front of a program
TRITON = export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")  # it stays the same while versions do


class Counts(NamedTuple):
    """Programs of this process by where they came from."""

    loaded: int  # from disk
    traced: int  # here


def run(function: Callable[..., Any], *arguments: Any, options: dict[str, Any] | None = None) -> Any:
    """`function(*arguments)` with NumPy arrays, computed by its compiled program.

    - `arguments`: trees of arrays, which are inputs, and of text, numbers, booleans and functions, which are static.
    - `options`: of the XLA compiler, by name.

    Tracing may depend on nothing but the arguments and this package: what it reads of other files or of variables that
    change must be among the arguments. `ValueError` for a function inside another one and for traced arguments.
    """
    leaves, tree = jax.tree.flatten(arguments)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise ValueError(f"a program runs with values, got traced arguments of {function!r}: call the function.")
    if not _has_name(function):
        raise ValueError(f"a program is a function at the top of its module, got {function!r}.")
    name = f"{function.__module__}.{function.__qualname__}({', '.join(map(_text_of_leaf, leaves))})"
    key = "\n".join([name, _text(function), _text(tree), _text(options), *_surroundings()])
    with _lock:
        if (program := _programs.get(key)) is None:
            program = _programs[key] = _Program(name, key, function, leaves, tree, options)
    return program.run([np.asarray(leaf, _shape(leaf).dtype) for leaf in leaves if _is_input(leaf)])


def keep_in(folder: str | os.PathLike[str] | None = None) -> None:
    """Keep programs on disk, and load those that are there; for programs not yet asked for.

    - `folder`: None: MFABRIC_PROGRAMS, or else `programs` in `cache_folder()`. "off": keep none.

    JAX's compilation cache then keeps all executables, however quickly they compiled: in `jax_compilation_cache_dir`
    if that is set, else in `jax` inside of this folder. `problem` says why a folder is not used.
    """
    global _folder
    named = os.environ.get("MFABRIC_PROGRAMS") if folder is None else os.fspath(folder)
    before, _folder = _folder, None
    if named is None or named.lower() != "off":
        with contextlib.suppress(InputError, OSError):
            _folder = pathlib.Path(named) if named else tuned_file.cache_folder() / "programs"
            _folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    used = _folder if _folder is not None and problem(_folder) is None else None
    if jax.config.values["jax_compilation_cache_dir"] in (None, before and str(before / "jax")):
        jax.config.update("jax_compilation_cache_dir", used and str(used / "jax"))
        compilation_cache.reset_cache()  # JAX looks for its cache only once
    if used:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def folder() -> pathlib.Path | None:
    """Where programs are kept, if there is no `problem`; None: nowhere."""
    return _folder


def problem(folder: pathlib.Path) -> str | None:
    """Why a folder is not used: programs are code, so it must be this user's and closed to others."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return "it is no folder that can be written"
    return None if _is_private(folder) else "it belongs to another user, or others can write to it"


def kept(folder: pathlib.Path) -> tuple[int, int]:
    """Number of programs, and bytes with their executables."""
    files = _files(folder)
    return sum(path.suffix == ".program" for path in files), sum(about.st_size for about in files.values())


def clear(folder: pathlib.Path, most: int = -1) -> None:
    """Remove programs and executables until `most` bytes are left (usually all), those not used for longest first."""
    files = _files(folder)
    left = sum(about.st_size for about in files.values())
    for path in sorted(files, key=lambda path: max(files[path].st_atime, files[path].st_mtime)):
        if left > most:
            path.unlink(missing_ok=True)
            left -= files[path].st_size


def asked() -> list[str]:
    """Names of the programs of this process, in the order they were first asked for."""
    return [program.name for program in list(_programs.values())]


def counts() -> Counts:
    """How many programs were loaded, and how many were traced."""
    made = [program.made for program in list(_programs.values())]
    return Counts(made.count("loaded"), made.count("traced"))


def forget() -> None:
    """Drop all programs of this process; those on disk stay."""
    with _lock:
        _programs.clear()


_lock = threading.Lock()
_programs: dict[str, "_Program"] = {}
_folder: pathlib.Path | None = None


class _Program:
    """A function with its static arguments, compiled when it first runs. Holds the objects that its key names."""

    def __init__(self, name: str, key: str, function: Callable, leaves: list, tree: Any, options: Any) -> None:
        self.name, self.made = name, "not yet"
        self._key, self._function, self._tree, self._options = key, function, tree, options
        self._static = [None if _is_input(leaf) else leaf for leaf in leaves]
        self._shapes = {i: _shape(leaf) for i, leaf in enumerate(leaves) if _is_input(leaf)}
        self._call: Callable[..., Any] | None = None
        self._making = threading.Lock()

    def run(self, inputs: list[np.ndarray]) -> Any:
        with self._making:
            if self._call is None:
                self._call = self._compiled()
        return jax.tree.map(np.asarray, self._call(*inputs))

    def _compiled(self) -> Callable[..., Any]:
        """From its file, else traced. The first process compiles what it put into the file, as all later ones do."""
        path = _path_of(self._key)
        if path is not None and (call := self._loaded(path)) is not None:
            self.made = "loaded"
            return call
        self.made = "traced"
        program, shapes = jax.jit(self._flat), list(self._shapes.values())
        traced = program.trace(*shapes)
        if path is not None:
            with contextlib.suppress(Exception):  # not to be exported or written: compiled all the same
                here = ["cpu"] if platforms.platform() == "cpu" else None  # None: the default, such as "cuda"
                exported = export.export(program, platforms=here, disabled_checks=[TRITON])(*shapes)
                content = _sealed(path, exported.serialize())
                with replacing(path) as (part,):
                    part.touch(mode=0o600)
                    part.write_bytes(content)
                clear(path.parent, MOST)
                if (call := self._loaded(path)) is not None:
                    return call
        return traced.lower().compile(self._options)

    def _loaded(self, path: pathlib.Path) -> Callable[..., Any] | None:
        """The program of a file, compiled; None, and the file is gone, if anything is wrong with it."""
        try:
            content = path.read_bytes()
            exported = content[CHECKSUM:]
            if not _is_private(path) or content != _sealed(path, exported):
                raise ValueError("not this user's, damaged, or another program")
            call = export.deserialize(bytearray(exported)).call
            return jax.jit(call).lower(*self._shapes.values()).compile(self._options)
        except FileNotFoundError:
            return None
        except Exception:  # whatever a damaged file does
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def _flat(self, *inputs: Any) -> Any:
        leaves = list(self._static)
        for i, value in zip(self._shapes, inputs, strict=True):
            leaves[i] = value
        return self._function(*jax.tree.unflatten(self._tree, leaves))


# ---------------------------------------------------------------------------------------------- what decides a program
def _is_input(leaf: Any) -> bool:
    """Whether a leaf is an array or a NumPy number."""
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "SUO")


def _shape(leaf: Any) -> jax.ShapeDtypeStruct:
    """As a program sees an input: without x64, float64 is float32."""
    dtype = jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=getattr(leaf, "weak_type", False))


def _text_of_leaf(leaf: Any) -> str:
    if not _is_input(leaf):
        return _text(leaf)
    shape = _shape(leaf)
    return f"{shape.dtype}[{','.join(map(str, shape.shape))}]{' weak' if shape.weak_type else ''}"


def _text(value: Any) -> str:
    """A static value with its type; `UNKNOWN` and its identity if other processes could not know that it is equal."""
    kind = type(value)
    if kind in (type(None), bool, int, float, complex, str, bytes):  # their repr says all
        return f"{kind.__name__} {value!r}"
    if kind in (tuple, list):
        return f"{kind.__name__} ({', '.join(map(_text, value))})"
    if kind is dict:
        return f"dict {_text(tuple(value.items()))}"
    if kind is functools.partial:
        return f"partial {_text((value.func, value.args, value.keywords))}"
    if kind is jax.tree_util.PyTreeDef:
        return f"({_text(value.node_data())} {_text(value.children())})"
    if value is type(None) or _is_known(value):
        return f"{value.__module__}:{value.__qualname__}"
    if _is_known(kind) and isinstance(value, tuple):
        return f"{_text(kind)} {_text(tuple(value))}"
    if _is_known(kind) and dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore
        return f"{_text(kind)} {_text([getattr(value, field.name) for field in dataclasses.fields(value)])}"
    if _is_known(kind) and repr(value) == "Missing":  # what Equinox has in the place of a field that is not set
        return "Missing"
    return f"{UNKNOWN}{kind.__qualname__} {id(value)}"


def _has_name(thing: Any) -> bool:
    """Whether a function or class is found by its name in its module."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return name is not None and getattr(sys.modules.get(module or ""), name, None) is thing


def _is_known(thing: Any) -> bool:
    return _has_name(thing) and thing.__module__.partition(".")[0] in KNOWN


def _surroundings() -> tuple[str, ...]:
    """What a process may change while it runs: settings of JAX, the device, kernels that were tuned."""
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    settings["jax_default_device"] = (platforms.platform(), platforms.device())
    try:
        return repr(settings), repr(tuned_file.entries())
    except InputError as broken:
        return repr(settings), str(broken)


# --------------------------------------------------------------------------------------------------------------- files
def _path_of(key: str) -> pathlib.Path | None:
    """The file of a program; None if it is not kept, or if sources may not be those that this process imported."""
    device = platforms.device()
    if _folder is None or UNKNOWN in key or device is None or problem(_folder) is not None:
        return None
    sources = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and path.parent.name != "__pycache__"]
    if max(path.stat().st_ctime for path in sources) >= mfabric_jax.BEGAN:
        return None
    versions = [each.__version__ for each in (jax, jaxlib, equinox, np)]
    around = versions, tuned_file.key_of(device), device.client.device_count(), platforms.cores(), _digest_of(*sources)
    digest = hashlib.sha256(f"{key}\n{around}".encode()).hexdigest()
    return _folder / f"{digest}.program"


@functools.cache
def _digest_of(*sources: pathlib.Path) -> str:
    found = hashlib.sha256()
    for path in sources:
        content = path.read_bytes()
        found.update(f"{path.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return found.hexdigest()


def _sealed(path: pathlib.Path, exported: bytes | bytearray) -> bytes:
    """The content of a file: a checksum of its name and the exported program, and that program."""
    return hashlib.sha256(path.name.encode() + exported).digest() + exported


def _is_private(path: pathlib.Path) -> bool:
    """Whether a file or folder is this user's, and no other can write to it."""
    about = path.stat()
    return hasattr(os, "geteuid") and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _files(folder: pathlib.Path) -> dict[pathlib.Path, os.stat_result]:
    """Programs, executables of JAX, and what killed processes left of programs."""
    found = {}
    for path in [*folder.glob("*.program"), *folder.glob(".*.part"), *(folder / "jax").rglob("*")]:
        with contextlib.suppress(OSError):
            if path.is_file():
                found[path] = path.stat()
    return found
