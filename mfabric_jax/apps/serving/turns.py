"""Turns of conversations: which request of a log continues the answer of another, and how long its user thinks.

A log has the moments at which its own system was asked. With `serving.load.turns = after` a further turn arrives once
the simulated answer before it has ended and its user has thought: the time between both requests in the log, less the
time that the log says the answer took. A log that does not say so leaves the recorded answer in the user's time, which
is then longer than it was.
"""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Turns(NamedTuple):
    """What R requests continue.

    - `previous` [R]: the earlier request whose answer each continues; -1: none, it begins a conversation.
    - `think_s` [R]: seconds from the end of that answer to the request; 0 without one.
    """

    previous: Int[np.ndarray, "R"]
    think_s: Float[np.ndarray, "R"]

    def select(self, which: np.ndarray) -> "Turns":
        """Return the turns that a mask or an ascending index selects.

        If a turn is left out, the next turn continues the turn before it, and its user thinks for both.
        """
        previous, think_s = self.previous.tolist(), self.think_s.tolist()
        kept = np.arange(len(previous))[which].tolist()
        position = dict(zip(kept, range(len(kept)), strict=True))
        for request in kept:
            while (lost := previous[request]) >= 0 and lost not in position:
                previous[request] = previous[lost]
                think_s[request] = think_s[request] + think_s[lost] if previous[lost] >= 0 else 0.0
        chosen = [position.get(previous[request], -1) for request in kept]
        return Turns(np.array(chosen, np.int64), np.array([think_s[request] for request in kept], float))

    def repeat(self, times: int) -> "Turns":
        """Return the turns of all requests `times` times in a row; no turn continues another run."""
        count = len(self.previous)
        runs = count * np.arange(times)[:, None]
        previous = np.where(self.previous >= 0, self.previous + runs, -1)
        return Turns(previous.ravel(), np.tile(self.think_s, times))


def turns_of(
    previous: Sequence[int], start_s: Float[np.ndarray, "R"], service_s: Float[np.ndarray, "R"] | None = None
) -> Turns:
    """Return turns by what they continue, their logged starts and, if known, how long each answer took [s]."""
    before = np.array(previous, np.int64)
    answered_s = start_s if service_s is None else start_s + service_s
    think_s = np.where(before >= 0, np.maximum(0.0, start_s - answered_s[before]), 0.0)
    return Turns(before, think_s)


def previous_by_name(own: Sequence[Hashable], continued: Sequence[Hashable]) -> list[int]:
    """Return, for each request in order of time, the last one before it with the name that it continues; -1: none.

    `own`: names of requests or of their conversations; None: no name.
    """
    latest: dict[Hashable, int] = {}
    previous = []
    for request, (name, before) in enumerate(zip(own, continued, strict=True)):
        previous.append(-1 if before is None else latest.get(before, -1))
        if name is not None:
            latest[name] = request
    return previous


def previous_by_blocks(
    blocks: Sequence[Sequence[Hashable]], prompt: Sequence[float], answer: Sequence[float], size: int
) -> list[int]:
    """Return which request each request continues, by the blocks of its prompt, in order of time; -1: none.

    A block's name stands for its tokens and all before them. A request continues the latest one whose last full block
    of `size` tokens is among its own blocks, if its prompt has room for that one's prompt and answer. That block must
    be new with the conversation: what several conversations begin with, such as a system prompt, tells nothing. So
    prompts below a block, or below a system prompt and a block, have no further turns.
    """
    seen: set[Hashable] = set()
    latest: dict[Hashable, int] = {}
    previous = []
    for request, named in enumerate(blocks):
        candidates = (latest[name] for name in reversed(named) if name in latest)
        fitting = (other for other in candidates if prompt[other] + answer[other] <= prompt[request])
        previous.append(next(fitting, -1))
        last = named[min(int(prompt[request]) // size, len(named)) - 1] if prompt[request] >= size and named else None
        if last is not None and (last not in seen or latest.get(last, -1) == previous[-1] >= 0):
            latest[last] = request
        seen.update(named)
    return previous
