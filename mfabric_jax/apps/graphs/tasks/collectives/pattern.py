"""Patterns: the messages of one collective among n members and their dependencies, and how to combine patterns.

A member is numbered by its position 0..n-1 in the group; the root of a rooted collective is member 0. Array sizes: n
members, F messages, D waits, K steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.apps.graphs.tasks.graph import Op


class Pattern(NamedTuple):
    """F messages between members. A member sends only once it has entered the collective; `after` does not repeat this.

    - `src`, `dst` [F]: members. `dst` is -1 for a marker of `src`, which ends when everything it waits for has ended.
    - `part` [F]: bytes of the message as a fraction of the collective's bytes.
    - `after` [D 2]: message `after[d, 1]` waits for the end of message `after[d, 0]`.
    """

    src: np.ndarray
    dst: np.ndarray
    part: np.ndarray
    after: np.ndarray


Build = Callable[[tuple[int, ...]], Pattern]
Builds = dict[Op, Build]  # each builds a pattern from the servers [n] of the members


def of_messages(src: ArrayLike, dst: ArrayLike, part: ArrayLike, after: ArrayLike = ()) -> Pattern:
    """Return the pattern of arrays, which are broadcast and flattened; `after` is a list of pairs."""
    src, dst, part = (array.ravel() for array in np.broadcast_arrays(src, dst, part))
    waits = np.asarray(after, np.int64).reshape(-1, 2)
    return Pattern(src.astype(np.int64), dst.astype(np.int64), part.astype(float), waits)


def rounds(to: np.ndarray, part: ArrayLike) -> Pattern:
    """Return the pattern of K steps, in each of which every member sends one message and receives one.

    `to` [K n]: the destinations, a permutation of the members for each step. `part` broadcasts to [K n]. A message
    waits for what its sender sent and received in the previous step.
    """
    steps, n = to.shape
    flow = np.arange(steps * n).reshape(steps, n)
    received = np.take_along_axis(flow, np.argsort(to, axis=1), axis=1)
    pairs = [(before[:-1].ravel(), flow[1:].ravel()) for before in (flow, received)]
    after = np.concatenate([np.stack(pair, axis=1) for pair in pairs])
    return of_messages(np.arange(n), to, part, after) if to.size else of_messages([], [], [])


def backwards(forward: Pattern) -> Pattern:
    """Reverse all messages and their order: a broadcast becomes a reduction, a scatter a gather."""
    return Pattern(forward.dst, forward.src, forward.part, forward.after[:, ::-1])


def on_each(inner: Pattern, members: np.ndarray, part: float = 1.0) -> Pattern:
    """Run the pattern in G groups of members [G m] of a larger group, each with the fraction `part` of the bytes."""
    groups = len(members)
    dst = np.where(inner.dst >= 0, members[:, inner.dst], -1)
    offset = len(inner.src) * np.arange(groups)[:, None, None]
    return of_messages(members[:, inner.src], dst, part * inner.part, inner.after + offset)


def in_turn(n: int, *phases: Pattern) -> Pattern:
    """Join phases: a member begins a phase when everything it sent and received in the previous phase has ended."""
    whole = phases[0]
    markers = (np.arange(n), np.full(n, -1), np.zeros(n))
    for phase in phases[1:]:
        marker, moved = len(whole.src), len(whole.src) + n
        last, member = ends(whole)
        first = begins(phase)
        waits = (last, marker + member), (marker + phase.src[first], moved + first)
        after = [whole.after, *(np.stack(pair, axis=1) for pair in waits), moved + phase.after]
        src, dst, part = (np.concatenate(parts) for parts in zip(whole[:3], markers, phase[:3], strict=True))
        whole = Pattern(src, dst, part, np.concatenate(after))
    return whole


def begins(whole: Pattern) -> np.ndarray:
    """Return the messages that wait for no earlier message of their sender."""
    before, then = whole.after.T
    waits = np.zeros(len(whole.src), bool)
    waits[then[whole.src[before] == whole.src[then]]] = True
    return np.flatnonzero(~waits)


def ends(whole: Pattern) -> tuple[np.ndarray, np.ndarray]:
    """Return (message, member) [E]: the messages of a member that none of its later messages wait for."""
    before, then = whole.after.T
    open_at = []
    for members in (whole.src, whole.dst):
        followed = np.zeros(len(members), bool)
        again = (members[before] == whole.src[then]) | (members[before] == whole.dst[then])
        followed[before[again]] = True
        open_at.append(np.flatnonzero(~followed & (members >= 0)))
    return np.concatenate(open_at), np.concatenate([whole.src[open_at[0]], whole.dst[open_at[1]]])


# Chunks are copies of the pattern, each with a part of the bytes. Every message waits for the same message of the
# previous chunk. With one chunk, latency precedes every message. With several, latency follows the end of a message as
# a marker (an arrival), so that the sender can continue with the next chunk.


class Template(NamedTuple):
    """F flows of one collective; members are numbered as in `Pattern`.

    - `src`, `dst` [F]: members, both -1 for a marker. `part` [F]: fraction of the collective's bytes.
    - `whose` [F]: the member to which the flow belongs: the sender, or the receiver of an arrival.
    - `message` [F]: the flow whose latency precedes this flow, else -1.
    - `after` [D 2]: flow `after[d, 1]` waits for flow `after[d, 0]`.
    - `enters` [B 2]: (member, flow): the flow waits until the member enters.
    - `leaves` [E 2]: (flow, member): the member leaves after the flow.
    """

    src: np.ndarray
    dst: np.ndarray
    part: np.ndarray
    whose: np.ndarray
    message: np.ndarray
    after: np.ndarray
    enters: np.ndarray
    leaves: np.ndarray


def in_chunks(pattern: Pattern, chunks: int, latency: bool) -> Template:
    """Split a pattern into chunks. `latency`: whether messages have a latency."""
    sent = pattern.dst >= 0
    apart = latency and chunks > 1
    flows, arrivals = len(sent), int(sent.sum()) if apart else 0
    count = flows + arrivals
    arrival = np.where(sent, flows + np.cumsum(sent) - 1, np.arange(flows)) if apart else np.arange(flows)

    ends_of = np.where(sent, [pattern.src, pattern.dst], -1)
    none = np.full((2, arrivals), -1)
    src, dst = np.concatenate([ends_of, none], axis=1)
    own = np.where(sent, np.arange(flows), -1)
    message = np.concatenate([np.full(flows, -1), np.flatnonzero(sent)]) if apart else own
    part = np.concatenate([pattern.part / chunks, np.zeros(arrivals)])
    whose = np.concatenate([pattern.src, pattern.dst[sent][:arrivals]])

    before, then = pattern.after.T
    forwards = pattern.dst[before] == pattern.src[then]
    within = [np.stack([np.where(forwards, arrival[before], before), then], axis=1)]
    if apart:
        within.append(np.stack([np.flatnonzero(sent), arrival[sent]], axis=1))
    each = count * np.arange(chunks)[:, None, None]
    order = np.stack([np.arange(flows), np.arange(flows) + count], axis=1)
    after = [(np.concatenate(within) + each).reshape(-1, 2), (order + each[:-1]).reshape(-1, 2)]

    first = begins(pattern)
    flow, member = ends(pattern)
    flow = np.where(pattern.dst[flow] == member, arrival[flow], flow) + count * (chunks - 1)
    return Template(
        src=np.tile(src, chunks),
        dst=np.tile(dst, chunks),
        part=np.tile(part, chunks),
        whose=np.tile(whose, chunks),
        message=np.where(message >= 0, message + each[:, 0], -1).ravel(),
        after=np.concatenate(after),
        enters=np.stack([pattern.src[first], first], axis=1),
        leaves=np.stack([flow, member], axis=1),
    )
