"""One of a few graphs that are wired beforehand: whichever serves a demand soonest.

Arrays of small optical switches choose among such graphs. Source of the idea: ACOS, arXiv 2602.17449 (abstract); which
graphs there are is our choice.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax.case.fabrics import TOPOLOGIES
from mfabric_jax.checks import one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.grids import ascending_steps, ring_circuits
from mfabric_jax.fabric.torus import near_square, torus_links
from mfabric_jax.policies.arguments import demand_of, unless_nan
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import part_times

STRIDES, MATCHINGS = 4, 16  # different ones, which repeat where a server has more NICs
SEED = 0  # of the random matchings


def topologies(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous=None,
    key=None,
    routing: str = "unsplit",
    names: tuple[str, ...] = TOPOLOGIES,
) -> Plan:
    """The circuits of the first graph of `names` under which the all-to-all of `demand` [S S] ends soonest.

    All graphs are timed exactly (`part_times` under `routing`). `previous` and `key` are not used.
    """
    demand = demand_of(demand, region)
    every = candidates(region.degrees, names)
    ends = jax.vmap(lambda count: jnp.maximum(*part_times(region, Circuits(count), demand, routing=routing)))(every)
    return Plan(Circuits(unless_nan(every[jnp.argmin(ends)], demand)))


def candidates(degree: Int[Array, "S"], names: tuple[str, ...] = TOPOLOGIES) -> Int[Array, "K S S"]:
    """The circuits of every graph, at most `degree` [S] at a server; a NIC that has failed takes a circuit with it.

    - ring: of neighbours, by half of the NICs each way; rings: of as many strides as there are, in turn.
    - torus: two dimensions, near a square, and the ring of neighbours on NICs that are left.
    - expander: random matchings, always the same.
    """
    degree = degree.astype(jnp.int32)
    most, servers = jnp.max(degree), len(degree)
    of = {
        "ring": lambda: _ring(servers) * (most // 2),
        "rings": lambda: _in_turn(_rings(servers), most // 2),
        "torus": lambda: _torus(servers) * (most // 4) + _ring(servers) * (most % 4 // 2),
        "expander": lambda: _in_turn(_matchings(servers), most),
    }
    every = jnp.stack([of[one_of("topology", name, TOPOLOGIES)]() for name in names])
    return jax.vmap(lambda count: _within(count, degree))(every)


def _ring(servers: int) -> np.ndarray:
    return ring_circuits(servers, [1]).astype(np.int32)


def _rings(servers: int) -> np.ndarray:
    steps = ascending_steps(servers, STRIDES)
    return np.stack([ring_circuits(servers, [step]) for step in steps]).astype(np.int32)


def _torus(servers: int) -> np.ndarray:
    """Four NICs of a server: those of a dimension that is not there double the other's."""
    shape = near_square(servers)
    return torus_links((*shape, 1)).astype(np.int32) * (2 if 1 in shape else 1)


@functools.cache
def _matchings(servers: int) -> np.ndarray:
    """Random perfect matchings [MATCHINGS S S]; of an odd number one server is left out each time."""
    random, count = np.random.default_rng(SEED), np.zeros((MATCHINGS, servers, servers), np.int32)
    for one in count:
        order = random.permutation(servers)
        i, j = order[: servers // 2], order[servers // 2 : servers // 2 * 2]
        one[i, j] = one[j, i] = 1
    return count


def _in_turn(graphs: np.ndarray, times: Array) -> Array:
    """The sum of the first `times` of graphs [N S S], which repeat."""
    turn = np.arange(len(graphs), dtype=np.int32)
    each = (times - 1 - turn) // len(graphs) + 1
    return (each[:, None, None] * graphs).sum(0, dtype=np.int32)


def _within(count: Int[Array, "S S"], degree: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Without the circuits of a server beyond its NICs, of the pair that has most first."""

    def over(count):
        return (count.sum(1, dtype=jnp.int32) > degree).any()

    def drop(count):
        server = jnp.argmax(count.sum(1, dtype=jnp.int32) - degree)
        other = jnp.argmax(count[server])
        return count.at[server, other].add(-1).at[other, server].add(-1)

    return jax.lax.while_loop(over, drop, count)
