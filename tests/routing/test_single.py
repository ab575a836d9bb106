"""Flows on one random path each: by the draw itself, told again in plain Python."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.fabric import Circuits, Region, cluster
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.grids import ring_circuits
from mfabric_jax.routing.fixed import (
    add_paths,
    forward_time,
    single_part_times,
    single_paths,
    single_shortest_paths,
    spray_time,
)
from mfabric_jax.routing.region import part_times
from tests.oracles.graph import completion

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


# ------------------------------------------------------------------------------------------------- groups that share
# Servers of 2 GPUs, switches of 8 ports: 4 servers meet at a rail switch. Groups of 2 servers, 4 ranks of a GPU each.
RAILS = {"pxn": False, "gpus_per_server": 2, "radix": 8, "nvswitch_gigabytes_per_s": 1e15}
FOUR = cluster("rail-optimized", 4, 8.0, **RAILS)


def only_from(source, target, size=8e9):
    return jnp.zeros((4, 4)).at[source, target].set(size)


def oracle(paths, sent):
    """Seconds of every group, at 1 GB/s a NIC, the flows one by one in exact fractions."""
    pairs = zip(np.asarray(paths.source), np.asarray(paths.target), strict=True)
    size = [float(sent[s, t]) / paths.slices for s, t in pairs]
    used = np.unique(np.asarray(paths.hops)).tolist()
    ways = [[(used.index(hop), 1) for hop in hops if hop >= 0] for hops in np.asarray(paths.hops).tolist()]
    capacity = [Fraction(float(paths.capacity[hop])) * 10**9 for hop in used]
    finish = completion(capacity, ways, size=size)
    return np.asarray(finish, float).reshape(paths.groups, -1).max(axis=1)


def test_rails_of_two_groups_by_hand():
    found = set()
    for seed in range(16):
        both = single_paths(FOUR, 4, 1, groups=2, seed=seed)
        if both.groups < 2:  # none of their flows drew the same
            continue
        hops, (first, second) = np.asarray(both.hops), np.flatnonzero((both.source == 0) & (both.target == 3))
        # Rank 0 is on rail 0, rank 3 on rail 1: up and down over the spine, as the other group's do. One shares with
        # the other where both drew the same of 4 switches above; on the same rail nobody leaves the rail switch.
        assert (hops[[first, second]] >= 0).sum() == 8
        shares = hops[first, 1] == hops[second, 1]
        found.add(bool(shares))
        np.testing.assert_allclose(time(both, only_from(0, 3)), 16.0 if shares else 8.0, rtol=1e-12)
        np.testing.assert_allclose(time(both, only_from(0, 2)), 8.0, rtol=1e-12)
        assert (hops[(both.source == 0) & (both.target == 2)] >= 0).sum() == 4
    assert found == {True, False}


def test_groups_that_share_rails_against_an_oracle():
    paths = single_paths(FOUR, 4, 1, groups=2, seed=2)
    sent = demand(5)
    seconds = oracle(paths, sent)
    assert seconds[0] != seconds[1]
    np.testing.assert_allclose(time(paths, sent), seconds.mean(), rtol=1e-9)


def test_groups_that_share_nothing_are_left_out():
    apart = single_paths(cluster("rail-optimized", 4, 8.0, **RAILS | {"radix": 4}), 4, 1, groups=2, seed=1)
    assert (apart.groups, len(apart.source)) == (1, 8)
    tree = single_paths(cluster("fat-tree", 2 * RANKS, 8.0, radix=16), RANKS, SLICES, groups=2, seed=1)
    np.testing.assert_array_equal(tree.source, single_paths(GROUP, RANKS, SLICES, seed=1).source)
    assert tree.groups == 1


# ------------------------------------------------------------------------------------------------ rings, forwarding
def test_forwarding_around_a_ring_by_hand():
    # Six servers, two groups of three, one ring: 0 -> 2 goes through 1, beside 0 -> 1. Of 10 and 20 GB on one link of
    # 1 GB/s the first ends after 20 s, the second after 30.
    group = add_paths(DirectLinks(3, 8.0), ring_circuits(6, [1]))
    assert group.groups == 2
    sent = jnp.zeros((3, 3)).at[0, 1].set(10e9).at[0, 2].set(20e9)
    np.testing.assert_allclose(forward_time(group, sent), 30.0, rtol=1e-12)
    for gpus in (1, 2):  # of a server; one rank each, or one of two slices
        ways = single_shortest_paths(group, 3, gpus, gpus, seed=0)
        assert (ways.groups, len(ways.source)) == (1, 6 * gpus)  # 2 -> 0 goes back through 1, not around
        np.testing.assert_allclose(ways.time(group, sent), 30.0, rtol=1e-12)


def test_rings_of_more_steps_against_an_oracle():
    group = add_paths(DirectLinks(4, 8.0), ring_circuits(8, [1, 3]))
    ways, sent = single_shortest_paths(group, 4, 2, 2, seed=4), demand(7)
    assert ways.groups == 2
    np.testing.assert_allclose(time(ways, sent), oracle(ways, sent).mean(), rtol=1e-9)
