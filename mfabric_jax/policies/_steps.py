"""The next circuits of every pair: what giving or taking them does to the electrical ports, if all is to end by T.

Bytes are in units in which a NIC carries one unit in one unit of time, the largest pair 1 (`scaled`). By time T a pair
leaves `carried` bytes to the EPS: unsplit: all or, with enough circuits for its larger direction, none; split: what its
circuits do not finish. A port is in time when it carries at most E T.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import fluid_lower_bound

ROUTINGS = ("unsplit", "split")
ROUNDING = 4  # units in the last place by which D / T may exceed a whole number
PLENTY = 1e6  # circuits: more than any server has


class Scaled(NamedTuple):
    """One all-to-all in those units."""

    size: Float[Array, "S S"]
    port: Float[Array, "S"]  # EPS NICs
    unit_s: Float[Array, ""]  # seconds in which a NIC carries one unit

    def excess(self, carried: Float[Array, "S S"], at) -> tuple[Float[Array, "S"], Float[Array, "S"]]:
        """Bytes out and in that the ports do not carry by `at`; below 0: what they could besides."""
        return carried.sum(1) - self.port * at, carried.sum(0) - self.port * at


class Step(NamedTuple):
    """What the next circuits given to, or taken from, a pair do."""

    nics: Int[Array, "S S"]  # at each end; 0: no such step
    after: Int[Array, "S S"]  # the pair's circuits then
    moved: Float[Array, "S S"]  # bytes that leave the EPS (given) or come to it (taken)


def scaled(demand: Float[Array, "S S"], region: Region) -> Scaled:
    """`demand` [bytes], its diagonal 0."""
    largest = jnp.maximum(demand.max(initial=0), jnp.finfo(demand.dtype).tiny)
    port = jnp.broadcast_to(jnp.asarray(region.electrical_nics, demand.dtype), region.servers)
    return Scaled(demand / largest, port, largest / jnp.asarray(region.nic_Bps, demand.dtype))


def scaled_time(all_to_all: Scaled, region: Region, demand, count: Int[Array, "S S"], routing: str):
    """Paced time of circuits [units]."""
    return fluid_lower_bound(region, Circuits(count), demand, routing=routing) / all_to_all.unit_s


def circuits_needed(size: Float[Array, "S S"], at) -> Int[Array, "S S"]:
    """Circuits that carry the larger direction of every pair by `at`."""
    larger = jnp.maximum(size, size.T)
    some = larger > 0
    at = jnp.maximum(at, jnp.finfo(size.dtype).tiny)
    most = jnp.ceil(larger * (1 - ROUNDING * jnp.finfo(size.dtype).eps) / at)
    return jnp.where(some, jnp.clip(most, 1, PLENTY), 0).astype(jnp.int32)


def used(count: Int[Array, "S S"], size, at, routing: str) -> Int[Array, "S S"]:
    """The circuits that carry something by `at`: unsplit, too few for their pair are better inactive."""
    return count if routing == "split" else jnp.where(count < circuits_needed(size, at), 0, count)


def steps(count: Int[Array, "S S"], size, at, routing: str) -> tuple[Step, Step, Float[Array, "S S"]]:
    """The step that gives and the one that takes, of every pair with circuits `count`, and the bytes carried now."""
    return (_split if routing == "split" else _unsplit)(count, size, at)


def _split(count, size, at):
    """One circuit a step."""

    def left(count):
        return jnp.maximum(size - count.astype(size.dtype) * at, 0)

    carried, active = left(count), jnp.minimum(count, 1)
    wanted = ((size + size.T) > 0).astype(jnp.int32)
    give = Step(wanted, count + 1, carried - left(count + 1))
    take = Step(active, count - active, left(count - active) - carried)
    return give, take, carried


def _unsplit(count, size, at):
    """All that a pair needs a step. Circuits beyond that, or too few, are taken without harm."""
    enough = circuits_needed(size, at)
    done = count >= enough
    carried = jnp.where(done, 0, size)
    give = Step(jnp.where(done, 0, enough - count), jnp.maximum(count, enough), carried)
    rest = jnp.where(count > enough, enough, 0)
    take = Step(count - rest, rest, jnp.where((count == enough) & (count > 0), size, 0))
    return give, take, carried
