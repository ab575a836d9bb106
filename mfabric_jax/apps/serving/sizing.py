"""The best deployment of a search space: pools, batches and, under a load, numbers of groups.

Without a load, seconds are plain arithmetic, so the search evaluates every member of the space. Under a load each
member is a simulation. Members are simulated in the order of their GPUs, fewest first (with two kinds of GPUs in the
order of their price, if known); the first one that keeps
`serving.load.keep` of its requests in time is the answer. A member is skipped only if it provably fails:

- A pool would have to process more tokens than it can, in full batches within the limit or in full passes (as in
  `search.rows_within_limits`).
- Prefill alone, which decoding never delays, makes too many first tokens late.
- Even a group with a single request is too slow.

A search also ends at pools that provably cost more, at the tokens that arrive, than the best of another size (`Best`).

With `serving.load.turns = after` slower pools get fewer requests a second: the first reason then does not count, and
the second only as if every prompt were alone.

One rule is assumed, not proven. If too many requests wait too long for their first token, no smaller batch of the same
pools helps; if too many are slow from token to token, no larger batch helps. A test compares searches with all members
of random spaces. The number of requests in time may fall as groups are added, so results for one number of groups imply
nothing for another.
"""

import bisect
import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mfabric_jax import units
from mfabric_jax.apps.serving import request_load
from mfabric_jax.apps.serving.deployment import Deployment, GpuPool, limit_factor
from mfabric_jax.apps.serving.disaggregated import Split
from mfabric_jax.apps.serving.expert_load import SURE
from mfabric_jax.apps.serving.kinds import are_counted, relative_price
from mfabric_jax.apps.serving.queueing import Late, prefill_end_s
from mfabric_jax.apps.serving.request_load import AdmittedLoad, LoadOutcome
from mfabric_jax.evaluate.rows.costs import MILLION
from mfabric_jax.fabric.tree import TIERS

MOST_BATCH = 8192  # largest batch of a search
TOGETHER = 512  # batches evaluated at once: with uneven experts, each takes 130 kB of every array
MOST_TRIES = 256  # simulations per search, most of which end early
MOST_LEVELS = 4096  # combinations of numbers of groups per search
SHORTER = 0.99  # safety factor on the shortest step of a table, since tables of other batches have other points
Says = Callable[[str], None]


def silent(words: str) -> None:
    """Ignore progress."""


# ------------------------------------------------------------------------------------------------------------- batches
class Batches(NamedTuple):
    """The B batches of a deployment that fit its memory, each field [B].

    - `batch`, `requests`: tokens and requests of a GPU; `tpot_s`: predicted seconds from token to token.
    - `tpot_for_limit_s`: seconds to compare with `serving.tpot_ms`; `step_s`: seconds of a step, for
      `serving.load.ttft_ms`.
    """

    deployed: Deployment
    batch: np.ndarray
    requests: np.ndarray
    tpot_s: np.ndarray
    tpot_for_limit_s: np.ndarray
    step_s: np.ndarray

    def member(self, index: int) -> Deployment:
        """Return the deployment with one of the batches."""
        case = self.deployed.case.with_({"serving.batch": float(self.batch[index])})
        return dataclasses.replace(self.deployed, case=case)

    @property
    def within_limits(self) -> np.ndarray:
        """Which batches meet `serving.tpot_ms` [B]."""
        return self.tpot_for_limit_s <= units.ms(self.deployed.case.serving.tpot_ms)

    @property
    def tokens_per_s(self) -> np.ndarray:
        """Tokens per second of a GPU [B]."""
        return self.requests / self.tpot_s

    @property
    def best(self) -> int:
        """Index of the batch with the most tokens per second in time; the smallest batch if all are late."""
        return int(np.where(self.within_limits, self.tokens_per_s, -1.0).argmax()) if self.within_limits.any() else 0

    @property
    def most_within_limits(self) -> float:
        """Most tokens per second of a GPU within the limit; if all batches are late, negative: the later, the lower."""
        return float(self.tokens_per_s[self.best] if self.within_limits.any() else -self.tpot_for_limit_s[0])


def candidates_of(deployed: Deployment) -> list[Deployment]:
    """Return the deployment with and without overlap if `serving.overlap` is open, else as set."""
    overlap = deployed.case.serving.overlap
    either = overlap is None and not isinstance(deployed, Split)
    every = []
    for candidate in (True, False) if either else (overlap,):
        changes = {"serving.overlap": candidate, "serving.prefill.overlap": deployed.prefill_overlap}
        every.append(dataclasses.replace(deployed, case=deployed.case.with_(changes)))
    return every


