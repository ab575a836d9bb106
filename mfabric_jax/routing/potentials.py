"""Relay shares from one potential per link: gradient steps on O(S^2) numbers instead of S^3 shares.

A path's share of a pair's bytes is proportional to the product of e^potential over its links. The best and most even
shares have this form, e^(-path price / temperature), as the temperature falls; a path's price is the sum of its links'
prices.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Float

from mfabric_jax.routing.relay import is_path
from mfabric_jax.support.array_module import Array

HOT, COLD = 0.4, 0.001  # first and last temperature, relative to the shortest time so far
RATE, LAST_RATE = 0.15, 0.003  # first and last step size
SLOPES, SQUARES = 0.8, 0.9  # Adam's decay rates: short memory, because the temperature falls
FARTHEST = 20.0  # bound on |potential|: products stay within float32
SMALLEST = 1e-8  # Adam's epsilon
DIRECT = 7.0  # initial weight of a direct circuit, relative to another path of equal width

Potentials = Float[Array, "links S"]  # first, second, direct circuits; ports up, ports down


class RelayLinks(NamedTuple):
    demand: Float[Array, "S S"]  # 0 where a pair has no path
    circuit: Float[Array, "S S"]  # bytes/s; 0: no circuit
    port: Float[Array, "S"]
    efficiency: Float[Array, ""]

    def factors(self, potentials: Potentials):
        """Return factors of first, second, direct circuits [S S] and ports up, down [S]; a path's weight is their
        product."""
        first, second, direct, up, down = split(jnp.exp(potentials))
        typical = _inverse(self.circuit.sum()) * (self.circuit**2).sum()
        wide = self.circuit * jnp.sqrt(_inverse(self.circuit + typical))  # a path is as wide as its narrowest circuit
        own, port = jnp.asarray(DIRECT, wide.dtype) * self.circuit, jnp.sqrt(self.port)
        return wide * first, wide * second, own * direct, port * up, port * down

    def shares(self, potentials: Potentials) -> Float[Array, "S S S+2"]:
        """Return the share of every pair's bytes on every path; a pair's shares sum to 1, or to 0 without a path."""
        first, second, direct, up, down = self.factors(potentials)
        via = first[:, None, :] * second.T[None]
        paths = jnp.concatenate([via, direct[..., None], (up[:, None] * down[None])[..., None]], axis=2)
        paths = jnp.where(is_path(len(up)), paths, 0)
        return paths * _inverse(paths.sum(2, keepdims=True))

    def seconds(self, potentials: Potentials) -> Float[Array, "S+2 S"]:
        """Return the time that every link needs for its bytes [s]: circuits, ports up, ports down."""
        return jnp.concatenate(self._seconds(self.factors(potentials))[:2])

    def _seconds(self, factors: tuple[Array, ...]):
        first, second, direct, up, down = factors
        scale = _inverse(first @ second + direct + up[:, None] * down[None])
        sent = self.demand * scale
        onto = sent @ second.T, first.T @ sent / self.efficiency, sent @ down, up @ sent
        circuits = (first * onto[0] + second * onto[1] + direct * sent) * _inverse(self.circuit)
        ports = jnp.stack([up * onto[2], down * onto[3]]) * _inverse(self.port)[None]
        return circuits, ports, onto, sent, scale

    def soft_time(self, potentials: Potentials, temperature: Float[Array, ""]) -> tuple[Float[Array, ""], Potentials]:
        """Return the busiest link's time [s] and the gradient of temperature * logsumexp(seconds / temperature)."""
        first, second, direct, up, down = factors = self.factors(potentials)
        seconds, ports, (onto_first, onto_second, onto_up, onto_down), sent, scale = self._seconds(factors)
        latest = jnp.maximum(seconds.max(), ports.max())
        price, dear = jnp.exp((seconds - latest) / temperature), jnp.exp((ports - latest) / temperature)
        every = price.sum() + dear.sum()
        price, dear = price * _inverse(self.circuit) / every, dear * _inverse(self.port)[None] / every
        dear_up, dear_down = dear
        # Mean path price of each pair; a path whose own price is lower gains weight.
        first_price, second_price = first * price, second * price / self.efficiency
        cost = (first_price @ second + first @ second_price + direct * price) * scale
        cost += up[:, None] * down[None] * (dear_up[:, None] + dear_down[None]) * scale
        level = sent * cost
        slope_first = price * onto_first + sent @ second_price.T - level @ second.T
        slope_second = price * onto_second + first_price.T @ sent - first.T @ level
        slope_up = dear_up * onto_up + sent @ (down * dear_down) - level @ down
        slope_down = dear_down * onto_down + (up * dear_up) @ sent - up @ level
        slopes = slope_first, slope_second, price * sent - level, slope_up, slope_down
        parts = [part * slope for part, slope in zip(factors, slopes, strict=True)]
        return latest, jnp.concatenate([*parts[:3], jnp.stack(parts[3:])])


def split(potentials: Potentials):
    servers = potentials.shape[-1]
    first, second, direct = (potentials[index * servers : (index + 1) * servers] for index in range(3))
    return first, second, direct, potentials[-2], potentials[-1]


def level(servers: int, dtype: Any) -> Potentials:
    return jnp.zeros((3 * servers + 2, servers), dtype)


def _inverse(x: Array):
    return jnp.where(x > 0, 1 / jnp.where(x > 0, x, 1), 0)


Softened = Callable[[Array, Float[Array, ""]], tuple[Float[Array, ""], Array]]


def minimise(
    softened: Softened,
    start: Array,
    steps: int,
    *,
    enough: Float[Array, ""] | float = 0.0,
    hot: Any = HOT,
    rate: Any = RATE,
) -> tuple[Array, Float[Array, ""]]:
    """Return the best parameters of at most `steps` Adam steps, and their time; stop once it is at most `enough`.

    `softened` maps parameters and temperature to a time and a gradient, as `RelayLinks.softened` does.
    """
    dtype = start.dtype
    hot, cold, rate, last = (jnp.asarray(x, dtype) for x in (hot, COLD, rate, LAST_RATE))
    slopes, squares, enough = (jnp.asarray(x, dtype) for x in (SLOPES, SQUARES, enough))
    tiny, pi = jnp.finfo(dtype).tiny, jnp.asarray(np.pi, dtype)

    def going(state: tuple[Any, ...]):
        index, *_, least = state
        return (index < steps) & (least > enough)

    def step(state: tuple[Any, ...]):
        index, parameters, mean, square, best, least = state
        part = index.astype(dtype) / max(steps - 1, 1)
        late, slope = softened(parameters, jnp.maximum(hot * (cold / hot) ** part * least, tiny))
        better = late < least
        best, least = jnp.where(better, parameters, best), jnp.minimum(late, least)
        mean, square = slopes * mean + (1 - slopes) * slope, squares * square + (1 - squares) * slope**2
        count = (index + 1).astype(dtype)
        wide = jnp.sqrt(square / (1 - squares**count)) + SMALLEST
        length = last + (rate - last) * (1 + jnp.cos(pi * part)) / 2
        moved = parameters - length * mean / (1 - slopes**count) / wide
        return index + 1, jnp.clip(moved, -FARTHEST, FARTHEST), mean, square, best, least

    nothing, unit = jnp.zeros_like(start), jnp.ones((), dtype)
    state = jnp.zeros((), jnp.int32), start, nothing, nothing, start, softened(start, unit)[0]
    _, parameters, _, _, best, least = lax.while_loop(going, step, state)
    late = softened(parameters, unit)[0]
    return jnp.where(late < least, parameters, best), jnp.minimum(late, least)
