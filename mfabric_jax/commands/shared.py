"""Shared parts of commands: options, starting JAX, checks of outputs before a long run, keeping and writing rows."""

import dataclasses
import importlib.util
import itertools
import shlex
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mfabric_jax.case import Case, Cases
from mfabric_jax.case.network import GRAPH
from mfabric_jax.checks import InputError, Misfit, one_of
from mfabric_jax.support.progress import bar as bar

DEVICES = ("cpu", "gpu", "tpu")
PROGRAM = "mfabric"
GPU_PLUGINS = ("jax_cuda12_plugin", "jax_cuda13_plugin")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnDevice:
    """The option of commands that compute."""

    device: str | None = None
    """Device for the computation: cpu, gpu or tpu (default: the one that JAX chooses)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowOptions:
    """The option of commands that write rows."""

    all_columns: bool = False
    """Write every column to files, details included; serve prints them, too."""

    def columns(self, *kinds: str) -> Any:
        """Return the columns of these kinds of rows; files leave out their details. None: files have every column."""
        from mfabric_jax.report.kinds import KINDS
        from mfabric_jax.support.columns import Columns

        return None if self.all_columns else Columns(*(KINDS[kind] for kind in kinds))


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowsAndPictures(RowOptions, OnDevice):
    """The options of commands that compute rows and draw them."""

    out: str | None = None
    """Write the rows to this .csv or .parquet file."""
    figures: str | None = None
    """Write pictures to this folder."""


def start_jax(dtype: str, device: str | None) -> None:
    """Set this process's device, precision, compilation cache and kept programs; put GPU loops into command buffers.

    Raise InputError for a device that this machine lacks.
    """
    import jax

    if any(map(importlib.util.find_spec, GPU_PLUGINS)):
        from mfabric_jax.support.platforms import record_loops

        record_loops()

    if dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    if device is not None:
        one_of("device", device, DEVICES)
        try:
            jax.config.update("jax_default_device", jax.devices(device)[0])
        except RuntimeError:
            platforms = sorted({d.platform for d in jax.devices()})
            raise InputError(f"device {device!r} is not on this machine; JAX finds {', '.join(platforms)}.") from None
    from mfabric_jax.support import programs

    programs.keep_in()
    if jax.config.values["jax_compilation_cache_dir"] is None:  # neither JAX nor the user has set a folder
        jax.config.update("jax_compilation_cache_dir", str(programs.cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)


def dtype_of(cases: Cases) -> str:
    """Return the arithmetic of cases: float64 if any case has it."""
    return max(block.case.run.dtype for block in cases.blocks)


MOST_CHECKED = 1000  # cases that are resolved before JAX is loaded


def check_cases(cases: Cases, *, misfits: bool = True) -> None:
    """Raise InputError for wrong cases before JAX is loaded. `misfits`: also for impossible cases."""
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax, without_search

    for block in itertools.islice(cases.blocks, MOST_CHECKED):
        try:
            resolve_without_jax(without_search(block.case))
        except Misfit:
            if misfits:
                raise


def settle(cases: Cases, device: str | None = None) -> Cases:
    """Return the cases with the set-ups that searches find stated, with a progress bar."""
    from mfabric_jax.evaluate.resolving.resolve import is_open

    many = sum(len(set(block.columns.get("network.nic_gbps", (0,)))) for block in cases.blocks if is_open(block.case))
    if not many:
        return cases
    start_jax(dtype_of(cases), device)
    from mfabric_jax.evaluate.setups.found import settle as settle_now

    with bar("set-ups", "search", many) as shown:
        before = iter([0])  # searches that are done before the first
        settled = settle_now(cases, lambda words: advance(shown, words, next(before, 1)))
        shown.update()
    return settled


def found_lines(cases: Cases, use: Sequence[str] = ()) -> list[str]:
    """Return a table of the set-ups that searches find for cases with open ones, and what they are.

    `use`: lines on how other commands use them; empty: `mfabric setup` writes them.
    """
    from mfabric_jax.report.tables import plain, wrap

    about, rows, *words = found_parts(cases)
    lines = [wrap(about), *use] if use else [wrap(f"{about} {_TO_USE}")]
    return ["", FOUND, *lines, plain(rows), *map(wrap, words), ""]


def found_parts(cases: Cases) -> list[Any]:
    """Return a sentence on the set-ups that searches find, the lines of their table, and a sentence for each set-up."""
    from mfabric_jax.case.paths import flat
    from mfabric_jax.evaluate.setups.found import findings
    from mfabric_jax.report.grid import setting_name

    inside = {path for block in cases.blocks for path in block.columns}  # one search serves them all
    also = [path for path in cases.varied if path not in (*_OF_FOUND, *inside)]
    rows, networks = [], {}
    for case, searched in findings(cases):
        over = {OF_TREE: searched.one_s, OF_MAKER: searched.recipe_s}
        where = {"model": case.model.name, "fabric": case.network.fabric, "Gbps": case.network.nic_gbps}
        where |= {setting_name(path): flat(case).get(path) for path in also}
        ratios = {name: None if seconds is None else seconds / searched.seconds for name, seconds in over.items()}
        rows.append(where | {"s": searched.seconds} | ratios)
        differ = "".join(f", {name} {where[name]}" for name in map(setting_name, also) if where[name] is not None)
        of_model = networks.setdefault((case.model.name, searched.best.words), [])
        of_model.append(f"{case.network.fabric} {case.network.nic_gbps:g} Gbps{differ}")
    words = [f"{model} on {'; '.join(where)}: {words}" for (model, words), where in networks.items()]
    return [_ON_FOUND, rows, *words, *_not_searched(cases)]


def _not_searched(cases: Cases) -> list[str]:
    """Return a sentence for every model whose set-up no search finds."""
    from mfabric_jax.evaluate.resolving.resolve import is_open, resolve_without_jax

    every = [resolve_without_jax(block.case) for block in cases.blocks if not is_open(block.case)]
    how = "; --set job.search=each searches for a better one"
    whose = {each.case.model.name: f"the maker's, {each.recipe}{how}" for each in every if each.recipe != "none"}
    return [
        f"{each}: not searched, the set-up is {whose.get(each, 'as stated')}."
        for each in dict.fromkeys(e.case.model.name for e in every)
    ]


FOUND = "Set-ups found"
_OF_FOUND = ("model.name", "network.fabric", "network.nic_gbps")  # settings that every line of set-ups has
OF_TREE, OF_MAKER = "fat-tree's, x", "maker's, x"
_ON_FOUND = (
    "s: seconds of a step with the set-up found. x: times as long with the best set-up of a non-blocking fat-tree, or "
    "with the maker's."
)
_TO_USE = "To use a set-up in other commands: mfabric setup ... --out case.toml."


def one_case(cases: Cases, command: str) -> Case:
    """Return the single case of a command that shows one. Raise InputError for several cases."""
    if len(cases) > 1:
        apart = ", ".join(cases.varied) or "variants"
        raise InputError(f"{command} shows one case, got {len(cases)} that differ in {apart}; give one value of each.")
    return cases.blocks[0].case


def refuse_flags(cases: Cases, paths: Container[str], why: str) -> None:
    """Raise InputError for a setting on the command line that the command decides itself."""
    for path, source in cases.sources.items():
        if path in paths and source == "flag":
            raise InputError(f"{why}; leave out {path}, got {cases.stated[path]!r}.")


OF_FABRIC = ("network.", "gpu.", "circuits.")  # settings that a user's graph replaces
ON_GRAPHS = (
    "network.paths",
    "network.goodput",
    "network.payload",
    "network.transport",
    "network.on-graph.relay",
    "network.on-graph.ranks",
    "gpu.gpus_per_server",
)


ALL = ("",)  # matches every path


def check_flags(
    cases: Cases,
    command: str,
    reads: tuple[str, ...],
    graph: str | None = None,
    unread: Mapping[str, str] | None = None,
) -> None:
    """Raise InputError for a setting on the command line that the command does not read. Files may state more.

    - `reads`: prefixes of the paths that are read; `unread`: exceptions among them, with a hint for each.
    - `graph`: the file of a graph that replaces the fabric.
    """
    unread = unread or {}
    for path in cases.stated:
        if cases.sources.get(path) != "flag":
            continue
        if graph is not None and path.startswith(OF_FABRIC) and path not in ON_GRAPHS:
            raise InputError(f"{path} is not used on a graph, whose file describes the whole fabric; leave it out.")
        if not path.startswith(reads) or path in unread:
            hint = unread.get(path, "")
            hint = "; how flows use equal paths is network.paths" if path == "circuits.routing" else hint
            raise InputError(f"{path} is not read by {command}{hint}; leave it out.")


def case_notes(cases: Cases, *, set_ups: bool = True) -> list[str]:
    """Return sentences on jobs that do not fit, transports beyond measurements and graphs; with `set_ups`, also on
    set-ups that a search found."""
    from mfabric_jax.evaluate.resolving.resolve import resolve_without_jax
    from mfabric_jax.evaluate.resolving.set_up import (
        dispatcher_words,
        reduction_words,
        search_words,
        switch_words,
        too_large_words,
        transport_words,
    )

    every = [resolve_without_jax(block.case) for block in cases.blocks]
    notes: list[str | None] = [*alike_notes(cases), switch_words(every)]
    for resolved in every:
        notes += [search_words(resolved)] if set_ups else []
        notes += [too_large_words(resolved), transport_words(resolved), dispatcher_words(resolved)]
        notes += [reduction_words(resolved)]
        if resolved.case.network.fabric == GRAPH:
            from mfabric_jax.fabric.graph_fabric import describe_graph

            notes += describe_graph(resolved.case.network, resolved.server.nvlink)
    return list(dict.fromkeys(note for note in notes if note is not None))


def alike_notes(cases: Cases) -> list[str]:
    """Return sentences on fabrics that an oversubscription ratio makes identical."""
    from mfabric_jax.fabric.fat_tree import same_tree_notice

    networks = [block.case.network for block in cases.blocks]
    ratios = dict.fromkeys(network.oversubscription for network in networks)
    every = (
        same_tree_notice({network.fabric for network in networks if network.oversubscription == ratio}, ratio)
        for ratio in ratios
    )
    return [words for words in every if words is not None]


def print_jobs(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the job of each model."""
    from mfabric_jax.report.grid import group_rows
    from mfabric_jax.report.row_remarks import job_words

    for (model,), own in group_rows(rows, "model").items():
        print(f"{model}: {', '.join(job_words(own))}")


