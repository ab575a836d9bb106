"""Circuits bettered move by move around the latest ports."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._greedy import greedy
from mfabric_jax.policies._threshold import threshold
from mfabric_jax.policies.moves import ROUTINGS, Limit, best_move, scaled, scaled_time, used
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import between_servers

STARTS = 4  # of `threshold`, whose best the search starts from
CLOSER = 1e-4  # part of the best time by which the next must be earlier
TENURE = 2  # rounds for which a pair keeps its last change, up to twice that by chance
PATIENCE = 20  # rounds without a better plan, then the search goes back to the best
CHANCE = 0.3  # power of the uniform draws that favour servers


class _Search(NamedTuple):
    count: Int[Array, "S S"]
    fixed: Int[Array, "S S"]  # round up to which a pair keeps its circuits
    stale: Int[Array, ""]  # rounds since the last better plan, or since the search went back to it
    best: Int[Array, "S S"]
    least: Float[Array, ""]  # its time


def local_search(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    routing: str = "split",
    most_changed: int | None = None,
    rounds: int = 100,
) -> Plan:
    """The best that `improved` finds from greedy's "next", `threshold` and the previous circuits.

    - `demand` [S S]: bytes from server i to server j in one phase; the diagonal is ignored.
    - `previous`: the plan in use: a warm start.
    - `routing`: what to choose for, "unsplit" or "split".
    - `most_changed`: from `previous`, take down at most so many circuits and put up at most so many; nothing else is
      then a start. Circuits that the region's degrees no longer allow are taken down first, whatever the limit.
    - `rounds`: moves from every start.
    - `key`: seeds chance (None: always the same).

    Never worse than its starts by paced time.
    """
    one_of("routing", routing, ROUTINGS)
    whole("rounds", rounds, at_least=0)
    demand = between_servers(region, demand)
    key = jax.random.key(0) if key is None else key
    if previous is not None and previous.circuits.count.shape != demand.shape:
        shape = list(previous.circuits.count.shape)
        raise InputError(f"previous must have circuits [S S] with S = {region.servers} servers, got {shape}.")
    if most_changed is not None and previous is None:
        raise InputError("most_changed needs the previous plan, got none.")
    before = None if previous is None else previous.circuits.count
    return Plan(Circuits(_best(demand, region, before, _circuits(most_changed), key, routing, rounds)))


def improved(
    count: Int[Array, "S S"],
    demand: Float[Array, "S S"],
    region: Region,
    *,
    routing: str = "split",
    rounds: int = 100,
    most_changed: int | None = None,
    key: PRNGKeyArray | None = None,
) -> Int[Array, "S S"]:
    """Circuits no later than `count`, which must be legal, after `rounds` moves; at most `most_changed` differ from it.

    Tabu search. The target is a time just below the best so far. A round takes the server whose EPS ports have most
    bytes too many for it (by a little chance) and makes the move (`moves`) after which all ports have least too many,
    be it for the worse; the pairs changed then keep their circuits for a few rounds. What all ports carry in time is a
    better plan, its paced time the next target.

    A round costs about S (SLOTS + 1)^2 sums of eight terms and some passes over S * S. Source: tabu search after
    Glover, ORSA J. Computing 1(3), 1989; objective and moves are ours.
    """
    one_of("routing", routing, ROUTINGS)
    whole("rounds", rounds, at_least=0)
    demand = between_servers(region, demand)
    key = jax.random.key(0) if key is None else key
    return _improved(count, demand, region, _circuits(most_changed), key, routing, rounds)[0]


def _circuits(most_changed):
    """Traced, so that another limit does not compile anew."""
    if most_changed is None:
        return None
    if not isinstance(most_changed, jax.Array):
        whole("most_changed", most_changed, at_least=0)
    return jnp.asarray(most_changed).astype(jnp.int32)


@functools.partial(jax.jit, static_argnames=("routing", "rounds"))
def _best(demand, region: Region, previous, most, key, routing: str, rounds: int) -> Int[Array, "S S"]:
    starts = []
    if previous is not None:
        starts = [_fitted(previous, demand, region.degrees)]
    if most is None:
        starts.append(greedy(demand, region, rule="next").circuits.count)
        starts.append(threshold(demand, region, key=key, routing=routing, starts=STARTS).circuits.count)
    keys = jax.random.split(key, len(starts))
    search = functools.partial(_improved, routing=routing, rounds=rounds)
    counts, times = jax.vmap(lambda count, key: search(count, demand, region, most, key))(jnp.stack(starts), keys)
    return counts[jnp.argmin(times)]


@functools.partial(jax.jit, static_argnames=("routing", "rounds"))
def _improved(start, demand, region: Region, most, key, routing: str, rounds: int):
    """The best circuits and their time."""
    work, degree = scaled(demand, region), region.degrees
    start = start.astype(jnp.int32)
    limit = None if most is None else Limit(start, most)
    chance = jax.random.uniform(key, (rounds, len(demand) + 1), demand.dtype)

    def move(state: _Search, now) -> tuple[_Search, None]:
        turn, chance = now
        at = jnp.where(jnp.isfinite(state.least), state.least * (1 - CLOSER), 1)  # by 1 a circuit carries any pair
        loose = state.fixed < turn
        favour = chance[1:] ** CHANCE
        count, moved = best_move(state.count, loose, favour, work, degree, at, routing, limit)
        until = turn + TENURE + (chance[0] * (TENURE + 1)).astype(turn.dtype)
        active = used(count, work.size, at, routing)
        time = scaled_time(work, region, demand, active, routing)
        if limit is not None:
            time = jnp.where(limit.kept(active), time, jnp.inf)
        better = time < state.least
        best = jnp.where(better, active, state.best)
        stale = jnp.where(better, 0, state.stale + 1)
        back = stale >= PATIENCE
        fixed = jnp.where(better | back, 0, jnp.where(moved, until, state.fixed))
        count, stale = jnp.where(better | back, best, count), jnp.where(back, 0, stale)
        return _Search(count, fixed, stale, best, jnp.minimum(time, state.least)), None

    never, least = jnp.zeros_like(start), scaled_time(work, region, demand, start, routing)
    first = _Search(start, never, jnp.zeros((), jnp.int32), start, least)
    turns = jnp.arange(1, rounds + 1, dtype=jnp.int32)
    last = lax.scan(move, first, (turns, chance))[0]
    return last.best, last.least


def _fitted(count, demand, degree: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Without the circuits that carry least, until every server has NICs for its own."""
    whole_ = jnp.maximum(jnp.rint(jnp.minimum(count, count.T)), 0).astype(jnp.int32)
    legal = jnp.where(jnp.eye(len(degree), dtype=bool), 0, whole_)
    both = jnp.maximum(demand, demand.T)

    def over(count):
        return count.sum(1, dtype=degree.dtype) - degree

    def drop(count):
        worst = jnp.argmax(over(count))
        carries = both[worst] / jnp.maximum(count[worst], 1).astype(both.dtype)
        least = jnp.argmin(jnp.where(count[worst] > 0, carries, jnp.inf))
        return count.at[worst, least].add(-1).at[least, worst].add(-1)

    return lax.while_loop(lambda count: (over(count) > 0).any(), drop, legal)
