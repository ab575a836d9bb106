"""Circuits for unsplit and split routing: `threshold` bisects a greedy rule's time; `local_search` is tabu search.

The unit of bytes is the largest pair's demand, which a NIC carries in one unit of time (`scale_demand`). `carried` is
what a pair sends over the EPS to end by T. Unsplit: all its bytes, or none if its circuits suffice. Split: the bytes
beyond its circuits. A port of E NICs is in time if it carries at most E T.

A move gives circuits to a pair (w, b) of a late server w. Their NICs are free, or come at w from (w, c) and at b from
(b, d). If both come from other pairs, (c, d) gets what the freed NICs allow. c and d are among the K partners of a
server that lose least.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Bool, Float, Int, PRNGKeyArray

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.arguments import WITHOUT_RELAY, circuits_before, demand_of, unless_nan
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.routing import Plan, degree_bound, fluid_lower_bound
from mfabric_jax.support.array_module import Array

ROUNDING = 4  # units in the last place by which D / T may exceed a whole number
PLENTY = 1e6  # circuits: more than any server has
SLOTS = 8  # K: pairs of a server that a move may take from; usually its degree suffices
BISECTIONS = 14  # bisections of T between the degree bound and the best time so far
NOISE = 1.0  # standard deviation of the log noise on scores in the last start; the first has none
STARTS = 4  # runs of `threshold`; the best of them is one start of the search
CLOSER = 1e-4  # relative gain over the best time that the target asks for
TENURE = 2  # least rounds for which a changed pair stays fixed; random up to twice as many
PATIENCE = 20  # rounds without a better plan after which the search returns to the best one
CHANCE = 0.3  # exponent of the uniform random factors on the servers


class Scaled(NamedTuple):
    size: Float[Array, "S S"]
    port: Float[Array, "S"]  # EPS NICs
    unit_s: Float[Array, ""]  # seconds in which a NIC carries one unit

    def excess(self, carried: Float[Array, "S S"], time: Array) -> tuple[Float[Array, "S"], Float[Array, "S"]]:
        """Return the bytes out and in beyond what each server's ports carry by `time`; negative if there is room."""
        return carried.sum(1) - self.port * time, carried.sum(0) - self.port * time


class CircuitStep(NamedTuple):
    """Effect of giving every pair its next circuits, or of taking them away."""

    nics: Int[Array, "S S"]  # NICs at each end; 0 if there is no such step
    after: Int[Array, "S S"]  # the pair's circuits after the step
    moved: Float[Array, "S S"]  # bytes that leave the EPS (circuits given) or come to it (circuits taken)


def scale_demand(demand: Float[Array, "S S"], region: Region) -> Scaled:
    """Return the demand in units of the largest pair."""
    largest = jnp.maximum(demand.max(initial=0), jnp.finfo(demand.dtype).tiny)
    port = jnp.broadcast_to(jnp.asarray(region.electrical_nics, demand.dtype), region.servers)
    return Scaled(demand / largest, port, largest / jnp.asarray(region.nic_Bps, demand.dtype))


def scaled_time(
    work: Scaled, region: Region, demand: Array, count: Int[Array, "S S"], routing: str
) -> Float[Array, ""]:
    """Return the time of paced flows over the circuits [units]."""
    return fluid_lower_bound(region, Circuits(count), demand, routing=routing) / work.unit_s


def circuits_needed(size: Float[Array, "S S"], time: Array) -> Int[Array, "S S"]:
    larger = jnp.maximum(size, size.T)
    some = larger > 0
    time = jnp.maximum(time, jnp.finfo(size.dtype).tiny)
    most = jnp.ceil(larger * (1 - ROUNDING * jnp.finfo(size.dtype).eps) / time)
    return jnp.where(some, jnp.clip(most, 1, PLENTY), 0).astype(jnp.int32)


def circuits_in_use(count: Int[Array, "S S"], size: Array, time: Array, routing: str) -> Int[Array, "S S"]:
    """Return the circuits in use: under unsplit routing, a pair with too few circuits to end by `time` uses none."""
    return count if routing == "split" else jnp.where(count < circuits_needed(size, time), 0, count)


def steps(
    count: Int[Array, "S S"], size: Array, time: Array, routing: str
) -> tuple[CircuitStep, CircuitStep, Float[Array, "S S"]]:
    """Return every pair's next step up and down from `count` circuits, and its current bytes on the EPS."""
    return (_split if routing == "split" else _unsplit)(count, size, time)