def batches_of(deployed: Deployment, context: float, allowed: Sequence[float] | None = None) -> Batches:
    """Return the batches of whole tokens that fit the memory at a mean context, at least the smallest one.

    - `allowed`: only these batches.
    """
    numbers = deployed.numbers._replace(context=context)
    every = np.arange(1, MOST_BATCH + 1, dtype=float) if allowed is None else np.array(sorted(allowed), float)
    most, parts = float(deployed.most_requests(context)), []
    for first in range(0, len(every), TOGETHER):
        some = every[first : first + TOGETHER]
        decoding = deployed.decoding(numbers._replace(batch=some))
        step_s = decoding.step.step_s + 0 * some
        parts.append(np.stack([some, decoding.requests + 0 * some, decoding.tpot_s + 0 * some, step_s]))
        if (parts[-1][1] > most).all():
            break
    batch, requests, tpot_s, step_s = np.concatenate(parts, axis=1)
    held = requests <= most
    held[0] = True
    factor = limit_factor(deployed.case, "tpot")
    values = batch, requests, tpot_s, factor * tpot_s, factor * step_s
    return Batches(deployed, *(each[held] for each in values))


def with_best_batch(deployed: Deployment) -> Deployment:
    """Return the deployment with the batch, and overlap if open, that gives the most tokens per second in time.

    If even a batch of one token is too slow or too large, the batch is one token. All batches are evaluated, since a
    smaller batch can have a slower step when it hides less.
    """
    context = deployed.case.serving.context
    return best_of(
        [batches_of(candidate, context) for candidate in candidates_of(deployed)], [PrefillChoice.of(deployed)]
    )[0]


def with_prefill(deployed: Deployment, prefill: Deployment) -> Deployment:
    """Return the deployment with the prefill pool of another one."""
    changes = {
        "serving.prefill.ep": prefill.prefill.model.gpus,
        "serving.prefill.tokens": prefill.case.serving.prefill.tokens,
        "serving.prefill.overlap": prefill.prefill_overlap,
    }
    if prefill.prefill is deployed.prefill:
        changes["serving.prefill.ep"] = deployed.case.serving.prefill.ep
    return dataclasses.replace(deployed, case=deployed.case.with_(changes), prefill=prefill.prefill)


class PrefillChoice(NamedTuple):
    """A prefill pool: `s_per_token` is a GPU's seconds per token in full passes; `lone_s` is the seconds of a lone
    prompt, to compare with `serving.load.ttft_ms`."""

    deployed: Deployment
    s_per_token: float
    lone_s: float

    @classmethod
    def of(cls, deployed: Deployment) -> "PrefillChoice":
        nic_gbps = deployed.case.network.nic_gbps
        step_s = float(deployed.prefilling(nic_gbps).step_s)
        lone_s = float(deployed.prompt_s(nic_gbps, limit_factor(deployed.case, "prefill") * step_s))
        return cls(deployed, step_s / deployed.pass_tokens, lone_s)


def best_of(decode: Sequence[Batches], prefill: Sequence[PrefillChoice]) -> list[Deployment]:
    """Return the member with the most tokens per second and GPU within its limits, then the cheapest if it differs.

    The space is all batches and prefill pools. Ties go to the cheapest. If all members are late, return the one nearest
    to its limits.
    """
    case = decode[0].deployed.case
    limit_ms = case.serving.load.ttft_ms
    limit_s = math.inf if limit_ms is None else float(units.ms(limit_ms))
    per_answer = decode[0].deployed.fresh / case.serving.answer  # prefilled tokens per decoded token
    most, least = [], []
    for (i, own), (j, pool) in itertools.product(enumerate(decode), enumerate(prefill)):
        good = np.flatnonzero(own.within_limits & (own.step_s + pool.lone_s <= limit_s))
        if len(good):
            tokens = own.tokens_per_s[good]
            best = int(good[tokens.argmax()])
            price = relative_price(own.deployed.decode, pool.deployed.prefill)
            prefilled = price * pool.s_per_token
            most.append(((-tokens.max(), prefilled), (i, best, j)))
            least.append(((1 / tokens.max() + per_answer * prefilled,), (i, best, j)))
    if not most:
        own = max(decode, key=lambda choice: choice.most_within_limits)
        pool = min(prefill, key=lambda choice: (max(0.0, choice.lone_s - limit_s), choice.s_per_token))
        return [with_prefill(own.member(own.best), pool.deployed)]
    chosen = dict.fromkeys((min(most)[1], min(least)[1]))
    return [with_prefill(decode[i].member(batch), prefill[j].deployed) for i, batch, j in chosen]


