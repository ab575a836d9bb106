"""Every fabric on one small job: all-to-alls, gradients and dollars by hand, its settings, the authors' baselines."""

import dataclasses
import json

import numpy as np
import pytest

from mfabric_jax import load, resolve, simulate, units
from mfabric_jax.case import cases
from mfabric_jax.case.network import NAMES as EVERY
from mfabric_jax.evaluate.links import with_acks
from mfabric_jax.evaluate.rows.points import DRAWN_AGAIN
from mfabric_jax.evaluate.whole_cluster import solve_cluster
from mfabric_jax.fabric import Prices, Region, cluster_cost
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.network import network_of
from mfabric_jax.fabric.transport import Transport, get_transport
from mfabric_jax.policies import topoopt
from mfabric_jax.policies.wirings import Sent, bytes_sent, rings_of
from mfabric_jax.routing.fixed import single_part_times, spray_time
from mfabric_jax.routing.shortest import Routes
from mfabric_jax.routing.transfers import transfer, under
from mfabric_jax.timing import rates_of
from mfabric_jax.workload.volume import replica_bytes
from tests.small import JOB, MODEL, row, rows, scenario, several, small

NAMES = (
    "fat-tree",
    "oversub-fat-tree",
    "rail-optimized",
    "rail-only",
    "topoopt",
    "mfabric",
    "nvl72",
    "mfabric-cpo",
    "torus",
)

pytestmark = pytest.mark.usefixtures("as_users_have_it")

EVEN = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0}

BALANCED = JOB | EVEN

SCALE_UP = ("nvl72", "mfabric-cpo")

NIC = 12.5e9  # bytes/s

EXCHANGES = 32 * 4  # blocks; dispatch and combine, forward and backward


def balanced(fabrics=NAMES, changes=None, model=MODEL):
    return several(BALANCED | (changes or {}), {"network.fabric": tuple(fabrics)}, model)


def table(asked):
    return {one["fabric"]: one for one in rows(asked)}


def column(asked, name):
    return {one["fabric"]: one[name] for one in rows(asked)}


def assert_columns(got, want):
    assert got.keys() == want.keys()
    for fabric, value in want.items():
        np.testing.assert_allclose(got[fabric], value, rtol=1e-6, err_msg=fabric)


def sent():
    """Bytes of one dispatch of a rank."""
    job = resolve(small(BALANCED)).job
    return job.selections * job.dispatch_bytes_per_selection


def expert_seconds(goodput=1.0, nics=8):
    """Half of a rank's bytes leave its server, a quarter stays there beside what stays on the rank. A rank has four of
    eight NICs or GPUs. Six circuits join the two servers on mFabric, seven on TopoOpt, whose ring leads to the next
    group by the eighth NIC. NVLinks carry all of it in a domain."""
    tree = EXCHANGES * sent() / 2 / (nics / 2 * NIC * goodput)
    domain = EXCHANGES * sent() * 3 / 4 / (4 * (1000e9 - NIC))
    return {
        "fat-tree": tree,
        "oversub-fat-tree": 3 * tree,
        "rail-optimized": tree,
        "rail-only": tree,
        "topoopt": EXCHANGES * sent() / ((nics - 1) * NIC * goodput),
        "mfabric": EXCHANGES * sent() / (6 * NIC * goodput),
        "nvl72": domain,
        "mfabric-cpo": 2 * domain,
        "torus": EXCHANGES * sent() / (2 * NIC * goodput),  # both directions of x join the two servers
    }


