"""Experts that compute what they received, through a comparison, a function of cases and failures."""

import equinox as eqx
import numpy as np
import pytest

from mfabric_jax import resolve
from mfabric_jax.failures import failures
from mfabric_jax.simulation import iteration_of
from mfabric_jax.simulation.solving import solve
from mfabric_jax.workload.compute import block_seconds
from mfabric_jax.workload.gpus import get_gpu
from tests.schedule.test_uneven import plainly, plainly_left
from tests.small import JOB, refused, row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
UNEVEN = JOB | {"traffic.generated.skew": 0.8, "network.fabric": "fat-tree"}
TILE = 64
RECEIVED = {"compute.received.tile": TILE}


def test_compute_is_that_of_the_busiest_ranks_by_hand():
    even, received = small(UNEVEN), small(UNEVEN | RECEIVED)
    job = resolve(even).job
    (iteration,) = scenario(even).tokens.count
    loads = [plainly(layer[0].tolist(), job.ep, job.selections, TILE) for layer in iteration]
    assert min(loads) > 1.2
    seconds = block_seconds(job, get_gpu("A100-80GB-SXM"))
    more = sum(3 * (load - 1) * seconds.expert_s for load in loads)
    before, after = row(even), row(received)
    assert (before["expert_load"], after["expert_load"]) == ("balanced", "received")
    np.testing.assert_allclose(after["compute_s"] - before["compute_s"], more, rtol=1e-9)
    np.testing.assert_allclose(after["iteration_s"] - before["iteration_s"], more, rtol=1e-9)
    assert after["ep_comm_s"] == before["ep_comm_s"]


def test_a_case_is_the_row_of_the_comparison():
    asked = small(UNEVEN | RECEIVED)
    function, numbers = iteration_of(asked)
    found = eqx.filter_jit(function)(numbers)
    for name in ("iteration_s", "compute_s"):
        np.testing.assert_allclose(found[name], row(asked)[name], rtol=1e-9)


def test_failures_start_from_the_uneven_iteration():
    asked = small(UNEVEN | RECEIVED)
    (found,) = failures(asked.with_({"failures.kinds": ["nvswitch"]}))
    np.testing.assert_allclose(found["healthy_s"], row(asked)["iteration_s"], rtol=1e-9)


def test_settings_that_cannot_be():
    assert "compute.experts 'recieved' is unknown (did you mean 'received'?)" in refused(
        {"compute.experts": "recieved"}
    )
    parts = {"compute.received.combine": "rank", "job.parts": 2}
    assert "job.overlap must be none or passes beside compute.received.combine rank, got parts" in refused(parts)
    assert "compute.received.tile must be a whole number at least 1, got 0" in refused({"compute.received.tile": 0})


def test_ranks_that_send_when_they_are_done_by_hand():
    how = UNEVEN | {"network.nic_gbps": 400.0, "network.nic_use": "pooled", "compute.received.tile": 1}
    waits, sends = (small(how | {"compute.received.combine": start}) for start in ("barrier", "rank"))
    one = scenario(waits)
    job = one.workload
    load = np.asarray(solve(one).electrical, np.float64)[0]  # [P Q L 2], every block once forward and once backward
    assert load.shape[1] == 2
    (iteration,) = one.tokens.count
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
