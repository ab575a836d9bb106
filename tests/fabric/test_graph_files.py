"""Graphs in the formats of other tools, by hand; and what becomes of them when anything in the file is wrong."""

import json
import random

import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import FabricGraph, read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.graphs.files import graph_files, graphs_in
from mfabric_jax.routing.shortest import shortest_routes
from mfabric_jax.support.unread import Unread

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
INFRAGRAPH = """name: pair
devices:
- name: server
  components:
  - {name: xpu, count: 2, choice: xpu}
  - {name: nvlsw, count: 1, choice: switch}
  - {name: pciesw, count: 1, choice: switch}
  - {name: nic, count: 2, choice: nic}
  links:
  - {name: nvlink, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 100}}}
  - {name: pcie, physical: {bandwidth: {choice: gigabytes_per_second, gigabytes_per_second: 64}}}
  edges:
  - {ep1: {component: xpu}, ep2: {component: nvlsw}, scheme: many2many, link: nvlink}
  - {ep1: {component: xpu}, ep2: {component: pciesw}, scheme: many2many, link: pcie}
  - {ep1: {component: nic}, ep2: {component: pciesw}, scheme: many2many, link: pcie}
- name: switch
  components:
  - {name: asic, count: 1, choice: cpu}
  - {name: port, count: 16, choice: port}
  links:
  - name: ic
  edges:
  - {ep1: {component: asic}, ep2: {component: port}, scheme: many2many, link: ic}
instances:
- {name: host, device: server, count: 2}
- {name: leaf, device: switch, count: 1}
links:
- name: eth
  physical:
    bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}
    latency: {choice: us, us: 2}
edges:
- ep1: {instance: "host[0]", component: nic}
  ep2: {instance: leaf, component: "port[0:2]"}
  scheme: one2one
  link: eth
- ep1: {instance: "host[1]", component: nic}
  ep2: {instance: leaf, component: "port[2:4]"}
  scheme: one2one
  link: eth
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
    **{"nccl.xml": NCCL, "own.json": NODE_LINK, "infragraph.yaml": INFRAGRAPH},
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


def tray(servers=1):
    """Dump of servers of four GPUs with 18 NVLinks of 40.1 GB/s each and a NIC of 400 Gbps. All have equal busids; of
    MNNVL, NCCL writes several servers into one dump."""
    target = '<nvlink target="fffffff:ffff:ff" count="18" tclass="0x068000"/>'
    cpus = ""
    for server in range(servers):
        gpus = [
            gpu_in(f"0{n + 1}:00.0", n, target, rank=4 * server + n).replace('sm="80"', 'sm="100"') for n in range(4)
        ]
        cpu = dump(*gpus, nic_in("05:00.0", 0, 400000))
        cpus += cpu.partition(">")[2].rpartition("<")[0].replace("<cpu", f'<cpu host_hash="{server + 1:#x}"')
    return f'<system version="1">{cpus}</system>'


def hops_of(network, gpu, other):
    """The nodes after a GPU on its shortest paths to another."""
    gpus = endpoints(network)
    hops = shortest_routes(network, gpus[[gpu]], gpus[[other]]).hops[0]
    return {network.node_name(int(network.head[link])) for link in hops[hops >= 0]}


def test_servers_of_one_dump_have_one_nvswitch_and_equal_busids(read):
    network = read(tray(2), "rack.xml")
    assert dict(network.nodes)["nvswitch"] == 1
    names = [network.node_name(node) for node in endpoints(network)]
    assert names == [f"server {server} gpu {dev}" for server in range(2) for dev in range(4)]
    assert hops_of(network, 0, 5) == {"nvswitch 0", "server 1 gpu 1"}
    assert links(network)["server 1 gpu 3", "nvswitch 0"] == [5774.4, 0]  # 18 x 40.1 GB/s


def test_dumps_of_one_nvlink_domain_share_an_nvswitch_and_others_do_not(read, tmp_path):
    read(tray(), "tray.xml")
    file = tmp_path / "tray.xml"
    apart, together = read_graph(f"{file}*4"), read_graph(f"{file}*2@left,{file}@right,{file}*1@right")
    assert [dict(network.nodes)["nvswitch"] for network in (apart, together)] == [4, 2]
    assert hops_of(together, 0, 5) == {"nvswitch 0", "server 1 gpu 1"}
    assert hops_of(together, 8, 15) == {"nvswitch 2", "server 3 gpu 3"}
    assert "network" in hops_of(together, 0, 8)
    assert "network" in hops_of(apart, 0, 5)
    assert links(read_graph(f"{file}@own")) == links(read_graph(file))


def test_words_between_commas_are_graphs_but_dumps_are_one(tmp_path):
    assert graphs_in("a.json,b.topo,c.xml*4") == ("a.json", "b.topo", "c.xml*4")
    assert graphs_in("a.xml,b.xml*3,c.XML@rack") == ("a.xml,b.xml*3,c.XML@rack",)
    (tmp_path / "a,b.json").write_text("{}")
    assert graphs_in(str(tmp_path / "a,b.json")) == (str(tmp_path / "a,b.json"),)
    assert graph_files("a.xml,b.xml*3,a.xml") == ("a.xml", "b.xml")


def test_a_domain_needs_nvlinks_to_a_switch(read, tmp_path):
    read(dump(gpu_in("01:00.0", 0)), "pci.xml")
    with pytest.raises(InputError, match="NVLink domain 'rack' needs a gpu with an nvlink of tclass 0x068000"):
        read_graph(f"{tmp_path / 'pci.xml'}*2@rack")


def test_equal_busids_in_one_server_are_refused(read):
    with pytest.raises(InputError, match=r"two pci of server 0 have the busid '0000:01:00\.0'"):
        read(dump(gpu_in("01:00.0", 0), gpu_in("01:00.0", 1)), "twice.xml")


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


def pci(busid, inside="", kind="0x060400", ids=(0x1000, 0xC010, 0x1000, 0xA096)):
    """A PCI device of 16 lanes of generation 4 (24 GB/s), by default the switch that Broadcom sells as PEX Gen4."""
    fields = zip(("vendor", "device", "subsystem_vendor", "subsystem_device"), ids, strict=True)
    of = " ".join(f'{field}="{number:#06x}"' for field, number in fields)
    link = 'link_speed="16.0 GT/s PCIe" link_width="16"'
    return f'<pci busid="0000:{busid}" class="{kind}" {of} {link}>{inside}</pci>'


def gpu_in(busid, dev, links="", more="", rank=None):
    rank = f'rank="{dev if rank is None else rank}"'
    return pci(busid, f'<gpu dev="{dev}" sm="80" {rank} gdr="1" {more}>{links}</gpu>', "0x030200", (0x10DE,) * 4)


def nic_in(busid, dev, speed=200000, more=""):
    net = f'<net name="nic{dev}" dev="{dev}" speed="{speed}" port="1" guid="{dev}" maxconn="9" gdr="1" {more}/>'
    return pci(busid, f"<nic>{net}</nic>", "0x020700", (0x15B3,) * 4)


def dump(*inside, version=1):
    cpu = '<cpu numaid="0" affinity="ff" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">'
    return f'<system version="{version}">{cpu}{"".join(inside)}</cpu></system>'


SWITCHED = "".join(f'<nvlink target="0000:c{n}:00.0" count="{n}" tclass="0x068000"/>' for n in (4, 5))


@pytest.mark.parametrize("levels", [((0xC010, 0xA096),) * 2, ((0xC030, 0x00B2), (0xC030, 0x1001))])
def test_both_levels_of_a_broadcom_switch_are_one(read, levels):
    """NCCL's ncclTopoFlattenBcmSwitches: a GPU is as near to a NIC below its neighbour's part of the switch as to its
    own. Two GPUs send 4 units each over two NICs, 4 on each; by hops of two levels NIC 0 would have 6."""
    (first, second) = ((0x1000, device, 0x1000, of) for device, of in levels)
    parts = [gpu_in("07:00.0", 0), nic_in("0c:00.0", 0) + gpu_in("0f:00.0", 1), nic_in("12:00.0", 1)]
    below = [pci(f"0{n}:00.0", part, ids=second) for n, part in enumerate(parts, 2)]
    network = read(dump(pci("01:00.0", "".join(below), ids=first)), "switch.xml")
    found = links(network)
    for name in ("gpu 0", "gpu 1", "nic 0000:0c:00.0", "nic 0000:12:00.0"):
        assert found["server 0 pci 0000:01:00.0", f"server 0 {name}"] == [192, 0]
    assert dict(network.nodes)["pci"] == 1


@pytest.mark.parametrize(
    "ids",
    [
        ((0x15B3, 0x1979, 0, 0), (0x15B3, 0x1979, 0, 0)),  # another maker
        ((0x1000, 0xC010, 0x1000, 0xA096), (0x1000, 0xC030, 0x1000, 0x1001)),  # two generations
        ((0x1000, 0xC030, 0x1000, 0x1001), (0x1000, 0xC030, 0x1000, 0x1001)),  # no first level
        ((0x1000, 0xC030, 0x1000, 0x0001), (0x1000, 0xC030, 0x1000, 0x0001)),  # two first levels
    ],
)
def test_other_levels_of_pci_switches_stay(read, ids):
    below = pci("02:00.0", gpu_in("03:00.0", 0), ids=ids[1])
    assert dict(read(dump(pci("01:00.0", below, ids=ids[0])), "two.xml").nodes)["pci"] == 2


def test_a_broadcom_switch_below_a_fused_one_is_a_switch_of_its_own(read):
    inner = pci("03:00.0", pci("04:00.0", gpu_in("05:00.0", 0)))
    network = read(dump(pci("01:00.0", pci("02:00.0", inner))), "four.xml")
    found = links(network)
    assert found["server 0 pci 0000:01:00.0", "server 0 pci 0000:03:00.0"] == [192, 0]
    assert found["server 0 pci 0000:03:00.0", "server 0 gpu 0"] == [192, 0]


def test_nvlinks_to_nvswitches_add_up_and_are_the_way_between_gpus_of_one_pci_switch(read):
    """Four and five NVLinks of 20 GB/s are one of 180 GB/s, where halves of a flow on 80 and 100 would be 160."""
    network = read(dump(pci("01:00.0", gpu_in("02:00.0", 0, SWITCHED) + gpu_in("03:00.0", 1, SWITCHED))), "nv.xml")
    found = links(network)
    assert found["server 0 gpu 0", "nvswitch 0"] == found["nvswitch 0", "server 0 gpu 1"] == [1440, 0]
    gpus = endpoints(network)
    hops = shortest_routes(network, gpus[[0]], gpus[[1]]).hops[0]
    assert {network.node_name(int(network.head[link])) for link in hops[hops >= 0]} == {"nvswitch 0", "server 0 gpu 1"}


def test_links_to_a_shared_cpu_are_no_way_around_nvlinks(read):
    own = SWITCHED + '<c2c bw="450000" count="1"/>'
    network = read(dump(gpu_in("02:00.0", 0, own) + gpu_in("03:00.0", 1, own), nic_in("04:00.0", 0)), "c2c.xml")
    gpus, names = endpoints(network), [network.node_name(node) for node in range(network.size)]
    routes = shortest_routes(network, gpus[[0, 0]], np.array([gpus[1], names.index("network")]))
    crossed = [{network.node_name(int(network.head[link])) for link in hops[hops >= 0]} for hops in routes.hops]
    assert crossed[0] == {"nvswitch 0", "server 0 gpu 1"}
    assert "server 0 gpu 0 nvlink port" in crossed[1]
    assert "server 0 gpu 0 pci port" not in crossed[1]


@pytest.mark.parametrize(("gcn", "GBps"), [("gfx942", 48), ("942", 48), ("910", 36), ("gfx90a", 36), ("906", 24)])
@pytest.mark.parametrize("kind", ["0x120000", "0x038000"])
def test_dump_of_rccl(read, gcn, GBps, kind):
    links_of = [f'<xgmi target="0000:0{other}:00.0" count="2" tclass="{kind}"/>' for other in (3, 2)]
    gpus = [gpu_in(f"0{n}:00.0", n - 2, links_of[n - 2], f'gcn="{gcn}" arch="38911"') for n in (2, 3)]
    found = links(read(dump(*gpus, version=2), "rccl.xml"))
    assert found["server 0 gpu 0", "server 0 gpu 1"] == found["server 0 gpu 1", "server 0 gpu 0"] == [GBps * 16, 0]


def test_gpus_are_in_the_order_of_their_ranks_and_those_without_take_no_part(read):
    some = [gpu_in(f"0{n}:00.0", n, rank=rank) for n, rank in ((1, 2), (2, 0), (3, -1), (4, 1))]
    network = read(dump(*some), "ranks.xml")
    assert [network.node_name(node) for node in endpoints(network)] == [f"server 0 gpu {n}" for n in (2, 4, 1)]


def test_ports_of_one_nic_share_its_pci_link_and_what_is_part_of_another_is_left_out(read):
    parts = nic_in("05:00.0", 0) + nic_in("05:00.1", 1) + nic_in("06:00.0", 2).replace('dev="2"', "")
    parts += nic_in("07:00.0", 3, -1, 'net="1" latency="75.5"') + nic_in("08:00.0", 4, more='net="0" gin="1"')
    found = links(read(dump(gpu_in("01:00.0", 0), parts), "ports.xml"))
    assert {tail: numbers for (tail, head), numbers in found.items() if head == "network"} == {
        "server 0 nic 0000:05:00.0": [200, 0],
        "server 0 nic 0000:07:00.0": [10, 75.5],  # as NCCL takes a NIC that does not know its speed
    }
    assert found["network", "server 0 nic 0000:07:00.0"] == [10, 0]
    assert sum(kind == "nic" for kind, _ in [pair for pair in found if "05:00.1" in pair[1]]) == 0


def test_cpus_without_a_known_rate_are_joined_as_nccl_joins_them(read):
    for fields, GBps in (
        ('vendor="GenuineIntel" familyid="6" modelid="207"', 40),
        ('vendor="GenuineIntel" familyid="19" modelid="1"', 6),
        ('vendor="CentaurHauls" familyid="7" modelid="91"', 9),
        ('vendor="HygonGenuine" familyid="24" modelid="4"', 5000),
    ):
        cpu = f'<cpu numaid="{{}}" arch="x86_64" {fields}>{{}}</cpu>'
        text = "".join(cpu.format(n, gpu_in(f"0{n}:00.0", n)) for n in (0, 1))
        found = links(read(f'<system version="1">{text}</system>', "cpus.xml"))
        assert found["server 0 cpu 0", "server 0 cpu 1"] == [GBps * 8, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (dump(gpu_in("01:00.0", 0, "<ualink/>")), "an element of gpu must be nvlink, xgmi, c2c, got <ualink>"),
        (dump(gpu_in("01:00.0", 0, more='mlopart="0"')), "mlopart, or several gpu in a pci"),
        (dump(gpu_in("01:00.0", 0) + gpu_in("02:00.0", 1, rank=0)), "rank must belong to one gpu, got 0 twice"),
        (dump(gpu_in("01:00.0", 0, SWITCHED.replace("nvlink", "xgmi"), 'gcn="gfx1100"')), "got 'gfx1100'"),
        (dump(gpu_in("01:00.0", 0), version=3), 'must be <system version="1"> (NCCL) or <system version="2"> (RCCL)'),
        (dump(gpu_in("01:00.0", 0), nic_in("02:00.0", 0, more='latency="-3"')), "latency must be from 0 to"),
    ],
)
def test_what_a_dump_holds_that_is_not_read_is_refused(read, text, words):
    with pytest.raises(InputError) as refused:
        read(text, "other.xml")
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (
            "compose.yaml",
            "services:\n  web:\n    image: x\nvolumes: []\n",
            "not a graph in a known format: a YAML file must",
        ),
        ("astra.yml", ASTRA + "devices: [ 3 ]\n", "key 'devices' is unknown"),
    ],
)
def test_a_file_of_another_tool_is_told_to_be_one(read, name, text, words):
    with pytest.raises(InputError) as refused:
        read(text, name)
    assert words in str(refused.value)


def test_attributes_of_a_dump_that_could_change_a_number_are_named(read):
    with pytest.warns(Unread) as told:
        read(dump(gpu_in("01:00.0", 0, more='throttle="2"').replace('gdr="1"', 'gdr="0"')), "named.xml")
    assert "throttle='2' of gpu" in str(told[0].message)
    with pytest.warns(Unread, match="link_speed='128.0 GT/s PCIe' of pci .taken as 8 GT/s"):
        found = links(read(dump(gpu_in("01:00.0", 0).replace("16.0 GT/s", "128.0 GT/s")), "speed.xml"))
    assert found["server 0 port 0.0", "server 0 gpu 0"] == [96, 0]
    with pytest.warns(Unread, match="arch='riscv64' of cpu"):
        read(dump(gpu_in("01:00.0", 0)).replace("x86_64", "riscv64"), "arch.xml")
    assert "gdr='0' of gpu" in str(told[0].message)


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


def outcome(file) -> FabricGraph | str:
    """The graph of a file, or the sentence with which it is refused or a part of it left out; any other exception is
    passed on."""
    try:
        return read_graph(file)
    except (InputError, Unread) as sentence:
        return str(sentence)
