"""Everything that can be wrong with a case is one sentence that names the setting, before any traffic is drawn."""

import msgspec
import numpy as np
import pytest

from mfabric_jax import Case, InputError, load, resolve, simulate
from tests.small import configured, refused, scenario, small

TINY = load(preset="paper").with_({"model.name": "llama-moe"})
NAN, INF = float("nan"), float("inf")
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
NAMED = {"circuits.turn": "blok", "network.paths": "all", "job.schedule": "zigzag", "compute.rate": "guessed"}
NAMED |= {
    "compute.experts": "recieved",
    "model.name": "llama-mo",
    "traffic.knobs": "hot-rnk",
    "placement.rule": "lpt",
    "compute.measured.fabric": "fattree",
}
CHOSEN = {"network.fabric": "tree", "network.nic_use": "all", "circuits.routing": "best_path", "run.dtype": "double"}
CHOSEN |= {"traffic.alike": "two", "circuits.predict.predictor": "oracle", "circuits.span.length": "weeks"}
CHOSEN |= {"circuits.span.chosen_on": "future", "network.tiers": 4, "circuits.decision_s": "soon"}
WHOLE = {"network.mfabric.optical_degree": 0, "run.iterations": 1, "run.seed": 0, "network.nics": 1, "job.parts": 1}
WHOLE |= {"circuits.predict.scenarios": 1, "compute.received.tile": 1, "traffic.drawn": 1}
WHOLE |= {f"job.parallel.{name}": 1 for name in ("dp", "tp", "pp", "ep", "gpus", "cp")}
WHOLE |= {f"job.batch.{name}": 1 for name in ("micro_batch", "micro_batches", "global_batch", "sequence")}
LEAST_0 = ("circuits.delay_s", "circuits.each_s", "circuits.reactivation_s", "circuits.decision_s")
LEAST_0 += ("circuits.predict.sigma", "network.link_delay_s", "traffic.generated.skew", "traffic.shares.drift")
ABOVE_0 = ("compute.efficiency", "gpu.nvlink_gigabytes_per_s", "network.nic_gbps", "network.gpu_tbps")
ABOVE_0 += ("compute.measured.iteration_s",)
MISTAKES = [  # what the sentence holds
    *[({path: name}, f"{path} '{name}' is unknown") for path, name in NAMED.items()],
    *[({path: name}, f"{path} must be ") for path, name in CHOSEN.items()],
    ({"model.name": "llama-mo"}, "model.name 'llama-mo' is unknown (did you mean 'llama-moe'?); allowed:"),
    ({"circuits.policy": "greedi"}, "policy 'greedi' is unknown (did you mean 'greedy'?)"),
    ({"gpu.name": "A100-SXM"}, "gpu 'A100-SXM' is unknown (did you mean"),
    ({"network.paths": "ecmp", "circuits.routing": "split"}, "circuits.routing must be unsplit beside"),
    ({"network.paths": "ecmp", "circuits.partial": True}, "circuits.partial must be false beside"),
    ({"circuits.turn": "always", "circuits.partial": True}, "circuits.partial must be false beside circuits.turn"),
    ({"network.nic_gbps": 50.0}, NO_PRICE),
    ({"network.nic_gbps": 1000.0}, "nic_gbps 1000 has no price"),
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
    (batch(per_stage=2, micro_batches=4), "per_stage 2 and micro_batches 4 do not agree: it takes 8."),
    (batch(bubble=0.15, micro_batches=4), "bubble 0.15 and micro_batches 4 do not agree: it takes at least 17."),
    (MIXTRAL | {f"{LPT}.redundant_experts": 3}, "redundant_experts must be a multiple of the 8 ranks (ep), got 3"),
    (MIXTRAL | {"placement.hierarchical.groups": 3}, "groups must divide the 8 experts, got 3."),
    (LIMITED | {"placement.rule": "with-circuits"}, "node_limit 'model' is of groups"),
    (LIMITED | {"placement.rule": "longest-processing-time"}, "node_limit 'model' is of groups"),
    (LIMITED | {"placement.hierarchical.groups": 16}, "node_limit 'model' is of groups"),
    (MIXTRAL | {"run.replicas": 9}, "replicas must be at most the 8 of mixtral-8x7b (dp), got 9"),
    ({"run.replicas": "every"}, "run.replicas must be all or a whole number at least 1, got 'every'"),
    ({"run.replicas": 2, "traffic.alike": "everything"}, "traffic.alike must be nothing beside"),
    ({"run.replicas": 2, "circuits.span.length": "run"}, "run.replicas must be 1 beside "),
    ({"compute.measured.nic_gbps": 100.0}, "compute.measured needs iteration_s"),
    (MEASURED | {"circuits.turn": "pays"}, "beside compute.measured.fabric mfabric"),
    ({"compute.received.combine": "rank", "job.parts": 2}, "job.overlap must be none or passes beside"),
    ({"network.fabric": "torus", "network.nics": 2}, "torus needs as many NICs in each of"),
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
    ({"circuits.partial": "yes"}, "circuits.partial must be true or false, got 'yes'."),
    ({"job.precision.compute": "fp8"}, "compute_precision 'fp8' has no known peak on the GPU A100"),
    ({"job.batch.bubble": 1.5}, "job.batch.bubble must be a number above 0 and at most 1"),
    ({"job.dispatch": "per-server", "compute.received.combine": "rank"}, "job.dispatch must be per-expert beside"),
    *[
        ({"job.sharding": shared, "job.overlap_gradients": True}, "job.overlap_gradients must be false ")
        for shared in ("gradients", "parameters")
    ],
    (PASSES | {"circuits.span.length": "stage"}, "circuits.turn must be on-demand or span"),
    (PASSES | {"circuits.partial": True}, "circuits.partial must be false beside job.overlap passes, got true."),
    (PASSES | {"compute.received.combine": "rank"}, "compute.received.combine must be barrier beside job.overlap"),
    (PASSES | {"circuits.turn": "pays"}, "circuits.turn must be on-demand or span"),
    ({"job.recompute": "block", "circuits.turn": "pays"}, "job.recompute must be none or attention beside "),
    *[({"network.goodput": x}, "network.goodput must be a number above 0 and at most 1") for x in (0.0, 1.1, NAN)],
    *[({path: x}, f"{path} must be a number above 0") for path in ABOVE_0 for x in (0.0, -4.0, NAN, INF)],
    *[({path: x}, f"{path} must be ") for path in LEAST_0 for x in (-0.001, NAN, INF)],
    *[
        ({path: value}, f"{path} must be a whole number at least {least}")
        for path, least in WHOLE.items()
        for value in (least - 1, 2.5, "2", True)
    ],
]


