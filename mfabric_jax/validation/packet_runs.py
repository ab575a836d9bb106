"""Runs of a packet-level simulator: who sent how much to whom on which network, and when it arrived.

One JSON file is one run; docs/formats.md lists its fields, and further ones are ignored. Everything is checked here.
"""

import functools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, not_negative, positive
from mfabric_jax.text_files import read_mapping

MIB = 2**20
LARGEST = 1 << 30  # bytes of a file: millions of flows
_HOSTS = re.compile(r"(\d+) hosts\b")
_LEAVES = re.compile(r"(\d+) ToRs? with (\d+) host ports and (\d+) uplinks")
_THREE_TIERS = re.compile(r"\bk=(\d+), 3 tiers\b")
_NON_BLOCKING = re.compile(r"\bnon-blocking\b")


class Leaves(NamedTuple):
    """A leaf-spine whose leaves are oversubscribed: `hosts` below and `uplinks` above each of them."""

    hosts: int
    uplinks: int


@dataclass(frozen=True)
class PacketRun:
    """One run: facts, flows [F] and what was measured.

    - `link_Bps`: line rate of every link; `payload`, `header`: bytes of a packet.
    - `link_delay_s`: propagation of a link, 0 where the file does not say.
    - `leaves`: None on a non-blocking tree.   - `radix`: ports of a switch of a tree of three tiers, where it is known.
    - `src`, `dst`: hosts; `size`: payload bytes; `start`, `finish`: seconds, `finish` when the sender knows.
    - `paths`: the nodes of every flow from its source to its last switch; None where packets are sprayed or the file
      does not say.
    - `collective_s`: when the last flow ended.
    - `stated_s`: the fluid completion time that the file itself states for these links, None if it does not.
    """

    name: str
    pattern: str
    topology: str
    transport: str
    routing: str
    link_Bps: float
    payload: float
    header: float
    link_delay_s: float
    leaves: Leaves | None
    radix: int | None
    src: np.ndarray
    dst: np.ndarray
    size: np.ndarray
    start: np.ndarray
    finish: np.ndarray
    paths: tuple[tuple[str, ...], ...] | None
    collective_s: float
    stated_s: float | None

    @property
    def goodput_Bps(self) -> float:
        """Payload that a link carries: headers take the rest."""
        return self.link_Bps * self.payload / (self.payload + self.header)

    @property
    def mean_pair_mib(self) -> float:
        """Payload of an average flow in MiB."""
        return float(self.size.mean()) / MIB

    @property
    def links(self) -> np.ndarray:
        """How many links every flow crosses [F]: those of its path; else 2 below one switch, as everywhere where the
        file does not say more than that the network is non-blocking, 4 or 6 where they meet further up."""
        if self.paths is not None:
            return np.array([len(path) for path in self.paths])
        apart = [self.src // hosts != self.dst // hosts for hosts in self._below]
        return 2 + 2 * np.sum(apart, axis=0, dtype=int, initial=0) * np.ones(len(self.src), int)

    @property
    def _below(self) -> list[int]:
        """Hosts below a switch of every tier but the last."""
        if self.leaves is not None:
            return [self.leaves.hosts]
        return [] if self.radix is None else [self.radix // 2, (self.radix // 2) ** 2]

    @property
    def group(self) -> str:
        """What limits such a run: runs of one group are judged together."""
        if self.leaves is not None:
            return "leaf-spine"
        if len(self.dst) > 1 and np.all(self.dst == self.dst[0]):
            return "incast"
        if self.paths is not None:
            return "one-path"
        return "spraying" if "spraying" in self.routing else "unknown-path"


def read_runs(folder: str | Path) -> list[PacketRun]:
    """Every run of a folder, in the order of the file names."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"runs must be a folder of packet-level runs (.json), got {str(folder)!r}.")
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(f"runs: no .json file in {str(folder)!r}.")
    return [read_run(file) for file in files]


def read_run(file: Path) -> PacketRun:
    """One run; `InputError` names the file and the field that is missing or wrong."""
    run = read_mapping(file, "a packet-level run", ".json", LARGEST)
    take = functools.partial(_take, file.name, run)
    topology = take("topology", str)
    hosts, leaves = _hosts_and_leaves(file.name, topology)
    flows = {f"{file.name}, flow {i}": flow for i, flow in enumerate(take("flows", list))}
    if not flows:
        raise InputError(f"{file.name}: flows must not be empty.")
    column = {
        field: np.array([_take(where, flow, field, check) for where, flow in flows.items()])
        for field, check in (
            ("src", int),
            ("dst", int),
            ("bytes", positive),
            ("start", not_negative),
            ("fct_s", positive),
        )
    }
    for field in ("src", "dst"):
        for where, host in zip(flows, column[field].tolist(), strict=True):
            if not 0 <= host < hosts:
                raise InputError(f"{where}: {field} must lie in 0..{hosts - 1}, got {host}.")
    if np.any(own := column["src"] == column["dst"]):
        raise InputError(
            f"{file.name}, flow {np.argmax(own)}: dst must be another host than src, {column['src'][own][0]}."
        )
    if np.any(early := column["fct_s"] <= column["start"]):
        raise InputError(f"{file.name}, flow {np.argmax(early)}: fct_s must come after start.")
    known = ["path" in flow for flow in flows.values()]
    if any(known) and not all(known):
        without = known.index(False)
        raise InputError(f"{file.name}: path must be given for every flow or none, but flow {without} has none.")
    stated = "fluid_ecmp_collective_s" if any(known) else "fluid_collective_s"
    return PacketRun(
        name=file.stem,
        pattern=take("name", str),
        topology=topology,
        transport=take("transport", str),
        routing=take("routing", str),
        link_Bps=take("link_bps", positive) / 8,
        payload=take("payload_per_packet", positive),
        header=take("header_per_packet", not_negative),
        link_delay_s=take("hop_latency_s", not_negative) if "hop_latency_s" in run else 0.0,
        leaves=leaves,
        radix=_radix(topology),
        src=column["src"],
        dst=column["dst"],
        size=column["bytes"],
        start=column["start"],
        finish=column["fct_s"],
        paths=tuple(_path(where, flow) for where, flow in flows.items()) if any(known) else None,
        collective_s=take("collective_s", positive),
        stated_s=take(stated, positive) if run.get(stated) is not None else None,
    )


def _take(where: str, data: Any, field: str, check: Any) -> Any:
    """A field of the JSON object that stands `where`: of a class, or a number that passes a check."""
    if not isinstance(data, dict):
        raise InputError(f"{where} must be a JSON object with named fields, got {_short(data)}.")
    if field not in data:
        raise InputError(f"{where}: the field {field!r} is missing.")
    value, kinds = data[field], check if isinstance(check, type) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = {str: "text", int: "a whole number", list: "a list"}.get(check, "a number")
        raise InputError(f"{where}: {field} must be {wanted}, got {_short(value)}.")
    return value if isinstance(check, type) else float(check(f"{where}: {field}", value))


def _path(where: str, flow: dict[str, Any]) -> tuple[str, ...]:
    """The nodes from the source to the last switch."""
    nodes, first = tuple(_take(where, flow, "path", str).split(">")), f"SRC{flow['src']}"
    if len(nodes) < 2 or nodes[0] != first or not all(nodes) or len(set(nodes)) < len(nodes):
        wanted = f"different nodes joined by '>', the first of them {first}"
        raise InputError(f"{where}: path must be {wanted}, got {_short(flow['path'])}.")
    return nodes


def _hosts_and_leaves(name: str, topology: str) -> tuple[int, Leaves | None]:
    """The number of hosts, and the leaves unless the tree is non-blocking."""
    hosts, leaves = _HOSTS.search(topology), _LEAVES.search(topology)
    if not hosts or not (leaves or _NON_BLOCKING.search(topology)):
        wanted = "'N hosts', and 'non-blocking' or 'N ToR with N host ports and N uplinks'"
        raise InputError(f"{name}: topology must say {wanted}, got {topology!r}.")
    if not leaves:
        return int(hosts[1]), None
    tors, below, above = map(int, leaves.groups())
    if min(tors, below, above) < 1 or tors * below != int(hosts[1]):
        raise InputError(f"{name}: topology must have hosts = ToR x host ports, got {topology!r}.")
    return int(hosts[1]), Leaves(below, above)


def _radix(topology: str) -> int | None:
    """Ports of the switches of a three-tier tree; None: not known."""
    found = _THREE_TIERS.search(topology)
    return max(2, int(found[1])) if found else None


def _short(value: Any) -> str:
    return text if len(text := repr(value)) <= 60 else text[:57] + "..."
