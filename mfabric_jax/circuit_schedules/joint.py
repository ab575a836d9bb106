"""Choose configurations, durations and packet shares together: linear programmes within a local search. Ours.

For fixed configurations on fixed switches, a linear programme gives the best durations and packet shares,

    min T:  sum of t on each switch + its delays <= T,  sum of t_m C_m + e >= demand,  lines of e <= packet rate T.

Its prices value one more second of each pair's circuit; a heaviest matching by price is the best new configuration,
delay aside. `duration_loops` solves the programme, and stops as soon as a sooner end is proven impossible. The search
starts from those schedules of Spectra, whole pairs, Solstice and Eclipse that end near the earliest of the four, with
the programme's durations. It takes single moves as long as one of them makes the schedule end earlier:

- drop a short configuration, replace it by the best new one, or add the best new one;
- trade circuits between two configurations: their union falls into cycles and paths of servers; on each, the longer
  configuration takes the side with the larger entry, so both together cover the same pairs;
- move a configuration from the fullest to the emptiest switch;
- plan with slower packet NICs than there are: the programme paces them, but they share fairly and may end later.

When no move helps, the search rebuilds some random configurations together, from what the others leave (large
neighbourhood search: Shaw, CP 1998). So the result ends no later than any of the four starts. If it reaches the lower
bound, the search stops; otherwise no optimum is proven.
"""

from collections.abc import Iterator
from typing import NamedTuple, Unpack

import numpy as np

from mfabric_jax.checks import whole
from mfabric_jax.circuit_schedules.durations import programme, schedule_of, trade_gains
from mfabric_jax.circuit_schedules.eclipse import eclipse
from mfabric_jax.circuit_schedules.ending import end_s, least_s
from mfabric_jax.circuit_schedules.matching import heaviest
from mfabric_jax.circuit_schedules.placing import ROUNDING, Placed, ScheduleProblem, SwitchNetwork, problem_of
from mfabric_jax.circuit_schedules.solstice import solstice
from mfabric_jax.circuit_schedules.spectra import decompose, spectra
from mfabric_jax.circuit_schedules.whole_pair import whole_pair, whole_pairs

STARTS = (spectra, whole_pair, solstice, eclipse)
NEAR = 1.05  # starts that end later than this times the best are not searched
SHORTEST = 4  # configurations that a move tries to drop or replace
TRADES = 8  # pairs of configurations that try to trade, the most promising first
SLOWER = 0.96  # factor of one move on the planned packet rate
REBUILT = 5  # most configurations that are rebuilt together
REBUILDS_PER_PROGRAMME = (
    4  # most rebuilds tried per programme of the limit, including those that find nothing to rebuild
)
GAIN = 1e-6  # relative: a move must gain more


class Move(NamedTuple):
    """The input of one linear programme."""

    configurations: np.ndarray  # [K S S]
    switch: np.ndarray  # [K]
    pace: float = 1.0  # planned packet rate over the real one


class Durations(NamedTuple):
    schedule: Placed
    pace: float
    end_s: float
    price: np.ndarray  # [S S] value of a second of circuit


def joint(demand, *, programmes: int = 200, **network: Unpack[SwitchNetwork]) -> Placed:
    """Return the best schedule that a local search finds with at most `programmes` linear programmes per start."""
    problem = problem_of(demand, **network)
    whole("programmes", programmes)
    starts = [start(demand, **network) for start in STARTS]
    if not problem.need.any():
        return starts[0]
    searches, near = [], NEAR * min(end_s(problem, start) for start in starts)
    firsts = [_durations(problem, Move(start[0], start[2]), near) for start in starts]
    candidates = sorted((first for first in firsts if first is not None), key=lambda first: first.end_s)
    for first in candidates:
        if first.end_s > NEAR * candidates[0].end_s or any(search.proven for search in searches):
            break
        searches.append(_Search(problem, first, programmes))
        searches[-1].run()
    return min([*starts, *(search.best.schedule for search in searches)], key=lambda schedule: end_s(problem, schedule))


class _Search:
    """The search from one start: the `best` so far, and the number of programmes `left` to solve."""

    def __init__(self, problem: ScheduleProblem, best: Durations, programmes: int):
        self.problem, self.best, self.left = problem, best, programmes
        self.least = least_s(problem) * (1 + GAIN)
        self.random = np.random.default_rng(0)

    @property
    def proven(self) -> bool:
        return self.best.end_s <= self.least

    def run(self) -> None:
        self.descend()
        for _ in range(REBUILDS_PER_PROGRAMME * self.left):
            if self.proven or not self.left:
                break
            move = _rebuild(self.problem, self.best, self.random)
            if move is not None and self.better(move):
                self.descend()

    def descend(self) -> None:
        """Take moves until none makes the schedule end sooner."""
        moves = _moves(self.problem, self.best)
        while self.left and not self.proven and (move := next(moves, None)) is not None:
            if self.better(move):
                moves = _moves(self.problem, self.best)

    def better(self, move: Move) -> bool:
        """Take the move if it ends sooner; return whether it does."""
        self.left -= 1
        limit = self.best.end_s * (1 - GAIN)
        durations = _durations(self.problem, move, limit)
        if durations is None or durations.end_s >= limit:
            return False
        self.best = durations
        return True


