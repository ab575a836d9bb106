"""When to reconfigure: compare what fresh circuits save with what a cycle of ageing circuits costs.

Circuits are chosen for the last demand and age as demand moves on. `loss` [.. J] is how many seconds an all-to-all
takes longer on circuits that were chosen J all-to-alls ago than on fresh ones, so loss[0] = 0. Renewing circuits every
m all-to-alls costs (delay + loss[0] + ... + loss[m-1]) / m seconds an all-to-all; the least of these is `cycle_cost`.
One more all-to-all on the circuits in place is worth it while they lose less than that. So a reconfiguration is due
when

    slope * (seconds that fresh circuits save now) > cycle_cost,

which is "`horizon` * saving > delay": the delay counts against the savings of several all-to-alls, and not of one.
`slope` turns the saving on the demand seen last into that on the demand to come.

All functions take NumPy or JAX arrays with any leading axes, and are differentiable. Sources: renewal at the best age,
Barlow and Hunter, Operations Research 8(1), 1960; stop where the next step costs more than the best long-run mean
(marginal value theorem), Charnov, Theoretical Population Biology 9(2), 1976.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mfabric_jax.support.array_module import Array, align_rank, array_module

TINY = float(np.finfo(np.float32).tiny)
Seconds = Float[Array, "*B"] | float


def cycle_cost(loss: Float[Array, "*B J"], delay_s: Seconds) -> Float[Array, "*B"]:
    """Return the least seconds an all-to-all that ageing and reconfigurations cost together.

    - `loss` [.. J]: seconds lost by age, from age 0 and not falling; infinite for ages that were never seen.

    A cycle may also never end: it then costs the loss of the oldest circuits seen.
    """
    return _cycles(loss, delay_s).min(-1)


def cycle_length(loss: Float[Array, "*B J"], delay_s: Seconds) -> Float[Array, "*B"]:
    """Return the number of all-to-alls in the cheapest cycle; infinite if circuits are best never renewed."""
    xp, loss, cycles = array_module(loss, delay_s), _floats(loss), _cycles(loss, delay_s)
    shortest = cycles.argmin(-1)
    return xp.where(shortest == loss.shape[-1], xp.asarray(xp.inf, loss.dtype), (shortest + 1).astype(loss.dtype))


def least_saving(
    loss: Float[Array, "*B J"], delay_s: Seconds, *, usual_s: Seconds = np.nan, remaining: Seconds = np.inf
) -> Float[Array, "*B"]:
    """Return the seconds that a reconfiguration must save at the next all-to-all to be worth its delay.

    It is the larger of two limits: `cycle_cost`; and the saving from which renewing circuits from now on beats never
    renewing them. Without the second, demand that jumps between few states would cause a reconfiguration at every jump.

    - `usual_s`: seconds an all-to-all that the circuits in place usually lose to fresh ones; NaN: those of the oldest
      age, for circuits that were chosen for recent demand.
    - `remaining`: all-to-alls that follow; infinite: the J that ages were followed for.

    What circuits in place lose returns to the usual as fast as circuits age: of the difference the part
    1 - loss[j] / loss[J] is left after j all-to-alls.
    """
    loss, dtype = _floats(loss), _floats(loss).dtype
    xp, oldest = array_module(loss, delay_s, usual_s, remaining), _oldest(loss)
    delay, usual, left = (xp.asarray(value, dtype) for value in (delay_s, usual_s, remaining))
    seen = xp.isfinite(loss)
    ages, usual = seen.sum(-1).astype(dtype), xp.where(xp.isnan(usual), oldest, usual)
    steps = xp.where(xp.isfinite(left), left, ages)
    counted = seen & (_along(xp.arange(loss.shape[-1], dtype=dtype), loss) < steps[..., None])
    lost = xp.where(counted, loss, 0)
    kept = xp.where(counted, 1 - lost / xp.where(oldest > 0, oldest, 1)[..., None], 0).sum(-1)
    once = delay + lost.sum(-1) + xp.maximum(steps - ages, 0) * oldest
    renewed = xp.minimum(once, steps * xp.where(counted, _renewal_costs(loss, delay), xp.inf).min(-1))
    ever = usual + (renewed - usual * steps) / xp.where(kept > 0, kept, 1)
    return xp.maximum(cycle_cost(loss, delay), ever)


def horizon(
    loss: Float[Array, "*B J"], delay_s: Seconds, *, usual_s: Seconds = np.nan, remaining: Seconds = np.inf
) -> Float[Array, "*B"]:
    """Return the number of all-to-alls whose savings count against one delay: the delay over `least_saving`.

    Without a delay it is 1.
    """
    xp, least = array_module(loss, delay_s), least_saving(loss, delay_s, usual_s=usual_s, remaining=remaining)
    delay = xp.asarray(delay_s, least.dtype)
    return xp.where((least > 0) & (delay > 0), delay / xp.where(least > 0, least, 1), 1)


def should_reconfigure(
    saving_s: Seconds,
    loss: Float[Array, "*B J"],
    delay_s: Seconds,
    *,
    slope: Seconds = 1.0,
    usual_s: Seconds = np.nan,
    remaining: Seconds = np.inf,
    softness: float = 0.0,
) -> Bool[Array, "*B"] | Float[Array, "*B"]:
    """Return whether circuits should be renewed before the next all-to-all: slope * saving > `least_saving`.

    - `saving_s`: seconds by which fresh circuits beat those in place on the demand expected; `slope`: the part of this
      that experience confirms.
    - `delay_s`: seconds that a reconfiguration adds. Without a delay, any saving is enough.
    - `usual_s`, `remaining`: as in `least_saving`.
    - `softness`: 0: True or False. Above 0: a weight between 0 and 1 instead, with derivatives in all numbers: the
      logistic function of the seconds above the limit, over this part of the delay.
    """
    least = least_saving(loss, delay_s, usual_s=usual_s, remaining=remaining)
    xp = array_module(saving_s, slope, least)
    margin = xp.asarray(slope, least.dtype) * xp.asarray(saving_s, least.dtype) - least
    if not softness:
        return margin > 0
    width = softness * xp.maximum(xp.asarray(delay_s, least.dtype), xp.asarray(TINY, least.dtype))
    return 0.5 * (1 + xp.tanh(margin / (2 * width)))


def _cycles(loss: Array, delay_s: Any) -> Array:
    """Return the seconds an all-to-all of cycles of 1, 2, .. J all-to-alls, and of one that never ends [.. J + 1]."""
    xp, renewed = array_module(loss, delay_s), _renewal_costs(loss, delay_s)
    never = xp.broadcast_to(_oldest(_floats(loss))[..., None], (*renewed.shape[:-1], 1))
    return xp.concatenate([renewed, never], -1)


def _renewal_costs(loss: Array, delay_s: Any) -> Array:
    """Return the seconds an all-to-all of cycles of 1, 2, .. J all-to-alls [.. J]."""
    xp, loss = array_module(loss, delay_s), _floats(loss)
    delay = xp.asarray(delay_s, loss.dtype)[..., None]
    total = xp.cumsum(loss, -1)
    total = _along(total, delay) + _along(delay, total)
    return total / _along(xp.arange(1, loss.shape[-1] + 1, dtype=loss.dtype), total)


def _oldest(loss: Array) -> Array:
    xp = array_module(loss)
    return xp.where(xp.isfinite(loss), loss, 0).max(-1)


def _floats(values: Any) -> Array:
    return values if hasattr(values, "dtype") else np.asarray(values, float)


def _along(values: Array, other: Array) -> Array:
    """Return the values with leading axes of length 1, where `other` has more axes."""
    return align_rank(values, other) if values.ndim < other.ndim else values
