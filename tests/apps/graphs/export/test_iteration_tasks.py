"""An iteration as a graph of tasks, timed by a plain event simulation in fractions, against `compare`."""

import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.apps.graphs.export import export_iteration, time_iteration
from mfabric_jax.apps.graphs.export.contention import over_ports
from mfabric_jax.apps.graphs.export.iteration_tasks import check_exportable, iteration_graph
from mfabric_jax.apps.graphs.export.site_tasks import TRAFFIC
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind
from mfabric_jax.apps.graphs.tasks.lowering import lower_tasks
from mfabric_jax.workload.volume import iteration_bytes, pp_bytes, replica_bytes, replica_ring
from tests.evaluate.rows.test_resolve import SECOND
from tests.oracles import graph as oracle
from tests.small import JOB, row, scenario, small

# Two stages of one block; 4 ranks of 4 GPUs, two servers a region.
TINY = {f"job.parallel.{name}": degree for name, degree in (("tp", 4), ("pp", 2), ("ep", 4), ("dp", 1))}
TINY |= {f"model.{name}": size for name, size in (("blocks", 2), ("hidden", 1000), ("experts", 4), ("top_k", 1))}
TINY |= {"model.expert_hidden": 1000, "job.batch.sequence": 2000, "job.batch.micro_batch": 1, "job.sharding": "none"}
TINY |= {"job.precision.gradients": 1000.0, "traffic.drawn": 2, "circuits.delay_s": 1e-3}
MICRO_BATCHES, POOLED = "job.batch.micro_batches", {"network.nic_use": "pooled"}


def tiny(fabric, changes=None):
    """A small job on a fabric."""
    return small(TINY | {"network.fabric": fabric} | (changes or {}))


def finish(one, contention="none", **lower):
    """The last end, by the plain simulation."""
    capacity, (flows, routes) = over_ports(one, lower_tasks(one.graph, **lower), contention)
    _, ends = oracle.run(
        capacity.tolist(),
        [[(int(hop), 1) for hop in row if hop >= 0] for row in routes.hops],
        flows.size.tolist(),
        [tuple(pair) for pair in flows.after.tolist()],
        flows.start.tolist(),
        flows.lag.tolist(),
        cap=flows.cap.tolist(),
    )
    return float(max(ends))


