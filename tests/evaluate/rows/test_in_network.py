"""Rows of trainings whose switches reduce: gradients alone are shorter, by hand; costs; what changes nothing."""

import pytest

from mfabric_jax.case import Case
from mfabric_jax.case.network import InNetwork
from mfabric_jax.evaluate.resolving.resolve import resolve
from mfabric_jax.evaluate.resolving.set_up import reduction_words
from mfabric_jax.fabric import cluster_cost, cost_table
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.workload.volume import stage_params
from tests.small import JOB, row, small

SHARP = {"network.in-network.sharp": True}
SUMMED = JOB | {"job.sharding": "none", "job.overlap_gradients": False, "network.link_delay_s": 0.0}
SERVER_BPS = 8 * 12.5e9  # 8 NICs of 100 Gbps
TIMES = ("iteration_s", "compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s")


def both(changes, model="mixtral-8x7b"):
    return row(small(changes, model)), row(small(changes | SHARP, model))


def gradients_s(settings, server_Bps):
    """Seconds by rings and by switches between the 16 servers of the only stage: experts of a rank on 8 of them."""
    workload = resolve(small(settings)).job
    assert (workload.servers, workload.dp, workload.attention_tp, workload.ep) == (16, 8, 4, 4)
    params = stage_params(workload, 0)
    dense, experts = params.dense * workload.grad_bytes, 2 * params.expert * workload.grad_bytes
    ring = (2 * dense * 15 / 16 + 2 * experts * 7 / 8) / server_Bps
    return ring, (dense + experts) / server_Bps


@pytest.mark.parametrize(
    ("network", "nics"), [({"network.fabric": "fat-tree"}, 8), ({"network.fabric": "rail-only"}, 8), ({}, 2)]
)
def test_gradients_of_a_training_leave_a_server_once(network, nics):
    """mFabric gains most: its gradients have two NICs of eight."""
    settings = SUMMED | {"network.fabric": "mfabric"} | network
    ring, once = both(settings)
    by_ring, by_switches = gradients_s(settings, SERVER_BPS * nics / 8)
    assert ring["dp_comm_s"] - once["dp_comm_s"] == pytest.approx(by_ring - by_switches, rel=1e-6)
    assert ring["iteration_s"] - once["iteration_s"] == pytest.approx(by_ring - by_switches, rel=1e-6)
    assert [ring[name] for name in TIMES[1:4]] == [once[name] for name in TIMES[1:4]]  # all-to-alls and TP stay


def test_a_sharded_optimizer_gains_nothing_and_is_told():
    settings = JOB | {"network.fabric": "fat-tree", "job.sharding": "optimizer"}
    ring, once = both(settings)
    assert [ring[name] for name in TIMES] == [once[name] for name in TIMES]
    sentence = reduction_words(resolve(small(settings | SHARP)))
    assert sentence.startswith("mixtral-8x7b: network.in-network.sharp changes no time here: under job.sharding opt")
    assert reduction_words(resolve(small(SUMMED | {"network.fabric": "fat-tree"} | SHARP))) is None
    assert reduction_words(resolve(small(settings))) is None


def test_nvswitches_shorten_the_part_inside_servers():
    """H100: each of two GPUs that hold the same slices is too few for NVLS; eight, under tp 1, gain."""
    hopper = {"network.fabric": "fat-tree", "gpu.name": "H100-SXM", "gpu.nvlink_gigabytes_per_s": None}
    two = SUMMED | hopper
    eight = two | {"job.parallel.tp": 1, "job.parallel.etp": 1, "job.parallel.dp": 32}
    gained = []
    for settings in (two, eight):
        plain, nvls = row(small(settings)), row(small(settings | {"gpu.nvls": True}))
        gained.append(plain["dp_comm_s"] - nvls["dp_comm_s"])
    workload = resolve(small(eight)).job
    dense = stage_params(workload, 0).dense * workload.grad_bytes
    assert gained[0] == 0
    assert gained[1] == pytest.approx((2 * 7 / 8 - 9 / 8 / 0.836) * dense / 450e9, rel=1e-6)


# ----------------------------------------------------------------------------------------------------------------- cost
def test_ports_of_switches_that_reduce_cost_what_the_user_says():
    own, reducing = Prices(sharp_port=50), InNetwork(sharp=True)
    without = cluster_cost("fat-tree", 4, 400.0)
    assert cluster_cost("fat-tree", 4, 400.0, own) == without
    assert cluster_cost("fat-tree", 4, 400.0, in_network=reducing) == without  # no public price
    # 40 switch ports of a server on three tiers.
    assert cluster_cost("fat-tree", 4, 400.0, own, in_network=reducing) == without + 4 * 40 * 50
    last = cost_table("fat-tree", 400.0, own, in_network=reducing)[-1]
    assert list(last.values()) == ["switches that reduce", "sharp_port", 40, 50, 2000]
    assert cost_table("mfabric", 400.0, own, in_network=reducing)[-1]["count"] == 10  # of the tree alone


def test_off_by_default():
    assert not Case().network.in_network.sharp
    assert not Case().gpu.nvls
    job = resolve(small(JOB | {"network.fabric": "fat-tree"})).job
    assert (job.sharp, job.nvls) == (False, 0.0)
