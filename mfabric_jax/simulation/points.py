"""Cases of one block, which differ in numbers, as columns."""

import dataclasses
import functools
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np

from mfabric_jax.bands import OF_KERNELS, OF_LINKS, PROMPT, band_columns, is_of_band
from mfabric_jax.case import Block
from mfabric_jax.case.paths import build, flat, named_files
from mfabric_jax.evaluate.arranged import AT_ONCE, AllToAllsOf, inside_of
from mfabric_jax.evaluate.flow_ends import Circuits, ends_at, flow_columns, slot_of
from mfabric_jax.evaluate.numbers import NetworkOf, Numbers
from mfabric_jax.evaluate.problem import Problem, check_dtype, numbers_of, slowest_columns
from mfabric_jax.evaluate.rules import TradeOff, trade_off_of
from mfabric_jax.evaluate.solving import measured_efficiency, measured_under, problem_at
from mfabric_jax.evaluate.times import time_iterations
from mfabric_jax.resolving.resolve import Resolved, resolve
from mfabric_jax.resolving.traffic import replicas_of
from mfabric_jax.routing.ends import Ends
from mfabric_jax.simulation.rows import (
    PARTS,
    SWITCHING,
    TURNED,
    changes_of,
    column_of,
    columns_of,
    compute_source,
    listed_rows,
    over_balanced,
    shown_rate,
    training_columns,
)
from mfabric_jax.text_files import cached_by_files
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import scaled

DRAWN = ("shares", "generated", "knobs")  # sources of traffic that depend on the seed
DRAWN_AGAIN = 16  # rows of a block whose traffic is drawn `run.draws` times; that of more is drawn once
TRIED = 64  # cases of a block that are resolved one by one before anything is computed
Networks = dict[str, tuple[NetworkOf, dict[str, np.ndarray]]]  # and numbers of their cases, by column of seconds
AVERAGED = -1  # sample: the mean of all iterations
SAMPLE, BANDWIDTH, EFFICIENCY, ALPHA = "run.sample", "network.nic_gbps", "compute.efficiency", "network.alpha_s"
LINK_DELAY = "network.link_delay_s"
PORTS = "network.mfabric.optical_degree"
MOST_KEYS = 256  # different all-to-alls whose flows are shown


class Shared:
    """All-to-alls that several blocks of a run have in common, each worked out once."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._lock = threading.Lock()

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gives, kept under a key."""
        with self._lock:
            found = self._known.setdefault(key, _Once(make))
        return found.value


