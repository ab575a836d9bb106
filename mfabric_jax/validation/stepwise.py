"""Fluid flows step by step, with what their transport takes and adds: the correction of a plain prediction.

Between two events (a flow starts or ends) rates are max-min fair on what acknowledgements leave of the ports. Of every
flow it is kept how much its rate rose, since no transport takes a freed share at once.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.flows import FlowProblem, max_min_rates

ROUNDS = 4  # of the fixed point: acknowledgements are a hundredth of the data, so each finds two further digits
DONE = 1e-9  # of a flow's bytes: flows that have no more left end together


class RateHistory(NamedTuple):
    """Of every flow [F]: when its last byte is sent [s], the sum of the squares of all rises of its rate, and the rate
    it ends with [bytes/s]."""

    finish: np.ndarray
    risen: np.ndarray
    last: np.ndarray


def rate_history(
    problem: FlowProblem, size: np.ndarray, start: np.ndarray, back: Int[np.ndarray, "F 2"], acks: float
) -> RateHistory:
    """Every event of a few hundred flows.

    - `size` bytes and `start` [F] s; a flow starts at its full rate.
    - `back`: the two ports that the acknowledgements of a flow cross, L where nothing else does.
    - `acks`: of the data that they acknowledge.
    """
    flows = len(size)
    left, finish = np.array(size, float), np.array(start, float)
    before, risen, last = np.zeros(flows), np.zeros(flows), np.ones(flows)
    now = start.min()
    while np.any(left > 0):
        active = (left > 0) & (start <= now)
        rate = np.asarray(_rates(problem, active, back, acks, ROUNDS if acks else 1), float)
        risen += np.where(active & (before > 0), np.maximum(rate - before, 0), 0) ** 2
        last = np.where(active, rate, last)
        needed = np.divide(left, rate, out=np.full(flows, np.inf), where=active & (rate > 0))
        then = min(now + needed.min(), start[start > now].min(initial=np.inf))
        if not np.isfinite(then):
            raise InputError("a flow has rate 0, so it never ends.")
        left = np.where(active, left - rate * (then - now), left)
        ended = active & (left <= DONE * size)
        left, finish = np.where(ended, 0, left), np.where(ended, then, finish)
        before, now = np.where(active & ~ended, rate, 0), then
    return RateHistory(finish, risen, last)


@eqx.filter_jit
def _rates(problem: FlowProblem, active, back, acks, rounds: int) -> Float[Array, "F"]:
    """Rates of the active flows on the ports that their own acknowledgements leave."""
    running = eqx.tree_at(lambda p: p.weight, problem, jnp.where(active, problem.weight, 0))

    def again(_, rate):
        taken = jnp.zeros_like(problem.capacity).at[back].add((acks * rate)[:, None], mode="drop")
        left = jnp.maximum(problem.capacity - taken, 0)
        return max_min_rates(eqx.tree_at(lambda p: p.capacity, running, left)).rate

    return lax.fori_loop(0, rounds, again, jnp.zeros_like(problem.weight))


def corrected(
    transport: Transport, history: RateHistory, links: Int[np.ndarray, "F"], link_delay_s: float, line_Bps: float
) -> np.ndarray:
    """When the sender knows that each flow has arrived [F] s: its way there, the start-up, the last acknowledgement's
    way back, and what it lost while it regained freed shares.

    A rate that rises by x at `regain` payloads per round trip squared comes x^2 / (2 x slope) bytes behind.
    """
    finish = history.finish + transport.path_s(links, link_delay_s, line_Bps) + links * link_delay_s
    if transport.regain is None:
        return finish
    slope = transport.regain * transport.payload_bytes / transport.round_trip_s(links, link_delay_s, line_Bps) ** 2
    return finish + history.risen / (2 * slope * history.last)
