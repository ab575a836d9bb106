"""Plain-text tables for the terminal: any rows, comparisons, validations, policies."""

import itertools
import math
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from textwrap import fill
from typing import Any

from mfabric_jax import units
from mfabric_jax.report import numerals
from mfabric_jax.report.grid import (
    CLUSTER_WORTH,
    REFERENCE,
    TOKEN_USD,
    WORTH,
    Grid,
    Rows,
    Series,
    arrange,
    group_rows,
    nearest_to_detail,
)
from mfabric_jax.report.numerals import count_phrase, number, percent
from mfabric_jax.report.ranking import OF_CLUSTER, OF_TRAINING, Ranking, are_equal, not_ranked, rankings
from mfabric_jax.report.row_remarks import HELD, band_words, job_words
from mfabric_jax.support.bands import HIGH, LOW, draw_columns

WIDTH = 80  # characters of a line; a narrower terminal has fewer, and a wider one more where a table asks for them
_NARROWEST = 40
_GAP = "  "
_MOST_PADDED = 2  # most spaces spent to align decimal points
_MFU = "MFU"
_MOST_LINES = 40  # of a table of fabrics
_SEVERAL = 3  # least number of models with a table of conclusions
_LABELS = 2 / 3  # largest fraction of the width for labels
_NEEDS = ("iteration_s", "compute_s", "tp_comm_s", "ep_comm_s", "dp_comm_s", "reconfig_s", "bubble_s")
_SHARES = {"compute": ["compute_s"], "EP": ["ep_comm_s"], "TP+DP": ["tp_comm_s", "dp_comm_s"]}
_SHARES |= {"reconf": ["reconfig_s"], "bubble": ["bubble_s"]}


@dataclass(frozen=True)
class TableColumn:
    """A column of a table: its key in the rows, its heading, whether its numbers are shares, and whether they tell rows
    apart. `error`: key of the errors of its numbers, which get the digits that these support."""

    key: str
    title: str | None = None
    percent: bool = False
    apart: bool = False
    error: str | None = None


def wrap(text: str) -> str:
    """Return a text in lines as wide as tables."""
    return fill(text, on_screen(WIDTH))


def is_terminal() -> bool:
    """Return whether somebody reads standard output on a terminal; a process may have no output."""
    return sys.stdout is not None and sys.stdout.isatty()


def bold(text: str) -> str:
    """Return a text that a terminal shows bold, unless the environment has NO_COLOR (no-color.org)."""
    coloured = is_terminal() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return f"\033[1m{text}\033[0m" if coloured else text


def plain(rows: Rows, columns: Sequence[str | TableColumn] | None = None, width: int = WIDTH) -> str:
    """Return rows as an aligned table: text at the left, numbers at the right, None as a dash.

    `columns` defaults to all keys of the rows. Columns that do not fit in `width`, or in a narrower terminal, continue
    below. Each part repeats the columns at the left that tell rows apart: all that are marked `apart`, then texts in up
    to two thirds of the width.
    """
    width = on_screen(width)
    chosen = columns if columns is not None else list(dict.fromkeys(key for row in rows for key in row))
    specs = [TableColumn(column) if isinstance(column, str) else column for column in chosen]
    printed = [_column_cells(rows, spec) for spec in specs]
    blocks = []
    for part in _parts(printed, width, _labels(rows, specs, printed, width)):
        heading, *body = [_GAP.join(cells).rstrip() for cells in zip(*part, strict=True)]
        blocks.append("\n".join([heading, "-" * len(_GAP.join(cells[0] for cells in part)), *body]))
    return "\n\n".join(blocks)


def on_screen(width: int) -> int:
    return min(width, max(_NARROWEST, shutil.get_terminal_size((WIDTH, 0)).columns))


