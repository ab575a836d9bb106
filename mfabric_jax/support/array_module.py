"""NumPy or JAX: formulas written once serve programs that JAX traces and plain arrays on the host."""

import sys
from typing import Any

import numpy as np

Array = Any  # of NumPy or of JAX, which share no type that a checker knows


def array_module(*values: Any) -> Any:
    """`jax.numpy` where a leaf of the values is JAX's (or traced), else `numpy`."""
    if (jax := sys.modules.get("jax")) is None:  # nothing is JAX's before it is loaded
        return np
    return jax.numpy if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values)) else np


def aligned(value: Any, other: Any) -> Any:
    """The value with leading axes of length 1, as many as make its rank that of `other`."""
    return value.reshape((1,) * (other.ndim - value.ndim) + value.shape)


def put(array: Any, at: Any, value: Any) -> Any:
    """The array with other values at indices."""
    if not isinstance(array, np.ndarray):
        return array.at[at].set(value)
    array = array.copy()
    array[at] = value
    return array
