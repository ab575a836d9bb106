"""Simulate cases: group them into blocks of cases, solve and time the blocks, and return rows."""

import dataclasses
import functools
import importlib.metadata
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import jax

import mfabric_jax
from mfabric_jax.case import Case, CaseBlock, Cases, cases
from mfabric_jax.case.grid import files_of, reads_setting
from mfabric_jax.case.paths import POLICY, differences, flat, in_row
from mfabric_jax.case.policies import name_of, settings_in
from mfabric_jax.evaluate.problem import Problem, Shared, check_dtype
from mfabric_jax.evaluate.resolving.resolve import gpu_of, is_open, resolve
from mfabric_jax.evaluate.rows.costs import MILLION, Row, bill_of, idle_spares, unknown_parts
from mfabric_jax.evaluate.rows.points import BANDWIDTH, EvaluatedBlock
from mfabric_jax.evaluate.rows.rows import RowArrays, column_of
from mfabric_jax.evaluate.sharded import drop_programs_if_crowded
from mfabric_jax.fabric.cost import Prices
from mfabric_jax.fabric.parts_list import own_prices, port_quote, unlisted_gpus
from mfabric_jax.flows.kernels import SHOWN as SIZES
from mfabric_jax.flows.kernels import usual
from mfabric_jax.support import columns, platforms
from mfabric_jax.support.extras import load_extra
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.notebooks import Rows
from mfabric_jax.support.origin import commit
from mfabric_jax.support.progress import bar
from mfabric_jax.support.text_files import digest
from mfabric_jax.support.unread import name_unread

SHOWN = {  # settings that fixed columns of rows already show
    "model.name",
    "network.fabric",
    "network.nic_gbps",
    "network.nic_use",
    "circuits.policy",
    "circuits.schedule",
    "circuits.routing",
    "circuits.ocs",
    "job.parallel.gpus",
}
setups = LazyModule("mfabric_jax.evaluate.setups.found")  # loaded where a set-up is open


