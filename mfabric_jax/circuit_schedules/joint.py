"""Configurations, durations and packet share together: linear programmes inside of a local search. Ours.

For fixed configurations on fixed switches the best durations and packet shares are a linear programme,

    min T:  sum of t on each switch + its turns <= T,  sum of t_m C_m + e >= demand,  lines of e <= packet rate T.

Its prices say what one more second of a circuit is worth to each pair; a heaviest matching by price is the best new
configuration but for its turn. `duration_loops` solves it, and gives up as soon as it is proven not to end sooner. From
each of Spectra, whole pairs, Solstice and Eclipse that is near the best, with the durations of its programme, single
moves are taken while they end the schedule earlier:

- drop a short configuration, replace it by the best new one, or add that one;
- trade circuits between two configurations: where both are joined to a cycle or path of servers, the longer one takes
  the side of it with the larger entry, and both cover together what they did;
- move a configuration from the fullest to the emptiest switch;
- plan with slower packet NICs than there are: the programme paces them, but they share fairly, and may end later.

Where none does, some configurations drawn at random are rebuilt together, from what the others leave (large
neighbourhood search: Shaw, CP 1998). So it ends no later than any of the four. It stops at the lower bound, if it gets
there; otherwise no optimum is proven.
"""

from collections.abc import Iterator
from typing import NamedTuple, Unpack

import numpy as np

from mfabric_jax.checks import whole
from mfabric_jax.circuit_schedules.durations import programme, shown, trade_gains
from mfabric_jax.circuit_schedules.eclipse import eclipse
from mfabric_jax.circuit_schedules.ending import end_s, least_s
from mfabric_jax.circuit_schedules.matching import heaviest
from mfabric_jax.circuit_schedules.placing import ROUNDING, Network, Placed, Problem, problem_of
from mfabric_jax.circuit_schedules.solstice import solstice
from mfabric_jax.circuit_schedules.spectra import decomposed, spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair, whole_pairs

STARTS = (spectra, whole_pair, solstice, eclipse)
NEAR = 1.05  # starts that end later than this, times the best, are not searched
SHORTEST = 4  # configurations that a move tries to drop or replace
TRADES = 8  # pairs of configurations that try to trade, those that promise most
SLOWER = 0.96  # times the packet rate planned with
REBUILT = 5  # configurations at most that are rebuilt together
IN_VAIN = 4  # rebuilt sets for each programme, at most, of which nothing is left to rebuild
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


def joint(demand, *, programmes: int = 200, **network: Unpack[Network]) -> Placed:
    """`programmes`: how many linear programmes the search may solve from each start, at the most."""
    problem = problem_of(demand, **network)
    whole("programmes", programmes)
    starts = [start(demand, **network) for start in STARTS]
    if not problem.need.any():
        return starts[0]
    searches, near = [], NEAR * min(end_s(problem, start) for start in starts)
    firsts = [_durations(problem, Move(start[0], start[2]), near) for start in starts]
    found = sorted((first for first in firsts if first is not None), key=lambda first: first.end_s)
    for first in found:
        if first.end_s > NEAR * found[0].end_s or any(search.proven for search in searches):
            break
        searches.append(_Search(problem, first, programmes))
        searches[-1].run()
    return min([*starts, *(search.best.schedule for search in searches)], key=lambda one: end_s(problem, one))


class _Search:
    """From one start: `best` so far, programmes `left` to be solved."""

    def __init__(self, problem: Problem, best: Durations, programmes: int):
        self.problem, self.best, self.left = problem, best, programmes
        self.least = least_s(problem) * (1 + GAIN)
        self.random = np.random.default_rng(0)

    @property
    def proven(self) -> bool:
        return self.best.end_s <= self.least

    def run(self) -> None:
        self.descend()
        for _ in range(IN_VAIN * self.left):
            if self.proven or not self.left:
                break
            move = _rebuilt(self.problem, self.best, self.random)
            if move is not None and self.better(move):
                self.descend()

    def descend(self) -> None:
        """Moves while they end sooner."""
        moves = _moves(self.problem, self.best)
        while self.left and not self.proven and (move := next(moves, None)) is not None:
            if self.better(move):
                moves = _moves(self.problem, self.best)

    def better(self, move: Move) -> bool:
        """Whether the move ends sooner, and is taken."""
        self.left -= 1
        limit = self.best.end_s * (1 - GAIN)
        found = _durations(self.problem, move, limit)
        if found is None or found.end_s >= limit:
            return False
        self.best = found
        return True


def _rebuilt(problem: Problem, best: Durations, random: np.random.Generator) -> Move | None:
    """Other configurations instead of some, from what the others leave, its entries weighed at random: those of all
    that is left, or with packet NICs as many as there were, or one less."""
    configurations, seconds, switch = best.schedule
    some = random.permutation(len(seconds))[: random.integers(2, REBUILT + 1)]
    others, on = np.delete(configurations, some, 0), np.delete(switch, some)
    left = problem.wanted - np.tensordot(np.delete(seconds, some), others, 1)
    left = np.where(left > ROUNDING * problem.wanted, left, 0) * (0.5 + random.random(left.shape))
    if not problem.directed:
        left = np.maximum(left, left.T)
    if problem.packet:
        most = (len(some) - int(random.integers(2))) * problem.ports
        matchings = whole_pairs(left, problem.directed, most)[0]
    else:
        matchings = decomposed(left, problem.directed)[0]
    if not matchings:
        return None
    matchings = np.array(matchings) * (1 - np.eye(len(left), dtype=np.int64))
    new = np.add.reduceat(matchings, np.arange(0, len(matchings), problem.ports))
    return Move(np.concatenate([others, new]), np.append(on, np.resize(switch[some], len(new))), best.pace)


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


def _trades(problem: Problem, best: Durations) -> Iterator[np.ndarray]:
    """Configurations [K S S] after one trade each, the largest gain first."""
    configurations, seconds, switch = best.schedule
    shown = np.tensordot(seconds, configurations, 1)
    carried = np.minimum(problem.need, shown)
    over = (carried if problem.directed else np.maximum(carried, carried.T)) - shown
    gain = trade_gains(configurations, seconds, switch, over)
    for pair in np.argsort(-gain, axis=None, kind="stable")[:TRADES]:
        one, two = sorted(np.unravel_index(pair, gain.shape), key=lambda k: -seconds[k])
        if gain.ravel()[pair] <= GAIN * best.end_s:
            break
        traded, both = configurations.copy(), configurations[[one, two]]
        traded[[one, two]] = _traded(both, np.maximum(over + np.tensordot(seconds[[one, two]], both, 1), 0))
        yield traded


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


def _durations(problem: Problem, move: Move, limit_s: float = np.inf) -> Durations | None:
    """The best durations of these configurations, those of no use left out; None if they do not end before the
    limit."""
    found = programme(problem, move.configurations, move.switch, move.pace * problem.packet, limit_s)
    if found is None:
        return None
    schedule = shown(problem, move.configurations, found.seconds, move.switch)
    return Durations(schedule, move.pace, end_s(problem, schedule), found.price)