@pytest.mark.parametrize("at", range(len(MISTAKES)), ids=lambda at: "-".join(MISTAKES[at][0]))
def test_mistakes_are_sentences(at):
    changes, words = MISTAKES[at]
    assert words in refused(changes, TINY)


def test_axes_say_what_an_array_is(tmp_path):
    loads = np.arange(1, 2 * 3 * 16 + 1).reshape(2, 3, 16)  # iteration, layer, expert
    np.save(tmp_path / "plain.npy", np.repeat(loads[:, :, None, None], 16, axis=3))  # spread over sources
    np.save(tmp_path / "turned.npy", loads.transpose(2, 0, 1))

    def drawn(name, axes):
        trace = {"traffic.trace.path": str(tmp_path / name), "traffic.trace.axes": axes, "run.iterations": 2}
        return scenario(TINY.with_(trace)).tokens.count

    by_name = drawn("turned.npy", "expert,iteration,layer")
    np.testing.assert_array_equal(by_name, drawn("plain.npy", "iteration,layer,micro-batch,source,expert"))
    with pytest.raises(InputError, match="name its axes, such as --axes"):
        drawn("turned.npy", None)


def test_what_is_fine():
    with pytest.raises(AttributeError):
        Case().run.seed = 1  # type: ignore[misc]
    assert msgspec.structs.replace(Case().run, seed=1) == Case().with_({"run.seed": 1}).run
    for few in ({"network.nic_use": "pooled"} | TREE, {"network.fabric": "mfabric"}):
        assert resolve(TINY.with_(few | {"network.nics": 4})).settings.server_nics == 4


def test_float64_needs_x64():
    sentence = r"^dtype float64 needs jax\.config\.update\('jax_enable_x64', True\)"
    with configured(jax_enable_x64=False), pytest.raises(InputError, match=sentence):
        simulate(small())
