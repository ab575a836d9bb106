"""Mistakes in flows, routes, regions and networks."""

import functools

import numpy as np

from mfabric_jax import all_to_all_time
from mfabric_jax.fabric import Circuits, Cluster, FabricGraph, Region, cluster
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.policies import Plan
from mfabric_jax.routing import cluster_routes, links_of, relay_shares
from mfabric_jax.routing.fixed import add_paths, forward_time, single_shortest_paths
from mfabric_jax.routing.region import relayed_part_times
from mfabric_jax.routing.shortest import shortest_routes
from tests.routing.clusters import built
from tests.routing.regions import DIRECT, EPS, SERVERS, all_over, region
from tests.routing.test_shortest import leaf_spine

NONE = np.zeros((SERVERS, SERVERS))
RING = np.roll(np.eye(SERVERS, dtype=int), 1, 0) + np.roll(np.eye(SERVERS, dtype=int), -1, 0)
ODD = np.zeros((3, 3))
HOSTS = (("node", 2),), (("link", 2),)


def shortest(**changes):
    return lambda: shortest_routes(leaf_spine(), **{"src": [0, 1], "dst": [5, 6]} | changes)


def on_tree(src=(0, 1), dst=(9, 9), **changes):
    return lambda: cluster_routes(built("fat-tree"), src, dst, **changes)


def made(**changes):
    return functools.partial(cluster, **{"name": "fat-tree", "servers": 4, "nic_gbps": 100.0} | changes)


def relayed(shares):
    def call():
        plan = Plan(Circuits(RING), shares)
        return all_to_all_time(region(), plan, 1 - np.eye(SERVERS), routing="relay")

    return call


def timed_with(count):
    return lambda: all_to_all_time(region(), Circuits(count), NONE)


def shares_of(parts):
    shares = all_over(DIRECT)
    shares[0, 1] = 0
    for place, part in parts.items():
        shares[0, 1, place] = part
    return shares


def apart():
    count = np.zeros((1, 4, 4), int)
    count[0, 0, 1] = count[0, 1, 0] = 1
    return cluster_routes(cluster("topoopt", 4, 100.0, regions=count), [0], [16])


