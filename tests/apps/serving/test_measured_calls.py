"""Calls of DeepEP inside a server, as they were measured, and how they follow tokens, copies and bytes."""

import numpy as np
import pytest

from mfabric_jax.apps.serving import deployment
from mfabric_jax.case import Case
from mfabric_jax.workload import get_gpu
from mfabric_jax.workload.measured_kernels import deepep_s, measured_kernels

INSIDE = {
    "model.name": "deepseek-v3",
    "network.fabric": "fat-tree",
    "gpu.name": "H100-SXM",
    "serving.ep": 8,
    "model.expert_groups": 1,
    "model.top_groups": 1,
}


def wires(**changes):
    said = INSIDE | {name.replace("__", "."): value for name, value in changes.items()}
    return deployment(Case().with_(said)).decode.wires(400.0)


@pytest.mark.parametrize("gpu", ["H100-SXM", "H200-SXM", "B200-HGX"])
def test_a_call_inside_a_server_takes_what_it_was_measured_to_take(gpu):
    """128 tokens to 8 of 256 experts of hidden 7168 on 8 GPUs, FP8 there and bf16 back: the benchmark itself."""
    own, kernels = wires(gpu__name=gpu), measured_kernels(get_gpu(gpu))
    for what, size in (("dispatch", 7168 * (1 + 4 / 128)), ("combine", 14336.0)):
        measured = float(deepep_s(kernels, "ll", what, 1, 128.0, size))
        assert float(own.call_s(128.0, combine=what == "combine")) == pytest.approx(measured, rel=1e-2)


def test_half_the_copies_take_as_long_as_half_the_tokens():
    every, few = wires(), wires(model__top_k=4)
    assert every.crossing.inside == pytest.approx(2 * few.crossing.inside)
    assert float(few.call_s(512.0, combine=True)) == pytest.approx(float(every.call_s(256.0, combine=True)))
    tokens = np.array([8.0, 64.0, 512.0])
    assert (np.diff(every.call_s(tokens, combine=False)) > 0).all()


def test_other_links_and_several_servers_take_the_rates_of_the_family():
    assert wires().measured is not None
    for changes in ({"serving__ep": 16}, {"gpu__nvlink_gigabytes_per_s": 200.0}, {"gpu__name": "H800-SXM"}):
        assert wires(**changes).measured is None
    assert wires(serving__kernels="hybridep").measured is None


def test_a_call_of_the_normal_kernels_has_the_latency_of_its_servers():
    """One token on 2 and 8 servers of H100: 58 and 136 us of dispatch were measured, 84 and 140 of combine."""
    for ep, there, back in ((16, 58e-6, 84e-6), (64, 136e-6, 140e-6)):
        own = wires(serving__ep=ep, serving__kernels="deepep-normal")
        assert float(own.call_s(1.0, combine=False)) == pytest.approx(there, rel=0.15)
        assert float(own.call_s(1.0, combine=True)) == pytest.approx(back, rel=0.15)
