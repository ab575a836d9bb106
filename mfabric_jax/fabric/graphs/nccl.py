"""Topology dumps of NCCL (`NCCL_TOPO_DUMP_FILE`, version 1) and RCCL (version 2): GPUs, NVLinks or xGMI links, PCI,
CPUs and NICs of servers.

- A dump is one server, or several that `host_hash` distinguishes: with MNNVL, NCCL writes all servers of a domain into
  one dump (`ncclTopoGetSystem`). All NVSwitches of a dump are one node, as in NCCL (`ncclTopoAddNvLinks`). Several
  dumps share one only where they are of one NVLink domain; no dump names its domain (fabric UUID and clique).
- GPUs are in the order of `rank`. If some GPUs have a rank, the others are left out; if none has, `dev` orders them.
- Links of one kind between two nodes are one link of their summed bandwidth.
- A Broadcom PCI switch appears as two levels, which are merged into one switch (`ncclTopoFlattenBcmSwitches`).
- Functions of one NIC (`12:00.0`, `12:00.1`) share its PCI link. A `net` without `dev`, or with `net="0"`, is part of
  another one and is left out.
- NICs of equal `plane` and `rail` are on one non-blocking switch, even if they are in several dumps; NICs that name
  neither share one switch. The `latency` of a NIC [us] is the delay of its link to the switch; no other link has one.
- Every device below a CPU is behind a root port, and GPUs of one NVSwitch that share a PCI switch or CPU are each
  behind a port. So an NVLink has fewer hops than a path through PCI switches and CPUs, as NCCL prefers it; this
  includes the path to the GPU beside another NIC (PXN).

Where a dump gives no bandwidth, NCCL's own is used, per direction (src/graph/topo.h, topo.cc): by `sm` for NVLinks, by
`link_speed` and `link_width` for PCI, by vendor and model between CPUs. For xGMI it is RCCL's own, by `gcn`. Unknown
elements are refused; unknown attributes are reported.
"""

import difflib
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import combinations
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError
from mfabric_jax.fabric.graphs.data import GraphData, whole_in
from mfabric_jax.support.unread import name_unread

Element = ElementTree.Element
INSIDE = {  # elements that each may contain
    "system": ("cpu",),
    "cpu": ("pci", "nic"),
    "pci": ("pci", "gpu", "nic", "pcilink"),
    "gpu": ("nvlink", "xgmi", "c2c"),
    "nic": ("net",),
}
KNOWN = {  # attributes that are read, or that change neither bandwidth nor delay
    "system": "version name",
    "cpu": "host_hash numaid affinity arch vendor familyid modelid",
    "pci": "busid class vendor device subsystem_vendor subsystem_device link_speed link_width",
    "gpu": "dev sm rank gcn arch gdr mlopart",
    "net": "name dev speed latency port guid maxconn gdr coll net gin rma rail plane",
    **dict.fromkeys(("nvlink", "xgmi"), "target count tclass"),
    "c2c": "bw count",
    "pcilink": "target",
}
NVLINK = {60: 18.0, 70: 20.0, 80: 20.0, 86: 12.0, 90: 20.6, 100: 40.1}  # GB/s of one link, from this sm on
XGMI = {"gfx900": 24.0, "gfx906": 24.0, "gfx908": 24.0, "gfx90a": 36.0, "gfx94": 48.0}  # GB/s of one link, by gcn
OLD_GCN = {"906": "gfx906", "908": "gfx908", "910": "gfx90a", "940": "gfx940", "941": "gfx941", "942": "gfx942"}
LANE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}  # rate of a lane [100 Mbps], by GT/s
USUAL_LANE = 60
LOCAL = 5000.0  # GB/s inside a device
ARCHS = {"arm64": 6.0, "ppc64": 32.0}  # GB/s between CPUs
INTEL, ZHAOXIN = "GenuineIntel", ("CentaurHauls", "  Shanghai  ")
AMD = {"AuthenticAMD": 16.0}
INTEL_6 = {0: 6.0, 85: 10.0, 143: 22.0, 207: 40.0}  # GB/s, from this model on: Skylake, Sapphire Rapids, Emerald Rapids
OTHER_INTEL = 6.0
ZHAOXIN_7_91, OTHER_ZHAOXIN = 9.0, 6.0
USUAL_MBPS = 10_000
MEGABYTES = 1000  # per gigabyte
LATENCY = re.compile(r"\d{1,9}(\.\d*)?(e[+-]?\d{1,3})?")
NVSWITCH, CPU = "0x068000", "0x068001"
GPUS = ("0x03", "0x12")  # prefixes of the classes of GPUs: NVIDIA's, and AMD's accelerators
NO_SWITCH = (NVSWITCH, CPU, "0x02", *GPUS)  # classes of PCI devices that are not switches
BROADCOM = ((0xC010, 0x1000, 0xA, 0xA), (0xC030, 0x1000, 0x0, 0x1))  # Gen4, Gen5: device, subsystem, of either level
USUAL_CPU = {"familyid": "6", "modelid": "0"}
VERSIONS = ("1", "2")
MOST = 1 << 24
MOST_DELAY_US = 1 << 20
DEEPEST = 100


