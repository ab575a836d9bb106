"""Graphs of infragraph by hand: which components become which nodes, what edges mean, and what is refused."""

import json

import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import read_graph
from mfabric_jax.fabric.graph import endpoints
from mfabric_jax.fabric.graph_file import GraphFile, load_graph
from mfabric_jax.support.unread import Unread
from mfabric_jax.support.yaml_text import parse_yaml
from tests.fabric.test_graph_files import INFRAGRAPH, links

IN_SWITCHES = "in switches a link without bandwidth is taken as 5000 GB/s: link 'ic' of device 'switch'"
OLD = """devices:
  - name: server
    components:
      - name: xpu
        count: 1
        type: xpu
      - name: nic
        count: 2
        type: nic
        external: true
    links:
      - name: pcie
        bandwidth:
          choice: giga_bytes_per_second
          giga_bytes_per_second: 16
    connections:
      - xpu.0.pcie.nic.0
      - xpu.0.pcie.nic.1
  - name: switch
    components:
      - {name: asic, count: 1, type: custom}
      - {name: port, count: 4, type: nic, external: true}
    links:
      - name: ic
        bandwidth: {choice: giga_bytes_per_second, giga_bytes_per_second: 20}
    connections: [asic.0.ic.port.0, asic.0.ic.port.1, asic.0.ic.port.2]
instances:
  - {name: host, count: 2, device: server}
  - {name: leaf, count: 1, device: switch}
links:
  - name: eth
    bandwidth: {choice: gigabits_per_second, gigabits_per_second: 400}
connections:
  - host.0.nic.0.eth.leaf.0.port.0
  - host.1.nic.1.eth.leaf.0.port.1
"""


@pytest.fixture
def read(tmp_path):
    """The graph of a YAML text, or of a value as JSON."""

    def reader(content):
        file = tmp_path / ("a.yaml" if isinstance(content, str) else "a.json")
        file.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return read_graph(file)

    return reader


def value(changes=()):
    """The value of `INFRAGRAPH`, changed at paths such as `devices.0.name`; None: left out."""
    data = parse_yaml(INFRAGRAPH)
    for path, changed in dict(changes).items():
        *above, last = (int(word) if word.isdecimal() else word for word in path.split("."))
        table = data
        for word in above:
            table = table[word]
        if changed is None:
            del table[last]
        else:
            table[last] = changed
    return data


def test_servers_and_a_switch(read):
    with pytest.warns(Unread, match=IN_SWITCHES):
        network = read(INFRAGRAPH)
    assert dict(network.nodes) == {"gpu": 4, "nvswitch": 2, "pci": 2, "nic": 4, "switch": 1, "port": 4}
    assert [network.node_name(node) for node in endpoints(network)][::3] == ["host.0.xpu.0", "host.1.xpu.1"]
    found = links(network)
    assert found["host.0.xpu.1", "host.0.nvlsw.0"] == found["host.0.nvlsw.0", "host.0.xpu.1"] == [800, 0]
    assert found["host.1.nic.0", "host.1.pciesw.0"] == [512, 0]
    # Port 2 of the switch: the smaller of 400 Gbps and 5,000 GB/s, and the 2 us of the link outwards. Ports 4 to 15
    # lead nowhere.
    assert found["host.1.nic.0", "leaf.0.asic.0"] == found["leaf.0.asic.0", "host.1.nic.0"] == [400, 2]
    # The GPUs share a PCI switch, which must not be as near as their NVSwitch.
    assert found["host.0.pciesw.0", "host.0.xpu.0 pcie port of host.0.pciesw.0"] == [512, 0]
    assert len(found) == 2 * (4 + 4 * 2 + 4 + 4)


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
def test_the_graph_as_a_cluster(tmp_path):
    """Two servers of two GPUs, whose two NICs of 400 Gbps each end at a port of a switch."""
    (tmp_path / "two.yaml").write_text(INFRAGRAPH)
    graph = load_graph(GraphFile(str(tmp_path / "two.yaml")))
    assert (graph.per_server, graph.nics, graph.nic_Bps, graph.inside_Bps) == (2, 2, 50e9, 100e9)
    assert (graph.attachment.switch_ports, graph.attachment.transceivers) == (1, 2)


