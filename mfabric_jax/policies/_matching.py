"""Maximum-weight b-matchings of the demand: the circuits that carry most bytes, whatever is left to the EPS."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.exact_programmes import highs
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import between_servers


def matching(demand: Float[Array, "S S"], region: Region, *, previous=None, key=None) -> Plan:
    """A heaviest set of pairs, one circuit each, as far as the degrees go; then the same with the NICs left, and again.

    - `demand` [S S]: bytes from server i to server j in one phase; the diagonal is ignored.

    A pair weighs its bytes in both directions (over its circuits and one more it would be the same: those that can take
    more have equally many). Each set is exact, by SciPy's HiGHS (extra `exact`) on the
    host; works in `jit` and `vmap`, one instance after the other. `previous` and `key` are not used.

    The usual baseline of optical data centres (Helios and c-Through, SIGCOMM 2010) with more than one circuit a server.
    It looks at bytes, not at the time that they take: no better than the paper's greedy (`experiments.policy_gaps`).
    """
    highs("policy 'matching'")
    demand = between_servers(region, demand)
    result = jax.ShapeDtypeStruct(demand.shape, jnp.int32)
    return Plan(Circuits(jax.pure_callback(_matched, result, demand, region.degrees, vmap_method="sequential")))


def _matched(demand, degree) -> np.ndarray:
    """Circuits [S S]: at most as many sets as the largest degree."""
    demand = np.asarray(demand, np.float64)
    weight = demand + demand.T
    i, j = np.nonzero(np.triu(np.where(np.isfinite(weight), weight, 0), 1) > 0)
    free, taken = np.array(degree), np.zeros(len(i), np.int32)
    while True:
        able = np.flatnonzero((free[i] > 0) & (free[j] > 0))
        if not len(able):
            break
        chosen = able[_heaviest(weight[i, j][able], i[able], j[able], free)]
        taken[chosen] += 1
        np.subtract.at(free, np.concatenate([i[chosen], j[chosen]]), 1)
    count = np.zeros(demand.shape, np.int32)
    count[i, j] = taken
    return count + count.T


def _heaviest(weight: np.ndarray, i: np.ndarray, j: np.ndarray, free: np.ndarray) -> np.ndarray:
    """Places of the pairs of a heaviest set in which server s has at most free[s]; never empty."""
    bounds, constraint, milp, csr_array = highs("policy 'matching'")
    pairs = np.arange(len(i))
    ends = csr_array((np.ones(2 * len(i)), (np.concatenate([i, j]), np.tile(pairs, 2))), shape=(len(free), len(i)))
    found = milp(
        -weight / weight.max(),
        integrality=np.ones(len(i)),
        bounds=bounds(0, 1),
        constraints=constraint(ends, ub=free),
        options={"mip_rel_gap": 0.0},
    )
    if found.x is None:
        raise RuntimeError(f"HiGHS found no matching: {found.message}")
    return np.flatnonzero(found.x > 0.5)
