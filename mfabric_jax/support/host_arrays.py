"""Check, with NumPy, the arrays of numbers that callers pass: kinds, ranges and index ranges.

This module does not load JAX: before JAX is loaded, no value can be JAX's. A bool counts as 0 or 1, but is no index.
"""

import math
import numbers
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, concrete
from mfabric_jax.support.array_module import Array, array_module


class NumberRule(NamedTuple):
    """Which numbers are allowed: `words` say what they must do; `holds` tests the entries of a NumPy or JAX array."""

    words: str
    holds: Callable[[Any], Any]


FINITE = NumberRule("be finite", lambda x: (x > -math.inf) & (x < math.inf))
NOT_NEGATIVE = NumberRule("be finite and not negative", lambda x: (x >= 0) & (x < math.inf))
FROM_0_TO_INFINITY = NumberRule("be 0 or more", lambda x: x >= 0)
NO_NAN = NumberRule("not be NaN", lambda x: x == x)
NAN_OR_NOT_NEGATIVE = NumberRule("not be negative", lambda x: ~(x < 0))


def host_floats(field: str, value: Any, rule: NumberRule | None = None) -> np.ndarray:
    """Return float64 numbers, to compute on the host. Raise InputError as `floats` does, and for traced values."""
    if not concrete(value):
        raise InputError(f"{field} must be known, got a value that JAX traces: this runs on the host, not inside jit.")
    array = np.array(real_numbers(field, value), float)
    if rule is not None:
        refuse(field, array, rule)
    return array


def floats_alike(field: str, value: Any, rule: NumberRule) -> Array:
    """Return floats of 32 or 64 bits: a NumPy array of NumPy values, or `arrays.floats_or_nan` of JAX values."""
    array = real_numbers(field, value)
    if not isinstance(array, np.ndarray):
        return floats_of_jax(field, array, rule)
    refuse(field, array, rule)
    single = kind_of(array.dtype) == "float" and array.dtype.itemsize <= 4
    return array.astype(np.float32 if single else float, copy=False)


def floats_of_jax(field: str, array: Array, rule: NumberRule) -> Array:
    """Return a JAX array as floats; if its values are unknown, forbidden ones become NaN."""
    if (known := known_values(array)) is not None:
        refuse(field, known, rule)
    array = cast_floats(field, array, float_dtype(array.dtype))
    return array if known is not None else mark_forbidden(array, rule)


def known_values(value: Any, *, wait: bool = False) -> np.ndarray | None:
    """Return the values of an array; None if it is traced, or on an accelerator without `wait`."""
    if not concrete(value):
        return None
    if _is_of_jax(value) and not wait and any(device.platform != "cpu" for device in value.devices()):
        return None
    return np.asarray(value)


def mark_forbidden(array: Array, rule: NumberRule) -> Array:
    """Return the array with NaN where the rule does not hold, for arrays of unknown values."""
    xp = array_module(array)
    return xp.where(rule.holds(array), array, xp.asarray(xp.nan, array.dtype))


def float_dtype(dtype: Any) -> Any:
    """Return the dtype of JAX floats for numbers of this dtype."""
    jax = sys.modules["jax"]
    if kind_of(dtype) != "float":
        return jax.numpy.result_type(float)
    return jax.dtypes.canonicalize_dtype(np.float64 if jax.numpy.finfo(dtype).bits > 32 else np.float32)


def cast_floats(field: str, array: Array, dtype: Any) -> Array:
    """Return a JAX array in a float dtype.

    Raise InputError for traced 32-bit integers, which may have been 64-bit integers outside.
    """
    jax = sys.modules["jax"]
    cut = array.dtype in (np.int32, np.uint32) and jax.dtypes.canonicalize_dtype(np.int64) == np.int32
    if cut and not concrete(array) and not getattr(array.aval, "weak_type", False):
        raise InputError(
            f"{field} must be floats inside jit, vmap and grad, got {array.dtype}: JAX cuts integers of 64 bits to 32 "
            "on entry, so convert with astype(float) outside."
        )
    return array if array.dtype == dtype else array.astype(dtype)


def host_indices(field: str, value: Any, least: int, most: int) -> np.ndarray:
    """Return whole numbers from `least` to `most` as a NumPy int64 array."""
    array = np.asarray(whole_numbers(field, value))
    refuse_outside(field, array, least, most)
    return array.astype(np.int64, copy=False)


def store_arrays(instance: Any, **arrays: Any) -> None:
    """Replace fields of a frozen instance by the arrays that its checks made."""
    for field, array in arrays.items():
        object.__setattr__(instance, field, array)