def check_outputs(
    *tables: str | None, figures: str | None = None, picture: str | None = None, trace: str | None = None
) -> None:
    """Raise InputError if a result cannot be written: tables, a folder of pictures, one picture, a trace."""
    for table in filter(None, tables):
        from mfabric_jax.report.rows import check_destination

        check_destination(table)
    if figures is not None:
        from mfabric_jax.support.atomic import check_folder

        check_folder(figures)
    if trace is not None:
        from mfabric_jax.report.perfetto import check_trace

        check_trace(trace)
    if picture is not None:
        from mfabric_jax.report.style import check_picture

        check_picture(picture)


def advance(bar: Any, words: str, units: int = 1) -> None:
    """Advance a progress bar; `words`: the next step."""
    bar.set_postfix_str(words, refresh=False)
    bar.update(units)


def collect_rows(
    what: str,
    out: str | None,
    config: Mapping[str, Any],
    rows_of: Callable[..., Iterator[Any]],
    total: int | None = None,
    columns: Any = None,
    blocks: Iterable[int] | None = None,
    kinds: Sequence[Any] | None = None,
) -> list[dict[str, Any]]:
    """Collect the rows of a long run with a progress bar. If `out` names a file, each finished row is written at once.

    `rows_of` yields rows. Its arguments are `start`, the number of rows that exist already, and `progress`, a function
    that takes words. `blocks`: numbers of rows that are finished together, so that they count as done together;
    `kinds`: of work, of every row (`progress.bar`).
    """
    from mfabric_jax.report.rows import keeping

    with keeping(out, config, columns) as kept, bar(what, "row", total, kept.earlier, kinds) as shown:
        ends = None if blocks is None else set(itertools.accumulate(blocks))
        for done, row in enumerate(rows_of(progress=shown.set_postfix_str, start=kept.earlier), kept.earlier + 1):
            kept.add([row])
            if ends is None or done in ends:
                shown.update(done - shown.n)
    tell(out)
    return kept.rows


