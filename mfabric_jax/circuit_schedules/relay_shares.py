"""The shares of every block's paths over several stages whose circuits are known: a linear programme.

A stage shows its patterns of circuits in turn. Variables: bytes for each destination on each circuit of each stage (or
waiting at a server), seconds of each pattern, bytes on packet NICs, and seconds of each stage, whose sum is minimised.
Blocks for one destination are not told apart: bytes that wait at a server take its paths in proportion.
"""

from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.circuit_schedules.placing import busiest
from mfabric_jax.support.extras import load_extra

ROUNDING = 1e-9  # of the busiest line: fewer bytes of a path are numerical errors of the linear programme
HOP = 1e-5  # seconds of a hop of all that the busiest line sends: of equal ends the one with the fewest hops
MOST_VARIABLES = 20_000


class RelayShares(NamedTuple):
    """Bytes from server to server in each stage [P S S], and the seconds of each stage [P]."""

    loads: np.ndarray
    seconds: np.ndarray


def share_paths(
    demand: np.ndarray, patterns: list[np.ndarray], circuit_Bps: float, packet_Bps: float
) -> RelayShares | None:
    """Return the shares that make all stages together shortest; `patterns`: circuits [M S S] of each stage.

    Return None if paths miss a pair with bytes, or if the programme is too large. It leaves out reconfigurations.
    """
    paths = _paths(demand, patterns, packet_Bps > 0)
    if paths is None or sum(map(np.count_nonzero, paths)) > MOST_VARIABLES:
        return None
    unit = busiest(demand)
    solution = _solve(demand / unit, paths, patterns, packet_Bps / circuit_Bps)
    if solution is None:
        return None
    flows, seconds = solution
    return RelayShares(_follow(demand, paths, flows), seconds * unit / circuit_Bps)


def _paths(demand: np.ndarray, patterns: list[np.ndarray], packets: bool) -> list[np.ndarray] | None:
    """Return for each stage whether bytes may go from u to v for d [S S S]; None if a pair has no path.

    Packet NICs are only for the last hop.
    """
    same = np.eye(len(demand), dtype=bool)
    last = np.broadcast_to(same & packets, (len(demand), *demand.shape))
    near = [((pattern.sum(0) > 0) | same)[:, :, None] | last for pattern in patterns]
    held, wanted = [demand > 0], [same]
    for reach in near:
        held.append((reach & held[-1][:, None]).any(0))
    for reach in near[::-1]:
        wanted.append((reach & wanted[-1][None]).any(1))
    useful = [some & other for some, other in zip(held, wanted[::-1], strict=True)]
    if (useful[0] != held[0]).any():
        return None
    return [reach & u[:, None] & v[None] for reach, u, v in zip(near, useful, useful[1:], strict=False)]


class _Rows:
    """Constraints of a linear programme, as triples (row, variable, value)."""

    def __init__(self):
        self.row, self.variable, self.value, self.count = [], [], [], 0

    def add(self, row: Any, variable: Any, value: float) -> None:
        """Add terms to rows, which count from the last `close`."""
        row, variable = np.broadcast_arrays(row, variable)
        self.row.append(self.count + row.ravel())
        self.variable.append(variable.ravel())
        self.value.append(np.full(row.size, value))

    def close(self, count: int) -> None:
        self.count += count

    def matrix(self, sparse: Any, variables: int) -> Any:
        row, variable, value = map(np.concatenate, (self.row, self.variable, self.value))
        return sparse.csr_array((value, (row, variable)), shape=(self.count, variables))


class _Columns(NamedTuple):
    """The variables of a stage, by number."""

    flow: np.ndarray  # [S S S] bytes from u to v for d, where `path` allows them
    seconds: np.ndarray  # [M] of its patterns
    packets: np.ndarray  # [S S], or [0 S] without packet NICs
    end: int


