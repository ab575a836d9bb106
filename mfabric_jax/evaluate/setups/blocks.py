"""Seconds of mean blocks on a fabric, from a few blocks of one stage that the usual clock times."""

import dataclasses
import functools
from typing import Any

import jax
import numpy as np

from mfabric_jax.case import Case
from mfabric_jax.case.paths import flat
from mfabric_jax.evaluate.experts import busy_of_blocks, busy_of_layers
from mfabric_jax.evaluate.problem import Problem, problem_of
from mfabric_jax.evaluate.resolving.ranking import MeanAllToAlls, gathers_of
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.resolving.traffic import load_of_ranks
from mfabric_jax.evaluate.setups.coarse import MeanBlocks, mean_blocks
from mfabric_jax.evaluate.solving import solve
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.traffic.dispatch import dispatched_bytes, inside_bytes, summed_by_server
from mfabric_jax.workload import Workload
from mfabric_jax.workload.kernels import shares_of
from mfabric_jax.workload.memory import RankLoad
from mfabric_jax.workload.schedules import SCHEDULES
from mfabric_jax.workload.space import OpenJob, SetUp

BLOCKS = 8  # blocks with experts that stand for all: drawn shares of experts change with depth as in deeper models
SPLIT, BESIDE, PLAIN = "zb-h1", "beside", "1f1b"
STEADY = {PLAIN: 2, SPLIT: 2, BESIDE: 4}  # micro-batches after which passes are steady
BY_ITERATION = 5  # axes of all-to-alls: iteration, stage, pass, block, which


def statement_of(set_up: SetUp) -> dict[str, Any]:
    """Return the settings that state a set-up, by path; the batch stays as the case has it."""
    stated = {f"job.parallel.{name}": getattr(set_up, name) for name in ("tp", "etp", "ep", "cp", "pp")}
    stated |= {
        "job.batch.micro_batch": set_up.micro_batch,
        "job.schedule": set_up.schedule,
        "job.overlap": set_up.overlap,
        "job.layout": set_up.layout,
        "job.dispatch": set_up.dispatch,
        "job.dispatcher": set_up.dispatcher,
        "job.sharding": set_up.sharding,
        "job.recompute": set_up.recompute,
    }
    return stated | ({"job.interleaved.chunks": set_up.chunks} if set_up.schedule == "interleaved" else {})


@dataclasses.dataclass
class Sample:
    """Some blocks of a job on a fabric, with their all-to-alls solved for `tokens` of a rank."""

    problem: Problem
    rates: FabricRates
    shares: Any

    @functools.cached_property
    def exchanges(self) -> Exchanges:
        return solve(self.problem)

    @property
    def tokens(self) -> int:
        return self.problem.workload.tokens

    @functools.cached_property
    def ports(self) -> tuple[float, float]:
        """Mean bytes at the busiest server over its GPUs, and at the busiest GPU inside servers."""
        job = self.problem.workload
        if job.ep == 1 or not job.moe_layers:
            return 0.0, 0.0
        all_to_alls = dispatched_bytes(job, self.problem.selections[0])  # [layer M R R]
        here = job.ranks_per_server
        inside = inside_bytes(all_to_alls, here)
        inside = inside * (1 - np.eye(inside.shape[-1]))
        between = summed_by_server(all_to_alls, here)
        between = between * (1 - np.eye(between.shape[-1]))
        each = [np.maximum(x.sum(-1), x.sum(-2)) for x in (between, inside)]
        return float(each[0].max(-1).mean()) / job.gpus_per_server, float(each[1].max((-2, -1)).mean()) / job.tp

    def busy(self, job: Workload) -> Any:
        """Return `busy_of_layers` [layer M] for the tokens of a job."""
        experts: Any = self.problem.resolved.case.compute.experts
        tokens = {name: getattr(job, name) for name in ("micro_batch", "sequence", "cp", "folded")}
        like = dataclasses.replace(self.problem.workload, **tokens)
        return busy_of_layers(like, self.problem.selections[0] * (job.tokens / self.tokens), experts.tile)

    def scale(self, job: Workload) -> Exchanges:
        """Return the all-to-alls of the first iteration for the tokens of a job."""
        exchanges = jax.tree.map(np.asarray, self.exchanges)
        if exchanges.optical.ndim > BY_ITERATION:  # some rules of circuits solve for every NIC bandwidth, here one
            exchanges = jax.tree.map(lambda x: x[0], exchanges)
        exchanges = jax.tree.map(lambda x: x[:1], exchanges)
        parts = {
            name: getattr(exchanges, name) * (job.tokens / self.tokens)
            for name in ("optical", "electrical", "inside", "balanced", "waiting")
            if getattr(exchanges, name) is not None
        }
        if exchanges.busy is not None:
            parts["busy"] = busy_of_blocks(self.problem.workload, self.busy(job))[None]
        return exchanges._replace(**parts)


