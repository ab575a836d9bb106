"""Keep the topology or reconfigure it before each step: the best choice for a fixed sequence of steps.

Each step of a collective, or of an all-to-all cut into steps, may use any of a few topologies; a change of topology
costs a reconfiguration. `topologies` finds the best sequence by dynamic programming over steps.

- `shifts`: a uniform all-to-all in S - 1 shift steps. On the ring of its own shift a step takes one hop. On another
  ring it is relayed, and every circuit carries as many flows as a flow has hops. The trade-off comes from arXiv
  2602.10468 (reconfigure if shorter paths save more than the delay; abstract only); we derived the rule and the closed
  form.
- `keep_or_reconfigure`: a scheduler of the common form, without relaying. The steps are the whole-pair matchings; a
  step reconfigures to its matching, or keeps the circuits and leaves its bytes to the packet NICs. The choice assumes
  that each step waits for the one before. In fact steps do not wait, so the schedule ends no later. Without packet NICs
  every step reconfigures.
"""

from typing import Unpack

import numpy as np

from mfabric_jax.checks import InputError, not_negative, positive, whole
from mfabric_jax.circuit_schedules.placing import Placed, SwitchNetwork, busiest, problem_of
from mfabric_jax.circuit_schedules.whole_pair import whole_pairs


def topologies(cost_s: np.ndarray, delay_s: float, first_free: bool) -> tuple[float, np.ndarray]:
    """Return the least total seconds, and the topology [N] of each step.

    `cost_s` [C N]: seconds of each step on each topology, infinite if the step cannot run there. Raise `InputError` if
    a step has no finite time.
    """
    cost_s = np.asarray(cost_s, float)
    if cost_s.ndim != 2 or np.isinf(cost_s).all(0).any():
        raise InputError("cost_s must be [topologies steps], and every step must have a finite time on some topology.")
    candidates, steps = cost_s.shape
    ends = np.full(candidates, 0.0 if first_free else float(delay_s))
    came_from = np.zeros((candidates, steps), int)
    for step in range(steps):
        came_from[:, step] = np.arange(candidates)
        if step:
            nearest = int(ends.argmin())
            reconfigures = ends[nearest] + delay_s < ends
            came_from[reconfigures, step] = nearest
            ends = np.where(reconfigures, ends[nearest] + delay_s, ends)
        ends = ends + cost_s[:, step]
    held = [int(ends.argmin())]
    for step in range(steps - 1, 0, -1):
        held.append(int(came_from[held[-1], step]))
    return float(ends.min()), np.array(held[:0:-1] + held[:1])


def shifts(servers: int, pair_bytes: float, circuit_Bps: float, circuits: int = 1, step_s: float = 0.0) -> np.ndarray:
    """Return the seconds [S-1 S-1] of shift m + 1 on the ring of shift c + 1, in cell [c, m].

    A cell is infinite if the ring does not reach the partner. `circuits`: parallel circuits of every server; `step_s`:
    latency of a hop.
    """
    whole("servers", servers, at_least=2)
    hop_s = not_negative("step_s", step_s) + not_negative("pair_bytes", pair_bytes) / (
        whole("circuits", circuits) * positive("circuit_Bps", circuit_Bps)
    )
    hops = np.full((servers - 1, servers - 1), np.inf)
    for ring in range(1, servers):
        for hop in range(servers - 1, 0, -1):
            if ring * hop % servers:
                hops[ring - 1, ring * hop % servers - 1] = hop
    return hops * hop_s


def keep_or_reconfigure(demand, **network: Unpack[SwitchNetwork]) -> Placed:
    """Schedule those whole-pair matchings whose reconfiguration pays; arguments as in `registry`."""
    problem = problem_of(demand, **network)
    matchings, seconds = whole_pairs(problem.wanted, problem.directed)
    if not matchings:
        return problem.place_matchings([], [])
    kept = [busiest(problem.need * matching) / problem.packet if problem.packet else np.inf for matching in matchings]
    cost_s = np.tile(kept, (len(kept), 1))
    np.fill_diagonal(cost_s, seconds)
    _, held = topologies(cost_s, problem.delay_s, problem.first_free)
    starts = [step for step, topology in enumerate(held) if topology == step]
    chosen = problem.place_matchings([matchings[step] for step in starts], [seconds[step] for step in starts])
    return min(chosen, problem.place_matchings([], []), key=problem.paced_end_s)
