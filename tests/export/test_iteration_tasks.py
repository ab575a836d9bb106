"""An iteration as a graph of tasks, timed by a plain event simulation in fractions, against `compare`."""

import numpy as np
import pytest
from mfabric_jax.study.legacy import scenarios

from mfabric_jax import InputError
from mfabric_jax.export._export import timed_iteration
from mfabric_jax.export.contention import latency_of, links_of_iteration
from mfabric_jax.export.iteration_tasks import check_exportable, iteration_graph
from mfabric_jax.schedule.as_tasks import TRAFFIC
from mfabric_jax.study.config import Compare
from mfabric_jax.tasks.graph import Op, TaskKind
from mfabric_jax.tasks.lowering import lowered
from mfabric_jax.workload.volume import iteration_bytes, pp_bytes, replica_bytes, replica_ring
from tests.oracles import graph as oracle
from tests.schedule.jobs import job
from tests.small import row

TINY = {"tp": 4, "ep": 4, "pp": 2, "blocks": 2, "sequence": 2000}


def tiny(fabric, *, sent=None, **settings):
    """The only scenario of a small job on a fabric, two servers a region."""
    given = {"models": (job(**TINY | (sent or {})),), "fabrics": (fabric,), "nic_gbps": (100.0,), "dtype": "float64"}
    return Compare(**given | {"drawn": 2, "delay_s": 1e-3} | settings)


def finish(one, contention="none", **lower):
    """The last end, by the plain simulation."""
    flows = lowered(one.graph, **lower)
    links = links_of_iteration(one, flows, contention)
    paths = [[(int(hop), 1) for hop in row if hop >= 0] for row in links.hops]
    size = np.where(flows.transfers, flows.bytes, flows.seconds)
    lag = flows.lag + latency_of(one, flows)
    _, ends = oracle.run(
        links.capacity.tolist(),
        paths,
        size.tolist(),
        [tuple(pair) for pair in flows.after.tolist()],
        flows.start.tolist(),
        lag.tolist(),
        cap=links.cap.tolist(),
    )
    return float(max(ends))


CASES = {
    "own NICs": ("fat-tree", {}, {"link_delay_s": 1e-4}),
    "oversubscribed": ("oversub-fat-tree", {"schedule": "zb-h1", "micro_batches": 3}, {"dp_overlap": True}),
    "circuits": ("mfabric", {"combine_bytes": 4}, {"decision_s": 2e-4, "eps_waits": True}),
    "relayed": (
        "mfabric",
        {"ep": 8, "experts": 8, "micro_batches": 1},
        {"routing": "relay", "first": "pays", "electrical_nics": 1, "optical_degree": 2},
    ),
    "split": ("mfabric", {}, {"routing": "split"}),
    "best path": ("mfabric", {}, {"routing": "best-path", "optical_degree": 1}),
    "pairs": ("mfabric", {"overlap_passes": True, "micro_batches": 3}, {"comm_cores": 0.1}),
}


@pytest.mark.parametrize("name", CASES)
def test_without_contention_an_iteration_takes_what_compare_says(name):
    fabric, sent, settings = CASES[name]
    config = tiny(fabric, sent=sent, **settings)
    one = iteration_graph(scenarios(config)[0], barriers="marker", receives=False)
    assert finish(one) == pytest.approx(row(config)["iteration_s"], rel=1e-9)


def test_the_last_send_backward_shares_its_port_with_gradients():
    config = tiny("fat-tree", sent={"micro_batches": 1, "sequence": 50_000}, nic_use=("pooled",))
    (scenario,) = scenarios(config)
    one = iteration_graph(scenario, barriers="marker", receives=False)
    rates = scenario.rates(100.0)
    send_s = 2 * pp_bytes(scenario.workload) / rates.send_Bps  # two ranks a server
    sums = replica_bytes(scenario.workload, 1, last=True)
    inside_s = replica_ring(scenario.workload, sums.dense, sums.expert).inside / rates.nvlink_Bps
    later = send_s - inside_s  # of the send, when gradients begin to share its port: that takes twice as long
    assert later > 0.1 * send_s
    assert finish(one, "all") == pytest.approx(finish(one) + later, rel=1e-9)


