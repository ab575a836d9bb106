"""Policies by name; each is defined in `policies/` and stands in its `REGISTRY`.

It is outside `policies/` so that settings and help load without JAX.
"""

import os
from typing import Any

from mfabric_jax.checks import InputError, one_of

NAMES = (
    *("greedy", "greedy-released", "greedy-next", "uniform", "random", "static", "previous", "topoopt", "matching"),
    *("threshold", "local-search", "relaxed", "joint", "sample-average", "index", "learned", "exact", "topologies"),
)
SUFFIX = ".policy"  # of files that `mfabric train` writes


def is_function(name: str) -> bool:
    return ".py:" in name


def is_file(name: str) -> bool:
    return name.endswith(SUFFIX) or (os.sep in name and not is_function(name))


def name_of(policy: Any) -> str:
    """The name under which a policy stands in rows; `policy`: its name or a function."""
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def check_name(name: str) -> str:
    """The name of a policy of the package, of a file, or FILE.py:FUNCTION; `InputError` for anything else."""
    if is_function(name) and not os.path.isfile(path := name.rpartition(":")[0]):
        raise InputError(f"policy {name!r} must be FILE.py:FUNCTION, but there is no file {path!r}.")
    if is_function(name) or is_file(name):
        return name
    if name.endswith(".py") or ":" in name:
        raise InputError(f"policy {name!r} must be FILE.py:FUNCTION where it is one of your own.")
    return one_of("policy", name, NAMES)
