"""Flows on one random path each: by the draw itself, told again in plain Python."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits, Region, cluster
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.routing.electrical import spray_time
from mfabric_jax.routing.region import part_times
from mfabric_jax.routing.single import single_part_times, single_paths

RANKS, SLICES = 4, 8  # a rank fills a server
TREE = Electrical(8.0)  # 1 GB/s
GROUP = cluster("fat-tree", RANKS, 8.0, radix=16, nvswitch_gigabytes_per_s=1e15)
time = jax.jit(lambda paths, demand: paths.time(TREE, demand))


def demand(seed, ranks=RANKS):
    sent = np.random.default_rng(seed).uniform(0, 8e9, (ranks, ranks))
    return jnp.asarray(sent * (1 - np.eye(ranks)))


@pytest.fixture(scope="module")
def paths():
    return single_paths(GROUP, RANKS, SLICES, seed=1)


def test_every_slice_of_every_pair_has_a_path(paths):
    pairs = np.asarray(paths.source) * RANKS + np.asarray(paths.target)
    want = SLICES * (1 - np.eye(RANKS, dtype=int)).ravel()
    np.testing.assert_array_equal(np.bincount(pairs, minlength=RANKS**2), want)


def test_no_link_is_faster_than_it_can(paths):
    # Busiest link by its bytes, which no sharing beats; and spraying is never later.
    for seed in range(5):
        sent = demand(seed)
        size = np.asarray(sent)[np.asarray(paths.source), np.asarray(paths.target)] / SLICES
        load = np.zeros(len(paths.capacity))
        np.add.at(load, np.asarray(paths.hops), np.asarray(paths.share) * size[:, None] * (np.asarray(paths.hops) >= 0))
        busiest = (load / (np.asarray(paths.capacity) * 1e9)).max()
        got = float(time(paths, sent))
        assert busiest * (1 - 1e-9) <= got <= 2 * busiest
        assert got >= float(spray_time(TREE, sent, 1)) * (1 - 1e-9)


def test_collisions_cost_and_a_seed_repeats(paths):
    sent = jnp.asarray(8e9 * (1 - np.eye(RANKS)))
    assert float(time(paths, sent)) > 1.2 * float(spray_time(TREE, sent, 1))
    again, other = (single_paths(GROUP, RANKS, SLICES, seed=seed) for seed in (1, 2))
    assert float(time(again, sent)) == float(time(paths, sent))
    assert not np.array_equal(other.hops, paths.hops)


FLOWS, NICS, SERVERS = 16, 2, 4
COUNT = np.asarray([[0, 2, 0, 3], [2, 0, 1, 0], [0, 1, 0, 2], [3, 0, 2, 0]])
REGION = Region(SERVERS, 8.0, 6, 2.0)
single = single_part_times(FLOWS, NICS, seed=3)
parts = jax.jit(lambda count, sent: single(REGION, Circuits(count), sent))


def by_hand(sent):
    """Circuits by the fullest of each pair's; on the EPS the busiest NIC, a bound that equal flows nearly reach."""
    rng = np.random.default_rng(3)
    draw, ends = rng.random((SERVERS, SERVERS, FLOWS)), rng.integers(0, NICS, (2, SERVERS, SERVERS, FLOWS))
    optical, out, into = 0.0, np.zeros((SERVERS, NICS)), np.zeros((SERVERS, NICS))
    for i, j in np.argwhere(sent > 0):
        flow = sent[i, j] / FLOWS
        if COUNT[i, j]:
            taken = [int(x * COUNT[i, j]) for x in draw[i, j]]
            optical = max(optical, flow * max(taken.count(c) for c in range(COUNT[i, j])) / 1e9)
        else:
            for up, down in ends[:, i, j].T:
                out[i, up] += flow
                into[j, down] += flow
    return optical, max(out.max(), into.max()) / 1e9


def test_the_fullest_circuit_and_the_busiest_nic():
    for seed in range(4):
        sent = np.asarray(demand(seed, SERVERS))
        optical, electrical = parts(jnp.asarray(COUNT), jnp.asarray(sent))
        want, bound = by_hand(sent)
        np.testing.assert_allclose(optical, want, rtol=1e-12)
        assert bound * (1 - 1e-9) <= float(electrical) <= 1.6 * bound
        # One circuit a pair carries all of it however flows fall: unsplit routing.
        one = jnp.asarray(np.minimum(COUNT, 1))
        optical, electrical = parts(one, jnp.asarray(sent))
        plain_optical, plain_electrical = part_times(REGION, Circuits(one), sent)
        np.testing.assert_allclose(optical, plain_optical, rtol=1e-12)
        assert float(electrical) >= float(plain_electrical) * (1 - 1e-9)