def _split(count: Array, size: Array, time: Array):
    def bytes_left(count: Array):
        return jnp.maximum(size - count.astype(size.dtype) * time, 0)

    carried, active = bytes_left(count), jnp.minimum(count, 1)
    wanted = ((size + size.T) > 0).astype(jnp.int32)
    give = CircuitStep(wanted, count + 1, carried - bytes_left(count + 1))
    take = CircuitStep(active, count - active, bytes_left(count - active) - carried)
    return give, take, carried


def _unsplit(count: Array, size: Array, time: Array):
    """Return steps of all circuits that a pair needs; circuits that are too few or not needed cost nothing to take."""
    enough = circuits_needed(size, time)
    done = count >= enough
    carried = jnp.where(done, 0, size)
    give = CircuitStep(jnp.where(done, 0, enough - count), jnp.maximum(count, enough), carried)
    remaining = jnp.where(count > enough, enough, 0)
    take = CircuitStep(count - remaining, remaining, jnp.where((count == enough) & (count > 0), size, 0))
    return give, take, carried


# ------------------------------------------------------------------------------------------------- the rule
def threshold(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    routing: str = "unsplit",
    starts: int = 16,
) -> Plan:
    """Return the circuits for the least time T at which a greedy rule keeps every EPS port in time.

    - `demand` [S S]: bytes from server i to server j in one phase; the diagonal is ignored.
    - `routing`: "unsplit" gives a pair at once all circuits that it needs to end by T; "split" gives one at a time.
    - `starts`: number of runs; the first has no noise on its scores, later ones have more and more. `key`: random key
      of the noise.

    The rule: while some EPS port cannot carry its bytes by T, give circuits to the pair that takes most bytes per NIC
    off such ports. T is bisected. The result is never slower than `greedy_next`, where the bisection starts. `previous`
    is not used. Source: ATRO bisects T for its one-hop optimum; the rule is ours.
    """
    one_of("routing", routing, WITHOUT_RELAY)
    whole("starts", starts)
    demand, key = demand_of(demand, region), jax.random.key(0) if key is None else key
    return Plan(Circuits(unless_nan(_best_of_starts(demand, region, key, routing, starts), demand)))


@functools.partial(jax.jit, static_argnames=("routing", "starts"))
def _best_of_starts(demand: Array, region: Region, key: Array, routing: str, starts: int) -> Int[Array, "S S"]:
    first = greedy(demand, region, rule="next").circuits.count
    spread = jnp.linspace(0, NOISE, starts, dtype=demand.dtype)[:, None, None]
    favour = jnp.exp(spread * jax.random.normal(key, (starts, *demand.shape), demand.dtype))
    counts, times = jax.vmap(lambda favour: _bisect_time(demand, region, first, favour, routing))(favour)
    return counts[jnp.argmin(times)]


def _bisect_time(
    demand: Array, region: Region, first: Array, favour: Array, routing: str
) -> tuple[Int[Array, "S S"], Float[Array, ""]]:
    work = scale_demand(demand, region)

    def halve(_, state: tuple[Any, ...]):
        low, high, best, least = state
        middle = (low + high) / 2
        count = _allocate(work, region.degrees, middle, favour, routing)
        then = scaled_time(work, region, demand, count, routing)
        reached = then <= middle
        high = jnp.where(reached, jnp.minimum(then, high), high)
        return jnp.where(reached, low, middle), high, jnp.where(then < least, count, best), jnp.minimum(then, least)

    least = scaled_time(work, region, demand, first, routing)
    bound = degree_bound(region, demand) / work.unit_s
    low = jnp.where(jnp.isfinite(bound), bound, 0)
    high = jnp.where(jnp.isfinite(least), least, jnp.maximum(low, 1))  # one circuit carries any pair by time 1
    return lax.fori_loop(0, BISECTIONS, halve, (low, high, first, least))[2:]


def _allocate(work: Scaled, degree: Int[Array, "S"], time: Array, favour: Array, routing: str) -> Int[Array, "S S"]:
    size = work.size

    def look(count: Array):
        give, _, carried = steps(count, size, time, routing)
        out, into = (jnp.maximum(excess, 0) for excess in work.excess(carried, time))
        relief = jnp.minimum(give.moved, out[:, None]) + jnp.minimum(give.moved, into[None, :])
        relief = jnp.triu(relief + relief.T, 1)
        free = degree - count.sum(1, dtype=degree.dtype)
        able = (give.nics > 0) & (give.nics <= free[:, None]) & (give.nics <= free[None, :])
        score = relief / jnp.maximum(give.nics, 1).astype(size.dtype) * favour
        return jnp.where(able, score, 0), give.after

    def deal(state: tuple[Any, ...]):
        count, score, after = state
        i, j = jnp.divmod(jnp.argmax(score), len(size))
        count = count.at[i, j].set(after[i, j]).at[j, i].set(after[i, j])
        return count, *look(count)

    nothing = jnp.zeros(size.shape, jnp.int32)
    return lax.while_loop(lambda state: state[1].max() > 0, deal, (nothing, *look(nothing)))[0]


