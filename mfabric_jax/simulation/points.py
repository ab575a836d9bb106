"""Many cases that differ in numbers alone, through one compiled program: a design space's block, row by row."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from mfabric_jax.case import Block
from mfabric_jax.case.paths import build, flat
from mfabric_jax.resolving._resolve import Resolved, resolve
from mfabric_jax.simulation._iteration_of import IterationOf, function_of
from mfabric_jax.simulation.batch import Estimate, evaluate, usual_at_once
from mfabric_jax.simulation.measured import measured_efficiency, measured_under, scenario_at
from mfabric_jax.simulation.money import Bill, bill_of
from mfabric_jax.simulation.replicas import replica_columns, replicas_of, slowest_columns
from mfabric_jax.simulation.rows import (
    PARTS,
    changes_of,
    compute_source,
    described,
    judged,
    named,
    over_balanced,
    shown_rate,
    switching_columns,
)
from mfabric_jax.simulation.scenario import Scenario, TrafficOf, check_dtype
from mfabric_jax.timing.passes import Exchanges

SWITCHING = ("circuit_changes", "turns")
PART_SOLVED = 4  # of the usual chunk: every iteration is many all-to-alls at once
AVERAGED = -1  # sample: the mean of all iterations
SAMPLE, BANDWIDTH, EFFICIENCY = "run.sample", "network.nic_gbps", "compute.efficiency"
PORTS = "network.mfabric.optical_degree"


class Points:
    """Cases of one block. All-to-alls are solved once for cases that differ in bandwidths, delays and rates alone,
    unless circuits turn where that pays, which weighs these. `check_ends` tells whether every case can be."""

    def __init__(self, block: Block):
        left_open = {path: None for path, column in block.columns.items() if None in column}
        usual = build(flat(block.case) | left_open) if left_open else block.case
        self.block, self.resolved = block, resolve(usual)
        self.on, self.job, self.settings = self.resolved.fabric, self.resolved.job, self.resolved.settings
        self._over = np.zeros((0, 0))

    @functools.cached_property
    def _program(self) -> tuple[Scenario, IterationOf, dict[str, Any]]:
        """The first case, its program, and its numbers."""
        return _program_of(TrafficOf(self.resolved), self.resolved, self.block.variant)

    @property
    def scenario(self) -> Scenario:
        """The first case."""
        return self._program[0]

    @property
    def function(self) -> IterationOf:
        """The program."""
        return self._program[1]

    @property
    def usual(self) -> dict[str, Any]:
        """The numbers of the first case; those that a case leaves open as that stands for."""
        sample = self.resolved.case.run.sample
        return self._program[2] | {SAMPLE: AVERAGED if sample is None else sample}

    def cases(self) -> dict[str, np.ndarray]:
        """What the function takes, a value for every case: what is left open as the first case has it."""
        rows = len(self.block)
        found = {path: np.full(rows, value) for path, value in self.usual.items()}
        for path, column in self.block.columns.items():
            if path in found:
                usual = AVERAGED if path == SAMPLE else self.usual[path]
                found[path] = np.array([usual if value is None else value for value in column])
        if self.settings.rates_from == "measured":
            found[EFFICIENCY] = self._measured(found)
        return found

    def _measured(self, cases: Mapping[str, np.ndarray]) -> np.ndarray:
        """The rate of every case, solved once for those whose iteration was measured under the same numbers."""
        names = [path for path in self.block.columns if path in cases and measured_under(self.block.case, path)]
        if not names:
            return cases[EFFICIENCY]
        _, some, place = np.unique(
            np.stack([cases[name] for name in names], axis=1), axis=0, return_index=True, return_inverse=True
        )
        below = flat(self.block.case)
        each = [build(below | {name: cases[name][at].item() for name in names}) for at in some]
        return np.array([measured_efficiency(resolve(case).case) for case in each])[place.reshape(-1)]

    def rows(self, before: Callable[[Estimate], None] | None = None) -> list[dict[str, Any]]:
        """A row for every case, as `simulate` of it alone has it."""
        columns = {name: listed(values) for name, values in self.columns(before).items()}
        return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

    def columns(self, before: Callable[[Estimate], None] | None = None) -> dict[str, np.ndarray]:
        """Columns of the rows, each [N]; what is not known is nan."""
        cases = self.cases()
        samples, place = self._samples(cases[SAMPLE])
        each = {name: values[place] for name, values in cases.items()} | {SAMPLE: samples}
        each = {name: np.tile(values, self.replicas) for name, values in each.items()}
        each[SAMPLE] += np.repeat(np.arange(self.replicas) * self._iterations, len(samples))
        seconds = self._seconds(each, min(len(self.block) * len(self.function.given.tokens), usual_at_once()), before)
        over = self._over_balanced(seconds.pop("solved"), np.tile(place, self.replicas))
        weight = 1 / np.bincount(place, minlength=len(cases[SAMPLE]))
        seconds = slowest_columns(seconds, self.replicas)
        mean = {name: np.bincount(place, values) * weight for name, values in seconds.items()}
        return self._columns(mean, cases) | {"ep_over_balanced": over}

    def _over_balanced(self, solved: np.ndarray, place: np.ndarray) -> np.ndarray:
        """The median load of the all-to-alls of every row, over the balanced one.

        - `solved` [N']: which all-to-alls were timed.   - `place` [N']: in which row.
        """
        order, found = np.argsort(place, kind="stable"), []
        known: dict[tuple, float] = {}
        for some in np.split(solved[order], np.flatnonzero(np.diff(place[order])) + 1):
            key = tuple(some.tolist())
            if key not in known:
                known[key] = float(np.median(self._over[some]))
            found.append(known[key])
        return np.array(found)

    def _columns(self, mean: dict[str, np.ndarray], cases: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Columns of the rows, from mean seconds."""
        settings, job, rows = self.settings, self.job, len(self.block)
        replica_s = mean.pop("replica_s")
        changes, turns = (mean.pop(name, None) for name in SWITCHING)
        switching = switching_columns(settings, self.on, changes, turns, mean["iteration_s"])  # type: ignore[arg-type]
        switching["region_servers"] = job.servers_per_region
        ports = {}
        if self.on.data:
            degree = cases[PORTS]
            ports = {"optical_degree": degree, "electrical_nics": self.resolved.case.network.nics - degree}  # type: ignore[operator]
        bill = bill_of(settings, self.on, job, cases[BANDWIDTH], **ports)  # type: ignore[arg-type]
        known = (np.broadcast_to(np.nan if part is None else part, rows).astype(float) for part in bill)
        told = judged(settings, job, dict(mean), Bill(*known), cases[EFFICIENCY])  # type: ignore[arg-type]
        group = self.function.group
        where = group.nic_use, 0.0, settings.circuits_for
        first = named(settings, self.on, job, *where, self.block.variant) | described(self.scenario)  # type: ignore[arg-type]
        first |= {"nic_gbps": cases[BANDWIDTH], "compute_source": self._sources(cases)}
        every = first | mean | told | switching | replica_columns(self.replicas, mean["iteration_s"], replica_s)
        return {name: filled(value, rows) for name, value in every.items()}

    def _sources(self, cases: Mapping[str, np.ndarray]) -> np.ndarray:
        """Where the rate of every case comes from, in words."""
        rate: Any = self.block.case.compute.rate
        at_each = rate.name == "measured" and rate.nic_gbps is None
        gbps = cases[BANDWIDTH].tolist() if at_each else [None] * len(self.block)
        cases_of: dict[Any, tuple[float, float | None]] = {}
        keys = []
        for achieved, measured_at in zip(cases[EFFICIENCY].tolist(), gbps, strict=True):
            keys.append((shown_rate(self.settings, achieved), achieved > 1, measured_at))
            cases_of.setdefault(keys[-1], (achieved, measured_at))
        words = {key: compute_source(self.settings, self.job, *case) for key, case in cases_of.items()}
        return np.array([words[key] for key in keys], object)

    @property
    def replicas(self) -> int:
        """How many are simulated."""
        return replicas_of(self.settings.case.run.replicas, self.job)

    @property
    def _iterations(self) -> int:
        """Of every replica."""
        return len(self.function.given.tokens) // self.replicas

    def _samples(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which iterations every row is the mean of: sample [N'], row [N']."""
        every, rows = np.arange(self._iterations), np.arange(len(sample))
        many = np.where(sample == AVERAGED, len(every), 1)
        place = np.repeat(rows, many)
        within = np.arange(len(place)) - np.repeat(np.cumsum(many) - many, many)
        return np.where(sample[place] == AVERAGED, within, sample[place]), place

    def _seconds(self, cases: dict[str, np.ndarray], at_once: int, before: Any) -> dict[str, np.ndarray]:
        """All-to-alls of what differs for them, then every iteration."""
        solved_for = self.function.solved_for
        keys, place = np.unique(np.stack([cases[name] for name in solved_for], axis=1), axis=0, return_inverse=True)
        first = np.zeros(len(keys), int)
        first[place.reshape(-1)] = np.arange(place.size)
        some = _padded(first)
        solve, few = jax.tree_util.Partial(_solved, self.function), min(len(some), usual_at_once() // PART_SOLVED)
        each = {name: values[some] for name, values in cases.items()}
        solved = evaluate(solve, each, at_once=few, before=before).arrays
        timed = jax.tree_util.Partial(_timed, self.function)
        again = {name: values[place.reshape(-1)] for name, values in solved.items()}
        arrays = evaluate(timed, {"case": cases, "solved": again}, at_once=at_once, before=before).arrays
        found: dict[str, Any] = {name: arrays[name].astype(np.float64) for name in PARTS}
        exchanges = Exchanges(**solved, count=None)  # type: ignore[arg-type]
        over = over_balanced(self.job, np.asarray(exchanges.load), np.asarray(exchanges.balanced))
        self._over, found["solved"] = over.reshape(len(over), -1), place.reshape(-1)
        if "anew" in again:
            found |= zip(SWITCHING, changes_of(self.job, again["anew"], again["switch"]), strict=True)
        return found


@functools.lru_cache(maxsize=4)
def _program_of(traffic: TrafficOf, resolved: Resolved, variant: str) -> tuple[Scenario, IterationOf, dict[str, Any]]:
    """A case as a program, once for the parts of a sweep; `traffic`: another file of it makes another program."""
    scenario = scenario_at(resolved, (resolved.case.network.nic_gbps,), variant=variant)
    return scenario, *function_of(scenario)


def check_ends(block: Block) -> None:
    """`InputError` for a number that a case cannot have: the first case and the ends of every column are tried."""
    check_dtype(block.case.run.dtype)
    resolve(block.case)
    below = flat(block.case)
    for path, column in block.columns.items():
        some = {value for value in column if value is not None}
        ends = {min(some), max(some)} if some else set()
        for value in ends | ({None} if None in column else set()):
            resolve(build(below | {path: value}))


def column_of(values: Sequence[Any]) -> np.ndarray:
    """Numbers as numbers where all are numbers or unknown, which is nan; anything else as it is."""
    kinds = set(map(type, values))
    if kinds <= {int} or kinds <= {float} or kinds <= {bool}:
        return np.asarray(values)
    if kinds <= {int, float, type(None)}:
        return np.asarray([np.nan if value is None else value for value in values], float)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def filled(value: Any, rows: int) -> np.ndarray:
    """One value for all rows, or a column as it is."""
    column = value if isinstance(value, np.ndarray) else column_of([value])
    return np.broadcast_to(column, rows)


def listed(column: np.ndarray) -> list:
    """The values of a column in Python's types; nan is None."""
    values = column.tolist()
    if column.dtype.kind != "f" or not np.isnan(column).any():
        return values
    return [None if np.isnan(value) else value for value in values]


def _padded(rows: np.ndarray) -> np.ndarray:
    """Up to a power of two, the last again: few shapes, few programs."""
    return rows[np.minimum(np.arange(1 << (len(rows) - 1).bit_length()), len(rows) - 1)]


def _solved(function: IterationOf, case: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in function.exchanges(case)._asdict().items() if x is not None}


def _timed(function: IterationOf, both: Mapping[str, Any]) -> dict[str, Any]:
    return function.time(both["case"], Exchanges(**both["solved"], count=None))
