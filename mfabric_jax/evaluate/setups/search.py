"""Search of set-ups: estimates put all in order, a coarse clock times the first, the usual clock the best of these."""

import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.problem import problem_of
from mfabric_jax.evaluate.resolving.ranking import BlockTimes, Ranking
from mfabric_jax.evaluate.resolving.resolve import Resolved, resolve
from mfabric_jax.evaluate.resolving.traffic import draw_loads
from mfabric_jax.evaluate.setups.blocks import Blocks, Sample
from mfabric_jax.evaluate.setups.coarse import coarse_seconds
from mfabric_jax.evaluate.solving import solve, times_of
from mfabric_jax.workload import Workload
from mfabric_jax.workload.memory import fullest_stage, usable_bytes
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import BACKWARD, FORWARD
from mfabric_jax.workload.space import OpenJob, SetUp, degrees_of, dispatchers_of

COARSE, TIMED = 600, 40  # set-ups by the coarse clock, and by the usual one, at most
SLACK, NEAR = 1.05, 1.005  # of the best so far: estimates that the coarse clock looks at, coarse times of the usual one
LEVELS = ("none", "norm", "norm+activation", "light", "norm+activation+shared", "norm+activation+mla-up+shared", "attention", "attention+activation", "block")


class Timed(NamedTuple):
    """A set-up with its seconds by the coarse and by the usual clock."""

    set_up: SetUp
    coarse_s: float
    seconds: float


