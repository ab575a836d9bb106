"""Output head, optimizer step and gathered parameters through a comparison, a function of cases and failures."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax import resolve
from mfabric_jax.simulation import iteration_of
from mfabric_jax.workload.gpus import get_gpu
from tests.small import JOB, refused, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
ONE = JOB | {"network.fabric": "fat-tree"}
COUNTED = {"job.head": True, "job.optimizer_step": True}
ALL = COUNTED | {"job.sharding": "parameters", "job.parallel.cp": 2, "job.parallel.tp_reduces": "all"}


def test_the_head_and_the_optimizer_are_computed():
    plain, counted = small(ONE), small(ONE | COUNTED)
    job, gpu = resolve(plain).job, get_gpu()
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


def test_a_function_of_numbers_is_the_row_with_everything():
    case = small(ONE | ALL)
    function, numbers = iteration_of(case)
    found = eqx.filter_jit(function)(numbers)
    for name in ("iteration_s", "compute_s", "tp_comm_s", "dp_comm_s"):
        np.testing.assert_allclose(found[name], row(case)[name], rtol=1e-9)
    parts = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")
    np.testing.assert_allclose(sum(row(case)[name] for name in parts), row(case)["iteration_s"], rtol=1e-9)


def test_gradients_that_are_scattered_pass_by_pass_take_no_overlap():
    for sharding in ("gradients", "parameters"):
        both = {"job.sharding": sharding, "job.overlap_gradients": True}
        said = "job.overlap_gradients must be false beside job.sharding gradients or parameters, which overlap anyway"
        assert refused(both) == f"{said}, got true."
    assert resolve(small({"job.sharding": "none", "job.overlap_gradients": True})).settings.rules.dp_overlap


def test_a_gpu_whose_memory_is_not_known_takes_no_step(tmp_path):
    own = tmp_path / "mine.toml"
    own.write_text("bf16_tflops = 100\nnvlink_gigabytes_per_s = 300\n")
    without, asked = (row(small(ONE | {"gpu.name": str(own), "job.optimizer_step": on})) for on in (False, True))
    assert asked["compute_s"] == without["compute_s"]
