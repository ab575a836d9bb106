"""Columns of the cases of one block. Cases of a block differ only in numbers."""

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from mfabric_jax.case import CaseBlock
from mfabric_jax.case.paths import build, files_of_case, flat
from mfabric_jax.evaluate.arranged import MOST_ALL_TO_ALLS, AllToAllsOf, inside_of
from mfabric_jax.evaluate.flow_ends import ShownCircuits, ends_at, flow_columns, slot_of
from mfabric_jax.evaluate.numbers import NetworkOf, Numbers
from mfabric_jax.evaluate.problem import Problem, Shared, check_dtype, numbers_of, slowest_columns
from mfabric_jax.evaluate.resolving.resolve import Resolved, resolve
from mfabric_jax.evaluate.resolving.traffic import replicas_of
from mfabric_jax.evaluate.rows.costs import Row, training_columns
from mfabric_jax.evaluate.rows.rows import (
    PARTS,
    RECONFIGURED,
    SWITCHING,
    RowArrays,
    changes_of,
    column_of,
    columns_of,
    compute_source,
    to_rows,
)
from mfabric_jax.evaluate.rules import TradeOff, trade_off_of
from mfabric_jax.evaluate.solving import is_measured_under, problem_at, solve_efficiency, time_iterations
from mfabric_jax.routing.ends import FlowEnds
from mfabric_jax.support.bands import OF_KERNELS, OF_LINKS, PROMPT, band_columns, is_of_band
from mfabric_jax.support.text_files import cached_by_files
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import scale_seconds

DRAWN = ("shares", "generated", "knobs")  # sources of traffic that depend on the seed
DRAWN_AGAIN = 16  # blocks of at most this many rows draw their traffic `run.draws` times, larger blocks once
TRIED = 64  # blocks of at most this many cases are checked case by case before computation
Networks = dict[str, tuple[NetworkOf, RowArrays]]  # networks and the numbers of their cases, by column of seconds
AVERAGED = -1  # value of `run.sample`: the mean of all iterations
SAMPLE, BANDWIDTH, EFFICIENCY, ALPHA = "run.sample", "network.nic_gbps", "compute.efficiency", "network.alpha_s"
LINK_DELAY = "network.link_delay_s"
PORTS = "network.mfabric.optical_degree"
MOST_KEYS = 256  # flows are shown for at most this many different all-to-alls


class SolvedCases(NamedTuple):
    """Columns [C] of solved cases. `which` [C]: index of the all-to-alls of each case; several cases may share an
    index.

    `over` and `circuits` have, by that index, loads over the balanced load and the shown circuits.
    """

    which: np.ndarray
    columns: RowArrays
    over: dict[int, np.ndarray]
    circuits: dict[int, ShownCircuits]


