"""Replay all-to-alls on circuits that change while they run: each transfer is cut into a piece for each configuration.

The schedule of an all-to-all is computed for its own bytes between the servers of a region. It begins once everything
that the all-to-all waits for has ended, and so have the earlier all-to-alls of its servers. Then each configuration
lasts for its seconds, after a reconfiguration. A configuration carries the piece of a transfer that `schedule_time`
gives it. Packet NICs carry the remaining bytes as soon as the transfer itself may begin.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.replay.turns import SHOWN, TURN, Phases, at_work
from mfabric_jax.flows.flows import COLUMNS, USUAL, Flows, flows_of

if TYPE_CHECKING:
    from mfabric_jax.evaluate.resolving.resolved import Carried  # the only interface to schedulers

CarriedOf = Callable[[np.ndarray, bool], "Carried"]


class Part(NamedTuple):
    """The schedule of one all-to-all on its `servers` [s] in one region."""

    servers: np.ndarray
    plan: "Carried"

    @property
    def used(self) -> list[int]:
        """Indices of the spans of each switch up to its last span that carries bytes."""
        spans, some = self.plan.spans, self.plan.part.any((1, 2))
        last = {spans[one].switch: one for one in np.flatnonzero(some).tolist()}
        return [one for one, span in enumerate(spans) if one <= last.get(span.switch, -1)]

    def shown(self, *, last: bool) -> np.ndarray:
        """Return the circuits [s s] of all switches in their first configurations, or in their last ones."""
        used = [self.plan.spans[one] for one in self.used if not self.plan.spans[one].kept]
        of_switch = {span.switch: span.circuits for span in (used if last else reversed(used))}
        return sum(of_switch.values(), np.zeros((len(self.servers),) * 2, int))


class Scheduled(NamedTuple):
    """Flows on schedules. `wiring` [F]: 1 + index into `circuits` [W S S]; 0: packet NICs."""

    flows: Flows
    wiring: np.ndarray
    circuits: list[np.ndarray]


def planned(phases: Phases, size: int, carried: Callable[[int], CarriedOf], *, known: bool) -> list[list[Part]]:
    """Return the schedules of every all-to-all inside regions of `size` servers.

    `carried` returns the scheduler for a number of servers; `known`: the demand is known in advance.
    """
    of_size: dict[int, CarriedOf] = {}
    before: dict[tuple[int, bytes], Carried] = {}
    found: list[list[Part]] = []
    for demand in phases.demand:
        parts, servers = [], np.flatnonzero(at_work(demand))
        for region in np.unique(servers // size):
            mine = servers[servers // size == region]
            own, count = demand[np.ix_(mine, mine)], len(mine)
            if (count, own.tobytes()) not in before:
                plan = of_size.get(count) or of_size.setdefault(count, carried(count))
                before[count, own.tobytes()] = plan(own, known)
            parts.append(Part(mine, before[count, own.tobytes()]))
        found.append(parts)
    return found


def on_schedules(
    flows: Flows, phases: Phases, parts: list[list[Part]], ends: tuple[np.ndarray, np.ndarray], delay_s: float, **how
) -> Scheduled:
    """Return the graph in which all-to-alls follow their schedules. `ends`: source and destination server of flows [F].

    `ahead`: the switch sets the first configuration of a `first_free` schedule as soon as the earlier all-to-alls have
    ended; else everything that the all-to-all waits for must have ended, too.
    """
    own = _Laid(flows, phases, ends, delay_s, **how)
    for every in parts:  # a run begins with the circuits that it ends with
        for part in every:
            own.set(part)
    for phase, every in enumerate(parts):
        own.lay(phase, every)
    return own.done()


class _Laid:
    def __init__(self, flows: Flows, phases: Phases, ends, delay_s: float, *, ahead: bool):
        self.flows, self.of, self.ends, self.delay_s, self.ahead = flows, phases.of, ends, delay_s, ahead
        self.number = flows.flows
        self.columns: dict[str, list] = {name: [] for name in (*COLUMNS, "wiring")}
        self.pairs: list[tuple[int, int]] = []
        self.split: dict[int, list[int]] = {}  # a transfer -> its pieces
        self.ready: dict[int, int] = {}  # a transfer -> the marker that lets it begin
        self.circuits: dict[tuple[int, bytes], int] = {}
        self.kept: list[np.ndarray] = []
        self.servers = phases.demand.shape[-1]
        self.own: dict[int, np.ndarray] = {}
        self.users: dict[int, list[int]] = {}
        self.after = flows.after
        self.outside = self.of[self.after[:, 0]] != self.of[self.after[:, 1]]

    def set(self, part: Part) -> None:
        """Remember the last circuits of the servers of a part."""
        for server, rows in self._rows(part.shown(last=True), part.servers):
            self.own[server] = rows

    def _rows(self, circuits: np.ndarray, servers: np.ndarray):
        full = self._full(circuits, servers)
        return [(server, np.stack([full[server], full[:, server]])) for server in servers.tolist()]

    def _full(self, circuits: np.ndarray, servers: np.ndarray) -> np.ndarray:
        full = np.zeros((self.servers, self.servers), np.int64)
        full[np.ix_(servers, servers)] = circuits
        return full

    def _add(self, waits_for, **columns) -> int:
        usual = USUAL | {"src": -1, "dst": -1, "size": 0.0, "cap": 1.0, "wiring": 0} | columns
        for name, values in self.columns.items():
            values.append(usual[name])
        self.pairs.extend((int(one), self.number) for one in waits_for)
        self.number += 1
        return self.number - 1

    def lay(self, phase: int, parts: list[Part]) -> None:
        members = np.flatnonzero(self.of == phase)
        waits = self._waits(phase, members)
        for part in parts:
            before = sorted({user for server in part.servers.tolist() for user in self.users.get(server, ())})
            through = [self._add(np.flatnonzero(self.of == one), task=TURN) for one in before]
            begin = self._add([*waits, *through, *self._turned(part, waits, through)], task=SHOWN)
            self._pieces(part, members, self._shown(part, begin))
            self.set(part)
            for server in part.servers.tolist():
                self.users[server] = [phase]

    def _waits(self, phase: int, members: np.ndarray) -> list[int]:
        """Flows that the all-to-all waits for, and markers with the starts and lags of its first flows."""
        into = self.of[self.after[:, 1]] == phase
        inside = np.isin(members, self.after[into & ~self.outside, 1])
        return [*self.after[into & self.outside, 0].tolist(), *(self._may_begin(int(one)) for one in members[~inside])]

    def _may_begin(self, flow: int) -> int:
        if flow not in self.ready:
            waits = self.after[self.after[:, 1] == flow, 0]
            when = {"start": self.flows.start[flow], "lag": self.flows.lag[flow]}
            self.ready[flow] = self._add(waits, task=self.flows.task[flow], **when)
        return self.ready[flow]

    def _turned(self, part: Part, waits: list[int], through: list[int]) -> list[int]:
        first = self._rows(part.shown(last=False), part.servers)
        if not part.plan.first_free or all((self.own[server] == rows).all() for server, rows in first):
            return []
        return [self._add([*through, *([] if self.ahead else waits)], lag=self.delay_s, task=TURN)]

    def _shown(self, part: Part, begin: int) -> dict[int, int]:
        """Add a marker for the begin of each span in use."""
        last: dict[int, tuple[int, float]] = {}  # of each switch: the previous configuration's marker and seconds
        begins = {}
        for one in part.used:
            span = part.plan.spans[one]
            before, seconds = last.get(span.switch, (begin, 0.0))
            if seconds:
                before = self._add([before], lag=seconds, task=SHOWN)
                last[span.switch] = before, 0.0
            begins[one] = before
            if not span.kept:
                begins[one] = self._add([before], lag=span.turn_s, task=TURN) if span.turn_s else before
                last[span.switch] = begins[one], span.seconds
        return begins

    def _pieces(self, part: Part, members: np.ndarray, begins: dict[int, int]) -> None:
        src, dst = (end[members] for end in self.ends)
        place = np.full(self.servers, -1)
        place[part.servers] = np.arange(len(part.servers))
        moves = self.flows.transfers[members] & (self.flows.size[members] > 0) & (src != dst)
        here = moves & (place[src] >= 0) & (place[dst] >= 0)
        for flow, i, j in zip(members[here].tolist(), place[src[here]], place[dst[here]], strict=True):
            share, left = part.plan.part[:, i, j], float(part.plan.left[i, j])
            some: list[tuple[int | None, float, int]] = [(None, left, 0)] if left else []
            for one in np.flatnonzero(share).tolist():
                some.append((begins[one], float(share[one]), self._wired(part, one)))
            if share.any():
                self._cut(flow, some)

    def _wired(self, part: Part, one: int) -> int:
        span = part.plan.spans[one]
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
        for begin, share, wiring in pieces:
            waits = [ready] if begin is None else [ready, begin]
            size = share * self.flows.size[flow]
            self.split[flow].append(self._add(waits, size=size, message=self.number, wiring=wiring, **of_flow))

    def done(self) -> Scheduled:
        """Make each divided transfer a marker that waits for its pieces alone, and return all flows."""
        flows, cut = self.flows, np.array(sorted(self.split), np.int64)
        arrays = {name: np.array(getattr(flows, name)) for name in COLUMNS}
        was_cut = np.zeros(flows.flows, bool)
        was_cut[cut] = True
        late = np.flatnonzero((arrays["message"] >= 0) & was_cut[arrays["message"]])
        arrays["message"][late] = [self.split[one][-1] for one in arrays["message"][late].tolist()]
        marker = USUAL | {"src": -1, "dst": -1, "size": 0.0, "cap": 1.0}
        for name in (name for name in COLUMNS if name != "task"):
            arrays[name][cut] = marker[name]
        every = {name: np.concatenate([arrays[name], np.array(self.columns[name])]) for name in COLUMNS}
        ends = {name: every[name].astype(np.int64) for name in ("src", "dst", "message", "task")}
        own = [(piece, flow) for flow, pieces in self.split.items() for piece in pieces]
        after = [self.after[~was_cut[self.after[:, 1]]], np.array([*self.pairs, *own], np.int64).reshape(-1, 2)]
        wiring = np.concatenate([np.zeros(flows.flows, np.int64), np.array(self.columns["wiring"], np.int64)])
        laid = flows_of(**(every | ends), after=np.concatenate(after), labels=flows.labels)
        return Scheduled(laid, wiring, self.kept)