class _Gpu(NamedTuple):
    """A GPU of a dump: name and number of its server, its number there, rank (None: not given), element, PCI device,
    node above, GB/s of its PCI link, and CPU."""

    server: str
    nth: int
    dev: int
    rank: int | None
    element: Element
    busid: str
    above: str
    pci: float
    cpu: str

    @property
    def device(self) -> tuple[str, str]:
        """Its PCI device: servers of a dump may have equal ones."""
        return self.server, self.busid


class _Dump:
    """The state of one dump while it is added to the graph."""

    def __init__(self, graph: GraphData, number: int, first: int, nvswitch: str):
        self.graph, self.number, self.nvswitch = graph, number, nvswitch
        self.hosts: dict[str, int] = {}
        self.first = first
        self.gpus: list[_Gpu] = []
        self.pci: dict[tuple[str, str], str] = {}
        self.nics: dict[tuple[str, str], str] = {}
        self.pcilinks: list[tuple[tuple[str, str], str]] = []
        self.ports = 0

    def server(self, host: str) -> tuple[str, int]:
        """Return name and number of the server with a `host_hash`."""
        number = self.hosts.setdefault(host, self.first + len(self.hosts))
        return f"server {number}", number


class NamedDump(NamedTuple):
    """A dump: what messages call it, its text, and its NVLink domain ("": its own). Dumps of one domain share one
    NVSwitch."""

    name: str
    text: str
    domain: str = ""


def graph_data(dumps: Iterable[NamedDump]) -> GraphData:
    """Return the graph of dumps, in order. Raise `InputError` with the wrong element or attribute."""
    graph, first = GraphData(), 0
    first_of: dict[str, int] = {}
    for number, (named, text, domain) in enumerate(dumps):
        try:
            switch = f"nvswitch {first_of.setdefault(domain, number) if domain else number}"
            dump, root = _Dump(graph, number, first, switch), _root(text)
            name_unread(named, "attributes", _unread(root))
            _read(dump, root)
            if domain and not graph.has(switch):
                raise InputError(f"NVLink domain {domain!r} needs a gpu with an nvlink of tclass {NVSWITCH}, got none.")
        except InputError as error:
            raise InputError(f"{named}: {error}") from error
        first += len(dump.hosts)
    return graph


def _root(text: str) -> Element:
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise InputError("it is not a topology dump of NCCL, which has no DOCTYPE or ENTITY; this file has one.")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"it is not XML ({error}); give a topology dump of NCCL.") from None
    if root.tag != "system" or root.get("version") not in VERSIONS:
        raise InputError(
            f'its root must be <system version="1"> (NCCL) or <system version="2"> (RCCL), got <{root.tag:.40} '
            f"version={root.get('version')!r:.40}>."
        )
    return root


def _unread(root: Element) -> list[str]:
    """Attributes that are unknown, or mean a path that is not modelled. Raise `InputError` for an unknown element."""
    attributes, left = [], [root]
    while left:
        element = left.pop()
        for below in element:
            if below.tag not in INSIDE.get(element.tag, ()):
                allowed = ", ".join(INSIDE.get(element.tag, ())) or "none"
                raise InputError(f"an element of {element.tag} must be {allowed}, got <{below.tag:.40}>.")
        known = KNOWN.get(element.tag, "").split()
        attributes += [f"{name}={value!r:.40} of {element.tag}" for name, value in element.items() if name not in known]
        if element.tag in ("gpu", "net") and element.get("gdr", "1") != "1":
            gdr = f"gdr={element.get('gdr')!r:.40} of {element.tag}"
            attributes.append(f"{gdr} (no GPUDirect: its bytes cross the memory of a CPU)")
        if element.tag == "pci" and _speed(element) not in ("", *LANE):
            attributes.append(f"link_speed={element.get('link_speed')!r:.40} of pci (taken as 8 GT/s, as in NCCL)")
        if element.tag == "cpu" and element.get("arch", "x86_64") not in ("x86_64", *ARCHS):
            attributes.append(f"arch={element.get('arch')!r:.40} of cpu (taken as x86_64)")
        if element.tag == "cpu" and _looks_known(element.get("vendor", INTEL)):
            attributes.append(f"vendor={element.get('vendor')!r:.40} of cpu (CPUs are linked at {LOCAL:g} GB/s)")
        left += element
    return attributes