def _labels(rows: Rows, specs: Sequence[TableColumn], printed: list[list[str]], width: int) -> int:
    used, best, apart = 0, 1, 0
    marked = len(list(itertools.takewhile(lambda spec: spec.apart, specs)))
    for count, spec in enumerate(specs, 1):
        values = [row.get(spec.key) for row in rows]
        used += len(printed[count - 1][0]) + len(_GAP)
        named = spec.apart or all(value is None or isinstance(value, str) for value in values)
        if not named or used > width * _LABELS:
            break
        distinct = len(set(zip(*printed[:count], strict=True)))
        best, apart = (count, distinct) if distinct > apart else (best, apart)
    return max(best, marked)


def cells_of(lines: Rows) -> list[list[str]]:
    """Return the cells of every column of a few lines, with its name first."""
    names = dict.fromkeys(name for line in lines for name in line)
    return [_column_cells(lines, TableColumn(name)) for name in names]


def comparison(rows: Rows, file: str | None = None) -> str:
    """Return the table of `mfabric compare`: a block per model. `file`: where all rows are.

    Three models or more have a table of conclusions first. A block begins with its ranking. Then each fabric has a
    line: the iteration time in seconds at each bandwidth; at the bandwidth nearest to 400 Gbps also the parts of the
    iteration, cost and power of the cluster and of the network, and performance per dollar relative to the fat-tree.
    Lines are means over seeds; of many lines the first are shown.
    """
    grid, ranked = arrange(rows, _NEEDS), rankings(rows, {})
    blocks = [_block(grid, model, ranked.get(str(model)), file) for model in grid.models]
    return "\n\n".join([*_over_models(ranked), *blocks, *not_ranked(rows)])


def _over_models(ranked: Mapping[str, Ranking]) -> list[str]:
    """Return the table of what is best for each model, if there are several."""
    shown = {model: ranking for model, ranking in ranked.items() if len(ranking.shown) > 1}
    if len(shown) < _SEVERAL:
        return []
    lines = []
    for model, ranking in shown.items():
        equal = are_equal(ranking.shown, ranking.column)
        alike = [design for design, same in zip(ranking.shown, equal, strict=True) if same] or ranking.shown[:1]
        behind = next((design for design in ranking.shown if design not in alike), None)
        line = {"model": model, "best": " = ".join(dict.fromkeys(design.kind for design in alike))}
        over = behind and percent(behind.over(ranking.shown[0], ranking.column).ratio - 1, signed=True)
        lines.append(line | {"outside the error": behind and f"{behind.kind} {over}"})
    by = " or ".join(dict.fromkeys(ranking.by for ranking in shown.values()))
    return [f"{bold(wrap(f'Best by {by} (= joins designs that are equal within the error)'))}\n\n{plain(lines)}"]


def _column_cells(rows: Rows, spec: TableColumn) -> list[str]:
    values = [numerals.plain_scalar(row.get(spec.key)) for row in rows]
    textual = any(isinstance(value, str) for value in values) or all(value is None for value in values)
    written = list(map(percent if spec.percent else number, values))
    if spec.error is not None:
        written = [numerals.with_error(value, row.get(spec.error)) for value, row in zip(values, rows, strict=True)]
    cells = [spec.key if spec.title is None else spec.title, *(written if textual else _on_their_points(written))]
    wide = max(map(len, cells))
    return [cell.ljust(wide) if textual else cell.rjust(wide) for cell in cells]


def _on_their_points(cells: list[str]) -> list[str]:
    """Pad numbers at the right to align their decimal points, if that costs few spaces."""
    behind = [len(cell) - len(cell.partition(".")[0]) for cell in cells]
    most = max(behind, default=0)
    padded = [
        cell if cell == numerals.MISSING else cell + " " * (most - own) for cell, own in zip(cells, behind, strict=True)
    ]
    return padded if max(map(len, padded), default=0) <= max(map(len, cells), default=0) + _MOST_PADDED else cells


