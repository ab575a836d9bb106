"""Servers of one's own GPU: how many GPUs and NICs they have reaches every fabric, its cluster and its price."""

import numpy as np
import pytest

from mfabric_jax import cases, load, resolve, simulate
from mfabric_jax.evaluate.rows.costs import bill_of

LLAMA = load(preset="paper").with_({"model.name": "llama-moe", "network.nic_use": "pooled"})
SERVERS = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "topoopt", "mfabric", "torus")
DOMAINS = ("nvl72", "mfabric-cpo")


@pytest.fixture
def own(tmp_path):
    """Files of GPUs: servers of four, and such with two NICs."""

    def written(name, **more):
        facts = {"bf16_tflops": 1000, "nvlink_gigabytes_per_s": 250, "gpus_per_server": 4, "scale_up_gpus": 16} | more
        file = tmp_path / f"{name}.toml"
        file.write_text("".join(f"{fact} = {value}\n" for fact, value in facts.items()))
        return {"gpu.name": str(file), "gpu.nvlink_gigabytes_per_s": None}

    return written


def resolved(name="fat-tree", **changes):
    return resolve(LLAMA.with_({"network.fabric": name} | changes))


def group_of(one):
    return one.fabric.group(one.site, 400.0)


def bill(one):
    return bill_of(one, one.job, 400.0)


@pytest.mark.parametrize("name", SERVERS + DOMAINS)
def test_every_fabric_has_servers_of_the_gpu(name, own):
    """The group and the dollars."""
    one = resolved(name, **own("four"))
    size = 4 if name in SERVERS else 16
    assert (one.job.gpus_per_server, one.job.servers_per_region) == (size, 16 // size)
    assert group_of(one) is not None
    if name in SERVERS[:-1]:  # as many NICs in all, so as many dollars, as in servers of 8
        assert (one.optical_degree, one.electrical_nics) == (3, 1)
        assert bill(one).network_usd == pytest.approx(bill(resolved(name)).network_usd)


def test_nics_of_the_gpu_are_those_of_the_server(own):
    sparse = own("sparse", nics=2)
    one = resolved(**sparse)
    assert group_of(one).nics == 2
    assert (one.optical_degree, one.electrical_nics) == (1, 1)
    assert group_of(resolved(**sparse | {"network.nics": 3})).nics == 3


def test_a_named_gpu_keeps_servers_of_8():
    named = {"gpu.name": "GB300-NVL72", "compute.efficiency": 0.5}
    for name in SERVERS + DOMAINS:
        assert group_of(resolved(name)) == group_of(resolved(name, **named))
    one = resolved(**named)
    assert (one.optical_degree, one.electrical_nics, one.server_nics) == (6, 2, 8)
    assert one.server.nvlink == 900e9  # as preset paper says
    assert one.server.name == "GB300-NVL72"


def test_a_gpu_by_name_has_the_nvlink_of_its_data_sheet_unless_a_case_says_another():
    given = {"model.name": "llama-moe", "gpu.name": "H800-SXM"}
    assert resolve(load(changes=given)).server.nvlink == 200e9
    paper = load(preset="paper", changes=given)
    assert resolve(paper).server.nvlink == 900e9
    assert resolve(paper.with_({"gpu.nvlink_gigabytes_per_s": None})).server.nvlink == 200e9


def test_many_cases_have_the_gpu_of_a_file(tmp_path):
    """Numbers that are left open are those of its server."""
    file = tmp_path / "own.toml"
    file.write_text('like = "H100-SXM"\ngpus_per_server = 4\n')
    one = LLAMA.with_({"gpu.name": str(file), "gpu.nvlink_gigabytes_per_s": None, "network.fabric": "mfabric"})
    (points,) = simulate(cases(one, {"network.nic_gbps": np.linspace(100, 800, 17).tolist()})).groups
    assert points.job.gpus_per_server == 4
    assert points.usual["network.mfabric.optical_degree"] == 3
    assert points.usual["gpu.nvlink_gigabytes_per_s"] == 450
