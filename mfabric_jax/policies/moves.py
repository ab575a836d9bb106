"""The moves of a local search: circuits rearranged around one server, judged by bytes that EPS ports cannot carry.

A move gives circuits to the pair (w, b). The NICs are free ones, or taken at w from (w, c), at b from (b, d); where
both were taken and (c, d) can use theirs, that pair gets what it needs. So there is add, move one end, and 2-swap. With
w given, and c and d of the K pairs of a server that lose least (or none), these are S (K + 1)^2 moves, each judged by
four ports out and four in.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.policies._steps import Scaled, Step, steps, used

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