def _parts(printed: list[list[str]], width: int, labels: int) -> list[list[list[str]]]:
    if not printed:
        return []
    first, others = printed[:labels], printed[labels:]
    parts = [[*first]]
    for column in others:
        used = sum(len(c[0]) + len(_GAP) for c in parts[-1]) + len(column[0])
        if used > width and len(parts[-1]) > labels:
            parts.append([*first])
        parts[-1].append(column)
    return parts


def _block(grid: Grid, model: str, ranking: Ranking | None, file: str | None) -> str:
    known = [gbps for gbps in grid.bandwidths if any(grid.row(model, series, gbps) for series in grid.series)]
    detail = nearest_to_detail(known)
    every = [series for series in grid.series if any(grid.row(model, series, gbps) for gbps in grid.bandwidths)]
    present = every[:_MOST_LINES]
    lines, names = _short_labels([_line(grid, model, series, detail) for series in present])
    columns, of_costs = _columns_of(lines, grid.bandwidths)
    costs = f"\n\n{plain(lines, of_costs)}" if of_costs else ""
    filled = [wrap(remark) for remark in ranking.remarks] if ranking else []
    conclusion = ranking.conclusion if ranking else "Not ranked." * (len(grid.models) > 1)
    first = [bold(wrap(f"{model}. {conclusion}" if model else conclusion)), ""] if conclusion else []
    below = (*OF_TRAINING, *(OF_CLUSTER if costs else ()))  # in tables of their own
    named = [name for name in ranking.lines[0] if name not in below] if ranking else []
    best = [*first, *([plain(ranking.lines, named), *filled, ""] if ranking else [])]
    relative = f", perf/$ relative to {REFERENCE}" if _compares(lines) else ""
    what = f"Iteration time [s] by NIC bandwidth; at {number(detail)} Gbps: shares, kW, M${relative}"
    what += f"; means over {grid.seeds} seeds" if grid.seeds > 1 else ""
    own = [row for (name, _, _), row in grid.cells.items() if name == model]
    draws = max(len(draw_columns([name for name, value in row.items() if value is not None])) for row in own)
    band_note = [wrap(f"band: {band_words(own, draws)}")] if any(line["band"] for line in lines) else []
    table = [*names, wrap(what), plain(lines, columns), *band_note]
    sources = dict.fromkeys(row["compute_source"] for row in own if row.get("compute_source") is not None)
    facts = [*job_words(own), *([f"while GPUs compute: {' and '.join(sources)}"] if sources else [])]
    simulated = wrap(f"Simulated: {', '.join(filter(None, [str(model), *facts]))}.")
    below = costs + _training(grid, model, present, detail) + _rest(len(every) - len(present), file)
    return "\n".join([*best, *table]) + below + f"\n\n{simulated}" * bool(model or facts)


def _short_labels(lines: Rows) -> tuple[Rows, list[str]]:
    """Number lines whose labels are too wide to repeat, and return a table of the labels; else no table."""
    if max(len(line["fabric"]) for line in lines) <= on_screen(WIDTH) * _LABELS:
        return lines, []
    numbered = [{**line, "line": count} for count, line in enumerate(lines, 1)]
    return numbered, [plain(numbered, [TableColumn("line", apart=True), "fabric"]), ""]


def _columns_of(lines: Rows, bandwidths: Sequence[float]) -> tuple[list[TableColumn], list[TableColumn]]:
    """Return the columns of times and shares, and those of the whole cluster's costs, if these are known."""
    name = TableColumn("line" if "line" in lines[0] else "fabric", apart=True)
    times = [TableColumn(f"time {gbps:g}", f"{number(gbps)}G") for gbps in bandwidths]
    band, mfu = (
        [TableColumn("band")] * any(line["band"] for line in lines),
        [_MFU] * any(line[_MFU] for line in lines),
    )
    shares = [TableColumn(share, percent=True) for share in (*_SHARES, *mfu)]
    columns, compared = [name, *times, *band, *shares], _compares(lines)
    if not any(line["cluster M$"] is not None for line in lines):
        return [*columns, TableColumn("M$"), *[TableColumn("net", "perf/$")] * compared], []
    whole = [TableColumn("kW"), TableColumn("$/Mtok"), TableColumn("cluster M$"), *[TableColumn("perf/$")] * compared]
    network = [TableColumn("network kW", "net kW"), TableColumn("M$", "net M$")]
    return columns, [name, *whole, *network, *[TableColumn("net", "perf/net $")] * compared]


