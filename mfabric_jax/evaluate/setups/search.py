"""Search of set-ups: estimates put all in order, a coarse clock times the first, the usual clock the best of these."""

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.evaluate.problem import problem_of
from mfabric_jax.evaluate.resolving.ranking import BlockTimes, Estimates, Row, least_load
from mfabric_jax.evaluate.resolving.resolve import Resolved, resolve
from mfabric_jax.evaluate.resolving.traffic import draw_loads
from mfabric_jax.evaluate.setups.blocks import BESIDE, MeanBlockTimes, Sample
from mfabric_jax.evaluate.setups.coarse import coarse_seconds
from mfabric_jax.evaluate.solving import solve, times_of
from mfabric_jax.units import to_gigabytes
from mfabric_jax.workload.frameworks import obstacle
from mfabric_jax.workload.memory import fullest_stage, kept_bytes, least_bytes, usable_bytes
from mfabric_jax.workload.recompute import PARTS, recomputed_of
from mfabric_jax.workload.schedules import BACKWARD, FORWARD
from mfabric_jax.workload.space import (
    ANY_FRAMEWORK,
    LATER_SHARDING,
    OPEN,
    SHOWN,
    OpenJob,
    SetUp,
    degrees_of,
    kinds_of,
    with_first_dispatcher,
)

COARSE, TIMED = 600, 40  # most set-ups by the coarse clock, and by the usual one
SLACK = 1.05  # estimates up to this times the best coarse time get the coarse clock
NEAR = 1.01  # coarse times up to this times the best time get the usual clock, which is later by up to 7 %
ROUNDS = 3
LOOSE = 1.02  # sampled blocks, whose loads differ, need up to this times the memory of all blocks
LEAST_FREED = 0.99  # a level of recomputation keeps at most this times the bytes of the quicker ones
EVEN, TRAFFIC, CLOCK = range(3)  # what the estimates of a row rest on


def _join(parts: Sequence[str]) -> Iterator[str]:
    """Yield all sets of parts, joined as a setting; a router is recomputed with the experts or not at all."""
    for count in range(1, len(parts) + 1):
        for some in itertools.combinations(parts, count):
            if "router" not in some or "moe" in some:
                yield "+".join(some)


class Runner(msgspec.Struct, frozen=True):
    """A set-up that was timed, with its seconds by the usual and by the coarse clock."""

    set_up: SetUp
    seconds: float
    coarse_s: float


class SearchResult(msgspec.Struct, frozen=True):
    """The result of a search: set-ups with their seconds, the fastest first.

    - `counts`: how many were looked at, by stage; `bound_s`: no set-up of the space takes less.
    - `recipe_s`, `one_s`: seconds of the recipe's set-up, and of the best one of a non-blocking fat-tree, on this
      fabric; None: unknown, or the set-up cannot be.
    """

    runners: list[Runner]
    counts: dict[str, int]
    bound_s: float
    recipe_s: float | None = None
    one_s: float | None = None

    @property
    def best(self) -> SetUp:
        return self.runners[0].set_up

    @property
    def seconds(self) -> float:
        return self.runners[0].seconds


@dataclasses.dataclass
class CoarseLimit:
    """Estimates up to these seconds get the coarse clock; at least those up to `least_s`."""

    seconds: float = math.inf
    least_s: float = 0.0