def test_connections_types_and_bandwidths_of_older_files(read):
    network = read(OLD)
    assert dict(network.nodes) == {"gpu": 2, "nic": 4, "switch": 1}
    found = links(network)
    assert found["host.0.xpu.0", "host.0.nic.1"] == [128, 0]
    assert found["host.1.nic.1", "leaf.0.asic.0"] == [160, 0]  # 20 GB/s to the port, less than the 400 Gbps outside
    assert len(found) == 2 * (2 * 2 + 2)


def test_a_device_in_a_device_and_slices(read):
    """Each server has two cards of two ports: ports 0 of cards 0 and 1 are linked to switches 1 and 0."""
    card = {
        "name": "card",
        "components": [{"name": "asic", "count": 1, "choice": "nic"}, {"name": "port", "count": 2, "choice": "port"}],
        "links": [{"name": "serdes", "physical": {"bandwidth": {"gigabits_per_second": 100}}}],
        "edges": [
            {"ep1": {"component": "asic"}, "ep2": {"component": "port"}, "scheme": "many2many", "link": "serdes"}
        ],
    }
    end = {"device": "card[0:2]", "component": "asic[0]"}
    server = {
        "name": "server",
        "components": [{"name": "gpu", "count": 2, "choice": "xpu"}, {"name": "card", "count": 2, "choice": "device"}],
        "links": [{"name": "pcie", "physical": {"bandwidth": {"gigabytes_per_second": 64}}}],
        "edges": [{"ep1": {"component": "gpu"}, "ep2": end, "scheme": "one2one", "link": "pcie"}],
    }
    switch = {"name": "switch", "components": [{"name": "asic", "count": 1, "choice": "switch"}]}
    outside = {
        "ep1": {"instance": "host[:1]", "component": "card.port[::2]"},
        "ep2": {"instance": "leaf[::-1]", "component": "asic"},
        "scheme": "one2one",
        "link": "eth",
    }
    data = {
        "devices": [card, server, switch],
        "instances": [
            {"name": "host", "device": "server", "count": 1},
            {"name": "leaf", "device": "switch", "count": 2},
        ],
        "links": [{"name": "eth", "physical": {"bandwidth": {"gigabits_per_second": 50}}}],
        "edges": [outside],
    }
    network = read({"infrastructure": data})
    assert dict(network.nodes) == {"gpu": 2, "nic": 2, "port": 4, "switch": 2}
    found = links(network)
    assert found["host.0.gpu.1", "host.0.card.1.asic.0"] == [512, 0]
    assert found["host.0.card.1.asic.0", "host.0.card.1.port.1"] == [100, 0]
    assert found["host.0.card.0.port.0", "leaf.1.asic.0"] == found["host.0.card.1.port.0", "leaf.0.asic.0"] == [50, 0]
    assert len(found) == 2 * (2 + 4 + 2)


def test_parallel_cables_between_switches_add_up_as_links_of_their_own(read):
    """Two hosts on two switches that two cables join, each from port to port."""
    pair = OLD.replace("{name: leaf, count: 1", "{name: leaf, count: 2").replace("leaf.0.port.1", "leaf.1.port.0")
    network = read(pair + "  - leaf.0.port.1.eth.leaf.1.port.1\n  - leaf.0.port.2.eth.leaf.1.port.2\n")
    ends = [network.link_name(link) for link in range(len(network.tail))]
    assert sum({"leaf.0.asic.0", "leaf.1.asic.0"} == {*name.split(" -> ")} for name in ends) == 4


@pytest.mark.filterwarnings("ignore:.*in switches:mfabric_jax.support.unread.Unread")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"edges.0.weight": 3}, "weight of edge 0 of the infrastructure"),
        ({"devices.0.links.0.physical.loss": 1}, "loss of physical of link 'nvlink' of device 'server'"),
        ({"links.0.physical.bandwidth.gigabytes_per_second": 1}, "gigabytes_per_second of bandwidth of link 'eth'"),
        ({"devices.0.components.0.watts": 700}, "watts of component 'xpu' of device 'server'"),
        ({"annotation": {}}, "annotation of infrastructure"),
    ],
)
def test_fields_that_are_not_read_are_named(read, changes, words):
    with pytest.warns(Unread, match="fields are not read") as told:
        read(value(changes))
    assert any(words in str(remark.message) for remark in told)


