"""Whether GPUs of a graph forward: only where they must, or as settings say; by hand, on graphs drawn here."""

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.graphs.made import GraphNumbers, make_graph
from mfabric_jax.fabric.network import network_of
from mfabric_jax.fabric.relays import relays_of
from mfabric_jax.routing.shortest import distances, shortest_loads, shortest_routes


def joined(pairs, gpus, switches):
    tail, head = np.array(pairs).T
    runs = [("out", tail, head, np.ones(len(pairs))), ("back", head, tail, np.ones(len(pairs)))]
    return network_of(runs, [("gpu", gpus), ("switch", switches)], 0.0)


# GPUs 0, 1 and 2 in a row; 0 and 2 also meet over the switches 3, 4 and 5.
ROW = joined([(0, 1), (1, 2), (0, 3), (3, 4), (4, 5), (5, 2), (1, 4)], 3, 3)


def test_a_gpu_in_the_middle_is_passed_by():
    relays = relays_of(ROW)
    assert relays.forward.tolist() == [False] * 3 + [True] * 3
    assert relays.words == "GPUs do not forward for others: all reach each other over switches"
    for relay, hops, first in ((None, 2, 0), (relays.forward, 4, 2)):
        routes = shortest_routes(ROW, [0], [2], relay=relay)
        assert (routes.hops[0] >= 0).sum() == hops
        assert routes.hops[0, 0] == first
        assert distances(ROW, np.array([2]), relay)[0].tolist()[:3] == [hops, 1, 0]
        loads = shortest_loads(ROW, [0], [2], np.ones(1), relay=relay)
        assert np.flatnonzero(loads).tolist() == sorted(routes.hops[0].tolist())
    # From 0 to 1 a direct link is the shortest, whoever forwards.
    assert shortest_routes(ROW, [0], [1], relay=relays.forward).hops.tolist() == [[0]]


@pytest.mark.parametrize("routing", ["spray", "ecmp", "weighted", "least-loaded"])
def test_no_way_leads_over_a_gpu_that_does_not_forward(routing):
    # Two ways of two links from 0 to 1: over GPU 2, or over switch 3.
    square = joined([(0, 2), (2, 1), (0, 3), (3, 1), (2, 3)], 3, 1)
    for seed in range(8):
        routes = shortest_routes(
            square, [0], [1], routing=routing, seed=seed, size=[1], relay=relays_of(square).forward
        )
        assert routes.hops.tolist() == [[2, 3]]
        assert routes.share.tolist() == [[1, 1]]


def test_gpus_forward_where_others_could_not_be_reached():
    row = joined([(0, 1), (1, 2)], 3, 0)
    assert relays_of(row)[1] == "GPUs forward for others: gpu 0 has no other path to gpu 2"
    assert relays_of(row).forward.all()
    with pytest.raises(InputError, match="no path leads from gpu 0 to gpu 2"):
        shortest_routes(row, [0], [2], relay=relays_of(row, "no").forward)
    assert relays_of(ROW, "yes").forward.all()
    with pytest.raises(InputError, match=r"network.on-graph.relay 'maybe' is unknown; allowed: auto, yes, no\."):
        relays_of(row, "maybe")


def test_a_link_that_broke_makes_gpus_forward():
    broken = ROW.without(np.array([2]))  # GPU 0 sends by GPU 1 alone
    assert relays_of(broken).words == "GPUs forward for others: gpu 0 has no other path to gpu 2"


@pytest.mark.parametrize(
    ("kind", "forwards", "more"),
    [
        ("leaf-spine", False, {}),
        ("fat-tree", False, {}),
        ("planes", True, {"planes": 4}),  # NICs of other planes are behind the NVSwitch, and a GPU
        ("planes", False, {"planes": 4, "split": True}),
        ("torus", True, {}),
        ("full-mesh", False, {}),
        ("dragonfly", False, {}),
    ],
)
def test_of_graphs_that_are_made_planes_and_tori_need_it(kind, forwards, more):
    network = make_graph(kind, GraphNumbers(gpus=64, gpus_per_server=4, radix=16, **more))
    assert relays_of(network).forward[:64].all() == forwards
    distance = distances(network, np.arange(64), relays_of(network, "no").forward)[:, :64]
    assert (distance.min() < 0) == forwards  # the words are those of all distances