@dataclasses.dataclass
class SetUpSearch:
    """The search of one case. `base`: the case with everything stated but the set-up."""

    base: Case
    job: OpenJob

    def __post_init__(self) -> None:
        self.blocks, self.room = MeanBlockTimes(self.base, self.job), usable_bytes(self.job.gpu.memory_bytes)
        self.degrees = list(degrees_of(self.job))
        if "overlap" not in self.job.stated and not self._passes_may_overlap():
            self.job = dataclasses.replace(self.job, stated=dict(self.job.stated) | {"overlap": "none"})
        stages = "degrees", "bounded", "estimated", "too_large", "not_run", "coarse", "timed"
        self.counts: dict[str, int] = dict.fromkeys(stages, 0)
        self.counts["degrees"] = len(self.degrees)
        self.fitted: dict[Any, SetUp | None] = {}
        self.known_levels: dict[Any, list[str]] = {}
        self.rated_parts: dict[Any, list[tuple[float, float, float, str]]] = {}
        self.times: dict[SetUp, float] = {}
        self.bound_s, self.best_s = math.inf, math.inf
        self.later: dict[Any, float] = {}  # seconds by the usual clock over those by the coarse one
        nominal = lambda job, dispatcher: self.blocks.rates_of(job, dispatcher, self._any)  # noqa: E731
        overlaps = self.settings.rules.dp_overlap
        self.ranking = Estimates(self.job, self.settings.block_seconds, nominal, self.blocks.cores_of, overlaps)

    def _passes_may_overlap(self) -> bool:
        """Whether passes may overlap on this fabric: some rules of circuits need one all-to-all at a time."""
        several = [degrees for degrees in self.degrees if degrees.ep > 1]
        if not several:
            return False
        try:
            self.blocks.sample(self._smallest(several)._replace(overlap="passes"), BESIDE)
        except InputError:
            return False
        return True

    @functools.cached_property
    def _any(self) -> Sample:
        """The smallest group; its links stand for those of all groups until a row gets its own traffic."""
        if not self.degrees:
            raise Misfit(f"no set-up divides {self.job.gpus:,} GPUs and {self.job.batch} sequences.")
        return self.blocks.sample(self._smallest(self.degrees))

    def _smallest(self, every: Sequence[SetUp]) -> SetUp:
        """Return the degrees with the smallest group, with the first dispatcher that it may have."""
        least = min(every, key=lambda degrees: (degrees.etp * degrees.ep, degrees.pp))
        return with_first_dispatcher(self.job, least)

    @property
    def settings(self) -> Resolved:
        return self._any.problem.resolved

    def find(self, first: SetUp | None = None, recipe: SetUp | None = None) -> SearchResult:
        """Return the best set-ups. `first`, `recipe`: set-ups to start from; the result is never slower."""
        recipe = None if recipe is None else self._with_recomputation(recipe)
        seeds = [seed for seed in (first, recipe) if seed is not None and self._time(seed) < math.inf]
        usable = [seed for seed in seeds if self._is_allowed(seed)]
        timed = [(self.times[seed], self.coarse(seed), seed) for seed in usable]
        self.best_s = min([math.inf, *(row[0] for row in timed)])
        coarse_s, ranked = min([math.inf, *(row[1] for row in timed)]), self._in_order(limit := CoarseLimit())
        for _ in range(ROUNDS):  # if the usual clock is much later than the coarse one, others may be before it
            candidates = self._coarse_ones(ranked, limit, coarse_s)
            timed += self._time_best(candidates)
            coarse_s = min([coarse_s, *(seconds for seconds, _ in candidates)])
            limit.least_s = self.best_s
            if not candidates or self.best_s <= coarse_s * SLACK:
                break
        if not timed:
            raise self._refusal()
        each = {set_up: Runner(set_up, *row) for *row, set_up in timed}
        runners = sorted(each.values(), key=lambda runner: runner.seconds)
        known = (None if seed is None or seed not in seeds else self.times[seed] for seed in (recipe, first))
        return SearchResult(runners[:SHOWN], self.counts, self.bound_s, *known)

    def _time_best(self, candidates: Sequence[tuple[float, SetUp]]) -> list[tuple[float, float, SetUp]]:
        """Time set-ups by the usual clock, as long as one may be the best.

        It is later than the coarse clock, as ranks wait for each other in every block: by nearly the same factor for
        set-ups of the same groups and overlap.
        """
        timed: list[tuple[float, float, SetUp]] = []
        for coarse_s, set_up in candidates:
            if coarse_s > NEAR * self.best_s or len(timed) == TIMED:
                break
            again = recomputed_of(set_up.recompute).exchanges
            family = *set_up.shape, set_up.pp, set_up.dispatcher, set_up.schedule, set_up.overlap, again
            if coarse_s * self.later.get(family, 0.0) > NEAR * self.best_s:
                continue
            exact = self._fitting(set_up)
            if exact is None or (exact != set_up and (coarse_s := self.coarse(exact)) > NEAR * self.best_s):
                continue
            if (seconds := self._time(exact)) < math.inf:
                timed.append((seconds, coarse_s, exact))
                self.later[family] = min(self.later.get(family, math.inf), seconds / coarse_s)
                self.best_s = min(self.best_s, seconds)
        return timed

    def _with_recomputation(self, set_up: SetUp) -> SetUp:
        """Return the set-up with the least recomputation that fits, if it states none."""
        if set_up.recompute != OPEN:
            return set_up
        try:
            return self.fit(set_up) or set_up._replace(recompute=self.levels(set_up)[-1])
        except InputError:
            return set_up._replace(recompute="none")

    def _refusal(self) -> Misfit:
        model = f"no set-up of {self.base.model.name} on {self.job.gpus:,} GPUs"
        if self.counts["not_run"] and self.job.frameworks != ANY_FRAMEWORK:
            return Misfit(f"{model} fits the memory and runs on {self.job.frameworks}; job.frameworks=any allows more.")
        if not self.counts["bounded"]:
            return Misfit(f"{model} keeps to what is stated.")
        return Misfit(f"{model} fits {to_gigabytes(usable_bytes(self.job.gpu.memory_bytes)):,.0f} GB per GPU.")

    # ------------------------------------------------------------------------------------------------------- stages
    def _coarse_ones(
        self, ranked: Iterator[SetUp | None], limit: CoarseLimit, best: float
    ) -> list[tuple[float, SetUp]]:
        """Return set-ups with their seconds by the coarse clock, the fastest first."""
        candidates: list[tuple[float, SetUp]] = []
        limit.seconds = max(best * SLACK, limit.least_s)
        for set_up in ranked:
            if set_up is None:
                break
            candidates.append((self.coarse(set_up), set_up))
            best = min(best, candidates[-1][0])
            limit.seconds = max(best * SLACK, limit.least_s)
            if len(candidates) == COARSE:
                break
        return sorted(candidates)

    def _in_order(self, limit: CoarseLimit) -> Iterator[SetUp | None]:
        """Yield set-ups that fit, the least estimate first, and None while estimates are above the limit.

        Degrees get estimates once their bound is below the limit. The estimates of a row become better in its turn:
        first for evenly loaded experts, then for the traffic of the case, last by a few blocks of the usual clock, with
        what is recomputed.
        """
        rows: list[Row] = []
        stage: list[int] = []
        queue = self._bounds()
        while queue:
            if queue[0][0] == math.inf:
                return
            while queue[0][0] > limit.seconds:
                yield None
            seconds, number, index, ready = heapq.heappop(queue)
            if number < 0:
                for row in map(self._without_too_large, self.ranking.rows(self.degrees[number])):
                    if len(row.seconds):
                        heapq.heappush(queue, (row.seconds[0], len(rows), 0, None))
                        rows.append(row)
                        stage.append(EVEN)
                        self.counts["estimated"] += len(row.seconds)
                continue
            row = rows[number]
            if ready is not None:
                yield ready
            elif stage[number] == EVEN and not self._some_fit(row, limit.seconds):
                self.counts["too_large"] += len(row.seconds)
            elif stage[number] < CLOCK:
                stage[number] += 1
                times = self._block_times(row.degrees, stage[number])
                rows[number] = row = row.estimate(times, self.job.architecture.blocks)
                heapq.heappush(queue, (row.seconds[0], number, 0, None))
            else:
                if index + 1 < len(row.seconds):
                    heapq.heappush(queue, (row.seconds[index + 1], number, index + 1, None))
                if (fitted := self._usable(row.set_up(index))) is not None:
                    again_s = row.passes[index] * (self._recompute_factor(fitted) - 1)
                    heapq.heappush(queue, (seconds + again_s, number, index, fitted))

    def _bounds(self) -> list[tuple[Any, ...]]:
        """Return a heap of all degrees, numbered from -1 down, by seconds that no estimate of theirs is below."""
        queue: list[tuple[Any, ...]] = []
        for number, degrees in enumerate(self.degrees, -len(self.degrees)):
            if self._weights_fit(degrees):
                self.counts["bounded"] += self.ranking.many(degrees)
                self.bound_s = self.ranking.bound_seconds(degrees, self.bound_s)
                queue.append((self.ranking.least_seconds(degrees), number, 0, None))
        heapq.heapify(queue)
        return queue

    def _without_too_large(self, row: Row) -> Row:
        """Return a row without the kinds whose first stage alone is too large, whatever is recomputed."""
        stages, own = row.stages, row.degrees
        fits = np.zeros(len(stages.kinds), bool)
        for beside in (False, True):
            some = stages.overlaps == beside
            levels = self.levels(own._replace(overlap="passes" if beside else "none")) if some.any() else ()
            if levels:
                job = self.job.workload(own._replace(recompute=levels[-1]))
                size = least_bytes(job, stages.first, stages.copies, stages.held, least_load(job))
                fits |= some & (size <= LOOSE * self.room)
        self.counts["too_large"] += len(row.seconds) - int(fits[row.order].sum())
        kept = fits[row.order]
        return row._replace(fits=fits, **{name: getattr(row, name)[kept] for name in ("seconds", "passes", "order")})

    def _some_fit(self, row: Row, most: float) -> bool:
        """Whether any set-up of a row with an estimate up to `most` seconds fits; schedules need unlike memory."""
        if self.fit(row.degrees.plain) is not None:
            return True
        numbers = range(int(np.searchsorted(row.seconds, most, "right")))
        firsts = {(kind.schedule, kind.layout): kind for kind in map(row.set_up, reversed(numbers))}
        return any(self.fit(kind) is not None for kind in firsts.values())

    def _usable(self, set_up: SetUp) -> SetUp | None:
        """Return the set-up with the least recomputation that fits; None if none does or no framework runs it."""
        fitted = self.fit(set_up)
        if fitted is None:
            self.counts["too_large"] += 1
        elif not self._runs(fitted):
            self.counts["not_run"] += 1
        else:
            return fitted
        return None

    def _is_allowed(self, set_up: SetUp) -> bool:
        """Whether a set-up keeps what is stated, fits, and runs under the frameworks of the search."""
        stated = {name: getattr(set_up, name) for name in self.job.stated}
        return stated == dict(self.job.stated) and self._runs(set_up) and self._fits_exactly(set_up)

    def _runs(self, set_up: SetUp) -> bool:
        if self.job.frameworks == ANY_FRAMEWORK:
            return True
        return obstacle(self.job.workload(set_up), set_up.dispatcher) is None

    def _block_times(self, set_up: SetUp, stage: int) -> BlockTimes:
        """Return the seconds of a mean block, for the traffic of the case or by the usual clock."""
        if stage == TRAFFIC:
            return self.ranking.times(set_up, self.blocks.all_to_alls(set_up))
        alone = self.blocks.mean(set_up)
        may_overlap = set_up.sharding not in LATER_SHARDING
        may_overlap &= any(kind.overlap == "passes" for kind in kinds_of(self.job, set_up))
        beside = self.blocks.mean(set_up._replace(overlap="passes")) if may_overlap else alone
        layers = len(self.job.architecture.moe_blocks) / self.job.architecture.blocks
        block = layers * alone.moe + (1 - layers) * alone.dense
        head = alone.head[FORWARD] + alone.head[BACKWARD]
        return BlockTimes(block[FORWARD], block[BACKWARD], float(beside.pair[1]), float(head))

    def _recompute_factor(self, set_up: SetUp) -> float:
        """Seconds of a mean block over those without recomputation."""
        if set_up.recompute == "none":
            return 1.0
        usual, times = self.ranking.times(set_up._replace(recompute="none")), self.ranking.times(set_up)
        return times.paired / usual.paired if set_up.overlap == "passes" else times.alone / usual.alone

    def coarse(self, set_up: SetUp) -> float:
        """Return the seconds of an iteration by the coarse clock."""
        self.counts["coarse"] += 1
        job = self.job.workload(set_up)
        rates = self.blocks.rates_of(job, set_up.dispatcher, self.blocks.sample(set_up))
        rules = self.settings.rules._replace(recompute=set_up.recompute)
        return coarse_seconds(job, rates, self.blocks.mean(set_up), rules)

    def _time(self, set_up: SetUp) -> float:
        """Return the seconds of an iteration by the usual clock; infinite for a set-up that cannot be."""
        if set_up not in self.times:
            try:
                self.times[set_up] = self.time(set_up)
            except InputError:
                self.times[set_up] = math.inf
        return self.times[set_up]

    def time(self, set_up: SetUp) -> float:
        self.counts["timed"] += 1
        settings = resolve(self.blocks.case_of(set_up))
        problem = problem_of(settings, (settings.case.network.nic_gbps,))
        return float(np.mean(times_of(problem, solve(problem)).iteration_s))

    def _fitting(self, set_up: SetUp) -> SetUp | None:
        """Return the set-up with the least recomputation that fits the traffic of the case and runs."""
        levels = self.levels(set_up)
        for level in levels[levels.index(set_up.recompute) :]:
            candidate = set_up._replace(recompute=level)
            if self._runs(candidate) and self._fits_exactly(candidate):
                return candidate
        return None

    # ------------------------------------------------------------------------------------------------------- memory
    def fit(self, set_up: SetUp) -> SetUp | None:
        """Return the set-up with the least recomputation that may fit, by its sampled traffic; None: it never does."""
        key = set_up._replace(dispatcher="nccl", dispatch="per-expert")
        if key not in self.fitted:
            self.fitted[key] = self._fit(key)
        candidates = self.fitted[key]
        return candidates and candidates._replace(dispatcher=set_up.dispatcher, dispatch=set_up.dispatch)

    def _fit(self, set_up: SetUp) -> SetUp | None:
        levels, loads = self.levels(set_up), (self.blocks.load(set_up),) * set_up.pp
        some = {0, 1, set_up.pp // 2, set_up.pp - 1} & {*range(set_up.pp)}  # the fullest is nearly always one of these

        def fits(level: str) -> bool:
            job = self.job.workload(set_up._replace(recompute=level))
            return fullest_stage(job, loads, some)[1].total <= LOOSE * self.room

        if not levels or not fits(levels[-1]):
            return None
        first, last = -1, len(levels) - 1  # levels keep less and less
        while last - first > 1:
            middle = (first + last) // 2 if first >= 0 else 0
            first, last = (first, middle) if fits(levels[middle]) else (middle, last)
        return set_up._replace(recompute=levels[last])

    def _fits_exactly(self, set_up: SetUp) -> bool:
        job = self.job.workload(set_up)
        return fullest_stage(job, draw_loads(self.base, job))[1].total <= self.room

    def levels(self, set_up: SetUp) -> Sequence[str]:
        """Return what a set-up may recompute, the least time first."""
        if "recompute" in self.job.stated:
            stated = self.job.stated["recompute"]
            return () if set_up.overlap == "passes" and recomputed_of(stated).exchanges else (stated,)
        key = set_up.overlap, set_up.etp * set_up.ep > self.job.gpu.gpus_per_server
        if (*key, set_up.pp) not in self.known_levels:
            if key not in self.rated_parts:
                self.rated_parts[key] = sorted(self._rated_parts(set_up))
            self.known_levels[*key, set_up.pp] = self._make_levels(set_up, self.rated_parts[key])
        return self.known_levels[*key, set_up.pp]

    def _rated_parts(self, set_up: SetUp) -> Iterator[tuple[float, float, float, str]]:
        """Yield seconds of a mean block and bytes that blocks with and without experts keep, by what is recomputed."""
        model, parts = self.job.architecture, {*PARTS}
        parts -= set() if any(getattr(kind, "ups", ()) for kind, _ in model.attention.shares) else {"mla-up"}
        parts -= set() if model.shared_hidden else {"shared"}
        parts -= set() if len(model.moe_blocks) < model.blocks else {"mlp"}
        parts -= set() if model.moe_blocks and set_up.overlap == "none" else {"moe", "router"}
        parts -= set() if self.job.frameworks == ANY_FRAMEWORK else {"attention"}
        for level in ("none", *_join([part for part in PARTS if part in parts])):
            candidate = set_up.plain._replace(recompute=level)
            yield self.ranking.times(candidate).alone, *kept_bytes(self.job.workload(candidate)), level

    def _make_levels(self, set_up: SetUp, rated: Sequence[tuple[float, float, float, str]]) -> list[str]:
        """Return levels of recomputation, each with less memory of the first stage and more time than those before."""
        model = self.job.architecture
        first = range(-(-model.blocks // set_up.pp))
        layers = len([block for block in model.moe_blocks if block in first]) / len(first)
        kept = {level: layers * moe + (1 - layers) * dense for _, moe, dense, level in rated}
        levels = ["none"]
        for *_, level in rated:
            if kept[level] <= LEAST_FREED * kept[levels[-1]]:
                levels.append(level)
        return levels if set_up.overlap != "none" else [*levels, "block"]

    def _weights_fit(self, degrees: SetUp) -> bool:
        """Whether weights and gradients alone may fit; on few stages, replicas may shard them."""
        fields, model = self.job.fields, self.job.architecture
        experts = len(model.moe_blocks) * model.experts * model.expert_params / (degrees.etp * degrees.ep)
        each = (model.blocks * model.attention_params / degrees.tp + experts) / degrees.pp
        return degrees.pp <= 2 or each * (fields["weight_bytes"] + fields["accumulated_bytes"]) <= self.room
