"""Topology dumps of NCCL (`NCCL_TOPO_DUMP_FILE`, version 1): GPUs, NVLinks, PCI, CPUs and NICs of servers.

- A dump is one server, or several that it tells apart by `host_hash`; its NVSwitches are one node.
- NICs of equal `plane` and `rail` meet at one non-blocking switch, those of several dumps too; NICs that name neither
  share one switch. Dumps hold no delays; they are 0.
- Every device below a CPU has a root port between. By hops, the NVLink to the GPU beside another NIC is therefore
  shorter than the way through CPUs, as NCCL has it (PXN).

Bandwidths where a dump names none are NCCL's own, per direction (src/graph/topo.h, topo.cc): of an NVLink by `sm`, of
PCI by `link_speed` and `link_width`, between CPUs by vendor and model.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric.graphs.data import GraphData, whole_in

Element = ElementTree.Element
NVLINK = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}  # GB/s of one, by the least sm
LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}  # 100 Mbps, by GT/s
USUAL_LANE = 60
LOCAL = 5000.0  # GB/s inside a device
ARCHS = {"arm64": 6.0, "ppc64": 32.0}  # GB/s between CPUs
VENDORS = {"AuthenticAMD": 16.0, "  Shanghai  ": 6.0}
INTEL = {0: 6.0, 85: 10.0, 143: 22.0, 207: 40.0}  # by the least model: Skylake, Sapphire Rapids, Emerald Rapids
USUAL_MBPS = 10_000
MEGABYTES = 1000  # of a gigabyte
NVSWITCH, GPU, CPU = "0x068000", "0x03", "0x068001"
MOST = 1 << 24
DEEPEST = 100


class _Gpu(NamedTuple):
    """A GPU as it is found: its server (named and numbered), number there, element, PCI device, node above, GB/s of its
    PCI link, and CPU."""

    server: str
    nth: int
    dev: int
    element: Element
    busid: str
    above: str
    pci: float
    cpu: str


class _Dump:
    """One dump on its way into the graph."""

    def __init__(self, graph: GraphData, number: int, first: int):
        self.graph, self.number = graph, number
        self.hosts: dict[str, int] = {}
        self.first = first
        self.gpus: list[_Gpu] = []
        self.pci: dict[str, str] = {}
        self.pcilinks: list[tuple[str, str]] = []
        self.ports = 0

    def server(self, host: str) -> tuple[str, int]:
        """Name and number of the server with a `host_hash`."""
        number = self.hosts.setdefault(host, self.first + len(self.hosts))
        return f"server {number}", number


def graph_data(dumps: Iterable[tuple[str, str]]) -> GraphData:
    """The graph of dumps (name, text), in their order. `InputError` with the element and attribute that are wrong."""
    graph, first = GraphData(), 0
    for number, (named, text) in enumerate(dumps):
        try:
            dump = _Dump(graph, number, first)
            _read(dump, _root(text))
        except InputError as error:
            raise InputError(f"{named}: {error}") from error
        first += len(dump.hosts)
    return graph


def _root(text: str) -> Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError("a dump has no DOCTYPE and no ENTITY, but this file has.")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"it is not XML ({error}); give a topology dump of NCCL.") from None
    if root.tag != "system" or root.get("version") != "1":
        raise InputError(
            f'its root must be <system version="1">, got <{root.tag} version={root.get("version")!r:.40}>.'
        )
    return root


def _read(dump: _Dump, root: Element) -> None:
    cpus: dict[str, list[tuple[str, Element]]] = {}
    for element in root.findall("cpu"):
        server, nth = dump.server(element.get("host_hash", ""))
        name = dump.graph.node(f"{server} cpu {element.get('numaid', '-1')}", "cpu")
        cpus.setdefault(server, []).append((name, element))
        for below in element:
            _walk(dump, (server, nth, name), below)
    if not dump.gpus:
        raise InputError("the dump has no gpu in a pci in a cpu.")
    _join_cpus(dump, cpus)
    _add_gpus(dump)
    for one, other in dump.pcilinks:
        if dump.pci[one] and dump.pci.get(other):
            dump.graph.one_way(dump.pci[one], dump.pci[other], _Bps(LOCAL), 0.0, "pci")


def _walk(dump: _Dump, on: tuple[str, int, str], element: Element) -> None:
    """Add what hangs on a CPU (of a server, its number), through a root port of its own; other elements than PCI
    devices and NICs carry no data."""
    if element.tag not in ("pci", "nic"):
        return
    server, _, cpu = on
    rate = _pci_rate(element) if element.tag == "pci" else LOCAL
    port = dump.graph.node(f"{server} port {dump.number}.{dump.ports}", "port")
    dump.ports += 1
    dump.graph.both_ways(cpu, port, _Bps(rate), 0.0, "pci")
    if element.tag == "nic":
        _add_nic(dump, server, [element], port, LOCAL, port.split()[-1])
        return
    left = [(element, port, 0)]
    while left:
        element, above, depth = left.pop()
        if depth > DEEPEST:
            raise InputError(f"pci must be nested at most {DEEPEST} deep.")
        below = _add_pci(dump, on, element, above)
        left += [(child, below, depth + 1) for child in reversed(element.findall("pci")) if below]


def _add_pci(dump: _Dump, on: tuple[str, int, str], element: Element, above: str) -> str:
    """Add a PCI device; returns the node of a switch, to which others are joined, else nothing."""
    server, nth, cpu = on
    busid, rate = _attribute(element, "busid"), _pci_rate(element)
    if busid in dump.pci:
        raise InputError(f"two pci have the busid {busid!r:.40}.")
    dump.pci[busid] = ""
    if (gpu := element.find("gpu")) is not None:
        dev = whole_in(f"gpu at {busid:.40}", "dev", _attribute(gpu, "dev"), 0, MOST)
        dump.gpus.append(_Gpu(server, nth, dev, gpu, busid, above, rate, cpu))
        return ""
    if nics := element.findall("nic"):
        dump.pci[busid] = _add_nic(dump, server, nics, above, rate, busid)
        return ""
    name = dump.pci[busid] = dump.graph.node(f"{server} pci {busid}", "pci")
    dump.graph.both_ways(above, name, _Bps(rate), 0.0, "pci")
    dump.pcilinks += [(busid, link.get("target", "")) for link in element.findall("pcilink")]
    return name


def _add_nic(dump: _Dump, server: str, nics: list[Element], above: str, rate: float, named: str) -> str:
    """Add a NIC, and a link from each of its ports to the switch that it leads to."""
    name = dump.graph.node(f"{server} nic {named}", "nic")
    dump.graph.both_ways(above, name, _Bps(rate), 0.0, "pci")
    for net in (net for nic in nics for net in nic.findall("net")):
        place = f"net {net.get('name', '')!r:.40}"
        mbps = whole_in(place, "speed", net.get("speed", str(USUAL_MBPS)), 0, MOST) or USUAL_MBPS
        switch = _switch_name(net, place)
        if not dump.graph.has(switch):
            dump.graph.node(switch, "switch")
        dump.graph.both_ways(name, switch, units.mbps(mbps), 0.0, "network")
    return name


def _switch_name(net: Element, place: str) -> str:
    """The name of the switch at which NICs of equal plane and rail meet; -1 is no number."""
    words = []
    for field in ("plane", "rail"):
        if (text := net.get(field, "-1")) != "-1":
            words.append(f"{field} {whole_in(place, field, text, 0, MOST)}")
    return " ".join(words) or "network"


def _add_gpus(dump: _Dump) -> None:
    """GPUs in the order of servers and their numbers there, and all their links."""
    order = sorted(dump.gpus, key=lambda gpu: (gpu.nth, gpu.dev))
    names = {gpu.busid: dump.graph.node(f"{gpu.server} gpu {gpu.dev}", "gpu") for gpu in order}
    for gpu in order:
        name = names[gpu.busid]
        dump.graph.both_ways(gpu.above, name, _Bps(gpu.pci), 0.0, "pci")
        for target, kind, GBps in _links_of(gpu):
            _join_gpu(dump, name, names.get(target), gpu.cpu, kind, GBps)


def _links_of(gpu: _Gpu) -> Iterator[tuple[str, str, float]]:
    """(PCI device at the other end, its class, GB/s) of every NVLink and C2C link of a GPU."""
    place = f"gpu {gpu.dev}"
    for link in gpu.element.findall("nvlink"):
        count = whole_in(place, "count of nvlink", link.get("count", "1"), 1, MOST)
        sm = whole_in(place, "sm", _attribute(gpu.element, "sm"), min(NVLINK), MOST)
        yield _attribute(link, "target"), _attribute(link, "tclass"), count * _at_most(NVLINK, sm)
    for link in gpu.element.findall("c2c"):
        count = whole_in(place, "count of c2c", link.get("count", "1"), 1, MOST)
        yield "", CPU, whole_in(place, "bw of c2c", _attribute(link, "bw"), 1, MOST) * count / MEGABYTES


def _join_gpu(dump: _Dump, name: str, target: str | None, cpu: str, kind: str, GBps: float) -> None:
    if kind == NVSWITCH:
        switch = f"nvswitch {dump.number}"
        if not dump.graph.has(switch):
            dump.graph.node(switch, "nvswitch")
        dump.graph.both_ways(name, switch, _Bps(GBps), 0.0, "nvlink")
    elif kind == CPU:
        dump.graph.both_ways(name, cpu, _Bps(GBps), 0.0, "nvlink")
    elif kind.startswith(GPU):
        if target is not None and target != name:  # NCCL passes over GPUs that it does not see
            dump.graph.one_way(name, target, _Bps(GBps), 0.0, "nvlink")
    else:
        raise InputError(f"{name}: tclass of nvlink must be {NVSWITCH}, {CPU} or {GPU}..., got {kind!r:.40}.")


def _join_cpus(dump: _Dump, cpus: dict[str, list[tuple[str, Element]]]) -> None:
    for own in cpus.values():
        for (one, element), (other, _) in combinations(own, 2):
            dump.graph.both_ways(one, other, _Bps(_between_cpus(element)), 0.0, "cpu")


def _between_cpus(cpu: Element) -> float:
    arch, vendor = cpu.get("arch", "x86_64"), cpu.get("vendor", "GenuineIntel")
    if arch in ARCHS or vendor in VENDORS:
        return ARCHS.get(arch) or VENDORS[vendor]
    return _at_most(INTEL, whole_in("cpu", "modelid", cpu.get("modelid", "0"), 0, MOST))


def _pci_rate(pci: Element) -> float:
    """GB/s of the link above a PCI device; 16 lanes where the dump says 0, generation 3 where it names none."""
    width = whole_in(f"pci {pci.get('busid', '')!r:.40}", "link_width", pci.get("link_width", "0") or "0", 0, 64) or 16
    speed = pci.get("link_speed", "").split(" ")[0].removesuffix(".0")
    return width * LANE.get(speed, USUAL_LANE) / 80


def _at_most(table: dict[int, float], key: int) -> float:
    return table[max(known for known in table if known <= key)]


def _attribute(element: Element, name: str) -> str:
    value = element.get(name)
    if not value:
        raise InputError(f"a {element.tag} has no {name}.")
    return value


def _Bps(gigabytes_per_s: float) -> float:
    return units.gigabytes_per_s(gigabytes_per_s)
