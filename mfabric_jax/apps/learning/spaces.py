"""Spaces of actions and observations, with the names of gymnax's: `shape`, `dtype`, `sample`, `contains`."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool


@dataclasses.dataclass(frozen=True)
class Box:
    """Real arrays of one shape with entries from `low` to `high`."""

    low: float
    high: float
    shape: tuple[int, ...]
    dtype: Any

    def sample(self, key) -> Array:
        return jax.random.uniform(key, self.shape, self.dtype, self.low, self.high)

    def contains(self, x) -> Bool[Array, ""]:
        x = jnp.asarray(x)
        fits = x.shape == self.shape and jnp.issubdtype(x.dtype, jnp.floating)
        return jnp.all((x >= self.low) & (x <= self.high)) if fits else jnp.asarray(False)


@dataclasses.dataclass(frozen=True)
class Discrete:
    """Integers 0 to `n` - 1."""

    n: int
    shape = ()
    dtype = jnp.int32

    def sample(self, key) -> Array:
        return jax.random.randint(key, (), 0, self.n, self.dtype)

    def contains(self, x) -> Bool[Array, ""]:
        x = jnp.asarray(x)
        fits = x.shape == () and jnp.issubdtype(x.dtype, jnp.integer)
        return (x >= 0) & (x < self.n) if fits else jnp.asarray(False)


@dataclasses.dataclass(frozen=True)
class Dict:
    """Dictionary of named spaces; `shape` and `dtype` are dictionaries, too."""

    spaces: dict[str, Box | Discrete]

    @property
    def shape(self) -> dict[str, tuple[int, ...]]:
        return {name: space.shape for name, space in self.spaces.items()}

    @property
    def dtype(self) -> dict[str, Any]:
        return {name: space.dtype for name, space in self.spaces.items()}

    def sample(self, key) -> dict[str, Array]:
        keys = jax.random.split(key, len(self.spaces))
        return {name: space.sample(key) for (name, space), key in zip(self.spaces.items(), keys, strict=True)}

    def contains(self, x) -> Bool[Array, ""]:
        if set(x) != set(self.spaces):
            return jnp.asarray(False)
        return jnp.all(jnp.stack([space.contains(x[name]) for name, space in self.spaces.items()]))
