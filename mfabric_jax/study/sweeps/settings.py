"""What a sweep may set: names, defaults and types, checked before anything is computed."""

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from mfabric_jax.checks import InputError, one_of

MOST = 2**31  # whole numbers are of 32 bits on devices
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


class Setting(NamedTuple):
    """- `default`.   - `type`: of its values.   - `data`: other values of it run in the same program."""

    default: Any
    type: Any
    data: bool = False


def check_value(table: str, name: str, value: Any, settings: Mapping[str, Setting]) -> None:
    """`InputError` for an unknown setting, and for a value that it cannot have."""
    one_of(f"setting of [{table}]", name, settings)
    allowed = _kinds(settings[name].type)
    kind = tuple if isinstance(value, list) else type(value)
    if kind not in allowed and not (kind is int and float in allowed):
        words = " or ".join(WORDS.get(kind, "a list") for kind in allowed if kind is not type(None))
        words += " (whole = true draws these)" if table == "random" and int in allowed else ""
        raise InputError(f"{table}.{name} must be {words}, got {value!r}.")
    if kind is float and not math.isfinite(value):
        raise InputError(f"{table}.{name} must be finite, got {value!r}.")
    if kind is int and abs(value) >= MOST:
        raise InputError(f"{table}.{name} must be below 2^31, got {value!r}.")


def _kinds(hint: Any) -> list[type]:
    """The classes of values that a type hint allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return [kind for part in parts for kind in _kinds(part)]
    return [type(parts[0])] if origin is typing.Literal else [origin or hint]