def _compares(lines: Rows) -> bool:
    return any(line["perf/$"] is not None or line["net"] is not None for line in lines)


def _rest(more: int, file: str | None) -> str:
    """A sentence on lines that are not shown."""
    where = "--out FILE writes them" if file is None else f"mfabric query {file} reads them"
    return "\n\n" + wrap(f"{count_phrase(more, 'more line')} not shown; {where}.") if more else ""


def _training(grid: Grid, model: str, present: Sequence[Series], detail: float) -> str:
    """A line per fabric on the whole training run, if its tokens are known."""
    lines, tokens = [], 0.0
    for series in present:
        of = partial(grid.value, model, series, detail)
        if (days := of("training_days")) is None:
            continue
        tokens = of("training_tokens") or 0.0
        ends = [of(f"training_{end}_days") or 0.0 for end in ("low", "high")]
        band = None if not all(ends) or ends[0] == ends[1] else " to ".join(number(end) for end in ends)
        usd, kwh = of("training_usd"), of("training_kwh")
        line = {"days": days, "band": band, "M$": usd and numerals.millions(usd), "MWh": kwh and kwh / 1000}
        lines.append({"fabric": series.label(series.fabric)} | line)
    shown = ["fabric", *(TableColumn(name) for name in ("days", "band", "M$", "MWh"))]
    return f"\n\na training of {number(tokens)} tokens at {number(detail)} Gbps\n{plain(lines, shown)}" if lines else ""


def _line(grid: Grid, model: str, series: Series, detail: float) -> Mapping[str, Any]:
    times = {f"time {gbps:g}": grid.value(model, series, gbps, "iteration_s") for gbps in grid.bandwidths}
    total = grid.value(model, series, detail, "iteration_s")
    line: dict[str, Any] = {"fabric": series.label(series.fabric)} | times
    for name, keys in _SHARES.items():
        seconds = [value for key in keys if (value := grid.value(model, series, detail, key)) is not None]
        line[name] = sum(seconds) / total if total and len(seconds) == len(keys) else None
    line[_MFU] = grid.value(model, series, detail, "mfu")
    for name, key in {"M$": "network_cost_usd", "cluster M$": "cluster_cost_usd"}.items():
        cost = grid.value(model, series, detail, key)
        line[name] = None if cost is None else numerals.millions(cost)
    for name, key in {"kW": "cluster_kw", "network kW": "network_kw", "$/Mtok": TOKEN_USD}.items():
        line[name] = grid.value(model, series, detail, key)
    ends = [grid.value(model, series, detail, column) or 0.0 for column in (LOW, HIGH)]
    line["band"] = None if not all(ends) or ends[0] == ends[1] else " to ".join(number(end) for end in ends)
    reference = grid.reference(model, detail)
    for name, key in {"perf/$": CLUSTER_WORTH, "net": WORTH}.items():
        own = grid.value(model, series, detail, key)
        theirs = grid.value(model, reference, detail, key) if reference and reference.fabric == REFERENCE else None
        line[name] = None if own is None or not theirs else f"{number(own / theirs)}x"
    return line


# -- flow level against packet level

