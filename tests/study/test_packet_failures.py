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
EVEN = jnp.ones((16, 16))


def seconds(kind, *, rails=False, **group):
    hit = Hit(kind, 0, 4, 6, rails)
    return packets_left(Electrical(to_gbps(1.0), 8, **group), JOB, hit)


def test_ports_by_hand():
    # Every rank sends 8 bytes to the other server: 8 s over its own NIC.
    for kind, want, more in (
        ("server", 8, {}),
        ("nvswitch", 8, {}),
        ("electrical-nic", 16, {}),  # a peer's NIC carries both
        ("electrical-nic", 64 / 7, {"nic_use": "pooled"}),
        ("link", 16, {}),  # radix 4: one of two links up
        ("link", 48, {"oversubscription": 3.0}),
        ("switch", 8, {}),  # of a tree: spares take over
    ):
        left = seconds(kind, **more)
        np.testing.assert_allclose(left.carrier.seconds(EVEN), want, rtol=1e-6, err_msg=kind)
    rail = seconds("switch", rails=True)
    np.testing.assert_allclose(rail.carrier.seconds(EVEN), 16, rtol=1e-6)
    assert (rail.eps_left, seconds("nvswitch").nvlink_left) == (7 / 8, 5 / 6)
    # Its rank is on a spare server: what it sends to all 15 others leaves by the spare's NIC.
    np.testing.assert_allclose(seconds("gpu").carrier.seconds(EVEN), 15, rtol=1e-6)


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
