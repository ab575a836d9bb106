"""What a scheduler is asked, and how its matchings come onto parallel switches.

Every scheduler here is `scheduler(demand, **network, **settings) -> (configurations, seconds, switch)`:

- `demand` [S S]: bytes from each server to each other; the diagonal is ignored;
- `configurations` [K S S]: circuits from server to server, in the order in which each switch shows them. Directed: a
  (partial) permutation for each port; else symmetric, and a circuit carries both directions at full rate;
- `seconds` [K]: how long each stays up; `switch` [K]: which switch shows it, after a turn of `delay_s`.

What no circuit carries uses the packet NICs from time 0. Without packet NICs the circuits carry everything. Schedulers
plan as if no circuit carried bytes during a turn; where only changing circuits stop, the same circuits carry no less.
"""

import math
from typing import NamedTuple, TypedDict

import numpy as np

from mfabric_jax.checks import InputError, not_negative, positive, whole
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_floats, refuse

Placed = tuple[np.ndarray, np.ndarray, np.ndarray]  # configurations [K S S], seconds [K], switch [K]


class Network(TypedDict):
    circuit_Bps: float  # of one circuit, in each of its directions
    packet_Bps: float  # of all packet NICs of a server; 0: none
    switches: int  # parallel, each with a clock of its own
    ports: int  # of every server at every switch
    delay_s: float  # of a turn
    all_stop: bool  # no circuit of a switch carries bytes while it turns; else only those that change stop
    directed: bool
    first_free: bool  # every switch holds its first configuration at time 0


class Problem(NamedTuple):
    """One demand in seconds of a single circuit."""

    need: np.ndarray  # [S S] zero diagonal
    wanted: np.ndarray  # [S S] of a circuit: `need`, or the larger of both directions where a circuit has both
    packet: float  # rate of a server's packet NICs over that of a circuit
    switches: int
    ports: int
    delay_s: float
    all_stop: bool
    directed: bool
    first_free: bool
    digit: float = float(np.finfo(float).eps)  # the last one of seconds

    @property
    def lanes(self) -> int:
        """Circuits that a server can have at a time."""
        return self.switches * self.ports

    @property
    def busiest_s(self) -> float:
        """Least time of any schedule: a server's bytes over all that it has."""
        return busiest(self.need) / (self.lanes + self.packet)

    def place(self, matchings, seconds) -> Placed:
        """Matchings [K S S] on switches: the longest first, each on the switch that is free first.

        A switch of p ports shows p matchings at a time, which turn together: as long as the longest needs. Source:
        step 3 of Spectra (arXiv 2603.07373); p ports are ours.
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
        """When each switch ends [switches]."""
        turns = np.bincount(switch, minlength=self.switches)
        turns = np.maximum(turns - 1, 0) if self.first_free else turns
        return np.bincount(switch, seconds, self.switches) + turns * self.delay_s

    def left(self, configurations: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """What the circuits do not carry [S S], in seconds of a circuit."""
        return self.without_rounding(self.need - np.tensordot(seconds, configurations, 1), len(seconds))

    def without_rounding(self, left: np.ndarray, terms: int) -> np.ndarray:
        """`left` [S S] without negative entries and without errors of a sum of so many terms."""
        return np.where(left <= (terms + 8) * self.digit * self.need, 0, left)

    def packet_s(self, left: np.ndarray) -> float:
        """Least time of the packet NICs for what is left [S S]; infinite where there are none."""
        if self.packet:
            return busiest(left) / self.packet
        return math.inf if left.any() else 0.0

    def planned_s(self, schedule: Placed) -> float:
        """The end that schedulers plan with: of the last configuration, and of packet NICs that are paced to end
        together. `ending.end_s` is what comes of it: circuits may be done sooner, shared packet NICs later."""
        configurations, seconds, switch = schedule
        clock = float(self.clocks(seconds, switch).max())
        return max(clock, self.packet_s(self.left(configurations, seconds)))


ROUNDING = 1e-9  # of the busiest line: steps do not go below it


def busiest(matrix: np.ndarray) -> float:
    """The largest sum of a row or column."""
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
) -> Problem:
    """`InputError` for a demand that is not square, or values outside of their ranges."""
    demand = host_floats("demand", demand)
    if demand.ndim != 2 or demand.shape[0] != demand.shape[1]:
        raise InputError(f"demand must be square, [servers servers], got the shape {list(demand.shape)}.")
    np.fill_diagonal(demand, 0)
    refuse("demand", demand, NOT_NEGATIVE)
    need = demand / positive("circuit_Bps", circuit_Bps)
    return Problem(
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