def write(
    rows: Sequence[Mapping[str, Any]], out: str | Path | None, config: Mapping[str, Any], columns: Any = None
) -> None:
    """If `out` names a file, write rows and their configuration to it, and print its name."""
    if out is not None:
        from mfabric_jax import report
        from mfabric_jax.support.columns import without_details

        tell(report.write_rows(rows if columns is None else without_details(rows, columns), out, config))


def write_tables(
    tables: Mapping[str, Callable[[], Any]],
    files: Mapping[str, str | None],
    config: Mapping[str, Any],
    columns: Mapping[str, Any],
) -> None:
    """Make and write every table that has a file. The configuration beside it names the table."""
    for name, table in tables.items():
        if files[name] is not None:
            write(table(), files[name], {**config, "table": name}, columns[name])


def changes_of(case: Case) -> str:
    """Return when the circuits of a case change, in the terms of `report.row_remarks.slow_switch_words`."""
    from mfabric_jax import fabric
    from mfabric_jax.case.policies import NO_SCHEDULE

    if fabric.get(case.network.fabric).phases:
        return "phases"
    return "traffic" if case.circuits.schedule == NO_SCHEDULE else "schedule"


def print_conclusions(lines: Iterable[str]) -> None:
    """Print what a command concludes, before its tables."""
    from mfabric_jax.report.tables import bold, wrap

    if text := "\n".join(wrap(line) for line in lines):
        print(f"{bold(text)}\n")


def print_lines(lines: Iterable[str]) -> None:
    """Print sentences, one per line; on a terminal in lines that fit it."""
    from mfabric_jax.report.tables import is_terminal, wrap

    for line in lines:
        print(wrap(line) if is_terminal() else line)


def tell(written: Any) -> None:
    """Print the name of a written file, if any, on standard error."""
    if written is not None:
        print(written, file=sys.stderr)


def command_line() -> str | None:
    """Return the command line of this process; None if no command line started it."""
    name, *words = sys.argv
    return shlex.join([PROGRAM, *words]) if Path(name).stem == PROGRAM else None
