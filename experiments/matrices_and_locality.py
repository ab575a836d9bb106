"""Who sends how much to whom: all-to-alls of single blocks from rank to rank, and all traffic from GPU to GPU.

One data-parallel replica, for Mixtral 128 GPUs, as on the measured cluster. All-to-alls change from block to block and
are uneven (`mfabric traces info` says how much); none leaves its region, the servers of its expert-parallel group.
Tensor parallelism, the largest part of Mixtral's bytes, is drawn, too. Source: arXiv 2501.03905, traffic matrices of
ranks, and locality.
"""

import dataclasses

import numpy as np
from matplotlib.colors import PowerNorm

from mfabric_jax import report, traffic, units, workload
from mfabric_jax.apps.recordings import statistics
from mfabric_jax.traffic import Flows, Tokens
from mfabric_jax.traffic.training import ring_all_reduce, together
from mfabric_jax.workload import Workload, place_ranks

from .pictures import heat
from .rows import Row, Rows, adding, group_rows, picked, pivot, then, told, where
from .script import Found, Script, Verdict, against, check

KINDS = {"TP": "Tensor", "EP": "Expert", "PP": "Pipeline"}
KINDS |= dict.fromkeys(("DP inside", "DP between", "DP experts"), "Data")
STATISTICS = {
    "ep_in_region": "all-to-all bytes that stay in their region",
    "leaves_region": "bytes of all parallelisms that leave a region",
    "leaves_region_no_tp": "the same without tensor parallelism",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Whose traffic."""

    models: tuple[str, ...] = ("mixtral-8x7b", "qwen-moe-ep16")
    """The gate trace has 16 source ranks and 32 experts, as many as the second."""
    dp: int = 1  # Data-parallel replicas.
    trace: str | None = None  # Recorded routing in place of measured expert shares.
    seed: int = 0  # Of drawn traffic.

    def __post_init__(self):
        check(self, known={"models": workload.NAMES}, whole={1: "dp", 0: "seed"})

    def job(self, model: str) -> Workload:
        """A model with so many replicas."""
        usual = workload.get(model)
        return workload.get(model, dp=self.dp, gpus=usual.gpus // usual.dp * self.dp)

    def tokens(self, job: Workload) -> Tokens:
        """Selections."""
        if self.trace is not None:
            return traffic.recorded_tokens(job, self.trace, iterations=1)
        return traffic.measured_tokens(job, 1, seed=self.seed)


def run(config: Config) -> Found:
    """Rows of three kinds for each model.

    - "statistic": what is in `STATISTICS`.
    - "all-to-all": bytes from rank to rank in the dispatch of a layer and micro-batch, some of them.
    - "cluster": bytes from GPU to GPU in one iteration by parallelism, and whether both are in one region.
    """
    for model in config.models:
        job = config.job(model)
        tokens, facts = config.tokens(job), {"model": model, "gpus": job.gpus}
        flows = all_flows(job, tokens)
        for name, value in _of_cluster(job, flows).items():
            yield {"row": "statistic"} | facts | {"statistic": name, "value": value}
        yield from ({"row": "all-to-all"} | facts | row for row in _matrices(job, tokens))
        yield from ({"row": "cluster"} | facts | row for row in _pairs(job, flows))


def rank_matrices(job: Workload, tokens: Tokens) -> np.ndarray:
    """Bytes of every dispatch [iteration layer M R R]."""
    return statistics.rank_matrix(tokens.count.astype(float), job.ep) * job.dispatch_bytes_per_selection


def _of_cluster(job: Workload, flows: Flows) -> dict[str, float]:
    region = place_ranks(job).region
    leaves = region[flows.src] != region[flows.dst]
    ep, tp = flows.of("EP"), flows.of("TP")

    def part(of: np.ndarray) -> float:
        return float(flows.size[of & leaves].sum() / flows.size[of].sum())

    return {"ep_in_region": 1 - part(ep), "leaves_region": part(ep | ~ep), "leaves_region_no_tp": part(~tp)}


def all_flows(job: Workload, tokens: Tokens) -> Flows:
    """Expert, data, pipeline and tensor parallel bytes of one iteration."""
    rest = traffic.training_flows(job, tokens.count[:1])
    groups = np.arange(job.gpus).reshape(job.pp, -1, job.tp)
    passes = np.asarray([2 * blocks * job.micro_batches for blocks in job.stage_blocks])  # forward and backward
    each = np.repeat(passes * workload.pp_bytes(job), groups.shape[1])  # as many bytes as the next stage gets
    return together(ring_all_reduce(groups.reshape(-1, job.tp), each, label="TP"), rest)


def _matrices(job: Workload, tokens: Tokens) -> Found:
    """Two layers and two micro-batches of the first, where there are so many."""
    matrix = rank_matrices(job, tokens)[0]
    layers, micro_batches = matrix.shape[:2]
    for layer, micro in dict.fromkeys([(0, 0), (0, 1 % micro_batches), (1 % layers, 0), (layers - 1, 0)]):
        for source, target in np.ndindex(job.ep, job.ep):
            size = float(matrix[layer, micro, source, target])
            yield {"layer": layer, "micro_batch": micro, "source": source, "destination": target, "bytes": size}


def _pairs(job: Workload, flows: Flows) -> Found:
    region = place_ranks(job).region
    for kind in dict.fromkeys(KINDS.values()):
        matrix = np.zeros((job.gpus, job.gpus))
        for label in (label for label in flows.labels if KINDS[label] == kind):
            mask = flows.of(label)
            np.add.at(matrix, (flows.src[mask], flows.dst[mask]), flows.size[mask])
        for source, target in zip(*np.nonzero(matrix), strict=True):
            ends = {"source": int(source), "destination": int(target), "bytes": float(matrix[source, target])}
            yield {"parallelism": kind} | ends | {"same_region": bool(region[source] == region[target])}


def _sums(rows: Rows) -> list[Row]:
    """Bytes by parallelism inside regions and between them."""
    sums = []
    for (model, kind), here in group_rows(rows, "model", "parallelism").items():
        inside, between = (sum(row["bytes"] for row in picked(here, same_region=same)) for same in (True, False))
        gigabytes = {"GB in a region": units.to_gigabytes(inside), "GB between": units.to_gigabytes(between)}
        sums.append({"model": model, "parallelism": kind} | {name: float(size) for name, size in gigabytes.items()})
    return sums


named = then(where(row="statistic"), adding(statistic=lambda row: STATISTICS[row["statistic"]], key="statistic"))
table = told(then(named, pivot(["statistic"], "{model}", "value")), then(where(row="cluster"), _sums, report.plain))


def _drawn(rows: Rows) -> list[Row]:
    """Bytes over the largest of their panel: dispatches from rank to rank, and each parallelism from GPU to GPU."""
    pairs = [row for row in rows if row["row"] != "statistic" and row["source"] != row["destination"]]
    titles = {"all-to-all": "layer {layer}, micro-batch {micro_batch}", "cluster": "{parallelism}, GPU to GPU"}
    named = adding(panel=lambda row: f"{row['model']}: {titles[row['row']].format(**row)}")(pairs)
    most = {panel: max(row["bytes"] for row in here) for (panel,), here in group_rows(named, "panel").items()}
    return adding(part=lambda row: row["bytes"] / most[row["panel"]])(named)


ENDS = ("destination", "destination"), ("source", "source")
build = then(_drawn, heat(*ENDS, ("part", "bytes over the most of a pair"), PowerNorm(0.5, 0, 1), panel="{panel}"))


def verdicts(rows: Rows) -> list[Verdict]:
    """All-to-alls stay in their region."""
    found = []
    for row in named(rows):
        claim = f"{row['model']}: {row['statistic']}"
        published, form = (1.0, ".0%") if row["key"] == "ep_in_region" else (None, ".1%")
        found.append(against(claim, row["value"], published, form=form))
    return found


SCRIPT = Script(Config)
SCRIPT.start(__name__)
