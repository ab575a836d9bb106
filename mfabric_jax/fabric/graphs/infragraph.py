"""Graphs of infragraph (YAML or JSON): devices made of components, instances of devices, and the edges between them.

- Nodes are `INSTANCE.INDEX.COMPONENT.INDEX`; a component of choice `device` is replaced by the nodes of its device.
- An edge joins the endpoints of its ends: all pairs (`many2many`), or the n-th with the n-th until one end has no more
  (`one2one`). An endpoint without indices means all; `[2]`, `[0:4]`, `[::2]` are Python's. A pair that several edges
  join is joined once. All this is infragraph's own; an index that does not exist is refused here.
- Older files have `connections` such as `xpu.0.pcie.nic.0`, components with `type`, links with `bandwidth`.
- A link has its bandwidth in each direction. Gigatransfers are refused, as the schema has no lanes, and so is a link
  without bandwidth; in a switch such a link never limits.
- `annotations` and unknown fields are reported.

What the nodes become: see `infragraph_nodes`. Source: github.com/Keysight/infragraph, schema/*.yaml and
src/infragraph/infragraph_service.py, in July 2026.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, number, one_of, positive
from mfabric_jax.fabric.graphs.data import MOST_LINKS, MOST_NODES, GraphData, check_many
from mfabric_jax.fabric.graphs.infragraph_nodes import Components, Link
from mfabric_jax.support.unread import name_unread

KEYS = ("infrastructure", "devices", "instances")  # of which a file has one
CHOICES = ("custom", "device", "cpu", "xpu", "nic", "memory", "port", "switch")
SCHEMES = ("many2many", "one2one")
WORDS = ("name", "description")  # change no number
FIELDS = {
    "infrastructure": (*WORDS, "devices", "instances", "links", "edges", "connections"),
    "device": (*WORDS, "components", "links", "edges", "connections"),
    "component": (*WORDS, "count", "choice", "type", "external", *CHOICES),
    "instance": (*WORDS, "device", "count"),
    "link": (*WORDS, "physical", "bandwidth"),
    "edge": ("ep1", "ep2", "scheme", "link"),
    "end": ("instance", "device", "component"),
}
BITS, BYTES, TRANSFERS = "gigabits_per_second", "gigabytes_per_second", "gigatransfers_per_second"
BANDWIDTHS = {spelt: unit for unit in (BITS, BYTES, TRANSFERS) for spelt in (unit, unit.replace("giga", "giga_"))}
TO_BYTES_PER_S = {BITS: units.gbps, BYTES: units.gigabytes_per_s}
LATENCIES = {"ms": units.ms, "us": units.us, "ns": units.ns}
INDEX = re.compile(r"(?:0|[1-9]\d{0,8})")
ELEMENT = re.compile(r"([^\[\].]+)(?:\[([^\[\]]*)\])?")
SLICE = re.compile(r"(\d{0,9}):(\d{0,9})(?::(-?\d{1,9})?)?")
Table = dict[str, Any]


class _Component(NamedTuple):
    choice: str
    count: int


class _Ends(NamedTuple):
    """An edge or connection as written: the elements of either end, such as `xpu[0:2]`, link and scheme."""

    label: str
    first: list[str]
    other: list[str]
    link: str
    scheme: str


class _Device(NamedTuple):
    label: str
    components: dict[str, _Component]
    links: dict[str, Link]
    edges: list[_Ends]


def graph_data(data: Table, named: str) -> GraphData:
    """Return the graph of a file's content; `named`: the file in remarks.

    Raise `InputError` with the wrong device, component, instance, link or edge.
    """
    unread: list[str] = []
    if "infrastructure" in data:
        unread += [name for name in data if name != "infrastructure"]
        data = _table("infrastructure", data["infrastructure"])
    reader = _Reader(unread)
    reader.note("infrastructure", "infrastructure", data)
    devices = {name: reader.device(name, entry) for name, entry in _by_name("device", data, "devices").items()}
    instances = {name: reader.instance(name, entry) for name, entry in _by_name("instance", data, "instances").items()}
    if not instances:
        raise InputError("instances must list the instances of devices that there are, but there are none.")
    links = {
        name: reader.link(name, "the infrastructure", entry) for name, entry in _by_name("link", data, "links").items()
    }
    edges = reader.edges("the infrastructure", data, True)
    name_unread(named, "fields", unread)
    return _expand(devices, instances, links, edges).graph(named)


class _Reader:
    """Reads tables of a file, and collects the fields that it does not read in `unread`."""

    def __init__(self, unread: list[str]):
        self.unread = unread

    def note(self, kind: str, label: str, entry: Table) -> None:
        self.unread += [f"{name!s:.40} of {label}" for name in entry if name not in FIELDS[kind]]

    def device(self, name: str, entry: Table) -> _Device:
        label = f"device {name!r}"
        self.note("device", label, entry)
        components = {
            part: self.component(f"component {part!r} of {label}", table)
            for part, table in _by_name(f"component of {label}", entry, "components").items()
        }
        links = {
            link: self.link(link, label, table) for link, table in _by_name(f"link of {label}", entry, "links").items()
        }
        return _Device(label, components, links, self.edges(label, entry, False))

    def component(self, label: str, entry: Table) -> _Component:
        self.note("component", label, entry)
        if "components" in entry:
            raise InputError(f"{label} has components, which are not read: give them a device of their own.")
        field = "choice" if "choice" in entry or "type" not in entry else "type"
        choice = one_of(f"{field} of {label}", _text(f"{field} of {label}", entry.get(field)), CHOICES)
        return _Component(choice, _count(label, entry))

    def instance(self, name: str, entry: Table) -> tuple[str, int]:
        label = f"instance {name!r}"
        self.note("instance", label, entry)
        return _text(f"device of {label}", entry.get("device")), _count(label, entry)

    def link(self, name: str, owner: str, entry: Table) -> Link:
        label = f"link {name!r} of {owner}"
        self.note("link", label, entry)
        physical = _table(f"physical of {label}", entry.get("physical") or {})
        self.unread += [
            f"{field!s:.40} of physical of {label}" for field in physical if field not in ("bandwidth", "latency")
        ]
        if "bandwidth" in entry and "bandwidth" in physical:
            raise InputError(f"{label} has bandwidth twice, also in physical.")
        bandwidth = physical.get("bandwidth", entry.get("bandwidth"))
        unit, amount = self.amount(f"bandwidth of {label}", bandwidth, tuple(BANDWIDTHS))
        unit = BANDWIDTHS.get(unit, "")
        time_unit, delay = self.amount(f"latency of {label}", physical.get("latency"), tuple(LATENCIES))
        delay_s = LATENCIES[time_unit](not_negative(f"{time_unit} of latency of {label}", delay)) if time_unit else 0.0
        if unit == TRANSFERS or not unit:
            return Link(name, label, None, float(delay_s), f"{amount:g} {TRANSFERS}" if unit else "")
        rate = TO_BYTES_PER_S[unit](positive(f"{unit} of {label}", amount))
        return Link(name, label, float(rate), float(delay_s), "")

    def amount(self, label: str, entry: Any, allowed: tuple[str, ...]) -> tuple[str, float]:
        """The unit and number of a bandwidth or latency; ("", 0): there is none."""
        table = _table(label, entry or {})
        stated = [field for field in table if field in allowed]
        unit = table.get("choice", stated[0] if len(stated) == 1 else None)
        self.unread += [f"{field!s:.40} of {label}" for field in table if field not in ("choice", unit)]
        if not table:
            return "", 0.0
        unit = one_of(f"choice of {label}", _text(f"choice of {label}", unit), allowed)
        if unit not in table:
            raise InputError(f"{label} must give {unit}, as its choice says, but it is missing.")
        return unit, float(number(f"{unit} of {label}", table[unit]))

    def edges(self, owner: str, entry: Table, between_instances: bool) -> list[_Ends]:
        """The edges and connections of a device or of the infrastructure."""
        ends: list[_Ends] = []
        for field in ("edges", "connections"):
            for nth, edge in enumerate(_list(f"{field} of {owner}", entry.get(field))):
                label = f"{field.removesuffix('s')} {nth} of {owner}"
                ends.append(
                    _connection(label, edge) if isinstance(edge, str) else self.edge(label, edge, between_instances)
                )
        return ends

    def edge(self, label: str, entry: Any, between_instances: bool) -> _Ends:
        table = _table(label, entry)
        self.note("edge", label, table)
        first, other = (self.end(f"{end} of {label}", table.get(end), between_instances) for end in ("ep1", "ep2"))
        link = _text(f"link of {label}", table.get("link"))
        scheme = one_of(f"scheme of {label}", _text(f"scheme of {label}", table.get("scheme")), SCHEMES)
        return _Ends(label, first, other, link, scheme)

    def end(self, label: str, entry: Any, between_instances: bool) -> list[str]:
        table = _table(label, entry)
        self.note("end", label, table)
        owner, unused = ("instance", "device") if between_instances else ("device", "instance")
        if unused in table:
            self.unread.append(f"{unused} of {label}")
        elements = _text(f"component of {label}", table.get("component")).split(".")
        if between_instances or table.get(owner):
            elements = [_text(f"{owner} of {label}", table.get(owner)), *elements]
        return elements


def _connection(label: str, text: str) -> _Ends:
    """The ends of a connection such as `host.0.nic.1.eth.leaf.0.port.3`: names and indices around a link."""
    words = text.split(".")
    link = next((n for n in range(0, len(words) - 1, 2) if not INDEX.fullmatch(words[n + 1])), -1)
    sides = words[:link], words[link + 1 :]
    paired = all(side and len(side) % 2 == 0 and all(map(INDEX.fullmatch, side[1::2])) for side in sides)
    if link < 0 or not paired:
        raise InputError(
            f"{label} must be names with indices, a link, and names with indices, such as xpu.0.pcie.nic.0, got "
            f"{text!r:.80}."
        )
    first, other = ([f"{name}[{index}]" for name, index in zip(side[::2], side[1::2], strict=True)] for side in sides)
    return _Ends(label, first, other, words[link], "one2one")


# ------------------------------------------------------------------------------------------------- components and edges
def _expand(
    devices: dict[str, _Device], instances: dict[str, tuple[str, int]], links: dict[str, Link], edges: list[_Ends]
) -> Components:
    """All components of all instances, and the links between them."""
    components, sizes = Components(), {}
    relative = {name: _edges_of(name, devices) for name in devices}
    for name, (device, count) in instances.items():
        _check_device(f"instance {name!r}", device, devices)
        check_many("nodes", count * _size(device, devices, sizes, ()), MOST_NODES)
        for index in range(count):
            _add(components, f"{name}.{index}", f"{name}.{index}", device, devices, relative)
    for edge in edges:
        _check_link(edge, links)
        first, other = (_across(edge, elements, devices, instances) for elements in (edge.first, edge.other))
        for pair in _pairs(edge, first, other):
            components.join(*pair, links[edge.link])
    return components


def _check_device(label: str, device: str, devices: dict[str, _Device]) -> None:
    if device not in devices:
        raise InputError(f"{label} is of device {device!r:.80}, which is not in devices ({', '.join(devices)[:200]}).")


def _size(device: str, devices: dict[str, _Device], sizes: dict[str, int], above: tuple[str, ...]) -> int:
    """Components of a device, those of devices in it included, and at least 1."""
    if device in above:
        raise InputError(f"device {device!r} must not contain itself, but it is in {' in '.join(reversed(above))}.")
    if len(above) > 50:
        raise InputError(f"device {above[0]!r} must hold devices at most 50 deep.")
    if device not in sizes:
        total = 1
        for name, component in devices[device].components.items():
            if component.choice == "device":
                _check_device(f"component {name!r} of device {device!r}", name, devices)
                total += component.count * _size(name, devices, sizes, (*above, device))
            else:
                total += component.count
        check_many("nodes", total, MOST_NODES)
        sizes[device] = total
    return sizes[device]


def _add(
    components: Components,
    instance: str,
    prefix: str,
    device: str,
    devices: dict[str, _Device],
    relative: dict[str, list[tuple[str, str, Link]]],
) -> None:
    """Add the components of one instance of a device, and its edges."""
    for name, component in devices[device].components.items():
        for index in range(component.count):
            inside = f"{prefix}.{name}.{index}"
            if component.choice == "device":
                _add(components, instance, inside, name, devices, relative)
            else:
                components.add(inside, component.choice, instance)
    for first, other, link in relative[device]:
        components.join(f"{prefix}.{first}", f"{prefix}.{other}", link)


def _edges_of(name: str, devices: dict[str, _Device]) -> list[tuple[str, str, Link]]:
    """The edges of a device, between names within it."""
    device, pairs = devices[name], []
    for edge in device.edges:
        _check_link(edge, device.links)
        first, other = (_within(edge, elements, name, devices) for elements in (edge.first, edge.other))
        pairs += [(*pair, device.links[edge.link]) for pair in _pairs(edge, first, other)]
        check_many("links", len(pairs), MOST_LINKS)
    return pairs


def _check_link(edge: _Ends, links: dict[str, Link]) -> None:
    one_of(f"link of {edge.label}", edge.link, links)


def _pairs(edge: _Ends, first: list[str], other: list[str]) -> Iterator[tuple[str, str]]:
    if edge.scheme == "many2many":
        check_many("links", len(first) * len(other), MOST_LINKS)
    pairs = product(first, other) if edge.scheme == "many2many" else zip(first, other, strict=False)
    return ((source, target) for source, target in pairs if source != target)


def _across(
    edge: _Ends, elements: list[str], devices: dict[str, _Device], instances: dict[str, tuple[str, int]]
) -> list[str]:
    """The endpoints of an edge between instances."""
    name, indices = _element(edge.label, elements[0])
    one_of(f"instance of {edge.label}", name, instances)
    device, count = instances[name]
    owners = [f"{name}.{index}" for index in _indices(edge.label, name, indices, count)]
    inside = _within(edge, elements[1:], device, devices)
    check_many("nodes", len(owners) * len(inside), MOST_NODES)
    return [f"{owner}.{component}" for owner in owners for component in inside]


def _within(edge: _Ends, elements: list[str], device: str, devices: dict[str, _Device]) -> list[str]:
    """The endpoints of an edge in a device."""
    endpoints = [""]
    for nth, element in enumerate(elements):
        name, indices = _element(edge.label, element)
        components = devices[device].components
        one_of(f"component of {edge.label} in device {device!r}", name, components)
        chosen = _indices(edge.label, name, indices, components[name].count)
        check_many("nodes", len(endpoints) * len(chosen), MOST_NODES)
        endpoints = [f"{endpoint}.{name}.{index}".lstrip(".") for endpoint in endpoints for index in chosen]
        last, nested = nth == len(elements) - 1, components[name].choice == "device"
        if last == nested:
            why = (
                f"name a component in {name!r}, which is a device" if nested else f"end at {name!r}, which is no device"
            )
            raise InputError(f"{edge.label} must {why}, got {'.'.join(elements)!r:.80}.")
        if nested:
            _check_device(f"component {name!r} of device {device!r}", name, devices)
            device = name
    if not elements:
        raise InputError(f"{edge.label} must name a component of device {device!r}, but it names an instance alone.")
    return endpoints


def _element(label: str, text: str) -> tuple[str, str | None]:
    match = ELEMENT.fullmatch(text.strip())
    if not match:
        raise InputError(f"{label}: an endpoint must be NAME, NAME[2] or NAME[0:4], got {text!r:.80}.")
    return match[1].strip(), match[2]


def _indices(label: str, name: str, indices: str | None, count: int) -> range:
    """The indices that a slice means, of `count` components or instances."""
    if indices is None:
        return range(count)
    if INDEX.fullmatch(indices):
        start, stop, step = int(indices), int(indices) + 1, 1
    elif match := SLICE.fullmatch(indices):
        start, stop, step = (int(word) if word else None for word in match.groups())
    else:
        raise InputError(f"{label}: indices of {name} must be such as [2], [0:4] or [::2], got [{indices:.40}].")
    if step == 0 or max(start or 0, stop or 0) > count:
        raise InputError(f"{label}: {name}[{indices}] must lie within the {count} that there are.")
    return range(count)[start:stop:step]


# --------------------------------------------------------------------------------------------------------------- values
def _by_name(what: str, owner: Table, field: str) -> dict[str, Table]:
    """The tables of a list by their names. Raise `InputError` for a name that is missing, unusable or there twice."""
    tables: dict[str, Table] = {}
    for nth, entry in enumerate(_list(field, owner.get(field))):
        table = _table(f"{what} {nth}", entry)
        name = _text(f"name of {what} {nth}", table.get("name"))
        if set(name) & set(".[]"):
            raise InputError(f"name of {what} {nth} must have no dot or bracket, got {name!r:.80}.")
        if name in tables:
            raise InputError(f"name of {what} must be unique, but two are called {name!r:.80}.")
        tables[name] = table
    return tables


def _list(label: str, value: Any) -> list[Any]:
    if value is not None and not isinstance(value, list):
        raise InputError(f"{label} must be a list, got {value!r:.80}.")
    return value or []


def _table(label: str, value: Any) -> Table:
    if not isinstance(value, dict):
        raise InputError(
            f"{label} must be a table of fields, {'but it is missing' if value is None else f'got {value!r:.80}'}."
        )
    return value


def _text(label: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InputError(f"{label} must be a name, {'but it is missing' if value is None else f'got {value!r:.80}'}.")
    return value.strip()


def _count(label: str, entry: Table) -> int:
    count = entry.get("count")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MOST_NODES:
        problem = "but it is missing" if count is None else f"got {count!r:.80}"
        raise InputError(f"count of {label} must be a whole number from 0 to {MOST_NODES:,}, {problem}.")
    return count