REFUSED = [
    (shortest(routing="ecpm"), "routing 'ecpm' is unknown (did you mean 'ecmp'?)"),
    (shortest(src=[0, 1, 2]), "src and dst must have the same length, got 3 and 2"),
    (shortest(src=[0, 24]), "src must lie in 0..23, got 0..24"),
    (shortest(routing="least-loaded"), "needs the size of every flow"),
    (shortest(routing="least-loaded", size=[1]), "size must have the shape [2], got [1]"),
    (lambda: shortest_routes(leaf_spine(np.inf), [0], [5], routing="weighted"), "needs links of finite capacity"),
    (on_tree((0, 32), (1, 1)), "src must lie in 0..31, got 0..32"),
    (on_tree((0, 1), (1,)), "the same length"),
    (on_tree(routing="sprai"), "routing 'sprai' is unknown"),
    (on_tree(routing="least-loaded"), "needs size"),
    (on_tree(routing="least-loaded", size=[1.0]), "size must have the shape [2], got [1]"),
    (lambda: links_of(built("fat-tree"), "any"), "routing 'any' is unknown"),
    (apart, "no path leads from server 0 to server 2"),
    (
        lambda: cluster_routes(Cluster("rails", 2, 100.0, 4, Tree(8, 8, 2, parts=4), rails=True), [0], [5]),
        "different rails have no path to each other without pxn",
    ),
    (made(name="fattree"), "fabric 'fattree' is unknown (did you mean 'fat-tree'?)"),
    (made(regions=np.zeros((1, 4, 4), int)), "fat-tree has no circuits; regions was [1, 4, 4]."),
    (made(name="mfabric"), "mfabric needs circuits; regions was not given."),
    (made(name="mfabric", regions=np.zeros((1, 3, 3), int)), "regions must be circuits [G S S] with G x S = 4"),
    (made(name="mfabric", regions=np.ones((1, 4, 4), int)), "regions must hold whole numbers of circuits"),
    (made(goodput=0.0), "goodput must be above 0 and at most 1, got 0.0."),
    (made(radix=2, tiers=2), "a tree of 2 tiers and radix 2 has room for 2 hosts, got 32"),
    (lambda: Cluster("mine", 2, 100.0, 8, Tree(8, 8)), "a server has 8 GPUs and 4 NICs"),
    (lambda: Cluster("mine", 3, 100.0, 4, Tree(8, 8)), "divide evenly over 3 servers"),
    (lambda: FabricGraph(np.arange(2), np.arange(2) + 1, *np.ones((2, 2)), *HOSTS), "head must lie in 0..1, got 1..2"),
    (lambda: FabricGraph(np.arange(2), np.arange(2), -np.ones(2), np.ones(2), *HOSTS), "capacity must be 0 or more"),
    (
        lambda: FabricGraph(np.arange(2), np.arange(2), np.ones(3), np.ones(2), *HOSTS),
        "capacity must have the shape [2]",
    ),
    (lambda: Electrical(400.0, nic_use="pooled", pxn=True), "nic_use must be own, got 'pooled'"),
    (lambda: all_to_all_time(region(), Circuits(NONE), NONE, routing="fastest"), "routing 'fastest' is unknown"),
    (lambda: all_to_all_time(region(), Circuits(ODD), NONE), "circuits must be [S S] with S = 8 servers, got [3, 3]"),
    (lambda: relayed_part_times(region(), Circuits(NONE), ODD, server=0), "demand must be [S S] with S = 8 servers"),
    (lambda: Region(4, 8e-9, optical_degree=np.ones((4, 1), int)), "optical_degree must be a number or", "[4, 1]"),
    (
        lambda: Region(8, 8e-9, optical_degree=np.arange(6)),
        "optical_degree must be a number",
        "jax.vmap(lambda value: ",
    ),
    (lambda: Region(8, np.arange(1.0, 4.0)), "nic_gbps must be one number, got the shape [3]", "under vmap"),
    (lambda: Region(8, 8e-9, delay_s=np.ones(2)), "delay_s must be one number, got the shape [2]", "under vmap"),
    (lambda: Region(8, 8e-9, optical_degree=2.5), "optical_degree must be whole, got 2.5"),
    (timed_with(np.full((SERVERS, SERVERS), 1)), "circuits: a server joined to itself; server 0 has [1, 1, "),
    (timed_with(np.eye(SERVERS, k=1, dtype=int)), "circuits: not symmetric"),
    (timed_with(-2 * RING), "circuits: a count that is negative or NaN"),
    (timed_with(4 * RING), "more circuits at a server than its optical degree", "its optical degree is 6.0."),
    (lambda: Region(4, 8e-9, electrical_nics=np.array([6, 6, -1, 6])), "electrical_nics must be finite"),
    (lambda: Region(3, 8e-9, relay_efficiency=1.5), "relay_efficiency"),
    (relayed(None), "needs a plan with shares"),
    (relayed(np.ones((3, 3, 3))), "shares must be [S S S+2] = [8, 8, 10]"),
    (relayed(shares_of({DIRECT: 0.5})), "sum to 1", "0 -> 1"),
    (relayed(shares_of({0: 0.5, DIRECT: 0.5})), "must not relay through an end of the pair", "0 -> 1"),
    (relayed(shares_of({2: -0.5, DIRECT: 0.5, EPS: 1})), "must be numbers of 0 or more"),
    (lambda: relay_shares(region(), Circuits(ODD), NONE), "circuits must be [S S] with S = 8"),
    (lambda: relay_shares(region(), Circuits(NONE), NONE, steps=-1), "steps"),
    (lambda: add_paths(DirectLinks(4, 1.0), np.zeros((4, 4), int)), "no path leads from server 0 to server 1"),
    (lambda: add_paths(DirectLinks(4, 1.0), np.zeros((3, 3), int)), "count must hold whole groups of 4 servers"),
    (
        lambda: forward_time(DirectLinks(4, 1.0), np.ones((4, 4))),
        "direct links need circuits before they carry anything",
    ),
    (lambda: single_shortest_paths(DirectLinks(4, 8.0), 4, 1, 1), "direct links need circuits before paths are drawn"),
]
