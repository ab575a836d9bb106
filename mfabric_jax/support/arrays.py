"""Convert the values that callers pass into JAX arrays, and check those that are known.

NumPy reads values first, since JAX would cut 64-bit integers to 32 bits. Values are known outside of JAX programs,
unless they are on an accelerator, which a call does not wait for. For unknown values only the kind is checked;
forbidden ones become NaN (`mark_forbidden`) or are reported as an outcome.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.support.host_arrays import (
    NO_NAN,
    NumberRule,
    cast_floats,
    first_of,
    float_dtype,
    kind_of,
    known_values,
    mark_forbidden,
    real_numbers,
    refuse,
    refuse_outside,
    whole_numbers,
)

FloatScalar = Float[Array | np.ndarray, ""] | np.floating[Any] | float  # also traced


def floats(
    field: str, value: Any, rule: NumberRule | None = None, dtype: Any = None, *, wait: bool = False
) -> jax.Array:
    """Return the numbers as JAX floats.

    The dtype is `dtype`, or the value's own; half precision becomes float32, whose 24 bits suffice to add up bytes.
    `wait`: also check values on an accelerator. Raise InputError for other kinds, for values that `rule` forbids, and
    for values too large for the dtype.
    """
    array = real_numbers(field, value)
    dtype = float_dtype(array.dtype) if dtype is None else dtype
    if rule is not None and (known := known_values(array, wait=wait)) is not None:
        refuse(field, known, rule)
    if isinstance(array, np.ndarray):
        return jnp.asarray(_cast(field, array, dtype))
    return cast_floats(field, array, dtype)


def indices(field: str, value: Any, least: int, most: int, *, wait: bool = False) -> jax.Array:
    """Return whole numbers as JAX integers; raise InputError if known values lie outside `least`..`most`."""
    array = whole_numbers(field, value)
    if (known := known_values(array, wait=wait)) is not None:
        refuse_outside(field, known, least, most)
    return jnp.asarray(array, _int_dtype(array.dtype))


def counts(field: str, value: Any) -> jax.Array:
    """Return whole or real numbers of at least 32 bits; raise InputError for NaN and for integers that do not fit."""
    array = real_numbers(field, value)
    if kind_of(array.dtype) == "float":
        return floats(field, array, NO_NAN)
    dtype = _int_dtype(array.dtype)
    if isinstance(array, np.ndarray):
        refuse_outside(field, array, jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
    return jnp.asarray(array, dtype)


def floats_or_nan(field: str, value: Any, rule: NumberRule, dtype: Any = None) -> jax.Array:
    """Return `floats`; if values are unknown, forbidden ones become NaN."""
    array = floats(field, value, rule, dtype)
    return array if known_values(array) is not None else mark_forbidden(array, rule)


def _int_dtype(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(np.int64 if dtype == np.int64 else np.int32)


def _cast(field: str, array: np.ndarray, dtype: Any) -> np.ndarray:
    with np.errstate(over="ignore"):
        narrow = array.astype(dtype, copy=False)
    lost = np.isinf(narrow) & ~np.isinf(array) if array.dtype.itemsize > narrow.dtype.itemsize else np.zeros((), bool)
    if lost.any():
        raise InputError(f"{field} must be at most {np.finfo(dtype).max:.2g} in {dtype}, got {first_of(array, lost)}.")
    return narrow


def group_numbers(group: Any, dtype: str) -> Any:
    """Return the tree with its numbers as NumPy arrays, so that other values reuse the compiled program."""
    return jax.tree.map(lambda x: np.asarray(x, np.int32 if np.asarray(x).dtype.kind in "iu" else dtype), group)


def as_data(tree: Any, dtype: Any) -> Any:
    """Return the tree with its floats as JAX arrays, so that other values reuse the compiled program."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if isinstance(x, float | np.floating) else x, tree)