class MeanBlockTimes:
    """Seconds of mean blocks, rates and all-to-alls of every set-up of a case on its fabric, each computed once."""

    def __init__(self, base: Case, job: OpenJob):
        self.base, self.job = base, job
        self._samples: dict[Any, Sample] = {}
        self._mean: dict[Any, MeanBlocks] = {}
        self._rates: dict[Any, FabricRates] = {}
        self._under: dict[Any, Any] = {}
        self._stated_cores = flat(base).get("job.passes.comm_cores")

    def case_of(self, set_up: SetUp) -> Case:
        """Return the case of a set-up."""
        reduces = {"job.parallel.tp_reduces": self.job.reduces(set_up)}
        return self.base.with_(statement_of(set_up) | reduces)

    @functools.cached_property
    def _few(self) -> dict[str, Any]:
        """Settings of a model with a few blocks of each kind."""
        model = self.job.architecture
        dense = int(len(model.moe_blocks) < model.blocks)
        moe = BLOCKS * bool(model.moe_blocks)
        return {
            "model.blocks": moe + dense * (1 if moe else BLOCKS),
            "model.dense_blocks": dense * (1 if moe else BLOCKS),
            "job.batch.global_batch": None,
            "traffic.drawn": 1,
        }

    def sample(self, set_up: SetUp, kind: str = PLAIN) -> Sample:
        """Return the blocks of an expert group like that of a set-up, all on one stage."""
        key = set_up.ep, set_up.etp, set_up.dispatch, kind
        if key not in self._samples:
            few = {
                "job.parallel.tp": set_up.etp,
                "job.parallel.cp": 1,
                "job.parallel.pp": 1,
                "job.schedule": SPLIT if kind == SPLIT else PLAIN,
                "job.overlap": "passes" if kind == BESIDE else "none",
                "job.batch.micro_batch": 1,
                "job.batch.micro_batches": STEADY[kind],
                "job.sharding": "optimizer",
                "job.recompute": "none",
                "job.layout": "even",
            }
            settings = statement_of(set_up._replace(schedule=PLAIN)) | few | self._few
            if kind == BESIDE and self.job.architecture.moe_blocks:  # blocks without all-to-alls gain nothing
                settings |= {"model.blocks": BLOCKS, "model.dense_blocks": 0}
            resolved = resolve(self.base.with_(settings))
            problem = problem_of(resolved, (resolved.case.network.nic_gbps,))
            shares = resolved.shares(problem.workload)
            rates = problem.rates(resolved.case.network.nic_gbps)
            self._samples[key] = Sample(problem, rates, shares)
        return self._samples[key]

    def rates_of(self, job: Workload, dispatcher: str, sample: Sample) -> FabricRates:
        """Return the rates of a sample's group for the messages of a job."""
        key = id(sample), dispatcher, job.tp, job.folded, job.ep, job.tokens, job.dispatch
        if key not in self._rates:
            self._rates[key] = self._make_rates(job, dispatcher, sample)
        return self._rates[key]

    def _make_rates(self, job: Workload, dispatcher: str, sample: Sample) -> FabricRates:
        if dispatcher not in self._under:
            resolved = sample.problem.resolved
            case = resolved.case.with_({"job.dispatcher": dispatcher})
            self._under[dispatcher] = dataclasses.replace(resolved, case=case)
        own, of = self._under[dispatcher].shares(job), sample.shares
        rates = sample.rates
        return rates._replace(
            nic_Bps=rates.nic_Bps * (own.nic / of.nic),
            eps_Bps=rates.eps_Bps * (own.ring_nic / of.ring_nic),
            send_Bps=rates.send_Bps * (own.send / of.send),
            nvlink_Bps=rates.nvlink_Bps * (own.ring_nvlink / of.ring_nvlink),
            inside_Bps=rates.inside_Bps * (own.nvlink / of.nvlink),
            tp_over=np.asarray(own.tp_nvlink / own.ring_nvlink),
            beside=np.asarray(own.beside),
            counts_s=np.asarray(own.counts_s),
        )

    def all_to_alls(self, set_up: SetUp) -> MeanAllToAlls:
        """Return the mean all-to-alls of a token of a set-up, limited by the busiest server and GPU alone."""
        sample = self.sample(set_up)
        (between, inside), load, job = sample.ports, 1.0, sample.problem.workload
        experts: Any = sample.problem.resolved.case.compute.experts
        if experts.name == "received" and job.moe_layers:
            load = float(sample.busy(self.job.workload(set_up)).mean())
        return MeanAllToAlls(between / sample.tokens, inside / sample.tokens, load)

    def load(self, set_up: SetUp) -> RankLoad:
        """Return the load of the fullest rank in the sampled blocks."""
        problem = self.sample(set_up).problem
        if self.base.compute.experts.name == "balanced":
            return RankLoad()
        each = load_of_ranks(problem.workload, problem.tokens.count[0])
        return RankLoad(float(each.mean(axis=(0, 1)).max()), float(each.max())) if each.size else RankLoad()

    def mean(self, set_up: SetUp) -> MeanBlocks:
        """Return the seconds of mean blocks of a set-up."""
        kinds = [PLAIN]
        kinds += [SPLIT] if SCHEDULES[set_up.schedule].splits else []
        kinds += [BESIDE] if set_up.overlap == "passes" else []
        each = [self._mean_of(set_up, kind) for kind in kinds]
        moe, dense, head = (np.max([getattr(mean, name) for mean in each], axis=0) for name in ("moe", "dense", "head"))
        return MeanBlocks(moe, dense, head, each[-1].pair)

    def _mean_of(self, set_up: SetUp, kind: str) -> MeanBlocks:
        key = *set_up.shape, set_up.dispatcher, set_up.dispatch, gathers_of(set_up), set_up.recompute, kind
        if key not in self._mean:
            self._mean[key] = self._run(set_up, kind)
        return self._mean[key]

    def _run(self, set_up: SetUp, kind: str) -> MeanBlocks:
        sample = self.sample(set_up, kind)
        problem, resolved = sample.problem, sample.problem.resolved
        mini = problem.workload
        own = self.job.workload(set_up.plain)
        job = dataclasses.replace(
            own,
            architecture=mini.architecture,
            pp=1,
            gpus=own.gpus // own.pp,
            micro_batches=STEADY[kind],
            schedule=mini.schedule,
            overlap_passes=mini.overlap_passes,
            chunks=mini.chunks,
            layout_of_blocks="even",
            head="left-out",
            predicted=0,
        )
        rates = self.rates_of(own, set_up.dispatcher, sample)
        rules = resolved.rules._replace(recompute=set_up.recompute)
        if kind == BESIDE:
            rules = rules._replace(comm_cores=self.cores_of(set_up.dispatcher))
        return mean_blocks(job, rates, sample.scale(job), resolved.block_seconds(own), rules)

    def cores_of(self, dispatcher: str) -> float:
        """Return the part of a GPU's cores that communicates beside passes: the stated one, else the dispatcher's."""
        return shares_of(1, dispatcher).cores if self._stated_cores is None else self._stated_cores
