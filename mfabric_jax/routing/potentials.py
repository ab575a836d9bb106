"""Shares for relay routing from one potential a link: gradient steps on S^2 numbers in place of S^3 shares.

A path's part of a pair's bytes is proportional to the product of e^potential over its links. Shares that end the
all-to-all first and are spread as evenly as that allows have this form: they are e^(-path price / temperature) as the
temperature falls, and a path's price is the sum of its links'. So a step is a few products of S x S matrices (sums over
all servers in between), and the shares themselves are written out once, at the end.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from mfabric_jax.routing.relay import is_path

HOT, COLD = 0.4, 0.001  # softness of the largest link time, first and last, over the least so far
RATE, LAST_RATE = 0.15, 0.003  # steps in the potentials, first and last
SLOPES, SQUARES = 0.8, 0.9  # Adam's memory of slopes and of their squares: short, for the temperature falls
FARTHEST = 20.0  # of a potential from 0: products stay within float32
SMALLEST = 1e-8  # slope that Adam tells from 0
DIRECT = 7.0  # how much likelier a byte starts on a circuit of its own than on any other path as wide

Potentials = Float[Array, "3S+2 S"]  # of first circuits, of second ones, of direct ones, of ports up, of ports down


class Links(NamedTuple):
    """One all-to-all, in any unit of bytes, and what it runs over."""

    demand: Float[Array, "S S"]  # 0 where a pair has no path
    circuit: Float[Array, "S S"]  # bytes/s; 0: there is none
    port: Float[Array, "S"]
    efficiency: Float[Array, ""]

    def factors(self, potentials: Potentials):
        """Of first, second, direct circuits [S S], of ports up, down [S]: a path weighs what these multiply to."""
        first, second, direct, up, down = split(jnp.exp(potentials))
        typical = _inverse(self.circuit.sum()) * (self.circuit**2).sum()
        wide = self.circuit * jnp.sqrt(_inverse(self.circuit + typical))  # a path is as thin as its thinnest circuit
        own, port = jnp.asarray(DIRECT, wide.dtype) * self.circuit, jnp.sqrt(self.port)
        return wide * first, wide * second, own * direct, port * up, port * down

    def shares(self, potentials: Potentials) -> Float[Array, "S S S+2"]:
        """Of every pair's bytes on every path; they sum to 1, or to 0 where there is no path."""
        first, second, direct, up, down = self.factors(potentials)
        via = first[:, None, :] * second.T[None]
        ways = jnp.concatenate([via, direct[..., None], (up[:, None] * down[None])[..., None]], axis=2)
        ways = jnp.where(is_path(len(up)), ways, 0)
        return ways * _inverse(ways.sum(2, keepdims=True))

    def seconds(self, potentials: Potentials) -> Float[Array, "S+2 S"]:
        """When every link is through: circuits, ports up, ports down."""
        return jnp.concatenate(self._seconds(self.factors(potentials))[:2])

    def _seconds(self, factors):
        """Of circuits [S S] and of ports up and down [2 S]; and what their slopes need."""
        first, second, direct, up, down = factors
        ways = _inverse(first @ second + direct + up[:, None] * down[None])
        sent = self.demand * ways
        onto = sent @ second.T, first.T @ sent / self.efficiency, sent @ down, up @ sent
        circuits = (first * onto[0] + second * onto[1] + direct * sent) * _inverse(self.circuit)
        ports = jnp.stack([up * onto[2], down * onto[3]]) * _inverse(self.port)[None]
        return circuits, ports, onto, sent, ways

    def softened(self, potentials: Potentials, temperature: Float[Array, ""]) -> tuple[Float[Array, ""], Potentials]:
        """When the busiest link is through, and the slope of temperature * logsumexp(seconds / temperature)."""
        first, second, direct, up, down = factors = self.factors(potentials)
        seconds, ports, (onto_first, onto_second, onto_up, onto_down), sent, ways = self._seconds(factors)
        latest = jnp.maximum(seconds.max(), ports.max())
        price, dear = jnp.exp((seconds - latest) / temperature), jnp.exp((ports - latest) / temperature)
        every = price.sum() + dear.sum()
        price, dear = price * _inverse(self.circuit) / every, dear * _inverse(self.port)[None] / every
        dear_up, dear_down = dear
        # What the mean path of a pair costs; a path gains from its own price being below that.
        one, other = first * price, second * price / self.efficiency
        cost = (one @ second + first @ other + direct * price) * ways
        cost += up[:, None] * down[None] * (dear_up[:, None] + dear_down[None]) * ways
        level = sent * cost
        slope_first = price * onto_first + sent @ other.T - level @ second.T
        slope_second = price * onto_second + one.T @ sent - first.T @ level
        slope_up = dear_up * onto_up + sent @ (down * dear_down) - level @ down
        slope_down = dear_down * onto_down + (up * dear_up) @ sent - up @ level
        slopes = slope_first, slope_second, price * sent - level, slope_up, slope_down
        parts = [part * slope for part, slope in zip(factors, slopes, strict=True)]
        return latest, jnp.concatenate([*parts[:3], jnp.stack(parts[3:])])