# ---------------------------------------------------------------------------------------------------- moves
class Limit(NamedTuple):
    """At most `most` circuits may be removed from `origin`, and at most `most` added."""

    origin: Int[Array, "S S"]
    most: Int[Array, ""]

    def allows(self, count: Int[Array, "S S"]) -> Bool[Array, ""]:
        return count_changes(count, self.origin) <= self.most


class _Moves(NamedTuple):
    """All moves around server w [K+1 S K+1]; c = w (or d = b) takes nothing from a pair of w (or b)."""

    w: Int[Array, ""]
    b: Int[Array, "..."]
    c: Int[Array, "..."]
    d: Int[Array, "..."]
    closes: Bool[Array, "..."]  # (c, d) gets circuits too


def count_changes(count: Int[Array, "S S"], previous: Int[Array, "S S"]) -> Int[Array, ""]:
    """Return the larger of the numbers of removed and of added circuits."""
    more = jnp.triu(count - previous)
    up, down = (jnp.maximum(side, 0).sum(dtype=more.dtype) for side in (more, -more))
    return jnp.maximum(up, down)


def best_move(
    count: Int[Array, "S S"],
    loose: Bool[Array, "S S"],
    favour: Float[Array, "S"],
    work: Scaled,
    degree: Int[Array, "S"],
    time: Float[Array, ""],
    routing: str,
    limit: Limit | None,
) -> tuple[Int[Array, "S S"], Bool[Array, "S S"]]:
    """Return the circuits after the best move around the latest server, and the pairs [S S] that changed.

    Only `loose` pairs may change. The latest server is the one with most excess bytes at its ports, scaled by `favour`
    [S]. Even the best move may make the plan slower. Nothing changes if no port is late or no move exists. A circuit
    beyond the limit costs the bytes that it carries by `time`.
    """
    give, take, carried = steps(count, work.size, time, routing)
    give, take = (step._replace(nics=jnp.where(loose, step.nics, 0)) for step in (give, take))
    excess = work.excess(carried, time)
    late = jnp.maximum(excess[0], 0) + jnp.maximum(excess[1], 0)
    active = circuits_in_use(count, work.size, time, routing)
    if limit is not None:
        differ = jnp.abs(active - limit.origin).sum(1).astype(late.dtype)
        late = late + jnp.where(limit.allows(active), 0, differ * time)
    latest = jnp.argmax(late * favour).astype(jnp.int32)
    moves, able = _moves(latest, give, take, degree - count.sum(1, dtype=degree.dtype))
    cost = jnp.zeros_like(able, dtype=late.dtype)
    if limit is not None:
        moves, more = _beyond(limit, moves, active, give, take)
        cost = more.astype(late.dtype) * time
    rise = jnp.where(able & (late > 0).any(), _rise(moves, give, take, excess) + cost, jnp.inf)
    able = rise < jnp.inf
    pick = jnp.argmin(rise)
    b, c, d, closes, able = (x.reshape(-1)[pick] for x in (moves.b, moves.c, moves.d, moves.closes, able))
    w, after = moves.w, count
    for i, j, step, done in ((w, c, take, c != w), (b, d, take, d != b), (w, b, give, True), (c, d, give, closes)):
        value = jnp.where(able & done, step.after[i, j], after[i, j])
        after = after.at[i, j].set(value).at[j, i].set(value)
    return after, after != count


def _moves(w: Array, give: CircuitStep, take: CircuitStep, free: Int[Array, "S"]) -> tuple[_Moves, Bool[Array, "..."]]:
    servers = len(free)
    harm = jnp.where(take.nics > 0, -take.moved - take.moved.T, -jnp.inf)
    value, near = lax.top_k(harm, min(SLOTS, servers - 1))
    own = jnp.arange(servers, dtype=near.dtype)
    near = jnp.concatenate([own[:, None], jnp.where(value > -jnp.inf, near, own[:, None])], axis=1)
    b, c, d = jnp.broadcast_arrays(own[None, :, None], near[w][:, None, None], near[None])
    from_c, from_d = take.nics[w, c], take.nics[b, d]
    needs, closing = give.nics[w, b], give.nics[c, d]
    able = (needs > 0) & (free[w] + from_c >= needs) & (free[b] + from_d >= needs) & (c != b) & (d != w)
    closes = (closing > 0) & (c != w) & (d != b) & (c != d)
    closes &= (free[c] + from_c >= closing) & (free[d] + from_d >= closing)
    return _Moves(w, b, c, d, closes), able


