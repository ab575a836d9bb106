"""Event simulation of requests through two pools: prefill, transfer of keys and values, decoding.

Requests arrive at their times, or some time after the last token of the answer that they continue (`Requests.turns`).
They wait in one queue for prefill. An idle group starts a pass with all waiting prompts that fit, each on the GPU
with the most room left; the rest of a prompt goes into the group's next pass. A pass takes as long as its busiest GPU.
A prefilled request waits, first come first served, for the emptiest decoding GPU. There it reserves cache for its whole
answer, so no request is ever evicted. Then its keys and values travel, and it joins its group's next step. A group runs
steps, each with all of its requests, as long as it has any.

The GPUs that share a request's attention (one, or `serving.tp`) are called a *unit* here.
"""

import dataclasses
import heapq
import math
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mfabric_jax.apps.serving.arrivals import Requests
from mfabric_jax.apps.serving.transfers import KvTransfers
from mfabric_jax.support.progress import EVERY_S, bar

EACH = 256  # requests between two progress reports


class LookupTable:
    """A table of `values` [X Y] at ascending `x` [X] and `y` [Y]: linear between points, constant outside."""

    def __init__(self, x: np.ndarray, y: np.ndarray, values: Float[np.ndarray, "X Y"]):
        self._x, self._y, self._values = x.tolist(), y.tolist(), np.asarray(values, float).tolist()

    @property
    def least(self) -> float:
        """The smallest value in the table."""
        return min(map(min, self._values))

    def __call__(self, x: float, y: float) -> float:
        i, right = _between(self._x, x)
        j, above = _between(self._y, y)
        low, high = self._values[i], self._values[i + (right > 0)]
        k = j + (above > 0)
        first = low[j] + above * (low[k] - low[j])
        return first + right * (high[j] + above * (high[k] - high[j]) - first)


def _between(points: list[float], value: float) -> tuple[int, float]:
    """Index of the last point at or below a value, and the fraction of the way to the next point."""
    if value <= points[0]:
        return 0, 0.0
    if value >= points[-1]:
        return len(points) - 1, 0.0
    i = bisect_right(points, value) - 1
    return i, (value - points[i]) / (points[i + 1] - points[i])


class PrefillPool(NamedTuple):
    """The prefill pool: `groups` of `units`; a unit takes `unit_tokens` per pass.

    - `pass_s`: seconds of a pass, by the busiest unit's tokens and the mean prompt.
    """

    groups: int
    units: int
    unit_tokens: float
    pass_s: Callable[[float, float], float]

    def alone_s(self, requests: Requests) -> Float[np.ndarray, "R"]:
        """Return the seconds of every request's passes without other requests [R]."""
        kinds, kind = np.unique(np.stack([requests.fresh, requests.prompt], axis=1), axis=0, return_inverse=True)
        each = []
        for fresh, prompt in kinds.tolist():
            full, left = divmod(fresh, self.unit_tokens)
            last_s = self.pass_s(left, prompt) if left else 0.0
            each.append(full * self.pass_s(self.unit_tokens, prompt) + last_s)
        return np.array(each)[kind.ravel()]


class DecodePool(NamedTuple):
    """The decoding pool: `groups` of `units`.

    - `most`, `room`: requests and bytes that a unit holds.
    - `held_bytes`: bytes of a request by the tokens of its context.
    - `step_s`: seconds of a step, by the mean requests of a unit and their mean context.
    - `step_tokens`: tokens that a step adds to each request.
    """

    groups: int
    units: int
    most: int
    room: float
    held_bytes: Callable[[np.ndarray], np.ndarray]
    step_s: Callable[[float, float], float]
    step_tokens: float = 1.0

    def reserved_bytes(self, requests: Requests) -> Float[np.ndarray, "R"]:
        """Return the bytes of each request with its whole answer [R]."""
        return self.held_bytes(requests.prompt + requests.answer)


class Wire(NamedTuple):
    """The NICs of units that prefill and of units that decode [bytes/s], and the bytes that a request sends by the
    tokens of its prompt."""

    sender_Bps: float
    receiver_Bps: float
    sent_bytes: Callable[[np.ndarray], np.ndarray]

    def sizes(self, requests: Requests) -> Float[np.ndarray, "R"]:
        return self.sent_bytes(requests.prompt)

    @property
    def lone_Bps(self) -> float:
        """Rate of a transfer that shares neither NIC."""
        return min(self.sender_Bps, self.receiver_Bps)


