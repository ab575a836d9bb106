"""Samplers: splits that share nothing, records that belong to one split, and demand that remembers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import traffic
from mfabric_jax.traffic.demand_families import fold_to_servers, gate_trace
from mfabric_jax.traffic.samplers import SAMPLED, SPLITS, drifting, split_records
from tests.mistakes import refused

SERVERS = 4
OFF = ~np.eye(SERVERS, dtype=bool)
KEYS = jax.random.split(jax.random.key(0), 64)


def drawn(family, split, steps=None, **settings):
    sampler = traffic.sampler(family, split, **settings)
    return np.asarray(jax.jit(jax.vmap(lambda key: sampler(key, SERVERS, steps)))(KEYS))


def digests(demands):
    return {one.tobytes() for one in demands.reshape(-1, SERVERS, SERVERS)}


@pytest.mark.parametrize("family", ["zipf", "hot-rows"])
def test_the_same_keys_give_other_demand_in_every_split(family):
    every = {split: drawn(family, split) for split in SPLITS}
    for one, other in itertools.combinations(SPLITS, 2):
        assert not digests(every[one]) & digests(every[other])
    assert all(len(digests(demands)) == len(KEYS) for demands in every.values())
    np.testing.assert_array_equal(every["train"], drawn(family, "train"))
    assert (every["train"][:, ~OFF] == 0).all()
    assert set(SAMPLED) >= {"zipf", "gate", "drift"}


@pytest.mark.parametrize("records", [1, 2, 3, 5, 10, 97])
def test_every_record_is_in_one_split(records):
    numbers = np.arange(records)
    parts = [numbers[split_records(records, split)] for split in SPLITS]
    np.testing.assert_array_equal(np.concatenate(parts), numbers)
    assert len(parts[0]) == max(round(0.8 * records), 1)
    assert 0 <= len(parts[1]) - len(parts[2]) <= 1


def test_steps_of_a_recording_are_records_of_the_split_that_follow_each_other(tmp_path):
    path = str(tmp_path / "run.npy")
    np.save(path, np.random.default_rng(0).integers(1, 99, (20, 1, 1, 16, 32)))
    number = {
        demand.tobytes(): at for at, demand in enumerate(fold_to_servers(gate_trace(path, None).count[:, :1], SERVERS))
    }
    for split, allowed in (("train", range(16)), ("validation", (16, 17)), ("test", (18, 19))):
        found = drawn(path, split, 2)[:, :, None]
        found = np.array([[number[one.tobytes()] for one in chain] for chain in found])
        assert (np.diff(found) == 1).all()
        assert set(found.ravel()) == set(allowed)
    said = refused(traffic.sampler(str(tmp_path / "run.npy"), "test"), jax.random.key(0), SERVERS, 3)
    assert said == "steps must be at most the 2 records of the test split, got 3."


def test_a_walk_has_the_deviation_and_the_memory_that_were_asked_for():
    walk = jax.jit(jax.vmap(lambda key: drifting(key, jnp.ones((8, 8)), 3, skew=0.0, pairs=0.4, memory=0.7)))
    log = np.log(walk(jax.random.split(jax.random.key(1), 500))[:, :, ~np.eye(8, dtype=bool)])
    log -= log.mean(-1, keepdims=True)
    assert log.std() == pytest.approx(0.4, rel=0.05)
    assert np.corrcoef(log[:, 0].ravel(), log[:, 1].ravel())[0, 1] == pytest.approx(0.7, abs=0.05)
    assert np.corrcoef(log[:, 0].ravel(), log[:, 2].ravel())[0, 1] == pytest.approx(0.49, abs=0.05)
    chain = drawn("drift", "test", 4, memory=1.0)
    np.testing.assert_allclose(chain, np.broadcast_to(chain[:, :1], chain.shape), rtol=1e-5)
    np.testing.assert_allclose(chain.sum((2, 3)), SERVERS * (SERVERS - 1), rtol=1e-5)


def test_what_cannot_be_sampled_is_refused(tmp_path):
    np.save(tmp_path / "run.npy", np.ones((2, 1, 1, 16, 32)))
    for given, said in (
        (("zipff",), "family 'zipff' is unknown (did you mean 'zipf'?); allowed: "),
        (("zipf", "tests"), "split 'tests' is unknown (did you mean 'test'?); allowed: train, validation, test."),
        ((str(tmp_path / "run.npy"), "validation"), "is empty: it has 2 records in all."),
    ):
        assert said in refused(traffic.sampler, *given)
    assert "memory must be above 0 and at most 1" in refused(traffic.sampler, "zipf", memory=1.5)
    assert "records is for a recording" in refused(traffic.sampler, "zipf", records=(0, 1))
    assert "servers must divide the 16 ranks" in refused(
        traffic.sampler(str(tmp_path / "run.npy")), jax.random.key(0), 5
    )
