"""Stand-in until the compiled loop is merged."""

import jax
import numpy as np


def latest_ends(size, leaf, groups=None):
    from mfabric_jax.flows.star import star_completion

    size = np.asarray(size, float)
    leaf = np.asarray(leaf, float)
    rest = () if groups is None else tuple(np.asarray(groups, float))
    if not len(size):
        return np.zeros(0)
    f = jax.jit(jax.vmap(lambda s: star_completion(s, *leaf, *rest).max(initial=0)))
    return np.asarray(f(size), float)