GROUPS = {
    "spraying": "spraying on a non-blocking tree",
    "one-path": "one path per flow on a non-blocking tree",
    "unknown-path": "one path per flow, not recorded: predicted by host ports alone",
    "leaf-spine": "oversubscribed leaf-spine",
    "incast": "incast on a non-blocking tree",
}
_RUNS = ["pattern", TableColumn("mean_pair_mib", "MiB"), "measured", "predicted", TableColumn("error", percent=True)]
_RUNS += ["corrected", TableColumn("corrected_error", "error", percent=True)]
_RUNS += [TableColumn("corrected_flow_error_median", "median", percent=True)]
_RUNS += [TableColumn("corrected_flow_error_p90", "p90", percent=True)]
_FLUIDS = {"plain": "", "corrected": "corrected_"}
_GROUPS = ["group", "transport", "fluid", "runs", TableColumn("error_mean", "mean", percent=True)]
_GROUPS += [TableColumn("error_p90", "p90", percent=True), TableColumn("worst_error", "worst", percent=True)]
_GROUPS += [TableColumn("worst_pattern", "worst run"), TableColumn("large_flows", "flows")]
_GROUPS += [
    TableColumn("flow_error_median", "flow median", percent=True),
    TableColumn("flow_error_p90", "flow p90", percent=True),
]
_LEGEND = """MiB: mean payload of a pair. measured, predicted, corrected: collective time in ms; predicted
is plain fluid, corrected adds the transport's overhead. error: time over measured time - 1.
median, p90: size of the errors of corrected flows of 1 MiB or more. mean, p90 of groups: over runs."""


def agreement(rows: Rows, groups: Rows) -> str:
    """Return the table of `mfabric validate packet`: runs by group, then groups, each plain and corrected."""
    blocks = []
    for (group, topology, transport), members in group_rows(rows, "group", "topology", "transport").items():
        shape, by = topology.partition(" (")[0], members[0]["corrected_by"]
        heading = f"{GROUPS.get(group, group)}, {transport}\n({shape}, {_routing(members[0])}; corrected by: {by})"
        blocks.append(f"{heading}\n{plain([_run(row) for row in members], _RUNS)}")
    lines = [_of_fluid(line, fluid) for line in groups for fluid in _FLUIDS]
    apart = [abs(row["predicted_s"] / row["stated_fluid_s"] - 1) for row in rows if row.get("stated_fluid_s")]
    stated = f"\n{len(apart)} of {len(rows)} files state their own fluid time; the largest difference is "
    stated += f"{percent(max(apart, default=0.0))}."
    return "\n\n".join([*blocks, plain(lines, _GROUPS), _LEGEND + stated * bool(apart)])


_STEPS = (
    *(TableColumn("row"), TableColumn("gpus", "GPUs"), TableColumn("predicted_s", "predicted [s]")),
    *(TableColumn("low_s", "from"), TableColumn("high_s", "to")),
    *(TableColumn("measured_s", "measured [s]"), TableColumn("error", "error", percent=True)),
    *(TableColumn("memory_gb", "GB"), TableColumn("fits", "fits")),
)
_RATIOS = (
    *("ratio", "row", "over", TableColumn("predicted"), TableColumn("measured")),
    TableColumn("error", percent=True),
)
_ERRORS = (
    *(TableColumn("gpu", "GPU"), TableColumn("rows", "rows"), TableColumn("mean_error", "mean |error|", percent=True)),
    TableColumn("worst_error", "worst", percent=True),
    *(TableColumn("inside", "inside the band", percent=True), TableColumn("band", "width of the band", percent=True)),
)
_BY_SOURCE = (
    *(TableColumn("group", "source"), TableColumn("rows"), TableColumn("mean_error", "mean |error|", percent=True)),
    *(TableColumn("bias", percent=True), TableColumn("inside", "in band", percent=True)),
    TableColumn("left_out", "left out", percent=True),
    *(TableColumn("ratios"), TableColumn("ratio_error", "mean |error|", percent=True)),
)
_OF_STEPS = (
    f"Seconds of a step, with its band: {HELD}.\n"
    "Error: predicted over measured - 1; nothing is fitted to a step. Assumed: a network without\n"
    "oversubscription, evenly routed tokens. Sources and notes are columns of --out."
)