CASES = {
    "own NICs": ("fat-tree", {"network.link_delay_s": 1e-4}),
    "latency of messages": ("mfabric", {"network.alpha_s": 1e-3, "job.parallel.pp": 1}),
    "oversubscribed": ("oversub-fat-tree", {"job.schedule": "zb-h1", MICRO_BATCHES: 3, "job.overlap_gradients": True}),
    "circuits": ("mfabric", {"job.precision.combine": 4.0, "circuits.decision_s": 2e-4, "circuits.packets_wait": True}),
    "relayed": (
        "mfabric",
        {"job.parallel.ep": 8, "model.experts": 8, MICRO_BATCHES: 1}
        | {"circuits.routing": "relay", "circuits.reconfigure": "pays"}
        | {"network.nics": 3, "network.mfabric.optical_degree": 2},
    ),
    "split": ("mfabric", {"circuits.routing": "split"}),
    "best path": ("mfabric", {"circuits.routing": "best-path", "network.nics": 3, "network.mfabric.optical_degree": 1}),
    "kernels": ("oversub-fat-tree", {"compute.rate": "kernels", "gpu.name": "H100-SXM"}),
    "kernels and circuits": ("mfabric", {"compute.rate": "kernels", "job.dispatch": "per-server"}),
    "pairs": ("mfabric", {MICRO_BATCHES: 3, "job.passes.comm_cores": 0.1}),
    "pairs whose transfers are slower beside computation": (
        "fat-tree",
        {"compute.rate": "kernels", "gpu.name": "H100-SXM", "job.dispatcher": "nccl", "job.overlap": "passes"}
        | {MICRO_BATCHES: 3, "network.nic_gbps": 100.0, "job.precision.dispatch": 200.0},
    ),
    "pairs whose ranks wait for the last": (
        "fat-tree",
        {"compute.rate": "kernels", "gpu.name": "H100-SXM", "job.batch.sequence": 50_000}
        | {"job.overlap": "passes", MICRO_BATCHES: 3, "network.nic_gbps": 800.0},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_without_contention_an_iteration_takes_what_compare_says(name):
    case = tiny(*CASES[name])
    one = iteration_graph(scenario(case), barriers="marker", receives=False)
    assert finish(one) == pytest.approx(row(case)["iteration_s"], rel=1e-9)


def test_the_last_send_backward_shares_its_port_with_gradients():
    on = scenario(
        tiny("fat-tree", {MICRO_BATCHES: 1, "job.batch.sequence": 50_000, "job.precision.gradients": 100.0} | POOLED)
    )
    one = iteration_graph(on, barriers="marker", receives=False)
    rates = on.rates(100.0)
    send_s = 2 * pp_bytes(on.workload) / rates.send_Bps  # two ranks a server
    sums = replica_bytes(on.workload, 1, last=True)
    inside_s = replica_ring(on.workload, sums.dense, sums.expert).inside / rates.nvlink_Bps
    later = send_s - inside_s  # of the send, when gradients begin to share its port: that takes twice as long
    assert later > 0.1 * send_s
    assert finish(one, "all") == pytest.approx(finish(one) + later, rel=1e-9)


def test_ranks_that_receive_and_wait_in_barriers_take_as_long():
    on = scenario(tiny("mfabric", {MICRO_BATCHES: 1, "run.iterations": 2}))
    lean = iteration_graph(on, barriers="marker", receives=False)
    whole = iteration_graph(on)
    assert whole.graph.rank.min() >= 0  # a rank has every task
    after, rank = whole.graph.after, whole.graph.rank
    assert (rank[after[:, 0]] == rank[after[:, 1]]).all()  # and waits for its own alone
    assert finish(whole) == pytest.approx(lean.iteration_s, rel=1e-9)
    assert finish(lean) == pytest.approx(lean.iteration_s, rel=1e-9)
    gpus = iteration_graph(on, "gpu")
    assert gpus.graph.bytes[gpus.private].sum() == pytest.approx(whole.graph.bytes[whole.private].sum())
    alone = iteration_graph(on, barriers="none")
    assert finish(alone) <= lean.iteration_s * (1 + 1e-12)


@pytest.mark.parametrize("ends", ["server", "rank", "gpu"])
def test_messages_have_the_bytes_of_the_iteration(ends):
    on = scenario(tiny("fat-tree", {"job.parallel.dp": 2, "run.replicas": "all", "traffic.source": "generated"}))
    one, expected = iteration_graph(on, ends), iteration_bytes(on.workload)
    sends = one.graph.of(TaskKind.SEND)
    sent = np.bincount(one.traffic[sends], one.graph.bytes[sends], minlength=len(TRAFFIC))
    assert sent[TRAFFIC.index("PP")] == pytest.approx(expected["PP"])
    away = expected["EP"] * 2 / 3  # two of the three other ranks are on the other server
    assert sent[TRAFFIC.index("EP")] == pytest.approx(away, rel=0.2)  # drawn, not even
    assert one.graph.ranks == {"server": 8, "rank": 16, "gpu": 64}[ends]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"job.parts": 2}, "job.overlap must be none or passes for an iteration as a graph, got parts."),
        ({"network.paths": "ecmp"}, "network.paths must be spray for an iteration as a graph, got ecmp."),
        (
            {"network.fabric": "fat-tree", "network.rails.speeds": (1.0, 0.5) * 4, "network.nic_gbps": 200},
            "network.rails.speeds must be empty for an iteration as a graph",
        ),
        ({"network.fabric": "torus"}, "needs a switch tree or mfabric, got torus"),
    ],
)
def test_what_has_no_graph_is_refused(changes, sentence):
    with pytest.raises(InputError, match=sentence):
        check_exportable(scenario(tiny("mfabric", changes)))


def test_gradients_and_tensor_parallel_ranks_in_collectives():
    two = {"job.parallel.dp": 2, MICRO_BATCHES: 1}
    on = scenario(tiny("fat-tree", two | POOLED | {"run.replicas": "all"}))
    servers = iteration_graph(on, collectives=True)
    assert finish(servers) == pytest.approx(servers.iteration_s, rel=1e-9)  # rings, one behind the other
    gpus = iteration_graph(on, "gpu", collectives=True)
    reduced = gpus.graph.of(TaskKind.COLLECTIVE, Op.ALL_REDUCE)
    dense = gpus.graph.bytes[reduced & (gpus.traffic == TRAFFIC.index("DP"))]
    sums = [replica_bytes(on.workload, stage, last=True) for stage in (0, 1)]
    assert dense.sum() == pytest.approx(sum(one.dense + one.expert for one in sums) * 8)  # ranks of both replicas
    tensor = gpus.graph.bytes[reduced & (gpus.traffic == 0)]
    blocks, passes = 2, 2
    assert tensor.sum() == pytest.approx(64 // 2 * blocks * passes * pp_bytes(on.workload))  # GPUs of a stage
    with pytest.raises(InputError, match="collectives inside servers"):
        time_iteration(gpus)
    with pytest.raises(InputError, match="ends must be server for contention if the NICs of a server are pooled"):
        time_iteration(iteration_graph(on, "gpu"))
    with pytest.raises(InputError, match=r"run\.replicas must be all, got 1"):
        iteration_graph(scenario(tiny("fat-tree", two)), collectives=True)


def test_a_graph_is_of_the_iteration_that_the_case_names():
    case = small(JOB | SECOND)
    assert export_iteration(case).iteration_s == pytest.approx(row(case)["iteration_s"], rel=1e-6)
