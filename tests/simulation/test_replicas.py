"""Replicas with traffic of their own: each as it would be alone, and all wait for the slowest."""

import numpy as np
import pytest

from mfabric_jax import InputError, resolve
from mfabric_jax.failures._failures import plans
from mfabric_jax.simulation import example_timeline, iteration_of
from mfabric_jax.simulation.solving import simulate_scenario
from tests.small import JOB, row, scenario, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SPREAD = JOB | {"job.batch.micro_batches": 2, "traffic.drawn": 2, "run.iterations": 2}
SPREAD |= {"traffic.generated.skew": 0.8, "traffic.generated.drift": 0.3}
THREE = SPREAD | {"run.replicas": 3}
PARTS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")


def test_an_iteration_takes_as_long_as_its_slowest_replica():
    asked = small(THREE | {"network.fabric": "mfabric", "circuits.turn": "predict"})
    one = scenario(asked)
    alone = [simulate_scenario(replica).times for replica in one.each_replica]
    seconds = np.array([times.iteration_s for times in alone])[..., 0]  # [replica iteration]
    assert seconds.shape == (3, 2)
    assert len(set(seconds[:, 0])) == 3
    got = row(asked)
    np.testing.assert_allclose(got["iteration_s"], seconds.max(axis=0).mean(), rtol=1e-9)
    np.testing.assert_allclose(got["slowest_over_mean"], seconds.max(axis=0).mean() / seconds.mean(), rtol=1e-9)
    assert got["slowest_over_mean"] > 1
    assert (got["replicas"], got["iterations"]) == (3, 2)
    np.testing.assert_allclose(sum(got[name] for name in PARTS), got["iteration_s"], rtol=1e-9)
    last = seconds.argmax(axis=0)
    exchange = np.mean([np.asarray(alone[which].ep_comm_s)[at, 0] for at, which in enumerate(last)])
    np.testing.assert_allclose(got["ep_comm_s"], exchange, rtol=1e-9)


def test_the_first_replica_is_the_one_that_stands_for_all():
    measured = {"traffic.shares.drift": 0.3}
    for given in ({}, measured, {"circuits.span.length": "iteration"}):
        one, three = (scenario(small(SPREAD).with_(given | {"run.replicas": count})) for count in (1, 3))
        (alone,), every = one.every_replica, three.every_replica
        np.testing.assert_array_equal(every[0].count, alone.count)
        assert len(every) == 3
        for other in every[1:]:
            assert other.count.shape == alone.count.shape
            assert np.any(other.count != alone.count)
            assert (other.before is None) == (alone.before is None)
    whole = scenario(small(SPREAD | {"run.replicas": "all"}))
    assert len(whole.every_replica) == whole.workload.dp


def test_replicas_read_records_in_turn(tmp_path):
    count = np.random.default_rng(0).integers(1, 9, (6, 1, 1, 4, 8))
    np.save(tmp_path / "run.npy", count)
    traced = {path: value for path, value in JOB.items() if path != "traffic.drawn"}
    traced |= {"traffic.trace.path": str(tmp_path / "run.npy"), "run.iterations": 2, "run.replicas": 3}
    every = scenario(small(traced)).every_replica
    for replica, tokens in enumerate(every):
        for iteration in range(2):
            want = count[3 * iteration + replica, 0, 0].astype(float)
            share = tokens.count[iteration, 0, 0] / tokens.count[iteration, 0, 0].sum(-1, keepdims=True)
            np.testing.assert_allclose(share, want / want.sum(-1, keepdims=True), rtol=1e-12)


def test_only_rows_are_of_several_replicas():
    two = small({"run.replicas": 2})
    for use, words in ((plans, "failures"), (example_timeline, "timeline"), (iteration_of, "function of numbers")):
        with pytest.raises(InputError, match=rf"{words}.*must be 1, got 2\.|must be 1 beside {words}, got 2\."):
            use(two)
    assert resolve(two).settings.replicas == 2