class Timeline(NamedTuple):
    """Events of R requests, and all passes and steps.

    - Moments [s]: arrival, first pass begins, prefill ends, transfer begins and ends, first token, last token.
    - `sender`, `receiver`: units that prefill and decode the request.
    - `passes` [P 3]: begin, end and tokens; `steps` [K 3]: begin, end and requests.
    """

    arrived_s: Float[np.ndarray, "R"]
    begun_s: Float[np.ndarray, "R"]
    prefilled_s: Float[np.ndarray, "R"]
    sent_s: Float[np.ndarray, "R"]
    landed_s: Float[np.ndarray, "R"]
    first_s: Float[np.ndarray, "R"]
    end_s: Float[np.ndarray, "R"]
    sender: Int[np.ndarray, "R"]
    receiver: Int[np.ndarray, "R"]
    passes: Float[np.ndarray, "P 3"]
    steps: Float[np.ndarray, "K 3"]


class Limits(NamedTuple):
    """Limits on the time to first token and from token to token [s]. They apply to requests from number `first` on, of
    which at most `most` may be late."""

    ttft_s: float
    tpot_s: float
    first: int
    most: int


class ArrivalQueue:
    """Requests that have not arrived. Those that continue an answer are unknown until it has ended.

    `arrived_s` [R]: arrivals so far; nan for requests that are unknown.
    """

    def __init__(self, requests: Requests):
        turns, every = requests.turns, range(len(requests))
        previous = [-1] * len(requests) if turns is None else turns.previous.tolist()
        self._think_s = [] if turns is None else turns.think_s.tolist()
        self._next: dict[int, list[int]] = {}
        for request in every:
            if previous[request] >= 0:
                self._next.setdefault(previous[request], []).append(request)
        self.arrived_s = np.where(np.array(previous) < 0, requests.arrival_s, math.nan)
        self._waiting = [(self.arrived_s[request].item(), request) for request in every if previous[request] < 0]
        heapq.heapify(self._waiting)

    def next_s(self) -> float:
        """Return when the next known request arrives; infinite if there is none."""
        return self._waiting[0][0] if self._waiting else math.inf

    def take(self, now_s: float) -> list[int]:
        """Remove and return the requests that have arrived."""
        taken = []
        while self._waiting and self._waiting[0][0] <= now_s:
            taken.append(heapq.heappop(self._waiting)[1])
        return taken

    def answer(self, now_s: float, done: list[int]) -> None:
        """Let the users whose answers end now think about their next turns."""
        for request in (further for ended in done for further in self._next.get(ended, ())):
            self.arrived_s[request] = now_s + self._think_s[request]
            heapq.heappush(self._waiting, (self.arrived_s[request].item(), request))


class Late:
    """Counters of late requests: `waited` too long for the first token, `slow` from token to token, or `either`."""

    def __init__(self, limits: Limits, requests: Requests):
        self.limits, self.waited, self.slow, self.either = limits, 0, 0, 0
        self._further = (requests.answer - 1).tolist()

    def too_many(self, done: list[int], arrived_s: np.ndarray, first_s: np.ndarray, end_s: np.ndarray) -> bool:
        """Count the requests that end now; return whether more are late than allowed."""
        for request in done:
            if request >= self.limits.first:
                further = self._further[request]
                slow = further > 0 and (end_s[request] - first_s[request]) / further > self.limits.tpot_s
                waited = first_s[request] - arrived_s[request] > self.limits.ttft_s
                self.slow, self.waited = self.slow + bool(slow), self.waited + bool(waited)
                self.either += bool(slow or waited)
        return self.either > self.limits.most


