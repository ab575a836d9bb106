"""What decides a compiled program, in words: the function, its static arguments and shapes, and everything around it.

Two programs are the same if their words are the same. What words cannot tell apart is kept beside them, as an object.
"""

import dataclasses
import enum
import functools
import hashlib
import importlib.metadata
import os
import pathlib
import platform
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mfabric_jax
from mfabric_jax import platforms, tuned_file
from mfabric_jax.checks import InputError

BEGAN = mfabric_jax.BEGAN
PACKAGE = pathlib.Path(__file__).parent
OWN = __name__.partition(".")[0]
KNOWN = frozenset(
    (OWN, "builtins", "collections", "equinox", "jax", "jaxlib", "numpy", "types")
)  # their versions count
VERSIONS = ("jax", "jaxlib", "equinox", "numpy", "optax")
PLAIN = frozenset((type(None), bool, int, float, complex, str, bytes))  # their repr is all of them
FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "TF_XLA_FLAGS", "NVIDIA_TF32_OVERRIDE")
NO_CODE = (  # settings of JAX that change no program, by how their names begin; all others count
    *("jax_compilation_cache", "jax_enable_compilation_cache", "jax_persistent_cache", "jax_raise_persistent_cache"),
    *("jax_explain_cache", "jax_log", "jax_debug_log", "jax_dump", "jax_traceback", "jax_send_traceback"),
    *("jax_tracer_error", "jax_compiler_detailed", "jax_pprint", "jax_platform", "jax_transfer_guard"),
    *(
        "jax_default_device",
        "jax_captured_constants",
        "jax_include_full_tracebacks",
        "jax_source_url",
        "jax_check_proxy",
    ),
)


class Same:
    """An object that equals itself alone, for a key; 1, 1.0 and True differ too."""

    def __init__(self, it: Any) -> None:
        self.it = it

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.it is other.it

    def __hash__(self) -> int:
        return id(self.it)


class Key(NamedTuple):
    """What decides a program."""

    words: str
    apart: tuple[Same, ...]  # what words cannot say; a program with any of them is never kept on disk


def is_input(leaf: Any) -> bool:
    """Whether a leaf is an array or a NumPy number; any other is static."""
    if isinstance(leaf, np.ndarray | np.generic):
        return leaf.dtype.kind not in "SUO"
    return isinstance(leaf, jax.Array)


def is_key(leaf: Any) -> bool:
    """Whether an input is of random keys of JAX."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def shape_of(leaf: Any) -> jax.ShapeDtypeStruct:
    """Shape and dtype of an input as a program sees it: without x64, float64 is float32."""
    dtype = leaf.dtype if is_key(leaf) else jax.dtypes.canonicalize_dtype(leaf.dtype)
    return jax.ShapeDtypeStruct(leaf.shape, dtype, weak_type=getattr(leaf, "weak_type", False))


def key_of(function: Callable[..., Any], leaves: Sequence[Any], tree: Any, options: dict[str, Any]) -> Key:
    """The key of `function` called with the arguments that `leaves` and `tree` make.

    `ValueError` for a function that is not found under its name in its module.
    """
    if not found_by_name(function):
        raise ValueError(f"a program is a function at the top of its module, got {function!r}.")
    apart: list[Any] = [] if _kept_sources(function) else [function]
    lines = [f"function {function.__module__}:{function.__qualname__}", f"arguments {_tree_words(tree, apart)}"]
    lines += [f"- {_leaf_words(leaf, apart)}" for leaf in leaves]
    lines += [f"option {name} = {_words(value, apart)}" for name, value in sorted(options.items())]
    return Key("\n".join([*lines, *_changing()]), tuple(map(Same, apart)))


def name_of(function: Callable[..., Any], leaves: Iterable[Any]) -> str:
    """A program's name for people: the function with its arguments."""
    return f"{function.__module__}.{function.__qualname__}({', '.join(_leaf_words(leaf, []) for leaf in leaves)})"


def found_by_name(function: Any) -> bool:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    return name is not None and getattr(sys.modules.get(module or ""), name, None) is function


def _kept_sources(thing: Any) -> bool:
    """Whether a function or class is of this package or of one whose version counts, and found by its name."""
    return str(thing.__module__).partition(".")[0] in KNOWN and found_by_name(thing)


def _leaf_words(leaf: Any, apart: list[Any]) -> str:
    if not is_input(leaf):
        return _words(leaf, apart)
    shape = shape_of(leaf)
    return f"{shape.dtype}[{','.join(map(str, shape.shape))}]{' weak' if shape.weak_type else ''}"


