"""The paper's greedy policy: give one circuit at a time to the slowest pair until no pair with demand can take one."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int

from mfabric_jax.checks import one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.arguments import demand_of, unless_nan
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array

RULES = ("printed", "released", "next")
PLENTY = 2**30  # circuits: more than any server has


class _Allocation(NamedTuple):
    score: Float[Array, "S S"]  # upper triangle; the released rule divides it
    # upper triangle
    count: Int[Array, "S S"]  # pyright: ignore[reportIncompatibleMethodOverride]
    free: Int[Array, "S"]


def greedy(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: Array | None = None,
    rule: str = "printed",
) -> Plan:
    """Give circuits one at a time to the pair that needs one most and has free NICs at both ends.

    - `demand` [S S]: bytes from server i to server j in one phase; both directions are added, the diagonal is ignored.
    - `rule`: "printed": the pair with the largest time D/C, infinite without a circuit; "next": with the largest
      D/(C+1); "released": with the largest score, which starts as D and is divided by 100 c at the pair's c-th circuit.

    Ties under "printed" go to the pair that leaves room for most further circuits between pairs with demand (an upper
    bound, exact up to four servers and if all pairs have demand). Further ties go to the pair that leaves every other
    server the partners that it needs, then to the larger demand, then to the lower (i, j). So 8 servers of degree 6 get
    24 circuits from any demand between all pairs, as the paper reports. Ties under "next" go to the larger demand, then
    to the lower (i, j); ties under "released" go to the lower (i, j).

    At most S * degree / 2 rounds. `previous` and `key` are not used.
    Source: arXiv 2501.03905, algorithm 1; "released" follows the authors' simulator. Deviations: the printed loop stops
    at a pair without a free NIC, this one skips the pair. The paper does not say how ties are broken.
    """
    one_of("rule", rule, RULES)
    return Plan(Circuits(allocate_greedily(demand_of(demand, region), region.degrees, rule)))


def greedy_released(
    demand: Float[Array, "S S"], region: Region, *, previous: Plan | None = None, key: Array | None = None
) -> Plan:
    """Run `greedy` with the rule "released", as in the authors' simulator."""
    return greedy(demand, region, rule="released")


def greedy_next(
    demand: Float[Array, "S S"], region: Region, *, previous: Plan | None = None, key: Array | None = None
) -> Plan:
    """Run `greedy` with the rule "next"."""
    return greedy(demand, region, rule="next")


@functools.partial(jax.jit, static_argnames="rule")
def allocate_greedily(demand: Float[Array, "S S"], degree: Int[Array, "S"], rule: str) -> Int[Array, "S S"]:
    """Return the circuits of `greedy`; -1 where the demand is NaN."""
    servers = len(demand)
    total = jnp.triu(demand + demand.T, 1)
    dense = (total > 0).sum(dtype=jnp.int32) == servers * (servers - 1) // 2

    def eligible(state: _Allocation):
        spare = state.free > 0
        return (state.score > 0) & spare[:, None] & spare[None, :]

    def allocate(state: _Allocation) -> _Allocation:
        able = eligible(state)
        slowness = jnp.where(able, _slowness(rule, state, total), -1)
        tied = slowness == slowness.max(initial=-1)
        if rule == "released":
            pair = jnp.argmax(slowness)
        else:
            pair = jnp.argmax(jnp.where(tied, total, -1))
        if rule == "printed":
            pair = _where(
                _doubtful(state.free, tied, dense, pair),
                lambda free: jnp.argmax(jnp.where(_least_loss(free, able, tied), total, -1)),
                pair,
                state.free,
            )
        i, j = jnp.divmod(pair, servers)
        count = state.count.at[i, j].add(1)
        score = state.score
        if rule == "released":
            score = score.at[i, j].divide(100 * count[i, j].astype(score.dtype))
        return _Allocation(score, count, state.free.at[i].add(-1).at[j].add(-1))

    nothing = jnp.zeros((servers, servers), jnp.int32)
    start = _Allocation(total, nothing, degree)
    count = lax.while_loop(lambda state: eligible(state).any(), allocate, start).count  # ends when no NIC is free
    return unless_nan(count + count.T, total)


def _slowness(rule: str, state: _Allocation, total: Array) -> Float[Array, "S S"]:
    if rule == "released":
        return state.score
    count = state.count.astype(total.dtype)
    if rule == "next":
        return total / (count + 1)
    return jnp.where(count > 0, total / jnp.maximum(count, 1), jnp.inf)


def _doubtful(free: Int[Array, "S"], tied: Bool[Array, "S S"], dense: Array, pair: Array) -> Bool[Array, ""]:
    """Return whether another tied pair may lose fewer circuits than this one."""
    i, j = jnp.divmod(pair, len(free))
    half = (2 * free >= free.sum(dtype=free.dtype)) & (free > 0)
    left_out = half.sum(dtype=jnp.int32) > half[i].astype(jnp.int32) + half[j].astype(jnp.int32)
    last = jnp.minimum(free[i], free[j]) == 1

    def is_needed(free: Array):
        both = tied | tied.T
        critical = _critical(free, both)[0]
        return ((free[i] == 1) & (both[i] & critical).any()) | ((free[j] == 1) & (both[j] & critical).any())

    return ~dense | left_out | _where(last, is_needed, last, free)


