"""The axes of a sweep: their settings, their values, and the columns of all configurations."""

import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfabric_jax.case.grid import MOST_CASES, WHOLE_BELOW, Setting, check_form, check_range, draw, is_number
from mfabric_jax.checks import InputError
from mfabric_jax.workload import Workload

WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Workload: "in Python a Workload"}


def check_value(table: str, name: str, value: Any, setting: Setting) -> None:
    """Raise InputError for a value that a setting cannot have."""
    allowed = _kinds(setting.type)
    kind = tuple if isinstance(value, list) else type(value)
    if kind not in allowed and not (kind is int and float in allowed):
        words = " or ".join(WORDS.get(kind, "a list") for kind in allowed if kind is not type(None))
        words += " (whole = true draws these)" if table == "random" and int in allowed else ""
        raise InputError(f"{table}.{name} must be {words}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{table}.{name} must be finite, got {value!r}.")
    if isinstance(value, int) and abs(value) >= WHOLE_BELOW:
        raise InputError(f"{table}.{name} must be below 2^31, got {value!r}.")


def _kinds(hint: Any) -> list[type]:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return [kind for part in parts for kind in _kinds(part)]
    return [type(parts[0])] if origin is typing.Literal else [origin or hint]


def axis_values(table: str, name: str, axis: Any) -> Sequence:
    """Return the values of an axis, or one draw of a range. Raise InputError for an empty or invalid axis."""
    if table == "fixed":
        return (axis,)
    if table == "random":
        check_form(f"random.{name}", axis)
        if "of" in axis:
            return axis["of"]
        check_range(f"random.{name}", **axis)
        return draw(name, axis, 1, 0).tolist()
    if not isinstance(axis, list | tuple) or not axis:
        raise InputError(f"{table}.{name} must be a list of at least one value, got {axis!r}.")
    if table == "grid" and len({value if is_number(value) else repr(value) for value in axis}) < len(axis):
        raise InputError(f"grid.{name} must not repeat a value, got {list(axis)}.")
    return axis


def columns(grid: Mapping, together: Mapping, random: Mapping, draws: int, draw_seed: int) -> dict[str, np.ndarray]:
    """Return the columns of all configurations: `grid` (last axis fastest) x items of `together` lists x `draws`."""
    places = len(next(iter(together.values()))) if together else 1
    shape = (*(len(values) for values in grid.values()), places, draws)
    if math.prod(shape) > MOST_CASES:
        got = " x ".join(map(str, shape))
        raise InputError(f"a sweep must have at most {MOST_CASES:,} configurations, got {got}.")
    axis_of = {name: axis for axis, name in enumerate(grid)} | dict.fromkeys(together, len(grid))
    arrays = {}
    for name, values in {**grid, **together}.items():
        along = _array(values).reshape([-1 if axis == axis_of[name] else 1 for axis in range(len(shape))])
        arrays[name] = np.broadcast_to(along, shape).reshape(-1)
    for name, spec in random.items():
        values = draw(name, spec, math.prod(shape), draw_seed)
        arrays[name] = _array(spec["of"])[values] if "of" in spec else values
    return arrays


def _array(values: Sequence) -> np.ndarray:
    if all(is_number(value) for value in values):
        return np.asarray(values)
    array = np.empty(len(values), object)
    array[:] = [tuple(value) if isinstance(value, list) else value for value in values]
    return array
