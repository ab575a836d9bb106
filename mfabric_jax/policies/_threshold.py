"""Circuits for a time T, and the least T found by bisection: circuits go where they relieve the EPS most per NIC."""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.checks import one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._greedy import greedy
from mfabric_jax.policies.moves import ROUTINGS, Scaled, scaled, scaled_time, steps
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.routing.region import between_servers

BISECTIONS = 14  # of T, between the degree bound and the best so far
NOISE = 1.0  # standard deviation of the logarithms of scores in the last start; first: 0


def threshold(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous=None,
    key: PRNGKeyArray | None = None,
    routing: str = "unsplit",
    starts: int = 16,
) -> Plan:
    """The least T for which the rule finds circuits that keep every electrical port in time.

    - `demand` [S S]: bytes from server i to server j in one phase; the diagonal is ignored.
    - `routing`: what to choose for. "unsplit": a pair that leaves the EPS takes all circuits it needs to end by T,
      ceil(D / (T B)) for its larger direction; "split": circuits are given one by one.
    - `starts`: runs with more and more noise on the scores, of which the best counts; the first has none. `key` seeds
      the noise (None: always the same).

    For a given T: while some EPS port cannot carry its bytes by T, give circuits to the pair that relieves such ports
    of most bytes per NIC, among those with the NICs free at both ends. T is bisected; what the circuits found really
    need (`fluid_lower_bound`) is the next upper end. Never worse than greedy's "next", which it starts from.
    `previous` is not used.

    Source: bisection on T is how the one-hop optimum of ATRO is found; the rule for what gets circuits is ours.
    """
    one_of("routing", routing, ROUTINGS)
    whole("starts", starts)
    demand = between_servers(region, demand)
    return Plan(Circuits(_best(demand, region, jax.random.key(0) if key is None else key, routing, starts)))


@functools.partial(jax.jit, static_argnames=("routing", "starts"))
def _best(demand, region: Region, key, routing: str, starts: int) -> Int[Array, "S S"]:
    first = greedy(demand, region, rule="next").circuits.count
    spread = jnp.linspace(0, NOISE, starts, dtype=demand.dtype)[:, None, None]
    favour = jnp.exp(spread * jax.random.normal(key, (starts, *demand.shape), demand.dtype))
    counts, times = jax.vmap(lambda favour: _bisected(demand, region, first, favour, routing))(favour)
    return counts[jnp.argmin(times)]


def _bisected(demand, region: Region, first, favour, routing: str) -> tuple[Int[Array, "S S"], Float[Array, ""]]:
    """The best circuits of one start and their time."""
    work = scaled(demand, region)

    def halve(_, state):
        low, high, best, least = state
        middle = (low + high) / 2
        count = _allocated(work, region.degrees, middle, favour, routing)
        then = scaled_time(work, region, demand, count, routing)
        reached = then <= middle
        high = jnp.where(reached, jnp.minimum(then, high), high)
        return jnp.where(reached, low, middle), high, jnp.where(then < least, count, best), jnp.minimum(then, least)

    least = scaled_time(work, region, demand, first, routing)
    bound = degree_bound(region, demand) / work.unit_s
    low = jnp.where(jnp.isfinite(bound), bound, 0)
    high = jnp.where(jnp.isfinite(least), least, jnp.maximum(low, 1))  # by 1 a circuit has carried any pair
    return lax.fori_loop(0, BISECTIONS, halve, (low, high, first, least))[2:]


def _allocated(work: Scaled, degree: Int[Array, "S"], at, favour, routing: str) -> Int[Array, "S S"]:
    """Circuits by which all ends at `at`, if the rule finds them: at most S * degree / 2 rounds."""
    size = work.size

    def look(count):
        """Scores of the pairs, and what each would have."""
        give, _, carried = steps(count, size, at, routing)
        out, into = (jnp.maximum(excess, 0) for excess in work.excess(carried, at))
        relief = jnp.minimum(give.moved, out[:, None]) + jnp.minimum(give.moved, into[None, :])
        relief = jnp.triu(relief + relief.T, 1)
        free = degree - count.sum(1, dtype=degree.dtype)
        able = (give.nics > 0) & (give.nics <= free[:, None]) & (give.nics <= free[None, :])
        score = relief / jnp.maximum(give.nics, 1).astype(size.dtype) * favour
        return jnp.where(able, score, 0), give.after

    def deal(state):
        count, score, after = state
        i, j = jnp.divmod(jnp.argmax(score), len(size))
        count = count.at[i, j].set(after[i, j]).at[j, i].set(after[i, j])
        return count, *look(count)

    nothing = jnp.zeros(size.shape, jnp.int32)
    return lax.while_loop(lambda state: state[1].max() > 0, deal, (nothing, *look(nothing)))[0]