def simulate(
    requests: Requests, prefill: PrefillPool, decode: DecodePool, wire: Wire, late: Late | None = None
) -> Timeline | None:
    """Return the events of every request from arrival to last token; stop with None once too many are `late`.

    Every request must fit into the room of a unit (`DecodePool.reserved_bytes`).
    """
    if not (decode.reserved_bytes(requests) <= decode.room).all() or decode.most < 1:
        raise ValueError("a request is larger than the room of a unit")
    moments = np.full((6, len(requests)), math.nan)
    front = _PrefillState(prefill, requests, moments)
    back = _DecodeState(decode, requests, moments)
    transfers, sizes = KvTransfers(wire.sender_Bps, wire.receiver_Bps), wire.sizes(requests).tolist()
    arrivals, ready = ArrivalQueue(requests), deque()
    progress = _Progress("requests through both pools", len(requests))
    while True:
        now = min(arrivals.next_s(), front.next_end_s(), back.next_end_s(), transfers.next_end_s())
        if now == math.inf:
            break
        done = back.take_finished(now)
        arrivals.answer(now, done)
        front.waiting.extend(arrivals.take(now))
        ready.extend(front.take_finished(now))
        if late is not None and late.too_many(done, arrivals.arrived_s, moments[4], moments[5]):
            progress.close()
            return None
        progress.update(len(done))
        for request in transfers.take_finished(now):
            back.join(now, request)
        while ready and (unit := back.reserve(now, ready[0])) is not None:
            request = ready.popleft()
            transfers.begin(now, request, front.unit[request], unit, sizes[request])
        transfers.settle(now)
        front.start(now)
        back.start(now)
    progress.close()
    passes, steps = np.array(front.passes).reshape(-1, 3), np.array(back.steps).reshape(-1, 3)
    return Timeline._make([arrivals.arrived_s, *moments, np.array(front.unit), np.array(back.unit), passes, steps])


def prefill_end_s(requests: Requests, prefill: PrefillPool) -> Float[np.ndarray, "R"]:
    """Return when the prefill of every request ends [s], as in `simulate` without turns: decoding never delays it."""
    moments = np.full((2, len(requests)), math.nan)
    front, arrivals = _PrefillState(prefill, requests, moments), ArrivalQueue(dataclasses.replace(requests, turns=None))
    progress = _Progress("requests through prefill", len(requests))
    while True:
        now = min(arrivals.next_s(), front.next_end_s())
        if now == math.inf:
            progress.close()
            return moments[1]
        front.waiting.extend(arrivals.take(now))
        progress.update(len(front.take_finished(now)))
        front.start(now)


class _Progress:
    """Progress of requests, reported every `EACH` of them; a bar appears only in long simulations."""

    def __init__(self, what: str, total: int):
        self._bar = bar(what, "request", total, delay=EVERY_S, leave=False, unit_scale=True)
        self._since = 0

    def update(self, done: int) -> None:
        self._since += done
        if self._since >= EACH:
            self._bar.update(self._since)
            self._since = 0

    def close(self) -> None:
        self._bar.update(self._since)
        self._bar.close()


class _PrefillState:
    """State of the prefill pool."""

    def __init__(self, pool: PrefillPool, requests: Requests, moments: np.ndarray):
        self._pool, self._prompt, self._left = pool, requests.prompt.tolist(), requests.fresh.tolist()
        self._begun, self._prefilled = moments[0], moments[1]
        self.waiting: deque[int] = deque()
        self.unit = [-1] * len(requests)
        self.passes: list[tuple[float, float, float]] = []
        self._idle = set(range(pool.groups))
        self._kept: list[list[int]] = [[] for _ in range(pool.groups)]  # requests with tokens left for the next pass
        self._ends: list[tuple[float, int, list[int]]] = []

    def next_end_s(self) -> float:
        return self._ends[0][0] if self._ends else math.inf

    def take_finished(self, now_s: float) -> list[int]:
        """End the passes that are over; return the requests whose prefill ends with them."""
        done = []
        while self._ends and self._ends[0][0] <= now_s:
            _, group, finished = heapq.heappop(self._ends)
            self._prefilled[finished] = now_s
            done += finished
            self._idle.add(group)
        return done

    def start(self, now_s: float) -> None:
        """Start a pass on every idle group that has prompts."""
        for group in sorted(self._idle):
            if self.waiting or self._kept[group]:
                self._idle.remove(group)
                self._start(now_s, group)

    def _start(self, now_s: float, group: int) -> None:
        pool = self._pool
        used, taken, finished, kept = [0.0] * pool.units, [], [], []

        def take(request: int, unit: int) -> None:
            tokens = max(0.0, min(self._left[request], pool.unit_tokens - used[unit]))
            used[unit] += tokens
            self._left[request] -= tokens
            taken.append((tokens, self._prompt[request]))
            (kept if self._left[request] else finished).append(request)

        for request in self._kept[group]:
            take(request, self.unit[request] % pool.units)
        emptiest = [(tokens, unit) for unit, tokens in enumerate(used)]
        heapq.heapify(emptiest)
        while self.waiting and emptiest[0][0] < pool.unit_tokens:
            request, unit = self.waiting.popleft(), emptiest[0][1]
            self.unit[request], self._begun[request] = group * pool.units + unit, now_s
            take(request, unit)
            heapq.heapreplace(emptiest, (used[unit], unit))
        self._kept[group] = kept
        tokens = sum(each for each, _ in taken)
        end_s = now_s + pool.pass_s(max(used), sum(each * prompt for each, prompt in taken) / tokens)
        self.passes.append((now_s, end_s, tokens))
        heapq.heappush(self._ends, (end_s, group, finished))


