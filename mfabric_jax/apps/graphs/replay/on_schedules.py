"""Replay all-to-alls on circuits that change while they run: each transfer is cut into one piece per configuration.

The schedule of an all-to-all is computed for its own bytes between the servers of a region. It begins once everything
that the all-to-all waits for and the earlier all-to-alls of its servers have ended. Each configuration follows a
reconfiguration and lasts for the seconds that the schedule states. A configuration carries the piece of a transfer that
`schedule_time` assigns to it. Packet NICs carry the remaining bytes as soon as the transfer itself may begin.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.replay.reconfigurations import RECONFIGURATION, SHOWN, Phases, at_work
from mfabric_jax.flows.flows import COLUMNS, USUAL, Flows, flows_of

if TYPE_CHECKING:
    from mfabric_jax.evaluate.resolving.resolved import Carried  # the only interface to schedulers

CarriedOf = Callable[[np.ndarray, bool], "Carried"]


class RegionSchedule(NamedTuple):
    """The schedule of one all-to-all on its `servers` [s] in one region."""

    servers: np.ndarray
    plan: "Carried"

    @property
    def used_spans(self) -> list[int]:
        """Indices of the used spans: all spans of a switch up to the last one that carries bytes."""
        spans, some = self.plan.spans, self.plan.part.any((1, 2))
        last = {spans[index].switch: index for index in np.flatnonzero(some).tolist()}
        return [index for index, span in enumerate(spans) if index <= last.get(span.switch, -1)]

    def end_circuits(self, *, last: bool) -> np.ndarray:
        """Return the circuits [s s] of all switches in their first configurations, or in their last ones."""
        used = [self.plan.spans[index] for index in self.used_spans if not self.plan.spans[index].kept]
        of_switch = {span.switch: span.circuits for span in (used if last else reversed(used))}
        return sum(of_switch.values(), np.zeros((len(self.servers),) * 2, int))


class Scheduled(NamedTuple):
    """Flows on schedules. `circuit_set` [F]: 1 + index into `circuits` [W S S]; 0: packet NICs."""

    flows: Flows
    circuit_set: np.ndarray
    circuits: list[np.ndarray]


def find_schedules(
    phases: Phases, size: int, carried: Callable[[int], CarriedOf], *, known: bool
) -> list[list[RegionSchedule]]:
    """Return the schedules of every all-to-all inside regions of `size` servers.

    `carried` returns the scheduler for a number of servers; `known`: the demand is known in advance.
    """
    of_size: dict[int, CarriedOf] = {}
    before: dict[tuple[int, bytes], Carried] = {}
    schedules: list[list[RegionSchedule]] = []
    for demand in phases.demand:
        parts, servers = [], np.flatnonzero(at_work(demand))
        for region in np.unique(servers // size):
            mine = servers[servers // size == region]
            own, count = demand[np.ix_(mine, mine)], len(mine)
            if (count, own.tobytes()) not in before:
                plan = of_size.get(count) or of_size.setdefault(count, carried(count))
                before[count, own.tobytes()] = plan(own, known)
            parts.append(RegionSchedule(mine, before[count, own.tobytes()]))
        schedules.append(parts)
    return schedules


def on_schedules(
    flows: Flows,
    phases: Phases,
    parts: list[list[RegionSchedule]],
    ends: tuple[np.ndarray, np.ndarray],
    delay_s: float,
    **how,
) -> Scheduled:
    """Return the graph in which all-to-alls follow their schedules.

    - `ends`: source and destination server of flows [F].
    - `how` holds `ahead`: if true, the switch sets the first configuration of a `first_free` schedule as soon as the
      earlier all-to-alls have ended; else everything that the all-to-all waits for must have ended, too.
    """
    own = _ScheduleLayout(flows, phases, ends, delay_s, **how)
    for every in parts:  # a run begins with the circuits that it ends with
        for part in every:
            own.set(part)
    for phase, every in enumerate(parts):
        own.lay(phase, every)
    return own.assemble()


class _ScheduleLayout:
    def __init__(self, flows: Flows, phases: Phases, ends, delay_s: float, *, ahead: bool):
        self.flows, self.exchange, self.ends, self.delay_s, self.ahead = flows, phases.exchange, ends, delay_s, ahead
        self.number = flows.flows
        self.columns: dict[str, list] = {name: [] for name in (*COLUMNS, "circuit_set")}
        self.pairs: list[tuple[int, int]] = []
        self.split: dict[int, list[int]] = {}  # a transfer -> its pieces
        self.ready: dict[int, int] = {}  # a transfer -> the marker that lets it begin
        self.circuits: dict[tuple[int, bytes], int] = {}
        self.kept: list[np.ndarray] = []
        self.servers = phases.demand.shape[-1]
        self.own: dict[int, np.ndarray] = {}
        self.users: dict[int, list[int]] = {}
        self.after = flows.after
        self.outside = self.exchange[self.after[:, 0]] != self.exchange[self.after[:, 1]]

    def set(self, part: RegionSchedule) -> None:
        """Remember the last circuits of the servers of a part."""
        for server, rows in self._rows(part.end_circuits(last=True), part.servers):
            self.own[server] = rows

    def _rows(self, circuits: np.ndarray, servers: np.ndarray):
        full = self._full(circuits, servers)
        return [(server, np.stack([full[server], full[:, server]])) for server in servers.tolist()]

    def _full(self, circuits: np.ndarray, servers: np.ndarray) -> np.ndarray:
        full = np.zeros((self.servers, self.servers), np.int64)
        full[np.ix_(servers, servers)] = circuits
        return full

    def _add(self, waits_for, **columns) -> int:
        usual = USUAL | {"src": -1, "dst": -1, "size": 0.0, "cap": 1.0, "circuit_set": 0} | columns
        for name, values in self.columns.items():
            values.append(usual[name])
        self.pairs.extend((int(flow), self.number) for flow in waits_for)
        self.number += 1
        return self.number - 1

    def lay(self, phase: int, parts: list[RegionSchedule]) -> None:
        members = np.flatnonzero(self.exchange == phase)
        waits = self._waits(phase, members)
        for part in parts:
            before = sorted({user for server in part.servers.tolist() for user in self.users.get(server, ())})
            through = [self._add(np.flatnonzero(self.exchange == earlier), task=RECONFIGURATION) for earlier in before]
            begin = self._add([*waits, *through, *self._add_reconfiguration(part, waits, through)], task=SHOWN)
            self._add_pieces(part, members, self._add_span_markers(part, begin))
            self.set(part)
            for server in part.servers.tolist():
                self.users[server] = [phase]

    def _waits(self, phase: int, members: np.ndarray) -> list[int]:
        """Flows that the all-to-all waits for, and markers that hold the starts and lags of its first flows."""
        into = self.exchange[self.after[:, 1]] == phase
        inside = np.isin(members, self.after[into & ~self.outside, 1])
        return [
            *self.after[into & self.outside, 0].tolist(),
            *(self._may_begin(int(flow)) for flow in members[~inside]),
        ]

    def _may_begin(self, flow: int) -> int:
        if flow not in self.ready:
            waits = self.after[self.after[:, 1] == flow, 0]
            when = {"start": self.flows.start[flow], "lag": self.flows.lag[flow]}
            self.ready[flow] = self._add(waits, task=self.flows.task[flow], **when)
        return self.ready[flow]

    def _add_reconfiguration(self, part: RegionSchedule, waits: list[int], through: list[int]) -> list[int]:
        first = self._rows(part.end_circuits(last=False), part.servers)
        if not part.plan.first_free or all((self.own[server] == rows).all() for server, rows in first):
            return []
        return [self._add([*through, *([] if self.ahead else waits)], lag=self.delay_s, task=RECONFIGURATION)]

    def _add_span_markers(self, part: RegionSchedule, begin: int) -> dict[int, int]:
        """Add a marker for the start of each span in use."""
        last: dict[int, tuple[int, float]] = {}  # of each switch: the previous configuration's marker and seconds
        begins = {}
        for index in part.used_spans:
            span = part.plan.spans[index]
            before, seconds = last.get(span.switch, (begin, 0.0))
            if seconds:
                before = self._add([before], lag=seconds, task=SHOWN)
                last[span.switch] = before, 0.0
            begins[index] = before
            if not span.kept:
                begins[index] = (
                    self._add([before], lag=span.reconfigure_s, task=RECONFIGURATION) if span.reconfigure_s else before
                )
                last[span.switch] = begins[index], span.seconds
        return begins

    def _add_pieces(self, part: RegionSchedule, members: np.ndarray, begins: dict[int, int]) -> None:
        src, dst = (end[members] for end in self.ends)
        position = np.full(self.servers, -1)
        position[part.servers] = np.arange(len(part.servers))
        moves = self.flows.transfers[members] & (self.flows.size[members] > 0) & (src != dst)
        here = moves & (position[src] >= 0) & (position[dst] >= 0)
        for flow, i, j in zip(members[here].tolist(), position[src[here]], position[dst[here]], strict=True):
            share, left = part.plan.part[:, i, j], float(part.plan.left[i, j])
            some: list[tuple[int | None, float, int]] = [(None, left, 0)] if left else []
            for index in np.flatnonzero(share).tolist():
                some.append((begins[index], float(share[index]), self._wiring_number(part, index)))
            if share.any():
                self._cut(flow, some)

    def _wiring_number(self, part: RegionSchedule, index: int) -> int:
        span = part.plan.spans[index]
        circuits = self._full(span.circuits, part.servers)
        key = span.switch, circuits.tobytes()
        if key not in self.circuits:
            self.circuits[key] = len(self.kept) + 1
            self.kept.append(circuits)
        return self.circuits[key]

    def _cut(self, flow: int, pieces: list[tuple[int | None, float, int]]) -> None:
        ready = self._may_begin(flow)
        of_flow = {name: getattr(self.flows, name)[flow] for name in ("src", "dst", "weight", "cap", "task")}
        self.split[flow] = []
        for begin, share, circuit_set in pieces:
            waits = [ready] if begin is None else [ready, begin]
            size = share * self.flows.size[flow]
            self.split[flow].append(
                self._add(waits, size=size, message=self.number, circuit_set=circuit_set, **of_flow)
            )

    def assemble(self) -> Scheduled:
        """Make each divided transfer a marker that waits only for its pieces, and return all flows."""
        flows, cut = self.flows, np.array(sorted(self.split), np.int64)
        arrays = {name: np.array(getattr(flows, name)) for name in COLUMNS}
        was_cut = np.zeros(flows.flows, bool)
        was_cut[cut] = True
        late = np.flatnonzero((arrays["message"] >= 0) & was_cut[arrays["message"]])
        arrays["message"][late] = [self.split[message][-1] for message in arrays["message"][late].tolist()]
        marker = USUAL | {"src": -1, "dst": -1, "size": 0.0, "cap": 1.0}
        for name in (name for name in COLUMNS if name != "task"):
            arrays[name][cut] = marker[name]
        every = {name: np.concatenate([arrays[name], np.array(self.columns[name])]) for name in COLUMNS}
        ends = {name: every[name].astype(np.int64) for name in ("src", "dst", "message", "task")}
        own = [(piece, flow) for flow, pieces in self.split.items() for piece in pieces]
        after = [self.after[~was_cut[self.after[:, 1]]], np.array([*self.pairs, *own], np.int64).reshape(-1, 2)]
        circuit_set = np.concatenate([np.zeros(flows.flows, np.int64), np.array(self.columns["circuit_set"], np.int64)])
        laid = flows_of(**(every | ends), after=np.concatenate(after), labels=flows.labels)
        return Scheduled(laid, circuit_set, self.kept)