def test_a_row_for_each_fabric():
    got = table(several(JOB, {"network.fabric": NAMES}))
    assert tuple(got) == NAMES
    for name, one in got.items():
        own = {field: value for field, value in one.items() if not field.startswith("flow_")}  # no bytes may leave
        times = [value for field, value in own.items() if field.endswith("_s")]
        assert np.all(np.isfinite(times)), name
        assert min(times) > -1e-12, name
        parts = one["compute_s"] + one["exposed_comm_s"] + one["reconfig_s"] + one["bubble_s"]
        np.testing.assert_allclose(parts, one["iteration_s"], rtol=1e-9)
        assert (one["gpus"], one["nic_gbps"]) == (128, 100.0)
        kind = name if name in SETTINGS else "mfabric" if "mfabric" in name else "packets"
        assert (one["nic_use"], one["policy"], one["routing"]) == SETTINGS[kind]
        np.testing.assert_allclose(one["compute_s"], got["fat-tree"]["compute_s"], rtol=1e-12)
        assert one["ep_comm_s"] > 0
    assert got["rail-optimized"] | {"fabric": "fat-tree"} == got["fat-tree"]
    # Rank 0's rail is loaded with what all have for it: not what leaves rank 0.
    assert abs(got["rail-only"]["ep_comm_s"] / got["fat-tree"]["ep_comm_s"] - 1) > 1e-4


SETTINGS = {
    "packets": ("own", "none", "spraying"),
    "topoopt": ("pooled", "topoopt", "forwarding"),
    "torus": ("pooled", "none", "dimension-order"),
    "mfabric": ("pooled", "greedy", "unsplit"),
}


def test_all_to_alls_and_all_reduces_by_hand():
    assert_columns(column(balanced(), "ep_comm_s"), expert_seconds())
    # 2 x 3/4 of the activations, forward and backward, at 900 GB/s, 987.5 GB/s or half of that.
    size = 32 * 2 * 1.5 * resolve(small(BALANCED)).job.tokens * 4096 * 2
    rate = dict.fromkeys(NAMES, 900e9) | {"nvl72": 987.5e9, "mfabric-cpo": 987.5e9 / 2}
    assert_columns(column(balanced(), "tp_comm_s"), {name: size / rate[name] for name in NAMES})


def test_gradients_by_hand():
    # Dense ones go around 16 servers (2 domains), after 2 ranks of a server (16) have reduced a quarter each; those of
    # experts around the 8 servers (2 domains) of their replicas, two ranks of a server (16, of 4 replicas each).
    dense, expert, _ = replica_bytes(resolve(small(BALANCED)).job, 0)

    def ring(size, members):
        return 2 * size * (members - 1) / members

    def seconds(external, nvswitch=900e9):
        return (ring(dense, 16) + ring(2 * expert, 8)) / external + ring(dense / 4, 2) / nvswitch

    def domains(nvswitch):
        between = ring(dense, 2) + ring(4 * expert, 2)
        return between / (64 * NIC) + (ring(dense / 4, 16) + ring(expert / 4, 4)) / nvswitch

    want = dict.fromkeys(("fat-tree", "rail-optimized", "rail-only"), seconds(8 * NIC))
    want |= dict.fromkeys(("topoopt", "mfabric", "torus"), seconds(2 * NIC))
    want |= {"oversub-fat-tree": seconds(8 / 3 * NIC), "nvl72": domains(987.5e9), "mfabric-cpo": domains(987.5e9 / 2)}
    assert_columns(column(balanced(), "dp_comm_s"), want)


def test_dollars_are_those_of_the_cluster(tmp_path):
    # By hand in tests/fabric/test_cost.py.
    file = tmp_path / "prices.toml"
    file.write_text("ocs_port = 20\nscale_up_per_gpu = 1000\n")
    own = Prices(ocs_port=20, scale_up_per_gpu=1000)
    for changes, given in (
        ({}, {}),
        ({"network.tiers": 2}, {"tiers": 2}),
        ({"network.prices": str(file)}, {"prices": own}),
    ):
        asked = balanced(changes=changes)
        for name, one in table(asked).items():
            shape = {"shape": (2, 1, 8)} if name == "torus" else {}
            want = cluster_cost(name, 2 if name in SCALE_UP else 16, 100, **given, **shape)
            assert (want is None) == (name == "mfabric-cpo" or (name == "nvl72" and "prices" not in given))
            if want is None:
                assert (one["network_cost_usd"], one["perf_per_dollar"]) == (None, None)
            else:
                np.testing.assert_allclose(one["network_cost_usd"], want, rtol=1e-12)
                np.testing.assert_allclose(one["perf_per_dollar"], 1 / (one["iteration_s"] * want), rtol=1e-9)
        assert_columns(column(asked, "iteration_s"), column(balanced(), "iteration_s"))