def _looks_known(vendor: str) -> bool:
    """Whether a vendor is unknown but resembles a known one."""
    known = (INTEL, *ZHAOXIN, *AMD)
    return vendor not in known and bool(difflib.get_close_matches(vendor, known, cutoff=0.8))


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
    for device, other in dump.pcilinks:
        name, target = dump.pci[device], dump.pci.get((device[0], other))
        if name and target:
            dump.graph.one_way(name, target, _Bps(LOCAL), 0.0, "pci")


def _walk(dump: _Dump, on: tuple[str, int, str], element: Element) -> None:
    """Add a PCI device or NIC to a CPU, through a separate root port; `on`: the server, its number, the CPU."""
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
        if below:
            left += [(child, below, depth + 1) for child in reversed(list(_below(dump, server, element, below)))]


def _below(dump: _Dump, server: str, switch: Element, name: str) -> Iterator[Element]:
    """The PCI devices below a switch; the second level of a Broadcom switch is replaced by the devices below it."""
    levels = _broadcom(switch)
    for child in switch.findall("pci"):
        if _is_switch(child) and any(
            upper and other for (upper, _), (_, other) in zip(levels, _broadcom(child), strict=True)
        ):
            _take(dump, server, child, name)
            yield from child.findall("pci")
        else:
            yield child


def _broadcom(pci: Element) -> list[tuple[bool, bool]]:
    """For each switch of `BROADCOM`, whether a PCI device may be its first level, and its second."""
    vendor, device, of, kind = (_id(pci, name) for name in ("vendor", "device", "subsystem_vendor", "subsystem_device"))
    alike = [(vendor, device, of) == (0x1000, *known[:2]) for known in BROADCOM]
    return [
        (same and kind >> 12 == known[2], same and kind >> 12 == known[3])
        for same, known in zip(alike, BROADCOM, strict=True)
    ]


def _id(pci: Element, name: str) -> int:
    text = pci.get(name, "0")
    try:
        return int(text, 16)
    except ValueError:
        raise InputError(f"pci {pci.get('busid', '')!r:.40}: {name} must be hexadecimal, got {text!r:.40}.") from None


def _is_switch(pci: Element) -> bool:
    return not pci.get("class", "").startswith(NO_SWITCH) and pci.find("gpu") is None and pci.find("nic") is None


def _take(dump: _Dump, server: str, pci: Element, name: str) -> str:
    """Record the node of a PCI device ("": none) and its links to other devices; return its busid."""
    busid = _attribute(pci, "busid")
    if (server, busid) in dump.pci:
        raise InputError(f"two pci of {server} have the busid {busid!r:.40}.")
    dump.pci[server, busid] = name
    dump.pcilinks += [((server, busid), link.get("target", "")) for link in pci.findall("pcilink")]
    return busid


def _add_pci(dump: _Dump, on: tuple[str, int, str], element: Element, above: str) -> str:
    """Add a PCI device. Return its node if it is a switch, else ""."""
    server, rate = on[0], _pci_rate(element)
    busid = _take(dump, server, element, "")
    if element.find("gpu") is not None:
        dump.gpus.append(_gpu_at(on, element, busid, above))
    elif nics := element.findall("nic"):
        device = (server, busid.rpartition(".")[0] or busid)
        if device in dump.nics:
            _add_ports(dump, dump.nics[device], nics)
        else:
            dump.nics[device] = _add_nic(dump, server, nics, above, rate, busid)
    elif _is_switch(element):
        name = dump.pci[server, busid] = dump.graph.node(f"{server} pci {busid}", "pci")
        dump.graph.both_ways(above, name, _Bps(rate), 0.0, "pci")
        return name
    return ""


def _gpu_at(on: tuple[str, int, str], pci: Element, busid: str, above: str) -> _Gpu:
    server, nth, cpu = on
    gpu, *others = pci.findall("gpu")
    label = f"gpu at {busid:.40}"
    if others or gpu.get("mlopart", "-1") != "-1":
        raise InputError(
            f"{label} must be one whole GPU; parts of a GPU (mlopart, or several gpu in a pci) are not read."
        )
    dev, rank = whole_in(label, "dev", _attribute(gpu, "dev"), 0, MOST), gpu.get("rank", "-1")
    rank_number = None if rank == "-1" else whole_in(label, "rank", rank, 0, MOST)
    return _Gpu(server, nth, dev, rank_number, gpu, busid, above, _pci_rate(pci), cpu)


