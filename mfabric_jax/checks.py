"""Checks of values that a person typed: one sentence that names the field, the value and what is allowed.

Each check returns its value. Tracers pass unchecked: values are checked once, at the outermost call.
"""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from jax.core import Tracer

T = TypeVar("T")


class InputError(ValueError):
    """A mistake in what the caller asked for. The message is one sentence for a person."""


def _concrete(value: Any) -> bool:
    return not isinstance(value, Tracer)


def _plain(value: Any) -> Any:
    array = np.asarray(value)
    return array.item() if array.ndim == 0 else array.tolist()


def _numbers(field: str, value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise InputError(f"{field} must be a number, got {value!r}.")
    return array


def positive(field: str, value: T) -> T:
    """A finite number (or array of them) above zero."""
    if _concrete(value):
        array = _numbers(field, value)
        if not np.all(np.isfinite(array) & (array > 0)):
            raise InputError(f"{field} must be finite and above 0, got {_plain(value)}.")
    return value


def not_negative(field: str, value: T) -> T:
    """A finite number (or array of them), zero or more."""
    if _concrete(value):
        array = _numbers(field, value)
        if not np.all(np.isfinite(array) & (array >= 0)):
            raise InputError(f"{field} must be finite and not negative, got {_plain(value)}.")
    return value


def whole(field: str, value: int, *, at_least: int = 1) -> int:
    """A whole number of at least `at_least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < at_least:
        raise InputError(f"{field} must be a whole number of at least {at_least}, got {value!r}.")
    return int(value)


def one_of(field: str, value: str, allowed: Iterable[str]) -> str:
    """A name from a list; the closest one is suggested."""
    names = list(allowed)
    if value not in names:
        near = difflib.get_close_matches(str(value), names, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise InputError(f"{field} {value!r} is unknown{hint}; allowed: {', '.join(names)}.")
    return value


def listed(field: str, value: Any) -> Any:
    """A list or tuple."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise InputError(f"{field} must be a list or tuple, got {value!r}.")
    return value


def distinct(field: str, values: Sequence) -> Any:
    """A list of at least one value, none twice."""
    if not values or len(set(values)) < len(values):
        raise InputError(f"{field} must name at least one and none twice, got {list(values)}.")
    return values


def names(field: str, given: Any, allowed: Iterable[str]) -> Any:
    """A list of known names, at least one and none twice."""
    allowed = list(allowed)
    if not listed(field, given):
        raise InputError(f"{field} must name at least one; allowed: {', '.join(allowed)}.")
    for name in given:
        one_of(field, name, allowed)
    if len(set(given)) < len(given):
        raise InputError(f"{field} must not repeat a name, got {', '.join(given)}.")
    return given
