"""Runs of a packet-level simulator, read from JSON: who sent how much to whom on which network, and when it arrived.

One file is one run, an object with the fields `name`, `topology`, `transport`, `routing` (texts), `link_bps`,
`payload_per_packet`, `header_per_packet`, `collective_s` (when the last flow ended) and `flows`, a list of objects with
`src`, `dst`, `bytes` (payload), `start` and `fct_s` (when the sender had the last acknowledgement), and where every
flow keeps to one path `path`: the nodes from `SRC<src>` to the last switch, joined by `>`. `topology` says 'N hosts',
and either 'non-blocking' or 'N ToR with N host ports and N uplinks'. Further fields are ignored.

Everything is checked here, so that what comes after may trust it. Arrays are NumPy; nothing is predicted here.
"""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, not_negative, positive

MIB = 2**20
_HOSTS = re.compile(r"(\d+) hosts\b")
_LEAVES = re.compile(r"(\d+) ToRs? with (\d+) host ports and (\d+) uplinks")
_NON_BLOCKING = re.compile(r"\bnon-blocking\b")


@dataclass(frozen=True)
class Leaves:
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


def read_run(file: str | Path) -> PacketRun:
    """One run; `InputError` names the file and the field that is missing or wrong."""
    file = Path(file)
    try:
        told = _Fields(file.name, json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise InputError(f"{file.name} cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file.name} is not JSON ({error}).") from error
    topology = told.text("topology")
    hosts, leaves = _shape(told.name, topology)
    flows = [_Fields(f"{file.name}, flow {i}", flow) for i, flow in enumerate(told.listed("flows"))]
    ends = np.array([[flow.host("src", hosts), flow.host("dst", hosts)] for flow in flows])
    start = np.array([flow.not_negative("start") for flow in flows])
    finish = np.array([flow.positive("fct_s") for flow in flows])
    if np.any(finish <= start):
        raise InputError(f"{file.name}, flow {np.argmax(finish <= start)}: fct_s must come after start.")
    paths = _paths(file.name, flows)
    return PacketRun(
        name=file.stem,
        pattern=told.text("name"),
        topology=topology,
        transport=told.text("transport"),
        routing=told.text("routing"),
        link_Bps=told.positive("link_bps") / 8,
        payload=told.positive("payload_per_packet"),
        header=told.not_negative("header_per_packet"),
        leaves=leaves,
        src=ends[:, 0],
        dst=ends[:, 1],
        size=np.array([flow.positive("bytes") for flow in flows]),
        start=start,
        finish=finish,
        paths=paths,
        collective_s=told.positive("collective_s"),
        stated_s=told.optional("fluid_collective_s" if paths is None else "fluid_ecmp_collective_s"),
    )


def _shape(name: str, topology: str) -> tuple[int, Leaves | None]:
    """The number of hosts, and the leaves unless the tree is non-blocking."""
    found, leaves = _HOSTS.search(topology), _LEAVES.search(topology)
    if found and leaves:
        tors, below, above = map(int, leaves.groups())
        if min(tors, below, above) < 1 or tors * below != int(found[1]):
            raise InputError(f"{name}: topology must have hosts = ToR x host ports, got {topology!r}.")
        return int(found[1]), Leaves(below, above)
    if found and _NON_BLOCKING.search(topology):
        return int(found[1]), None
    raise InputError(
        f"{name}: topology must say 'N hosts', and 'non-blocking' or 'N ToR with N host ports and N uplinks', "
        f"got {topology!r}."
    )


def _paths(name: str, flows: "list[_Fields]") -> tuple[tuple[str, ...], ...] | None:
    known = ["path" in flow.data for flow in flows]
    if not any(known):
        return None
    if not all(known):
        raise InputError(f"{name}: path must be given for every flow or none, but flow {known.index(False)} has none.")
    return tuple(flow.path() for flow in flows)


class _Fields:
    """A JSON object whose fields are checked as they are taken; `name` is where it stands."""

    def __init__(self, name: str, data: Any):
        if not isinstance(data, dict):
            raise InputError(f"{name} must be a JSON object with named fields, got {_short(data)}.")
        self.name = name
        self.data = data

    def _take(self, field: str, kinds: Any, wanted: str) -> Any:
        if field not in self.data:
            raise InputError(f"{self.name}: the field {field!r} is missing.")
        value = self.data[field]
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise InputError(f"{self.name}: {field} must be {wanted}, got {_short(value)}.")
        return value

    def text(self, field: str) -> str:
        return self._take(field, str, "text")

    def listed(self, field: str) -> list:
        value = self._take(field, list, "a list")
        if not value:
            raise InputError(f"{self.name}: {field} must not be empty.")
        return value

    def positive(self, field: str) -> float:
        return float(positive(f"{self.name}: {field}", self._take(field, int | float, "a number")))

    def not_negative(self, field: str) -> float:
        return float(not_negative(f"{self.name}: {field}", self._take(field, int | float, "a number")))

    def optional(self, field: str) -> float | None:
        return self.positive(field) if self.data.get(field) is not None else None

    def host(self, field: str, hosts: int) -> int:
        value = self._take(field, int, "a whole number")
        if not 0 <= value < hosts:
            raise InputError(f"{self.name}: {field} must lie in 0..{hosts - 1}, got {_short(value)}.")
        return value

    def path(self) -> tuple[str, ...]:
        """The nodes from the source to the last switch."""
        nodes = tuple(self.text("path").split(">"))
        first = f"SRC{self.data['src']}"
        if len(nodes) < 2 or nodes[0] != first or not all(nodes) or len(set(nodes)) < len(nodes):
            wanted = f"different nodes joined by '>', the first of them {first}"
            raise InputError(f"{self.name}: path must be {wanted}, got {_short(self.data['path'])}.")
        return nodes


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def mean_pair_mib(run: PacketRun) -> float:
    """Payload of an average flow in MiB."""
    return math.fsum(run.size) / len(run.size) / MIB
