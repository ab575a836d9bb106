"""Failures of fabrics whose links do not change, port by port."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import cases, resolve
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.region import Region
from mfabric_jax.failures import failures
from mfabric_jax.failures._failures import plans
from mfabric_jax.failures.packet_failures import Hit, packets_left
from mfabric_jax.policies import topoopt
from mfabric_jax.routing.fixed import wired
from mfabric_jax.units import to_gbps
from mfabric_jax.workload import get
from tests.mistakes import check_refused
from tests.small import MODEL, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
JOB = get("llama-moe")  # TP 1: a rank is a GPU with a NIC of its own; 2 servers of 8
SLICED = get("mixtral-8x7b")  # TP 4: two ranks on each of 4 servers
EVEN = jnp.ones((16, 16))
BALANCED = {"traffic.generated.skew": 0.0, "traffic.generated.drift": 0.0, "circuits.delay_s": 0.0}


def on(fabric, changes=None, model=MODEL, kinds=None):
    """A case of one micro-batch, and what fails in it."""
    given = {"network.fabric": fabric, "job.batch.micro_batches": 1} | (changes or {})
    return small(given | ({} if kinds is None else {"failures.kinds": kinds}), model)


def seconds(kind, *, rails=False, radix=4, job=JOB, **group):
    hit = Hit(kind, 0, radix, 6, rails)
    return packets_left(Electrical(to_gbps(1.0), 8, **group), job, hit)


def test_ports_by_hand():
    # Every rank sends 8 bytes to the other server: 8 s over its own NIC.
    for kind, want, more in (
        ("server", 8, {}),
        ("nvswitch", 8, {}),
        ("electrical-nic", 16, {}),  # a peer's NIC carries both
        ("electrical-nic", 64 / 7, {"nic_use": "pooled"}),
        ("link", 16, {}),  # radix 4: one of two links up
        ("link", 48, {"oversubscription": 3.0, "radix": 8}),  # two links up, six down
        ("switch", 8, {}),  # of a tree: spares take over
    ):
        left = seconds(kind, **more)
        np.testing.assert_allclose(left.carrier.seconds(EVEN), want, rtol=1e-6, err_msg=kind)
    rail = seconds("switch", rails=True)
    np.testing.assert_allclose(rail.carrier.seconds(EVEN), 16, rtol=1e-6)
    assert (rail.eps_left, seconds("nvswitch").nvlink_left) == (7 / 8, 5 / 6)


def test_a_gpu_that_is_moved_has_one_nic_of_the_spare_and_its_old_server_keeps_no_other_gpus_nic():
    # Its rank is on a spare server: what it sends to all 15 others leaves by the spare's NIC.
    np.testing.assert_allclose(seconds("gpu").carrier.seconds(EVEN), 15, rtol=1e-6)
    alone = EVEN * (jnp.arange(16) == 0)[:, None]  # with PXN by the NIC of every destination's rank: two each
    np.testing.assert_allclose(seconds("gpu", pxn=True).carrier.seconds(alone), 2, rtol=1e-6)
    np.testing.assert_allclose(seconds("gpu", pxn=True).carrier.seconds(EVEN), 15, rtol=1e-6)
    # TP 4: a quarter of a rank's bytes to 6 ranks elsewhere on every NIC, and to the one that was beside it.
    left, even = seconds("gpu", job=SLICED), jnp.ones((8, 8))
    np.testing.assert_allclose(seconds("server", job=SLICED).carrier.seconds(even), 6 / 4, rtol=1e-6)
    np.testing.assert_allclose(left.carrier.seconds(even), 7 / 4, rtol=1e-6)
    hot = even.at[0].set(4)  # the rank that is hit has most, and no more NICs than it had
    np.testing.assert_allclose(left.carrier.seconds(hot), 4 * 7 / 4, rtol=1e-6)
    np.testing.assert_allclose(seconds("electrical-nic", job=SLICED).carrier.seconds(even), 6 / 3, rtol=1e-6)
    # All-reduces among its slices: over one NIC of eight, behind an edge 3:1 also over one; pooled, over all.
    parts = [{}, {"oversubscription": 3.0}, {"nic_use": "pooled"}]
    assert [seconds("gpu", job=SLICED, **part).tp_on_eps for part in parts] == [1 / 8, 3 / 8, 1]
    assert seconds("gpu").tp_on_eps == 0


def test_all_reduces_are_no_faster_over_nics_than_on_the_nvlink():
    pooled = {"gpu.nvlink_gigabytes_per_s": 10.0, "network.nic_use": "pooled"}  # NICs: 100 GB/s
    (row,) = failures(on("fat-tree", BALANCED | pooled, kinds=["gpu"]))
    assert row["tp_comm_s"] == pytest.approx(row["healthy_tp_comm_s"], rel=1e-9)
    assert row["slow_down"] >= -1e-9


def test_rows_of_packet_fabrics_and_of_direct_links():
    config = on("fat-tree", kinds=["electrical-nic", "server"])
    nic, server = failures(config)
    assert (nic["fabric"], nic["failure"], nic["model"]) == ("fat-tree", "electrical-nic", MODEL)
    assert abs(server["slow_down"]) < 1e-9
    assert nic["slow_down"] > 0
    (link,) = failures(on("torus", kinds=["link"]))
    assert link["failure"] == "link"
    assert link["slow_down"] > 0
    (link,) = failures(on("oversub-fat-tree", kinds=["link"]))
    assert link["devices"] == 22 * 16  # 48 of 1,024 NICs under each edge switch, 16 links up
    assert list(failures(config, start=1)) == [server]


def test_the_healthy_cluster_is_that_of_compare():
    # Between stages TopoOpt has fewer NICs than gradients, and no acknowledgements take their part of them.
    case = on("topoopt", {"network.transport": "ndp"}, "llama-moe", kinds=["server"])
    (server,) = failures(case)
    compared = row(case)["iteration_s"]
    assert server["healthy_s"] == pytest.approx(compared, rel=1e-12)
    assert server["failed_s"] == pytest.approx(compared, rel=1e-9)  # a spare takes all circuits


def test_a_nic_of_a_patch_panel_is_wired_around_and_a_spare_takes_all_circuits():
    job = get("mixtral-8x7b")  # 4 servers
    demand = jnp.ones((4, 4)) * (1 - jnp.eye(4))
    whole = wired(DirectLinks(4, to_gbps(1.0), 4), topoopt(demand, Region(4, 1.0, 4)).circuits.count)
    kinds = ("gpu", "server", "optical-nic")
    left = {kind: packets_left(whole, job, Hit(kind, 0, 64, 6, demand=demand)) for kind in kinds}
    for kind in ("gpu", "server"):
        assert left[kind].carrier.group is whole
    before, after = (np.asarray(group.count) for group in (whole, left["optical-nic"].carrier.group))
    assert after[0].sum() == before[0].sum() - 1
    assert (after.sum(axis=1) <= 4).all()
    assert after[0, 1] >= 1  # its part of the ring


def test_kinds_that_a_fabric_lacks_are_said_and_those_that_none_has_are_refused():
    def asked(fabrics, kinds=None):
        given = {} if kinds is None else {"failures.kinds": kinds}
        return plans(cases(small(given, "llama-moe"), {"network.fabric": fabrics}))

    notes = [note for plan in asked(["fat-tree", "torus", "mfabric"]) for note in plan.notes]
    assert notes[0] == (
        "fat-tree has no failure electrical-nics (its servers have no other network that could relay); "
        "optical-nic, optical-switch, controller (it has no optical switch)."
    )
    assert notes[1].startswith(
        "torus has no failure electrical-nic, electrical-nics, switch (it has no packet switches)"
    )
    assert "gpu, server (no spare is wired to the neighbours" in notes[1]
    assert notes[2] == "mfabric has no failure switch (of its packet switches a link is modelled, no whole switch)."
    assert [plan.notes for plan in asked(["fat-tree", "mfabric"], ["link", "nvswitch"])] == [[], []]
    for kinds, fabrics, said in (
        (["optical-switch"], ["fat-tree", "torus"], "'optical-switch' is on none of the fabrics .fat-tree: it has no"),
        (["link", "gpu"], ["torus"], "'gpu' is on none of the fabrics .torus: no spare is wired"),
        (["electrical-nics"], ["mfabric-cpo"], "'electrical-nics' is on none .*no circuit leads to a server"),
    ):
        check_refused(said, asked, fabrics, kinds)
    check_refused("server must be below the 1 servers of a region", plans, on("nvl72", {"failures.server": 1}))
    check_refused("nvswitches must be at least 2", plans, on("fat-tree", {"gpu.nvswitches": 1}))


def test_scale_up_domains_by_hand():
    # The 16 GPUs of a group share a domain of 64. Even traffic of b a pair: 15 b on the NVLink, until one GPU is on a
    # spare, which has one NIC for 15 b. Stage 0 ends last: what its 2 x 2 all-to-alls a block take longer, all do.
    job = resolve(on("nvl72", BALANCED, "llama-moe")).job
    pair_bytes = job.selections * job.dispatch_bytes_per_selection / job.ep
    for fabric, nvlink in (("nvl72", 1e12 - 12.5e9), ("mfabric-cpo", (1e12 - 12.5e9) / 2)):
        kinds = ["electrical-nic", "gpu", "server", "nvswitch"]
        nic, gpu, server, nvswitch = failures(on(fabric, BALANCED | {"failures.stage": 0}, "llama-moe", kinds=kinds))
        inside_s, all_to_alls = 15 * pair_bytes / nvlink, 4 * job.moe_layers / job.pp
        assert gpu["healthy_ep_comm_s"] == pytest.approx(all_to_alls * inside_s)
        longer_s = all_to_alls * (15 * pair_bytes / 12.5e9 - inside_s)
        assert gpu["failed_s"] - gpu["healthy_s"] == pytest.approx(longer_s, rel=1e-6)
        assert nvswitch["failed_s"] - nvswitch["healthy_s"] == pytest.approx(all_to_alls * inside_s / 17, rel=1e-5)
        assert server["slow_down"] == pytest.approx(0, abs=1e-9)
        longer_s = nic["failed_s"] - nic["healthy_s"]  # gradients and sends alone: 64 NICs, then 63
        assert 0 < longer_s < 0.05 * nic["healthy_s"]
        assert nic["ep_comm_s"] == pytest.approx(nic["healthy_ep_comm_s"])
        assert (nic["devices"], gpu["spare_usd"], gpu["spare_part_usd"]) == (job.gpus, None, 15000)