class _Group:
    """Requests that a group decodes together."""

    __slots__ = ("active", "context", "finishing", "joined", "started", "step")

    def __init__(self):
        self.active, self.step = 0, 0
        self.context = 0.0  # of all together
        self.joined: list[int] = []
        self.started: list[int] = []  # in their first step
        self.finishing: dict[int, list[int]] = {}  # by step


class _DecodeState:
    """State of the decoding pool."""

    def __init__(self, pool: DecodePool, requests: Requests, moments: np.ndarray):
        self._pool, self._prompt = pool, requests.prompt.tolist()
        self._steps = np.ceil(requests.answer / pool.step_tokens).astype(int).tolist()
        self._size = pool.reserved_bytes(requests).tolist()
        self._sent, self._landed, self._first, self._end = moments[2:]
        self.unit = [-1] * len(requests)
        self.steps: list[tuple[float, float, int]] = []
        units = pool.groups * pool.units
        self._groups = [_Group() for _ in range(pool.groups)]
        self._idle = set(range(pool.groups))
        self._ends: list[tuple[float, int]] = []
        self._count, self._used, self._version = [0] * units, [0.0] * units, [0] * units
        order = sorted(range(units), key=lambda unit: (unit % pool.units, unit))  # groups take turns
        self._place = {unit: position for position, unit in enumerate(order)}
        self._emptiest = [(0.0, position, unit, 0) for position, unit in enumerate(order)]

    def next_end_s(self) -> float:
        return self._ends[0][0] if self._ends else math.inf

    def reserve(self, now_s: float, request: int) -> int | None:
        """Reserve room for a request on the emptiest unit; return the unit, or None if it has no room."""
        while self._emptiest[0][3] != self._version[self._emptiest[0][2]]:
            heapq.heappop(self._emptiest)
        unit, pool = self._emptiest[0][2], self._pool
        if self._count[unit] >= pool.most or self._used[unit] + self._size[request] > pool.room:
            return None
        self.unit[request], self._sent[request] = unit, now_s
        self._change(unit, 1, self._size[request])
        return unit

    def _change(self, unit: int, count: int, size: float) -> None:
        self._count[unit] += count
        self._used[unit] = self._used[unit] + size if self._count[unit] else 0.0
        self._version[unit] += 1
        full = max(self._count[unit] / self._pool.most, self._used[unit] / self._pool.room)
        heapq.heappush(self._emptiest, (full, self._place[unit], unit, self._version[unit]))

    def join(self, now_s: float, request: int) -> None:
        """Add a request, whose keys and values have arrived, to its group's next step."""
        self._landed[request] = now_s
        self._groups[self.unit[request] // self._pool.units].joined.append(request)

    def take_finished(self, now_s: float) -> list[int]:
        """End the steps that are over; return the requests that end with them."""
        done = []
        while self._ends and self._ends[0][0] <= now_s:
            number = heapq.heappop(self._ends)[1]
            group = self._groups[number]
            self._first[group.started] = now_s
            group.context += self._pool.step_tokens * group.active
            finished = group.finishing.pop(group.step, ())
            done += finished
            for request in finished:
                self._end[request] = now_s
                group.active -= 1
                group.context -= self._prompt[request] + self._pool.step_tokens * self._steps[request]
                self._change(self.unit[request], -1, -self._size[request])
            group.step += 1
            self._idle.add(number)
        return done

    def start(self, now_s: float) -> None:
        """Start a step on every idle group that has requests."""
        for number in sorted(self._idle):
            group, units = self._groups[number], self._pool.units
            for request in group.joined:
                group.context += self._prompt[request]
                group.finishing.setdefault(group.step + self._steps[request] - 1, []).append(request)
            group.active += len(group.joined)
            group.started, group.joined = group.joined, []
            if group.active:
                self._idle.remove(number)
                end_s = now_s + self._pool.step_s(group.active / units, group.context / group.active)
                self.steps.append((now_s, end_s, group.active))
                heapq.heappush(self._ends, (end_s, number))
