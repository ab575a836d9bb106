"""The paper's greedy: give the slowest pair one more circuit, until no pair with demand can take one."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing import Plan, as_demand

RULES = ("printed", "released", "next")


class _Allocation(NamedTuple):
    score: Float[Array, "S S"]  # upper triangle; what the released rule divides in place
    count: Int[Array, "S S"]  # upper triangle
    free: Int[Array, "S"]


def greedy(demand: Float[Array, "S S"], region: Region, *, previous=None, key=None, rule: str = "printed") -> Plan:
    """Give circuits one at a time to the pair that needs one most, while it has free NICs at both ends.

    - `demand` [S S]: bytes from server i to server j in one phase; both directions of a pair are added, the diagonal
      is ignored.
    - `rule`: "printed": the largest completion time D/C, infinite without a circuit (ties: the larger demand, then
      the lower i, j); "next": the largest D/(C+1), same ties; "released": the largest score, D at first and divided
      in place by 100 c when the pair gets its c-th circuit (ties: the lower i, j).

    Servers may have unequal degrees. At most S * degree / 2 rounds. `previous` and `key` are part of every policy's
    signature and not used.
    Source: arXiv 2501.03905, algorithm 1; the released rule as the authors' simulator runs it. Deviation: a pair
    without a free NIC is skipped, where the printed loop stops.
    """
    one_of("rule", rule, RULES)
    demand, servers = as_demand(demand), region.servers
    if demand.shape != (servers, servers):
        raise InputError(f"demand must be [S S] with S = {servers} servers, got {list(demand.shape)}.")
    return Plan(Circuits(_allocated(demand, region.degrees, rule)))


def greedy_released(demand: Float[Array, "S S"], region: Region, *, previous=None, key=None) -> Plan:
    """`greedy` by the rule of the authors' simulator."""
    return greedy(demand, region, rule="released")


def greedy_next(demand: Float[Array, "S S"], region: Region, *, previous=None, key=None) -> Plan:
    """`greedy` by the rule "next": to the pair whose next circuit leaves most bytes on each."""
    return greedy(demand, region, rule="next")


@functools.partial(jax.jit, static_argnames="rule")
def _allocated(demand: Float[Array, "S S"], degree, rule: str) -> Int[Array, "S S"]:
    servers = len(demand)
    total = jnp.triu(demand + demand.T, 1)

    def wants(state: _Allocation):
        spare = state.free > 0
        return (state.score > 0) & spare[:, None] & spare[None, :]

    def deal(state: _Allocation) -> _Allocation:
        eligible = wants(state)
        pair = jnp.argmax(_priority(rule, state, total, eligible))
        i, j = jnp.divmod(pair, servers)
        count = state.count.at[i, j].add(1)
        score = state.score
        if rule == "released":
            score = score.at[i, j].divide(100 * count[i, j].astype(score.dtype))
        return _Allocation(score, count, state.free.at[i].add(-1).at[j].add(-1))

    nothing = jnp.zeros((servers, servers), jnp.int32)
    start = _Allocation(total, nothing, degree)
    count = lax.while_loop(lambda state: wants(state).any(), deal, start).count  # free NICs run out
    return count + count.T


def _priority(rule: str, state: _Allocation, total, eligible):
    """What argmax (first on ties) picks from."""
    if rule == "released":
        return jnp.where(eligible, state.score, -1)
    count = state.count.astype(total.dtype)
    if rule == "next":
        slowness = total / (count + 1)
    else:
        slowness = jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.inf)
    slowness = jnp.where(eligible, slowness, -1)
    return jnp.where(slowness == slowness.max(initial=-1), total, -1)
