"""When to reconfigure: compare what fresh circuits save with what a cycle of ageing circuits costs.

Circuits are chosen for the last demand and age as demand moves on. `loss` [.. J] is how many seconds an all-to-all
takes longer on circuits that were chosen J all-to-alls ago than on fresh ones, so loss[0] = 0. Renewing circuits every
m all-to-alls costs (delay + loss[0] + ... + loss[m-1]) / m seconds an all-to-all; the least of these is `cycle_cost`.
One more all-to-all on the circuits in place is worth it while they lose less than that. So a reconfiguration is due
when

    slope * (seconds that fresh circuits save now) > cycle_cost,

which is "horizon * saving > delay" with horizon = slope * delay / cycle_cost: the delay counts against the savings of
`horizon` all-to-alls, and not of one. `slope` turns the saving on the demand seen last into that on the demand to come.

All functions take NumPy or JAX arrays with any leading axes, and are differentiable. Sources: renewal at the best age,
Barlow and Hunter, Operations Research 8(1), 1960; stop where the next step costs more than the best long-run mean
(marginal value theorem), Charnov, Theoretical Population Biology 9(2), 1976.
"""

from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from mfabric_jax.support.array_module import Array, array_module

Seconds = Float[Array, "*B"] | float


def cycle_cost(loss: Float[Array, "*B J"], delay_s: Seconds) -> Float[Array, "*B"]:
    """Return the least seconds an all-to-all that ageing and reconfigurations cost together.

    - `loss` [.. J]: seconds lost by age, from age 0 and not falling; infinite for ages that were never seen.

    A cycle may also never end: it then costs the loss of the oldest circuits seen.
    """
    return _cycles(loss, delay_s).min(-1)


def cycle_length(loss: Float[Array, "*B J"], delay_s: Seconds) -> Float[Array, "*B"]:
    """Return the number of all-to-alls in the cheapest cycle; infinite if circuits are best never renewed."""
    xp, cycles = array_module(loss, delay_s), _cycles(loss, delay_s)
    shortest = cycles.argmin(-1)
    return xp.where(shortest == loss.shape[-1], xp.inf, shortest + 1.0)


def horizon(loss: Float[Array, "*B J"], delay_s: Seconds, slope: Seconds = 1.0) -> Float[Array, "*B"]:
    """Return the number of all-to-alls whose savings count against one delay, at least `slope`."""
    xp, cost = array_module(loss, delay_s, slope), cycle_cost(loss, delay_s)
    return slope * xp.where(cost > 0, delay_s / xp.where(cost > 0, cost, 1), 1)


def lasting_saving(
    saving_s: Seconds,
    loss: Float[Array, "*B J"],
    delay_s: Seconds,
    usual_s: Seconds = np.nan,
    remaining: Seconds = np.inf,
) -> Float[Array, "*B"]:
    """Return the seconds that renewing circuits from now on saves over never renewing them, delays subtracted.

    - `saving_s`: seconds that fresh circuits save at the next all-to-all.
    - `usual_s`: seconds an all-to-all that the circuits in place usually lose to fresh ones; NaN: those of the oldest
      age, for circuits that were chosen for recent demand.
    - `remaining`: all-to-alls that follow; infinite: the J that ages were followed for.

    What circuits in place lose returns to the usual as fast as circuits age: of the difference the part
    1 - loss[j] / loss[J] is left after j all-to-alls.
    """
    xp, oldest = array_module(saving_s, loss, delay_s, usual_s, remaining), _oldest(loss)
    seen = xp.isfinite(loss)
    ages, usual = seen.sum(-1), xp.where(xp.isnan(usual_s), oldest, usual_s)
    steps = xp.where(xp.isfinite(remaining), remaining, ages)
    counted = seen & (xp.arange(loss.shape[-1]) < steps[..., None])
    kept = xp.where(counted, 1 - xp.where(seen, loss, 0) / xp.where(oldest > 0, oldest, 1)[..., None], 0).sum(-1)
    stay = (saving_s - usual) * kept + usual * steps
    once = delay_s + xp.where(counted, loss, 0).sum(-1) + xp.maximum(steps - ages, 0) * oldest
    renewed = xp.where(counted, _renewed(loss, delay_s), xp.inf).min(-1)
    return stay - xp.minimum(once, steps * renewed)


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
    """Return whether circuits should be renewed before the next all-to-all.

    - `saving_s`: seconds by which fresh circuits beat those in place on the demand expected; `slope`: the part of this
      that experience confirms.
    - `delay_s`: seconds that a reconfiguration adds. Without a delay, any saving is enough.
    - `usual_s`, `remaining`: as in `lasting_saving`.
    - `softness`: 0: True or False. Above 0: a weight between 0 and 1, whose derivative in all arguments is that of
      logistic functions of this width, relative to the delay.

    Two conditions hold: the expected saving exceeds `cycle_cost`; and renewing circuits from now on beats keeping them
    (`lasting_saving`), so that demand which jumps between few states does not cause a reconfiguration at every jump.
    """
    xp, expected = array_module(saving_s, loss, delay_s, slope, usual_s), slope * saving_s
    margin = expected - cycle_cost(loss, delay_s)
    lasting = lasting_saving(expected, loss, delay_s, usual_s, remaining)
    if not softness:
        return (margin > 0) & (lasting > 0)
    width = softness * xp.maximum(xp.asarray(delay_s), np.finfo(np.float32).tiny)
    return _logistic(xp, margin / width) * _logistic(xp, lasting / width)


def _cycles(loss: Array, delay_s: Any) -> Array:
    """Return the seconds an all-to-all of cycles of 1, 2, .. J all-to-alls, and of one that never ends [.. J + 1]."""
    xp, renewed = array_module(loss, delay_s), _renewed(loss, delay_s)
    return xp.concatenate([renewed, _oldest(loss)[..., None] + xp.zeros_like(renewed[..., :1])], -1)


def _renewed(loss: Array, delay_s: Any) -> Array:
    """Return the seconds an all-to-all of cycles of 1, 2, .. J all-to-alls [.. J]."""
    xp = array_module(loss, delay_s)
    length = xp.arange(1, loss.shape[-1] + 1, dtype=loss.dtype)
    return (xp.asarray(delay_s)[..., None] + xp.cumsum(loss, -1)) / length


def _oldest(loss: Array) -> Array:
    xp = array_module(loss)
    return xp.where(xp.isfinite(loss), loss, 0).max(-1)


def _logistic(xp: Any, value: Array) -> Array:
    return 0.5 * (1 + xp.tanh(value / 2))
