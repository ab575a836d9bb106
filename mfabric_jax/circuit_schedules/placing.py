"""The problem that schedulers solve, and the placement of their matchings on parallel switches.

Every scheduler here is `scheduler(demand, **network, **settings) -> (configurations, seconds, switch)`:

- `demand` [S S]: bytes from server i to server j; the diagonal is ignored;
- `configurations` [K S S]: circuits from server to server, in the order in which each switch shows them. Directed: a
  (partial) permutation for each port. Otherwise symmetric; a circuit then carries both directions at full rate;
- `seconds` [K]: how long each stays up; `switch` [K]: the switch that shows it, after a delay of `delay_s`.

The bytes that no circuit carries use the packet NICs from time 0. Without packet NICs circuits carry everything.
Schedulers plan as if no circuit carried bytes during a reconfiguration; if only changing circuits stop, the circuits
carry at least as much.
"""

import math
from typing import NamedTuple, TypedDict

import numpy as np

from mfabric_jax.checks import InputError, not_negative, positive, whole
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_floats, refuse

Placed = tuple[np.ndarray, np.ndarray, np.ndarray]  # configurations [K S S], seconds [K], switch [K]


class SwitchNetwork(TypedDict):
    circuit_Bps: float  # of one circuit, in each of its directions
    packet_Bps: float  # of all packet NICs of a server; 0: none
    switches: int  # parallel switches, which reconfigure independently
    ports: int  # of every server at every switch
    delay_s: float  # of a reconfiguration
    all_stop: bool  # a switch carries nothing while it reconfigures; else only changing circuits stop
    directed: bool
    first_free: bool  # every switch holds its first configuration at time 0


class ScheduleProblem(NamedTuple):
    """One demand, in seconds that a single circuit takes."""

    need: np.ndarray  # [S S] zero diagonal
    wanted: np.ndarray  # [S S] `need`, or the larger of both directions if a circuit carries both
    packet: float  # rate of a server's packet NICs over the rate of a circuit
    switches: int
    ports: int
    delay_s: float
    all_stop: bool
    directed: bool
    first_free: bool
    digit: float = float(np.finfo(float).eps)  # relative rounding of seconds

    @property
    def lanes(self) -> int:
        """Most circuits of a server at a time."""
        return self.switches * self.ports

    @property
    def busiest_s(self) -> float:
        """Lower bound on any schedule: the busiest server's bytes over all of its circuits and packet NICs."""
        return busiest(self.need) / (self.lanes + self.packet)

    def place_matchings(self, matchings, seconds) -> Placed:
        """Place matchings [K S S] on switches, the longest first, each on the switch that is free first.

        A switch of p ports shows p matchings at a time, for as long as the longest needs, and reconfigures them
        together. Source: step 3 of Spectra (arXiv 2603.07373); p ports are our addition.
        """
        servers = len(self.need)
        matchings = np.asarray(matchings, np.int64).reshape(-1, servers, servers) * (
            1 - np.eye(servers, dtype=np.int64)
        )
        seconds = np.asarray(seconds, float)
        order = np.argsort(-seconds, kind="stable")
        groups = [order[first : first + self.ports] for first in range(0, len(order), self.ports)]
        free = np.full(self.switches, -self.delay_s if self.first_free else 0.0)
        switch = []
        for group in groups:
            switch.append(int(free.argmin()))
            free[switch[-1]] += self.delay_s + seconds[group[0]]
        shown = [matchings[group].sum(0) for group in groups]
        return (
            np.array(shown, np.int64).reshape(-1, servers, servers),
            seconds[[group[0] for group in groups]],
            np.array(switch, np.int64),
        )

    def clocks(self, seconds: np.ndarray, switch: np.ndarray) -> np.ndarray:
        """Return when each switch ends [switches]."""
        reconfigurations = np.bincount(switch, minlength=self.switches)
        reconfigurations = np.maximum(reconfigurations - 1, 0) if self.first_free else reconfigurations
        return np.bincount(switch, seconds, self.switches) + reconfigurations * self.delay_s

    def remainder(self, configurations: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """Return what the circuits do not carry [S S], in seconds of a circuit."""
        return self.without_rounding(self.need - np.tensordot(seconds, configurations, 1), len(seconds))

    def without_rounding(self, left: np.ndarray, terms: int) -> np.ndarray:
        """Return `left` [S S] with 0 for negative entries and for rounding errors of a sum of `terms` terms."""
        return np.where(left <= (terms + 8) * self.digit * self.need, 0, left)

    def packet_s(self, left: np.ndarray) -> float:
        """Return the least time in which packet NICs carry `left` [S S]; infinite without packet NICs."""
        if self.packet:
            return busiest(left) / self.packet
        return math.inf if left.any() else 0.0

    def paced_end_s(self, schedule: Placed) -> float:
        """Return the end that schedulers plan with: the later of the last configuration and of paced packet NICs.

        `ending.end_s` is the actual end: circuits may finish sooner, and packet NICs shared max-min fairly later.
        """
        configurations, seconds, switch = schedule
        clock = float(self.clocks(seconds, switch).max())
        return max(clock, self.packet_s(self.remainder(configurations, seconds)))


ROUNDING = 1e-9  # of the busiest line: smaller entries count as 0


def busiest(matrix: np.ndarray) -> float:
    """Return the largest sum of a row or column."""
    return float(max(matrix.sum(0).max(), matrix.sum(1).max()))


def problem_of(
    demand,
    *,
    circuit_Bps: float,
    packet_Bps: float,
    switches: int,
    ports: int,
    delay_s: float,
    all_stop: bool,
    directed: bool,
    first_free: bool,
) -> ScheduleProblem:
    """Return the problem of a demand [S S] in bytes. Raise `InputError` if it is not square or a value is invalid."""
    demand = host_floats("demand", demand)
    if demand.ndim != 2 or demand.shape[0] != demand.shape[1]:
        raise InputError(f"demand must be square, [servers servers], got the shape {list(demand.shape)}.")
    np.fill_diagonal(demand, 0)
    refuse("demand", demand, NOT_NEGATIVE)
    need = demand / positive("circuit_Bps", circuit_Bps)
    return ScheduleProblem(
        need,
        need if directed else np.maximum(need, need.T),
        not_negative("packet_Bps", packet_Bps) / circuit_Bps,
        whole("switches", switches),
        whole("ports", ports),
        not_negative("delay_s", delay_s),
        all_stop,
        directed,
        first_free,
    )
