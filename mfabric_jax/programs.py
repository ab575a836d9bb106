"""Stand-in until the store is merged."""

import jax, numpy as np
from mfabric_jax.simulation.batch import hashable

_MADE = {}
ASKED = []


def run(function, *arguments, options=None):
    leaves, tree = jax.tree.flatten(arguments)
    isarr = [isinstance(x, (jax.Array, np.ndarray)) for x in leaves]
    key = (
        function.__module__,
        function.__qualname__,
        str(tree),
        tuple((x.shape, str(x.dtype)) if a else repr(x) for x, a in zip(leaves, isarr)),
        jax.config.jax_enable_x64,
        repr(options),
    )
    if key not in _MADE:
        ASKED.append(key[1])

        def call(arrays):
            it = iter(arrays)
            return function(*tree.unflatten([next(it) if a else x for x, a in zip(leaves, isarr)]))

        arrays = [x for x, a in zip(leaves, isarr) if a]
        _MADE[key] = jax.jit(call).lower(arrays).compile(options)
    return jax.tree.map(np.asarray, _MADE[key]([x for x, a in zip(leaves, isarr) if a]))