def _add_nic(dump: _Dump, server: str, nics: list[Element], above: str, rate: float, named: str) -> str:
    """Add a NIC and its ports, and return its node."""
    name = dump.graph.node(f"{server} nic {named}", "nic")
    dump.graph.both_ways(above, name, _Bps(rate), 0.0, "pci")
    _add_ports(dump, name, nics)
    return name


def _add_ports(dump: _Dump, name: str, nics: list[Element]) -> None:
    """Add a link from each port of a NIC to the switch that it leads to."""
    for net in (net for nic in nics for net in nic.findall("net")):
        if "dev" not in net.attrib or net.get("net") == "0":
            continue
        label = f"net {net.get('name', '')!r:.40}"
        speed = net.get("speed", "0")
        mbps = (0 if speed == "-1" else whole_in(label, "speed", speed, 0, MOST)) or USUAL_MBPS
        switch, delay_s = _switch_name(net, label), _latency_s(net, label)
        if not dump.graph.has(switch):
            dump.graph.node(switch, "switch")
        dump.graph.one_way(name, switch, units.mbps(mbps), delay_s, "network")
        dump.graph.one_way(switch, name, units.mbps(mbps), 0.0, "network")


def _latency_s(net: Element, label: str) -> float:
    text = net.get("latency", "0")
    if not LATENCY.fullmatch(text) or float(text) > MOST_DELAY_US:
        raise InputError(f"{label}: latency must be from 0 to {MOST_DELAY_US:g} us, got {text!r:.40}.")
    return float(units.us(float(text)))


def _switch_name(net: Element, label: str) -> str:
    """The name of the switch of NICs of equal plane and rail; -1: the dump gives no number."""
    words = []
    for field in ("plane", "rail"):
        if (text := net.get(field, "-1")) != "-1":
            words.append(f"{field} {whole_in(label, field, text, 0, MOST)}")
    return " ".join(words) or "network"


def _add_gpus(dump: _Dump) -> None:
    """Add the GPUs, in the order of their ranks, or of servers and their numbers there, and all their links."""
    order = sorted(_in_job(dump.gpus), key=lambda gpu: (gpu.rank, gpu.nth, gpu.dev))
    names = {gpu.device: dump.graph.node(f"{gpu.server} gpu {gpu.dev}", "gpu") for gpu in order}
    links = {gpu.device: _links_of(gpu) for gpu in order}
    hangs_on = {gpu.device: _hangs_on(gpu, links[gpu.device]) for gpu in order}
    shared = Counter(node for places in hangs_on.values() for node in places)
    for gpu in order:
        name = names[gpu.device]
        apart = any(shared[node] > 1 for node in hangs_on[gpu.device])
        _hang(dump, name, gpu.above, "pci", gpu.pci, apart)
        for target, kind, GBps in links[gpu.device]:
            if kind == CPU:
                _hang(dump, name, gpu.cpu, "nvlink", GBps, apart)
            else:
                _join_gpu(dump, name, names.get((gpu.server, target)), kind, GBps)


def _hangs_on(gpu: _Gpu, links: list[tuple[str, str, float]]) -> list[str]:
    """The PCI switch of a GPU at an NVSwitch, and its CPU if links lead there; empty for other GPUs."""
    kinds = [kind for _, kind, _ in links]
    return [gpu.above, *([gpu.cpu] if CPU in kinds else [])] if NVSWITCH in kinds else []


def _hang(dump: _Dump, name: str, on: str, kind: str, GBps: float, apart: bool) -> None:
    """Link a GPU to a PCI switch or CPU; `apart`: through a separate port."""
    # NCCL takes only the path over the faster NVSwitch to a neighbour there (ncclTopoSetPaths). Without the port, the
    # path over the PCI switch or CPU would have equally few hops.
    if not apart:
        dump.graph.both_ways(on, name, _Bps(GBps), 0.0, kind)
        return
    port = dump.graph.node(f"{name} {kind} port", "port")
    dump.graph.both_ways(on, port, _Bps(GBps), 0.0, kind)
    dump.graph.both_ways(port, name, _Bps(LOCAL), 0.0, kind)


def _in_job(gpus: list[_Gpu]) -> list[_Gpu]:
    """The GPUs that have a rank, or all if none has."""
    ranked = [gpu for gpu in gpus if gpu.rank is not None]
    if again := [rank for rank, count in Counter(gpu.rank for gpu in ranked).items() if count > 1]:
        raise InputError(f"rank must belong to one gpu, got {again[0]} twice; give a file for each server.")
    return ranked or gpus