# -------------------------------------------------------------------------------------------------------- under a load
def decode_choices(deployed: Deployment) -> list[Batches]:
    """Return all batches at the load's mean context, with and without overlap; the faster in time comes first."""
    context = request_load.mean_context(request_load.requests_of(deployed))
    return sorted(
        (batches_of(candidate, context) for candidate in candidates_of(deployed)),
        key=lambda own: -own.most_within_limits,
    )


class Best(NamedTuple):
    """The fewest dollars per million answer tokens (None without prices) and the fewest GPUs of pools in time."""

    usd: float | None = None
    gpus: int | None = None


UNKNOWN = Best()
TIE = 0.001  # relative difference of dollars that decides nothing


class TooDear(Exception):
    """All members of a search cost more, and need more GPUs, than the best pools of another size. `member`: one of
    them."""

    def __init__(self, member: Deployment):
        super().__init__("all pools of this size cost more than those of another one")
        self.member = member


def fewest(
    decode: Sequence[Batches], prefill: Sequence[PrefillChoice], progress: Says = silent, best: Best = UNKNOWN
) -> tuple[Deployment, LoadOutcome | None]:
    """Return the member with the fewest GPUs that serves a load within its limits, and the outcome of the load. With
    two kinds of GPUs it is the cheapest member. Its passes of prefill are those with the soonest first tokens (p99).

    The space is the decoding batches (of one group size), the prefill pools, and the numbers of groups unless stated.
    At a given load this member is also the cheapest. If no member does, return the first pools with as many groups as
    keep up. The outcome is None if the memory holds no request. Raise `InputError` for an unreadable log, and `TooDear`
    if no remaining member can be as good as `best`.
    """
    first = with_prefill(decode[0].member(decode[0].best), prefill[0].deployed)
    load = request_load.admitted_load(first)
    if load is None:
        return first, None
    search = _Search(decode, prefill, load, best)
    for tries, (member, late) in enumerate(search.members()):
        if tries == MOST_TRIES:
            break
        progress(f"ep {decode[0].deployed.decode.model.gpus}, {_gpus(member):,} GPUs, simulation {tries + 1}")
        outcome = request_load.outcome_of(member, load, late)
        if outcome is not None:
            return search.soonest(member, outcome)
    member = search.first()
    return member, request_load.outcome_of(member, load)


def _gpus(member: Deployment) -> int:
    """GPUs of both pools."""
    load = member.case.serving.load
    decode_gpus, prefill_gpus = (pool.group.shape.gpus for pool in (member.decode, member.prefill))
    return (load.decode_groups or 1) * decode_gpus + (load.prefill_groups or 1) * prefill_gpus


