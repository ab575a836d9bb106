"""Compiled programs by function and arguments: a process compiles each once, a machine traces each once.

Arrays among the arguments are inputs: their shapes and dtypes decide the program, their values do not. All other leaves
are static. After `keep_in`, traced programs are kept on disk as exported StableHLO, and JAX's compilation cache keeps
their executables. Two kinds of programs have no file: those that cannot be exported, such as callbacks, and functions
that other processes cannot find by name, such as a user's.
"""

import contextlib
import dataclasses
import functools
import hashlib
import os
import pathlib
import sys
from collections.abc import Callable, Collection
from typing import Any

import equinox
import jax
import jaxlib
import numpy as np
from jax import export
from jax.core import ShapedArray, Tracer
from jax.experimental.compilation_cache import compilation_cache

import mfabric_jax
from mfabric_jax.checks import InputError
from mfabric_jax.support import platforms
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.loops import make_once

MOST = 512 << 20  # most bytes of all files; the least recently used go first
PACKAGE = pathlib.Path(__file__).parents[1]
KNOWN = ("mfabric_jax", "builtins", "equinox", "jax", "jaxlib", "numpy")  # modules that change only with versions
UNKNOWN = "\0"  # marks, in a description, an object that only this process can find
CHECKSUM = 32  # bytes before a program in its file
TRITON = export.DisabledSafetyCheck.custom_call("__gpu$xla.gpu.triton")  # changes only with versions

kept_in: pathlib.Path | None = None  # folder of programs, used if it has no `problem`; set by `keep_in`
_programs: dict[str, Callable[[], Callable[..., Any]]] = {}


def run(function: Callable[..., Any], *arguments: Any, options: dict[str, Any] | None = None) -> Any:
    """Return `function(*arguments)` as NumPy arrays, computed by its compiled program.

    - `arguments`: trees of arrays, which are inputs, and of text, numbers, booleans and functions, which are static.
    - `options`: of the XLA compiler, by name.

    Tracing must depend only on the arguments and this package: contents of other files and variables that change must
    be arguments. Raise ValueError for traced arguments, and for functions that are not at the top of their module.
    """
    leaves, tree = jax.tree.flatten(arguments)
    if any(isinstance(leaf, Tracer) for leaf in leaves):
        raise ValueError(f"a program needs values, got traced arguments of {function!r}: call the function itself.")
    if not _has_name(function):
        raise ValueError(f"a program must be a function at the top of its module, got {function!r}.")
    parts = [jax.typeof(leaf) if _is_input(leaf) else leaf for leaf in leaves]
    key = "\n".join([*map(_text, (function, tree, options, *parts)), _surroundings()])
    make = functools.partial(_load_or_compile, key, function, parts, tree, options)
    program = _programs.setdefault(key, make_once(make))  # keeps alive the objects that the key names by id
    inputs = (np.asarray(leaf, jax.typeof(leaf).dtype) for leaf in leaves if _is_input(leaf))
    return jax.tree.map(np.asarray, program()(*inputs))


def forget() -> None:
    """Forget all programs of this process; files stay."""
    _programs.clear()


def _is_input(leaf: Any) -> bool:
    """Return whether a leaf is an array or a NumPy number."""
    return isinstance(leaf, jax.Array) or (isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "SUO")


def _load_or_compile(key: str, function: Callable, parts: list, tree: Any, options: Any) -> Callable[..., Any]:
    """Compile a program from its file; if that is missing, trace the program and write the file first."""

    def flat(*inputs: Any) -> Any:
        values = iter(inputs)
        leaves = [next(values) if isinstance(part, ShapedArray) else part for part in parts]
        return function(*jax.tree.unflatten(tree, leaves))

    program, shapes = jax.jit(flat), [part for part in parts if isinstance(part, ShapedArray)]
    if (path := _path_of(key)) is not None:
        for exported in (_read, _export_to_file):  # if reading, exporting or writing fails, compile without a file
            with contextlib.suppress(Exception):
                return jax.jit(exported(path, program, shapes).call).lower(*shapes).compile(options)
    return program.lower(*shapes).compile(options)