def trainings(rows: Rows, summary: Rows, ratios: Rows = (), sources: Rows = ()) -> str:
    """Return the tables of `mfabric validate training`: rows, ratios within a source, errors by GPU and by source."""
    every = (rows, _STEPS), (ratios, _RATIOS), (summary, _ERRORS), (sources, _BY_SOURCE)
    tables = [plain(part, columns) for part, columns in every if part]
    return "\n\n".join([*tables, *_source_words(sources), _OF_STEPS])


def _source_words(sources: Rows) -> Iterator[str]:
    """Sentences on bands and on a calibration that are made without a source."""
    if not sources:
        return
    *_, whole, alike = sources
    held = (
        f"Left out: inside bands made without the step's source. They hold {percent(whole['left_out'])} of the "
        f"measured steps ({percent(alike['left_out'])} with sources weighted alike)."
    )
    fitted = (
        f"Mean |error|: as predicted {percent(whole['mean_error'])}; calibrated (compute.calibration measured), each "
        f"source left out: mean {percent(whole['calibrated'])}."
    )
    yield from (wrap(sentence) for sentence in (held, fitted))


_LAYERS = (
    TableColumn("row"),
    *(TableColumn("predicted_ms", "predicted [ms]"), TableColumn("measured_ms", "measured [ms]")),
    *(TableColumn("forward_error", "forward", percent=True), TableColumn("backward_error", "backward", percent=True)),
    TableColumn("error", "error", percent=True),
)


def layers(rows: Rows) -> str:
    """Return the table of `mfabric validate layers`, with the mean magnitude of its errors."""
    shown = [
        {**row} | {f"{name}_ms": units.to_ms(row[f"{name}_s"]) for name in ("predicted", "measured")} for row in rows
    ]
    mean = sum(abs(row["error"]) for row in rows) / len(rows)
    words = (
        f"Error: predicted over measured - 1; its mean magnitude is {percent(mean)}. Nothing is fitted to these rows."
    )
    return f"{plain(shown, _LAYERS)}\n\n{words}"


_CALLS = (
    *(TableColumn("row"), TableColumn("predicted_us", "predicted [us]")),
    *(TableColumn("measured_us", "measured [us]"), TableColumn("error", "error", percent=True)),
    TableColumn("constant", "constant"),
)
_SERVED = (
    *(TableColumn("row"), TableColumn("predicted_ms", "predicted [ms]"), TableColumn("low_ms", "from")),
    *(TableColumn("high_ms", "to"), TableColumn("measured_ms", "measured [ms]"), TableColumn("inside")),
)
_CALL_ERRORS = (
    *(TableColumn("kernels"), TableColumn("rows"), TableColumn("mean_error", "mean |error|", percent=True)),
    TableColumn("worst_error", "worst", percent=True),
)
_BANDS = "what", "rows", "inside", TableColumn("widest", "widest band, to/from")
_OF_SERVING = (
    "Dispatch and combine: error is predicted over measured - 1; errors are over rows of 32 tokens or more,\n"
    "except rows that gave a constant. Steps: the band begins at fast kernels with both micro-batches overlapped, and\n"
    "ends at the largest excess over predictions in these rows, so all rows lie inside; no prediction is fitted.\n"
    "Sources and notes are columns of --out."
)


def servings(rows: Rows, summary: Rows, bands: Rows) -> str:
    """Return the tables of `mfabric validate serving`: kernels alone, whole steps, errors by kernels, and bands."""
    calls, steps = [row for row in rows if row["low_s"] is None], [row for row in rows if row["low_s"] is not None]
    shown = [
        {**row} | {f"{name}_us": units.to_us(row[f"{name}_s"]) for name in ("predicted", "measured")} for row in calls
    ]
    ends = ("predicted", "low", "high", "measured")
    timed = [{**row} | {f"{name}_ms": units.to_ms(row[f"{name}_s"]) for name in ends} for row in steps]
    every = (shown, _CALLS), (timed, _SERVED), (summary, _CALL_ERRORS), (bands, _BANDS)
    return "\n\n".join([*(plain(part, columns) for part, columns in every if part), _OF_SERVING])


