"""The best of three fast schedulers, compiled, for one demand or thousands in one call.

The three are Spectra's permutations, whole-pair matchings and Solstice's slices; the earliest planned end
(`placing.ScheduleProblem.paced_end_s`) wins. The choice among equally good matchings may differ from the schedulers of
these names, because Solstice's slices keep what they can of the matching before.

Assignments start from the prices of the round before, and slices from its matching, which is faster than SciPy's
assignment. If circuits carry both directions, the three schedulers themselves run.
"""

from typing import NamedTuple, Unpack

import numpy as np

from mfabric_jax.circuit_schedules.loop_arrays import Facts, MatchingPlan, QuickWork
from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem, SwitchNetwork, problem_of
from mfabric_jax.circuit_schedules.solstice import solstice
from mfabric_jax.circuit_schedules.spectra import spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair
from mfabric_jax.support.loops import at_first_call

MOST = 10  # most matchings per server; Spectra needs one per server; plans that need more are left out
_plans = at_first_call("mfabric_jax.circuit_schedules.quick_loops:plans")


class ScheduleBatch(NamedTuple):
    """Schedules of B demands.

    - `partner` [B K ports S]: the server that each server sends to; itself: none.
    - `seconds`, `switch` [B K]; `count` [B]: number of configurations of each schedule.
    """

    partner: np.ndarray
    seconds: np.ndarray
    switch: np.ndarray
    count: np.ndarray

    def configurations(self) -> np.ndarray:
        """Return the circuits [B K S S], none beyond `count`."""
        many, most, ports, servers = self.partner.shape
        circuits = np.zeros((many, most, servers, servers), np.int32)
        shown = np.arange(most)[None, :, None] < self.count[:, None, None]
        for port in range(ports):
            b, k, i = np.nonzero(shown & (self.partner[:, :, port] != np.arange(servers)))
            circuits[b, k, i, self.partner[b, k, port, i]] += 1
        return circuits


def quick(demand, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule by Spectra, whole pairs or slices, whichever ends first; arguments as in `registry`."""
    problem = problem_of(demand, **network)
    if not problem.directed:
        return min(
            (scheduler(demand, **network) for scheduler in (spectra, whole_pair, solstice)), key=problem.paced_end_s
        )
    batch = plan_batch(problem.need[None], problem)
    return batch.configurations()[0].astype(np.int64), batch.seconds[0], batch.switch[0].astype(np.int64)


def plan_batch(need: np.ndarray, facts: ScheduleProblem) -> ScheduleBatch:
    """Return directed schedules for demands [B S S], in seconds of a circuit; `facts` holds what they share."""
    many, servers = need.shape[:2]
    most, ports = MOST * servers, facts.ports
    if not ports:
        nothing = np.zeros((many, 0))
        return ScheduleBatch(
            np.zeros((many, 0, 0, servers), np.int16), nothing, nothing.astype(int), np.zeros(many, int)
        )
    column, rows = np.empty((most, servers), np.int64), np.empty((2, most))
    order, shown_as, on = np.empty((3, most), np.int64)
    plan = MatchingPlan(column, rows[0], order, shown_as, rows[1], on)
    left, cost, uncovered = np.empty((3, servers, servers))
    columns, of_rows = np.empty((2, servers), np.int64)
    lines, spare = np.empty((2, 2 * servers))
    index, free = np.empty(4 * servers, np.int64), np.empty(facts.switches)
    work = QuickWork(left, cost, uncovered, np.empty(servers), columns, of_rows, spare, index, lines, free)
    known = Facts(float(facts.packet), facts.switches, ports, float(facts.delay_s), bool(facts.first_free))
    partner = np.empty((many, most, ports, servers), np.int16)
    seconds, switch, count = np.zeros((many, most)), np.zeros((many, most), np.int16), np.empty(many, np.int64)
    _plans(np.ascontiguousarray(need, float), known, plan, work, partner, seconds, switch, count)
    shown = int(count.max(initial=0))
    return ScheduleBatch(partner[:, :shown], seconds[:, :shown], switch[:, :shown], count)
