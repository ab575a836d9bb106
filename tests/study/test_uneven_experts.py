"""Experts that compute what they received, through a comparison, a function of cases and failures."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax.study import Failures, failures, iteration_of
from mfabric_jax.study._scenario import tokens_of
from mfabric_jax.workload.compute import block_seconds
from mfabric_jax.workload.gpus import get_gpu
from tests.schedule.test_uneven import plainly
from tests.study.small import MODEL, refused, row, small
from tests.study.test_compare_fabrics import JOB

pytestmark = pytest.mark.usefixtures("as_users_have_it")
UNEVEN = JOB | {"traffic": "generated", "skew": 0.8, "fabrics": ("fat-tree",)}
TILE = 64


def test_compute_is_that_of_the_busiest_ranks_by_hand():
    even, received = (small(**UNEVEN, expert_load=how, expert_tile=TILE) for how in ("balanced", "received"))
    job = even.workload(MODEL)
    (iteration,) = tokens_of(even, job).count
    loads = [plainly(layer[0].tolist(), job.ep, job.selections, TILE) for layer in iteration]
    assert min(loads) > 1.2
    seconds = block_seconds(job, get_gpu())
    more = sum(3 * (load - 1) * seconds.expert_s for load in loads)
    before, after = row(even), row(received)
    assert (before["expert_load"], after["expert_load"]) == ("balanced", "received")
    np.testing.assert_allclose(after["compute_s"] - before["compute_s"], more, rtol=1e-9)
    np.testing.assert_allclose(after["iteration_s"] - before["iteration_s"], more, rtol=1e-9)
    assert after["ep_comm_s"] == before["ep_comm_s"]


def test_a_case_is_the_row_of_the_comparison():
    config = small(**UNEVEN, expert_load="received", expert_tile=TILE)
    function, case = iteration_of(config, MODEL, "fat-tree")
    found = eqx.filter_jit(function)(case)
    for name in ("iteration_s", "compute_s"):
        np.testing.assert_allclose(found[name], row(config)[name], rtol=1e-9)


def test_failures_start_from_the_uneven_iteration():
    config = small(**UNEVEN, expert_load="received", expert_tile=TILE)
    (found,) = failures(Failures(config, kinds=("nvswitch",), fabrics=("fat-tree",)))
    np.testing.assert_allclose(found["healthy_s"], row(config)["iteration_s"], rtol=1e-9)


def test_settings_that_cannot_be():
    assert "expert_load 'recieved' is unknown (did you mean 'received'?)" in refused(expert_load="recieved")
    assert "expert_tile must be a whole number of at least 1, got 0" in refused(expert_tile=0)