@dataclasses.dataclass(frozen=True)
class Results:
    """Cases to simulate; computation starts when rows are requested."""

    cases: Cases
    workers: int = 2

    def rows(self, progress: Callable[[Problem], None] | bool | None = None) -> Rows:
        """Return a row for every case, in order.

        `progress` is called with the problem of every solved block; True shows a bar, which needs tqdm.
        """
        if progress is True:
            with bar("simulate", "block", len(self.groups)) as shown:
                return self.rows(lambda solved: shown.update())
        by_group = dict(self.each(progress=progress or None))
        return Rows(row for number in sorted(by_group) for row in by_group[number])

    def frame(self, progress: Callable[[Any], None] | bool | None = None) -> Any:
        """Return the rows as a `pandas.DataFrame`; raise InputError if pandas is not installed."""
        load_extra("notebook", "a data frame", "pandas")
        return self.rows(progress).frame()

    def __repr__(self) -> str:
        return f"<Results of {repr(self.cases)[1:-1]}; .rows() or .frame() computes them>"

    def _repr_html_(self) -> str:
        cases: Any = self.cases
        return f"<p>Results of these cases; .rows() or .frame() computes them.</p>{cases._repr_html_()}"

    def columns(self) -> RowArrays:
        """Return the rows as columns, each [N]; unknown numbers are nan."""
        (points, *more) = self.groups
        if more:
            rows = self.rows()
            names = dict.fromkeys(name for row in rows for name in row)
            return {name: column_of([row.get(name) for row in rows]) for name in names}
        varied = self._varied_columns(points.block)
        return points.columns() | {path: column_of(column) for path, column in varied.items()}

    def each(
        self, *, done: Container[int] = (), progress: Callable[[Problem], None] | None = None
    ) -> Iterator[tuple[int, list[Row]]]:
        """Yield (number, rows) for each of the `groups` that is not `done`, in order of completion."""
        drop_programs_if_crowded()
        left = [(number, points) for number, points in enumerate(self.groups) if number not in done]
        left.sort(key=lambda item: item[1].work, reverse=True)  # longest first, so that the pool stays busy
        with ThreadPoolExecutor(self.workers) as pool:
            started = {pool.submit(points.rows): (number, points) for number, points in left}
            try:
                for solved in as_completed(started):
                    number, points = started[solved]
                    varied = self._varied_columns(points.block)
                    rows = enumerate(solved.result())
                    yield (
                        number,
                        [row | {path: column[index] for path, column in varied.items()} for index, row in rows],
                    )
                    if progress:
                        progress(points.problem)
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _varied_columns(self, block: CaseBlock) -> dict[str, Sequence[Any]]:
        """Columns of the settings that vary in a block of cases; None for a setting that its cases do not read."""
        case = flat(block.case)
        shown = [path for path in self.cases.varied if path not in SHOWN]
        values = {path: in_row(path, case.get(path)) if reads_setting(path, case) else None for path in shown}
        own = settings_in(case[POLICY]) if case[POLICY] is not None and reads_setting(POLICY, case) else {}
        values |= {f"{POLICY}.{setting}": own.get(setting) for setting in self._of_policies}
        return {path: block.columns.get(path, [value] * len(block)) for path, value in values.items()}

    @functools.cached_property
    def _of_policies(self) -> list[str]:
        """Settings in the names of policies."""
        policies = [block.case.circuits.policy for block in self.cases.blocks]
        named = {name_of(policy) for policy in policies if policy is not None}
        return list(dict.fromkeys(setting for name in sorted(named) for setting in settings_in(name)))

    @functools.cached_property
    def groups(self) -> list[EvaluatedBlock]:
        """The blocks of cases, each with cases that differ only in numbers. Raise InputError for an impossible case."""
        shared = Shared()
        for block in self.cases.blocks:
            check_dtype(block.case.run.dtype)
        return [EvaluatedBlock(block, shared=shared) for block in self.cases.blocks]


def simulate(case: Case | Cases | Sequence[Case], *, workers: int = 2) -> Results:
    """Check cases and return their results, which are computed on demand: `simulate(cases(case, axes)).rows()`.

    Raise InputError for an impossible case.
    """
    every = cases(case)
    if any(is_open(block.case) for block in every.blocks):
        every = setups.settle(every)
    results = Results(every, workers)
    for points in results.groups:
        points.check()
    return results


def record_of_cases(all_cases: Cases) -> dict[str, Any]:
    """Return what row files record about their cases: `describe_cases`, digests of named files, versions and
    device."""
    case = all_cases.blocks[0].case
    files = {name: digest(path) for name, path in files_of(all_cases).items()}
    policy = resolve(case).policy_name
    return describe_cases(all_cases) | {"files": files, "policy": policy} | provenance(case.run.dtype)


def describe_cases(all_cases: Cases) -> dict[str, Any]:
    """Return the stated and resolved settings (a list where cases differ), and `sources`, the layer of each."""
    each = [resolve(block.case) for block in all_cases.blocks]
    resolved_settings = side_by_side([resolved.case for resolved in each], all_cases)
    why = {path: text for resolved in each for path, text in resolved.why.items()}
    record: dict[str, Any] = {
        "stated": dict(all_cases.stated) or differences(each[0].case),
        "resolved": resolved_settings,
    }
    record |= {"sources": why | dict(all_cases.sources), "varied": list(all_cases.varied)}
    record["not_known"] = not_known(all_cases) + at_quoted_ports(all_cases)
    files = dict.fromkeys(path for resolved in each if (path := resolved.case.network.prices) is not None)
    record |= {"own_prices": {str(path): own_prices(path) for path in files}} if files else {}
    warn_of_unread_gpus(resolved.case for resolved in each)
    record["variants"] = [{"name": variant.name} | variant.stated for variant in all_cases.variants]
    return record | {"random": dict(all_cases.random), "rules": dict(all_cases.rules)}


