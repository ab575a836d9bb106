"""Replicas with traffic of their own: each as it would be alone, and all wait for the slowest."""

import numpy as np
import pytest

from mfabric_jax import InputError
from mfabric_jax.report import Asked, query
from mfabric_jax.simulation import example_timeline, iteration_of
from mfabric_jax.simulation.scenario import scenarios, traffic_of
from mfabric_jax.simulation.solving import simulate_scenario
from mfabric_jax.study import Failures
from mfabric_jax.study.config import Compare
from mfabric_jax.sweep import Sweep, sweep
from tests.small import JOB, MODEL, refused, row, small

pytestmark = pytest.mark.usefixtures("as_users_have_it")
SPREAD = JOB | {"micro_batches": 2, "drawn": 2, "traffic": "generated", "skew": 0.8, "iterations": 2, "drift": 0.3}
THREE = SPREAD | {"replicas": 3}
PARTS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s")


def test_an_iteration_takes_as_long_as_its_slowest_replica():
    (one,) = scenarios(small(**THREE, fabrics=("mfabric",), first="predict"))
    alone = [simulate_scenario(replica).times for replica in one.each_replica]
    seconds = np.array([times.iteration_s for times in alone])[..., 0]  # [replica iteration]
    assert seconds.shape == (3, 2)
    assert len(set(seconds[:, 0])) == 3
    got = row(one.settings)
    np.testing.assert_allclose(got["iteration_s"], seconds.max(axis=0).mean(), rtol=1e-9)
    np.testing.assert_allclose(got["slowest_over_mean"], seconds.max(axis=0).mean() / seconds.mean(), rtol=1e-9)
    assert got["slowest_over_mean"] > 1
    assert (got["replicas"], got["iterations"]) == (3, 2)
    np.testing.assert_allclose(sum(got[name] for name in PARTS), got["iteration_s"], rtol=1e-9)
    last = seconds.argmax(axis=0)
    exchange = np.mean([np.asarray(alone[which].ep_comm_s)[at, 0] for at, which in enumerate(last)])
    np.testing.assert_allclose(got["ep_comm_s"], exchange, rtol=1e-9)


def test_the_first_replica_is_the_one_that_stands_for_all():
    for given in ({}, {"traffic": "measured", "skew": 0.0}, {"circuits_for": ("iteration",)}):
        one, three = (small(**SPREAD | given | {"replicas": count}) for count in (1, 3))
        (alone,), every = (traffic_of(config, config.workload(MODEL), config.circuits_for) for config in (one, three))
        np.testing.assert_array_equal(every[0].count, alone.count)
        assert len(every) == 3
        for other in every[1:]:
            assert other.count.shape == alone.count.shape
            assert np.any(other.count != alone.count)
            assert (other.before is None) == (alone.before is None)
    config = small(**SPREAD, replicas="all")
    assert len(traffic_of(config, config.workload(MODEL))) == config.workload(MODEL).dp


def test_replicas_read_records_in_turn(tmp_path):
    count = np.random.default_rng(0).integers(1, 9, (6, 1, 1, 4, 8))
    np.save(tmp_path / "run.npy", count)
    traced = {name: value for name, value in JOB.items() if name != "drawn"} | {"trace": str(tmp_path / "run.npy")}
    config = small(**traced, iterations=2, replicas=3)
    every = traffic_of(config, config.workload(MODEL))
    for replica, tokens in enumerate(every):
        for iteration in range(2):
            want = count[3 * iteration + replica, 0, 0].astype(float)
            share = tokens.count[iteration, 0, 0] / tokens.count[iteration, 0, 0].sum(-1, keepdims=True)
            np.testing.assert_allclose(share, want / want.sum(-1, keepdims=True), rtol=1e-12)


def test_a_sweep_has_the_rows_of_compare(tmp_path):
    fixed = {**THREE, "model": MODEL, "fabric": "fat-tree", "nic_gbps": 100.0, "compute": "achieved"}
    sweep(Sweep("iteration", fixed, {"efficiency": [0.5]}, dtype="float64"), tmp_path)
    ((got,), _) = query([tmp_path], Asked())
    want = row(small(**THREE, fabrics=("fat-tree",)))
    for name in ("iteration_s", "ep_comm_s", "slowest_over_mean", "replicas"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-9)
    assert got["slowest_over_mean"] > 1


def test_what_cannot_be():
    assert "replicas must be at most the 8 of mixtral-8x7b (dp), got 9" in refused(models=(MODEL,), replicas=9)
    assert "replicas (beside a number) 'every' is unknown; allowed: all" in refused(replicas="every")
    assert "replicas must be a whole number of at least 1, got 0" in refused(replicas=0)
    alike = "replicas are all alike under matrices 'one'; they must be 1, got 2."
    assert refused(models=(MODEL,), replicas=2, matrices="one") == alike
    run = "circuits_for 'run' plans for one replica; replicas must be 1, got 2."
    assert refused(models=(MODEL,), replicas=2, circuits_for=("run",)) == run
    config = Compare(models=(MODEL,), replicas=2)
    for use, words in (
        (lambda: Failures(config), "failures are"),
        (lambda: example_timeline(config), "a timeline is"),
        (lambda: iteration_of(config, MODEL), "a function of cases is"),
    ):
        with pytest.raises(InputError) as caught:
            use()
        assert str(caught.value) == f"{words} of one replica; replicas must be 1, got 2."