class _Once:
    """What a function gives when it is first asked."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make, self._lock = make, threading.Lock()

    @property
    def value(self) -> Any:
        with self._lock:
            if not hasattr(self, "_value"):
                self._value = self._make()
        return self._value


class Points:
    """Cases of one block, solved once for all that differ in bandwidths, delays and rates (except under "pays").

    - `problem`: the first case with traffic that the caller passes; None: with the traffic of the case.
    """

    def __init__(self, block: Block, problem: Problem | None = None, shared: Shared | None = None):
        left_open = {path: None for path, column in block.columns.items() if None in column}
        usual = build(flat(block.case) | left_open) if left_open else block.case
        self.block, self.resolved, self.shared = block, resolve(usual), shared or Shared()
        self.on, self.job = self.resolved.fabric, self.resolved.job
        self._given = problem

    @functools.cached_property
    def problem(self) -> Problem:
        """The first case."""
        if self._given is not None:
            return self._given
        return _problem_of(self.resolved, self.resolved.tiers_by_degree, self.block.variant)

    def check(self) -> None:
        """`InputError` for an impossible case, and for traffic of few cases that cannot be read or drawn."""
        check_block(self.block)
        if len(self.block) <= TRIED:
            assert self.problem is not None

    @property
    def work(self) -> float:
        """About how long it takes, beside other blocks."""
        return self.job.moe_layers * self.job.ep**2 * len(self.block) * (10 if self.on.reconfigures else 1)

    @property
    def network(self) -> NetworkOf:
        return self.problem.network

    @property
    def usual(self) -> dict[str, Any]:
        """The resolved numbers of the first case."""
        sample = self.resolved.case.run.sample
        return numbers_of(self.problem) | {SAMPLE: AVERAGED if sample is None else sample}

    def cases(self) -> dict[str, np.ndarray]:
        """Input of the function, a value per case; open values are those of the first case."""
        rows = len(self.block)
        found = {path: np.full(rows, value) for path, value in self.usual.items()}
        for path, column in self.block.columns.items():
            if path in found:
                usual = AVERAGED if path == SAMPLE else self.usual[path]
                found[path] = np.array([usual if value is None else value for value in column])
        if self.resolved.case.compute.rate.name == "measured":
            found[EFFICIENCY] = self._measured(found)
        return found

    def _measured(self, cases: Mapping[str, np.ndarray]) -> np.ndarray:
        """The rate of every case, solved once per measured iteration."""
        names = [path for path in self.block.columns if path in cases and measured_under(self.block.case, path)]
        if not names:
            return cases[EFFICIENCY]
        _, some, place = np.unique(
            np.stack([cases[name] for name in names], axis=1), axis=0, return_index=True, return_inverse=True
        )
        below = flat(self.block.case)
        each = [build(below | {name: cases[name][at].item() for name in names}) for at in some]
        return np.array([measured_efficiency(resolve(case).case) for case in each])[place.reshape(-1)]

    def rows(self) -> list[dict[str, Any]]:
        """A row for every case."""
        return listed_rows(self.columns())

    def columns(self) -> dict[str, np.ndarray]:
        """Columns of the rows, each [N]; unknown numbers are nan."""
        cases = self.cases()
        place, each = self._each_iteration(cases)
        solved = self._solved(each, self._networks(each))
        over = _over_balanced(solved, np.tile(place, self.replicas))
        last = np.searchsorted(place, np.arange(len(self.block)), side="right") - 1  # the shown iteration of a row
        flows = self._flows(solved, last, {name: values[last] for name, values in each.items()})
        mean = self._mean(solved, place)
        degree, nics = cases.get(PORTS), self.resolved.case.network.nics
        ports = {}
        if self.on.data:
            tiers = np.array(self.resolved.tiers_by_degree)[degree]
            ports = {"optical_degree": degree, "electrical_nics": nics - degree, "tiers": tiers}  # type: ignore[operator]
        columns = columns_of(self.problem, mean, cases[BANDWIDTH], cases[EFFICIENCY], over, **ports)
        variants = {name: values for name, values in mean.items() if is_of_band(name)}
        columns |= band_columns(mean["iteration_s"], variants, self._other_draws())
        columns |= training_columns(self.problem.resolved, columns)
        return columns | {"compute_source": self._sources(cases)} | flows

    def _each_iteration(self, cases: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """The row of every iteration that rows show, and its numbers for every replica."""
        samples, place = self._samples(cases[SAMPLE])
        each = {name: values[place] for name, values in cases.items()} | {SAMPLE: samples}
        each = {name: np.tile(values, self.replicas) for name, values in each.items()}
        each[SAMPLE] += np.repeat(np.arange(self.replicas) * self._iterations, len(samples))
        return place, each

    def _mean(self, solved: "Solved", place: np.ndarray) -> dict[str, np.ndarray]:
        """The mean over iterations of every row [N]: seconds of the slowest replica, changes of circuits of all."""
        weight = 1 / np.bincount(place, minlength=len(self.block))
        changes = {name: x for name, x in solved.columns.items() if name in (*SWITCHING, TURNED)}
        found = slowest_columns({n: x for n, x in solved.columns.items() if n not in changes}, self.replicas)
        found |= {name: x.reshape(self.replicas, -1).mean(axis=0) for name, x in changes.items()}
        return {name: np.bincount(place, values) * weight for name, values in found.items()}

    def _other_draws(self) -> list[np.ndarray]:
        """Seconds of every row with other draws of its traffic; unknown for more rows than `DRAWN_AGAIN`."""
        case = self.resolved.case
        if case.traffic.source.name not in DRAWN or self._given is not None:
            return []
        if len(self.block) > DRAWN_AGAIN:
            return [np.full(len(self.block), np.nan)] * (case.run.draws - 1)
        return [self._with_seed(case.run.seed + number) for number in range(1, case.run.draws)]

    def _with_seed(self, seed: int) -> np.ndarray:
        block = dataclasses.replace(self.block, case=self.block.case.with_({"run.seed": seed}))
        drawn = Points(block, shared=self.shared)
        place, each = drawn._each_iteration(drawn.cases())
        return drawn._mean(drawn._solved(each, {"": (drawn.network, each)}), place)["iteration_s"]

    def _flows(self, solved: "Solved", rows: np.ndarray, cases: Numbers) -> dict[str, np.ndarray]:
        """Columns of one dispatch (`flow_ends`) of cases `rows`, once for equal all-to-alls; unknown where more than
        `MOST_KEYS` differ."""
        which = solved.which[rows]
        every, first = np.unique(which, return_index=True)
        found = {}
        for key, row in zip(every.tolist(), first.tolist(), strict=True):
            case = {name: values[row] for name, values in cases.items()}
            found[key] = self._ends(solved.circuits(key), case) if len(every) <= MOST_KEYS else None
        columns = flow_columns([found[key] for key in which.tolist()], np.asarray(self.network.costs(cases)[0].nic_Bps))
        return {name: column_of(values) for name, values in columns.items()}

    def _ends(self, circuits: Circuits | None, case: Numbers) -> Ends | None:
        sent = self.problem.selections[int(case[SAMPLE])]
        return ends_at(self.problem, self.network.group_at(case), sent, self.problem.carry, circuits)

    def _sources(self, cases: Mapping[str, np.ndarray]) -> np.ndarray:
        rate: Any = self.block.case.compute.rate
        at_each = rate.name == "measured" and rate.nic_gbps is None
        gbps = cases[BANDWIDTH].tolist() if at_each else [None] * len(self.block)
        cases_of: dict[Any, tuple[float, float | None]] = {}
        keys = []
        for achieved, measured_at in zip(cases[EFFICIENCY].tolist(), gbps, strict=True):
            keys.append((shown_rate(self.resolved, achieved), achieved > 1, measured_at))
            cases_of.setdefault(keys[-1], (achieved, measured_at))
        words = {key: compute_source(self.resolved, self.job, *case) for key, case in cases_of.items()}
        return np.array([words[key] for key in keys], object)

    @property
    def replicas(self) -> int:
        return replicas_of(self.resolved.case.run.replicas, self.job)

    @property
    def _iterations(self) -> int:
        return len(self.problem.selections) // self.replicas

    def _samples(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        every, rows = np.arange(self._iterations), np.arange(len(sample))
        many = np.where(sample == AVERAGED, len(every), 1)
        place = np.repeat(rows, many)
        within = np.arange(len(place)) - np.repeat(np.cumsum(many) - many, many)
        return np.where(sample[place] == AVERAGED, within, sample[place]), place

    def _networks(self, cases: dict[str, np.ndarray]) -> "Networks":
        """Networks and numbers: as usual (""), and by column of `bands` with slower and faster kernels and links."""
        resolved, network, job = self.resolved, self.network, self.job
        found = {"": (network, cases)}
        if resolved.case.compute.rate.name == "kernels":
            for how, column in OF_KERNELS.items():
                at_peak = scaled(resolved.of_kernels(job, how), resolved.achieved(job))
                found[column] = dataclasses.replace(network, peak_s=at_peak), cases
            for how, column in OF_LINKS.items():
                found[column] = dataclasses.replace(network, shares=resolved.shares(job, how)), cases
        alpha_s, usual_s, own_s = cases[ALPHA], cases[LINK_DELAY], self.problem.own_delay_s
        if alpha_s.any() or (own_s is not None and np.any(usual_s < own_s)):  # messages without latency of their own
            quick = {ALPHA: np.zeros_like(alpha_s)}
            if own_s is not None:
                quick[LINK_DELAY] = np.minimum(usual_s, own_s)
            found[PROMPT] = dataclasses.replace(network, own_delay_s=None), cases | quick
        return found

    def _solved(self, cases: dict[str, np.ndarray], networks: "Networks") -> "Solved":
        """Seconds of all cases [N]; all-to-alls are worked out once for cases that share them, some at a time."""
        costs = {column: network.costs(numbers) for column, (network, numbers) in networks.items()}
        depends_on = np.stack([cases[name] for name in self.network.solved_for], axis=1)
        _, first, which = np.unique(depends_on, axis=0, return_index=True, return_inverse=True)
        found = Solved(self.job, which.reshape(-1))
        trade_off = trade_off_of(self.job, *costs[""], self.resolved.routing) if self.problem.weighs else None
        at_once = max(1, AT_ONCE // places(self.job).present.size)
        for some, loads_of in self._groups(cases, first, trade_off):
            for start in range(0, len(some), at_once):
                keys = some[start : start + at_once]
                iteration = cases[SAMPLE][first[keys]].astype(int)
                loads = loads_of.loads(iteration, first[keys], found.shown)
                loads = loads._replace(inside=self._inside[iteration])
                rows = np.flatnonzero(np.isin(found.which, keys))
                own = np.searchsorted(keys, found.which[rows])
                times = {}
                for column, (rates, seconds) in costs.items():
                    rates, seconds = jax.tree.map(lambda x, rows=rows: x[rows], (rates, seconds))
                    times[column] = time_iterations(self.job, rates, seconds, loads, self.resolved.rules, own)
                found.add(keys, rows, own, loads, times)
        return found

    @functools.cached_property
    def _inside(self) -> np.ndarray:
        return self.shared.get(self.problem.inside_key, lambda: inside_of(self.problem))

    def _groups(
        self, cases: dict[str, np.ndarray], first: np.ndarray, costs: TradeOff | None
    ) -> Iterator[tuple[np.ndarray, AllToAllsOf]]:
        """Numbers of all-to-alls on one group, and what works them out; `first`: a case of each."""
        if not self.on.reconfigures:
            yield np.arange(len(first)), self._all_to_alls(None, None)
            return
        each = {name: values[first] for name, values in cases.items()}
        differ = PORTS if self.on.data else BANDWIDTH
        _, at, of_each = np.unique(each[differ], return_index=True, return_inverse=True)
        groups = [self.network.group_at({name: values[row] for name, values in each.items()}) for row in at.tolist()]
        _, distinct, number = np.unique([_beside_rates(g) for g in groups], return_index=True, return_inverse=True)
        for which, own in enumerate(distinct.tolist()):
            some = np.flatnonzero(number.reshape(-1)[of_each.reshape(-1)] == which)
            yield some, self._all_to_alls(groups[own], costs)

    def _all_to_alls(self, group: Any, costs: TradeOff | None) -> AllToAllsOf:
        """Those of other blocks, too, where they depend on no costs."""
        if costs is not None:
            return AllToAllsOf(self.problem, group, costs)
        key = dataclasses.replace(self.problem, bandwidths=()).between_key
        beside = None if group is None else _beside_rates(group)
        return self.shared.get((key, beside), lambda: AllToAllsOf(self.problem, group))


def _beside_rates(group: Any) -> bytes:
    """What makes a group's all-to-alls at unit bandwidth: its numbers but bandwidth and delay."""
    leaves = jax.tree.leaves(eqx.tree_at(lambda g: (g.nic_gbps, g.delay_s), group, (0.0, 0.0)))
    return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)