@pytest.mark.filterwarnings("ignore:.*in switches:mfabric_jax.support.unread.Unread")
def test_annotations_are_named(read):
    with pytest.warns(Unread, match="fields are not read, though they could change a number: annotations"):
        read({"infrastructure": value(), "annotations": {"nodes": []}})


TRANSFERS = {"choice": "giga_transfers_per_second", "giga_transfers_per_second": 8}
WITHIN = {"ep1": {"component": "xpu[0]"}, "ep2": {"component": "nic[2]"}, "scheme": "one2one", "link": "pcie"}
RECURSIVE = {"devices.1.components.1": {"name": "switch", "count": 1, "choice": "device"}, "devices.1.edges": []}


@pytest.mark.filterwarnings("ignore::mfabric_jax.support.unread.Unread")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"instances.1.device": "router"}, "instance 'leaf' is of device 'router', which is not in devices (server, "),
        (
            {"devices.0.links.0.physical.bandwidth": TRANSFERS},
            "gives 8 gigatransfers_per_second, but infragraph has no",
        ),
        ({"devices.0.links.0.physical": {}}, "every link that is used must have a physical.bandwidth, but none is in"),
        ({"devices.0.components.0.choice": "gpu"}, "choice of component 'xpu' of device 'server' 'gpu' is unknown"),
        ({"devices.0.components.0.count": 2.5}, "count of component 'xpu' of device 'server' must be a whole number"),
        ({"devices.0.components.0.count": None}, "from 0 to 1,048,576, but it is missing"),
        ({"devices.0.components.0.count": 2**20}, "nodes of a graph must be at most 1,048,576"),
        ({"devices.0.components.0.components": []}, "has components, which are not read: give them a device of their"),
        ({"devices.0.edges.0": WITHIN}, "edge 0 of device 'server': nic[2] must lie within the 2 that there are"),
        ({"devices.0.edges.0.scheme": "ring"}, "scheme of edge 0 of device 'server' 'ring' is unknown"),
        ({"devices.0.edges.0.link": "ic"}, "link of edge 0 of device 'server' 'ic' is unknown"),
        ({"devices.0.edges.0.ep1": {"component": "xpu[a]"}}, "indices of xpu must be such as [2], [0:4] or [::2]"),
        ({"devices.0.edges.0.ep1": {"component": "xpu.0"}}, "end at 'xpu', which is no device"),
        ({"devices.0.edges.0": "xpu.0.pcie"}, "must be names with indices, a link, and names with indices"),
        ({"devices.0.edges.0": "xpu.0.pcie.nvlsw.x"}, "edge 0 of device 'server' must be names with indices"),
        ({"devices.0.edges.1.ep2": {"component": "nvlsw"}}, "must be joined by one link, got 'nvlink' and 'pcie'"),
        ({"devices.1.name": "server"}, "name of device must be unique, but two are called 'server'"),
        ({"edges.0.ep1.instance": "rack"}, "instance of edge 0 of the infrastructure 'rack' is unknown"),
        ({"edges.0.ep1.instance": "host[2]"}, "host[2] must lie within the 2 that there are"),
        ({"instances": None}, "instances must list the instances of devices that there are"),
        ({"devices": []}, "instance 'host' is of device 'server', which is not in devices ()"),
        ({"devices.0.components.0.choice": "cpu"}, "must have a component of choice xpu, but none has"),
        ({"links.0.physical.bandwidth.gigabits_per_second": "400"}, "gigabits_per_second of bandwidth of link 'eth'"),
        ({"links.0.physical.bandwidth.gigabits_per_second": 0}, "gigabits_per_second of link 'eth'"),
        (
            {"links.0.physical.bandwidth.choice": "gbps"},
            "choice of bandwidth of link 'eth' of the infrastructure 'gbps'",
        ),
        (RECURSIVE, "device 'switch' must not contain itself"),
    ],
)
def test_a_mistake_is_one_sentence(read, changes, words):
    with pytest.raises(InputError) as refused:
        read(value(changes))
    assert words in str(refused.value)
    assert str(refused.value).endswith(".")
