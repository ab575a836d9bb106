"""NVLS in serving: all-reduces of TP on GPUs without measurements gain, measured ones already contain it."""

import dataclasses

import pytest

from mfabric_jax.apps.serving.layer_parts import served_kernels
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.kernels import shares_of, table
from mfabric_jax.workload.measured_kernels import all_reduce_s, collective_s
from tests.mistakes import refused

LARGE = 2**30  # bytes, one of the sizes of the table
H20 = get_gpu("H20-SXM")


def both(name="H20-SXM"):
    gpu = get_gpu(name)
    return served_kernels(gpu), served_kernels(dataclasses.replace(gpu, nvls=True))


def test_an_all_reduce_of_eight_gpus_by_hand():
    plain, nvls = both()
    launch_s, ring_Bps = table()["launch"]["us"] * 1e-6, H20.nvlink * shares_of(1, "nccl").ring_nvlink
    assert all_reduce_s(plain, 8, LARGE) == pytest.approx(14 * (launch_s + LARGE / 8 / ring_Bps), rel=1e-9)
    want = 2 * launch_s + 9 / 8 * LARGE / (0.836 * ring_Bps)
    assert all_reduce_s(nvls, 8, LARGE) == pytest.approx(want, rel=1e-9)
    assert all_reduce_s(plain, 8, LARGE) / all_reduce_s(nvls, 8, LARGE) == pytest.approx(1.30, abs=0.005)


def test_small_messages_gain_steps():
    plain, nvls = both()
    assert all_reduce_s(plain, 8, 1024) / all_reduce_s(nvls, 8, 1024) > 6  # 14 launches against 2


def test_two_gpus_and_other_collectives_stay():
    plain, nvls = both()
    assert all_reduce_s(nvls, 2, LARGE) == all_reduce_s(plain, 2, LARGE)
    for what in ("all_gather", "reduce_scatter", "all_to_all"):
        assert collective_s(nvls, what, 8, LARGE) == collective_s(plain, what, 8, LARGE)


@pytest.mark.parametrize("name", ["H100-SXM", "H800-SXM", "B200-HGX"])
def test_measured_all_reduces_are_not_counted_twice(name):
    sentence = refused(served_kernels, dataclasses.replace(get_gpu(name), nvls=True))
    assert sentence.startswith(f"gpu.nvls must be false for serving on {name}, whose all-reduces were measured")
