"""All-reduces by switches in a replay, beside rings, by hand."""

import numpy as np
import pytest

from mfabric_jax.apps.graphs.tasks import lower_tasks
from mfabric_jax.apps.graphs.tasks.collectives.registry import ALGORITHMS, choices_of, uses_switches
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from tests.apps.graphs.replay.test_replay import NEAR, NIC, one

SHARP = {"network.in-network.sharp": True}
IN_NETWORK = {"algorithms": "all-reduce=in-network"}
NVLINK = 900e9


def summed(ranks=64, size=1e9, late=0.0, group=None):
    """An all-reduce of `size` bytes; rank 0 computes `late` seconds before it."""
    tasks = Tasks(ranks, groups=(tuple(range(ranks)) if group is None else group,))
    for rank in tasks.groups[0]:
        before = [tasks.add(TaskKind.COMPUTE, rank, "late", seconds=late)] if late and not rank else []
        tasks.add(TaskKind.COLLECTIVE, rank, "sum", after=before, op=Op.ALL_REDUCE, group=0, match=0, bytes=size)
    return tasks.graph()


def test_a_gigabyte_among_64():
    # A NIC of 50 GB/s sends 2 x 63/64 GB in a ring, 1 GB to switches that add up.
    assert one(summed()).makespan_s == pytest.approx(2 * 63 / 64 * 1e9 / NIC, **NEAR)
    assert one(summed(), SHARP, **IN_NETWORK).makespan_s == pytest.approx(1e9 / NIC, **NEAR)


@pytest.mark.parametrize("ranks", [2, 3, 16])
def test_every_rank_sends_and_receives_all_bytes_once(ranks):
    flows = lower_tasks(summed(ranks), server=1, **IN_NETWORK)
    moves = flows.transfers
    for end in (flows.src, flows.dst):
        np.testing.assert_allclose(np.bincount(end[moves], flows.bytes[moves], ranks), np.full(ranks, 1e9), rtol=1e-12)


def test_servers_of_eight_reduce_inside_first():
    # 1/8 of the bytes to each other GPU of the server, all-reduced on its rail, and back.
    done = one(summed(), SHARP | {"gpu.gpus_per_server": 8}, **IN_NETWORK)
    assert done.makespan_s == pytest.approx(2 * 7 / 8 * 1e9 / NVLINK + 1e9 / 8 / NIC, **NEAR)


def test_one_server_needs_no_switch_of_the_tree():
    done = one(summed(8), SHARP | {"gpu.gpus_per_server": 8}, **IN_NETWORK)
    assert done.makespan_s == pytest.approx(2 * 7 / 8 * 1e9 / NVLINK, **NEAR)


def test_an_uplink_carries_all_bytes_once():
    # One server below each edge switch, whose uplink has a third of a NIC: the narrowest link of the tree.
    thin = {"network.fabric": "oversub-fat-tree", "network.leaf_servers": 1}
    assert one(summed(), SHARP | thin, **IN_NETWORK).makespan_s == pytest.approx(3 * 1e9 / NIC, **NEAR)
    # With many servers below each, their sum leaves it once: NICs are as narrow.
    wide = {"network.fabric": "oversub-fat-tree", "network.radix": 16}
    for order in ({}, {"ranks_on": "random"}):
        done = one(summed(), SHARP | wide, **IN_NETWORK, **order)
        assert done.makespan_s == pytest.approx(1e9 / NIC, **NEAR)


def test_all_wait_for_the_last():
    # A ring moves what early ranks have; switches that add up begin with the last.
    done = one(summed(4, late=1.0), SHARP, **IN_NETWORK)
    np.testing.assert_allclose(done.finish[:5], [1.0] + [1 + 1e9 / NIC] * 4, rtol=1e-9)


def test_the_tree_s_delay_counts_once():
    delay = SHARP | {"network.link_delay_s": 1e-6}
    # Two links up and down a tree of one switch, and 5 us a message.
    done = one(summed(4), delay, **IN_NETWORK, alpha_s=5e-6)
    assert done.makespan_s == pytest.approx(1e9 / NIC + 2e-6 + 5e-6, **NEAR)


def test_only_all_reduces_can():
    assert list(ALGORITHMS["in-network"]) == [Op.ALL_REDUCE]
    assert uses_switches("all-reduce:<65536=in-network")
    assert not uses_switches("all-reduce=ring*4")
    assert choices_of()[Op.ALL_REDUCE][0].algorithm == "ring"
