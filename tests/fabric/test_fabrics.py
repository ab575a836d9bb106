"""`Region` and `Electrical`: what they refuse, in words, and what they may carry as data."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from mfabric_jax.fabric import NAMES, Region, get
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.simulation import resolve
from mfabric_jax.workload import get as job_of
from tests.mistakes import refused
from tests.small import small

NAN, INF = float("nan"), float("inf")


def test_numbers_that_are_none():
    for field, value in itertools.product(("optical_degree", "electrical_nics", "delay_s"), (-1, NAN, INF)):
        assert f"{field} must be finite and not negative, got {value}" in refused(Region, 2, 400.0, **{field: value})
    for value in (0, -100.0, NAN, INF, np.asarray([100.0, 0.0])):
        for fabric in (lambda gbps: Region(2, gbps), lambda gbps: Electrical(gbps)):
            assert "nic_gbps must be finite and above 0, got" in refused(fabric, value)
    for value in ("400", None, True):
        assert f"nic_gbps must be a number, got {value!r}" in refused(Region, 2, value)
    for value in (0, -2, 2.0, True, "2"):
        assert f"servers must be a whole number of at least 1, got {value!r}" in refused(Region, value, 400.0)
        assert f"nics must be a whole number of at least 1, got {value!r}" in refused(Electrical, 400.0, nics=value)


def test_electrical_refuses():
    for over in (0, -3.0, NAN, INF):
        said = f"oversubscription must be finite and above 0, got {over}"
        assert said in refused(Electrical, 400.0, oversubscription=over)
    assert "fabric 'fattree' is unknown (did you mean 'fat-tree'?); allowed: fat-" in refused(get, "fattree")
    said = "nic_use 'pool' is unknown (did you mean 'pooled'?); allowed: own, p"
    assert said in refused(Electrical, 400.0, nic_use="pool")


def test_every_fabric_answers_for_itself():
    # What a group sees: bytes/s of a server beyond its switch, by hand at 400 Gbps; NVLink at 8 Tbps a GPU.
    settings = dataclasses.replace(resolve(small()).settings, server_nics=None)  # as many as usual on each
    beyond = {"fat-tree": 8, "oversub-fat-tree": 8 / 3, "rail-optimized": 8, "rail-only": 8, "topoopt": 2}
    beyond |= {"mfabric": 2, "nvl72": 64, "mfabric-cpo": 64, "torus": 2}
    assert set(beyond) == set(NAMES)
    for name, nics in beyond.items():
        fabric = get(name)
        assert fabric.name == name
        job = job_of(
            "deepseek-v3" if fabric.gpus_per_server > 8 else "mixtral-8x7b", gpus_per_server=fabric.gpus_per_server
        )
        (group,) = fabric.groups(settings, job, 400.0, ("own",))
        assert group.eps_Bps == pytest.approx(nics * 50e9, rel=1e-12), name
        assert group.reconfigures is fabric.reconfigures
        faster = fabric.at(group, 800.0, settings.gpu_tbps)
        assert faster.nic_Bps == 100e9
    nvlink = {name: get(name).nvlink_Bps(8.0, 400.0, 900e9) for name in NAMES}
    scale_up = {"nvl72": 950e9, "mfabric-cpo": 475e9}
    assert nvlink == pytest.approx(dict.fromkeys(NAMES, 900e9) | scale_up, rel=1e-12)


@pytest.mark.parametrize(("gbps", "ports", "nvlink"), [(400.0, 9, 950e9), (800.0, 4, 900e9)])
def test_what_a_nic_leaves_of_a_gpu_is_nvlink_and_optical_ports(gbps, ports, nvlink):
    cpo, nvl72, settings = get("mfabric-cpo"), get("nvl72"), resolve(small()).settings
    job = job_of("deepseek-v3", gpus_per_server=64)
    (group,) = cpo.groups(settings, job, gbps, ("own",))
    assert group.optical_degree == ports * 64
    assert nvl72.nvlink_Bps(8.0, gbps, None) == pytest.approx(nvlink)
    assert cpo.nvlink_Bps(8.0, gbps, None) == pytest.approx(nvlink / 2)
    (other,) = cpo.groups(settings, job, 100.0, ("own",))
    traced = jax.jit(lambda group, gbps: cpo.at(group, gbps, 8.0).optical_degree)(other, gbps)
    assert int(traced) == ports * 64  # the same rule where the bandwidth is traced
