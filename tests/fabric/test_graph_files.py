"""Graphs in the formats of other tools, by hand; and what becomes of them when anything in the file is wrong."""

import json
import random

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Network, read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.routing.shortest import shortest_routes

GBPS = 0.125e9  # bytes/s

SIMAI = """6 2 2 0 4 H100
4 5
0 4 2880Gbps 0.000025ms 0
1 4 2880Gbps 0.000025ms 0
2 5 2880Gbps 0.000025ms 0
3 5 2880Gbps 0.000025ms 0
"""
NS3 = """4 1 3
3
0 3 100Gbps 1us 0
1 3 40Gb/s 500ns 0.000000
2 3 5GB/s 0.001ms 0
"""
HTSIM = """# a leaf-spine of 32 hosts
Nodes 32
Tiers 2
Podsize 32
Tier 0
Downlink_speed_Gbps 400
Radix_Down 8
Radix_Up 8
Downlink_Latency_ns 1000
Tier 1
Downlink_speed_Gbps 400
Radix_Down 4
Downlink_Latency_ns 500
"""
THREE_TIERS = """nodes 16
tiers 3
podsize 4
tier 0
downlink_speed_gbps 100
radix_down 2
radix_up 2
downlink_latency_ns 1000
switch_latency_ns 100
tier 1
downlink_speed_gbps 100
radix_down 2
radix_up 2
downlink_latency_ns 2000
switch_latency_ns 30
tier 2
downlink_speed_gbps 100
bundle 2
radix_down 8
downlink_latency_ns 3000
"""
ASTRA = """topology: [ Ring, Switch ]  # innermost first
npus_count: [ 4, 2 ]
bandwidth: [ 400.0, 50 ]
latency: [ 936.25, 1000 ]
"""
NCCL = """<system version="1"><cpu host_hash="0x1" numaid="0" affinity="ffff" arch="x86_64" vendor="GenuineIntel"
 familyid="6" modelid="143">
 <pci busid="0000:19:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
  <pci busid="0000:1b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
   <gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="0000:07:00.0" count="18" tclass="0x068000"/></gpu></pci>
  <pci busid="0000:1c:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
   <nic><net name="mlx5_0" dev="0" latency="0" speed="400000" port="1" rail="0" plane="-1"/></nic></pci></pci>
 <pci busid="0000:2a:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="8">
  <pci busid="0000:2b:00.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
   <gpu dev="1" sm="90" rank="1" gdr="1"><nvlink target="0000:07:00.0" count="18" tclass="0x068000"/></gpu></pci>
  <pci busid="0000:2c:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
   <nic><net name="mlx5_1" dev="1" latency="0" speed="200000" port="1" rail="1" plane="-1"/></nic></pci></pci>
</cpu></system>
"""
NODE_LINK = json.dumps(
    {
        "directed": False,
        "multigraph": False,
        "graph": {},
        "nodes": [{"id": 0, "kind": "gpu"}, {"id": 1, "kind": "gpu"}, {"id": "s", "kind": "switch"}],
        "links": [{"source": n, "target": "s", "capacity_gbps": 400, "latency_s": 1e-6} for n in (0, 1)],
    }
)
SAMPLES = {
    **{"simai.txt": SIMAI, "ns3.txt": NS3, "leaf.topo": HTSIM, "tree.topo": THREE_TIERS, "astra.yml": ASTRA},
    **{"nccl.xml": NCCL, "own.json": NODE_LINK},
}


@pytest.fixture
def read(tmp_path):
    """The graph of a text, in a file of that name."""

    def reader(text, name):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return read_graph(tmp_path / name)

    return reader


def links(network):
    """{(from, to): [Gbps, delay in us]} by name."""
    gbps, us = network.capacity / GBPS, network.delay_s * 1e6
    ends = [network.link_name(link).split(" -> ") for link in range(len(gbps))]
    return {tuple(pair): [float(x.round(9)) for x in numbers] for pair, *numbers in zip(ends, gbps, us, strict=True)}


