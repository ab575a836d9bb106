"""Mistakes in fabrics, prices and failures, each answered with one sentence; see `tests/test_refusals.py`."""

import copy
import functools
import pathlib
import tempfile

import numpy as np

from mfabric_jax.fabric import Circuits, Prices, Region, cluster, cluster_cost, degrade, get, get_transport
from mfabric_jax.fabric.direct_links import Mesh
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.graph import graph_of, graph_text
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.fabric.parts_list import PartsTable
from mfabric_jax.fabric.registry import cost_table
from mfabric_jax.fabric.tree import Tree
from tests.fabric.test_graph import two


def read(reader, text, *rest, kind="toml"):
    """What a reader says of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / f"own.{kind}"
        file.write_text(text)
        return reader(file, *rest)


PRICES = [
    (lambda: cluster_cost("fat-trees", 1, 400), "fabric 'fat-trees' is unknown (did you mean 'fat-tree'?)"),
    (lambda: cluster_cost("nvl72", 1, 400, gpus=0), "gpus must be a whole number of at least 1, got 0."),
    (lambda: cost_table("fat-tree", 400.0, nics=-1), "nics must be finite and not negative, got -1."),
    (
        lambda: cluster_cost("topoopt", 1, 900),
        "nic_gbps 900 has no price; prices are listed from 100 to 800 Gbps: take one of these, or list ",
    ),
    (lambda: cluster_cost("rail-only", 16, np.array([100.0, 900.0])), "nic_gbps 900 has no price"),
    (lambda: Prices().price_of("fiber", 400), "part 'fiber' is unknown (did you mean 'fibre'?)"),
    (lambda: Prices(nic=(1, 2, 3)), "nic must list one price for each of the 4 bandwidths in gbps, got [1, 2, 3]."),
    (lambda: Prices(switch_port=7), "switch_port must be a list of numbers, got 7."),  # type: ignore[arg-type]
    (lambda: Prices(gbps=(100, 400, 200, 800)), "gbps must rise from one bandwidth to the next, got [100, 400, 200,"),
    (lambda: Prices(ocs_port=-1), "ocs_port must be finite and not negative, got -1."),
    *(
        (functools.partial(read, Prices.read, text), sentence)
        for text, sentence in (
            ("ocs_prot = 1", "price 'ocs_prot' is unknown (did you mean 'ocs_port'?); allowed: gbps, tr"),
            ("[switch.800]\nusd = 9", "switch.800 needs ports of a whole switch."),
            ("[switch.fast]\nusd = 9\nports = 1", "switch.fast must be named by the Gbps of its ports, such as"),
            ("[switch.800]\nusd = 9\nports = 1\nnic_gbps = 300", "must divide the 800 Gbps of a port, got 300."),
            ("[switch.800]\nusd = -9\nports = 1", "switch.800.usd must be finite and not negative, got -9."),
            ("[switch.400]\nusd=9\nports=1\n[switch.800]\nusd=9\nports=1\nnic_gbps=400", "of different nic_gbps"),
            ("gbps = [1, 2]\nnic = [1, 2]", "needs prices at its bandwidths; add transceiver, switch_port."),
        )
    ),
    *(
        (functools.partial(read, PartsTable.read, text, "X" if "ocs" in text else None), sentence)
        for text, sentence in (
            ("gpus = 3", "gpus must be a table of values by name, got 3."),
            ("[gpus.X]\nwatts = 3", "field of gpus.X 'watts' is unknown; allowed: usd, server, source."),
            ("[gpus.X]\nusd = -3", "gpus.X.usd must be finite and not negative, got -3."),
            ("[gpus.X]\nserver = 'hgy'", "gpus.X.server 'hgy' is unknown (did you mean 'hgx'?)"),
            ("[running]\npue = 0.9", "running.pue must be at least 1, got 0.9."),
            (
                "[watts]\nnic = [1, 2]",
                "watts: nic must list one power for each of the 4 bandwidths in gbps, got",
            ),
            ("[ocs.X]\nusd = 1", "ocs.X needs ports, the number of ports of one switch."),
            ("[ocs.X]\nports = 8\ndelay_s = [2, 1]", "ocs.X.delay_s must be fastest and slowest, got [2, 1]."),
            (
                "[ocs.X]\nports = 8\nreconfigurations_per_s = 0",
                "ocs.X.reconfigurations_per_s must be finite and above 0, got 0.",
            ),
        )
    ),
    *(
        (functools.partial(read, PartsTable.read, text, kind="json"), sentence)
        for text, sentence in (
            (
                '{"servers": {"hgx": {"gpus": null}}}',
                "servers.hgx.gpus must be a whole number of at least 1, got",
            ),
            ('{"watts": {"nic": null}}', "watts: nic must be a list of numbers, got None."),
        )
    ),
]
TRANSPORT = "payload_bytes = 3000\nheader_bytes = 1000\n"
TRANSPORTS = [
    (functools.partial(read, get_transport, text), sentence)
    for text, sentence in (
        (TRANSPORT + "rho = 0.9", "own.toml': field of a transport 'rho' is unknown; allowed: name, payload_bytes,"),
        ("payload_bytes = 4096", "a transport needs header_bytes."),
        (TRANSPORT + "ack_bytes = 4000", "ack_bytes must be below the 4000 bytes of a packet, got 4000."),
        (TRANSPORT + "regain = 0", "regain must be finite and above 0, got 0."),
        (TRANSPORT + "store_and_forward = 1", "store_and_forward must be true or false, got 1."),
    )
]
GROUPS = [
    (lambda: Region(2, 400.0, delay_s=-1), "delay_s must be finite and not negative, got -1"),
    (lambda: Region(2, 0), "nic_gbps must be finite and above 0, got"),
    (lambda: Electrical(400.0, nic_use="pool"), "nic_use 'pool' is unknown (did you mean 'pooled'?); allowed: own, p"),
    (lambda: Electrical(400.0, oversubscription=0), "oversubscription must be finite and above 0, got 0"),
    (lambda: get_transport("dtcp"), "transport 'dtcp' is unknown (did you mean 'dctcp'?)"),
    (lambda: get("fattree"), "fabric 'fattree' is unknown (did you mean 'fat-tree'?); allowed: fat-"),
    (
        lambda: cluster("torus", 8, 400.0, nics=8),
        "torus needs equally many NICs in each of its 6 directions, got nics 8",
    ),
    (lambda: cluster("torus", 8, 400.0, regions=np.zeros((1, 8, 8), int)), "torus has no circuits"),
    (lambda: cluster("mfabric", 8, 400.0), "mfabric needs circuits; regions was not given."),
    (lambda: Circuits(np.zeros((2, 3), int)), "count must be [S S], got [2, 3]"),
]
REGION = Region(3, 100.0, 6, 4.0)
PEER = "failure 'electrical-nics' needs a peer that circuits reach; the region has none."
FAILURES = [
    (lambda: degrade(REGION, "gpus"), "failure 'gpus' is unknown (did you mean 'gpu'?); allowed: electrical-nic,"),
    (lambda: degrade(REGION, "link", server=3), "server must be below the 3 of the region, got 3."),
    (
        lambda: degrade(REGION, "link", radix=2),
        "radix must be 4 or more for failure 'link', so that another link stays up, got 2.",
    ),
    (lambda: degrade(Region(3, 100.0, 0, 2.0), "electrical-nics"), PEER),
]
LINK = "link 1 (s -> b)"
RATE = f"capacity_bytes_per_s of {LINK} must be"
MISSING = object()
GRAPHS = [
    (("directed",), MISSING, "directed must be true or false, but it is missing"),
    (("nodes",), MISSING, "a graph must have nodes, got ['directed', 'links']"),
    (("links",), MISSING, "a graph must have edges or links, got ['directed', 'nodes']"),
    (("direct",), True, "field of the graph 'direct' is unknown (did you mean 'directed'?); allowed: directed"),
    (("edges",), [], "a graph must have edges or links, got both"),
    (("nodes",), {"a": 1}, "nodes must be a list of objects"),
    (("nodes", 1, "id"), MISSING, "node 1 has no id"),
    (("nodes", 1, "id"), "b", "id of a node must be unique, but two nodes are called 'b'"),
    (("nodes", 1, "knd"), "gpu", "field of node 1 (a) 'knd' is unknown (did you mean 'kind'?); allowed: id, kind"),
    (("nodes", 1, "kind"), "GPUs", "kind of node 1 (a) must be 'gpu' if flows start and end there, got 'GPUs'"),
    (("links", 1, "source"), MISSING, "link 1 has no source"),
    (("links", 1, "target"), "c", "link 1 (s -> c) names a node that is not in nodes: 'c'"),
    (("links", 1, "capacity"), 400, f"{LINK}: capacity has no unit; give capacity_bytes_per_s or capacity_gbps"),
    (("links", 1, "capacity_bytes_per_s"), MISSING, f"{LINK} must have capacity_bytes_per_s or capacity_gbps, got n"),
    (("links", 1, "capacity_gbps"), 8, f"{LINK} must have capacity_bytes_per_s or capacity_gbps, got both"),
    (("links", 1, "capacity_bytes_per_s"), -1, f"{RATE} finite and not negative, got -1"),
    (("links", 1, "latency_s"), -1.0, f"latency_s of {LINK} must be finite and not negative, got -1.0"),
    (("links", 1, "target"), "s", "link 1 (s -> s) joins a node to itself"),
]


def graph_with(place, value):
    """A graph with a value in this place, or without what is there."""
    data = copy.deepcopy(two())
    spot = data
    for key in place[:-1]:
        spot = spot[key]
    if value is MISSING:
        del spot[place[-1]]
    else:
        spot[place[-1]] = value
    return graph_of(data)


def text_of(capacity=0.0, delay_s=0.0, names=None):
    """The text of a network of a link from a node to itself."""
    ends, one = np.zeros(1, np.int64), np.ones(1)
    return graph_text(FabricGraph(ends, ends, capacity * one, delay_s * one, (("gpu", 2),), (("link", 1),), names))


TREES = [
    (functools.partial(Tree, **{"hosts": 4} | changes), sentence)
    for changes, sentence in (
        ({"radix": 1}, "radix must be a whole number of at least 2, got 1."),
        ({"parts": 3}, "parts must divide the 4 hosts, got 3."),
        ({"tiers": 4}, "tiers must be 1, 2 or 3, got 4."),
        (
            {"tiers": 1, "oversubscription": 3.0},
            "a tree of 1 tier has no links up and cannot be oversubscribed, got 3:1",
        ),
        ({"tiers": 1, "hosts": 65}, "of 1 tier and radix 64 has room for 64 hosts, got 65; choose 2 tiers or a larger"),
        (
            {"tiers": 2, "oversubscribed_at": "aggregation"},
            "a tree of 2 tiers can only be oversubscribed at the edge, got at 'agg",
        ),
        ({"oversubscription": 8.0, "radix": 8, "oversubscribed_at": "aggregation"}, "radix 8 is too small for 8:1."),
        ({"hosts": 17, "radix": 4}, "3 tiers and radix 4 has room for 16 hosts, got 17; choose a larger radix."),
        ({"hosts": 18, "radix": 4, "parts": 2, "tiers": 2}, "has room for 8 hosts, got 9; choose 3 tiers or a larger"),
    )
]
LESS_THAN_NOTHING = [
    (
        lambda: Mesh(np.array([0]), np.array([1]), np.array([-0.5]), (("server", 2),), (("link", 1),)),
        "nics of a link must be finite and not negative, got [-0.5].",
    )
]
REFUSED = [
    *(*PRICES, *TREES, *TRANSPORTS, *GROUPS, *FAILURES, *LESS_THAN_NOTHING),
    *((functools.partial(graph_with, place, value), sentence) for place, value, sentence in GRAPHS),
    (lambda: graph_of([]), "a graph must be an object with nodes and edges, got"),  # type: ignore[arg-type]
    (lambda: text_of(names=("a", "a")), "two nodes are called 'a'"),
    (lambda: text_of(capacity=np.inf), "capacity must be finite"),
]
