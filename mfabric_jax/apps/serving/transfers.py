"""Transfers of keys and values from GPUs that prefill to GPUs that decode, max-min fair on the NICs of both.

The fluid model is exact: the rate of a transfer changes only when another transfer begins or ends and the two share a
NIC, directly or through further transfers. Between these events rates are constant, so every end is known.
"""

import heapq
import math

SURE = 1e-12  # rounding of a time

Port = int  # even: a sender's, odd: a receiver's; an integer, so that sets have the same order in every run


class _Flow:
    __slots__ = ("end_s", "left", "ports", "rate", "since_s")

    def __init__(self, ports: tuple[Port, Port], left: float, now_s: float):
        self.ports, self.left, self.since_s = ports, left, now_s
        self.rate, self.end_s = 0.0, math.inf


class KvTransfers:
    """The transfers in flight, between NICs of `sender_Bps` and of `receiver_Bps` per direction [bytes/s]."""

    def __init__(self, sender_Bps: float, receiver_Bps: float):
        self._capacity = sender_Bps, receiver_Bps
        self._flows: dict[int, _Flow] = {}
        self._at: dict[Port, set[int]] = {}
        self._ends: list[tuple[float, int]] = []
        self._touched: set[Port] = set()

    def begin(self, now_s: float, name: int, sender: int, receiver: int, size: float) -> None:
        """Begin a transfer of `size` bytes. Call `settle` after the last change at this moment."""
        ports = 2 * sender, 2 * receiver + 1
        self._flows[name] = _Flow(ports, size, now_s)
        for port in ports:
            self._at.setdefault(port, set()).add(name)
        self._touched.update(ports)

    def next_end_s(self) -> float:
        """Return when the first transfer ends; infinite if none is in flight."""
        while self._ends:
            end_s, name = self._ends[0]
            if name in self._flows and self._flows[name].end_s == end_s:
                return end_s
            heapq.heappop(self._ends)
        return math.inf

    def take_finished(self, now_s: float) -> list[int]:
        """Remove and return the transfers that have ended. Call `settle` afterwards."""
        done = []
        while self.next_end_s() <= now_s * (1 + SURE):
            _, name = heapq.heappop(self._ends)
            for port in self._flows.pop(name).ports:
                self._at[port].discard(name)
                self._touched.add(port)
            done.append(name)
        return sorted(done)

    def settle(self, now_s: float) -> None:
        """Compute new rates for all transfers that a change affects."""
        while self._touched:
            flows = self._flows_sharing(self._touched.pop())
            for name, rate in self._fair(flows).items():
                flow = self._flows[name]
                if rate == flow.rate:
                    continue
                flow.left -= flow.rate * (now_s - flow.since_s)
                flow.since_s, flow.rate = now_s, rate
                flow.end_s = now_s + max(0.0, flow.left) / rate
                heapq.heappush(self._ends, (flow.end_s, name))

    def _flows_sharing(self, port: Port) -> list[int]:
        """All transfers that share NICs with those of a port, directly or through other transfers."""
        names: dict[int, None] = {}
        ports, seen = [port], {port}
        while ports:
            for name in self._at.get(ports.pop(), ()):
                if name in names:
                    continue
                names[name] = None
                new = [other for other in self._flows[name].ports if other not in seen]
                seen.update(new)
                ports += new
        self._touched -= seen
        return list(names)

    def _fair(self, flows: list[int]) -> dict[int, float]:
        """Max-min fair rates by progressive filling: the port with the least capacity per transfer fills first."""
        if len(flows) == 1:
            return {flows[0]: min(self._capacity)}
        members: dict[Port, set[int]] = {}
        for name in flows:
            for port in self._flows[name].ports:
                members.setdefault(port, set()).add(name)
        room = {port: self._capacity[port % 2] for port in members}
        rates: dict[int, float] = {}
        while members:
            full = min(members, key=lambda port: room[port] / len(members[port]))
            share = room[full] / len(members[full])
            for name in sorted(members[full]):
                rates[name] = share
                for port in self._flows[name].ports:
                    room[port] -= share
                    members[port].discard(name)
            members = {port: names for port, names in members.items() if names}
        return rates
