"""Blocks that move by shifts in phases, and the topologies that show these shifts: each serves several phases.

`steps` [P S] describes an all-to-all: in phase p the block from server i to server i + r moves by steps[p, r] servers
(all numbers modulo S; 0: it stays). With several ports a topology shows the shifts of consecutive phases at once. That
takes fewer reconfigurations, but leaves fewer circuits to each shift. A dynamic programme over contiguous groups of
phases chooses the topologies, and deals the ports of each to its shifts.
"""

import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.circuit_schedules.placing import Placed, ScheduleProblem, problem_of
from mfabric_jax.circuit_schedules.registry import network_of
from mfabric_jax.circuit_schedules.stages import Stage
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region

MOST_DEALS = 2_000  # ways to deal ports to shifts that are all tried
EQUAL = 1e-9  # relative: shifts that are as slow get ports together


def run_phases(steps: np.ndarray, demand: np.ndarray, region: Region, switches: int = 1, **how: Any) -> list[Stage]:
    """Return a stage for each phase that moves bytes, with the topologies that end first; packet NICs are not used.

    `demand` [S S] in float64 with a zero diagonal; `how` as for `get`. A phase whose shifts do not fit on the ports
    shows them one after the other.
    """
    network = network_of(region, switches, **how)
    problem = problem_of(demand, **network)
    loads = phase_loads(steps, demand)
    loads = loads[loads.any((1, 2))]
    seconds = shift_seconds(loads / network["circuit_Bps"], problem.directed)
    best: list[tuple[float, list[Stage]]] = [(0.0, [])]
    for end in range(1, len(loads) + 1):
        options = []
        for start in range(end):
            served = _serve(problem._replace(first_free=problem.first_free and not start), seconds[start:end])
            if served is not None:
                options.append((best[start][0] + served.end_s, start, served))
        end_s, start, served = min(options, key=lambda option: option[0])
        schedules = _schedules(served, problem.first_free and not start, switches, how)
        best.append((end_s, best[start][1] + [*map(Stage, schedules, loads[start:end])]))
    return best[-1][1]


def phase_loads(steps: np.ndarray, demand: np.ndarray) -> np.ndarray:
    """Return the bytes [P S S] from server to server in each phase."""
    servers = len(demand)
    origin, distance = np.indices(demand.shape)
    bytes_ = demand[origin, (origin + distance) % servers]
    loads, held = np.zeros((len(steps), servers, servers)), origin
    for load, step in zip(loads, steps, strict=True):
        sent = (held + step) % servers
        np.add.at(load, (held, sent), bytes_)
        np.fill_diagonal(load, 0)
        held = sent
    return loads


def shift_seconds(need: np.ndarray, directed: bool) -> np.ndarray:
    """Return the seconds [P S] of every shift on one circuit a pair, for `need` [P S S] seconds.

    If circuits carry both directions, a shift and its reverse share them, under the smaller of the two numbers.
    """
    servers = need.shape[-1]
    server, shift = np.indices((servers, servers))
    longest = need[:, server, (server + shift) % servers].max(1, initial=0)
    if not directed:
        longest = np.maximum(longest, longest[:, -np.arange(servers) % servers])
        longest[:, servers // 2 + 1 :] = 0
    return longest


class _Served(NamedTuple):
    """A topology for some phases: what it shows in each, and when the last of them ends."""

    placed: list[Placed]
    end_s: float


def _serve(problem: ScheduleProblem, seconds: np.ndarray) -> _Served | None:
    """Return the topology for phases of `seconds` [P S] a shift; None if several phases do not fit on the ports."""
    used = np.flatnonzero(seconds.any(0)).tolist()
    seconds = seconds[:, used]
    width = 2 if not problem.directed and problem.ports % 2 == 0 else 1
    problem = problem._replace(ports=problem.ports // width)
    parts = [_matchings(len(problem.need), shift, problem.directed, width) for shift in used]
    seconds = seconds / [np.sum(part, axis=0)[0].max() for part in parts]
    price = np.array([len(part) for part in parts])
    rounds = -(-price.sum() // problem.lanes)
    if rounds > 1 and len(seconds) > 1:
        return None
    copies = _copies(seconds, price, rounds * problem.lanes)
    shown = [matching for part, count in zip(parts, copies, strict=True) for matching in part * count]
    if rounds > 1:
        placed = problem.place_matchings(shown, np.repeat(seconds[0] / copies, price * copies))
        return _Served([placed], float(problem.clocks(*placed[1:]).max()))
    configurations, _, switch = problem.place_matchings(shown, np.ones(len(shown)))
    ends = (seconds / copies).max(1)
    placed = [(configurations, np.full(len(switch), end), switch) for end in ends]
    return _Served(placed, float(ends.sum()) + problem.delay_s * (not problem.first_free))


def _matchings(servers: int, shift: int, directed: bool, width: int) -> list[np.ndarray]:
    """Return configurations [S S] that together show a shift, for the `width` ports of each server.

    Circuits of both directions form rings: two ports show a whole ring, one port every other circuit of it.
    """
    forward = np.roll(np.eye(servers, dtype=np.int64), shift, axis=1)
    if directed:
        return [forward]
    if width == 2:
        return [forward + forward.T]
    rings = int(np.gcd(servers, shift))
    length = servers // rings
    parts = np.zeros((1 if length == 2 else 2 + length % 2, servers, servers), np.int64)
    for hop in range(length - (length == 2)):
        part = 2 if hop == length - 1 and length % 2 else hop % 2
        sender = (np.arange(rings) + hop * shift) % servers
        parts[part, sender, (sender + shift) % servers] = parts[part, (sender + shift) % servers, sender] = 1
    return list(parts)


def _copies(seconds: np.ndarray, price: np.ndarray, slots: int) -> np.ndarray:
    """Return how often [K] to show each of K shifts whose phases take `seconds` [P K]; a copy takes `price` [K] slots.

    The best of all deals, or of many by steps: all shifts that hold a phase up get their next copy together, first in
    the phase that saves the most per slot.
    """
    each, count = slots // int(price.max()), len(price)
    if price.min() == price.max() and math.comb(each - 1, count - 1) <= MOST_DEALS:
        cuts = [(0, *inner, each) for inner in itertools.combinations(range(1, each), count - 1)]
        deals = np.diff(cuts, axis=1)
        return deals[(seconds / deals[:, None]).max(2).sum(1).argmin()]
    copies = np.ones(count, np.int64)
    while True:
        busy = seconds / copies
        more = busy >= busy.max(1, keepdims=True) * (1 - EQUAL)  # [P K]
        after = (seconds / (copies + more)[:, None]).max(2).sum(1)
        cost = more @ price
        saved = np.where(cost <= slots - copies @ price, (busy.max(1).sum() - after) / cost, 0)
        if saved.max() <= 0:
            return copies
        copies += more[saved.argmax()]


def _schedules(served: _Served, first_free: bool, switches: int, how: dict[str, Any]) -> list[CircuitSchedule]:
    """Return a schedule for each phase; all but the first begin with the topology of the phase before."""
    return [
        CircuitSchedule(*placed, switches=switches, **{**how, "first_free": first_free or number > 0})
        for number, placed in enumerate(served.placed)
    ]