def split(potentials: Potentials):
    """Of first, second and direct circuits [S S], of ports up and down [S]."""
    servers = potentials.shape[-1]
    first, second, direct = (potentials[at * servers : (at + 1) * servers] for at in range(3))
    return first, second, direct, potentials[-2], potentials[-1]


def level(servers: int, dtype) -> Potentials:
    """Where a descent starts: paths as likely as they are wide."""
    return jnp.zeros((3 * servers + 2, servers), dtype)


def _inverse(x):
    return jnp.where(x > 0, 1 / jnp.where(x > 0, x, 1), 0)


Softened = Callable[[Array, Float[Array, ""]], tuple[Float[Array, ""], Array]]


def descended(
    softened: Softened, start: Array, steps: int, *, enough: Float[Array, ""] | float = 0.0, hot=HOT, rate=RATE
) -> tuple[Array, Float[Array, ""]]:
    """Parameters after at most `steps` of Adam, and the time that they give: the best on the way.

    - `softened`: of parameters and a temperature, the time and the slope of what stands for it at that temperature; as
      `Links.softened`.
    - `enough`: steps are over once the time is at most this.

    The temperature falls from `hot` to 0.001 of the least time so far.
    """
    dtype = start.dtype
    hot, cold, rate, last = (jnp.asarray(x, dtype) for x in (hot, COLD, rate, LAST_RATE))
    slopes, squares, enough = (jnp.asarray(x, dtype) for x in (SLOPES, SQUARES, enough))
    tiny, pi = jnp.finfo(dtype).tiny, jnp.asarray(np.pi, dtype)

    def going(state):
        at, *_, least = state
        return (at < steps) & (least > enough)

    def step(state):
        at, parameters, mean, square, best, least = state
        part = at.astype(dtype) / max(steps - 1, 1)
        late, slope = softened(parameters, jnp.maximum(hot * (cold / hot) ** part * least, tiny))
        better = late < least
        best, least = jnp.where(better, parameters, best), jnp.minimum(late, least)
        mean, square = slopes * mean + (1 - slopes) * slope, squares * square + (1 - squares) * slope**2
        count = (at + 1).astype(dtype)
        wide = jnp.sqrt(square / (1 - squares**count)) + SMALLEST
        length = last + (rate - last) * (1 + jnp.cos(pi * part)) / 2
        moved = parameters - length * mean / (1 - slopes**count) / wide
        return at + 1, jnp.clip(moved, -FARTHEST, FARTHEST), mean, square, best, least

    nothing, one = jnp.zeros_like(start), jnp.ones((), dtype)
    state = jnp.zeros((), jnp.int32), start, nothing, nothing, start, softened(start, one)[0]
    _, parameters, _, _, best, least = lax.while_loop(going, step, state)
    late = softened(parameters, one)[0]
    return jnp.where(late < least, parameters, best), jnp.minimum(late, least)
