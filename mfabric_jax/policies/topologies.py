"""Choose the one of a few prewired graphs that serves a demand fastest.

Arrays of small optical switches choose among such graphs. Source of the idea: ACOS, arXiv 2602.17449 (abstract). The
graphs are our choice.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Int, Num

from mfabric_jax.case.network import TOPOLOGIES
from mfabric_jax.checks import one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.grids import ascending_steps, ring_circuits
from mfabric_jax.fabric.torus import near_square, torus_links
from mfabric_jax.policies.arguments import demand_of, unless_nan
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import part_times
from mfabric_jax.support.array_module import Array

STRIDES, MATCHINGS = 4, 16  # different strides and random matchings; they repeat if a server has more NICs
SEED = 0  # of the random matchings


def topologies(
    demand: Num[ArrayLike, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: Array | None = None,
    routing: str = "unsplit",
    names: tuple[str, ...] = TOPOLOGIES,
) -> Plan:
    """Return the circuits of the graph in `names` under which the all-to-all of `demand` [S S] ends first.

    All graphs are timed exactly (`part_times` under `routing`); ties go to the first. `previous` and `key` are unused.
    """
    demand = demand_of(demand, region)
    every = candidates(region.degrees, names)
    ends = jax.vmap(lambda count: jnp.maximum(*part_times(region, Circuits(count), demand, routing=routing)))(every)
    return Plan(Circuits(unless_nan(every[jnp.argmin(ends)], demand)))


def candidates(degree: Int[Array, "S"], names: tuple[str, ...] = TOPOLOGIES) -> Int[Array, "K S S"]:
    """Return the circuits of every graph, at most `degree` [S] at a server; a failed NIC loses a circuit.

    - ring: joins neighbours, with half of the NICs in each direction. rings: cycles through up to four strides.
    - torus: two dimensions, nearly square; left-over NICs form a ring of neighbours.
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
    """Return a torus on four NICs per server; if one dimension is 1, the other gets its NICs."""
    shape = near_square(servers)
    return torus_links((*shape, 1)).astype(np.int32) * (2 if 1 in shape else 1)


@functools.cache
def _matchings(servers: int) -> np.ndarray:
    """Return random perfect matchings [MATCHINGS S S]; with an odd number of servers, each omits one."""
    random, count = np.random.default_rng(SEED), np.zeros((MATCHINGS, servers, servers), np.int32)
    for matching in count:
        order = random.permutation(servers)
        i, j = order[: servers // 2], order[servers // 2 : servers // 2 * 2]
        matching[i, j] = matching[j, i] = 1
    return count


def _in_turn(graphs: np.ndarray, times: Array) -> Array:
    """Return the sum of the first `times` of the endlessly repeated graphs [N S S]."""
    number = np.arange(len(graphs), dtype=np.int32)
    each = (times - 1 - number) // len(graphs) + 1
    return (each[:, None, None] * graphs).sum(0, dtype=np.int32)


def _within(count: Int[Array, "S S"], degree: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Remove circuits beyond a server's NICs, first from the pair that has most."""

    def over(count: Array):
        return (count.sum(1, dtype=jnp.int32) > degree).any()

    def drop(count: Array):
        server = jnp.argmax(count.sum(1, dtype=jnp.int32) - degree)
        other = jnp.argmax(count[server])
        return count.at[server, other].add(-1).at[other, server].add(-1)

    return jax.lax.while_loop(over, drop, count)
