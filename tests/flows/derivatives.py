"""Forward and reverse derivatives against central differences, along one drawn direction per argument."""

import chex
import jax
import numpy as np

STEP = 1e-6


class Derivatives:
    """Checks of `function(fixed, point) -> array` in the arrays of the dict `point`; compiled once per shape."""

    def __init__(self, function):
        self.value = jax.jit(function)
        self.pushforward = jax.jit(lambda fixed, at, move: jax.jvp(lambda x: function(fixed, x), (at,), (move,))[1])
        self.pullback = jax.jit(lambda fixed, at, pull: jax.vjp(lambda x: function(fixed, x), at)[1](pull)[0])

    def check(self, fixed, point, seed, rtol=1e-5):
        """Every argument is moved alone, in proportion to itself: zeros and infinities stay where they are. The
        pushforward must equal the difference, the pullback must be its transpose, and no slope may be NaN."""
        rng = np.random.default_rng(seed)
        value = np.asarray(self.value(fixed, point))
        settled = np.isfinite(value)
        cotangent = np.where(settled, rng.normal(size=value.shape), 0)
        slopes = self.pullback(fixed, point, cotangent)
        for name, at in point.items():
            direction = rng.normal(size=at.shape) * np.where(np.isfinite(at), at, 0)
            move = {other: direction if other == name else np.zeros_like(point[other]) for other in point}
            forward = np.asarray(self.pushforward(fixed, point, move))
            ahead = np.asarray(self.value(fixed, point | {name: at + STEP * direction}))
            behind = np.asarray(self.value(fixed, point | {name: at - STEP * direction}))
            slope = (ahead[settled] - behind[settled]) / (2 * STEP)
            # Differences of values v carry about 1e-16 v / STEP of rounding.
            noise = 1e-8 * np.abs(value[settled]).max(initial=0)
            np.testing.assert_allclose(forward[settled], slope, rtol=rtol, atol=noise, err_msg=f"along {name}")
            chex.assert_tree_all_finite(slopes[name])
            pulled, pushed = np.sum(slopes[name] * direction), np.sum(cotangent[settled] * forward[settled])
            np.testing.assert_allclose(pulled, pushed, rtol=1e-9, atol=noise, err_msg=f"the transpose along {name}")