def test_topology_text_of_simai(read):
    network = read(SIMAI, "simai")
    assert network.nodes == (("gpu", 4), ("nvswitch", 2))
    assert endpoints(network).tolist() == [0, 1, 2, 3]
    pairs = [(0, 4), (1, 4), (2, 5), (3, 5)]
    there = {(f"gpu {gpu}", f"nvswitch {switch}"): [2880, 0.025] for gpu, switch in pairs}
    assert links(network) == there | {(head, tail): numbers for (tail, head), numbers in there.items()}


def test_topology_text_of_ns3(read):
    network = read(NS3, "ns3.txt")
    assert network.nodes == (("host", 3), ("switch", 1))
    found = links(network)
    assert [found[f"host {n}", "switch 3"] for n in range(3)] == [[100, 1], [40, 0.5], [40, 1]]


def test_htsim_of_two_tiers(read):
    network = read(HTSIM, "leaf.topo")
    assert network.nodes == (("host", 32), ("ToR", 4), ("aggregation", 8))
    assert network.links == (("host up", 32), ("host down", 32), ("ToR up", 32), ("ToR down", 32))
    assert set(network.capacity) == {400 * GBPS}
    assert links(network)["host 8", "ToR 1"] == [400, 1]
    assert links(network)["ToR 3", "aggregation 7"] == [400, 0.5]


def test_htsim_of_three_tiers_by_hand(read):
    # 16 hosts in 4 pods of 2 ToR and 2 aggregation switches. Each of the latter has 2 ports up, a bundle of 2: one core
    # above each of the 2, so aggregation a of every pod leads to core a, at 2 x 100 Gbps.
    network = read(THREE_TIERS, "tree.topo")
    assert network.nodes == (("host", 16), ("ToR", 8), ("aggregation", 8), ("core", 2))
    found = links(network)
    assert len(found) == 2 * (16 + 4 * 2 * 2 + 8)
    assert {core for tail, core in found if tail in ("aggregation 1", "aggregation 7")} >= {"core 1"}
    assert ("aggregation 1", "core 0") not in found
    # Delays: 1 us up into a ToR of 0.1 us, nothing at the host; then 2 us and the switch at the end; 3 us and 0.
    assert [found["host 0", "ToR 0"], found["ToR 0", "host 0"]] == [[100, 1.1], [100, 1]]
    assert [found["ToR 0", "aggregation 1"], found["aggregation 1", "ToR 0"]] == [[100, 2.03], [100, 2.1]]
    assert [found["aggregation 1", "core 1"], found["core 1", "aggregation 1"]] == [[200, 3], [200, 3.03]]


def test_network_of_astra_sim(read):
    network = read(ASTRA, "astra.yml")
    assert network.nodes == (("gpu", 8), ("switch", 4))
    found = links(network)
    assert len(found) == 2 * (2 * 4 + 8)  # two rings of four links, four switches of two
    assert found["gpu 0", "gpu 3"] == found["gpu 3", "gpu 0"] == [3200, 0.93625]
    assert found["gpu 1", "switch 1.1"] == found["switch 1.1", "gpu 5"] == [400, 1]
    blocks = "topology:\n- FullyConnected\nnpus_count:\n - 3\nbandwidth:\n- 1\nlatency:\n- 0\n"
    assert len(read(blocks, "blocks").tail) == 6


def test_dump_of_nccl(read):
    network = read(NCCL, "nccl.xml")
    assert dict(network.nodes) == {"cpu": 1, "port": 2, "pci": 2, "nic": 2, "switch": 2, "gpu": 2, "nvswitch": 1}
    found = links(network)
    assert found["server 0 gpu 0", "nvswitch 0"] == [18 * 20.6 * 8, 0]
    assert found["server 0 pci 0000:19:00.0", "server 0 gpu 0"] == [48 * 8, 0]  # 16 lanes of generation 5
    assert found["server 0 port 0.1", "server 0 pci 0000:2a:00.0"] == [12 * 8, 0]  # 8 lanes of generation 4
    assert found["server 0 nic 0000:1c:00.0", "rail 0"] == [400, 0]
    assert found["rail 1", "server 0 nic 0000:2c:00.0"] == [200, 0]


