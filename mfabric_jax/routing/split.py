"""Split routing: every pair divides its bytes between its circuits and the EPS so that both end together.

By time T a pair's circuits carry C B T of its D bytes; the EPS carries the rest, at a constant pace, and its ports are
just fast enough: sum_j max(D_j - C_j B T, 0) <= E B T at every server, out and in. T is the largest root over ports,
which may be unequal.
As a maximum: T = max over ports, and over sets A of a port's pairs, of sum_A D / (E B + sum_A C B). No division of
bytes ends earlier, since both bounds of a port, its circuits and its EPS NICs, are met with equality.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float


@jax.jit
def split_seconds(
    demand: Float[Array, "S S"], circuit: Float[Array, "S S"], port: Float[Array, ""] | Float[Array, "S"]
) -> Float[Array, ""]:
    """T [s] for `demand` [bytes], circuits and EPS ports (() or [S]) [bytes/s]; the demand's diagonal must be 0.

    Dinkelbach's iteration from T = 0: the pairs that circuits alone do not finish by T are A; their ratio is the next
    T. It rises to the answer from below, and each step but the last drops a pair from A: at most S * S + 1 steps (2 to
    5 in practice). Sums and ratios of positive numbers only, so float32 keeps its digits at any range.

    Derivatives are those of the one ratio that is T, sets held fixed: exact away from ties, a sub-gradient at them,
    also where a pair has no circuit yet. Infinity where bytes have neither circuit nor EPS; NaN where demand is NaN.
    """
    circuit = jnp.where(circuit < 0, 0, circuit)
    port = jnp.broadcast_to(port, demand.shape[0])
    at = _last_set(*lax.stop_gradient((demand, circuit, port)))
    stranded = (demand > 0) & (circuit == 0) & ~joined(port)
    seconds = jnp.where(stranded.any(), jnp.inf, busiest(demand, circuit, port, at))
    return jnp.where(jnp.isnan(demand).any(), jnp.nan, seconds)


def joined(port: Float[Array, "S"]) -> Bool[Array, "S S"]:
    """Pairs with EPS ports at both ends."""
    some = port > 0
    return some[:, None] & some[None, :]


def busiest(demand, circuit, port: Float[Array, "S"], at: Float[Array, ""]) -> Float[Array, ""]:
    """The largest ratio over ports, of the pairs that circuits do not finish by `at`."""
    late = demand > circuit * at
    load, help_ = jnp.where(late, demand, 0), jnp.where(late, circuit, 0)
    load = jnp.concatenate([load.sum(0), load.sum(1)])
    speed = jnp.concatenate([help_.sum(0) + port, help_.sum(1) + port])
    return jnp.where(speed > 0, load / jnp.where(speed > 0, speed, 1), 0).max(initial=0)


def _last_set(demand, circuit, port) -> Float[Array, ""]:
    """The time before the last step: `busiest` there is T."""

    def rising(state):
        at, after, step = state
        return (after > at) & (step <= demand.size)

    def climb(state):
        at, after, step = state
        then = busiest(demand, circuit, port, after)
        better = then > after
        return jnp.where(better, after, at), jnp.where(better, then, at), step + 1

    zero = jnp.zeros((), demand.dtype)
    first = zero, busiest(demand, circuit, port, zero), jnp.zeros((), jnp.int32)
    return lax.while_loop(rising, climb, first)[0]
