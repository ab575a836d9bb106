"""A pattern in chunks, with its latency, ready to be copied for every collective of one kind.

Chunks are copies of the pattern with a part of the bytes each: every message follows the same message of the chunk
before. With one chunk, latency is in front of every message. With several, it lies between the end of a message and its
use, as a marker (an arrival): the sender goes on with the next chunk meanwhile.
"""

from typing import NamedTuple

import numpy as np

from mfabric_jax.tasks.collectives.pattern import Pattern, begins, ends


class Template(NamedTuple):
    """F flows of one collective; places as in `Pattern`.

    - `src`, `dst` [F]: places, both -1 of a marker.   - `part` [F]: of the collective's bytes.
    - `whose` [F]: the place that a flow counts for: its sender, or of an arrival the receiver.
    - `link` [F 2]: sender and receiver of the message whose latency the flow begins with, else -1.
    - `after` [D 2]: flow `after[d, 1]` waits for flow `after[d, 0]`.
    - `enters` [B 2]: (place, flow): the flow waits for the member to enter.
    - `leaves` [E 2]: (flow, place): the member waits for the flow to leave.
    """

    src: np.ndarray
    dst: np.ndarray
    part: np.ndarray
    whose: np.ndarray
    link: np.ndarray
    after: np.ndarray
    enters: np.ndarray
    leaves: np.ndarray


def in_chunks(pattern: Pattern, chunks: int, latency: bool) -> Template:
    """The pattern in so many chunks; `latency`: whether a message arrives later than it ends."""
    sent = pattern.dst >= 0
    apart = latency and chunks > 1
    flows, arrivals = len(sent), int(sent.sum()) if apart else 0
    count = flows + arrivals
    arrival = np.where(sent, flows + np.cumsum(sent) - 1, np.arange(flows)) if apart else np.arange(flows)

    ends_of = np.where(sent, [pattern.src, pattern.dst], -1)
    none = np.full((2, arrivals), -1)
    src, dst = np.concatenate([ends_of, none], axis=1)
    link = np.concatenate([np.full((2, flows), -1), ends_of[:, sent]] if apart else [ends_of], axis=1).T
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
    flow, place = ends(pattern)
    flow = np.where(pattern.dst[flow] == place, arrival[flow], flow) + count * (chunks - 1)
    return Template(
        src=np.tile(src, chunks),
        dst=np.tile(dst, chunks),
        part=np.tile(part, chunks),
        whose=np.tile(whose, chunks),
        link=np.tile(link, (chunks, 1)),
        after=np.concatenate(after),
        enters=np.stack([pattern.src[first], first], axis=1),
        leaves=np.stack([flow, place], axis=1),
    )
