"""Bounds: the best trajectory of a chain that is known, and of one of which the next demands are known.

All choose among the same sets of circuits: even ones, those of three policies for every demand, and for the mean of
every stretch of 4, 8, 16 and 32 demands.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.apps.learning.regimes.chains import SEEN, Chains
from mfabric_jax.apps.learning.regimes.controls import named, propose
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing import fluid_lower_bound

CANDIDATES = ("greedy", "greedy-next", "threshold")
STRETCHES = (4, 8, 16, 32)


class Table(NamedTuple):
    """Seconds [B K N] of K sets of circuits under every demand to decide on; set 0 is in place at first.

    `born` [K]: number of the last demand that a set was made for, -1: none.
    """

    seconds: Float[np.ndarray, "B K N"]
    born: Int[np.ndarray, "K"]


def table_of(chains: Chains, routing: str) -> Table:
    """Return the seconds of all candidate sets of circuits under all demands."""
    demand = chains.demand[:, SEEN - 1 :]  # the last demand seen is known before the first decision
    steps = demand.shape[1]
    even = jnp.broadcast_to(uniform_circuits(chains.region.degrees), (len(demand), 1, *demand.shape[2:]))
    starts = [(start, span) for span in STRETCHES for start in range(1, steps - span + 1, span // 2)]
    means = [demand[:, start : start + span].mean(1, keepdims=True) for start, span in starts]
    chosen_for = jnp.concatenate([demand, *means], axis=1)
    sets = [propose(named(name, routing), chosen_for, chains.region).count for name in CANDIDATES]
    born = [*range(-1, steps - 1), *(start + span - 2 for start, span in starts)]
    every = jnp.concatenate([even, *sets], axis=1)
    seconds = _seconds(chains.region, every, demand[:, 1:], routing)
    return Table(np.asarray(seconds, np.float64), np.array([-1, *(born * len(sets))]))


@functools.partial(jax.jit, static_argnames="routing")
def _seconds(region: Region, counts: Int[Array, "B K S S"], demand: Float[Array, "B N S S"], routing: str) -> Array:
    def of_chain(counts: Array, demand: Array):
        return jax.vmap(
            lambda count: jax.vmap(lambda matrix: fluid_lower_bound(region, Circuits(count), matrix, routing=routing))(
                demand
            )
        )(counts)

    return lax.map(lambda chain: of_chain(*chain), (counts, demand))


def clairvoyant_s(table: Table, delay_s: float) -> Float[np.ndarray, "B"]:
    """Return the least total seconds of each chain, by dynamic programming."""
    left = _cost_to_go(table.seconds, delay_s)
    return np.minimum(left[:, 0], left.min(1) + delay_s)


def informed_s(table: Table, delay_s: float, known: int) -> Float[np.ndarray, "B"]:
    """Return the total seconds if the next `known` demands are known, and planned for anew before each of them."""
    seconds, rows = table.seconds, np.arange(len(table.seconds))
    in_place, total = np.zeros(len(rows), int), np.zeros(len(rows))
    for step in range(seconds.shape[2]):
        left = _cost_to_go(seconds[:, :, step : step + known], delay_s)
        left = np.where(table.born < step + known, left, np.inf)
        keep, best = left[rows, in_place], left.argmin(1)
        change = left[rows, best] + delay_s < keep
        in_place = np.where(change, best, in_place)
        total += seconds[rows, in_place, step] + delay_s * change
    return total


def _cost_to_go(seconds: Float[np.ndarray, "B K N"], delay_s: float) -> Float[np.ndarray, "B K"]:
    """Return the least seconds of all N demands for each set of circuits that serves the first."""
    left = np.zeros(seconds.shape[:2])
    for step in reversed(range(seconds.shape[2])):
        left = seconds[:, :, step] + np.minimum(left, left.min(1, keepdims=True) + delay_s)
    return left