class Solved:
    """Columns of N cases, and of the all-to-alls that they share; `which` [N]: their numbers."""

    def __init__(self, job: Workload, which: np.ndarray):
        self.job, self.which = job, which
        slot = slot_of(job)
        self.shown = None if slot is None else slot.at
        self.columns: dict[str, np.ndarray] = {}
        self._over: dict[int, np.ndarray] = {}
        self._circuits: dict[int, Circuits] = {}

    def add(self, keys: np.ndarray, rows: np.ndarray, own: np.ndarray, loads: Exchanges, times: Any) -> None:
        """Seconds of cases `rows` with the all-to-alls `own` of those with the numbers `keys`."""
        usual = times[""]
        found = {name: getattr(usual, name) for name in PARTS}
        found |= {column: each.iteration_s for column, each in times.items() if column}
        turns = np.asarray(loads.every_turn)
        found[TURNED] = turns.reshape(len(keys), -1).any(axis=1).astype(float)[own]
        if loads.anew is not None:
            each = changes_of(self.job, np.asarray(loads.anew), turns)
            found |= {name: column[own] for name, column in zip(SWITCHING, each, strict=True)}
        for name, values in found.items():
            self.columns.setdefault(name, np.zeros(len(self.which)))[rows] = values
        over = over_balanced(self.job, np.asarray(loads.load), np.asarray(loads.balanced)).reshape(len(keys), -1)
        self._over |= zip(keys.tolist(), over, strict=True)
        if loads.count is not None:
            at = (slice(None), *self.shown)  # type: ignore[misc]
            shown = zip(loads.count, loads.optical[at], loads.electrical[at], strict=True)
            self._circuits |= {key: Circuits(*each) for key, each in zip(keys.tolist(), shown, strict=True)}

    def circuits(self, key: int) -> Circuits | None:
        """The shown circuits of all-to-alls; None: they have none."""
        return self._circuits.get(key)

    def over_balanced(self, keys: np.ndarray) -> float:
        """The median load of some all-to-alls over the balanced one."""
        return float(np.median(np.stack([self._over[key] for key in keys.tolist()])))


