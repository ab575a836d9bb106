"""Bytes of all-reduces that switches compute, by hand, and beside public measurements of NVLS."""

import dataclasses

import pytest

from mfabric_jax.support.rings import nvls_bytes, reduced_bytes, ring_bytes
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.gpus import GPUS
from mfabric_jax.workload.kernels import shares_of
from mfabric_jax.workload.measured_kernels import all_reduce_s, by_size, measured_kernels, with_nvls
from mfabric_jax.workload.volume import nvls_gain, replica_bytes, replica_ring
from tests.timing.jobs import job

GB = 1e9
HERE = {"gpus_per_server": 8}


def test_a_gigabyte_among_64():
    # 1 GB over NICs of 50 GB/s: a ring sends 2 x 63/64 GB in 39.375 ms, switches that add up take 1 GB in 20 ms.
    assert ring_bytes(GB, 64) / 50e9 == pytest.approx(39.375e-3, rel=1e-12)
    assert reduced_bytes(GB, 64) / 50e9 == pytest.approx(20e-3, rel=1e-12)
    # By NVLS a GPU of 8 sends and receives 9/8 of the message.
    assert nvls_bytes(GB, 8) == pytest.approx(1.125 * GB, rel=1e-12)
    for alone in (reduced_bytes, nvls_bytes, ring_bytes):
        assert alone(GB, 1) == 0


def test_gradients_leave_a_server_once():
    # tp 4, ep 4, dp 4, one stage: 64 GPUs on 8 servers. Dense gradients are equal on all 8; experts of a rank have
    # replicas on 4 servers: 8 GPUs of a server hold 2 ranks' experts, each of them once.
    plain = job(tp=4, ep=4, dp=4, **HERE)
    size = replica_bytes(plain, 0, last=True)
    ring = replica_ring(plain, size.dense, size.expert)
    assert ring.between == pytest.approx(2 * size.dense * 7 / 8 + 2 * 2 * size.expert * 3 / 4, rel=1e-12)
    assert ring.steps == 14 + 6
    once = replica_ring(dataclasses.replace(plain, sharp=True), size.dense, size.expert)
    assert once.between == pytest.approx(size.dense + 2 * size.expert, rel=1e-12)
    assert (once.steps, once.inside) == (2, ring.inside)


def test_two_servers_gain_latency_alone():
    plain = job(tp=4, ep=4, dp=1, **HERE)  # 16 GPUs on 2 servers
    size = replica_bytes(plain, 0, last=True)
    ring, once = (replica_ring(each, size.dense, 0.0) for each in (plain, dataclasses.replace(plain, sharp=True)))
    assert once.between == ring.between == pytest.approx(size.dense, rel=1e-12)
    assert (ring.steps, once.steps) == (2, 1)


def test_one_server_reduces_nothing_outside():
    plain = job(tp=4, ep=2, dp=1, experts=2, sharp=True, **HERE)
    assert replica_ring(plain, GB, 0.0)._replace(inside=0) == (0, 0, 0)


@pytest.mark.parametrize("sharding", ["optimizer", "gradients", "parameters"])
def test_a_reduce_scatter_and_an_all_gather_keep_their_rings(sharding):
    plain = job(tp=4, ep=4, dp=4, sharding=sharding, **HERE)
    by_switches = dataclasses.replace(plain, sharp=True, nvls=0.836)
    assert replica_ring(by_switches, GB, GB) == replica_ring(plain, GB, GB)


def test_copies_of_experts_are_added_up_on_the_way():
    # 4 experts and 4 copies in a group: each slot sends its gradients once, where rings of copies are longer.
    plain = job(tp=4, ep=4, dp=4, redundant_experts=4, sharp=True, **HERE)
    held = 2 * GB  # two ranks of a server
    assert replica_ring(plain, 0.0, GB).between == pytest.approx(held, rel=1e-12)
    ring = replica_ring(dataclasses.replace(plain, sharp=False), 0.0, GB).between
    assert ring > 2 * held * 3 / 4


def test_nvls_inside_servers():
    # 2 slices of attention's 4 GPUs: members are 2 of a server, too few for NVLS. With tp 1 they are 8.
    few, many = (job(tp=tp, ep=8, dp=8 // tp, experts=8, nvls=0.836, **HERE) for tp in (4, 1))
    assert replica_ring(few, GB, 0.0).inside == pytest.approx(GB / 4, rel=1e-12)
    assert replica_ring(many, GB, 0.0).inside == pytest.approx(9 / 8 * GB / 0.836, rel=1e-12)


# ------------------------------------------------------------------------------------------------ public measurements
H100_RING = 370.0  # bus bandwidth by rings [GB/s]: NVIDIA/nccl issue 2140
MEASURED = {5: 420, 6: 440, 7: 460, 8: 480}  # by NVLS, GPUs: bus bandwidth [GB/s], NVIDIA/nccl issue 1455


@pytest.mark.parametrize(("gpus", "bus"), MEASURED.items())
def test_the_part_of_eight_gpus_predicts_fewer(gpus, bus):
    """`nvls_over_ring` comes from 8 GPUs alone."""
    assert nvls_gain(GPUS["H100-SXM"].nvls_over_ring, gpus) * H100_RING == pytest.approx(bus, rel=0.02)


def test_up_to_four_gpus_nvls_is_no_faster_than_a_ring():
    """Issue 1455 measured 365 to 370 GB/s with 2 to 4 GPUs, what a ring has."""
    assert [nvls_gain(0.836, gpus) for gpus in (1, 2, 3)] == [1, 1, 1]
    assert nvls_gain(0.836, 4) == pytest.approx(1.0, abs=0.005)


def test_b300():
    assert nvls_gain(GPUS["B300-HGX"].nvls_over_ring, 8) * 695 == pytest.approx(845, rel=0.005)  # issue 2140


def test_measured_all_reduces_of_hopper_contain_nvls():
    """Bus bandwidth above the line rate of 450 GB/s: no ring reaches it."""
    for name in ("H100-SXM", "H200-SXM"):
        seconds = all_reduce_s(measured_kernels(get_gpu(name)), 8, 2**30)
        assert 2**30 / seconds * 2 * 7 / 8 > get_gpu(name).nvlink


def test_which_gpus_have_it():
    assert {name for name, gpu in GPUS.items() if gpu.nvls_over_ring is None} == {"A100-80GB-SXM", "MI300X", "MI355X"}
    assert not any(gpu.nvls for gpu in GPUS.values())


# ------------------------------------------------------------------------------------------------------ TP collectives
def test_tp_all_reduces_that_were_not_measured_gain():
    shares = shares_of(1, "nccl")
    plain = job(tp=8, ep=4, sequence_parallel=False, **HERE)
    faster = dataclasses.replace(plain, nvls=0.836)
    # 8 GPUs: a ring sends 2 x 7/8, NVLS 9/8 at 0.836 of the bandwidth.
    assert with_nvls(shares, faster).tp_nvlink == pytest.approx(shares.tp_nvlink * 1.75 / (1.125 / 0.836), rel=1e-12)
    assert by_size(shares, faster, get_gpu("H20-SXM"), "nccl") == with_nvls(shares, faster)
    assert by_size(shares, faster, get_gpu("H100-SXM"), "nccl") == by_size(shares, plain, get_gpu("H100-SXM"), "nccl")
    scattered = dataclasses.replace(faster, sequence_parallel=True)
    assert with_nvls(shares, scattered) == shares
    assert with_nvls(shares, plain) == shares
