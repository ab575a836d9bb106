"""Arrange rows by model, series (a fabric and its settings) and NIC bandwidth."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, TypeAlias, TypeVar

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.report.numerals import number, usable

Rows: TypeAlias = Sequence[Mapping[str, Any]]
Point: TypeAlias = tuple[float, float]
Row = TypeVar("Row", bound=Mapping[str, Any])

TIME, COST, CLUSTER = "iteration_s", "network_cost_usd", "cluster_cost_usd"
TOKEN_USD, TOKEN_JOULES, TOKENS = "usd_per_million_tokens", "joules_per_million_tokens", "tokens_per_s"
CLUSTER_WORTH, WORTH = "perf_per_cluster_dollar", "perf_per_dollar"

REFERENCE = "fat-tree"
DETAIL_GBPS = 400
_PLACE = ("model", "fabric", "nic_gbps")
VARIANT = "variant"
GPU = "gpu.name"  # a column only if rows differ in it
DESIGN = "design"  # a column that names designs; without it, their settings do
GRAPH_FILE = "network.graph"
SEED = "run.seed"
OF_POLICY = "circuits.policy."  # settings that policy names already show
NUMBER = "configuration"  # number of a row in a sweep, not a parameter
_SETTINGS = (VARIANT, "nic_use", "policy", "routing", "circuits_for", "ocs", "gpus", "file")
_VAGUE = ("name", "length", "path")  # last parts of paths: gpu.name, circuits.span.length, traffic.trace.path
_NUMBERS = ("gpus", "nic_gbps")  # labels show the names of these, and of settings with paths
USUAL = (TIME, "seconds")  # the default result of a row
_RESULTS = (*USUAL, "slow_down")  # the first of these columns that a row has is its result
_INDICES = ("seed", "sample", "instance", "record", "layer", "iteration")
_FOLLOWS = (  # follow from settings
    DESIGN,
    *("memory_gb", "gpu_memory_gb", "fits", "framework_runs", "region_servers", "achieved_over_peak"),
)
COUNTERS = (*_INDICES, NUMBER)
_MOST = 12  # most values of a path setting that distinguishes series; design spaces have more


@dataclass(frozen=True)
class Series:
    """A fabric and the settings that distinguish it from other series of that fabric (often none)."""

    fabric: str
    settings: tuple[str, ...] = ()
    rank: int = 0  # number of the series within its fabric, from 0

    def label(self, fabric: str) -> str:
        return ", ".join(map(str, (fabric, *self.settings)))


@dataclass(frozen=True)
class Grid:
    """Rows by cell (model, series, bandwidth), in order of first appearance; bandwidths are sorted.

    `seeds`: most rows that differ in their seed alone and are averaged in a cell.
    """

    models: list[str]
    series: list[Series]
    bandwidths: list[float]
    cells: dict[tuple[str, Series, float], Mapping[str, Any]]
    seeds: int = 1

    def row(self, model: str, series: Series, gbps: float) -> Mapping[str, Any] | None:
        return self.cells.get((model, series, gbps))

    def value(self, model: str, series: Series, gbps: float, key: str) -> float | None:
        return usable((self.row(model, series, gbps) or {}).get(key))

    def reference(self, model: str, gbps: float) -> Series | None:
        present = [s for s in self.series if self.value(model, s, gbps, "iteration_s")]
        return next((s for s in present if s.fabric == REFERENCE), next(iter(present), None))


def nearest_to_detail(bandwidths: Sequence[float]) -> float:
    """Return the bandwidth at which details are shown: the one nearest to 400 Gbps, the lower of two."""
    return min(bandwidths, key=lambda gbps: abs(gbps - DETAIL_GBPS))


def arrange(rows: Rows, needs: Sequence[str] = ()) -> Grid:
    """Return the rows as a grid, without rows that lack a model, fabric or bandwidth.

    Equal rows count once: a sweep repeats fabrics without policies for each policy. Rows of several seeds are averaged.
    Raise InputError if a column is missing, or if a cell has two results.
    """
    check_columns(rows, _PLACE)
    check_columns(rows, needs)
    rows = with_named_graphs(rows)
    placed = [row for row in rows if None not in (row["model"], row["fabric"], usable(row["nic_gbps"]))]
    if not placed:
        raise InputError(f"no row has values in all of the columns {', '.join(_PLACE)}.")
    telling = {fabric: _telling_settings(placed, fabric) for fabric in values_of(placed, "fabric")}
    series: dict[tuple[str, tuple[str, ...]], Series] = {}
    cells: dict[tuple[str, Series, float], dict[Any, Mapping[str, Any]]] = {}
    for row in placed:
        fabric = row["fabric"]
        settings = tuple(setting_label(name, row.get(name)) for name in telling[fabric])
        rank = sum(1 for known, _ in series if known == fabric)
        own = series.setdefault((fabric, settings), Series(fabric, settings, rank))
        cell = (row["model"], own, row["nic_gbps"])
        by_seed, seed = cells.setdefault(cell, {}), row.get(SEED)
        if seed in by_seed and not _same(by_seed[seed], row):
            raise InputError(
                f"rows hold two results for {cell[0]} on {own.label(fabric)} at {number(cell[2])} Gbps; "
                "keep one of them."
            )
        by_seed.setdefault(seed, row)
    ordered = sorted(series.values(), key=lambda entry: (list(telling).index(entry.fabric), entry.rank))
    means = {cell: _mean_row(list(by_seed.values())) for cell, by_seed in cells.items()}
    models, bandwidths = values_of(placed, "model"), sorted(values_of(placed, "nic_gbps"))
    return Grid(models, ordered, bandwidths, means, max(map(len, cells.values())))


def _mean_row(rows: Rows) -> Mapping[str, Any]:
    """Return the first row with the means of numbers that differ between the rows."""
    values = {name: [row.get(name) for row in rows] for name in rows[0] if name != SEED}
    numbers = {
        name: [value for value in own if isinstance(value, int | float) and not isinstance(value, bool)]
        for name, own in values.items()
        if len(set(map(str, own))) > 1
    }
    means = {name: math.fsum(own) / len(rows) for name, own in numbers.items() if len(own) == len(rows)}
    return {**rows[0], **means}


def _same(row: Row, other: Row) -> bool:
    differ = {name for name in row.keys() | other.keys() if str(row.get(name)) != str(other.get(name))}
    return differ == {NUMBER}


def group_rows(rows: Sequence[Row], *names: str) -> dict[tuple[Any, ...], list[Row]]:
    """Return the rows by their values in `names`, in order of first appearance."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups


def values_of(rows: Rows, name: str) -> list[Any]:
    return list(dict.fromkeys(row[name] for row in rows))


def check_columns(rows: Rows, needs: Sequence[str]) -> None:
    """Raise InputError if there are no rows, or if a row lacks a column."""
    if not rows:
        raise InputError("rows must hold at least one row, got none.")
    if missing := [name for name in needs if any(name not in row for row in rows)]:
        raise InputError(f"the rows have no column {' or '.join(missing)}.")


def check_values(rows: Rows, keys: Sequence[str], figure: str) -> None:
    """Raise InputError if there are no rows, or if a row lacks a value in `keys`; `figure` names what needs them."""
    missing = [key for key in keys if any(row.get(key) is None for row in rows)]
    if not rows or missing:
        wanted = f"rows lack {', '.join(missing)}" if rows else "there are no rows"
        raise InputError(f"the figure of {figure}, but {wanted}.")


def with_named_graphs(rows: Rows) -> Rows:
    """Return the rows with each graph file as its own fabric, "graph NAME", instead of a column of files."""
    files = dict.fromkeys(str(row[GRAPH_FILE]) for row in rows if row.get(GRAPH_FILE) is not None)
    if not files:
        return rows
    alike = len({PurePath(file).stem for file in files}) < len(files)
    names = {file: f"graph {file if alike else PurePath(file).stem}" for file in files}
    named = []
    for row in rows:
        own = {name: value for name, value in row.items() if name != GRAPH_FILE}
        file = row.get(GRAPH_FILE)
        named.append(own if file is None else own | {"fabric": names[str(file)]})
    return named


APART = ("nic_gbps", "gpus", "policy", "routing", "circuits_for", "nic_use", "ocs")


def distinguishing_columns(rows: Rows, *but: str) -> list[str]:
    """Return the columns in `APART` and the path settings in which rows differ, except those in `but`."""
    names = [name for name in dict.fromkeys(name for row in rows for name in row) if name in APART or "." in name]
    names = [name for name in names if name not in (*but, *COUNTERS)]
    return [name for name in names if len({str(row.get(name)) for row in rows}) > 1]


def setting_label(name: str, value: Any) -> str:
    """Return the text of a setting in a label: its value, with its name if the value alone is unclear."""
    if name in _NUMBERS or "." in name:
        return f"{setting_name(name)} {number(value)}"
    return str(value)


