"""Whole training iterations of a sweep: a row is that of `compare` with the same settings."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from mfabric_jax import fabric, units
from mfabric_jax.checks import InputError
from mfabric_jax.schedule.all_to_alls import Exchanges
from mfabric_jax.study._compare import effective, judged, named
from mfabric_jax.study._iteration_of import IterationOf, function_of
from mfabric_jax.study._memory import memory_columns
from mfabric_jax.study._money import Bill, bill_of
from mfabric_jax.study._replicas import replica_columns, replicas_of, slowest_columns
from mfabric_jax.study._scenario import check_dtype, scenarios_on, traffic_of
from mfabric_jax.study._switches import changes_of, switching_columns
from mfabric_jax.study.batch import Estimate, evaluate, usual_at_once
from mfabric_jax.study.config import Case
from mfabric_jax.study.fields import choices, hints
from mfabric_jax.study.settings import PlacementSettings
from mfabric_jax.study.sweeps.axes import Setting
from mfabric_jax.traffic import Tokens
from mfabric_jax.workload import Workload

LEFT_OPEN = {  # None stands for what others imply
    **dict.fromkeys(("efficiency", "delay_s", "nvswitch_gigabytes_per_s"), float),
    **dict.fromkeys(("optical_degree", "electrical_nics"), int),
}
DATA = (*LEFT_OPEN, "nic_gbps", "goodput", "link_delay_s")
DATA = (*DATA, "each_s", "reactivation_s")
OF_TRAFFIC = ("traffic", "skew", "drift", "drawn", "seed", "iterations", "trace", "records", "axes", "matrices")
OF_TRAFFIC = (*OF_TRAFFIC, "circuits_for", "plan_on", "replicas")  # whether there is an iteration before the first
OF_TRAFFIC = (*OF_TRAFFIC, *(field.name for field in dataclasses.fields(PlacementSettings)))
PARTS = ("compute_s", "exposed_comm_s", "reconfig_s", "bubble_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "placement_s")
SWITCHING = ("circuit_changes", "turns")
PART_SOLVED = 4  # of the usual chunk: every iteration is many all-to-alls at once
AVERAGED = -1  # `sample`: the mean of all iterations, as `compare` gives it


def _settings() -> dict[str, Setting]:
    """Those of `Case`, and `sample`."""
    found = {}
    for field in dataclasses.fields(Case):
        hint = hints(Case)[field.name]
        if values := choices(hint):
            hint = type(values[0]) if field.default is not None else type(values[0]) | None
        found[field.name] = Setting(field.default, str if field.name == "policy" else hint, field.name in DATA)
    for name, kind in LEFT_OPEN.items():
        found[name] = Setting(None, kind | None, True)
    found["model"] = found["model"]._replace(type=str | Workload)
    del found["dtype"]
    return found | {"sample": Setting(AVERAGED, int, True)}


class Iterations:
    """The configurations of one program.

    - `code`: settings that are not data.   - `data`: the others, of one of its rows.
    - `rows`: its rows; the first call reads or draws the traffic.

    All-to-alls are solved once for configurations that differ in bandwidths, delays and rates alone, unless `first` is
    "pays", which weighs these.
    """

    SETTINGS = _settings()
    ROWS_PER_SHARD = 1024

    def __init__(self, code: Mapping[str, Any], data: Mapping[str, Any], dtype: str):
        self.code, self.data = {**code}, {**data}
        self.base = self._config(dtype=dtype)
        self.on = fabric.get(self.base.fabric)
        self.workload = self.base.workload(self.base.model, self.on.gpus_of(self.base.server))

    @staticmethod
    def resolved(code: dict[str, Any], given: set[str]) -> dict[str, Any]:
        """With an efficiency of its own a sweep is not calibrated."""
        open_still = "efficiency" in given and code["compute"] is None
        return code | {"compute": "achieved"} if open_still else code

    def _config(self, dtype: Any, **data: Any) -> Case:
        given: dict[str, Any] = self.data | self.code | data
        del given["sample"]
        return Case(**given, dtype=dtype)

    def check(self, data: Mapping[str, np.ndarray]) -> None:
        """`InputError` for a number that `compare` would not take: the ends of every column are tried."""
        if self.base.flows == "single" and len(set(data["electrical_nics"].tolist())) > 1:
            raise InputError("flows 'single' draws paths for one number of electrical_nics: give it in [fixed].")
        for name in ("measured_gbps", "measured_nic_use"):
            if self.base.measured_iteration_s is not None and self.code[name] is None:
                raise InputError(f"measured_iteration_s needs {name} in a sweep, where what it stands for may vary.")
        for name, values in data.items():
            some = [value for value in values.tolist() if value is not None]
            ends = {min(some), max(some)} if some else set()
            for value in ends | ({None} if len(some) < len(values) else set()):
                if name == "sample":
                    self._check_sample(value)
                else:
                    self._config(self.base.dtype, **{name: value})

    def _check_sample(self, value: Any) -> None:
        if not AVERAGED <= value < self.base.iterations:
            least = f"{AVERAGED} (their mean)"
            raise InputError(f"sample must be below iterations ({self.base.iterations}) and from {least}, got {value}.")

    def effective(self) -> dict[str, Any]:
        """The configuration of what does not vary."""
        return effective(self.base, self.base.model)

    def shown(self) -> dict[str, Any]:
        """What every row says though it may not vary."""
        (group,) = self.base.groups(self.base.model, self.on.name, self.base.nic_gbps, (self.base.nic_use,))
        where = group.nic_use, float(self.base.nic_gbps), self.base.circuits_for
        first = {"first": self.base.first if group.reconfigures else "none", "dispatch": self.workload.dispatch}
        return named(self.base, self.on, self.workload, *where) | first | memory_columns(self.base, self.workload)

    @functools.cached_property
    def function(self) -> IterationOf:
        """The program."""
        check_dtype(self.base.dtype)
        of_traffic = tuple((name, self.code[name]) for name in OF_TRAFFIC)
        base = self.base
        where = base.model, base.fabric, (base.nic_gbps,), (base.nic_use,)
        (tokens, *others), spans = _tokens(base, self.workload, of_traffic), (base.circuits_for,)
        return function_of(scenarios_on(base, *where, tokens, spans, others=tuple(others))[0])[0]

    def rows(
        self, data: Mapping[str, np.ndarray], most: int, before: Callable[[Estimate], None] | None = None
    ) -> dict[str, Any]:
        """Columns of results [N]; at most `most` rows are ever asked for."""
        cases = self.cases(data)
        samples, place = self._samples(cases["sample"])
        each = {name: values[place] for name, values in cases.items()} | {"sample": samples}
        each = {name: np.tile(values, self.replicas) for name, values in each.items()}
        each["sample"] += np.repeat(np.arange(self.replicas) * self._iterations, len(samples))
        seconds = self._seconds(each, min(most * len(self.function.given.tokens), usual_at_once()), before)
        weight = 1 / np.bincount(place, minlength=len(cases["sample"]))
        seconds = slowest_columns(seconds, self.replicas)
        mean = {name: np.bincount(place, values) * weight for name, values in seconds.items()}
        replica_s = mean.pop("replica_s")
        changes, turns = (mean.pop(name, None) for name in SWITCHING)
        switching = switching_columns(self.base, self.on, changes, turns, mean["iteration_s"])
        switching["region_servers"] = np.full(len(weight), self.workload.servers_per_region)
        unknown = np.full(len(weight), np.nan)
        switching = {k: unknown if x is None else x for k, x in switching.items()}
        replicas = replica_columns(self.replicas, mean["iteration_s"], replica_s)
        replicas = {name: np.broadcast_to(x, len(weight)) for name, x in replicas.items()}
        return mean | self._judged(mean, cases) | switching | replicas

    @property
    def replicas(self) -> int:
        """How many are simulated."""
        return replicas_of(self.base.replicas, self.workload)

    @property
    def _iterations(self) -> int:
        """Of every replica."""
        return len(self.function.given.tokens) // self.replicas

    def cases(self, data: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What the function takes: where a setting was left open, what it stands for."""
        cases = dict(data)
        open_still = tuple(name for name in LEFT_OPEN if cases[name].dtype == object)
        for name, stands_for in self._left_open(open_still).items():
            cases[name] = np.array([stands_for if x is None else x for x in cases[name]], float)
        cases["electrical_nics"] = cases["electrical_nics"].astype(np.float64)
        return cases

    def _left_open(self, names: tuple[str, ...]) -> dict[str, float]:
        """What settings of None stand for."""
        config = self._config(self.base.dtype, **dict.fromkeys(names))
        implied = {
            "efficiency": lambda: config.achieved(self.workload),
            "nvswitch_gigabytes_per_s": lambda: units.to_gigabytes(config.own_nvlink_Bps),
        }
        return {name: implied[name]() if name in implied else getattr(config, name) for name in names}

    def _samples(self, sample: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which iterations every row is the mean of: sample [N'], row [N']."""
        every, rows = np.arange(self._iterations), np.arange(len(sample))
        many = np.where(sample == AVERAGED, len(every), 1)
        place = np.repeat(rows, many)
        within = np.arange(len(place)) - np.repeat(np.cumsum(many) - many, many)
        return np.where(sample[place] == AVERAGED, within, sample[place]), place

    def _seconds(self, cases: dict[str, np.ndarray], at_once: int, before) -> dict[str, np.ndarray]:
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
        found = evaluate(timed, {"case": cases, "solved": again}, at_once=at_once, before=before).arrays
        found = {name: found[name].astype(np.float64) for name in ("iteration_s", *PARTS)}
        if "anew" in again:
            found |= zip(SWITCHING, changes_of(self.workload, again["anew"], again["switch"]), strict=True)
        return found

    def _judged(self, seconds: Mapping[str, np.ndarray], data: Mapping[str, np.ndarray]) -> dict[str, Any]:
        ports, rows = {name: data[name] for name in self.on.data}, len(data["sample"])
        bill = bill_of(self.base, self.on, self.workload, data["nic_gbps"], **ports)
        known = (np.broadcast_to(np.nan if part is None else part, rows).astype(float) for part in bill)
        return judged(self.base, self.workload, dict(seconds), Bill(*known), data["efficiency"])


def _padded(rows: np.ndarray) -> np.ndarray:
    """Up to a power of two, the last again: few shapes, few programs."""
    return rows[np.minimum(np.arange(1 << (len(rows) - 1).bit_length()), len(rows) - 1)]


def _solved(function: IterationOf, case: Mapping[str, Any]) -> dict[str, Any]:
    return {name: x for name, x in function.exchanges(case)._asdict().items() if x is not None}


def _timed(function: IterationOf, both: Mapping[str, Any]) -> dict[str, Any]:
    return function.time(both["case"], Exchanges(**both["solved"], count=None))


@functools.lru_cache(maxsize=8)
def _tokens(config: Case, workload, of_traffic: tuple) -> tuple[Tokens, ...]:
    return traffic_of(config, workload, (config.circuits_for,))