class _Search:
    """Members in the order of their GPUs (of two kinds: of their price), without those that provably fail the load."""

    def __init__(self, decode: Sequence[Batches], prefill: Sequence[PrefillChoice], load: AdmittedLoad, best: Best):
        self._decode, self._prefill, self._load = decode, [pool.deployed for pool in prefill], load
        self._limits = request_load.limits_of(decode[0].deployed.case, load)
        requests, self._open = load.requests, load.requests.turns is None
        rate = 0.0 if math.isinf(requests.rate) else requests.rate
        self._answers = rate * float(requests.answer.mean())
        prompts = rate * float(requests.fresh.mean())
        self._prefill_least = [
            _enough(prompts, request_load.prefill_capacity(pool, requests)) for pool in self._prefill
        ]
        self._prefill_bound = self._prefill_least if self._open else [1] * len(self._prefill)
        stated = decode[0].deployed.case.serving.load
        self._stated = stated.decode_groups, stated.prefill_groups
        self._decode_known: dict[tuple[int, int], int] = {}
        self._prefill_known: dict[tuple[int, int | None], np.ndarray] = {}
        self._step_s, self._slow = zip(*map(self._shortest, decode), strict=True)
        self._most = self._dearest(best)

    def first(self) -> Deployment:
        """The member of the first pool of each kind, with as many groups as keep up."""
        best = self._decode[0].best
        groups = self._stated[0] or self._decode_least(0, best), self._stated[1] or self._prefill_least[0]
        return self._member(0, best, 0, *groups)

    def soonest(self, member: Deployment, outcome: LoadOutcome) -> tuple[Deployment, LoadOutcome]:
        """Return a member in time with the passes of prefill, on its own GPUs, that give the soonest first tokens."""
        in_time = [(member, outcome)]
        for pool in self._prefill:
            other = with_prefill(member, pool)
            if other.prefill.model.gpus == member.prefill.model.gpus and other.case != member.case:
                late = Late(self._limits, self._load.requests)
                if (result := request_load.outcome_of(other, self._load, late)) is not None:
                    in_time.append((other, result))
        return min(in_time, key=lambda each: each[1].first_token_s)

    def members(self) -> Iterator[tuple[Deployment, Late]]:
        """Yield each member with a counter of its late requests; the search reads the counter before the next one."""
        pairs = list(itertools.product(range(len(self._decode)), range(len(self._prefill))))
        if self._limits.most < 0 or not any(self._early_enough(i, j, None) for i, j in pairs):
            return
        for price, decode_groups, size, prefill_groups in self._groups():
            if price > self._most:
                raise TooDear(self.first())
            for i, j in pairs:
                fits = self._prefill[j].prefill.group.shape.gpus == size and self._prefill_bound[j] <= prefill_groups
                if fits and self._early_enough(i, j, prefill_groups):
                    yield from self._batches(i, j, decode_groups, prefill_groups)

    def _member(self, i: int, batch: int, j: int, decode_groups: int, prefill_groups: int) -> Deployment:
        member = with_prefill(self._decode[i].member(batch), self._prefill[j])
        groups = {"serving.load.decode_groups": decode_groups, "serving.load.prefill_groups": prefill_groups}
        return dataclasses.replace(member, case=member.case.with_(groups))

    # ----------------------------------------------------------------------------------------------- numbers of groups
    def _groups(self) -> Iterator[tuple[float, int, int, int]]:
        """Yield the price of all GPUs in decoding GPUs, decoding groups, GPUs of a prefill group, prefill groups, in
        the order of this price."""
        decode_stated, prefill_stated = self._stated
        largest = (self._decode_bound(i, len(own.batch) - 1) for i, own in enumerate(self._decode))
        decode_least, prefill_least, price = min(largest), {}, {}
        for pool, groups in zip(self._prefill, self._prefill_bound, strict=True):
            size = pool.prefill.group.shape.gpus
            price[size] = self._price_of(pool)
            prefill_least[size] = min(groups, prefill_least.get(size, groups))

        def level(decode_groups: int, size: int, prefill_groups: int) -> tuple[float, int, int, int]:
            return price[size](decode_groups, prefill_groups), decode_groups, size, prefill_groups

        starts = [(decode_stated or decode_least, size, prefill_stated or n) for size, n in prefill_least.items()]
        waiting = [
            level(*start) for start in starts if start[0] >= decode_least and start[2] >= prefill_least[start[1]]
        ]
        heapq.heapify(waiting)
        for _ in range(MOST_LEVELS):
            if not waiting:
                return
            price_of_all, decode_groups, size, prefill_groups = heapq.heappop(waiting)
            yield price_of_all, decode_groups, size, prefill_groups
            if prefill_stated is None:
                heapq.heappush(waiting, level(decode_groups, size, prefill_groups + 1))
            if decode_stated is None and prefill_groups == (prefill_stated or prefill_least[size]):
                heapq.heappush(waiting, level(decode_groups + 1, size, prefill_groups))

    def _price_of(self, pool: Deployment) -> Callable[[int, int], float]:
        """Return what numbers of groups cost, with the network of both pools, over a GPU that decodes on the smallest
        one; GPUs that count alike are counted. More groups never cost less."""
        member = with_prefill(self._decode[0].deployed, pool)
        gpus = member.decode.group.shape.gpus, member.prefill.group.shape.gpus
        if are_counted(member.decode, member.prefill):
            return lambda *groups: float(groups[0] * gpus[0] + groups[1] * gpus[1])
        return lambda *groups: member.usd_per_s(groups) / member.decode.least_usd  # type: ignore[operator]

    def _dearest(self, best: Best) -> float:
        """The price, in decoding GPUs, above which all pools cost more and have more GPUs than the best. Dollars of a
        GPU depend on its group and on the network, so the cheapest GPU counts, on the smallest network. Infinite if
        slower pools get fewer requests."""
        if best.gpus is None or not self._open or not self._answers:
            return math.inf
        decode, pools = self._decode[0].deployed.decode, [pool.prefill for pool in self._prefill]
        ratios = [relative_price(decode, pool) for pool in pools]
        most = best.gpus * max(self._most_of_gpu(pool) for pool in (decode, *pools))
        if best.usd is None:
            return most
        each = [(pool.least_usd, ratio) for pool, ratio in zip((decode, *pools), (1.0, *ratios), strict=True)]
        least = min(0.0 if usd is None else usd / ratio for usd, ratio in each)
        if not least:  # some prices are not known
            return math.inf
        return max(most, (1 + TIE) * (1 + SURE) * best.usd / MILLION * self._answers / least)

    def _most_of_gpu(self, pool: GpuPool) -> float:
        """The most that a GPU of a pool costs, on the largest network, over one that decodes on the smallest."""
        decode = self._decode[0].deployed.decode
        if all(are_counted(decode, other.prefill) for other in self._prefill):
            return 1.0
        return pool.per_gpu(max(TIERS))[0] / decode.least_usd  # type: ignore[operator]

    def _decode_least(self, i: int, batch: int) -> int:
        """The fewest groups that decode the load with a batch."""
        if (i, batch) not in self._decode_known:
            each = request_load.capacity(self._decode[i].member(batch), self._load.requests)
            self._decode_known[i, batch] = _enough(self._answers, each)
        return self._decode_known[i, batch]

    def _decode_bound(self, i: int, batch: int) -> int:
        """The fewest groups that may serve the load within its limits with a batch."""
        return self._decode_least(i, batch) if self._open else 1

    # ---------------------------------------------------------------------------------------------------------- batches
    def _batches(self, i: int, j: int, decode_groups: int, prefill_groups: int) -> Iterator[tuple[Deployment, Late]]:
        """Yield members of one prefill pool by batch: the best, the smallest that keeps up, the largest, then
        a bisection of the batches that late requests do not rule out."""
        own = self._decode[i]
        smallest = bisect.bisect_left(  # a larger batch never decodes less
            range(len(own.batch)), True, key=lambda batch: self._decode_bound(i, batch) <= decode_groups
        )
        left, picks = list(range(smallest, len(own.batch))), [own.best, smallest, len(own.batch) - 1]
        while left:
            batch = next((pick for pick in picks if pick in left), left[len(left) // 2])
            late = Late(self._limits, self._load.requests)
            yield self._member(i, batch, j, decode_groups, prefill_groups), late
            waited, slow = (count > self._limits.most for count in (late.waited, late.slow))
            left = [
                index
                for index in left
                if not (index == batch or (waited and index < batch) or (slow and index > batch))
            ]

    # ---------------------------------------------------------------------------------------------------- lower bounds
    def _shortest(self, own: Batches) -> tuple[float, np.ndarray]:
        """Seconds of the shortest step, and which requests are slow from token to token even at that pace [R]."""
        pool = request_load.decode_pool(own.member(len(own.batch) - 1), self._load.requests)
        step_s, answer = SHORTER * pool.step_s.least, self._load.requests.answer
        seconds = (np.ceil(answer / pool.step_tokens) - 1) * step_s
        return step_s, seconds > self._limits.tpot_s * (answer - 1)

    def _early_enough(self, i: int, j: int, prefill_groups: int | None) -> bool:
        """Whether `prefill_groups` (None: one per request) prefill early enough if each request then decodes alone.
        Other requests never make a pass or a step shorter."""
        limits, late = self._limits, self._slow[i]
        if not math.isinf(limits.ttft_s):
            wire = request_load.wire_of(self._prefill[j])
            sent_s = self._prefill_s(j, prefill_groups) + wire.sizes(self._load.requests) / wire.lone_Bps
            late = late | (sent_s + self._step_s[i] > limits.ttft_s)
        return int(late[limits.first :].sum()) <= limits.most

    def _prefill_s(self, j: int, groups: int | None) -> np.ndarray:
        """Fewest seconds from arrival to the end of prefill [R]."""
        if (j, groups) not in self._prefill_known:
            requests = self._load.requests
            pool = request_load.prefill_pool(self._prefill[j], requests, groups or 1)
            alone = groups is None or not self._open
            seconds = pool.alone_s(requests) if alone else prefill_end_s(requests, pool) - requests.arrival_s
            self._prefill_known[j, groups] = seconds
        return self._prefill_known[j, groups]


def _enough(rate: float, each: float) -> int:
    """The number of groups for a demand, at least 1, if each has a capacity of `each`."""
    return max(1, math.ceil(rate / each * (1 - SURE)))