_SERVED_ERRORS = (
    *(TableColumn("group"), TableColumn("rows"), TableColumn("unsaid", "not predicted")),
    TableColumn("median_error", "median |error|", percent=True),
    *(TableColumn("mean_error", "mean |error|", percent=True), TableColumn("bias", percent=True)),
)
_PEER_ERRORS = (
    *(TableColumn("group"), TableColumn("peer_rows", "rows")),
    *(TableColumn("beside_median", "median |error|", percent=True), TableColumn("beside_mean", "mean", percent=True)),
    *(TableColumn("peer_median", "the peer's median", percent=True), TableColumn("peer_mean", "mean", percent=True)),
)


def served_errors(rows: Rows, errors: Rows) -> str:
    """Return the tables of `mfabric validate serving --rows`: errors by group, beside a peer's, and the reasons of rows
    that cannot be predicted."""
    tables = [
        f"by {what}\n{plain(own, _SERVED_ERRORS)}"
        for (what,), own in group_rows(errors, "by").items()
        if any(line["median_error"] is not None for line in own)
    ]
    peers = [line for line in errors if line["by"] == "all" and line["peer_rows"]]
    tables += [f"rows with a peer's prediction\n{plain(peers, _PEER_ERRORS)}"] if peers else []
    reasons = [f"{len(own)} rows: {reason}" for (reason,), own in group_rows(rows, "reason").items() if reason]
    words = ["Error: predicted over measured time per output token - 1. No prediction is fitted to such rows."]
    words += [_band_words(line) for line in errors if line["by"] == "all" and line["inside"] is not None]
    words += _unexplained_sentences(rows)
    return "\n\n".join([*tables, *reasons, "\n".join(words)])


_FEWEST_FOR_A_BAND = 10  # measured rows from which bands are made anew
_MOST_UNEXPLAINED = 3  # rows in sentences
_FITTED_HOSTS = (
    "With such a serving.host_s the prediction is your measurement (--by predicted), for --clients with that engine; "
    "the bands of pools already contain host time, so add none there without --by predicted."
)
_NO_HOSTS = "No measured time lies above its band, and bands contain host time: plan without serving.host_s."


def _band_words(line: Mapping[str, Any]) -> str:
    held = f"{percent(line['inside'])} of the measured rows lie within their bands (low_ms to high_ms)"
    if line["left_out"] is None or line["rows"] - line["unsaid"] < _FEWEST_FOR_A_BAND:
        return f"{held}."
    return (
        f"{held}. Bands made of these rows hold {percent(line['left_out'])} of the rows whose model, GPU and engine "
        "they were made without."
    )


def _unexplained_sentences(rows: Rows) -> list[str]:
    """Sentences on the rows that took longest, if longer than their bands: what is missing, and how to plan with it.
    If no row did, that nothing is to be added."""
    known = sorted((row for row in rows if row["error"] is not None), key=lambda row: row["error"])
    slow = [row for row in known if row["predicted_tpot_ms"] / (1 + row["error"]) > row["high_ms"]]
    sentences = []
    for row in slow[:_MOST_UNEXPLAINED]:
        named = (
            f"{row['model_path']} on {row['tp_size']} {row['system']}, {row['backend']}, {row['batch_size']} requests"
        )
        measured_ms, host_s = row["predicted_tpot_ms"] / (1 + row["error"]), row["unexplained_s"]
        sentences.append(
            f"{named}: {number(measured_ms)} ms is {number(1 / (1 + row['error']))} times the prediction; "
            f"{number(units.to_ms(host_s))} ms a step are unexplained: hosts, schedulers and waits for memory are left "
            f"out. To plan with it: mfabric serve --clients {row['batch_size']} --set serving.host_s={host_s:.3g} "
            "--tpot-ms LIMIT --by predicted."
        )
    more = len(slow) - len(sentences)
    sentences += [f"{more} more rows took longer than their bands (unexplained_s)."] if more > 0 else []
    if not slow:
        return [_NO_HOSTS] if known else []
    return [*sentences, _FITTED_HOSTS]


