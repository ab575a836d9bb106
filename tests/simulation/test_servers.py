"""Servers of one's own GPU: how many GPUs and NICs they have reaches every fabric, its cluster and its price."""

import numpy as np
import pytest

from mfabric_jax import fabric
from mfabric_jax.cluster import WholeCluster
from mfabric_jax.cluster.whole_cluster import example_cluster
from mfabric_jax.simulation.money import bill_of
from mfabric_jax.study.config import Compare
from mfabric_jax.sweep import Sweep
from mfabric_jax.workload import Gpu, get_gpu
from tests.mistakes import refused

FOUR = Gpu("four", 1e15, 2.5e11, "made up", gpus_per_server=4, scale_up_gpus=16)
SPARSE = Gpu("sparse", 1e15, 2.5e11, "made up", gpus_per_server=4, nics=2)
SERVERS = ("fat-tree", "oversub-fat-tree", "rail-optimized", "rail-only", "topoopt", "mfabric", "torus")
DOMAINS = ("nvl72", "mfabric-cpo")


def group_of(settings, name):
    on = fabric.get(name)
    job = settings.workload("llama-moe", on.gpus_of(settings.server))
    return job, on.groups(settings, job, 400.0, ("pooled",))[0]


@pytest.mark.parametrize("name", SERVERS + DOMAINS)
def test_every_fabric_has_servers_of_the_gpu(name):
    """The group, the whole cluster, and the dollars."""
    settings = Compare(models=("llama-moe",), nic_gbps=(400.0,), gpu=FOUR, nic_use=("pooled",))
    job = group_of(settings, name)[0]
    size = 4 if name in SERVERS else 16
    assert (job.gpus_per_server, job.servers_per_region) == (size, 16 // size)
    on = fabric.get(name)
    if name in SERVERS[:-1]:  # as many NICs in all, so as many dollars, as in servers of 8
        plain = Compare(models=("llama-moe",), nic_gbps=(400.0,))
        usual = bill_of(plain, on, plain.workload("llama-moe"), 400.0).network_usd
        assert bill_of(settings, on, job, 400.0).network_usd == pytest.approx(usual)
    whole = {"model": "llama-moe", "fabric": name, "gpus": 64, "dp": 1, "gpu": FOUR, "policy": "uniform"}
    built = example_cluster(WholeCluster(**whole))
    assert (built.gpus_per_server, built.gpus) == (size, 64)
    own = 250.0 if name in SERVERS else 950.0 / (2 if name == "mfabric-cpo" else 1)
    assert built.nvswitch_gigabytes_per_s == pytest.approx(own)
    on_tree = {"topoopt": 0, "torus": 0, "mfabric": 1}
    assert built.nics == on_tree.get(name, size)
    if built.regions is not None:
        used = np.asarray(built.regions).sum(axis=2).max()
        assert used <= {"mfabric": 3, "topoopt": 4, "mfabric-cpo": 9 * 16}[name]


def test_nics_of_the_gpu_are_those_of_the_server():
    settings = Compare(models=("llama-moe",), fabrics=("fat-tree",), gpu=SPARSE, nic_use=("pooled",))
    assert group_of(settings, "fat-tree")[1].nics == 2
    assert (settings.optical_degree, settings.electrical_nics) == (1, 1)
    mine = {"models": ("llama-moe",), "fabrics": ("fat-tree",), "nic_use": ("pooled",)}
    assert group_of(Compare(**mine, gpu=SPARSE, nics=3), "fat-tree")[1].nics == 3
    assert "4 GPUs and 2 NICs; use nic_use 'pooled' or 4 NICs" in refused(
        Compare, models=("llama-moe",), fabrics=("fat-tree",), gpu=SPARSE
    )
    assert "torus needs as many NICs in each of its 6 directions, got nics 2" in refused(
        Compare, models=("llama-moe",), fabrics=("torus",), gpu=SPARSE
    )


def test_a_named_gpu_keeps_servers_of_8():
    plain, named = Compare(models=("llama-moe",)), Compare(models=("llama-moe",), gpu="GB300-NVL72")
    for name in SERVERS + DOMAINS:
        assert group_of(plain, name)[0] == group_of(named, name)[0]
        assert plain.nvlink_Bps(fabric.get("fat-tree"), 400.0) == named.nvlink_Bps(fabric.get("fat-tree"), 400.0)
    assert (named.optical_degree, named.electrical_nics, named.server_nics) == (6, 2, None)
    assert named.server is get_gpu("GB300-NVL72")


def test_a_file_is_read_once_and_kept_with_the_rows(tmp_path):
    file = tmp_path / "own.toml"
    file.write_text('like = "H100-SXM"\ngpus_per_server = 4\n')
    config = Compare(models=("llama-moe",), fabrics=("fat-tree",), gpu=str(file))
    file.unlink()
    assert config.server.gpus_per_server == 4
    assert config.rates_from == "achieved"


def test_a_sweep_takes_the_gpu_of_a_file(tmp_path):
    """Numbers that a sweep leaves open are those of its server."""
    file = tmp_path / "own.toml"
    file.write_text('like = "H100-SXM"\ngpus_per_server = 4\n')
    fixed = {"model": "llama-moe", "gpu": str(file)}
    config = Sweep(fixed=fixed, grid={"nic_gbps": [200.0, 400.0]})
    (group,) = config.groups
    program = config.program(group)
    cases = program.cases(config.data(group.rows))
    assert program.workload.gpus_per_server == 4
    assert (cases["optical_degree"].tolist(), cases["electrical_nics"].tolist()) == ([3, 3], [1, 1])
    assert cases["nvswitch_gigabytes_per_s"].tolist() == [450, 450]
    dollars = bill_of(program.base, program.on, program.workload, 400.0).network_usd
    seconds = {"iteration_s": np.full(2, 2.0), "ep_comm_s": np.ones(2), "bubble_s": np.zeros(2)}
    assert program._judged(seconds, cases)["network_cost_usd"][1] == dollars
