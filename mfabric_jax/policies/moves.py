"""What giving or taking circuits does to the electrical ports, and the moves of a local search that follow from it.

Bytes are in units in which a NIC carries one unit in one unit of time, the largest pair 1 (`scaled`). By time T a pair
leaves `carried` bytes to the EPS: unsplit: all or, with enough circuits for its larger direction, none; split: what its
circuits do not finish. A port is in time when it carries at most E T.

A move rearranges circuits around one server: it gives circuits to the pair (w, b). The NICs are free ones, or taken at
w from (w, c), at b from (b, d); where both were taken and (c, d) can use theirs, that pair gets what it needs. So there
is add, move one end, and 2-swap. With w given, and c and d of the K pairs of a server that lose least (or none), these
are S (K + 1)^2 moves, each judged by four ports out and four in.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

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


SLOTS = 8  # pairs of a server that a move may take from: its degree, as a rule


class Limit(NamedTuple):
    """At most `most` circuits taken down from `origin`, and as many put up."""

    origin: Int[Array, "S S"]
    most: Int[Array, ""]

    def kept(self, count: Int[Array, "S S"]) -> Bool[Array, ""]:
        return changed(count, self.origin) <= self.most


class _Moves(NamedTuple):
    """All moves around server w [K+1 S K+1]; c = w and d = b: nothing is taken there."""

    w: Int[Array, ""]
    b: Int[Array, "..."]
    c: Int[Array, "..."]
    d: Int[Array, "..."]
    closes: Bool[Array, "..."]  # (c, d) gets circuits as well


def changed(count: Int[Array, "S S"], previous: Int[Array, "S S"]) -> Int[Array, ""]:
    """The circuits taken down or those put up, whichever are more."""
    more = jnp.triu(count - previous)
    up, down = (jnp.maximum(side, 0).sum(dtype=more.dtype) for side in (more, -more))
    return jnp.maximum(up, down)


def best_move(
    count: Int[Array, "S S"],
    loose: Bool[Array, "S S"],
    favour: Float[Array, "S"],
    work: Scaled,
    degree: Int[Array, "S"],
    at: Float[Array, ""],
    routing: str,
    limit: Limit | None,
) -> tuple[Int[Array, "S S"], Bool[Array, "S S"]]:
    """Circuits after the best move around the server whose ports have most bytes too many by `at`, and the pairs whose
    circuits it changed. The best may be for the worse; nothing changes where no port has too many or there is no
    move. A circuit beyond the limit counts as much as what it carries by `at`.

    - `loose` [S S]: pairs whose circuits may change.
    - `favour` [S]: factors on how late the servers are, of which the latest is taken.
    """
    give, take, carried = steps(count, work.size, at, routing)
    give, take = (step._replace(nics=jnp.where(loose, step.nics, 0)) for step in (give, take))
    excess = work.excess(carried, at)
    late = jnp.maximum(excess[0], 0) + jnp.maximum(excess[1], 0)
    active = used(count, work.size, at, routing)
    if limit is not None:
        differ = jnp.abs(active - limit.origin).sum(1).astype(late.dtype)
        late = late + jnp.where(limit.kept(active), 0, differ * at)
    latest = jnp.argmax(late * favour).astype(jnp.int32)
    moves, able = _moves(latest, give, take, degree - count.sum(1, dtype=degree.dtype))
    cost = jnp.zeros_like(able, dtype=late.dtype)
    if limit is not None:
        moves, more = _beyond(limit, moves, active, give, take)
        cost = more.astype(late.dtype) * at
    rise = jnp.where(able & (late > 0).any(), _rise(moves, give, take, excess) + cost, jnp.inf)
    able = rise < jnp.inf
    pick = jnp.argmin(rise)
    b, c, d, closes, able = (x.reshape(-1)[pick] for x in (moves.b, moves.c, moves.d, moves.closes, able))
    w, after = moves.w, count
    for i, j, step, done in ((w, c, take, c != w), (b, d, take, d != b), (w, b, give, True), (c, d, give, closes)):
        value = jnp.where(able & done, step.after[i, j], after[i, j])
        after = after.at[i, j].set(value).at[j, i].set(value)
    return after, after != count


def _moves(w, give: Step, take: Step, free: Int[Array, "S"]) -> tuple[_Moves, Bool[Array, "..."]]:
    """Moves around `w`, and which of them there are."""
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


def _rise(moves: _Moves, give: Step, take: Step, excess) -> Float[Array, "..."]:
    """Bytes that ports have too many after each move, less those before."""
    w, b, c, d, closes = moves
    up, down, (out, into) = give.moved, take.moved, excess

    def at(server, more_out, more_in):
        before = jnp.maximum(out[server], 0) + jnp.maximum(into[server], 0)
        return jnp.maximum(out[server] + more_out, 0) + jnp.maximum(into[server] + more_in, 0) - before

    cd, dc = jnp.where(closes, up[c, d], 0), jnp.where(closes, up[d, c], 0)
    both = (c == d) & (c != w) & (d != b)  # one server loses to w and to b
    from_b = jnp.where(both, down[c, b], 0), jnp.where(both, down[b, c], 0)
    rise = at(w, down[w, c] - up[w, b], down[c, w] - up[b, w]) + at(b, down[b, d] - up[b, w], down[d, b] - up[w, b])
    rise += jnp.where(c != w, at(c, down[c, w] - cd + from_b[0], down[w, c] - dc + from_b[1]), 0)
    return rise + jnp.where((d != b) & ~both, at(d, down[d, b] - dc, down[b, d] - cd), 0)


def _beyond(limit: Limit, moves: _Moves, count, give: Step, take: Step) -> tuple[_Moves, Int[Array, "..."]]:
    """How many circuits further beyond the limit each move leads; (c, d) gets circuits only if that costs none."""
    w, b, c, d, closes = moves

    def differs(step: Step, sign: int):
        """Circuits more on this side of the origin [S S]."""
        new, old = (jnp.maximum(sign * (value - limit.origin), 0) for value in (step.after, count))
        return jnp.where(step.nics > 0, new - old, 0)

    def beyond(closes):
        sides = []
        for sign in (1, -1):
            now = jnp.triu(jnp.maximum(sign * (count - limit.origin), 0)).sum(dtype=count.dtype)
            given, taken = differs(give, sign), differs(take, sign)
            sides.append(now + given[w, b] + taken[w, c] + taken[b, d] + jnp.where(closes, given[c, d], 0))
        return jnp.maximum(jnp.maximum(*sides) - limit.most, 0)

    closes = closes & (beyond(closes) <= beyond(False))
    now = jnp.maximum(changed(count, limit.origin) - limit.most, 0)
    return moves._replace(closes=closes), beyond(closes) - now