# ---------------------------------------------------------------------------------------------- what decides a program
def contents(*arguments: Any) -> str | None:
    """Return a digest that equal arguments share: trees of arrays and of static values, as in `run`.

    None: a part of them is an object that only this process can find, such as a user's function.
    """
    leaves, tree = jax.tree.flatten(arguments)
    parts = ((str(x.dtype), x.shape, np.asarray(x).tobytes()) if _is_input(x) else x for x in leaves)
    text = "\n".join(map(_text, (tree, *parts)))
    return None if UNKNOWN in text else hashlib.sha256(text.encode()).hexdigest()


def _text(value: Any) -> str:
    """Return a static value and its type as text; `UNKNOWN` and its id if other processes could not recognise it."""
    kind = type(value)
    if kind in (type(None), bool, int, float, complex, str, bytes, ShapedArray):  # repr describes these fully
        return repr(value)
    if value is type(None) or _is_known(value):
        return f"{value.__module__}:{value.__qualname__}"
    if (parts := _parts(value)) is not None:
        return f"{kind.__module__}:{kind.__qualname__} ({', '.join(map(_text, parts))})"
    if _is_known(kind) and repr(value) == "Missing":  # Equinox's value of an unset field
        return "Missing"
    return f"{UNKNOWN}{kind.__qualname__} {id(value)}"


def _parts(value: Any) -> Collection[Any] | None:
    """Return the parts that determine a value; None if no parts do."""
    kind = type(value)
    if kind is dict:
        return value.items()
    if kind is functools.partial:
        return value.func, value.args, value.keywords
    if kind is jax.tree_util.PyTreeDef:
        return value.node_data(), value.children()
    if isinstance(value, tuple | list) and _is_known(kind):
        return value
    if _is_known(kind) and dataclasses.is_dataclass(value) and value.__dataclass_params__.frozen:  # type: ignore
        return [getattr(value, field.name) for field in dataclasses.fields(value)]
    return None


def _has_name(thing: Any) -> bool:
    """Return whether a function or class is found by its name in its module."""
    module, name = getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", "")
    return getattr(sys.modules.get(module), name, None) is thing


def _is_known(thing: Any) -> bool:
    """Return whether a function or class is found by name in a module that changes only with versions."""
    return _has_name(thing) and thing.__module__.partition(".")[0] in KNOWN


def _surroundings() -> str:
    """Return settings of JAX and the device, which may change while a process runs."""
    settings = {name: value for name, value in jax.config.values.items() if "cache" not in name}
    settings["jax_default_device"] = (platforms.platform(), platforms.device())
    return repr(settings)


# --------------------------------------------------------------------------------------------------------------- files
def keep_in(folder: str | os.PathLike[str] | None = None) -> None:
    """Keep programs on disk and load kept ones; this applies to programs that have not run yet.

    - `folder`: None means MFABRIC_PROGRAMS, else `programs` in `cache_folder()`; "off" keeps none.

    JAX's compilation cache then keeps all executables, also those that compile quickly: in `jax_compilation_cache_dir`
    if that is set, else in `jax` inside this folder. `problem` says why a folder is not used.
    """
    global kept_in
    before, kept_in = kept_in, usual_folder() if folder is None else _folder_of(os.fspath(folder))
    if kept_in is not None:
        with contextlib.suppress(OSError):
            kept_in.mkdir(mode=0o700, parents=True, exist_ok=True)
    used = kept_in if kept_in is not None and problem(kept_in) is None else None
    if jax.config.values["jax_compilation_cache_dir"] in (None, before and str(before / "jax")):
        jax.config.update("jax_compilation_cache_dir", used and str(used / "jax"))
        compilation_cache.reset_cache()  # JAX reads this setting only once
    if used:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def usual_folder() -> pathlib.Path | None:
    """Return the folder of MFABRIC_PROGRAMS, else `programs` in `cache_folder()`; None: nothing is kept."""
    return _folder_of(os.environ.get("MFABRIC_PROGRAMS", ""))


def _folder_of(named: str) -> pathlib.Path | None:
    if named.lower() == "off":
        return None
    try:
        return pathlib.Path(named) if named else cache_folder() / "programs"
    except InputError:
        return None


