"""What a sweep may set: names, defaults and types, checked before anything is computed."""

import math
import types
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

from mfabric_jax.checks import InputError, one_of

MOST = 2**31  # whole numbers are of 32 bits on devices
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "nothing"}


class Setting(NamedTuple):
    """- `default`.   - `type`: of its values.   - `data`: other values of it run in the same program."""

    default: Any
    type: Any
    data: bool = False


def check_setting(where: str, name: str, value: Any, settings: Mapping[str, Setting]) -> Any:
    """The value, as its setting has it. `InputError` for an unknown name or another kind of value."""
    one_of(f"setting of [{where}]", name, settings)
    allowed = _allowed(settings[name].type)
    if isinstance(value, list):
        value = tuple(value)
    if float in allowed and isinstance(value, int) and not isinstance(value, bool) and int not in allowed:
        value = float(value)
    if type(value) not in allowed:
        words = " or ".join(WORDS.get(kind, "a list") for kind in allowed if kind is not type(None))
        words += " (whole = true draws these)" if where == "random" and int in allowed else ""
        raise InputError(f"{where}.{name} must be {words}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{where}.{name} must be finite, got {value!r}.")
    if isinstance(value, int) and abs(value) >= MOST:
        raise InputError(f"{where}.{name} must be below 2^31, got {value!r}.")
    return value


def _allowed(hint: Any) -> tuple[type, ...]:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        return tuple(kind for each in typing.get_args(hint) for kind in _allowed(each))
    kind = typing.get_origin(hint) or hint
    return (kind,) if isinstance(kind, type) else ()