def warn_of_unread_gpus(each: Iterable[Case]) -> None:
    """Warn of GPUs in price files that neither the package's table nor a case has."""
    used: dict[Any, set[str]] = {}
    for case in each:
        if case.network.prices is not None:
            used.setdefault(case.network.prices, set()).add(gpu_of(case).name)
    for path, gpus in used.items():
        name_unread(repr(str(path)), "GPUs of no case", sorted(unlisted_gpus(path) - gpus))


def side_by_side(each: Sequence[Case], all_cases: Cases) -> dict[str, Any]:
    """Return the settings of cases by path, a list where they differ; `each`: a case of every block."""
    values: dict[str, list[Any]] = {}
    for case in each:
        for path, value in flat(case).items():
            if value not in values.setdefault(path, []):
                values[path].append(value)
    for block in all_cases.blocks:
        values |= {path: list(column) for path, column in block.columns.items()}
    return {path: some[0] if len(some) == 1 else some for path, some in values.items()}


def not_known(all_cases: Cases) -> list[str]:
    sentences: list[str] = []
    for block in all_cases.blocks:
        resolved = resolve(block.case)
        sentences += filter(None, [idle_spares(resolved, resolved.job)])
        sentences += unknown_parts(resolved, bill_of(resolved, resolved.job, resolved.case.network.nic_gbps))
    return list(dict.fromkeys(sentences))


def at_quoted_ports(all_cases: Cases) -> list[str]:
    """Return a list with one sentence: what networks cost at the quoted instead of the listed price of a switch port.

    It covers only the first job. The list is empty if no fabric has ports of that bandwidth at the listed price.
    """
    quote = port_quote()
    listed = Prices().price_of("switch_port", quote.gbps)
    gpus, costs_by_fabric = 0, {}
    for block in all_cases.blocks:
        resolved = resolve(block.case)
        prices, speeds = resolved.parts.prices, block.columns.get(BANDWIDTH, (block.case.network.nic_gbps,))
        gpus = gpus or resolved.job.gpus
        usual = quote.gbps in prices.gbps and prices.price_of("switch_port", quote.gbps) == listed
        if (
            not usual
            or quote.gbps not in speeds
            or resolved.job.gpus != gpus
            or resolved.fabric.name in costs_by_fabric
        ):
            continue
        millions = costs_by_fabric[resolved.fabric.name] = []
        for usd in (listed, *quote.usd):
            other = dataclasses.replace(resolved.parts, prices=prices.with_port(quote.gbps, usd))
            bill = bill_of(resolved, resolved.job, quote.gbps, other)
            millions.append("" if bill.network_usd is None else f"{bill.network_usd / MILLION:.3g}")
    each = [
        f"{name} {low} to {high} instead of {usual}"
        for name, (usual, low, high) in costs_by_fabric.items()
        if low != high
    ]
    if not each:
        return []
    low, high = quote.usd
    return [
        f"A switch port of {quote.gbps:g} Gbps is priced at {listed:,g} dollars (arXiv 2501.03905). At {low:g} to "
        f"{high:g}, quoted for {quote.product}, networks of {gpus:,} GPUs would cost, in M$: {', '.join(each)}."
    ]


def provenance(dtype: str) -> dict[str, Any]:
    """Return what every result records: schema of rows, versions, commit, device, dtype and kernels."""
    device = platforms.device()
    return {
        columns.KEY: columns.SCHEMA,
        "version": mfabric_jax.__version__,
        "commit": commit(),
        "jax": jax.__version__,
        "jaxlib": importlib.metadata.version("jaxlib"),
        "device": f"{device.platform}: {device.device_kind}",
        "dtype": dtype,
        "kernel": {str(n): str(usual(device.platform, n)) for n in SIZES},
    }
