"""Keys and values on their way from GPUs that prefill to GPUs that decode: max-min fair on the NICs of both.

An exact fluid: a transfer's rate changes only when one begins or ends that shares a NIC with it, directly or through
others. Between such moments rates are constant, so that every end is known.
"""

import heapq
import math

SURE = 1e-12  # rounding of a time

Port = int  # even: a sender's, odd: a receiver's; numbers, whose order in sets is the same in every run


class _Flow:
    __slots__ = ("end_s", "left", "ports", "rate", "since_s")

    def __init__(self, ports: tuple[Port, Port], left: float, now_s: float):
        self.ports, self.left, self.since_s = ports, left, now_s
        self.rate, self.end_s = 0.0, math.inf


class Transfers:
    """Those in flight. `port_Bps`: of every NIC, each way."""

    def __init__(self, port_Bps: float):
        self._capacity = port_Bps
        self._flows: dict[int, _Flow] = {}
        self._at: dict[Port, set[int]] = {}
        self._ends: list[tuple[float, int]] = []
        self._touched: set[Port] = set()

    def begin(self, now_s: float, name: int, sender: int, receiver: int, size: float) -> None:
        """A transfer of `size` bytes; call `settle` after the last change of this moment."""
        ports = 2 * sender, 2 * receiver + 1
        self._flows[name] = _Flow(ports, size, now_s)
        for port in ports:
            self._at.setdefault(port, set()).add(name)
        self._touched.update(ports)

    def next_end_s(self) -> float:
        """Of the transfer that ends first; infinite without one."""
        while self._ends:
            end_s, name = self._ends[0]
            if name in self._flows and self._flows[name].end_s == end_s:
                return end_s
            heapq.heappop(self._ends)
        return math.inf

    def ended(self, now_s: float) -> list[int]:
        """Take out those that have ended by now; call `settle` afterwards."""
        done = []
        while self.next_end_s() <= now_s * (1 + SURE):
            _, name = heapq.heappop(self._ends)
            for port in self._flows.pop(name).ports:
                self._at[port].discard(name)
                self._touched.add(port)
            done.append(name)
        return sorted(done)

    def settle(self, now_s: float) -> None:
        """New rates for all that a change has touched."""
        while self._touched:
            flows = self._joined(self._touched.pop())
            for name, rate in self._fair(flows).items():
                flow = self._flows[name]
                if rate == flow.rate:
                    continue
                flow.left -= flow.rate * (now_s - flow.since_s)
                flow.since_s, flow.rate = now_s, rate
                flow.end_s = now_s + max(0.0, flow.left) / rate
                heapq.heappush(self._ends, (flow.end_s, name))

    def _joined(self, port: Port) -> list[int]:
        """All transfers that share NICs with those of a port, directly or through others."""
        found: dict[int, None] = {}
        ports, seen = [port], {port}
        while ports:
            for name in self._at.get(ports.pop(), ()):
                if name in found:
                    continue
                found[name] = None
                new = [other for other in self._flows[name].ports if other not in seen]
                seen.update(new)
                ports += new
        self._touched -= seen
        return list(found)

    def _fair(self, flows: list[int]) -> dict[int, float]:
        """Max-min rates, by filling: the port with the least for each of its transfers is full first."""
        if len(flows) == 1:
            return {flows[0]: self._capacity}
        members: dict[Port, set[int]] = {}
        for name in flows:
            for port in self._flows[name].ports:
                members.setdefault(port, set()).add(name)
        room = dict.fromkeys(members, self._capacity)
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
