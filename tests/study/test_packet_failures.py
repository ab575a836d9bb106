"""Failures of fabrics whose links do not change, port by port."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import study
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.study._packet_failures import Hit, packets_left
from mfabric_jax.units import to_gbps
from mfabric_jax.workload import get
from tests.study.small import MODEL, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
JOB = get("llama-moe")  # TP 1: a rank is a GPU with a NIC of its own; 2 servers of 8
SLICED = get("mixtral-8x7b")  # TP 4: two ranks on each of 4 servers
EVEN = jnp.ones((16, 16))


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
    even = {"traffic": "generated", "skew": 0.0, "drift": 0.0, "micro_batches": 1}
    setting = small(nvswitch_gigabytes_per_s=10.0, nic_use=("pooled",), **even)  # NICs: 100 GB/s
    (row,) = study.failures(study.Failures(setting, kinds=("gpu",), fabrics=("fat-tree",)))
    assert row["tp_comm_s"] == pytest.approx(row["healthy_tp_comm_s"], rel=1e-9)
    assert row["slow_down"] >= -1e-9


def test_rows_of_packet_fabrics_and_of_direct_links():
    setting = small(micro_batches=1)
    config = study.Failures(setting, kinds=("electrical-nic", "server"), fabrics=("fat-tree",))
    nic, server = study.failures(config)
    assert (nic["fabric"], nic["failure"], nic["model"]) == ("fat-tree", "electrical-nic", MODEL)
    assert abs(server["slow_down"]) < 1e-9
    assert nic["slow_down"] > 0
    (link,) = study.failures(study.Failures(setting, kinds=("link", "gpu"), fabrics=("torus",)))
    assert link["failure"] == "link"
    assert link["slow_down"] > 0
    assert list(study.failures(config, start=1)) == [server]
