"""Configurations, durations and packet share together: linear programmes inside of a local search. Ours.

For fixed configurations on fixed switches the best durations and packet shares are a linear programme,

    min T:  sum of t on each switch + its turns <= T,  sum of t_m C_m + e >= demand,  lines of e <= packet rate T.

Its prices say what one more second of a circuit is worth to each pair; a heaviest matching by price is the best new
configuration but for its turn. From each of Spectra, whole pairs, Solstice and Eclipse, with the durations of their
programmes, single moves are taken while they end the schedule earlier:

- drop a short configuration, replace it by the best new one, or add that one;
- trade circuits between two configurations: where both are joined to a cycle or path of servers, the longer one takes
  the side of it with the larger entry, and both cover together what they did;
- move a configuration from the fullest to the emptiest switch;
- plan with slower packet NICs than there are: the programme paces them, but they share fairly, and may end later.

So it ends no later than any of the four. No optimum is proven: callers print a lower bound beside it.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple, Unpack

import numpy as np

from mfabric_jax.checks import whole
from mfabric_jax.circuit_schedules.eclipse import eclipse
from mfabric_jax.circuit_schedules.ending import end_s
from mfabric_jax.circuit_schedules.matching import heaviest, refined
from mfabric_jax.circuit_schedules.placing import Network, Placed, Problem, problem_of
from mfabric_jax.circuit_schedules.solstice import solstice
from mfabric_jax.circuit_schedules.spectra import spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair
from mfabric_jax.extras import extra

STARTS = (spectra, whole_pair, solstice, eclipse)
SHORTEST = 4  # configurations that a move tries to drop or replace
TRADES = 8  # pairs of configurations that try to trade, those that promise most
SLOWER = 0.96  # times the packet rate planned with
GAIN = 1e-6  # relative: less is no move


class Move(NamedTuple):
    """What a programme is solved for."""

    configurations: np.ndarray  # [K S S]
    switch: np.ndarray  # [K]
    pace: float = 1.0  # packet rate planned with, over that there is


class Durations(NamedTuple):
    schedule: Placed
    pace: float
    end_s: float
    price: np.ndarray  # [S S] of a second of circuit
    carried: np.ndarray  # [S S] what circuits carry


def joint(demand, *, programmes: int = 200, **network: Unpack[Network]) -> Placed:
    """`programmes`: how many linear programmes the search may solve from each start, at the most."""
    problem = problem_of(demand, **network)
    whole("programmes", programmes)
    starts = [start(demand, **network) for start in STARTS]
    if not problem.need.any():
        return starts[0]
    searched = [_searched(problem, start, programmes) for start in starts]
    return min([*starts, *searched], key=lambda schedule: end_s(problem, schedule))


def _searched(problem: Problem, start: Placed, programmes: int) -> Placed:
    best = _durations(problem, Move(start[0], start[2]))
    moves = _moves(problem, best)
    for _ in range(programmes):
        move = next(moves, None)
        if move is None:
            break
        found = _durations(problem, move)
        if found.end_s < best.end_s * (1 - GAIN):
            best = found
            moves = _moves(problem, best)
    return best.schedule


def _moves(problem: Problem, best: Durations) -> Iterator[Move]:
    """All that is one step away, the most promising first."""
    (configurations, seconds, switch), pace = best.schedule, best.pace
    if problem.packet:
        yield Move(configurations, switch, pace * SLOWER)
        yield Move(configurations, switch, min(pace / SLOWER, 1.0))
    shortest = np.argsort(seconds, kind="stable")[:SHORTEST]
    new = _dearest(problem, best.price)[None]
    for one in shortest:
        yield Move(np.delete(configurations, one, 0), np.delete(switch, one), pace)
    for one in shortest:
        others = np.delete(configurations, one, 0), np.delete(switch, one)
        yield Move(np.concatenate([others[0], new]), np.append(others[1], switch[one]), pace)
    for lane in range(problem.switches):
        yield Move(np.concatenate([configurations, new]), np.append(switch, lane), pace)
    for traded in _trades(problem, best):
        yield Move(traded, switch, pace)
    if problem.switches > 1:
        full, empty = (int(pick(problem.clocks(seconds, switch))) for pick in (np.argmax, np.argmin))
        for one in np.flatnonzero(switch == full):
            yield Move(configurations, np.where(np.arange(len(switch)) == one, empty, switch), pace)


def _trades(problem: Problem, best: Durations) -> list[np.ndarray]:
    """Configurations [K S S] after one trade each, the largest gain first."""
    configurations, seconds, _ = best.schedule
    wanted = best.carried if problem.directed else np.maximum(best.carried, best.carried.T)
    over = wanted - np.tensordot(seconds, configurations, 1)
    gains = []
    for one, two in itertools.combinations(np.argsort(-seconds, kind="stable"), 2):
        both = configurations[[one, two]]
        entries = np.maximum(over + np.tensordot(seconds[[one, two]], both, 1), 0)
        traded = _traded(both, entries)
        gain = (both * entries).max((1, 2)).sum() - (traded * entries).max((1, 2)).sum()
        if gain > GAIN * best.end_s:
            gains.append((gain, one, two, traded))
    found = []
    for _, one, two, traded in sorted(gains, key=lambda trade: -trade[0])[:TRADES]:
        found.append(configurations.copy())
        found[-1][[one, two]] = traded
    return found


def _traded(both: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Two configurations [2 S S]: the first takes the side with the larger entry of every component of their union."""
    servers = len(entries)
    joined = both.sum(0) @ both.sum(0).T > 0  # rows that share a column, then those that those share one with
    for _ in range(servers.bit_length()):
        joined = joined.astype(np.float32) @ joined > 0
    component = joined.argmax(1)
    largest = np.zeros((2, servers))
    for side in range(2):
        np.maximum.at(largest[side], component, (both[side] * entries).max(1))
    swap = (largest[1] > largest[0])[component][:, None]
    return np.stack([np.where(swap, both[1], both[0]), np.where(swap, both[0], both[1])])