def _columns(path: np.ndarray, patterns: int, packets: bool, first: int) -> _Columns:
    servers, flows = len(path), int(np.count_nonzero(path))
    flow = np.cumsum(path).reshape(path.shape) - 1 + first
    seconds = first + flows + np.arange(patterns)
    cells = np.arange(servers * servers * packets).reshape(servers * packets, servers)
    packet = first + flows + patterns + cells
    return _Columns(flow, seconds, packet, first + flows + patterns + cells.size)


def _solve(
    demand: np.ndarray, paths: list[np.ndarray], patterns: list[np.ndarray], packet: float
) -> tuple[list[np.ndarray], np.ndarray] | None:
    """Return the bytes on the paths [S S S] and the seconds [P] of each stage, on circuits of 1 byte/s."""
    optimize, sparse = (load_extra("exact", "relay shares", f"scipy.{part}") for part in ("optimize", "sparse"))
    stages: list[_Columns] = []
    for path, pattern in zip(paths, patterns, strict=True):
        stages.append(_columns(path, len(pattern), packet > 0, stages[-1].end + 1 if stages else 0))
    sent, carried = _Rows(), _Rows()
    cost = np.zeros(stages[-1].end + 1)
    for number, (columns, path, pattern) in enumerate(zip(stages, paths, patterns, strict=True)):
        u, v, d = np.nonzero(path)
        flow, cell = columns.flow[u, v, d], np.arange(demand.size).reshape(demand.shape)
        sent.add(number * demand.size + cell[u, d], flow, 1.0)
        if number + 1 < len(stages):
            sent.add((number + 1) * demand.size + cell[v, d], flow, -1.0)
        carried.add(cell[u, v][u != v], flow[u != v], -1.0)
        _capacity(carried, columns, pattern, packet)
        cost[flow[u != v]], cost[columns.end] = HOP, 1
    sent.close(len(stages) * demand.size)
    held = np.append(demand.ravel(), np.zeros((len(stages) - 1) * demand.size))
    low, whole = carried.matrix(sparse, len(cost)), sent.matrix(sparse, len(cost))
    solved = optimize.linprog(cost, -low, np.zeros(carried.count), whole, held, bounds=(0, None), method="highs-ipm")
    if solved.status != 0:
        return None
    flows = [np.where(path, solved.x[columns.flow], 0) for path, columns in zip(paths, stages, strict=True)]
    return flows, solved.x[[columns.end for columns in stages]]


def _capacity(rows: _Rows, columns: _Columns, pattern: np.ndarray, packet: float) -> None:
    """Let a stage's circuits and packet NICs carry its bytes, which stand in the first S^2 rows."""
    servers = pattern.shape[-1]
    for count, seconds in zip(pattern, columns.seconds, strict=True):
        for level in np.unique(count[count > 0]):
            rows.add(np.flatnonzero(count == level), seconds, float(level))
    rows.add(np.arange(columns.packets.size), columns.packets.ravel(), 1.0)
    rows.close(servers * servers)
    for lines in (columns.packets, columns.packets.T):
        rows.add(np.arange(len(lines))[:, None], lines, -1.0)
        rows.add(np.arange(servers), columns.end, packet)
        rows.close(servers)
    rows.add(0, columns.seconds, -1.0)
    rows.add(0, columns.end, 1.0)
    rows.close(1)


def _follow(demand: np.ndarray, paths: list[np.ndarray], flows: list[np.ndarray]) -> np.ndarray:
    """Return the bytes between servers [P S S], so that no byte is lost to the rounding of `flows`."""
    loads, held = [], demand
    for path, flow in zip(paths, flows, strict=True):
        flow = np.where(flow > ROUNDING, flow, 0)
        flow = np.where(flow.any(1, keepdims=True), flow, path)  # [u v d]
        total = flow.sum(1, keepdims=True)
        sent = held[:, None] * np.divide(flow, total, out=np.zeros(flow.shape), where=total > 0)
        loads.append(sent.sum(2) * (1 - np.eye(len(demand))))
        held = sent.sum(0)
    return np.array(loads)