def test_goodput_scales_what_is_on_the_wire():
    full, half = table(balanced()), table(balanced(changes={"network.goodput": 0.5}))
    assert_columns({name: one["ep_comm_s"] for name, one in half.items()}, expert_seconds(goodput=0.5))
    for name in NAMES:
        np.testing.assert_allclose(half[name]["tp_comm_s"], full[name]["tp_comm_s"], rtol=1e-12)
        assert half[name]["dp_comm_s"] > 1.1 * full[name]["dp_comm_s"]
    dense = half["topoopt"]["dp_comm_s"] - full["topoopt"]["dp_comm_s"]  # what is inside takes as long as before
    on_tree = half["fat-tree"]["dp_comm_s"] - full["fat-tree"]["dp_comm_s"]
    np.testing.assert_allclose(dense / on_tree, 4, rtol=1e-9)  # 2 of 8 NICs


def test_a_delay_of_links():
    # Every all-to-all that leaves its server, and every step of the rings: 2 x 15 and 2 x 7 (2 x 1 of two domains).
    for tiers in (2, 3):
        still, late = (
            table(balanced(changes={"network.tiers": tiers, "network.link_delay_s": delay_s})) for delay_s in (0, 0.001)
        )
        links = dict.fromkeys(NAMES, 2 * tiers) | {"rail-only": 2, "topoopt": 1, "torus": 1}
        for name in NAMES:
            within, steps = name in SCALE_UP, 4 if name in SCALE_UP else 44
            later = [late[name][field] - still[name][field] for field in ("ep_comm_s", "dp_comm_s", "iteration_s")]
            ep, dp = 0.001 * links[name] * (0 if within else EXCHANGES), 0.001 * links[name] * steps
            np.testing.assert_allclose(later, [ep, dp, ep + dp], rtol=1e-6, atol=1e-9, err_msg=name)


def test_pooled_nics_of_a_server():
    names = ("fat-tree", "rail-optimized", "topoopt", "mfabric", "nvl72")
    few = {"network.nics": 4, "network.nic_use": "pooled"}
    four, eight = table(balanced(names, few)), table(balanced())
    want = expert_seconds(nics=4) | {"nvl72": expert_seconds()["nvl72"]}
    want["mfabric"] = 2 * expert_seconds()["mfabric"]  # three of four NICs on the switch, in place of six of eight
    assert_columns({name: four[name]["ep_comm_s"] for name in names}, {name: want[name] for name in names})
    for name in names:
        assert four[name]["nic_use"] == ("own" if name == "nvl72" else "pooled")
        if name != "nvl72":
            half = four[name]["network_cost_usd"] / eight[name]["network_cost_usd"]
            assert half == pytest.approx(0.5, rel=1e-12)


def test_pxn_puts_rail_optimized_on_the_rails():
    names, late = ("fat-tree", "rail-optimized", "rail-only"), JOB | {"network.link_delay_s": 0.001}
    plain, pxn = (
        table(several(late | {"network.rail-optimized.pxn": use}, {"network.fabric": names})) for use in (False, True)
    )
    assert pxn["rail-only"] == plain["rail-only"]
    assert pxn["fat-tree"] == plain["fat-tree"]
    for field in ("ep_comm_s", "dp_comm_s", "iteration_s"):
        assert pxn["rail-optimized"][field] == pxn["rail-only"][field]
        assert plain["rail-optimized"][field] == plain["fat-tree"][field]
    assert pxn["rail-optimized"]["ep_comm_s"] < plain["rail-optimized"]["ep_comm_s"] - 0.9 * EXCHANGES * 4 * 0.001
    assert pxn["rail-optimized"]["network_cost_usd"] == plain["rail-optimized"]["network_cost_usd"]


def test_own_nics_take_longer_than_pooled_ones_and_cost_as_much():
    own, pooled = (
        row(small(JOB | {"network.fabric": "fat-tree", "network.nic_use": use})) for use in ("own", "pooled")
    )
    assert (own["nic_use"], pooled["nic_use"]) == ("own", "pooled")
    assert own["ep_comm_s"] > pooled["ep_comm_s"]
    assert own["network_cost_usd"] == pooled["network_cost_usd"]
    # NICs of a server do not bind a scale-up domain.
    assert scenario(small({"network.fabric": "nvl72", "network.nics": 4})).group.nics == 64