def refuse(field: str, array: np.ndarray, rule: NumberRule) -> None:
    """Raise InputError with the first value that the rule forbids, if there is one."""
    wrong = ~np.asarray(rule.holds(array))
    if wrong.any():
        raise InputError(f"{field} must {rule.words}, got {first_of(array, wrong)}.")


def refuse_outside(field: str, array: np.ndarray, least: int, most: int) -> None:
    """Raise InputError for whole numbers outside a range."""
    if array.size and (array.min() < least or array.max() > most):
        raise InputError(f"{field} must lie in {least}..{most}, got {array.min()}..{array.max()}.")


def real_numbers(field: str, value: Any) -> Array:
    """Return the value as a NumPy array, or as a JAX array if it is one or holds traced values.

    Raise InputError unless it holds real numbers.
    """
    array = value if isinstance(value, np.ndarray) or _is_of_jax(value) else _read(field, value)
    if array.dtype == object:
        array = _from_objects(field, value, array)
    kind = kind_of(array.dtype)
    if kind not in ("bool", "int", "float"):
        raise InputError(f"{field} must be {'real ' * (kind == 'complex')}numbers, got {array.dtype}.")
    return array


def _is_of_jax(value: Any) -> bool:
    jax = sys.modules.get("jax")  # before JAX is loaded, no value can be JAX's
    return jax is not None and isinstance(value, jax.Array)


def _read(field: str, value: Any) -> Array:
    if isinstance(value, list | tuple) and not all(concrete(each) for each in value):
        return sys.modules["jax"].numpy.stack([real_numbers(field, each) for each in value])
    try:
        return np.asarray(value)
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"{field} must be an array of numbers, got lists of unequal lengths.") from error


def _from_objects(field: str, value: Any, array: np.ndarray) -> np.ndarray:
    """Read Python numbers that NumPy keeps as objects: beyond 64 bits, fractions and the like."""
    if not all(isinstance(each, numbers.Real) for each in array.flat):
        raise InputError(f"{field} must be numbers, got {type(value).__name__}.")
    try:
        return array.astype(float)
    except OverflowError as error:
        raise InputError(f"{field} must be numbers below {np.finfo(float).max:.2g}, got a larger one.") from error


def whole_numbers(field: str, value: Any) -> Array:
    array = real_numbers(field, value)
    if isinstance(array, np.ndarray) and not array.size:  # NumPy reads an empty list as floats
        array = array.astype(np.int64)
    if kind_of(array.dtype) != "int":
        raise InputError(f"{field} must be integers, got {array.dtype}.")
    return array


def kind_of(dtype: Any) -> str:
    """Return bool, int, float or complex for a dtype of NumPy or JAX; for others, the name of the type."""
    known = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}
    if dtype.kind != "V":
        return known.get(dtype.kind, str(dtype))
    if (ml_dtypes := sys.modules.get("ml_dtypes")) is None:  # bfloat16 and other types that JAX adds
        return str(dtype)
    for kind, facts in (("float", ml_dtypes.finfo), ("int", ml_dtypes.iinfo)):
        try:
            facts(dtype)
            return kind
        except ValueError:
            continue
    return str(dtype)


def first_of(array: np.ndarray, wrong: np.ndarray) -> str:
    """Return the first wrong value and its index as text."""
    index = tuple(np.argwhere(np.broadcast_to(wrong, array.shape))[0].tolist())
    return f"{array[index]}" + (f" at [{' '.join(map(str, index))}]" if index else "")


BEGIN = 512  # numbers by which most rows already differ


def once_each_row(function: Callable, *arrays: np.ndarray) -> Any:
    """Return `function(*arrays)`, computed once for rows (first axis) that are equal in all arrays.

    `function` works row by row and returns an array, or several in a tuple or list.
    """
    number, first = distinct_rows(*arrays)
    if len(first) == len(number):
        return function(*arrays)
    results = function(*(array[first] for array in arrays))
    return [x[number] for x in results] if isinstance(results, tuple | list) else results[number]


def distinct_rows(*arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row [B] the number of its distinct row, and the first index of each distinct row."""
    every = np.arange(len(arrays[0]))
    if len({row.reshape(-1)[:BEGIN].tobytes() for row in arrays[0]}) == len(every):
        return every, every
    seen: dict[tuple[bytes, ...], int] = {}
    rows = zip(*arrays, strict=True)
    number = np.array([seen.setdefault(tuple(x.tobytes() for x in row), len(seen)) for row in rows], int)
    return number, np.unique(number, return_index=True)[1]
