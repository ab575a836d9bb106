"""Runs of a packet-level simulator: who sent how much to whom on which network, and when it arrived.

One JSON file is one run; docs/formats.md lists its fields, and further ones are ignored. Everything is checked here.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError, not_negative, positive

MIB = 2**20
_HOSTS = re.compile(r"(\d+) hosts\b")
_LEAVES = re.compile(r"(\d+) ToRs? with (\d+) host ports and (\d+) uplinks")
_NON_BLOCKING = re.compile(r"\bnon-blocking\b")


class Leaves(NamedTuple):
    """A leaf-spine whose leaves are oversubscribed: `hosts` below and `uplinks` above each of them."""

    hosts: int
    uplinks: int


@dataclass(frozen=True)
class PacketRun:
    """One run: facts, flows [F] and what was measured.

    - `link_Bps`: line rate of every link; `payload`, `header`: bytes of a packet.
    - `leaves`: None on a non-blocking tree.
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
    leaves: Leaves | None
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
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{file.name} cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise InputError(f"{file.name} is not JSON ({error}).") from error
    run = _Object(file.name, data)
    topology = run.text("topology")
    hosts, leaves = _hosts_and_leaves(run.name, topology)
    listed = run.take("flows", list, "a list")
    if not listed:
        raise InputError(f"{run.name}: flows must not be empty.")
    flows = [_Object(f"{run.name}, flow {i}", flow) for i, flow in enumerate(listed)]
    start = np.array([flow.number("start", not_negative) for flow in flows])
    finish = np.array([flow.number("fct_s") for flow in flows])
    if np.any(finish <= start):
        raise InputError(f"{run.name}, flow {np.argmax(finish <= start)}: fct_s must come after start.")
    known = ["path" in flow.data for flow in flows]
    if any(known) and not all(known):
        without = known.index(False)
        raise InputError(f"{run.name}: path must be given for every flow or none, but flow {without} has none.")
    stated = "fluid_ecmp_collective_s" if any(known) else "fluid_collective_s"
    return PacketRun(
        name=file.stem,
        pattern=run.text("name"),
        topology=topology,
        transport=run.text("transport"),
        routing=run.text("routing"),
        link_Bps=run.number("link_bps") / 8,
        payload=run.number("payload_per_packet"),
        header=run.number("header_per_packet", not_negative),
        leaves=leaves,
        src=np.array([flow.host("src", hosts) for flow in flows]),
        dst=np.array([flow.host("dst", hosts) for flow in flows]),
        size=np.array([flow.number("bytes") for flow in flows]),
        start=start,
        finish=finish,
        paths=tuple(flow.path() for flow in flows) if any(known) else None,
        collective_s=run.number("collective_s"),
        stated_s=run.number(stated) if run.data.get(stated) is not None else None,
    )


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


class _Object:
    """A JSON object whose fields are checked as they are taken; `name` is where it stands."""

    def __init__(self, name: str, data: Any):
        if not isinstance(data, dict):
            raise InputError(f"{name} must be a JSON object with named fields, got {_short(data)}.")
        self.name, self.data = name, data

    def take(self, field: str, kinds: Any, wanted: str) -> Any:
        if field not in self.data:
            raise InputError(f"{self.name}: the field {field!r} is missing.")
        value = self.data[field]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InputError(f"{self.name}: {field} must be {wanted}, got {_short(value)}.")
        return value

    def text(self, field: str) -> str:
        return self.take(field, str, "text")

    def number(self, field: str, check: Callable[[str, float], float] = positive) -> float:
        return float(check(f"{self.name}: {field}", self.take(field, int | float, "a number")))

    def host(self, field: str, hosts: int) -> int:
        value = self.take(field, int, "a whole number")
        if not 0 <= value < hosts:
            raise InputError(f"{self.name}: {field} must lie in 0..{hosts - 1}, got {_short(value)}.")
        return value

    def path(self) -> tuple[str, ...]:
        """The nodes from the source to the last switch."""
        nodes, first = tuple(self.text("path").split(">")), f"SRC{self.data['src']}"
        if len(nodes) < 2 or nodes[0] != first or not all(nodes) or len(set(nodes)) < len(nodes):
            wanted = f"different nodes joined by '>', the first of them {first}"
            raise InputError(f"{self.name}: path must be {wanted}, got {_short(self.data['path'])}.")
        return nodes


def _short(value: Any) -> str:
    return text if len(text := repr(value)) <= 60 else text[:57] + "..."
