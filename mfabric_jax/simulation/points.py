"""One iteration as a function of numbers, and cases that differ in numbers as one compiled program."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.bands import DRAW, OF_KERNELS, OF_LINKS, PROMPT, band_columns, is_of_band
from mfabric_jax.case import Block, Case
from mfabric_jax.case.paths import build, flat, named_files
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric.design import Fabric, group_numbers
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.resolving.resolve import Resolved, resolve
from mfabric_jax.resolving.traffic import replicas_of
from mfabric_jax.routing.ends import Ends
from mfabric_jax.simulation.batch import Estimate, evaluate, usual_at_once
from mfabric_jax.simulation.flow_ends import Circuits, circuits_of, ends_at, flow_columns, slot_of
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
from mfabric_jax.simulation.scenario import (
    Scenario,
    check_dtype,
    rates_at,
    slowest_columns,
)
from mfabric_jax.simulation.solving import (
    Given,
    Program,
    given_of,
    measured_efficiency,
    measured_under,
    program_of,
    scenario_at,
)
from mfabric_jax.text_files import cached_by_files
from mfabric_jax.timing import Iteration, Rules, iterate
from mfabric_jax.timing.exchange import exchanges_inside
from mfabric_jax.timing.iteration import FabricRates, iterations_of, walk
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.timing.switching import trade_off_of
from mfabric_jax.workload.compute import BlockSeconds, scaled
from mfabric_jax.workload.kernels import Shares

Numbers = Mapping[str, Any]
NUMBERS = {  # of a case, by path, and what they are called here
    "network.nic_gbps": "nic_gbps",
    "network.goodput": "goodput",
    "network.link_delay_s": "link_delay_s",
    "network.alpha_s": "alpha_s",
    "network.mfabric.optical_degree": "optical_degree",
    "circuits.delay_s": "delay_s",
    "circuits.each_s": "each_s",
    "circuits.reactivation_s": "reactivation_s",
    "compute.efficiency": "efficiency",
    "gpu.nvlink_gigabytes_per_s": "nvlink_gigabytes_per_s",
    "run.sample": "sample",
}
PATHS = {name: path for path, name in NUMBERS.items()}
TRADED_OFF = ("nic_gbps", "goodput", "delay_s", "each_s", "reactivation_s", "efficiency", "nvlink_gigabytes_per_s")
WHOLE = ("sample", "optical_degree")  # numbers that are whole


class IterationOf(eqx.Module):
    """Function: numbers of a case by path (`NUMBERS`) -> seconds of `timing.Iteration`, and `exposed_comm_s`."""

    on: Fabric = eqx.field(static=True)
    rules: Rules = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    weighs: bool = eqx.field(static=True)
    gpu_tbps: float = eqx.field(static=True)
    transport: Transport = eqx.field(static=True)
    solver: Program
    group: Any
    given: Given
    nics: Int[Array, ""]
    decision_s: Float[Array, ""]
    peak_s: BlockSeconds
    shares: Shares
    path_links: Float[Array, "D"]  # by the number of a server's optical NICs where this may be traced, else one
    own_delay_s: Float[Array, ""] | None  # of a link, in the place of `network.link_delay_s`
    memory_Bps: Float[Array, ""]
    oversubscription: Float[Array, ""]

    def __call__(self, case: Numbers) -> dict[str, Array]:
        return self.time(case, self.exchanges(case))

    def exchanges(self, case: Numbers) -> Exchanges:
        """The all-to-alls at 1 byte/s of NICs and NVSwitches; depends on `solved_for` alone."""
        case = self._typed(case)
        group, at = self._group(case), case["sample"]
        workload = self.solver.workload
        trade_off = trade_off_of(workload, *self._costs(case), self.solver.routing) if self.weighs else None
        given = self.given.at(at)
        between = self.solver.between(group, given, trade_off)
        return between._replace(inside=exchanges_inside(workload, group, given.tokens))

    def time(self, case: Numbers, solved: Exchanges) -> dict[str, Array]:
        rates, seconds = self._costs(self._typed(case))
        return _parts(iterate(self.solver.workload, rates, solved, seconds, rules=self.rules))

    def time_each(self, cases: Numbers, solved: Exchanges) -> dict[str, Any]:
        """Seconds, and `NIC`, of many cases along a first axis, played side by side."""
        rates, seconds = jax.vmap(lambda case: self._costs(self._typed(case)))(cases)
        walked = walk(self.solver.workload, rates, solved, seconds, rules=self.rules, every=False)
        return _parts(iterations_of(walked)) | {NIC: rates.nic_Bps}

    @property
    def solved_for(self) -> tuple[str, ...]:
        """Paths of the numbers on which the all-to-alls depend."""
        if not self.on.reconfigures:
            return (PATHS["sample"],)
        ports = ("optical_degree",) if self.on.data else ("nic_gbps",)
        weighed = TRADED_OFF if self.weighs else ()
        return tuple(dict.fromkeys(PATHS[name] for name in ("sample", *ports, *weighed)))

    def _costs(self, case: Numbers) -> tuple[FabricRates, BlockSeconds]:
        names = ("goodput", "link_delay_s", "alpha_s", "each_s", "reactivation_s")
        numbers = {name: case[name] for name in names if name in case} | {"memory_Bps": self.memory_Bps}
        if self.own_delay_s is not None:
            numbers["link_delay_s"] = self.own_delay_s
        own = units.gigabytes_per_s(case["nvlink_gigabytes_per_s"])
        numbers |= {
            "nvlink_Bps": self.on.nvlink_Bps(self.gpu_tbps, case["nic_gbps"], own),
            "decision_s": self.decision_s,
        }
        path_links = self.path_links[case["optical_degree"] if self.on.data else 0]
        rates = rates_at(self._group(case), self.transport, path_links, shares=self.shares, **numbers)
        rates = jax.tree.map(lambda x: jnp.asarray(x, self.dtype), rates)
        return rates, jax.tree.map(lambda x: x / case["efficiency"], self.peak_s)

    def _group(self, case: Numbers) -> Any:
        group = self.on.at(self.group, case["nic_gbps"], self.gpu_tbps)
        for name in (*self.on.data, *(("delay_s",) if group.reconfigures or group.phases else ())):
            group = eqx.tree_at(lambda g, name=name: getattr(g, name), group, case[name])
        return group

    def _typed(self, case: Numbers) -> Numbers:
        for path in case:
            one_of("number of a case", path, NUMBERS)
        names = {NUMBERS[path]: x for path, x in case.items()}
        found = {name: jnp.asarray(x, jnp.int32 if name in WHOLE else self.dtype) for name, x in names.items()}
        if "optical_degree" in found:
            found["electrical_nics"] = (self.nics - found["optical_degree"]).astype(self.dtype) / self.oversubscription
        return found


def _parts(times: Iteration) -> dict[str, Any]:
    parts: dict[str, Any] = {name: value for name, value in times._asdict().items() if name.endswith("_s")}
    return parts | {"exposed_comm_s": times.exposed_comm_s}


def iteration_of(case: Case) -> tuple[IterationOf, dict[str, Any]]:
    """A function of the numbers of a case, and the case's own numbers by path, to be changed or swept.

    Numbers are bandwidths, delays, the rate of computation, `run.sample` (index of the iteration, from 0) and, on
    mFabric, `network.mfabric.optical_degree`. They may be traced, differentiated and batched, and are not checked;
    `InputError` for other paths. Everything else is that of the case.

    Example: `function, numbers = iteration_of(Case())`, then `evaluate(function, grid(**{path: [value] for path, value
    in numbers.items()} | {"circuits.delay_s": [0.001, 0.025]}))`.
    """
    if case.run.replicas != 1:
        raise InputError(f"a function of numbers is of one replica; run.replicas must be 1, got {case.run.replicas}.")
    return function_of(scenario_at(resolve(case), (case.network.nic_gbps,)))


def function_of(one: Scenario) -> tuple[IterationOf, dict[str, Any]]:
    """`iteration_of` of a scenario, at its first bandwidth."""
    settings, dtype = one.settings, one.settings.case.run.dtype
    if one.group.reconfigures and settings.scheduled:
        raise InputError("circuits.schedule is planned on the host; a function of numbers that JAX traces has none.")
    peak_s = settings.block_seconds(one.workload, 1.0)
    function = IterationOf(
        on=one.fabric,
        rules=settings.rules,
        dtype=dtype,
        weighs=one.weighs,
        gpu_tbps=settings.gpu_tbps,
        nics=jnp.asarray(settings.server_nics or 0, jnp.int32),
        transport=settings.carried_by,
        solver=program_of(one),
        group=group_numbers(one.group, dtype),
        given=given_of(one),
        decision_s=jnp.asarray(one.decision_s, dtype),
        peak_s=jax.tree.map(lambda x: jnp.asarray(x, dtype), peak_s),
        shares=jax.tree.map(lambda x: jnp.asarray(x, dtype), settings.shares(one.workload)),
        path_links=jnp.asarray(one.path_links_by_degree or (one.path_links,), dtype),
        own_delay_s=None if one.own_delay_s is None else jnp.asarray(one.own_delay_s, dtype),
        memory_Bps=jnp.asarray(settings.memory_Bps, dtype),
        oversubscription=jnp.asarray(settings.oversubscription or 1.0, dtype),
    )
    case = {
        "nic_gbps": one.bandwidths[0],
        "goodput": settings.goodput,
        "link_delay_s": settings.case.network.link_delay_s,
        "alpha_s": settings.case.network.alpha_s,
    }
    case |= {"sample": 0, "efficiency": settings.achieved(one.workload)}
    case["nvlink_gigabytes_per_s"] = units.to_gigabytes(settings.server.nvlink)
    if one.group.reconfigures or one.group.phases:
        names = ("delay_s", "reactivation_s", *(("each_s",) if one.group.reconfigures else ()))
        case |= {name: getattr(settings.case.circuits, name) for name in names}
    if one.fabric.data:
        case["optical_degree"] = settings.optical_degree
    return function, {PATHS[name]: value for name, value in case.items()}


DRAWN = ("shares", "generated", "knobs")  # sources of traffic that depend on the seed
PART_SOLVED = 4  # of the usual chunk: every iteration is many all-to-alls at once
AVERAGED = -1  # sample: the mean of all iterations
SAMPLE, BANDWIDTH, EFFICIENCY, ALPHA = "run.sample", "network.nic_gbps", "compute.efficiency", "network.alpha_s"
LINK_DELAY = "network.link_delay_s"
PORTS = "network.mfabric.optical_degree"
NIC = "nic_Bps"  # what a NIC carries of a case
MOST_KEYS = 256  # different all-to-alls whose flows are shown


class Points:
    """Cases of one block, solved once for all that differ in bandwidths, delays and rates (except under "pays")."""

    def __init__(self, block: Block):
        left_open = {path: None for path, column in block.columns.items() if None in column}
        usual = build(flat(block.case) | left_open) if left_open else block.case
        self.block, self.resolved = block, resolve(usual)
        self.on, self.job, self.settings = self.resolved.fabric, self.resolved.job, self.resolved.settings
        self._over = np.zeros((0, 0))
        self._circuits: Circuits | None = None

    @functools.cached_property
    def _program(self) -> tuple[Scenario, IterationOf, dict[str, Any]]:
        return _program_of(self.resolved, self.settings.tiers_by_degree, self.block.variant)

    @property
    def scenario(self) -> Scenario:
        return self._program[0]

    @property
    def function(self) -> IterationOf:
        return self._program[1]

    @property
    def usual(self) -> dict[str, Any]:
        """The resolved numbers of the first case."""
        sample = self.resolved.case.run.sample
        return self._program[2] | {SAMPLE: AVERAGED if sample is None else sample}

    def cases(self) -> dict[str, np.ndarray]:
        """Input of the function, a value per case; open values are those of the first case."""
        rows = len(self.block)
        found = {path: np.full(rows, value) for path, value in self.usual.items()}
        for path, column in self.block.columns.items():
            if path in found:
                usual = AVERAGED if path == SAMPLE else self.usual[path]
                found[path] = np.array([usual if value is None else value for value in column])
        if self.settings.case.compute.rate.name == "measured":
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

    def rows(self, before: Callable[[Estimate], None] | None = None) -> list[dict[str, Any]]:
        """A row for every case, equal to `simulate` of that case."""
        return listed_rows(self.columns(before))

    def columns(self, before: Callable[[Estimate], None] | None = None) -> dict[str, np.ndarray]:
        """Columns of the rows, each [N]; unknown numbers are nan."""
        cases = self.cases()
        samples, place = self._samples(cases[SAMPLE])
        each = {name: values[place] for name, values in cases.items()} | {SAMPLE: samples}
        each = {name: np.tile(values, self.replicas) for name, values in each.items()}
        each[SAMPLE] += np.repeat(np.arange(self.replicas) * self._iterations, len(samples))
        seconds = self._seconds(each, min(len(self.block) * len(self.function.given.tokens), usual_at_once()), before)
        keys = seconds.pop("solved")
        over = self._over_balanced(keys, np.tile(place, self.replicas))
        told_last = np.searchsorted(place, np.arange(len(self.block)), side="right") - 1  # the shown iteration of a row
        flows = self._flows(
            keys[told_last], {name: values[told_last] for name, values in each.items()}, seconds.pop(NIC)[told_last]
        )
        weight = 1 / np.bincount(place, minlength=len(cases[SAMPLE]))
        seconds = slowest_columns(seconds, self.replicas)
        mean = {name: np.bincount(place, values) * weight for name, values in seconds.items()}
        degree, nics = cases.get(PORTS), self.resolved.case.network.nics
        ports = {}
        if self.on.data:
            tiers = np.array(self.settings.tiers_by_degree)[degree]
            ports = {"optical_degree": degree, "electrical_nics": nics - degree, "tiers": tiers}  # type: ignore[operator]
        told = columns_of(self.scenario, mean, cases[BANDWIDTH], cases[EFFICIENCY], over, **ports)
        told |= band_columns(mean["iteration_s"], {name: mean[name] for name in mean if is_of_band(name)}, ())
        told |= training_columns(self.scenario.settings, told)
        if self.settings.case.traffic.source.name in DRAWN:  # the columns of few cases; many are drawn once
            others = range(2, self.settings.case.run.draws + 1)
            told |= dict.fromkeys(map(DRAW.format, others), np.full(len(self.block), np.nan))
        return told | {"compute_source": self._sources(cases)} | flows

    def _flows(self, keys: np.ndarray, cases: Numbers, nic_Bps: np.ndarray) -> dict[str, np.ndarray]:
        """Columns of one dispatch (`flow_ends`) of every row, solved once for each of the `keys` [N] of all-to-alls;
        unknown where there are more than `MOST_KEYS`."""
        every, first = np.unique(keys, return_index=True)
        found = {}
        for key, row in zip(every.tolist(), first.tolist(), strict=True):
            case = {name: values[row] for name, values in cases.items()}
            found[key] = self._ends(key, case) if len(every) <= MOST_KEYS else None
        columns = flow_columns([found[key] for key in keys.tolist()], nic_Bps)
        return {name: column_of(values) for name, values in columns.items()}

    def _ends(self, key: int, case: Numbers) -> Ends | None:
        function, circuits = self.function, self._circuits and Circuits(*(x[key] for x in self._circuits))
        group = function._group(function._typed(case))
        sent = np.asarray(function.given.tokens[int(case[SAMPLE])])
        return ends_at(self.scenario, group, sent, function.solver.carry, circuits)

    def _over_balanced(self, solved: np.ndarray, place: np.ndarray) -> np.ndarray:
        """Median all-to-all load of each row over the balanced one; `solved` [N']: all-to-alls, `place` [N']: rows."""
        order, found = np.argsort(place, kind="stable"), []
        known: dict[tuple, float] = {}
        for some in np.split(solved[order], np.flatnonzero(np.diff(place[order])) + 1):
            key = tuple(some.tolist())
            if key not in known:
                known[key] = float(np.median(self._over[some]))
            found.append(known[key])
        return np.array(found)

    def _sources(self, cases: Mapping[str, np.ndarray]) -> np.ndarray:
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
        return replicas_of(self.settings.case.run.replicas, self.job)

    @property
    def _iterations(self) -> int:
        return len(self.function.given.tokens) // self.replicas

    def _samples(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        every, rows = np.arange(self._iterations), np.arange(len(sample))
        many = np.where(sample == AVERAGED, len(every), 1)
        place = np.repeat(rows, many)
        within = np.arange(len(place)) - np.repeat(np.cumsum(many) - many, many)
        return np.where(sample[place] == AVERAGED, within, sample[place]), place

    def _variants(self) -> dict[str, IterationOf]:
        """The function with slower and faster kernels and links, by column of `bands`."""
        settings, function, job = self.settings, self.function, self.job
        if settings.case.compute.rate.name != "kernels":
            return {}
        like = lambda numbers, old: jax.tree.map(lambda x, y: jnp.asarray(x, y.dtype), numbers, old)  # noqa: E731
        at_peak = {how: scaled(settings.of_kernels(job, how), settings.achieved(job)) for how in OF_KERNELS}
        found = {
            column: eqx.tree_at(lambda f: f.peak_s, function, like(at_peak[how], function.peak_s))
            for how, column in OF_KERNELS.items()
        }
        for how, column in OF_LINKS.items():
            shares = like(settings.shares(job, how), function.shares)
            found[column] = eqx.tree_at(lambda f: f.shares, function, shares)
        return found

    def _prompt(self, cases: dict[str, np.ndarray]) -> tuple[IterationOf, dict[str, np.ndarray]] | None:
        """The function and numbers of messages without latency beside `network.link_delay_s`; None: they have none."""
        alpha_s, usual_s, own_s = cases[ALPHA], cases[LINK_DELAY], self.scenario.own_delay_s
        if not alpha_s.any() and (own_s is None or not np.any(usual_s < own_s)):
            return None
        quick = {ALPHA: np.zeros_like(alpha_s)}
        if own_s is not None:
            quick[LINK_DELAY] = np.minimum(usual_s, own_s)
        return dataclasses.replace(self.function, own_delay_s=None), cases | quick

    def _seconds(self, cases: dict[str, np.ndarray], at_once: int, before: Any) -> dict[str, np.ndarray]:
        solved_for = self.function.solved_for
        keys, place = np.unique(np.stack([cases[name] for name in solved_for], axis=1), axis=0, return_inverse=True)
        first = np.zeros(len(keys), int)
        first[place.reshape(-1)] = np.arange(place.size)
        some = _padded(first)
        solve, few = jax.tree_util.Partial(_solved, self.function), min(len(some), usual_at_once() // PART_SOLVED)
        each = {name: values[some] for name, values in cases.items()}
        solved = dict(evaluate(solve, each, at_once=few, before=before).arrays)
        if (counts := solved.pop(CIRCUITS, None)) is not None:
            at = (slice(None), *slot_of(self.job).at)  # type: ignore[union-attr]
            self._circuits = Circuits(counts, solved["optical"][at], solved["electrical"][at])
        timed = jax.tree_util.Partial(_timed, self.function)
        again = {name: values[place.reshape(-1)] for name, values in solved.items()}
        arrays = evaluate(timed, {"case": cases, "solved": again}, at_once=at_once, before=before, batched=True).arrays
        found: dict[str, Any] = {name: arrays[name].astype(np.float64) for name in (*PARTS, NIC)}
        ways = {column: (function, cases) for column, function in self._variants().items()}
        if (prompt := self._prompt(cases)) is not None:
            ways[PROMPT] = prompt
        for column, (function, numbers) in ways.items():
            way = jax.tree_util.Partial(_timed, function)
            arrays = evaluate(
                way, {"case": numbers, "solved": again}, at_once=at_once, before=before, batched=True
            ).arrays
            found[column] = arrays["iteration_s"].astype(np.float64)
        exchanges = Exchanges(**solved, count=None)  # type: ignore[arg-type]
        over = over_balanced(self.job, np.asarray(exchanges.load), np.asarray(exchanges.balanced))
        self._over, found["solved"] = over.reshape(len(over), -1), place.reshape(-1)
        found[TURNED] = np.asarray(again["switch"]).reshape(len(again["switch"]), -1).any(axis=1).astype(float)
        if "anew" in again:
            found |= zip(SWITCHING, changes_of(self.job, again["anew"], again["switch"]), strict=True)
        return found


@cached_by_files(lambda resolved, tiers, variant: named_files(resolved.case), maxsize=4)
def _program_of(
    resolved: Resolved, tiers: tuple[int, ...], variant: str
) -> tuple[Scenario, IterationOf, dict[str, Any]]:
    """A case as a program; `tiers`: its `tiers_by_degree`, in which equal cases may differ."""
    scenario = scenario_at(resolved, (resolved.case.network.nic_gbps,), variant=variant)
    return scenario, *function_of(scenario)


def check_ends(block: Block) -> None:
    """`InputError` for an impossible number: tries the first case and both ends of every column."""
    check_dtype(block.case.run.dtype)
    resolve(block.case)
    below = flat(block.case)
    for path, column in block.columns.items():
        some = {value for value in column if value is not None}
        ends = {min(some), max(some)} if some else set()
        for value in ends | ({None} if None in column else set()):
            resolve(build(below | {path: value}))


def _padded(rows: np.ndarray) -> np.ndarray:
    """Rows padded to a power of two with the last one, to limit the number of programs."""
    return rows[np.minimum(np.arange(1 << (len(rows) - 1).bit_length()), len(rows) - 1)]


CIRCUITS = "circuits"  # of the dispatch whose flows are shown


def _solved(function: IterationOf, case: Mapping[str, Any]) -> dict[str, Any]:
    solved = function.exchanges(case)
    circuits = circuits_of(solved, slot_of(function.solver.workload))
    found = {name: x for name, x in solved._replace(count=None)._asdict().items() if x is not None}
    return found if circuits is None else found | {CIRCUITS: circuits.count}


def _timed(function: IterationOf, both: Mapping[str, Any]) -> dict[str, Any]:
    return function.time_each(both["case"], Exchanges(**both["solved"], count=None))
