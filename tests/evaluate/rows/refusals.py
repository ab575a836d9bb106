"""Mistakes that a simulation answers with one sentence: settings of a case, cases of a batch."""

import dataclasses

import numpy as np

from mfabric_jax import load, resolve
from mfabric_jax.evaluate import evaluate, grid
from mfabric_jax.evaluate.whole_cluster import solve_cluster
from mfabric_jax.traffic import Tokens
from tests.small import JOB, small

TINY = load(preset="paper").with_({"model.name": "llama-moe"})
NO_PRICE = "nic_gbps 50 has no price; prices are listed from 100 to 800 Gbps"
OWN = "nic_use 'own' gives each GPU its own NIC, but a server has 8 GPUs and 4 NICs; use nic_use 'pooled' or 8 NICs"
TREE = {"network.fabric": "fat-tree"}


def degrees(**given):
    return {f"job.parallel.{name}": degree for name, degree in given.items()}


def batch(**sizes):
    return {f"job.batch.{name}": size for name, size in sizes.items()}


CPO = {"network.fabric": "mfabric-cpo", "network.nic_gbps": 100.0}
PASSES = {"network.fabric": "mfabric", "job.schedule": "dualpipe", "job.overlap": "passes"}
MIXTRAL = {"model.name": "mixtral-8x7b"}
LPT = "placement.longest-processing-time"
LIMITED = {"model.name": "deepseek-r1", "job.per-server.node_limit": "model"}
MEASURED = {"compute.measured.iteration_s": 5.0, "compute.measured.fabric": "mfabric"}

SCHEDULED = {"model.name": "mixtral-8x7b", "circuits.schedule": "spectra"}

