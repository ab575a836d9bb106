"""The door for arrays: what a caller passes becomes an array of JAX, and is checked where its values are known.

NumPy reads values first, since JAX would cut integers of 64 bits to 32. Values are known outside of JAX programs, unless
they are on an accelerator, which a call does not wait for. Of values that are not known the kind is checked; forbidden
ones become NaN (`marked`) or an outcome. A bool counts as 0 or 1, except where an index is meant.
"""

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from mfabric_jax.checks import InputError

Array = Any  # of NumPy or of JAX


class Rule(NamedTuple):
    """Which numbers are allowed, in words and for every entry; NumPy's arrays or JAX's."""

    words: str
    holds: Callable[[Any], Any]


FINITE = Rule("finite", lambda x: (x > -math.inf) & (x < math.inf))
NOT_NEGATIVE = Rule("finite and not negative", lambda x: (x >= 0) & (x < math.inf))
FROM_0_TO_INFINITY = Rule("0 or more", lambda x: x >= 0)
NO_NAN = Rule("no NaN", lambda x: x == x)
NAN_OR_NOT_NEGATIVE = Rule("not negative", lambda x: ~(x < 0))


def floats(field: str, value: Any, rule: Rule | None = None, dtype: Any = None, *, wait: bool = False) -> jax.Array:
    """The numbers as floats of JAX; `InputError` for another kind, for values that `rule` forbids, and for values too
    large for the dtype.

    The dtype is `dtype`, or that of a float of 32 or 64 bits; half precision becomes float32, whose 24 bits suffice to
    add bytes up. `wait`: check arrays on an accelerator, too.
    """
    array = real_numbers(field, value)
    dtype = _float_dtype(array.dtype) if dtype is None else dtype
    if rule is not None and (known := known_values(array, wait=wait)) is not None:
        refuse(field, known, rule)
    if isinstance(array, np.ndarray):
        return jnp.asarray(_narrowed(field, array, dtype))
    _refuse_cut(field, array)
    return array if array.dtype == dtype else array.astype(dtype)


def host_floats(field: str, value: Any, rule: Rule | None = None) -> np.ndarray:
    """The numbers in float64 for computations on the host; `InputError` as of `floats`, and for traced values."""
    if isinstance(value, Tracer):
        raise InputError(f"{field} must be known, got a value that JAX traces: this runs on the host, not inside jit.")
    array = np.asarray(real_numbers(field, value)).astype(float)
    if rule is not None:
        refuse(field, array, rule)
    return array


def indices(field: str, value: Any, least: int, most: int, *, wait: bool = False) -> jax.Array:
    """Whole numbers from `least` to `most` as integers of JAX; `InputError` for others where they are known."""
    array = _whole_numbers(field, value)
    if (known := known_values(array, wait=wait)) is not None:
        refuse_outside(field, known, least, most)
    return jnp.asarray(array, _int_dtype(array.dtype))


def host_indices(field: str, value: Any, least: int, most: int) -> np.ndarray:
    """Whole numbers from `least` to `most` as int64 of NumPy."""
    array = np.asarray(_whole_numbers(field, value))
    refuse_outside(field, array, least, most)
    return array.astype(np.int64, copy=False)


