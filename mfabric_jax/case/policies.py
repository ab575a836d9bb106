"""Policies and schedulers of circuits by name; each is defined in `policies/` or `circuit_schedules/`.

They are outside of these so that settings and help load without JAX.
"""

import os
from typing import Any

from mfabric_jax.checks import InputError, one_of

NAMES = (
    *("greedy", "greedy-released", "greedy-next", "uniform", "random", "static", "previous", "topoopt", "matching"),
    *("threshold", "local-search", "relaxed", "joint", "sample-average", "index", "learned", "untrained", "exact"),
    "topologies",
)
SCHEDULERS = (
    *("bvn", "solstice", "eclipse", "spectra", "whole-pair", "quick", "rotor", "keep-or-turn", "joint", "exact"),
)
NO_SCHEDULE = "none"
NAMED = {"policy": NAMES, "scheduler": SCHEDULERS}
SUFFIX = ".policy"  # of files that `mfabric train` writes


def is_function(name: str) -> bool:
    return ".py:" in name


def is_file(name: str) -> bool:
    return name.endswith(SUFFIX) or (os.sep in name and not is_function(name))


def name_of(policy: Any) -> str:
    """The name under which a policy stands in rows; `policy`: its name or a function."""
    return policy if isinstance(policy, str) else getattr(policy, "__name__", type(policy).__name__)


def check_name(name: str, kind: str = "policy") -> str:
    """The name of a policy of the package, of a file, or FILE.py:FUNCTION; `InputError` for anything else. The same
    for another `kind` of `NAMED`, which has no files of its own."""
    if is_function(name) and not os.path.isfile(path := name.rpartition(":")[0]):
        raise InputError(f"{kind} {name!r} must be FILE.py:FUNCTION, but there is no file {path!r}.")
    if is_function(name) or (kind == "policy" and is_file(name)):
        return name
    if name.endswith(".py") or ":" in name:
        raise InputError(f"{kind} {name!r} must be FILE.py:FUNCTION where it is one of your own.")
    return one_of(kind, name, NAMED[kind])