CASES = [  # settings that do not go together, or that nothing has
    ({"model.name": "llama-mo"}, "model.name 'llama-mo' is unknown (did you mean 'llama-moe'?); allowed:"),
    ({"circuits.policy": "greedi"}, "policy 'greedi' is unknown (did you mean 'greedy'?)"),
    ({"gpu.name": "A100-SXM"}, "gpu 'A100-SXM' is unknown (did you mean"),
    (
        {"network.fabric": "topoopt", "network.in-network.sharp": True},
        "network.in-network.sharp needs a switch tree that adds up gradients, and topoopt has none: only circuits",
    ),
    ({"gpu.name": "A100-80GB-SXM", "gpu.nvls": True}, "gpu.nvls needs NVSwitches that reduce, as those of H100"),
    ({"gpu.name": "MI300X", "gpu.nvls": True}, "gpu.nvls needs NVSwitches that reduce, as those of H100"),
    ({"network.paths": "ecmp", "circuits.routing": "split"}, "circuits.routing must be unsplit with"),
    ({"network.paths": "ecmp", "circuits.partial": True}, "circuits.partial must be false with"),
    (
        {"circuits.reconfigure": "always", "circuits.partial": True},
        "circuits.partial must be false with circuits.reconfigure",
    ),
    (SCHEDULED | {"circuits.schedule": "spectre"}, "scheduler 'spectre' is unknown (did you mean 'spectra'?)"),
    (
        SCHEDULED | {"circuits.reconfigure": "pays"},
        "circuits.reconfigure must be on-demand with circuits.schedule, got pays.",
    ),
    (SCHEDULED | {"circuits.each_s": 0.1}, "circuits.each_s must be 0.0 with circuits.schedule, got 0.1."),
    (SCHEDULED | {"network.paths": "ecmp"}, "network.paths must be spray with circuits.schedule, got ecmp."),
    (SCHEDULED | {"run.sample": 0}, "run.sample must be auto with circuits.schedule, got 0."),
    (SCHEDULED | {"job.recompute": "block"}, "job.recompute must be none or light"),
    (SCHEDULED | {"circuits.switches": 4}, "optical_degree must be a multiple of the 4 switches"),
    (
        SCHEDULED | {"network.fabric": "acos"},
        "circuits.schedule must be none with acos, whose graphs are fixed, got spectra.",
    ),
    ({"circuits.schedule": "no.py:file"}, "scheduler 'no.py:file' must be FILE.py:FUNCTION, but there is no file"),
    ({"network.nic_gbps": 50.0}, NO_PRICE),
    ({"network.mfabric.optical_degree": 8}, "network.mfabric.optical_degree must be below the 8 NICs of a server"),
    ({"network.radix": 15}, "network.radix must be even (half of the ports go up) and at least 4, got 15."),
    (degrees(tp=3), "job.parallel.tp must divide the 8 GPUs of a server, got 3; the nearest are 2 and 4."),
    (degrees(ep=32), "job.parallel.ep must divide the 16 experts, got 32; the nearest is 16."),
    (degrees(pp=64), "job.parallel.pp must be at most the 32 blocks of llama-moe, got 64."),
    (MIXTRAL | degrees(ep=3, gpus=384), "job.parallel.ep must divide the 8 experts, got 3"),
    (MIXTRAL | {"network.fabric": "nvl72"} | degrees(dp=1), "stage of dp x tp x ep = 1 x 4 x 8 = 32 GPUs must"),
    (degrees(gpus=1024, dp=2), "gpus 1024 and dp 2 do not agree: dp 2 x tp 1 x pp 4 x ep 16 make 128."),
    (degrees(tp=1, pp=4, ep=16, gpus=1000), "tp 1 x pp 4 x ep 16 = 64, got 1000; the nearest are 960 and 1024."),
    (batch(global_batch=6144, micro_batches=4), "do not agree: micro_batch 8 x ep 16 x dp 16 x 4 make 8192."),
    (batch(per_stage=2, micro_batches=4), "per_stage 2 and micro_batches 4 do not agree: the former needs 8."),
    (
        batch(bubble=0.15, micro_batches=4),
        "bubble 0.15 and micro_batches 4 do not agree: the former needs at least 17.",
    ),
    (MIXTRAL | {f"{LPT}.redundant_experts": 3}, "redundant_experts must be a multiple of the 8 ranks (ep), got 3"),
    (MIXTRAL | {"placement.hierarchical.groups": 3}, "groups of the placement rule must divide the 8 experts, got 3."),
    (MIXTRAL | {"placement.rule": "file"}, "placement.file must name a .json file with the placement of experts."),
    (MIXTRAL | {"placement.file": "none.json"}, "cannot read 'none.json' (No such file or directory)"),
    (LIMITED | {"placement.rule": "with-circuits"}, "node_limit 'model' are neighbouring"),
    (LIMITED | {"placement.rule": "longest-processing-time"}, "node_limit 'model' are neighbouring"),
    (LIMITED | {"placement.hierarchical.groups": 16}, "node_limit 'model' are neighbouring"),
    (MIXTRAL | {"run.replicas": 9}, "replicas must be at most 8, the dp of mixtral-8x7b, got 9"),
    ({"run.replicas": 2, "traffic.alike": "everything"}, "traffic.alike must be nothing with"),
    (
        {"run.sample": 1, "run.iterations": 2, "traffic.alike": "everything"},
        "run.sample must be auto or 0 with traffic.alike, which leaves one iteration",
    ),
    ({"run.replicas": 2, "circuits.span.length": "run"}, "run.replicas must be 1 with "),
    ({"compute.measured.nic_gbps": 100.0}, "compute.measured needs iteration_s"),
    (MEASURED | {"circuits.reconfigure": "pays"}, "with compute.measured.fabric mfabric"),
    ({"compute.received.combine": "rank", "job.parts": 2}, "job.overlap must be none or passes with"),
    ({"network.fabric": "torus", "network.nics": 2}, "torus needs equally many NICs in each of"),
    ({"network.transport": "ndp", "network.goodput": 0.9}, "network.payload has one alternative at a time"),
    ({"network.transport": "tcp"}, "transport 'tcp' is unknown"),
    ({"run.sample": 3}, "run.sample must be below run.iterations (1), got 3."),
    ({"traffic.trace.records": (1, 2)}, "traffic.trace needs a path: a file or folder of recorded routing, got none."),
    ({"traffic.trace.path": "run.npy", "traffic.trace.axes": "layer,experts"}, "axis 'experts' is unknown"),
    (TREE | {"network.nics": 4}, OWN),
    ({"network.fabric": "topoopt", "network.nics": 3}, "topoopt needs 4 NICs for its ring"),
    ({"network.fabric": "rail-only", "network.nics": 4}, OWN),
    ({"network.fabric": "rail-optimized", "network.rail-optimized.pxn": True, "network.nics": 4}, OWN),
    ({"network.prices": "none.toml"}, "cannot read 'none.toml'"),
    ({"network.prices": "prices.csv"}, "prices 'prices.csv': extension '.csv' is unknown"),
    ({"network.fabric": "nvl72", "network.nic_gbps": 100, "network.gpu_tbps": 0.1}, "gpu_tbps 0.1 leaves no "),
    (CPO | {"network.gpu_tbps": 0.2}, "gpu_tbps 0.2 leaves no optical port of nic_gbps 100"),
    ({"job.precision.compute": "fp8"}, "compute_precision 'fp8' has no known peak on the GPU A100"),
    ({"job.dispatch": "per-server", "compute.received.combine": "rank"}, "job.dispatch must be per-expert with"),
    *[
        ({"job.sharding": shared, "job.overlap_gradients": True}, "job.overlap_gradients must be false ")
        for shared in ("gradients", "parameters")
    ],
    (PASSES | {"circuits.span.length": "stage"}, "circuits.reconfigure must be on-demand or always or span"),
    (PASSES | {"circuits.partial": True}, "circuits.partial must be false with job.overlap passes, got true."),
    (PASSES | {"compute.received.combine": "rank"}, "compute.received.combine must be barrier with job.overlap"),
    (PASSES | {"circuits.reconfigure": "pays"}, "circuits.reconfigure must be on-demand or always or span"),
    *[
        (PASSES | {"circuits.policy": policy}, "circuits.policy must choose by demand alone with job.overlap passes")
        for policy in ("random", "previous", "threshold", "local-search", "relaxed")
    ],
    (
        {"job.recompute": "block", "circuits.reconfigure": "pays"},
        "job.recompute must be none or light or attention or parts",
    ),
]