def _tree_words(tree: Any, apart: list[Any]) -> str:
    node = tree.node_data()
    if node is None:
        return "*"
    inside = ", ".join(_tree_words(child, apart) for child in tree.children())
    return f"{_words(node[0], apart)}{'' if node[1] is None else '[' + _words(node[1], apart) + ']'}({inside})"


def _words(value: Any, apart: list[Any]) -> str:
    """A static value with its type; what is not plain goes to `apart`."""
    kind = type(value)
    if kind in PLAIN:
        return f"{kind.__name__} {value!r}"
    if kind in (tuple, list):
        return f"{kind.__name__} ({', '.join(_words(each, apart) for each in value)})"
    if kind is dict:
        return f"dict ({', '.join(f'{_words(k, apart)}: {_words(v, apart)}' for k, v in value.items())})"
    if kind is frozenset:
        return f"frozenset ({', '.join(sorted(_words(each, apart) for each in value))})"
    if kind is type and value is type(None):
        return "None"
    if isinstance(value, type | types.FunctionType) and _kept_sources(value):
        return f"{value.__module__}:{value.__qualname__}"
    if kind is functools.partial:
        return f"partial {_words((value.func, value.args, value.keywords), apart)}"
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"array {value.dtype.str}{value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if not isinstance(value, type) and _kept_sources(kind):
        if isinstance(value, enum.Enum):
            return f"{_words(kind, apart)} {value.name}"
        if dataclasses.is_dataclass(value):
            fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
            more = {name: x for name, x in getattr(value, "__dict__", {}).items() if not _worked_out(kind, name)}
            return f"{_words(kind, apart)} {_words(fields | more, apart)}"
        if isinstance(value, tuple) and hasattr(kind, "_fields"):
            return f"{_words(kind, apart)} {_words(tuple(value), apart)}"
    if kind.__module__.startswith("equinox.") and repr(value) == "Missing":  # a field of a module that is not set
        return "Missing"
    apart.append(value)
    return f"object {len(apart)} of {kind.__module__}:{kind.__qualname__}"


def _worked_out(kind: type, name: str) -> bool:
    """Whether an attribute follows from the others, and is there once somebody has asked for it."""
    return isinstance(getattr(kind, name, None), functools.cached_property)


def _changing() -> list[str]:
    """What a process may change while it runs: settings of JAX, flags, the device, kernels that were tuned."""
    settings = jax.config.values
    lines = [f"{name} = {settings[name]!r}" for name in _settings()]
    lines += [f"{name} = {os.environ.get(name)!r}" for name in FLAGS]
    lines += [f"for {platforms.platform()}, on {platforms.device()}", f"tuned {_tuned()}"]
    return lines


@functools.cache
def _settings() -> list[str]:
    return [name for name in sorted(jax.config.values) if not name.startswith(NO_CODE)]


def _tuned() -> str:
    try:
        return repr(tuned_file.entries())
    except InputError as broken:
        return str(broken)


@functools.cache
def surroundings(device: Any) -> str:
    """What stays as it is while a process runs: the package's sources, versions, the machine and its devices."""
    client = device.client
    lines = [f"sources {sources()}", f"python {platform.python_implementation()} {sys.version}"]
    lines += [f"{name} {importlib.metadata.version(name)}" for name in VERSIONS]
    lines += [f"runtime {client.platform} {client.platform_version}", f"device {device.device_kind}"]
    lines += [f"devices {client.device_count()}, cores {platforms.cores()}", f"processor {processor()}"]
    return "\n".join(lines)


def processor() -> str:
    """What the processor can do, in the words of the system."""
    try:
        with tuned_file.CPU_INFO.open(encoding="utf-8") as lines:
            named = [line for line in _first_processor(lines) if line.startswith(("flags", "Features", "model name"))]
    except (OSError, ValueError):
        named = []
    return f"{platform.machine()} {' '.join(' '.join(named).split()) or platform.processor()}"


def _first_processor(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        if not line.strip():
            return
        yield line


def sources() -> str:
    """Digest of every file of the package that programs may depend on."""
    found = hashlib.sha256()
    for path in source_files():
        content = path.read_bytes()
        found.update(f"{path.relative_to(PACKAGE).as_posix()} {len(content)}\n".encode())
        found.update(content)
    return found.hexdigest()


def source_files() -> list[pathlib.Path]:
    """All files of the package but those that Python makes of them."""
    found = []
    for folder, folders, names in os.walk(PACKAGE):
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [pathlib.Path(folder, name) for name in names]
    return sorted(found)


def sources_changed() -> bool:
    """Whether a source was written after this process began: what was imported may be older than what is there."""
    files = source_files()
    return not files or max(path.stat().st_ctime for path in files) >= BEGAN
