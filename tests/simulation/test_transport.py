"""What a transport takes and adds, in iterations and on whole clusters: every number by hand."""

import dataclasses
import json

import numpy as np
import pytest

from mfabric_jax import resolve, units
from mfabric_jax.cluster.whole_cluster import solve_cluster
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.network import network_of
from mfabric_jax.fabric.transport import Transport, get_transport
from mfabric_jax.routing.carried import under
from mfabric_jax.routing.electrical import spray_time
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.transfers import transfer
from mfabric_jax.schedule import rates_of
from mfabric_jax.schedule.exchange import acknowledged, with_acks
from tests.simulation.test_compare_fabrics import BALANCED, EXCHANGES, expert_seconds
from tests.small import row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")

OWN = Transport(
    name="own", payload_bytes=3000, header_bytes=1000, pacing=0.8, ack_bytes=400, startup_s=1e-4, store_and_forward=True
)
PAYLOAD, PACE, ACKS, PACKET = 0.75, 0.8, 0.1, 4000
LINE = units.gbps(100.0)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A file of its constants."""
    file = tmp_path_factory.mktemp("transport") / "own.json"
    file.write_text(json.dumps(dataclasses.asdict(OWN)))
    return {"network.transport": str(file)}


def one(fabric, changes=None):
    return row(small(BALANCED | {"network.fabric": fabric} | (changes or {})))


@pytest.mark.parametrize(("fabric", "links"), [("fat-tree", 6), ("mfabric", 6), ("topoopt", 1)])
def test_an_iteration_by_hand(fabric, links, own):
    plain, carried = one(fabric), one(fabric, own | {"network.link_delay_s": 1e-6})
    # A port down receives B bytes at its pace and as many acknowledgements as B bytes have: B (1 / pace + acks).
    slower = (1 / PACE + ACKS) / PAYLOAD
    way_s = links * 1e-6 + (links - 1) * PACKET / LINE + 1e-4
    all_to_alls = EXCHANGES * (expert_seconds()[fabric] / EXCHANGES * slower + way_s)
    np.testing.assert_allclose(carried["ep_comm_s"], all_to_alls, rtol=1e-9)
    # Rings between servers take their part alike; 44 steps; what is inside servers is as it was.
    between = np.diff([one(fabric, {"network.goodput": part})["dp_comm_s"] for part in (1.0, 0.5)])[
        0
    ]  # once more of it
    np.testing.assert_allclose(
        carried["dp_comm_s"] - plain["dp_comm_s"], between * (slower - 1) + 44 * way_s, rtol=1e-9
    )
    assert carried["tp_comm_s"] == plain["tp_comm_s"]


def test_sends_between_stages_have_their_direction_to_themselves(own):
    tree = {"network.fabric": "fat-tree"}
    plain, carried = (scenario(small(tree | changes)).rates(100.0) for changes in ({}, own))
    assert carried.send_Bps == pytest.approx(plain.send_Bps * PAYLOAD * PACE, rel=1e-12)
    assert carried.nic_Bps == pytest.approx(plain.nic_Bps * PAYLOAD * PACE, rel=1e-12)
    assert carried.eps_Bps == pytest.approx(plain.eps_Bps * PAYLOAD / (1 / PACE + ACKS), rel=1e-12)
    assert carried.latency_s == pytest.approx(5 * PACKET / LINE + 1e-4, rel=1e-12)
    as_it_was = rates_of(scenario(small(tree)).group, nvlink_Bps=plain.nvlink_Bps)
    assert plain == as_it_was._replace(memory_Bps=plain.memory_Bps)


def test_acknowledgements_of_uneven_all_to_alls_by_hand():
    # Two servers of one rank. Rank 0 sends 8 bytes and gets 2 back: over its port up 8 + 0.1 x 2, down 2 + 0.1 x 8.
    demand = np.array([[0.0, 8.0], [2.0, 0.0]])
    np.testing.assert_allclose(acknowledged(demand, 0.1), [[0, 8.2], [2.8, 0]], rtol=1e-12)
    assert acknowledged(demand, 0.0) is demand
    ports = Electrical(nic_gbps=units.to_gbps(1.0), nics=1)
    assert float(spray_time(ports, acknowledged(demand, 0.1), 1)) == pytest.approx(8.2, rel=1e-12)

    def parts(region, circuits, demand, turning=None):
        return demand, turning

    assert with_acks(parts, 0.0) is parts
    got, turning = with_acks(parts, 0.1)(None, None, demand, 7)
    assert (got[0, 1], turning) == (pytest.approx(8.2), 7)


def test_a_transport_decides_goodput():
    ndp, less = (
        resolve(small(changes)).settings for changes in ({"network.transport": "ndp"}, {"network.goodput": 0.9})
    )
    assert ndp.carried_by == get_transport("ndp")
    assert (ndp.goodput, less.goodput) == (1.0, 0.9)


# Two GPUs with a port each on one switch; the second is in a server of two GPUs.
UP, DOWN, INSIDE = ("nic up", "nic down", "nvswitch up")
NETWORK = network_of(
    [
        (UP, np.array([0, 1]), np.array([3, 3]), np.full(2, 100.0)),
        (DOWN, np.array([3, 3]), np.array([0, 1]), np.full(2, 100.0)),
        (INSIDE, np.array([2]), np.array([1]), np.array([1000.0])),
    ],
    (("gpu", 3), ("edge", 1)),
    0.5,
)


def test_links_of_a_network_by_hand():
    # 0 -> 1: 600 bytes over links 0 and 3; 1 -> 0: 300 over 1 and 2; 2 -> 1 inside: 500 over 4.
    routes = Routes(np.array([[0, 3], [1, 2], [4, -1]]), np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 0.0]]))
    size = np.array([600.0, 300.0, 500.0])
    network, waits_s = under(OWN, NETWORK, routes, size)
    up0, up1 = 600 + 0.1 * 300, 300 + 0.1 * 600
    down0, down1 = 300 / PACE + 0.1 * 600, 600 / PACE + 0.1 * 300
    line = 100 * PAYLOAD
    want = [line * 600 / up0, line * 300 / up1, line * 300 / down0, line * 600 / down1, 1000]
    np.testing.assert_allclose(network.capacity, want, rtol=1e-12)
    np.testing.assert_allclose(waits_s, [PACKET / 100 + 1e-4, PACKET / 100 + 1e-4, 0], rtol=1e-12)
    done = transfer(network, routes, size, dtype="float64")  # the busy port down of GPU 1 moves all it has to
    np.testing.assert_allclose(done.finish[0], 2 * 0.5 + down1 / line, rtol=1e-9)
    same, nothing = under(get_transport("none"), NETWORK, routes, size)
    assert same is NETWORK
    assert not nothing.any()


def test_a_whole_cluster_takes_longer(own):
    case = small({"network.fabric": "fat-tree", "job.parallel.gpus": 64}, "llama-moe")
    plain, carried = (solve_cluster(case.with_(changes)) for changes in ({}, own))
    ratio = carried.transfers.finish.max() / plain.transfers.finish.max()
    assert 1 / (PAYLOAD * PACE) - 0.1 < ratio < (1 / PACE + ACKS) / PAYLOAD + 0.1
    inside = plain.network.run("nvswitch up")
    np.testing.assert_array_equal(carried.network.capacity[inside], plain.network.capacity[inside])
