"""The axes of a sweep: what may be set, the values that its tables give, and those of every configuration."""

import math
import sys
import types
import typing
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.workload import Workload

MOST_CONFIGURATIONS = 2**26  # every one has its place in a column of numbers
MOST = 2**31  # whole numbers are of 32 bits on devices
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", Workload: "in Python a Workload"}
SCALES = ("linear", "log")
RANGE = {"low", "high", "scale", "whole"}
FORM = "{ of = [...] } or { low = ..., high = ..., scale = 'linear' or 'log', whole = true or false }"


class Setting(NamedTuple):
    """- `default`.   - `type`: of its values.   - `data`: other values of it run in the same program."""

    default: Any
    type: Any
    data: bool = False


def check_value(table: str, name: str, value: Any, setting: Setting) -> None:
    """`InputError` for a value that a setting cannot have."""
    allowed = _kinds(setting.type)
    kind = tuple if isinstance(value, list) else type(value)
    if kind not in allowed and not (kind is int and float in allowed):
        words = " or ".join(WORDS.get(kind, "a list") for kind in allowed if kind is not type(None))
        words += " (whole = true draws these)" if table == "random" and int in allowed else ""
        raise InputError(f"{table}.{name} must be {words}, got {value!r}.")
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{table}.{name} must be finite, got {value!r}.")
    if isinstance(value, int) and abs(value) >= MOST:
        raise InputError(f"{table}.{name} must be below 2^31, got {value!r}.")


def _kinds(hint: Any) -> list[type]:
    """The classes of values that a type hint allows."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return [kind for part in parts for kind in _kinds(part)]
    return [type(parts[0])] if origin is typing.Literal else [origin or hint]


def axis_values(table: str, name: str, given: Any) -> Sequence:
    """The values that a table gives to a setting; of a random range one that is drawn.

    `InputError` for an axis without values, and for one that cannot be drawn.
    """
    if table == "fixed":
        return (given,)
    if table == "random":
        keys = set(given) if isinstance(given, Mapping) else set()
        if {"low", "high"} <= keys <= RANGE:
            _check_range(f"random.{name}", **given)
            return _drawn(1, np.random.default_rng(0), **given).tolist()
        if keys != {"of"}:
            raise InputError(f"random.{name} must be {FORM}, got {given!r}.")
        name, given = f"{name}.of", given["of"]
    if not isinstance(given, list | tuple) or not given:
        raise InputError(f"{table}.{name} must be a list of at least one value, got {given!r}.")
    if table == "grid" and len({value if _is_number(value) else repr(value) for value in given}) < len(given):
        raise InputError(f"grid.{name} must not repeat a value, got {list(given)}.")
    return given


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_range(field: str, low: Any, high: Any, scale: Any = "linear", whole: Any = False) -> None:
    for end, value in (("low", low), ("high", high)):
        if not _is_number(value) or not abs(value) <= sys.float_info.max:
            raise InputError(f"{field}.{end} must be a number, got {value!r:.80}.")
    one_of(f"{field}.scale", scale, SCALES)
    if not isinstance(whole, bool):
        raise InputError(f"{field}.whole must be true or false, got {whole!r}.")
    if low > high or (scale == "log" and low <= 0):
        least = "above 0 and " if scale == "log" else ""
        raise InputError(f"{field}.low must be {least}at most high ({high}), got {low}.")
    if not math.isfinite(high - low):
        raise InputError(f"{field} must be no wider than numbers are large, got from {low} to {high}.")
    if whole and (max(abs(low), abs(high)) >= MOST or int(low) != low or int(high) != high):
        raise InputError(f"{field} is whole: low and high must be whole numbers below 2^31, got {low} and {high}.")


def columns(grid: Mapping, together: Mapping, random: Mapping, draws: int, draw_seed: int) -> dict[str, np.ndarray]:
    """A value of every axis for each configuration: every combination of `grid` (its last axis changes fastest of
    them) with every place of the lists in `together`, `draws` times with new random values."""
    places = len(next(iter(together.values()))) if together else 1
    shape = (*(len(values) for values in grid.values()), places, draws)
    if math.prod(shape) > MOST_CONFIGURATIONS:
        got = " x ".join(map(str, shape))
        raise InputError(f"a sweep must have at most {MOST_CONFIGURATIONS:,} configurations, got {got}.")
    axis_of = {name: axis for axis, name in enumerate(grid)} | dict.fromkeys(together, len(grid))
    found = {}
    for name, values in {**grid, **together}.items():
        along = _array(values).reshape([-1 if axis == axis_of[name] else 1 for axis in range(len(shape))])
        found[name] = np.broadcast_to(along, shape).reshape(-1)
    for name, spec in random.items():
        rng = np.random.default_rng([draw_seed, zlib.crc32(name.encode())])
        found[name] = _drawn(math.prod(shape), rng, **spec)
    return found


def _array(values: Sequence) -> np.ndarray:
    """Numbers as numbers; anything else as it is."""
    if all(_is_number(value) for value in values):
        return np.asarray(values)
    found = np.empty(len(values), object)
    found[:] = [tuple(value) if isinstance(value, list) else value for value in values]
    return found


def _drawn(count: int, rng: np.random.Generator, of=None, low=0, high=0, scale="linear", whole=False) -> np.ndarray:
    if of is not None:
        return _array(of)[rng.integers(len(of), size=count)]
    if scale == "linear":
        return rng.integers(low, high, size=count, endpoint=True) if whole else rng.uniform(low, high, count)
    first, last = (low - 0.5, high + 0.5) if whole else (low, high)
    value = np.exp(rng.uniform(np.log(first), np.log(last), count))
    return np.clip(np.rint(value), low, high).astype(np.int64) if whole else np.clip(value, low, high)
