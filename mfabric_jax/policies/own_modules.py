"""Files of policies that are a user's Equinox modules; the header says how to build a module for the arrays."""

import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from mfabric_jax.case.own_code import allow_code, check_code
from mfabric_jax.case.policies import file_of
from mfabric_jax.checks import InputError
from mfabric_jax.policies.own import load_function


def recipe(policy: Any, build: str | None, settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the part of a file's header that builds the policy. Raise `InputError` if it cannot be built again."""
    kind = type(policy)
    if not isinstance(policy, eqx.Module) or not callable(policy):
        raise InputError(f"policy must be an Equinox module that can be called, got {kind.__name__}.")
    if build is None and (kind.__module__ == "__main__" or "<locals>" in kind.__qualname__):
        raise InputError(
            f"build must be the FILE.py:FUNCTION or MODULE:NAME that makes a {kind.__name__}: its class is in no "
            f"module that can be imported."
        )
    build = f"{kind.__module__}:{kind.__qualname__}" if build is None else _absolute(build)
    try:
        known = json.loads(json.dumps(dict(settings or {})))
    except TypeError as error:
        raise InputError(f"settings of {build!r} must be valid JSON: {error}.") from error
    allow_code(_code_of(build))
    if not _alike(policy, like := skeleton(build, known, "build")):
        raise InputError(
            f"policy must have the arrays that {build!r} builds with settings {known}, got {_shapes(policy)} for "
            f"{_shapes(like)}."
        )
    return {"build": build, "settings": known}


def skeleton(build: str, settings: Mapping[str, Any], named: str) -> Any:
    """Return what `build` makes from the settings, with a random key if it takes one and the settings have none.

    Raise `InputError` about `named` if its code is not allowed.
    """
    check_code(_code_of(build), named)
    function = _function(build)
    arguments = dict(settings)
    try:
        if "key" in inspect.signature(function).parameters and "key" not in arguments:
            arguments["key"] = jax.random.key(0)
        with jax.ensure_compile_time_eval():  # the first use may be inside jit
            return function(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"build {build!r} with settings {dict(settings)} raised {error}.") from error


def _absolute(build: str) -> str:
    path, mark, name = build.rpartition(".py:")
    return f"{Path(path + '.py').resolve()}:{name}" if mark else build


def _code_of(build: str) -> str:
    """Return the file or module that `build` names."""
    return file_of(build) if ".py:" in build else build.partition(":")[0]


def _function(build: str) -> Callable[..., Any]:
    if ".py:" in build:
        return load_function(build)
    module, _, name = build.partition(":")
    try:
        value: Any = importlib.import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise InputError(
            f"build must be FILE.py:FUNCTION or MODULE:NAME that exists, got {build!r}: {error}."
        ) from None
    home = getattr(value, "__module__", None) or ""
    if not callable(value) or home.partition(".")[0] != module.partition(".")[0]:
        raise InputError(f"build must name a class or function of its own module, got {build!r}.")
    return value


def _alike(policy: Any, like: Any) -> bool:
    """Compare by name and arrays, since an imported class differs from the same class run from its file."""
    return type(policy).__qualname__ == type(like).__qualname__ and _shapes(policy) == _shapes(like)


def _shapes(tree: Any) -> list[str]:
    leaves = jax.tree_util.tree_leaves_with_path(eqx.filter(tree, eqx.is_array_like))
    return [f"{jax.tree_util.keystr(path)} {np.asarray(x).dtype} {list(np.shape(x))}" for path, x in leaves]