def _run(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**row} | {name: units.to_ms(row[f"{name}_s"]) for name in ("measured", "predicted", "corrected")}


def _routing(row: Mapping[str, Any]) -> str:
    return "paths known" if row["paths_known"] else "sprayed" if "spraying" in row["routing"] else "paths unknown"


def _of_fluid(line: Mapping[str, Any], fluid: str) -> Mapping[str, Any]:
    before = _FLUIDS[fluid]
    shared = {name: line[name] for name in ("group", "transport", "runs", "large_flows")}
    names = [column.key for column in _GROUPS if isinstance(column, TableColumn) and column.key not in shared]
    return shared | {"fluid": fluid} | {name: line[f"{before}{name}"] for name in names}


# -- policies


def scoreboard_table(rows: Rows) -> str:
    """Return a table with a line per policy, best first.

    Columns: mean, median and 90th percentile of the time over the degree bound (averaged over workloads), the mean of
    each workload, the time over proved optima, and decisions per second in a batch.
    """
    blocks = []
    for (servers, routing, sigma), here in group_rows(rows, "servers", "routing", "sigma").items():
        ranked = sorted(group_rows(here, "policy").items(), key=lambda of: _mean(_values(of[1], "mean")))
        lines = [_score(policy, own) for (policy,), own in ranked]
        blocks.append(
            f"{servers} servers, routing {routing}, forecast error {number(sigma)}\n{plain(lines, width=160)}"
        )
    return "\n\n".join([*blocks, "time over the degree bound; optimum: time over proved optima (number of instances)"])


def _score(policy: str, rows: Rows) -> dict[str, str]:
    line = {"policy": policy}
    line |= {key: _ratio(_mean(_values(rows, key))) for key in ("mean", "median", "p90")}
    line |= {row["workload"]: _ratio(row["mean"]) for row in rows}
    if proved := sum(row["proved"] for row in rows):
        over = sum(row["of_optimum"] * row["proved"] for row in rows if row["proved"]) / proved
        line["optimum"] = f"{_ratio(over)} ({proved})"
    speed = math.exp(_mean([math.log(row["decisions_per_s"]) for row in rows]))
    return line | {"decisions/s": number(speed)}


def _ratio(over: float) -> str:
    """Return the ratio of two simulated times, which has no error of the model."""
    return number(over, digits=4)


def _values(rows: Rows, key: str) -> list[float]:
    return [row[key] for row in rows if row[key] is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def forecast_table(rows: Rows) -> str:
    """Return a table of mean times over the degree bound with 95 % intervals: lines are policies, columns forecasts.

    * marks the best of a column. + or - marks a policy whose gain over greedy has an interval above or below 0.
    """
    blocks = []
    for (workload, servers, routing), here in group_rows(rows, "workload", "servers", "routing").items():
        best = {name: min(row["over_bound"] for row in own) for (name,), own in group_rows(here, "forecast").items()}
        lines = [
            {"policy": policy} | {row["forecast"]: _interval(row, best[row["forecast"]]) for row in own}
            for (policy,), own in group_rows(here, "policy").items()
        ]
        blocks.append(f"{workload}, {servers} servers, routing {routing}\n{plain(lines, width=140)}")
    legend = "mean time over the degree bound +- half of its 95 % interval; * best; + better, - worse than greedy"
    return "\n\n".join([*blocks, f"{legend} (by the interval of the difference)"])


def _interval(row: Mapping[str, Any], best: float) -> str:
    mark = "+" if row["gain_low"] > 0 else "-" if row["gain_high"] < 0 else " "
    least = "*" if row["over_bound"] == best else " "
    return f"{_ratio(row['over_bound'])} +-{number((row['high'] - row['low']) / 2)}{least}{mark}"