def test_bandwidth_of_a_gpu():
    # 4 Tbps: 500 GB/s less the NIC's 12.5; of that, 19 ports of 100 Gbps are optical, half of it is NVLink.
    narrow = {"network.gpu_tbps": 4.0}
    domain = EXCHANGES * sent() * 3 / 4 / (4 * 487.5e9)
    assert_columns(column(balanced(SCALE_UP, narrow), "ep_comm_s"), {"nvl72": domain, "mfabric-cpo": 2 * domain})
    one = scenario(small(BALANCED | narrow | {"network.fabric": "mfabric-cpo"}))
    assert (one.group.optical_degree, one.group.electrical_nics) == (19 * 64, 64)
    # Ports are whole. Half of 7,900, 7,600 and 7,200 Gbps: 39, 9 and 4; a row for each NIC.
    bandwidths = (100.0, 400.0, 800.0)
    asked = cases(small(BALANCED | {"network.fabric": "mfabric-cpo"}), {"network.nic_gbps": bandwidths})
    each = [scenario(case).group for case in asked]
    assert [one.optical_degree for one in each] == [39 * 64, 9 * 64, 4 * 64]
    found = simulate(asked).rows()
    assert [one["nic_gbps"] for one in found] == [100.0, 400.0, 800.0]
    for one in found:
        inside = EXCHANGES * sent() * 3 / 4 / (4 * (8000 - one["nic_gbps"]) / 16 * 1e9)
        np.testing.assert_allclose(one["ep_comm_s"], inside, rtol=1e-6)


def test_circuits_between_domains():
    # 16 ranks of 8 GPUs, 8 in each of two domains. A rank's sixteenth goes to each rank: 7 of them inside, where what
    # comes over circuits is scattered, too; 8 x 8 cross 39 x 64 circuits.
    degrees = {f"job.parallel.{name}": degree for name, degree in (("tp", 8), ("dp", 1), ("ep", 16))}
    asked = small(BALANCED | degrees | {"network.fabric": "mfabric-cpo"}, "llama-moe")
    job = resolve(asked).job
    part = job.selections * job.dispatch_bytes_per_selection / 16
    one = max(64 * part / (39 * 64 * NIC), 2 * 7 * part / (8 * 987.5e9 / 2))
    np.testing.assert_allclose(row(asked)["ep_comm_s"], EXCHANGES * one, rtol=1e-6)
    # With a goodput of a quarter the circuits are the slower part.
    slow = asked.with_({"network.goodput": 0.25})
    np.testing.assert_allclose(row(slow)["ep_comm_s"], EXCHANGES * 4 * 64 * part / (39 * 64 * NIC), rtol=1e-6)


def test_topoopt_is_wired_for_the_mean_traffic():
    degrees = {f"job.parallel.{name}": degree for name, degree in (("dp", 2), ("pp", 2), ("ep", 8))}
    one = scenario(small(JOB | degrees | {"network.fabric": "topoopt"}))
    tokens = np.asarray(one.tokens.count, float).mean(axis=(0, 1, 2))
    per_server = tokens.reshape(4, 2, 4, 2).sum(axis=(1, 3))
    want = topoopt(per_server * (1 - np.eye(4)), Region(4, 100.0, 7)).circuits.count  # one of 8 NICs leads on
    np.testing.assert_array_equal(one.group.mesh.count, want)
    assert (one.group.nics, one.group.ring_nics) == (7, 2)


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
    assert plain == as_it_was._replace(memory_Bps=plain.memory_Bps, inside_Bps=plain.nvlink_Bps)


