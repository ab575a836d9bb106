"""Output head, optimizer step and gathered parameters through a comparison, a function of cases and failures."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax.simulation import iteration_of
from mfabric_jax.workload.gpus import get_gpu
from tests.small import JOB, MODEL, refused, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
ONE = JOB | {"fabrics": ("fat-tree",)}
ALL = {"head": "counted", "optimizer_step": "counted", "sharding": "parameters", "cp": 2, "tp_reduces": "all"}


def test_the_head_and_the_optimizer_are_computed():
    plain, counted = small(**ONE), small(**ONE, head="counted", optimizer_step="counted")
    job, gpu = plain.workload(MODEL), get_gpu()
    head_s = job.tokens * 2 * job.architecture.head_params / (job.tp * gpu.bf16_flops * 0.5)
    passes = 3 * job.micro_batches
    before, after = row(plain), row(counted)
    # One stage: all of the model, of which a GPU updates its share.
    model, replicas = job.architecture, job.dp * job.ep
    experts = len(model.moe_blocks) * job.experts_per_rank * model.expert_params
    dense = model.params() - experts * job.ep
    updated = dense / job.tp / replicas + experts / job.tp / job.dp
    step_s = updated * (job.grad_bytes + 12 + 12 + 2) / gpu.memory_Bps
    assert job.pp == 1
    np.testing.assert_allclose(after["compute_s"] - before["compute_s"], passes * head_s + step_s, rtol=1e-6)
    assert after["memory_gb"] == before["memory_gb"]


def test_a_case_is_the_row_of_the_comparison_with_everything():
    config = small(**ONE, **ALL)
    function, case = iteration_of(config, MODEL, "fat-tree")
    found = eqx.filter_jit(function)(case)
    for name in ("iteration_s", "compute_s", "tp_comm_s", "dp_comm_s"):
        np.testing.assert_allclose(found[name], row(config)[name], rtol=1e-9)
    parts = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")
    np.testing.assert_allclose(sum(row(config)[name] for name in parts), row(config)["iteration_s"], rtol=1e-9)


def test_gradients_that_are_scattered_pass_by_pass_take_no_dp_overlap():
    for sharding in ("gradients", "parameters"):
        said = refused(models=("llama-moe",), dp_overlap=True, sharding=sharding)
        assert said == f"dp_overlap is of sharding none or optimizer, got {sharding!r}: it overlaps anyway."
    assert small("llama-moe", dp_overlap=True, sharding="none").dp_overlap


def test_a_gpu_whose_memory_is_not_known_cannot_step(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text("bf16_tflops = 100\nnvlink_gigabytes_per_s = 300\n")
    said = refused(models=(MODEL,), gpu=str(own), optimizer_step="counted")
    assert said == "optimizer_step 'counted' needs memory_gigabytes_per_s of the GPU mine, not known."