@dataclasses.dataclass
class Loose:
    """A function without a hash."""

    def __call__(self, case):
        return case


ONES = {"a": np.ones(3)}


def of_batch(cases, **settings):
    return lambda: evaluate(Loose(), cases, **settings)


PLACED = JOB | {f"{LPT}.every": 2, "run.iterations": 3}

REFUSED = [
    *((lambda changes=changes: resolve(TINY.with_(changes)), *words) for changes, *words in CASES),
    (of_batch({}), "cases must hold at least one array, got none"),
    (of_batch(ONES | {"b": np.ones(2)}), "one length of at least 1 along the first axis, got shapes [2], [3]"),
    (of_batch(ONES | {"b": 1.0}), "got shapes [3], []"),
    (of_batch(ONES, at_once=0), "at_once must be a whole number of at least 1, got 0"),
    (of_batch(ONES, devices=[]), "devices must name at least one, got none"),
    (of_batch(ONES), "function must be hashable, as functions, frozen dataclasses"),
    (lambda: grid(a=[1], b=[]), "b must have at least one value along its first axis, got []"),
    (lambda: Tokens(np.ones((1, 1, 1, 4, 4)), "here").after_the_first(), "tokens (here) must have an iteration before"),
    (lambda: solve_cluster(small(PLACED)), "placement.rule must be contiguous for a whole cluster"),
]