def _dearest(problem: Problem, price: np.ndarray) -> np.ndarray:
    """The configuration [S S] worth most: a heaviest matching for each port, of pairs that have none yet."""
    price = price if problem.directed else price + price.T
    new = np.zeros(price.shape, np.int64)
    for _ in range(problem.ports):
        new += heaviest(np.where(new > 0, 0, price), problem.directed)
    return new * (1 - np.eye(len(new), dtype=np.int64))


def _durations(problem: Problem, move: Move) -> Durations:
    """The best durations of these configurations; those of no use left out."""
    seconds, price, carried = _programme(problem, move)
    used = seconds > 0
    schedule = move.configurations[used], seconds[used], move.switch[used]
    if not problem.packet:
        schedule = schedule[0], refined(problem.need, list(schedule[0]), schedule[1].tolist()), schedule[2]
    return Durations(schedule, move.pace, end_s(problem, schedule), price, carried)


def _programme(problem: Problem, move: Move) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Durations [K], all 0 where they carry too little; prices and what circuits carry [S S].

    Variables: t [K], e [pairs] if there are packet NICs, T.
    """
    configurations, switch, packet = move.configurations, move.switch, move.pace * problem.packet
    with extra("exact", "a joint schedule"):
        from scipy.optimize import linprog
    unit, servers, count = problem.busiest_s, len(problem.need), len(switch)
    row, column = np.nonzero(problem.need)
    shown = configurations[:, row, column].T
    if not packet:
        binding = _largest_alike(shown, problem.need[row, column])
        row, column, shown = row[binding], column[binding], shown[binding]
    rows = _rows(problem, shown, switch, (row, column), packet)
    carriers = len(row) if packet else 0
    turns = problem.clocks(np.zeros(count), switch)
    lines = np.zeros(2 * servers if packet else 0)
    limits = np.concatenate([-problem.need[row, column], lines, -turns]) / unit
    cost = np.append(np.zeros(count + carriers), 1.0)
    done = linprog(cost, A_ub=rows, b_ub=limits, bounds=(0, None), method="highs")
    price, carried = np.zeros((2, servers, servers))
    if done.status != 0:
        return np.zeros(count), price, carried
    price[row, column] = np.maximum(-done.ineqlin.marginals[: len(row)], 0)
    carried[:] = problem.need
    if packet:
        carried[row, column] = np.maximum(problem.need[row, column] - done.x[count:-1] * unit, 0)
    return np.maximum(done.x[:count], 0) * unit, price, carried


def _largest_alike(shown: np.ndarray, need: np.ndarray) -> np.ndarray:
    """Of pairs with the same circuits in all configurations (`shown` [pairs K]), those that need most."""
    _, alike = np.unique(shown @ np.random.default_rng(0).random(shown.shape[1]), return_inverse=True)
    most = np.zeros(len(need))
    np.maximum.at(most, alike, need)
    return np.flatnonzero(need >= most[alike])


def _rows(problem: Problem, shown: np.ndarray, switch: np.ndarray, pair: tuple[np.ndarray, np.ndarray], packet: float):
    """The left sides of a programme: what pairs get, lines of packet NICs, clocks of switches."""
    from scipy.sparse import csr_array

    (pairs, count), servers = shown.shape, len(problem.need)
    at, one = np.nonzero(shown)
    parts = [(at, one, -shown[at, one].astype(float))]
    below, last = pairs, count
    if packet:
        below, last, every = pairs + 2 * servers, count + pairs, np.arange(pairs)
        parts.append((every, count + every, np.full(pairs, -1.0)))
        parts.extend((pairs + side * servers + pair[side], count + every, np.ones(pairs)) for side in range(2))
        parts.append((pairs + np.arange(2 * servers), np.full(2 * servers, last), np.full(2 * servers, -packet)))
    parts.append((below + switch, np.arange(count), np.ones(count)))
    lanes = np.arange(problem.switches)
    parts.append((below + lanes, np.full(len(lanes), last), np.full(len(lanes), -1.0)))
    down, across, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    return csr_array((value, (down, across)), shape=(below + problem.switches, last + 1))