def cache_folder() -> pathlib.Path:
    """Return the folder of this package's files: `mfabric_jax` in $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if home.startswith("~"):
        raise InputError("the home folder is unknown; set XDG_CACHE_HOME to a writable folder.")
    return pathlib.Path(home) / "mfabric_jax"


def problem(folder: pathlib.Path) -> str | None:
    """Return why a folder is not used, or None: as programs are code, only this user may write to it."""
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        return "it is not a writable folder"
    return None if _is_private(folder) else "it belongs to another user, or others can write to it"


def usage(folder: pathlib.Path) -> tuple[int, int]:
    """Return the number of programs, and the bytes of programs and executables."""
    files = _files(folder)
    return sum(path.suffix == ".program" for path in files), sum(about.st_size for about in files.values())


def clear(folder: pathlib.Path, most: int = -1) -> None:
    """Remove programs and executables until at most `most` bytes are left (default: all), least recently used first."""
    files = _files(folder)
    left = sum(about.st_size for about in files.values())
    for path in sorted(files, key=lambda path: max(files[path].st_atime, files[path].st_mtime)):
        if left > most:
            path.unlink(missing_ok=True)
            left -= files[path].st_size


def _files(folder: pathlib.Path) -> dict[pathlib.Path, os.stat_result]:
    """Return programs, executables of JAX, and temporary files that killed processes left."""
    stats = {}
    for path in [*folder.glob("*.program"), *folder.glob(".*.part"), *(folder / "jax").rglob("*")]:
        with contextlib.suppress(OSError):
            if path.is_file():
                stats[path] = path.stat()
    return stats


def _is_private(path: pathlib.Path) -> bool:
    """Return whether a file or folder belongs to this user, and no other user can write to it."""
    about = path.stat()
    return hasattr(os, "geteuid") and about.st_uid == os.geteuid() and not about.st_mode & 0o022


def _path_of(key: str) -> pathlib.Path | None:
    """Return the file of a program; None if it is not kept, or if sources may have changed since this process began."""
    device = platforms.device()
    if kept_in is None or UNKNOWN in key or device is None or problem(kept_in) is not None:
        return None
    sources, digest = _sources()
    if max(path.stat().st_ctime for path in sources) >= mfabric_jax.BEGAN:
        return None
    versions = [each.__version__ for each in (jax, jaxlib, equinox, np)]
    around = versions, platforms.kind_of(device), device.client.device_count(), platforms.cores(), digest
    return kept_in / f"{hashlib.sha256(f'{key} {around}'.encode()).hexdigest()}.program"


@functools.cache
def _sources() -> tuple[list[pathlib.Path], str]:
    """Return the files of this package, and a digest of their names and contents."""
    paths = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and path.parent.name != "__pycache__"]
    digest = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        digest.update(f"{path.relative_to(PACKAGE)} {len(content)}\n".encode() + content)
    return paths, digest.hexdigest()


def sources_digest() -> str:
    """Return a digest of the files of this package."""
    return _sources()[1]


def _read(path: pathlib.Path, *_: Any) -> export.Exported:
    """Read a program; raise ValueError if its file is another user's, damaged, or of another program."""
    content = path.read_bytes()
    exported = content[CHECKSUM:]
    if not _is_private(path) or content != _with_checksum(path, exported):
        raise ValueError
    return export.deserialize(bytearray(exported))


def _export_to_file(path: pathlib.Path, program: Any, shapes: list[ShapedArray]) -> export.Exported:
    """Export a program into its file."""
    here = ["cpu"] if platforms.platform() == "cpu" else None  # None: the default, such as "cuda"
    exported = export.export(program, platforms=here, disabled_checks=[TRITON])(*shapes)
    content = _with_checksum(path, exported.serialize())
    path.unlink(missing_ok=True)
    with replacing(path) as (part,):
        part.touch(mode=0o600)
        part.write_bytes(content)
    clear(path.parent, MOST)
    return exported


def _with_checksum(path: pathlib.Path, exported: bytes | bytearray) -> bytes:
    """Return the content of a program's file: a checksum of its name and the exported program, then the program."""
    return hashlib.sha256(path.name.encode() + exported).digest() + exported