def _least_loss(free: Int[Array, "S"], eligible: Bool[Array, "S S"], tied: Bool[Array, "S S"]) -> Bool[Array, "S S"]:
    """Return the tied pairs (upper triangle) with the least loss; `_loses_two` counts 2, `_needs_its_partners` 1."""
    active, partners = free > 0, jnp.logical_or(eligible, eligible.T)
    half = (active & (2 * free >= free.sum(dtype=free.dtype))).astype(jnp.int32)  # sufficient if all pairs have demand
    left_out = half.sum(dtype=half.dtype) - half[:, None] - half[None, :] > 0
    silent = (active[:, None] & active[None, :] & ~partners & ~jnp.eye(len(free), dtype=bool)).any()
    loses_two = _where(silent, lambda free: _loses_two(free, partners), left_out, free)
    loss = 2 * loses_two.astype(jnp.int32) + _needs_its_partners(free, tied | tied.T).astype(jnp.int32)
    loss = jnp.where(tied, loss, 4)
    return loss == loss.min(initial=4)


def _where(
    needed: Bool[Array, ""], compute: Callable[[Array], Array], otherwise: Array, free: Int[Array, "S"]
) -> Array:
    """Return `compute(free)` if needed; unlike `lax.cond`, skip it if no member of a batch needs it."""

    def once(state: tuple[Any, ...]):
        # `free` depends on the state; otherwise XLA moves the computation out of the loop
        needed, _ = state
        return jnp.zeros_like(needed), compute(jnp.where(needed, free, 0))

    return lax.while_loop(lambda state: state[0], once, (needed, otherwise))[1]


def _loses_two(free: Int[Array, "S"], partners: Bool[Array, "S S"]) -> Bool[Array, "S S"]:
    """Return the pairs whose next circuit costs two of the circuits that could follow instead of one.

    - `partners` [S S]: pairs with demand and free NICs at both ends.

    A connected component can get at most half as many circuits as it has free NICs. Each server gives a second bound.
    Its `scarce` servers are its partners, and the partners of servers with more free NICs than all their partners. Its
    `alike` servers have only scarce partners. The bound is the NICs of the scarce servers plus half of the NICs of the
    other servers. If the least of these bounds is tight, a circuit costs two when it joins two scarce servers, or joins
    a scarce server to the others while these have an even number of NICs. This is the Tutte-Berge formula over these
    sets only.
    """
    active = partners.any(1)
    component = _components(partners)
    together = (component[:, None] == component[None, :]) & active[None, :]

    def nics(servers: Array):
        return jnp.where(servers, free[None, :], 0).sum(1, dtype=free.dtype)

    besieged = (partners & (free > nics(partners))[:, None]).any(0)
    scarce = partners | (together & besieged[None, :] & ~besieged[:, None])
    alike = together & ~scarce & ~_some(~scarce, partners)
    others = together & ~scarce & ~alike
    bound = nics(scarce) + nics(others) // 2
    least = jnp.minimum(nics(together) // 2, jnp.where(together, bound[None, :], PLENTY).min(1))
    even = (nics(others) % 2 == 0)[:, None]
    return _both_ways(scarce & (active & (bound == least))[:, None], scarce | (others & even))


def _needs_its_partners(free: Int[Array, "S"], tied: Bool[Array, "S S"]) -> Bool[Array, "S S"]:
    """Return the tied pairs whose circuit takes the last NIC of a partner that another server needs."""
    critical, twice = _critical(free, tied)

    def needs(free: Array):
        last = tied & (free == 1)[None, :] & critical[:, None]
        others = (free > 0)[None, :] & ~jnp.eye(len(free), dtype=bool) & (twice % 2 == 0)[:, None]
        return _both_ways(last, last | others)

    return _where(critical.any() & (free == 1).any(), needs, jnp.zeros_like(tied), free)


def _critical(free: Int[Array, "S"], tied: Bool[Array, "S S"]) -> tuple[Bool[Array, "S"], Int[Array, "S"]]:
    """Return the servers that need all their tied pairs, or all but one if the second result is odd.

    Bounds as in `_loses_two`.
    """
    active = free > 0
    pairs = tied.sum(1, dtype=free.dtype)
    total = free.sum(dtype=free.dtype)
    twice = total - free + pairs
    least = jnp.minimum(total, jnp.where(active, twice, PLENTY).min()) // 2
    return active & (pairs >= free) & (twice // 2 == least), twice


def _both_ways(first: Bool[Array, "N S"], second: Bool[Array, "N S"]) -> Bool[Array, "S S"]:
    """Return the pairs with one end in `first[n]` and the other in `second[n]`, for any n."""
    some = _some(first.T, second)
    return some | some.T


def _some(first: Bool[Array, "N M"], second: Bool[Array, "M K"]) -> Bool[Array, "N K"]:
    """Return the Boolean matrix product, computed on words of 32 entries."""
    word = min(second.shape[0], 32)

    def sets(members: Array):
        words = jnp.pad(members, ((0, 0), (0, -members.shape[1] % word))).reshape(len(members), -1, word)
        return (words.astype(jnp.uint32) << jnp.arange(word, dtype=jnp.uint32)[None, None, :]).sum(2, dtype=jnp.uint32)

    return (sets(first)[:, None, :] & sets(second.T)[None, :, :] > 0).any(2)


def _components(joined: Bool[Array, "S S"]) -> Int[Array, "S"]:
    """Return the lowest server in each server's connected component."""
    servers = len(joined)
    own = jnp.arange(servers, dtype=jnp.int32)
    reach = joined | jnp.eye(servers, dtype=bool)

    def spread(state: tuple[Any, ...]):
        label, _ = state
        lowest = jnp.where(reach, label[None, :], servers).min(1)
        return lowest, (lowest != label).any()

    return lax.while_loop(lambda state: state[1], spread, (own, jnp.asarray(True)))[0]
