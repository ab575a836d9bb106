"""Kernels that a training program issues, and what its host adds to a block, against hand-worked ones."""

import dataclasses

import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.workload import get_gpu, models
from mfabric_jax.workload.block_kernels import kernel_seconds
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.training_code import FUSED, GRAPHED, TrainingCode, issue_seconds, unfused_parts
from tests.small import row, small

JOB = Workload("m", models.MIXTRAL_8X22B, tp=1, pp=1, dp=4, ep=2, gpus=8, sequence=4096, micro_batch=1, micro_batches=2)
HOST = TrainingCode(host_s=25e-6)


def launches(job, **code):
    found = issue_seconds(job, HOST._replace(**code))
    return tuple(round(float(np.sum(part)) / HOST.host_s, 6) for part in found)


def test_kernels_of_a_block_by_part():
    moe, dense = launches(JOB)
    assert moe == pytest.approx(200 + 6 * JOB.experts_per_rank)  # 4 local experts
    assert dense == pytest.approx(84 + 22)
    assert launches(dataclasses.replace(JOB, tp=2, dp=2))[0] - moe == 8
    assert launches(dataclasses.replace(JOB, dispatch="per-server"))[0] - moe == -23
    assert launches(JOB, graphs="router")[0] - moe == sum(GRAPHED)
    assert launches(JOB, experts="one")[0] == 206
    assert launches(JOB, unfused=frozenset({"bias"}))[0] - moe == 2 * JOB.experts_per_rank
    assert launches(JOB, unfused=frozenset({"router"}))[0] - moe == 41  # 72 kernels instead of 31


def test_what_is_recomputed_is_issued_again():
    plain = issue_seconds(JOB, HOST)
    for parts, moe, dense in (({"attention"}, 34, 34), ({"moe"}, 46 + 2 * JOB.experts_per_rank, 0), ({"mlp"}, 0, 8)):
        again = issue_seconds(JOB, HOST, frozenset(parts))
        assert (again.moe.backward - plain.moe.backward) / HOST.host_s == pytest.approx(moe)
        assert (again.dense.backward - plain.dense.backward) / HOST.host_s == pytest.approx(dense)
        assert again.moe.forward == plain.moe.forward


def test_no_host_and_a_graph_of_the_whole_step_add_nothing():
    assert issue_seconds(JOB, FUSED) is None
    assert issue_seconds(JOB, HOST._replace(graphs="step")) is None
    assert kernel_seconds(JOB, get_gpu("H100-SXM")).issued is None


def test_parts_that_are_not_fused_in_words():
    assert unfused_parts("none") == frozenset()
    assert unfused_parts("bias+clamp") == {"bias", "clamp"}
    with pytest.raises(InputError, match=r"compute\.code\.unfused 'clamps' is unknown"):
        unfused_parts("bias+clamps")


SMALL = {"compute.rate": "kernels", "gpu.name": "H100-SXM", "network.fabric": "fat-tree"}


def iteration_s(**code):
    return row(small(SMALL | {f"compute.code.{name}": value for name, value in code.items()}))["iteration_s"]


@pytest.mark.parametrize("rate", ["efficiency", "measured"])
def test_a_program_is_of_kernels_alone(rate):
    said = SMALL | {"compute.rate": rate, "compute.code.host_us": 25.0}
    said |= {"compute.measured.iteration_s": 10.0} if rate == "measured" else {}
    with pytest.raises(InputError, match=r"compute\.code applies to compute\.rate kernels alone"):
        row(small(said))


def test_a_host_lengthens_an_iteration_and_a_fixed_part_adds():
    plain = iteration_s()
    assert iteration_s(step_ms=50.0) == pytest.approx(plain + 0.05, rel=1e-6)
    slow, slower = iteration_s(host_us=25.0), iteration_s(host_us=2500.0)
    assert plain < slow < slower
    assert iteration_s(host_us=25.0, graphs="step") == plain
