"""The values of every configuration of a design space, column by column."""

import math
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.study.sweeps.settings import MOST

SCALES = ("linear", "log")
BETWEEN = {"low", "high", "scale", "whole"}


def columns(grid: Mapping, together: Mapping, random: Mapping, draws: int, draw_seed: int) -> dict[str, np.ndarray]:
    """A value of every axis for each configuration: every combination of `grid` (its last axis changes fastest of
    them) with every place of the lists in `together`, `draws` times with new random values."""
    sizes = [len(values) for values in grid.values()]
    places = len(next(iter(together.values()))) if together else 1
    shape = (*sizes, places, draws)
    found = {}
    for axis, (name, values) in enumerate(grid.items()):
        found[name] = _spread(_array(values), axis, shape)
    for name, values in together.items():
        found[name] = _spread(_array(values), len(sizes), shape)
    for name, spec in random.items():
        found[name] = _drawn(spec, math.prod(shape), np.random.default_rng([draw_seed, zlib.crc32(name.encode())]))
    return found


def count(grid: Mapping, together: Mapping, draws: int) -> int:
    """How many configurations there are."""
    places = len(next(iter(together.values()))) if together else 1
    return math.prod(len(values) for values in grid.values()) * places * draws


def _spread(values: np.ndarray, axis: int, shape: tuple[int, ...]) -> np.ndarray:
    each = values.reshape([-1 if place == axis else 1 for place in range(len(shape))])
    return np.broadcast_to(each, shape).reshape(-1)


def _array(values: Sequence) -> np.ndarray:
    """Numbers as numbers; anything else as it is."""
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return np.asarray(values)
    found = np.empty(len(values), object)
    found[:] = [tuple(value) if isinstance(value, list) else value for value in values]
    return found


def check_axes(grid: Mapping, together: Mapping, random: Mapping) -> None:
    """`InputError` for an axis without values, lists of unlike lengths, or a random axis that cannot be drawn."""
    for table, axes in (("grid", grid), ("list", together)):
        for name, values in axes.items():
            if not isinstance(values, list | tuple) or not values:
                raise InputError(f"{table}.{name} must be a list of at least one value, got {values!r}.")
    for name, values in grid.items():
        if len({_told_apart(value) for value in values}) < len(values):
            raise InputError(f"grid.{name} must not repeat a value, got {list(values)}.")
    lengths = {name: len(values) for name, values in together.items()}
    if len(set(lengths.values())) > 1:
        got = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise InputError(f"the lists of [list] are read side by side and must be equally long, got {got}.")
    for name, spec in random.items():
        _check_random(name, spec)


def _told_apart(value: Any) -> Any:
    """What tells values apart: 100 and 100.0 are one."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if number else repr(value)


def _check_random(name: str, spec: Any) -> None:
    field = f"random.{name}"
    if not isinstance(spec, Mapping) or not ({"of"} == set(spec) or {"low", "high"} <= set(spec) <= BETWEEN):
        form = "{ of = [...] } or { low = ..., high = ..., scale = 'linear' or 'log', whole = true or false }"
        raise InputError(f"{field} must be {form}, got {spec!r}.")
    if "of" in spec:
        if not isinstance(spec["of"], list | tuple) or not spec["of"]:
            raise InputError(f"{field}.of must be a list of at least one value, got {spec['of']!r}.")
        return
    for end in ("low", "high"):
        value = spec[end]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{field}.{end} must be a number, got {value!r}.")
    low, high, scale, whole = spec["low"], spec["high"], spec.get("scale", "linear"), spec.get("whole", False)
    one_of(f"{field}.scale", scale, SCALES)
    if not isinstance(whole, bool):
        raise InputError(f"{field}.whole must be true or false, got {whole!r}.")
    if low > high or (scale == "log" and low <= 0):
        least = "above 0 and " if scale == "log" else ""
        raise InputError(f"{field}.low must be {least}at most high ({high}), got {low}.")
    if whole and max(abs(low), abs(high)) >= MOST:
        raise InputError(f"{field} is whole: low and high must be below 2^31, got {low} and {high}.")
    if whole and (int(low) != low or int(high) != high):
        raise InputError(f"{field} is whole: low and high must be whole numbers, got {low} and {high}.")


def _drawn(spec: Mapping, many: int, rng: np.random.Generator) -> np.ndarray:
    if "of" in spec:
        values = _array(spec["of"])
        return values[rng.integers(len(values), size=many)]
    low, high, whole = spec["low"], spec["high"], spec.get("whole", False)
    if whole and spec.get("scale", "linear") == "linear":
        return rng.integers(low, high, size=many, endpoint=True)
    if spec.get("scale", "linear") == "linear":
        return rng.uniform(low, high, many)
    first, last = (low - 0.5, high + 0.5) if whole else (low, high)
    value = np.exp(rng.uniform(np.log(first), np.log(last), many))
    return np.clip(np.rint(value), low, high).astype(np.int64) if whole else np.clip(value, low, high)
