"""NumPy or JAX: one formula serves traced JAX programs and NumPy arrays on the host."""

import sys
from typing import Any

import numpy as np

_PLAIN = (float, int, np.ndarray, np.generic)
Array = Any  # NumPy's or JAX's; type checkers know no common type


def array_module(*values: Any) -> Any:
    """Return `jax.numpy` if a leaf of the values is a JAX array (or traced), else `numpy`."""
    jax = sys.modules.get("jax")  # before JAX is loaded, no value can be JAX's
    if jax is None or all(isinstance(value, _PLAIN) for value in values):
        return np
    return jax.numpy if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values)) else np


def align_rank(value: Any, other: Any) -> Any:
    """Return the value with leading axes of length 1, so that it has the rank of `other`."""
    return value.reshape((1,) * (other.ndim - value.ndim) + value.shape)


def put(array: Any, indices: Any, value: Any) -> Any:
    """Return the array with `value` at indices `at`."""
    if not isinstance(array, np.ndarray):
        return array.at[indices].set(value)
    array = array.copy()
    array[indices] = value
    return array