class EvaluatedBlock:
    """Cases of one block; cases that differ only in bandwidths, delays and rates are solved once (except under "pays").

    - `problem`: the first case with the caller's traffic; None: use the traffic of the case.
    """

    def __init__(self, block: CaseBlock, problem: Problem | None = None, shared: Shared | None = None):
        left_open = {path: None for path, column in block.columns.items() if None in column}
        usual = build(flat(block.case) | left_open) if left_open else block.case
        self.block, self.resolved, self.shared = block, resolve(usual), shared or Shared()
        self.on, self.job, self.case = self.resolved.fabric, self.resolved.job, self.resolved.case
        self._given = problem

    @functools.cached_property
    def problem(self) -> Problem:
        """The first case."""
        if self._given is not None:
            return self._given
        return _problem_of(self.resolved, self.resolved.tiers_by_degree, self.block.variant)

    def check(self) -> None:
        """Raise InputError for an impossible case and, in a small block, for traffic that cannot be read or drawn."""
        check_case_block(self.block)
        if len(self.block) <= TRIED:
            assert self.problem is not None

    @property
    def work(self) -> float:
        """Rough running time relative to other blocks."""
        return self.job.moe_layers * self.job.ep**2 * len(self.block) * (10 if self.on.reconfigures else 1)

    @property
    def usual(self) -> dict[str, Any]:
        """The resolved numbers of the first case."""
        sample = self.case.run.sample
        return numbers_of(self.problem) | {SAMPLE: AVERAGED if sample is None else sample}

    def cases(self) -> RowArrays:
        """Return the numbers of all cases by path; open values are those of the first case."""
        usual = self.usual
        numbers = {path: np.full(len(self.block), value) for path, value in usual.items()}
        for path, column in self.block.columns.items():
            if path in numbers:
                numbers[path] = np.array([usual[path] if value is None else value for value in column])
        if self.case.compute.rate.name == "measured":
            numbers[EFFICIENCY] = self._efficiencies(numbers)
        return numbers

    def _efficiencies(self, cases: RowArrays) -> np.ndarray:
        """The achieved over peak FLOP/s of every case, solved once per measured iteration."""
        names = [path for path in self.block.columns if path in cases and is_measured_under(self.block.case, path)]
        if not names:
            return cases[EFFICIENCY]
        _, some, inverse = np.unique(
            np.stack([cases[name] for name in names], axis=1), axis=0, return_index=True, return_inverse=True
        )
        below = flat(self.block.case)
        each = [build(below | {name: cases[name][row].item() for name in names}) for row in some]
        return np.array([solve_efficiency(resolve(case).case) for case in each])[inverse.reshape(-1)]

    def rows(self) -> list[Row]:
        """Return a row for every case."""
        return to_rows(self.columns())

    def columns(self) -> RowArrays:
        """Return the columns of the rows, each [N]; unknown numbers are nan."""
        cases = self.cases()
        row_numbers, each = self._each_iteration(cases)
        solved = self._solve_cases(each, self._networks(each))
        last = (
            np.searchsorted(row_numbers, np.arange(len(self.block)), side="right") - 1
        )  # the shown iteration of a row
        flows = self._flows(solved, last, {name: values[last] for name, values in each.items()})
        mean = self._mean(solved, row_numbers)
        ports = {}
        if self.on.about.optics.degree_varies:
            degree, nics = cases[PORTS], np.asarray(self.resolved.server_nics)
            tiers = np.array(self.resolved.tiers_by_degree)[degree]
            ports = {"optical_degree": degree, "electrical_nics": nics - degree, "tiers": tiers}
        details = {"over": self._over_balanced(solved, row_numbers), "source": self._sources(cases)}
        columns = columns_of(self.problem, mean, cases[BANDWIDTH], cases[EFFICIENCY], **details, **ports)
        variants = {name: values for name, values in mean.items() if is_of_band(name)}
        columns |= band_columns(mean["iteration_s"], variants, self._other_draws(), self.resolved.step_band)
        columns |= training_columns(self.problem.resolved, columns)
        return columns | flows

    def _each_iteration(self, cases: RowArrays) -> tuple[np.ndarray, RowArrays]:
        """Row index of every iteration that rows show, and the numbers of its case for every replica."""
        every, replicas = np.arange(self.problem.iterations // self.replicas), np.arange(self.replicas)
        sample = cases[SAMPLE][:, None]
        row_numbers, iteration = np.nonzero((sample == AVERAGED) | (sample == every))
        each = {name: np.tile(values[row_numbers], len(replicas)) for name, values in cases.items()}
        return row_numbers, each | {SAMPLE: np.add.outer(len(every) * replicas, iteration).ravel()}

    def _mean(self, solved: SolvedCases, row_numbers: np.ndarray) -> RowArrays:
        """Mean over the iterations of every row [N]: seconds of the slowest replica, and the replicas' mean of circuit
        changes."""
        weight = 1 / np.bincount(row_numbers, minlength=len(self.block))
        changes = {name: x for name, x in solved.columns.items() if name in (*SWITCHING, RECONFIGURED)}
        columns = slowest_columns({n: x for n, x in solved.columns.items() if n not in changes}, self.replicas)
        columns |= {name: x.reshape(self.replicas, -1).mean(axis=0) for name, x in changes.items()}
        return {name: np.bincount(row_numbers, values) * weight for name, values in columns.items()}

    def _other_draws(self) -> list[np.ndarray]:
        """Seconds of every row with other draws of its traffic; unknown in a block of more than `DRAWN_AGAIN` rows."""
        case = self.case
        if case.traffic.source.name not in DRAWN or self._given is not None:
            return []
        if len(self.block) > DRAWN_AGAIN:
            return [np.full(len(self.block), np.nan)] * (case.run.draws - 1)
        return [self._with_seed(case.run.seed + number) for number in range(1, case.run.draws)]

    def _with_seed(self, seed: int) -> np.ndarray:
        block = dataclasses.replace(self.block, case=self.block.case.with_({"run.seed": seed}))
        drawn = EvaluatedBlock(block, shared=self.shared)
        row_numbers, each = drawn._each_iteration(drawn.cases())
        return drawn._mean(drawn._solve_cases(each, {"": (drawn.problem.network, each)}), row_numbers)["iteration_s"]

    def _flows(self, solved: SolvedCases, rows: np.ndarray, cases: Numbers) -> RowArrays:
        """Columns of one dispatch (`flow_ends`) of cases `rows`; unknown if more than `MOST_KEYS` all-to-alls
        differ."""
        which, network = solved.which[rows], self.problem.network
        every, first = np.unique(which, return_index=True)
        ends: dict[int, FlowEnds | None] = dict.fromkeys(every.tolist())
        for key, row in zip(every.tolist(), first.tolist(), strict=True) if len(every) <= MOST_KEYS else ():
            case = {name: values[row] for name, values in cases.items()}
            where = network.group_at(case), self.problem.selections[int(case[SAMPLE])], self.problem.carry
            ends[key] = ends_at(self.problem, *where, solved.circuits.get(key))
        columns = flow_columns([ends[key] for key in which.tolist()], np.asarray(network.costs(cases)[0].nic_Bps))
        return {name: column_of(values) for name, values in columns.items()}

    def _over_balanced(self, solved: SolvedCases, row_numbers: np.ndarray) -> np.ndarray:
        """The median, over the all-to-alls of every row [N], of load over balanced load."""
        median = functools.cache(lambda keys: float(np.median([solved.over[key] for key in keys])))
        starts = np.flatnonzero(np.diff(row_numbers)) + 1
        each = np.split(solved.which.reshape(self.replicas, -1), starts, axis=1)
        return np.array([median(tuple(keys.ravel().tolist())) for keys in each])

    def _sources(self, cases: RowArrays) -> np.ndarray:
        rate: Any = self.block.case.compute.rate
        at_each = rate.name == "measured" and rate.nic_gbps is None
        gbps = cases[BANDWIDTH].tolist() if at_each else [None] * len(self.block)
        words = functools.cache(functools.partial(compute_source, self.resolved, self.job))
        return np.array(list(map(words, cases[EFFICIENCY].tolist(), gbps)), object)

    @property
    def replicas(self) -> int:
        return replicas_of(self.case.run.replicas, self.job)

    def _networks(self, cases: RowArrays) -> Networks:
        """Networks and numbers by column of seconds: as the case sets them (""), and with slower or faster kernels or
        links."""
        resolved, network, job = self.resolved, self.problem.network, self.job
        networks = {"": (network, cases)}
        if resolved.case.compute.rate.name == "kernels":
            for how, column in OF_KERNELS.items():
                at_peak = scale_seconds(resolved.of_kernels(job, how), resolved.efficiency_of(job))
                networks[column] = dataclasses.replace(network, peak_s=at_peak), cases
            for how, column in OF_LINKS.items():
                networks[column] = dataclasses.replace(network, shares=resolved.shares(job, how)), cases
        alpha_s, usual_s, own_s = cases[ALPHA], cases[LINK_DELAY], self.problem.own_delay_s
        if alpha_s.any() or (own_s is not None and np.any(usual_s < own_s)):  # a variant without latency per message
            quick = {ALPHA: np.zeros_like(alpha_s)}
            if own_s is not None:
                quick[LINK_DELAY] = np.minimum(usual_s, own_s)
            networks[PROMPT] = dataclasses.replace(network, own_delay_s=None), cases | quick
        return networks

    def _solve_cases(self, cases: RowArrays, networks: Networks) -> SolvedCases:
        """Solve all cases [N], some all-to-alls at a time; cases that share all-to-alls share their solution."""
        costs = {column: network.costs(numbers) for column, (network, numbers) in networks.items()}
        depends_on = np.stack([cases[name] for name in self.problem.network.input_paths], axis=1)
        _, first, which = np.unique(depends_on, axis=0, return_index=True, return_inverse=True)
        slot = slot_of(self.job)
        solved, shown = SolvedCases(which.reshape(-1), {}, {}, {}), slot and slot.position
        trade_off = None
        if self.problem.weighs:
            trade_off = trade_off_of(self.job, *costs[""], self.resolved.routing, self.resolved.horizon)
        at_once = max(1, MOST_ALL_TO_ALLS // places(self.job).present.size)
        for some, loads_of in self._groups(cases, first, trade_off):
            for keys in np.split(some, range(at_once, len(some), at_once)):
                iteration = cases[SAMPLE][first[keys]].astype(int)
                loads = loads_of.loads(iteration, first[keys], shown)
                loads = loads._replace(inside=self._inside[iteration])
                rows = np.flatnonzero(np.isin(solved.which, keys))
                own = np.searchsorted(keys, solved.which[rows])
                times = {}
                for column, each in costs.items():
                    rates, seconds = jax.tree.map(lambda x, rows=rows: x[rows], each)
                    times[column] = time_iterations(self.job, rates, seconds, loads, self.resolved.rules, own)
                for name, values in _columns(self.job, loads, own, times).items():
                    solved.columns.setdefault(name, np.zeros(len(solved.which)))[rows] = values
                over = over_balanced(self.job, np.asarray(loads.load), np.asarray(loads.balanced))
                solved.over.update(zip(keys.tolist(), over, strict=True))
                if loads.count is not None and shown is not None:
                    slot_index = (slice(None), *shown)
                    circuits = map(ShownCircuits, loads.count, loads.optical[slot_index], loads.electrical[slot_index])
                    solved.circuits.update(zip(keys.tolist(), circuits, strict=True))
        return solved

    @functools.cached_property
    def _inside(self) -> np.ndarray:
        return inside_of(self.problem)

    def _groups(
        self, cases: RowArrays, first: np.ndarray, costs: TradeOff | None
    ) -> Iterator[tuple[np.ndarray, AllToAllsOf]]:
        """For each group, the indices of its all-to-alls and their solver; `first`: one case of each index."""
        if not self.on.reconfigures:
            yield np.arange(len(first)), self._all_to_alls(None, None)
            return
        each = {name: values[first] for name, values in cases.items()}
        differ = PORTS if self.on.about.optics.degree_varies else BANDWIDTH
        _, first_rows, of_each = np.unique(each[differ], return_index=True, return_inverse=True)
        groups = [
            self.problem.network.group_at({name: values[row] for name, values in each.items()})
            for row in first_rows.tolist()
        ]
        _, distinct, number = np.unique([_key_without_rates(g) for g in groups], return_index=True, return_inverse=True)
        for which, own in enumerate(distinct.tolist()):
            some = np.flatnonzero(number.reshape(-1)[of_each.reshape(-1)] == which)
            yield some, self._all_to_alls(groups[own], costs)

    def _all_to_alls(self, group: Any, costs: TradeOff | None) -> AllToAllsOf:
        """All-to-alls on a group; blocks of cases share them unless they depend on costs."""
        if costs is not None:
            return AllToAllsOf(self.problem, group, costs)
        key = dataclasses.replace(self.problem, bandwidths=()).between_key
        key_of_group = None if group is None else _key_without_rates(group)
        return self.shared.get((key, key_of_group), lambda: AllToAllsOf(self.problem, group))


def _key_without_rates(group: Any) -> bytes:
    """The numbers that decide a group's all-to-alls at unit bandwidth: all except bandwidth and delay."""
    leaves = jax.tree.leaves(eqx.tree_at(lambda g: (g.nic_gbps, g.delay_s), group, (0.0, 0.0)))
    return b"".join(np.asarray(leaf).tobytes() for leaf in leaves)


def over_balanced(job: Workload, load: np.ndarray, balanced: np.ndarray) -> np.ndarray:
    """Return `Exchanges.load` over `Exchanges.balanced` of MoE blocks [... P Q L 2]; 1 if no bytes leave a server."""
    moe = places(job).layer >= 0
    load, balanced = load.astype(np.float64)[..., moe, :], balanced.astype(np.float64)[..., None, None]
    return np.divide(load, balanced, out=np.ones_like(load), where=balanced > 0)


def _columns(job: Workload, loads: Exchanges, own: np.ndarray, times: Mapping[str, Any]) -> RowArrays:
    """Seconds and circuit changes of cases; `own`: index into `loads` of each case; `times`: by column of
    `Networks`."""
    columns = {name: getattr(times[""], name) for name in PARTS}
    columns |= {column: each.iteration_s for column, each in times.items() if column}
    switched = np.asarray(loads.reconfigurations)
    columns[RECONFIGURED] = switched.reshape(len(switched), -1).any(axis=1).astype(float)[own]
    if loads.new_circuits is not None:
        each = changes_of(job, np.asarray(loads.new_circuits), switched)
        columns |= {name: column[own] for name, column in zip(SWITCHING, each, strict=True)}
    return columns


@cached_by_files(lambda resolved, tiers, variant: files_of_case(resolved.case), maxsize=4)
def _problem_of(resolved: Resolved, tiers: tuple[int, ...], variant: str) -> Problem:
    """`tiers`: `tiers_by_degree`, in which equal cases may differ."""
    return problem_at(resolved, (resolved.case.network.nic_gbps,), variant=variant)


def check_case_block(block: CaseBlock) -> None:
    """Raise InputError for an impossible case; among more than `TRIED`, try only the first and both ends of every
    column."""
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


def rows_of(problem: Problem, shared: Shared | None = None) -> list[Row]:
    """Return a row for every bandwidth of a problem, with the problem's traffic."""
    block = CaseBlock(problem.resolved.case, problem.variant, {BANDWIDTH: problem.bandwidths})
    return EvaluatedBlock(block, problem, shared).rows()