def _links_of(gpu: _Gpu) -> list[tuple[str, str, float]]:
    """All non-PCI links of a GPU, summed per node at the other end: (PCI device if it is a GPU or "", class, GB/s)."""
    label, GBps = f"gpu {gpu.dev}", defaultdict[tuple[str, str], float](float)
    for link in (*gpu.element.findall("nvlink"), *gpu.element.findall("xgmi")):
        count = whole_in(label, f"count of {link.tag}", link.get("count", "1"), 1, MOST)
        target, kind = _attribute(link, "target"), _attribute(link, "tclass")
        each = _nvlink_rate(gpu, label) if link.tag == "nvlink" else _xgmi_rate(gpu, label)
        GBps[target if kind.startswith(GPUS) else "", kind] += count * each
    for link in gpu.element.findall("c2c"):
        count = whole_in(label, "count of c2c", link.get("count", "1"), 1, MOST)
        GBps["", CPU] += whole_in(label, "bw of c2c", _attribute(link, "bw"), 1, MOST) * count / MEGABYTES
    return [(target, kind, rate) for (target, kind), rate in GBps.items()]


def _nvlink_rate(gpu: _Gpu, label: str) -> float:
    return _at_most(NVLINK, whole_in(label, "sm", _attribute(gpu.element, "sm"), min(NVLINK), MOST))


def _xgmi_rate(gpu: _Gpu, label: str) -> float:
    gcn = _attribute(gpu.element, "gcn")
    begins = [known for known in XGMI if OLD_GCN.get(gcn, gcn).startswith(known)]
    if not begins:
        raise InputError(
            f"{label}: gcn must begin with {', '.join(XGMI)}, whose xgmi rates are known, got {gcn!r:.40}."
        )
    return XGMI[begins[0]]


def _join_gpu(dump: _Dump, name: str, target: str | None, kind: str, GBps: float) -> None:
    if kind == NVSWITCH:
        if not dump.graph.has(dump.nvswitch):
            dump.graph.node(dump.nvswitch, "nvswitch")
        dump.graph.both_ways(name, dump.nvswitch, _Bps(GBps), 0.0, "nvlink")
    elif kind.startswith(GPUS):
        if target is not None and target != name:  # NCCL skips GPUs that it does not see
            dump.graph.one_way(name, target, _Bps(GBps), 0.0, "nvlink")
    else:
        raise InputError(f"{name}: tclass must be {NVSWITCH}, {CPU}, {GPUS[0]}... or {GPUS[1]}..., got {kind!r:.40}.")


def _join_cpus(dump: _Dump, cpus: dict[str, list[tuple[str, Element]]]) -> None:
    for own in cpus.values():
        for (cpu, element), (other, _) in combinations(own, 2):
            dump.graph.both_ways(cpu, other, _Bps(_between_cpus(element)), 0.0, "cpu")


def _between_cpus(cpu: Element) -> float:
    arch, vendor = cpu.get("arch", "x86_64"), cpu.get("vendor", INTEL)
    if arch in ARCHS:
        return ARCHS[arch]
    if vendor not in (INTEL, *ZHAOXIN):
        return AMD.get(vendor, LOCAL)
    family, model = (whole_in("cpu", name, cpu.get(name, usual), 0, MOST) for name, usual in USUAL_CPU.items())
    if vendor == INTEL:
        return _at_most(INTEL_6, model) if family == 6 else OTHER_INTEL
    return ZHAOXIN_7_91 if (family, model) == (7, 91) else OTHER_ZHAOXIN


def _pci_rate(pci: Element) -> float:
    """GB/s of the link above a PCI device; 16 lanes if the dump says 0, generation 3 if it gives no speed."""
    width = whole_in(f"pci {pci.get('busid', '')!r:.40}", "link_width", pci.get("link_width", "0") or "0", 0, 64) or 16
    return width * LANE.get(_speed(pci), USUAL_LANE) / 80


def _speed(pci: Element) -> str:
    """GT/s, as `LANE` has them."""
    return pci.get("link_speed", "").split(" ")[0].removesuffix(".0")


def _at_most(table: dict[int, float], key: int) -> float:
    return table[max(known for known in table if known <= key)]


def _attribute(element: Element, name: str) -> str:
    value = element.get(name)
    if not value:
        raise InputError(f"a {element.tag} has no {name}.")
    return value


def _Bps(gigabytes_per_s: float) -> float:
    return units.gigabytes_per_s(gigabytes_per_s)
