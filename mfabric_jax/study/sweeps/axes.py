"""The values of every configuration of a design space, column by column."""

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.study.sweeps.settings import MOST

SCALES = ("linear", "log")
FORM = "{ of = [...] } or { low = ..., high = ..., scale = 'linear' or 'log', whole = true or false }"


def columns(grid: Mapping, together: Mapping, random: Mapping, draws: int, draw_seed: int) -> dict[str, np.ndarray]:
    """A value of every axis for each configuration: every combination of `grid` (its last axis changes fastest of
    them) with every place of the lists in `together`, `draws` times with new random values."""
    places = len(next(iter(together.values()))) if together else 1
    shape = (*(len(values) for values in grid.values()), places, draws)
    axes = [*((name, axis, values) for axis, (name, values) in enumerate(grid.items()))]
    axes += [(name, len(grid), values) for name, values in together.items()]
    found = {}
    for name, axis, values in axes:
        along = _array(values).reshape([-1 if other == axis else 1 for other in range(len(shape))])
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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _drawn(count: int, rng: np.random.Generator, of=None, low=0, high=0, scale="linear", whole=False) -> np.ndarray:
    if of is not None:
        return _array(of)[rng.integers(len(of), size=count)]
    if scale == "linear":
        return rng.integers(low, high, size=count, endpoint=True) if whole else rng.uniform(low, high, count)
    first, last = (low - 0.5, high + 0.5) if whole else (low, high)
    value = np.exp(rng.uniform(np.log(first), np.log(last), count))
    return np.clip(np.rint(value), low, high).astype(np.int64) if whole else np.clip(value, low, high)


def check_axes(grid: Mapping, together: Mapping, random: Mapping) -> None:
    """`InputError` for an axis without values, lists of unlike lengths, or a random axis that cannot be drawn."""
    for table, axes in (("grid", grid), ("list", together)):
        for name, values in axes.items():
            _check_list(f"{table}.{name}", values)
    for name, values in grid.items():
        if len({value if _is_number(value) else repr(value) for value in values}) < len(values):
            raise InputError(f"grid.{name} must not repeat a value, got {list(values)}.")
    if len({len(values) for values in together.values()}) > 1:
        got = ", ".join(f"{name} {len(values)}" for name, values in together.items())
        raise InputError(f"the lists of [list] are read side by side and must be equally long, got {got}.")
    for name, spec in random.items():
        field = f"random.{name}"
        if isinstance(spec, Mapping) and set(spec) == {"of"}:
            _check_list(f"{field}.of", spec["of"])
        elif isinstance(spec, Mapping) and {"low", "high"} <= set(spec) <= {"low", "high", "scale", "whole"}:
            _check_range(field, **spec)
        else:
            raise InputError(f"{field} must be {FORM}, got {spec!r}.")


def _check_list(field: str, values: Any) -> None:
    if not isinstance(values, list | tuple) or not values:
        raise InputError(f"{field} must be a list of at least one value, got {values!r}.")


def _check_range(field: str, low: Any, high: Any, scale: Any = "linear", whole: Any = False) -> None:
    for end, value in (("low", low), ("high", high)):
        if not _is_number(value) or not math.isfinite(value):
            raise InputError(f"{field}.{end} must be a number, got {value!r}.")
    one_of(f"{field}.scale", scale, SCALES)
    if not isinstance(whole, bool):
        raise InputError(f"{field}.whole must be true or false, got {whole!r}.")
    if low > high or (scale == "log" and low <= 0):
        least = "above 0 and " if scale == "log" else ""
        raise InputError(f"{field}.low must be {least}at most high ({high}), got {low}.")
    if whole and (max(abs(low), abs(high)) >= MOST or int(low) != low or int(high) != high):
        raise InputError(f"{field} is whole: low and high must be whole numbers below 2^31, got {low} and {high}.")
