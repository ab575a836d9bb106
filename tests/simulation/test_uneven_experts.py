"""Experts that compute what they received, through a comparison, a function of cases and failures."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax.failures import failures
from mfabric_jax.simulation import iteration_of
from mfabric_jax.simulation.scenario import scenarios, tokens_of
from mfabric_jax.simulation.solving import solve
from mfabric_jax.study import Failures
from mfabric_jax.workload.compute import block_seconds
from mfabric_jax.workload.gpus import get_gpu
from tests.schedule.test_uneven import plainly, plainly_left
from tests.small import JOB, MODEL, refused, row, small

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
    assert "combine_start 'rank' needs expert_load 'received', got 'balanced'" in refused(combine_start="rank")
    parts = {"combine_start": "rank", "expert_load": "received", "overlap_parts": 2}
    assert "combine_start 'rank' does not foresee overlap_parts 2" in refused(**parts)
    assert "expert_tile must be a whole number of at least 1, got 0" in refused(expert_tile=0)


def test_ranks_that_send_when_they_are_done_by_hand():
    how = UNEVEN | {
        "expert_load": "received",
        "expert_tile": 1,
        "nic_gbps": (400.0,),
        "link_delay_s": 0.0,
        "nic_use": ("pooled",),
    }
    waits, sends = (small(**how, combine_start=start) for start in ("barrier", "rank"))
    job = waits.workload(MODEL)
    (one,) = scenarios(waits)
    load = np.asarray(solve(one).electrical, np.float64)[0]  # [P Q L 2], every block once forward and once backward
    assert load.shape[1] == 2
    (iteration,) = tokens_of(waits, job).count
    seconds, rates = one.seconds, one.rates(400.0)
    saved = 0.0
    for layer, ((tokens,), bytes_) in enumerate(zip(iteration, load[0, 0, :, 0], strict=True)):
        received = tokens.reshape(job.ep, job.ep, -1).sum(axis=-1)
        loads = (received.sum(axis=0) / job.selections).tolist()
        server = np.arange(job.ep) // job.ranks_per_server
        ahead, left = plainly_left((received * (server[:, None] != server)).tolist(), loads, job.ranks_per_server)
        assert load[0, 1, -1 - layer, 1] == bytes_
        whole = bytes_ / float(rates.nic_Bps)
        for factor in (1, 2):
            ends = [part * whole - factor * seconds.expert_s * more for more, part in zip(ahead, left, strict=True)]
            saved += whole - max(ends)
    before, after = row(waits), row(sends)
    assert saved > 0.01 * before["ep_comm_s"]
    np.testing.assert_allclose(before["ep_comm_s"] - after["ep_comm_s"], saved, rtol=1e-6)
    np.testing.assert_allclose(before["iteration_s"] - after["iteration_s"], saved, rtol=1e-6)
