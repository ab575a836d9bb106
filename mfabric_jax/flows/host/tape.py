"""Replay of a recorded event run for first derivatives, forward and reverse, in time linear in the tape.

Every number of the run is a sum, product or quotient of earlier ones, and an infinitesimal change of the input does not
change the order of events. At ties the derivative follows the order of the run.
"""

from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.host.heap import compiled

BEGIN, AT_ONCE, CLOSE, CAPPED, LEVEL, END = range(6)


class Tape(NamedTuple):
    """The record of a run.

    - `steps` [K 3] and `values` [K 2]: what happened. `length` [2]: steps and members written, or only counted.
    - `hop`, `held`, `rate` [M]: the hops on a link when it became full, whether the link holds their flow, and the
      flow's rate [bytes/s] if not.

    Kinds of steps, with their integers and, after a semicolon, their values:

    - BEGIN: flow, predecessor or -1. AT_ONCE: flow, which ends as it begins. CAPPED: flow.
    - CLOSE: flow, event (flow number for a begin, plus F for an end); the flow's rate and how long it lasted.
    - LEVEL: link, members; level and rising weight.
    - END: flow; bytes left when its last rate began, and that rate.
    """

    steps: np.ndarray
    values: np.ndarray
    length: np.ndarray
    hop: np.ndarray
    held: np.ndarray
    rate: np.ndarray


def new_tape(steps: int, members: int) -> Tape:
    """Return a tape of this capacity; a tape of capacity 0 only counts what it would hold."""
    return Tape(
        *(np.zeros((steps, 3), np.int64), np.zeros((steps, 2)), np.zeros(2, np.int64)),
        *(np.zeros(members, np.int64), np.zeros(members, np.bool_), np.zeros(members)),
    )


@compiled
def note(tape: Tape, what: int, first: int, second: int, value: float, other: float):
    index = tape.length[0]
    tape.length[0] += 1
    if index < len(tape.steps):
        tape.steps[index, 0], tape.steps[index, 1], tape.steps[index, 2] = what, first, second
        tape.values[index, 0], tape.values[index, 1] = value, other


@compiled
def note_member(tape: Tape, hop: int, held: bool, rate: float):
    index = tape.length[1]
    tape.length[1] += 1
    if index < len(tape.hop):
        tape.hop[index], tape.held[index], tape.rate[index] = hop, held, rate


def push_forward(tape: Tape, hop_flow: np.ndarray, share: np.ndarray, weight: np.ndarray, d: tuple[np.ndarray, ...]):
    """Return the change of all begins and ends [2F] for changes `d` of capacity, share (by hop), weight, cap, size,
    start and lag."""
    d_capacity, d_share, d_weight, d_cap, d_size, d_start, d_lag = d
    flows = len(weight)
    time, left, since, rate = np.zeros(2 * flows), np.zeros(flows), np.zeros(flows), np.zeros(flows)
    member = 0
    for step in range(len(tape.steps)):
        what, first, second = tape.steps[step]
        value, other = tape.values[step]
        if what == BEGIN:
            time[first] = (time[flows + second] if second >= 0 else d_start[first]) + d_lag[first]
            left[first], since[first], rate[first] = d_size[first], time[first], 0.0
        elif what == AT_ONCE:
            time[flows + first] = time[first]
        elif what == CLOSE:
            left[first] -= rate[first] * other + value * (time[second] - since[first])
            since[first] = time[second]
        elif what == CAPPED:
            rate[first] = d_cap[first]
        elif what == END:
            time[flows + first] = since[first] + left[first] / other - value * rate[first] / other**2
        else:
            room, begin = d_capacity[first], member
            member += second
            for entry in range(begin, member):
                hop = tape.hop[entry]
                flow = hop_flow[hop]
                if tape.held[entry]:
                    room -= value * (share[hop] * d_weight[flow] + d_share[hop] * weight[flow])
                else:
                    room -= share[hop] * rate[flow] + d_share[hop] * tape.rate[entry]
            for entry in range(begin, member):
                if tape.held[entry]:
                    flow = hop_flow[tape.hop[entry]]
                    rate[flow] = weight[flow] * room / other + value * d_weight[flow]
    return time


def pull_back(tape: Tape, hop_flow: np.ndarray, share: np.ndarray, weight: np.ndarray, links: int, of_time: np.ndarray):
    """Return the cotangents of each input for cotangents of begins and ends [2F]: the transpose of `push_forward`."""
    flows, hops = len(weight), len(share)
    capacity, of_share, of_weight = np.zeros(links), np.zeros(hops), np.zeros(flows)
    cap, size, start, lag = np.zeros(flows), np.zeros(flows), np.zeros(flows), np.zeros(flows)
    time, left, since, rate = of_time.copy(), np.zeros(flows), np.zeros(flows), np.zeros(flows)
    member = len(tape.hop)
    for step in range(len(tape.steps) - 1, -1, -1):
        what, first, second = tape.steps[step]
        value, other = tape.values[step]
        if what == BEGIN:
            size[first] += left[first]
            whole = time[first] + since[first]
            lag[first] += whole
            if second >= 0:
                time[flows + second] += whole
            else:
                start[first] += whole
            left[first], since[first], rate[first] = 0.0, 0.0, 0.0
        elif what == AT_ONCE:
            time[first] += time[flows + first]
        elif what == CLOSE:
            time[second] += since[first] - value * left[first]
            since[first] = value * left[first]
            rate[first] -= other * left[first]
        elif what == CAPPED:
            cap[first] += rate[first]
            rate[first] = 0.0
        elif what == END:
            count = time[flows + first]
            since[first] += count
            left[first] += count / other
            rate[first] -= count * value / other**2
        else:
            end, member = member, member - second
            level = 0.0
            for entry in range(member, end):
                if tape.held[entry]:
                    flow = hop_flow[tape.hop[entry]]
                    level += weight[flow] * rate[flow]
                    of_weight[flow] += value * rate[flow]
                    rate[flow] = 0.0
            level /= other
            capacity[first] += level
            for entry in range(member, end):
                hop = tape.hop[entry]
                flow = hop_flow[hop]
                if tape.held[entry]:
                    of_weight[flow] -= level * value * share[hop]
                    of_share[hop] -= level * value * weight[flow]
                else:
                    rate[flow] -= level * share[hop]
                    of_share[hop] -= level * tape.rate[entry]
    return capacity, of_share, of_weight, cap, size, start, lag