def counts(field: str, value: Any) -> jax.Array:
    """Whole or real numbers of at least 32 bits; `InputError` for NaN and for what 32 bits do not hold."""
    array = real_numbers(field, value)
    if jnp.issubdtype(array.dtype, jnp.floating):
        return floats(field, array, NO_NAN)
    dtype = _int_dtype(array.dtype)
    if isinstance(array, np.ndarray):
        refuse_outside(field, array, jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return jnp.asarray(array, dtype)


def marked(array: jax.Array, rule: Rule) -> jax.Array:
    """The array, with NaN where the rule does not hold: for values that are not known."""
    return jnp.where(rule.holds(array), array, jnp.asarray(jnp.nan, array.dtype))


def floats_or_nan(field: str, value: Any, rule: Rule, dtype: Any = None) -> jax.Array:
    """`floats`; where the values are not known, those that the rule forbids are NaN."""
    array = floats(field, value, rule, dtype)
    return array if known_values(array) is not None else marked(array, rule)


def known_values(value: Any, *, wait: bool = False) -> np.ndarray | None:
    """The values of an array; None where JAX traces them, or where they are on an accelerator and we do not `wait`."""
    if isinstance(value, Tracer):
        return None
    if isinstance(value, jax.Array) and not wait and any(device.platform != "cpu" for device in value.devices()):
        return None
    return np.asarray(value)


def refuse(field: str, array: np.ndarray, rule: Rule) -> None:
    """`InputError` that names the first value that the rule forbids."""
    wrong = ~np.asarray(rule.holds(array))
    if wrong.any():
        raise InputError(f"{field} must be {rule.words}, got {_first(array, wrong)}.")


def refuse_outside(field: str, array: np.ndarray, least: int, most: int) -> None:
    """`InputError` for whole numbers outside of a range."""
    if array.size and (array.min() < least or array.max() > most):
        raise InputError(f"{field} must lie in {least}..{most}, got {array.min()}..{array.max()}.")


def real_numbers(field: str, value: Any) -> Array:
    """The value as NumPy's array, or as JAX's if it is one or holds traced values; `InputError` unless it holds real
    numbers."""
    array = value if isinstance(value, jax.Array | np.ndarray) else _read(field, value)
    if array.dtype == object:
        array = _from_objects(field, value, array)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise InputError(f"{field} must be real numbers, got {array.dtype}.")
    if not (array.dtype == bool or _is(array.dtype, jnp.integer) or _is(array.dtype, jnp.floating)):
        raise InputError(f"{field} must be numbers, got {array.dtype}.")
    return array


def _read(field: str, value: Any) -> Array:
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:  # a list with traced numbers in it
        return jnp.stack([jnp.asarray(floats(field, each)) for each in value])
    except ValueError as error:  # lists of unequal lengths
        raise InputError(f"{field} must be an array of numbers, got lists of unequal lengths.") from error


def _from_objects(field: str, value: Any, array: np.ndarray) -> np.ndarray:
    """Python's numbers too large for 64 bits, fractions and the like."""
    if not all(isinstance(each, numbers.Real) for each in array.flat):
        raise InputError(f"{field} must be numbers, got {type(value).__name__}.")
    try:
        return array.astype(float)
    except OverflowError as error:
        raise InputError(f"{field} must be numbers below {np.finfo(float).max:.2g}, got a larger one.") from error


def _whole_numbers(field: str, value: Any) -> Array:
    array = real_numbers(field, value)
    if not _is(array.dtype, jnp.integer):
        raise InputError(f"{field} must be whole numbers of an integer type, got {array.dtype}.")
    return array


def _is(dtype: Any, kind: Any) -> bool:
    return bool(jnp.issubdtype(dtype, kind))


def _float_dtype(dtype: Any) -> Any:
    if not _is(dtype, jnp.floating):
        return jnp.result_type(float)
    return jax.dtypes.canonicalize_dtype(np.float64 if jnp.finfo(dtype).bits > 32 else np.float32)


def _int_dtype(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(np.int64 if dtype == np.int64 else np.int32)


def _narrowed(field: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype, copy=False)
    lost = np.isinf(narrow) & ~np.isinf(array) if array.dtype.itemsize > narrow.dtype.itemsize else np.zeros((), bool)
    if lost.any():
        raise InputError(f"{field} must be at most {np.finfo(dtype).max:.2g} in {dtype}, got {_first(array, lost)}.")
    return narrow


def _refuse_cut(field: str, array: jax.Array) -> None:
    """`InputError` for traced integers of 32 bits that may have been integers of 64 bits outside."""
    cut = array.dtype in (jnp.int32, jnp.uint32) and jax.dtypes.canonicalize_dtype(np.int64) == np.int32
    if cut and isinstance(array, Tracer) and not array.aval.weak_type:
        raise InputError(
            f"{field} must be floats inside jit, vmap and grad, got {array.dtype}: JAX cuts integers of 64 bits to 32 "
            "at the entrance, so convert with astype(float) outside."
        )


def _first(array: np.ndarray, wrong: np.ndarray) -> str:
    """The first wrong value and its index."""
    at = tuple(np.argwhere(np.broadcast_to(wrong, array.shape))[0].tolist())
    return f"{array[at]}" + (f" at [{' '.join(map(str, at))}]" if at else "")