def test_dumps_of_several_servers_meet_at_rails_and_change_rails_on_nvlink(read, tmp_path):
    read(NCCL, "nccl.xml")
    network = read_graph(f"{tmp_path / 'nccl.xml'}*3")
    gpus = endpoints(network)
    assert [network.node_name(gpu) for gpu in gpus] == [f"server {s} gpu {g}" for s in range(3) for g in range(2)]
    assert [count for kind, count in network.nodes if kind == "switch"] == [2]
    routes = shortest_routes(network, gpus[[0]], gpus[[5]])  # rail 0 of server 0 to rail 1 of server 2
    crossed = {network.node_name(int(network.head[link])) for link in routes.hops[0][routes.hops[0] >= 0]}
    assert {"nvswitch 0", "nvswitch 2"} <= crossed
    assert not any("cpu" in name for name in crossed)
    twice = read_graph(f"{tmp_path / 'nccl.xml'},{tmp_path / 'nccl.xml'}")
    assert len(endpoints(twice)) == 4


def test_nccl_gpus_that_are_joined_without_a_switch_and_two_cpus(read):
    gpu = (
        '<cpu host_hash="0x1" numaid="{0}" arch="x86_64" vendor="AuthenticAMD"><pci busid="{0}" link_width="16"'
        ' link_speed="8.0 GT/s PCIe"><gpu dev="{0}" sm="80"><nvlink target="{1}" count="4" tclass="0x030200"/>'
        '<c2c bw="450000" count="1"/></gpu></pci></cpu>'
    )
    text = f'<system version="1">{gpu.format(0, 1)}{gpu.format(1, 0)}</system>'
    found = links(read(text, "two.xml"))
    assert found["server 0 gpu 0", "server 0 gpu 1"] == found["server 0 gpu 1", "server 0 gpu 0"] == [640, 0]
    assert found["server 0 cpu 0", "server 0 cpu 1"] == [128, 0]
    assert found["server 0 gpu 1", "server 0 cpu 1"] == [3600, 0]
    assert found["server 0 port 0.0", "server 0 gpu 0"] == [96, 0]


def mutated(text, draw):
    """The text after up to three mistakes: something deleted, doubled, moved or replaced, a character flipped, cut."""
    for _ in range(draw.randint(1, 3)):
        rows = text.splitlines(keepends=True)
        at, cut = draw.randrange(len(text) or 1), draw.randrange(len(rows) or 1)
        flipped = draw.choice('0123456789-.eE<>"[]{},:# \n\tx\u00e9\0')
        word = draw.choice(text.split() or [""])
        text = draw.choice(
            [
                text[:at] + text[at + draw.randint(1, 20) :],
                text[:at] + text[max(0, at - draw.randint(1, 20)) :],
                text[:at] + flipped + text[at + 1 :],
                text[:at],
                "".join(rows[:cut] + rows[cut + 1 :]),
                "".join(rows[: cut + 1] + rows[cut:]),
                "".join(draw.sample(rows, len(rows))),
                text.replace(word, draw.choice(["", "0", "-1", "99999999999", "nan", "tbd", "1e999"]), 1)
                if word
                else text,
            ]
        )
    return text


@pytest.mark.parametrize("name", SAMPLES)
def test_a_damaged_file_is_refused_or_a_graph(name, tmp_path):
    draw, refused, file = random.Random(name), 0, tmp_path / name
    for _ in range(200):
        file.write_text(mutated(SAMPLES[name], draw), encoding="utf-8")
        found = outcome(file)
        if isinstance(found, str):
            assert (found[-1:], name in found, "\n" in found) == (".", True, False)
            refused += 1
        else:
            assert np.isfinite(found.capacity).all()
    assert refused >= 60


def outcome(file) -> Network | str:
    """The graph of a file, or the sentence with which it is refused; any other exception is passed on."""
    try:
        return read_graph(file)
    except InputError as mistake:
        return str(mistake)
