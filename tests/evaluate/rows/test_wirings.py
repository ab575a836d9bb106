"""TopoOpt's wirings: every command simulates the one that is stated, and says the same of the same cluster."""

import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import resolve
from mfabric_jax.case import Case
from mfabric_jax.evaluate.solving import problem_at
from mfabric_jax.evaluate.whole_cluster import example_cluster
from mfabric_jax.fabric.failures import degrade
from mfabric_jax.policies.wirings import ALL_TO_ALLS, Sent, circuits_over_stage, stage_circuits
from tests.small import row, small

WIRINGS = ("demand", "rings", "totient-perms")
MODEL = "llama-moe"  # regions of two servers


def on(wiring, model=MODEL, **changes):
    return small({"network.fabric": "topoopt", "network.topoopt.wiring": wiring} | changes, model)


def group_of(case):
    return problem_at(resolve(case), (case.network.nic_gbps,)).group


def test_the_published_wiring_is_the_default():
    assert Case().network.topoopt.wiring == "totient-perms"
    assert row(on("totient-perms")) == row(small({"network.fabric": "topoopt"}, MODEL))


@pytest.mark.parametrize("wiring", WIRINGS[1:])
def test_a_whole_cluster_has_the_circuits_that_compare_simulates(wiring):
    case = on(wiring, "mixtral-8x7b")
    job, cluster, group = resolve(case).job, example_cluster(case), group_of(case)
    stage = job.servers // job.pp
    (count,) = cluster.regions
    np.testing.assert_array_equal(count[:stage, :stage], np.asarray(group.mesh.count))
    np.testing.assert_array_equal(count, count.T)
    assert count.sum(1).max() <= 8


def test_a_lost_nic_takes_a_matching_where_there_is_one_and_else_a_ring():
    """A ring takes two NICs of every server, and works in both directions: without a link none of the two is left."""
    mixed, rings = (group_of(on(wiring, "mixtral-8x7b")) for wiring in ("totient-perms", "rings"))
    assert mixed.nics > mixed.ring_nics
    assert rings.nics == rings.ring_nics == 6
    left = degrade(mixed, "optical-nic", server=1)
    assert (left.group.nics[1], left.eps_left) == (mixed.nics - 1, 1.0)
    left = degrade(rings, "optical-nic", server=1)
    assert left.eps_left == 4 / 6
    assert left.group.mesh.count.sum() == rings.mesh.count.sum() - 2


def test_only_the_group_that_lost_a_nic_is_wired_around_it():
    nics, demand = np.full((3, 4), 6), np.ones((3, 4, 4)) * (1 - np.eye(4))
    whole, rings = stage_circuits("totient-perms", nics, demand, ALL_TO_ALLS)
    nics[0, 1] -= 1
    hurt, same = stage_circuits("totient-perms", nics, demand, ALL_TO_ALLS)
    assert rings == same == 1
    np.testing.assert_array_equal(hurt[4:, 4:], whole[4:, 4:])
    assert hurt[:4].sum() < whole[:4].sum()
    assert (hurt.sum(1) <= nics.ravel()).all()


def test_circuits_over_a_stage_by_hand():
    """Two groups of two servers, 4 NICs. Even bytes: one ring 0-1-2-3 and two circuits more in a group. Gradients
    alone: two rings; 4 servers have one step."""
    demand = jnp.asarray([[[0.0, 1.0], [1.0, 0.0]]] * 2)
    ring = np.array([[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]])
    pairs = np.kron(np.eye(2, dtype=int), [[0, 2], [2, 0]])
    np.testing.assert_array_equal(circuits_over_stage("totient-perms", 4, demand, ALL_TO_ALLS), ring + pairs)
    np.testing.assert_array_equal(circuits_over_stage("totient-perms", 4, demand, Sent(1.0, 0.0)), 2 * ring)