def _rebuild(problem: ScheduleProblem, best: Durations, random: np.random.Generator) -> Move | None:
    """Replace some random configurations by new ones, made from what the others leave, with randomly weighted entries.

    Without packet NICs the new ones cover all that is left; else there are as many as were replaced, or one fewer.
    """
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
        matchings = decompose(left, problem.directed)[0]
    if not matchings:
        return None
    matchings = np.array(matchings) * (1 - np.eye(len(left), dtype=np.int64))
    new = np.add.reduceat(matchings, np.arange(0, len(matchings), problem.ports))
    return Move(np.concatenate([others, new]), np.append(on, np.resize(switch[some], len(new))), best.pace)


def _moves(problem: ScheduleProblem, best: Durations) -> Iterator[Move]:
    """Yield all single moves, the most promising first."""
    (configurations, seconds, switch), pace = best.schedule, best.pace
    if problem.packet:
        yield Move(configurations, switch, pace * SLOWER)
        yield Move(configurations, switch, min(pace / SLOWER, 1.0))
    shortest = np.argsort(seconds, kind="stable")[:SHORTEST]
    new = _dearest(problem, best.price)[None]
    for index in shortest:
        yield Move(np.delete(configurations, index, 0), np.delete(switch, index), pace)
    for index in shortest:
        others = np.delete(configurations, index, 0), np.delete(switch, index)
        yield Move(np.concatenate([others[0], new]), np.append(others[1], switch[index]), pace)
    for lane in range(problem.switches):
        yield Move(np.concatenate([configurations, new]), np.append(switch, lane), pace)
    for traded in _trades(problem, best):
        yield Move(traded, switch, pace)
    if problem.switches > 1:
        full, empty = (int(pick(problem.clocks(seconds, switch))) for pick in (np.argmax, np.argmin))
        for index in np.flatnonzero(switch == full):
            yield Move(configurations, np.where(np.arange(len(switch)) == index, empty, switch), pace)


def _trades(problem: ScheduleProblem, best: Durations) -> Iterator[np.ndarray]:
    """Yield configurations [K S S] after one trade, the largest gain first."""
    configurations, seconds, switch = best.schedule
    shown = np.tensordot(seconds, configurations, 1)
    carried = np.minimum(problem.need, shown)
    over = (carried if problem.directed else np.maximum(carried, carried.T)) - shown
    gain = trade_gains(configurations, seconds, switch, over)
    for pair in np.argsort(-gain, axis=None, kind="stable")[:TRADES]:
        longer, shorter = sorted(np.unravel_index(pair, gain.shape), key=lambda k: -seconds[k])
        if gain.ravel()[pair] <= GAIN * best.end_s:
            break
        traded, both = configurations.copy(), configurations[[longer, shorter]]
        traded[[longer, shorter]] = _trade_circuits(
            both, np.maximum(over + np.tensordot(seconds[[longer, shorter]], both, 1), 0)
        )
        yield traded


def _trade_circuits(both: np.ndarray, entries: np.ndarray) -> np.ndarray:
    """Trade circuits of two configurations [2 S S]: in every component of their union, the first takes the side with
    the larger entry."""
    servers = len(entries)
    joined = both.sum(0) @ both.sum(0).T > 0  # rows that share a column; below: also through other rows
    for _ in range(servers.bit_length()):
        joined = joined.astype(np.float32) @ joined > 0
    component = joined.argmax(1)
    largest = np.zeros((2, servers))
    for side in range(2):
        np.maximum.at(largest[side], component, (both[side] * entries).max(1))
    swap = (largest[1] > largest[0])[component][:, None]
    return np.stack([np.where(swap, both[1], both[0]), np.where(swap, both[0], both[1])])


def _dearest(problem: ScheduleProblem, price: np.ndarray) -> np.ndarray:
    """Return the configuration [S S] of highest price: per port, a heaviest matching of pairs without a circuit."""
    price = price if problem.directed else price + price.T
    new = np.zeros(price.shape, np.int64)
    for _ in range(problem.ports):
        new += heaviest(np.where(new > 0, 0, price), problem.directed)
    return new * (1 - np.eye(len(new), dtype=np.int64))


def _durations(problem: ScheduleProblem, move: Move, limit_s: float = np.inf) -> Durations | None:
    """Return the best durations of a move, without unused configurations; None if they do not end before the limit."""
    solution = programme(problem, move.configurations, move.switch, move.pace * problem.packet, limit_s)
    if solution is None:
        return None
    schedule = schedule_of(problem, move.configurations, solution.seconds, move.switch)
    return Durations(schedule, move.pace, end_s(problem, schedule), solution.price)
