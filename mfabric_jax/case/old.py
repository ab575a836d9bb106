"""Names of 0.1, and where they are now."""

from collections.abc import Mapping
from typing import Any

from mfabric_jax.checks import InputError

TABLES = ("fixed", "grid", "list", "evaluate")  # keys of a sweep file of 0.1


def refuse_old(given: Mapping[str, Any], name: str) -> None:
    """`InputError` for a file of 0.1, with what to write instead."""
    for key in TABLES:
        if key in given:
            raise InputError(f"{name}: [{key}] is of a sweep file of 0.1; settings stand by their paths now.")