def _rise(moves: _Moves, give: CircuitStep, take: CircuitStep, excess: Array) -> Float[Array, "..."]:
    """Return how much each move adds to the ports' excess bytes."""
    w, b, c, d, closes = moves
    up, down, (out, into) = give.moved, take.moved, excess

    def server_rise(server: Array, more_out: Array, more_in: Array):
        before = jnp.maximum(out[server], 0) + jnp.maximum(into[server], 0)
        return jnp.maximum(out[server] + more_out, 0) + jnp.maximum(into[server] + more_in, 0) - before

    cd, dc = jnp.where(closes, up[c, d], 0), jnp.where(closes, up[d, c], 0)
    both = (c == d) & (c != w) & (d != b)  # one server gives circuits to both w and b
    from_b = jnp.where(both, down[c, b], 0), jnp.where(both, down[b, c], 0)
    rise = server_rise(w, down[w, c] - up[w, b], down[c, w] - up[b, w]) + server_rise(
        b, down[b, d] - up[b, w], down[d, b] - up[w, b]
    )
    rise += jnp.where(c != w, server_rise(c, down[c, w] - cd + from_b[0], down[w, c] - dc + from_b[1]), 0)
    return rise + jnp.where((d != b) & ~both, server_rise(d, down[d, b] - dc, down[b, d] - cd), 0)


def _beyond(
    limit: Limit, moves: _Moves, count: Array, give: CircuitStep, take: CircuitStep
) -> tuple[_Moves, Int[Array, "..."]]:
    """Return the circuits that each move adds beyond the limit; (c, d) gets circuits only if that adds none."""
    w, b, c, d, closes = moves

    def differs(step: CircuitStep, sign: int):
        new, old = (jnp.maximum(sign * (value - limit.origin), 0) for value in (step.after, count))
        return jnp.where(step.nics > 0, new - old, 0)

    def beyond(closes: Array):
        sides = []
        for sign in (1, -1):
            now = jnp.triu(jnp.maximum(sign * (count - limit.origin), 0)).sum(dtype=count.dtype)
            added, taken = differs(give, sign), differs(take, sign)
            sides.append(now + added[w, b] + taken[w, c] + taken[b, d] + jnp.where(closes, added[c, d], 0))
        return jnp.maximum(jnp.maximum(*sides) - limit.most, 0)

    closes = closes & (beyond(closes) <= beyond(False))
    now = jnp.maximum(count_changes(count, limit.origin) - limit.most, 0)
    return moves._replace(closes=closes), beyond(closes) - now


# --------------------------------------------------------------------------------------------------- search
class _Search(NamedTuple):
    count: Int[Array, "S S"]  # pyright: ignore[reportIncompatibleMethodOverride]
    fixed: Int[Array, "S S"]  # last round in which a pair keeps its circuits
    stale: Int[Array, ""]  # rounds since the last better plan or the last return to it
    best: Int[Array, "S S"]
    least: Float[Array, ""]  # its time


def local_search(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    routing: str = "split",
    most_changed: int | Array | None = None,
    rounds: int = 100,
) -> Plan:
    """Return the best circuits of tabu search (`tabu_search`) from `greedy_next`, `threshold` and the previous plan.

    - `demand` [S S]: bytes from server i to server j in one phase; the diagonal is ignored.
    - `previous`: the plan in use. `key`: random key; None: a fixed one.
    - `routing`: "unsplit" or "split". `rounds`: moves from every start.
    - `most_changed`: remove at most this many of the previous circuits and add at most this many; the search
      then starts only from them. Circuits beyond the region's degrees are removed first, whatever the limit.

    The result is never slower than the search's starts under paced flows.
    """
    one_of("routing", routing, WITHOUT_RELAY)
    whole("rounds", rounds, at_least=0)
    demand, before = demand_of(demand, region), circuits_before(previous, region)
    key = jax.random.key(0) if key is None else key
    if most_changed is not None and previous is None:
        raise InputError("most_changed needs the previous plan, got none.")
    most = None
    if most_changed is not None:
        if not isinstance(most_changed, jax.Array):
            whole("most_changed", most_changed, at_least=0)
        most = jnp.asarray(most_changed).astype(jnp.int32)  # traced, so that another limit needs no new program
    return Plan(Circuits(unless_nan(_best(demand, region, before, most, key, routing, rounds), demand)))