def setting_name(path: str) -> str:
    """Return the name of a setting in a label: the last part of its path, or the last but one if the last is vague."""
    before, _, last = path.rpartition(".")
    return before.rpartition(".")[2] if before and last in _VAGUE else last


def _telling_settings(rows: Rows, fabric: str) -> list[str]:
    """Settings that differ between rows of this fabric that share model and bandwidth."""
    names = dict.fromkeys(name for row in rows for name in row)
    paths = [name for name in names if "." in name and name != SEED and not name.startswith(OF_POLICY)]
    few = [path for path in paths if len({str(row.get(path)) for row in rows}) <= _MOST]
    candidates = (*_SETTINGS, *few)
    seen: dict[tuple[Any, ...], set[Any]] = {}
    for row in rows:
        if row["fabric"] == fabric:
            for name in candidates:
                seen.setdefault((name, row["model"], row["nic_gbps"]), set()).add(str(row.get(name)))
    telling = [name for name in candidates if any(key[0] == name and len(values) > 1 for key, values in seen.items())]
    own = [tuple(row.get(name) for name in ("model", "nic_gbps", VARIANT)) for row in rows if row["fabric"] == fabric]
    return [VARIANT] if VARIANT in telling and len(set(own)) == len(own) else telling


# -- what columns hold


def textual(rows: Rows) -> list[str]:
    return [name for name in rows[0] if any(isinstance(row[name], str | bool) for row in rows)]


def numeric(rows: Rows) -> list[str]:
    names = textual(rows)
    return [name for name in rows[0] if name not in names and any(row[name] is not None for row in rows)]


def has_long_numbers(rows: Rows, name: str) -> bool:
    """Return whether a column has numbers of more than four digits, as results have and settings do not."""
    floats = [value for row in rows if isinstance(row[name], float) and (value := usable(row[name])) is not None]
    return any(float(f"{value:.4g}") != value for value in floats)


def result_column(rows: Rows) -> str | None:
    """Return the result column: a usual result, else the first column of unrounded numbers, else of any numbers."""
    numbers = numeric(rows)
    usual = (name for name in _RESULTS if name in numbers)
    results = (name for name in numbers if has_long_numbers(rows, name))
    return next(itertools.chain(usual, results, numbers), None)


def setting_columns(rows: Rows, effective: Mapping[str, Any]) -> list[str]:
    """Return the columns that are settings: those before the result, numbers that the configuration names, and paths.

    Indices are left out, and so is the seed: draws are averaged.
    """
    names, result = list(rows[0]), result_column(rows)
    before = names if result is None else names[: names.index(result)]
    behind = [name for name in names[len(before) + 1 :] if name in effective and name in numeric(rows)]
    indices = (*_INDICES, *(() if TIME in rows[0] else ("micro_batch",)))  # in rows of all-to-alls it is an index
    paths = [name for name in names if "." in name and name != SEED and name not in (*before, *behind)]
    return [name for name in (*before, *behind, *paths) if name not in (*indices, *_FOLLOWS)]


def values_in(rows: Rows, name: str) -> list[Any]:
    return [value for value in values_of(rows, name) if value is not None]


def independent_columns(rows: Rows, names: Sequence[str]) -> list[str]:
    """Return the columns that vary and that earlier columns do not determine."""
    kept: list[str] = []
    for name in names:
        if combinations(rows, [*kept, name]) > combinations(rows, kept):
            kept.append(name)
    return kept


def combinations(rows: Rows, names: Sequence[str]) -> int:
    return len(group_rows(rows, *names))


# -- Pareto fronts


def unbeaten(values: Any) -> np.ndarray:
    """Return [N] whether no other of the points [N K] is at most as large in all values and smaller in one."""
    points, inverse = np.unique(np.asarray(values, dtype=float), axis=0, return_inverse=True)
    if points.shape[1] == 2:  # points are sorted: only an earlier one can beat a point
        least = np.minimum.accumulate(points[:, 1])
        kept = np.concatenate([[True], points[1:, 1] < least[:-1]])
        return kept[inverse.reshape(-1)]
    kept, left = np.zeros(len(points), bool), np.arange(len(points))
    while left.size:
        kept[left[0]] = True
        left = left[(points[left] < points[left[0]]).any(axis=1)]
    return kept[inverse.reshape(-1)]


def front(points: Sequence[Point]) -> list[Point]:
    """Return the Pareto front of the points, sorted by the first value, without duplicates."""
    kept = unbeaten(points) if points else ()
    return sorted({point for point, best in zip(points, kept, strict=True) if best})
