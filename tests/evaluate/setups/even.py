"""Jobs whose blocks all take the same seconds, timed by the coarse clock and by the usual one."""

import dataclasses

import jax
import numpy as np

from mfabric_jax.evaluate.setups.coarse import MeanBlocks, coarse_seconds, mean_blocks
from mfabric_jax.timing.blocks import Rules
from mfabric_jax.timing.iteration import FabricRates, walk
from mfabric_jax.timing.passes import Exchanges, order_of
from mfabric_jax.workload import GroupedQuery, Workload, models
from mfabric_jax.workload.compute import BlockSeconds, block_flops, complete_seconds
from mfabric_jax.workload.schedules import SCHEDULES

PEAK = 1e15  # FLOP/s
RATES = FabricRates(nic_Bps=40e9, eps_Bps=200e9, send_Bps=200e9, nvlink_Bps=400e9, latency_s=1e-6, memory_Bps=3e12)
FEW = 4  # blocks of each kind that stand for all
STEADY = {"1f1b": 2, "zb-h1": 2, "beside": 4}


def job(*, pp=1, dp=2, blocks=8, dense_blocks=0, micro_batches=8, ep=4, tp=1, **settings):
    model = models.Architecture(
        name="tiny",
        blocks=blocks,
        hidden=1024,
        attention=GroupedQuery(8, 8, 128),
        experts=8,
        top_k=2,
        expert_hidden=2048,
        dense_blocks=dense_blocks,
        dense_hidden=4096,
        vocab=settings.pop("vocab", 0),
        source="made up",
    )
    usual = {"sequence": 4096, "micro_batch": 1, "gpus_per_server": 4, "optimizer_step": "known"}
    gpus = dp * tp * pp * ep
    return Workload.of("tiny", model, dp, tp, pp, ep, gpus=gpus, micro_batches=micro_batches, **usual | settings)


def seconds_of(workload: Workload) -> BlockSeconds:
    each = (float(part) / (PEAK * workload.tp) for part in block_flops(workload))
    return complete_seconds(workload, BlockSeconds(*each))


def exchanges_of(workload: Workload, size=1.0) -> Exchanges:
    """All-to-alls that are all equally large; `size`: over the bytes of even experts."""
    order = order_of(workload)
    shape = (1, *order.kind.shape, max(workload.place_blocks))
    each = size * workload.selections * workload.dispatch_bytes_per_selection * 3 / 4
    both, no = np.full((*shape, 2), each), np.zeros((*shape, 2), bool)
    return Exchanges(0 * both, both, np.full(shape, each / 3), no, no[..., 0], None, np.ones(1))


def usual_s(workload: Workload, rules: Rules, rates: FabricRates = RATES) -> float:
    rates = FabricRates(*(None if x is None else np.asarray(x, float) for x in rates))
    one = FabricRates(*(None if x is None else x[None] for x in rates))
    seconds = jax.tree.map(lambda x: np.asarray([x], float), seconds_of(workload))
    walked = walk(workload, one, exchanges_of(workload), seconds, rules=rules, every=False)
    return float(walked.ends.max())


def means_of(workload: Workload, rules: Rules) -> MeanBlocks:
    """Mean blocks from a few blocks of one stage."""
    kinds = ["1f1b"]
    kinds += ["zb-h1"] if SCHEDULES[workload.schedule].splits else []
    kinds += ["beside"] if workload.overlap_passes else []
    each = []
    for kind in kinds:
        dense = FEW * bool(workload.architecture.dense_blocks) * (kind != "beside")
        few = dataclasses.replace(workload.architecture, blocks=FEW + dense, dense_blocks=dense)
        small = dataclasses.replace(
            workload,
            architecture=few,
            pp=1,
            gpus=workload.gpus // workload.pp,
            micro_batches=STEADY[kind],
            schedule="zb-h1" if kind == "zb-h1" else "1f1b",
            overlap_passes=kind == "beside",
            chunks=1,
            layout_of_blocks="even",
            head="left-out",
        )
        each.append(mean_blocks(small, RATES, exchanges_of(small), seconds_of(workload), rules))
    moe, dense, head = (np.max([getattr(one, name) for one in each], axis=0) for name in ("moe", "dense", "head"))
    return MeanBlocks(moe, dense, head, each[-1].pair)


def coarse_s(workload: Workload, rules: Rules, rates: FabricRates = RATES) -> float:
    return coarse_seconds(workload, rates, means_of(workload, rules), rules)