@functools.partial(jax.jit, static_argnames=("routing", "rounds"))
def _best(
    demand: Array, region: Region, previous: Array | None, most: Array | None, key: Array, routing: str, rounds: int
) -> Int[Array, "S S"]:
    starts = []
    if previous is not None:
        starts.append(_fit_degrees(previous, demand, region.degrees))
    if most is None:
        starts.append(greedy(demand, region, rule="next").circuits.count)
        starts.append(threshold(demand, region, key=key, routing=routing, starts=STARTS).circuits.count)
    keys = jax.random.split(key, len(starts))
    counts, times = jax.vmap(lambda count, key: tabu_search(count, demand, region, most, key, routing, rounds))(
        jnp.stack(starts), keys
    )
    return counts[jnp.argmin(times)]


@functools.partial(jax.jit, static_argnames=("routing", "rounds"))
def tabu_search(
    start: Int[Array, "S S"],
    demand: Float[Array, "S S"],
    region: Region,
    most: Array,
    key: Array,
    routing: str,
    rounds: int,
) -> tuple[Int[Array, "S S"], Float[Array, ""]]:
    """Return the best circuits of `rounds` moves from `start`, and their paced time [units].

    At most `most` circuits may change; None: any number. This is tabu search towards a time just below the best so far.
    Each round makes the best move, even if the plan gets slower, around the server whose ports are latest (with some
    noise). The changed pairs then keep their circuits for a few rounds. When all ports meet the target, the circuits
    become the best.
    Source: tabu search after Glover, ORSA J. Computing 1(3), 1989; objective and moves are ours.
    """
    work, degree = scale_demand(demand, region), region.degrees
    start = start.astype(jnp.int32)
    limit = None if most is None else Limit(start, most)
    chance = jax.random.uniform(key, (rounds, len(demand) + 1), demand.dtype)

    def move(state: _Search, now: tuple[Array, Array]) -> tuple[_Search, None]:
        number, chance = now
        target = jnp.where(
            jnp.isfinite(state.least), state.least * (1 - CLOSER), 1
        )  # by 1, one circuit carries any pair
        loose = state.fixed < number
        favour = chance[1:] ** CHANCE
        count, moved = best_move(state.count, loose, favour, work, degree, target, routing, limit)
        until = number + TENURE + (chance[0] * (TENURE + 1)).astype(number.dtype)
        active = circuits_in_use(count, work.size, target, routing)
        time = scaled_time(work, region, demand, active, routing)
        if limit is not None:
            time = jnp.where(limit.allows(active), time, jnp.inf)
        better = time < state.least
        best = jnp.where(better, active, state.best)
        stale = jnp.where(better, 0, state.stale + 1)
        back = stale >= PATIENCE
        fixed = jnp.where(better | back, 0, jnp.where(moved, until, state.fixed))
        count, stale = jnp.where(better | back, best, count), jnp.where(back, 0, stale)
        return _Search(count, fixed, stale, best, jnp.minimum(time, state.least)), None

    never, least = jnp.zeros_like(start), scaled_time(work, region, demand, start, routing)
    first = _Search(start, never, jnp.zeros((), jnp.int32), start, least)
    numbers = jnp.arange(1, rounds + 1, dtype=jnp.int32)
    last = lax.scan(move, first, (numbers, chance))[0]
    return last.best, last.least


def _fit_degrees(count: Array, demand: Array, degree: Int[Array, "S"]) -> Int[Array, "S S"]:
    """Remove the circuits with least demand until every server is within its degree."""
    wanted = jnp.maximum(jnp.rint(jnp.minimum(count, count.T)), 0).astype(jnp.int32)
    legal = jnp.where(jnp.eye(len(degree), dtype=bool), 0, wanted)
    both = jnp.maximum(demand, demand.T)

    def over(count: Array):
        return count.sum(1, dtype=degree.dtype) - degree

    def drop(count: Array):
        worst = jnp.argmax(over(count))
        carries = both[worst] / jnp.maximum(count[worst], 1).astype(both.dtype)
        least = jnp.argmin(jnp.where(count[worst] > 0, carries, jnp.inf))
        return count.at[worst, least].add(-1).at[least, worst].add(-1)

    return lax.while_loop(lambda count: (over(count) > 0).any(), drop, legal)