def _over_balanced(solved: Solved, place: np.ndarray) -> np.ndarray:
    """`Solved.over_balanced` of each row; `place` [N]: the row of every case."""
    order, known, found = np.argsort(place, kind="stable"), {}, []
    for some in np.split(solved.which[order], np.flatnonzero(np.diff(place[order])) + 1):
        key = tuple(some.tolist())
        if key not in known:
            known[key] = solved.over_balanced(some)
        found.append(known[key])
    return np.array(found)


@cached_by_files(lambda resolved, tiers, variant: named_files(resolved.case), maxsize=4)
def _problem_of(resolved: Resolved, tiers: tuple[int, ...], variant: str) -> Problem:
    """`tiers`: `tiers_by_degree`, in which equal cases may differ."""
    return problem_at(resolved, (resolved.case.network.nic_gbps,), variant=variant)


def check_block(block: Block) -> None:
    """`InputError` for an impossible case; of more than `TRIED` the first and both ends of every column are tried."""
    check_dtype(block.case.run.dtype)
    if len(block) <= TRIED:
        for case in block:
            resolve(case)
        return
    resolve(block.case)
    below = flat(block.case)
    for path, column in block.columns.items():
        some = {value for value in column if value is not None}
        ends = {min(some), max(some)} if some else set()
        for value in ends | ({None} if None in column else set()):
            resolve(build(below | {path: value}))


def rows_of(problem: Problem, shared: Shared | None = None) -> list[dict[str, Any]]:
    """A row for every bandwidth of a problem, with its own traffic."""
    block = Block(problem.resolved.case, problem.variant, {BANDWIDTH: problem.bandwidths})
    return Points(block, problem, shared).rows()
