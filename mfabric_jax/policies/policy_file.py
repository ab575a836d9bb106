"""Files of trained policies and checkpoints: one line of JSON (the header), then arrays in Equinox's format."""

import hashlib
import io
import json
import os
from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import equinox as eqx
import jax

from mfabric_jax.checks import InputError, whole
from mfabric_jax.support.atomic import replacing
from mfabric_jax.support.text_files import mapping_in

VERSION = 1
NAMED = "mfabric_jax"  # header key of the layout version
NO_ARRAYS = "{!r} does not hold the arrays that its first line announces."
LEAST_ARRAY = 128  # bytes of an empty array
Tree = TypeVar("Tree")


class Stored(NamedTuple):
    header: dict[str, Any]
    body: bytes
    path: str

    def leaves(self, like: Tree) -> Tree:
        """Return the arrays as a tree with the structure, shapes and dtypes of `like`.

        Raise `InputError` if they do not fit.
        """
        try:
            opened = io.BytesIO(self.body)
            tree = eqx.tree_deserialise_leaves(opened, like)
        except (RuntimeError, ValueError, EOFError, OSError, MemoryError) as error:
            raise InputError(NO_ARRAYS.format(self.path)) from error
        if opened.read(1):
            raise InputError(f"{self.path!r} holds more arrays than its first line announces.")
        return tree

    def network(self, build: Callable[..., Tree]) -> Tree:
        """Return the network that `build` makes from the header's settings and a key, with the arrays of the file.

        Raise `InputError` if they do not fit.
        """
        settings = self.header["settings"]
        self._check_arrays(whole("depth", settings["depth"]))
        with jax.ensure_compile_time_eval():  # the first use may be inside jit
            return self.leaves(eqx.filter_eval_shape(build, **settings, key=jax.random.key(0)))

    def _check_arrays(self, least: int) -> None:
        """Raise `InputError` if the file is too small for `least` arrays."""
        if least * LEAST_ARRAY > len(self.body):
            raise InputError(NO_ARRAYS.format(self.path))


def write(path: str | os.PathLike[str], header: dict[str, Any], tree: Any) -> Path:
    """Write `header`, which JSON must be able to hold, and the arrays of `tree`, atomically."""
    path, body = Path(path), io.BytesIO()
    eqx.tree_serialise_leaves(body, tree)
    digest = hashlib.sha256(body.getvalue()).hexdigest()
    line = json.dumps({NAMED: VERSION} | header | {"digest": digest}).encode()
    return replace(path, line + b"\n" + body.getvalue())


def replace(path: Path, content: bytes) -> Path:
    """Write `content` atomically; if the process is killed, the old file stays."""
    with replacing(path) as (part,):
        part.write_bytes(content)
    return path


def read(path: str | os.PathLike[str] | Traversable) -> Stored:
    """Return the content of a file from `write`. Raise `InputError` if it is missing, damaged or of another layout."""
    path = path if isinstance(path, Traversable) else Path(path)
    name = str(path)
    try:
        line, _, body = path.read_bytes().partition(b"\n")
    except OSError as error:
        raise InputError(f"policy file {name!r} cannot be read ({error.strerror or error}).") from error
    try:
        header = mapping_in(line, repr(name), "what a policy is")
        version = header[NAMED]
    except (InputError, KeyError):
        raise InputError(f"{name!r} is not a policy file: its first line must be JSON of `mfabric train`.") from None
    if version != VERSION:
        raise InputError(f"policy file {name!r} must have the layout {VERSION}, got {version!r}.")
    if hashlib.sha256(body).hexdigest() != header.get("digest"):
        raise InputError(f"policy file {name!r} is damaged: the bytes after its first line have changed.")
    return Stored(header, body, name)