def test_acknowledgements_of_uneven_all_to_alls_by_hand():
    # Two servers of one rank. Rank 0 sends 8 bytes and gets 2 back: over its port up 8 + 0.1 x 2, down 2 + 0.1 x 8.
    demand = np.array([[0.0, 8.0], [2.0, 0.0]])
    np.testing.assert_allclose(with_acks(demand, 0.1), [[0, 8.2], [2.8, 0]], rtol=1e-12)
    assert with_acks(demand, 0.0) is demand
    ports = Electrical(nic_gbps=units.to_gbps(1.0), nics=1)
    assert float(spray_time(ports, with_acks(demand, 0.1), 1)) == pytest.approx(8.2, rel=1e-12)


def test_a_transport_decides_goodput():
    ndp, less = (resolve(small(changes)) for changes in ({"network.transport": "ndp"}, {"network.goodput": 0.9}))
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


ECMP = {"network.paths": "ecmp", "network.radix": 16}
SINGLE = ECMP | {"traffic.source": "authors", "traffic.alike": "everything"}


def on_fabric(model, fabric, changes):
    return scenario(small({"network.fabric": fabric, "traffic.drawn": 1} | changes, model))


def test_groups_at_one_rail_switch_are_busy_together():
    # 8 servers at a rail switch: 4 groups of llama-moe's 2 servers, 2 of mixtral-8x7b's 4; one server under each edge
    # switch of a fat-tree, so a group meets nobody there.
    for model, groups in (("llama-moe", 4), ("mixtral-8x7b", 2)):
        found = [
            on_fabric(model, fabric, SINGLE | {"network.ecmp.busy": busy}).carry.groups
            for fabric in ("rail-optimized", "fat-tree")
            for busy in ("cluster", "group")
        ]
        assert found == [groups, 1, 1, 1]
    wide = SINGLE | {"network.ecmp.busy": "cluster", "network.radix": 32}
    assert on_fabric("llama-moe", "rail-optimized", wide).carry.groups == 8


def test_switches_grow_until_the_cluster_fits():
    large = ECMP | {"network.ecmp.busy": "cluster", "network.nic_gbps": 400.0, "traffic.knobs": "balanced"}
    large |= {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("ep", 8), ("pp", 16), ("dp", 16))}
    one = on_fabric("deepseek-v3", "fat-tree", large)
    assert one.carry.groups == 1  # 2,048 GPUs: radix 32


def test_circuits_that_are_one_queue_spread():
    single, pooled = ({"network.paths": "ecmp", "network.ecmp.circuits": how} for how in ("single", "pooled"))
    for paths, spreads in ((pooled, True), (single, False), ({"network.paths": "spray"}, True)):
        one = on_fabric("llama-moe", "mfabric", paths)
        assert (one.carry is None) == spreads


def test_one_copy_a_server_is_a_flow_from_each_rank():
    # To the rank at its own place: llama-moe has 8 ranks a server, mixtral-8x7b 2 of 4 GPUs.
    for model, dispatch, flows in (
        ("llama-moe", "per-expert", 64),
        ("llama-moe", "per-server", 8),
        ("mixtral-8x7b", "per-expert", 16),
        ("mixtral-8x7b", "per-server", 8),
    ):
        one = on_fabric(model, "mfabric", ECMP | {"job.dispatch": dispatch})
        assert one.carry is single_part_times(flows, 2, seed=0)  # drawn once for as many


def test_rings_over_the_stage():
    rings = SINGLE | {"network.topoopt.wiring": "rings"}
    one = on_fabric("mixtral-8x7b", "topoopt", rings)  # 32 servers a stage, 8 groups of 4
    count = one.group.mesh.count
    np.testing.assert_array_equal(np.flatnonzero(count[0]), [1, 3, 5, 27, 29, 31])
    assert (count.max(), one.group.groups, one.group.ring_nics) == (1, 8, 6)
    assert one.carry.groups == 8
    inside = {f"job.parallel.{name}": degree for name, degree in (("tp", 1), ("ep", 4), ("dp", 8), ("pp", 1))}
    alone = on_fabric("llama-moe", "topoopt", rings | inside)
    assert alone.carry.time(alone.group, np.ones((4, 4))) == 0  # a group inside a server