def test_ranks_that_receive_and_wait_in_barriers_take_as_long():
    (scenario,) = scenarios(tiny("mfabric", sent={"micro_batches": 1}, iterations=2, replicas=1))
    lean = iteration_graph(scenario, barriers="marker", receives=False)
    whole = iteration_graph(scenario)
    assert whole.graph.rank.min() >= 0  # a rank has every task
    after, rank = whole.graph.after, whole.graph.rank
    assert (rank[after[:, 0]] == rank[after[:, 1]]).all()  # and waits for its own alone
    assert finish(whole) == pytest.approx(lean.iteration_s, rel=1e-9)
    assert finish(lean) == pytest.approx(lean.iteration_s, rel=1e-9)
    gpus = iteration_graph(scenario, "gpu")
    assert gpus.graph.bytes[gpus.private].sum() == pytest.approx(whole.graph.bytes[whole.private].sum())
    alone = iteration_graph(scenario, barriers="none")
    assert finish(alone) <= lean.iteration_s * (1 + 1e-12)


@pytest.mark.parametrize("ends", ["server", "rank", "gpu"])
def test_messages_have_the_bytes_of_the_iteration(ends):
    (scenario,) = scenarios(tiny("fat-tree", sent={"dp": 2, "micro_batches": 2}, replicas="all", traffic="generated"))
    one, expected = iteration_graph(scenario, ends), iteration_bytes(scenario.workload)
    sends = one.graph.of(TaskKind.SEND)
    sent = np.bincount(one.traffic[sends], one.graph.bytes[sends], minlength=len(TRAFFIC))
    assert sent[TRAFFIC.index("PP")] == pytest.approx(expected["PP"])
    away = expected["EP"] * 2 / 3  # two of the three other ranks are on the other server
    assert sent[TRAFFIC.index("EP")] == pytest.approx(away, rel=0.2)  # drawn, not even
    assert one.graph.ranks == {"server": 8, "rank": 16, "gpu": 64}[ends]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"overlap_parts": 2}, "overlap_parts must be 1"),
        ({"fabrics": ("torus",)}, "needs a switch tree or mfabric, got torus"),
    ],
)
def test_what_has_no_graph_is_refused(settings, sentence):
    config = Compare(models=(job(**TINY),), nic_gbps=(100.0,), **{"fabrics": ("mfabric",)} | settings)
    with pytest.raises(InputError, match=sentence):
        check_exportable(scenarios(config)[0])


def test_gradients_and_tensor_parallel_ranks_in_collectives():
    config = tiny("fat-tree", sent={"dp": 2, "micro_batches": 1}, nic_use=("pooled",), replicas="all")
    (scenario,) = scenarios(config)
    servers = iteration_graph(scenario, collectives=True)
    assert finish(servers) == pytest.approx(servers.iteration_s, rel=1e-9)  # rings, one behind the other
    gpus = iteration_graph(scenario, "gpu", collectives=True)
    reduced = gpus.graph.of(TaskKind.COLLECTIVE, Op.ALL_REDUCE)
    dense = gpus.graph.bytes[reduced & (gpus.traffic == TRAFFIC.index("DP"))]
    sums = [replica_bytes(scenario.workload, stage, last=True) for stage in (0, 1)]
    assert dense.sum() == pytest.approx(sum(one.dense + one.expert for one in sums) * 8)  # ranks of both replicas
    tensor = gpus.graph.bytes[reduced & (gpus.traffic == 0)]
    blocks, passes = 2, 2
    assert tensor.sum() == pytest.approx(64 // 2 * blocks * passes * pp_bytes(scenario.workload))  # GPUs of a stage
    with pytest.raises(InputError, match="collectives inside servers"):
        timed_iteration(gpus)
    with pytest.raises(InputError, match="ends must be server for contention where the NICs of a server are pooled"):
        timed_iteration(iteration_graph(scenario, "gpu"))
    with pytest.raises(InputError, match="replicas must be all, got 1"):
        iteration_graph(scenarios(tiny("fat-tree", sent={"dp": 2}))[0], collectives=True)