@dataclasses.dataclass
class Search:
    """The search of one case. `base`: the case with everything stated but the set-up."""

    base: Case
    job: OpenJob
    resolved: Resolved
    runs_on: Callable[[Any, str], bool] = lambda job, dispatcher: True

    def __post_init__(self) -> None:
        self.ests={}
        self.blocks = Blocks(self.base, self.job)
        self.room = usable_bytes(self.job.gpu.memory_bytes)
        self.fitted: dict[Any, SetUp | None] = {}
        self.counts = dict.fromkeys(("degrees", "bounded", "too_large", "coarse", "timed"), 0)
        self.ranking = Ranking(self.job, self.resolved.block_seconds, self._nominal, self.blocks.cores_of)

    def _nominal(self, job: Workload, dispatcher: str) -> Any:
        """Rates of a job's messages on the links of any one group of this fabric."""
        return self.blocks.rates_of(job, dispatcher, self._any)

    @functools.cached_property
    def _any(self) -> Sample:
        least = min(degrees_of(self.job), key=lambda degrees: (degrees.etp * degrees.ep, degrees.pp))
        dispatcher, dispatch = dispatchers_of(self.job, least.ep)[0]
        return self.blocks.sample(least._replace(dispatcher=dispatcher, dispatch=dispatch))

    # ---------------------------------------------------------------------------------------------------- memory
    def fit(self, set_up: SetUp) -> SetUp | None:
        """Return the set-up with the least recomputation with which it fits; None: it never does."""
        key = set_up._replace(dispatcher="", dispatch="per-expert")
        if key not in self.fitted:
            self.fitted[key] = self._fit(key._replace(dispatcher="nccl"))
        found = self.fitted[key]
        return found and found._replace(dispatcher=set_up.dispatcher, dispatch=set_up.dispatch)

    def _fit(self, set_up: SetUp) -> SetUp | None:
        levels = self.levels(set_up)
        loads = None
        def fits(level: str) -> bool:
            job = self.job.workload(set_up._replace(recompute=level))
            return fullest_stage(job, loads)[1].total <= self.room
        if not fits(levels[-1]):
            return None
        return set_up._replace(recompute=next(level for level in levels if fits(level)))

    def levels(self, set_up: SetUp) -> Sequence[str]:
        if "recompute" in self.job.stated:
            return (self.job.stated["recompute"],)
        ups = any(getattr(kind, "ups", ()) for kind, _ in self.job.architecture.attention.shares)
        some = [level for level in LEVELS if level != "light" or ups]
        return [level for level in some if set_up.overlap == "none" or not recomputed_of(level).exchanges]

    def _static_fits(self, degrees: SetUp) -> bool:
        fields, model = self.job.fields, self.job.architecture
        per_expert = len(model.moe_blocks) * model.experts * model.expert_params
        dense = model.blocks * model.attention_params
        each = (dense / degrees.tp + per_expert / (degrees.etp * degrees.ep)) / degrees.pp
        return each * (fields["weight_bytes"] + fields["accumulated_bytes"]) <= self.room or degrees.pp <= 2

    # ---------------------------------------------------------------------------------------------------- stages
    def ranked(self, best: Callable[[], float]) -> Iterator[SetUp]:
        """Yield set-ups that fit, the least estimates first, until estimates are above the `best` seconds so far.

        Estimates of a row become better in its turn: first evenly loaded experts, then the traffic of the case, last
        blocks by the usual clock, which also see what is recomputed.
        """
        rows, blocks = [], self.job.architecture.blocks
        for degrees in degrees_of(self.job):
            if self._static_fits(degrees):
                self.counts["degrees"] += 1
                rows += self.ranking.rows(degrees)
        self.counts["bounded"] = sum(len(row.seconds) for row in rows)
        refined = [0] * len(rows)
        queue = [(row.seconds[0], number, 0, None) for number, row in enumerate(rows) if len(row.seconds)]
        heapq.heapify(queue)
        while queue:
            seconds, number, at, ready = heapq.heappop(queue)
            if seconds > best() * SLACK:
                return
            if ready is not None:
                self.ests[ready]=seconds
                yield ready
                continue
            row = rows[number]
            if refined[number] < 2:
                if refined[number] == 0 and self._fit_of_degrees(row.degrees) is None:
                    self.counts["too_large"] += len(row.seconds)
                    continue
                refined[number] += 1
                times = self._times(row.degrees, refined[number])
                rows[number] = row = row.timed(times, blocks)
                heapq.heappush(queue, (row.seconds[0], number, 0, None))
                continue
            if at + 1 < len(row.seconds):
                heapq.heappush(queue, (row.seconds[at + 1], number, at + 1, None))
            fitted = self.fit(row.set_up(at))
            if fitted is None:
                self.counts["too_large"] += 1
            elif self.runs_on(self.job.workload(fitted), fitted.dispatcher):
                heapq.heappush(queue, (seconds * self._recomputed(fitted), number, at, fitted))

    def _times(self, set_up: SetUp, stage: int) -> BlockTimes:
        """Seconds of a mean block: 1, with the traffic of the case; 2, by the usual clock."""
        if stage == 1:
            return self.ranking.times(set_up, self.blocks.sent(set_up))
        return self._by_clock(set_up._replace(overlap="none", recompute="none"))

    def _by_clock(self, set_up: SetUp) -> BlockTimes:
        layers = len(self.job.architecture.moe_blocks) / self.job.architecture.blocks
        alone = self.blocks.mean(set_up)
        beside = self.blocks.mean(set_up._replace(overlap="passes")) if self._may_overlap(set_up) else alone
        block = layers * alone.moe + (1 - layers) * alone.dense
        return BlockTimes(
            block[FORWARD], block[BACKWARD], 0.0, beside.pair[1], alone.head[FORWARD] + alone.head[BACKWARD]
        )

    def _may_overlap(self, set_up: SetUp) -> bool:
        return set_up.sharding == "optimizer" and "passes" in self.job.some("overlap", ("none", "passes"))

    def _recomputed(self, set_up: SetUp) -> float:
        """Seconds of a mean block over those without recomputation."""
        if set_up.recompute == "none":
            return 1.0
        usual = self.ranking.times(set_up._replace(recompute="none"))
        times = self.ranking.times(set_up)
        return times.paired / usual.paired if set_up.overlap == "passes" else times.alone / usual.alone

    def _fit_of_degrees(self, degrees: SetUp) -> SetUp | None:
        return self.fit(degrees.plain)

    def coarse(self, set_up: SetUp) -> float:
        job = self.job.workload(set_up)
        rates = self.blocks.rates_of(job, set_up.dispatcher, self.blocks.sample(set_up))
        blocks = self.blocks.mean(set_up)
        self.counts["coarse"] += 1
        return coarse_seconds(job, rates, blocks, self.resolved.rules._replace(recompute=set_up.recompute))

    def time(self, set_up: SetUp) -> float:
        """Return the seconds of an iteration by the usual clock."""
        self.counts["timed"] += 1
        resolved = resolve(self.blocks.case_of(set_up))
        problem = problem_of(resolved, (resolved.case.network.nic_gbps,))
        return float(np.mean(times_of(problem, solve(problem)).iteration_s))

    def run(self, seeds: Iterable[SetUp] = ()) -> list[Timed]:
        """Return the timed set-ups, the fastest first."""
        found: list[tuple[float, SetUp]] = [(self.coarse(seed), seed) for seed in seeds]
        best = min([math.inf, *(seconds for seconds, _ in found)])
        for set_up in self.ranked(lambda: best):
            found.append((self.coarse(set_up), set_up))
            best = min(best, found[-1][0])
            if len(found) >= COARSE:
                break
        found.sort(key=lambda row: row[0]); self.found=found
        timed: list[Timed] = []
        for coarse_s, set_up in found[:TIMED]:
            if timed and coarse_s > NEAR * min(row.seconds for row in timed):
                break
            timed.append(Timed(set_up, coarse_s, self.time(set_up)))
        return sorted(timed, key=lambda row: row.seconds)