def test_rings_and_matchings_share_the_nics_by_bytes():
    assert [rings_of(6, Sent(*sent)) for sent in ((1, 99), (1, 2), (34, 66), (2, 1), (99, 1), (0, 1), (0, 0))] == [
        1, 1, 2, 2, 3, 1, 1,
    ]  # fmt: off
    one = on_fabric("mixtral-8x7b", "topoopt", SINGLE | {"network.topoopt.wiring": "totient-perms"})
    job, demand = one.workload, np.asarray(one.mean_demand, float)
    # By hand: 4 all-to-alls of 8 blocks a stage, 2 micro-batches; what the four servers send each other.
    away = (demand.sum() - np.trace(demand)) / 4
    np.testing.assert_allclose(bytes_sent(job, demand).all_to_alls, away * 4 * 8 * 2, rtol=1e-12)
    # Gradients of a stage around 32 servers, those of a server's 2 experts around 8 replicas.
    model = job.architecture
    dense, expert = 8 * (model.attention_params + model.gate_params) * 2, 8 * 2 * model.expert_params * 2
    np.testing.assert_allclose(bytes_sent(job, demand).gradients, 2 * dense * 31 / 32 + 2 * expert * 7 / 8, rtol=1e-6)
    # Weights of 2 bytes gathered for two micro-batches, forward and backward, and gradients scattered: thrice as much.
    # Blocks computed again send their forward all-to-alls again.
    again = dataclasses.replace(job, sharding="parameters", recompute="block")
    np.testing.assert_allclose(bytes_sent(again, demand).gradients, 3 * bytes_sent(job, demand).gradients, rtol=1e-12)
    np.testing.assert_allclose(bytes_sent(again, demand).all_to_alls, away * 6 * 8 * 2, rtol=1e-12)
    rings = rings_of(6, bytes_sent(job, demand))
    count = one.group.mesh.count
    assert (count.sum(axis=1) <= 6).all()
    assert one.group.ring_nics == 2 * rings
    assert count.sum() > 32 * 2 * rings  # and matchings, inside the groups alone
    assert one.group.groups == 8


def test_released_is_these_settings():
    case = load(preset="released", changes={"model.name": "llama-moe", "network.fabric": "topoopt"})
    paths = case.network.paths
    assert (paths.name, paths.busy, paths.circuits, case.network.radix) == ("ecmp", "cluster", "pooled", 16)
    assert (case.network.topoopt.wiring, case.traffic.alike) == ("rings", "everything")
    assert (case.circuits.policy, case.circuits.reconfigure.name) == ("greedy-released", "on-demand")
    assert resolve(case).rules.eps_waits


def test_two_neighbours_on_rings_have_one_circuit():
    # llama-moe's groups are two servers: of the rings only step 1 joins them, and nothing is forwarded. A rank sends
    # half of its 8 x 4096 tokens to the other server, 8 ranks share one NIC of 100 Gbps.
    even = {"network.fabric": "topoopt", "traffic.knobs": "balanced", "traffic.drawn": 1}
    case = small(even, "llama-moe", "released")
    one, job = row(case), resolve(case).job
    seconds = 8 * job.selections / 2 * job.dispatch_bytes_per_selection / 12.5e9
    blocks = job.moe_layers / job.pp
    np.testing.assert_allclose(one["ep_comm_s"] / (4 * blocks * 2), seconds, rtol=0.01)


@pytest.mark.parametrize(
    "fabric", [pytest.param(one, marks=pytest.mark.slow) if "valiant" in one else one for one in EVERY]
)
def test_many_cases_of_a_fabric_have_the_times_of_each_alone(fabric):
    case, bandwidths = small({"network.fabric": fabric}), (100.0, 400.0)
    delays = [1e-6 * at for at in range(1 + DRAWN_AGAIN // 2)]
    many = simulate(cases(case, {"network.link_delay_s": delays, "network.nic_gbps": bandwidths})).rows()
    assert len(many) > DRAWN_AGAIN
    for at in (3, 16):
        alone = row(case.with_({"network.link_delay_s": delays[at // 2], "network.nic_gbps": bandwidths[at % 2]}))
        for name in ("iteration_s", "ep_comm_s", "exposed_comm_s", "dp_comm_s", "tp_comm_s", "reconfig_s"):
            assert many[at][name] == pytest.approx(alone[name], rel=1e-9, abs=1e-12), name
