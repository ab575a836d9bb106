"""`mfabric serve`: inference on fabrics."""

import dataclasses
import functools
import pathlib
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.case.layers import SettingsLayer
from mfabric_jax.checks import InputError
from mfabric_jax.commands import shared
from mfabric_jax.support.lazily import LazyModule

sentences = LazyModule("mfabric_jax.commands.serve_sentences")

READS = (
    *("model.", "gpu.", "network.", "serving.", "traffic.source", "traffic.trace.", "traffic.generated.skew"),
    *("circuits.policy", "circuits.routing", "circuits.ocs", "run.seed", "run.dtype"),
    "compute.kernels.table",
)
UNREAD = {"gpu.nvswitches": ""}
BY_REPLICAS = (
    *("model.", "gpu.", "run.dtype", "serving.replica.", "serving.tp", "serving.context", "serving.prompt"),
    *("serving.answer", "serving.formats.weights", "serving.reserved_gigabytes", "compute.kernels.table"),
    *("serving.host_s", "serving.tpot_ms", "serving.by"),
)
UNREAD_BY_REPLICAS = {
    "gpu.nvswitches": "",
    "serving.load.ttft_ms": "; --clients gives the first pass of a lone prompt, without the queue before it",
    "serving.ep": "; the GPUs by which a replica's experts are split are serving.replica.ep",
}
FABRICS = ["fat-tree", "torus", "full-mesh", "mfabric", "nvl72"]
BELOW = [SettingsLayer("serve", {"model.name": "deepseek-v3", "network.fabric": FABRICS})]
SPLIT_SIZES = "serving.split.attention_gpus", "serving.split.expert_gpus"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """Simulate inference: time per output token, tokens per second, dollars per million answer tokens. --tpot-ms finds
    the best batch within that time (--by high: at the slow end) and, without --ep, the best size. --rate or --arrivals
    FILE simulate requests; --tpot-ms then finds the fewest groups in time. --clients N: one replica on --tp GPUs,
    which N clients ask (--isl and --osl tokens in and out). More: --help serving.
    """


def run(cases: Cases, options: Options) -> None:
    if any(block.case.serving.replica.clients is not None for block in cases.blocks):
        return _serve_clients(cases, options)
    shared.check_flags(cases, "serve", READS, unread=UNREAD)
    sentences.check_use(cases)
    shared.check_outputs(options.out, figures=options.figures)
    shared.start_jax("float64", options.device)
    from mfabric_jax import report
    from mfabric_jax.apps.serving import serve
    from mfabric_jax.apps.serving.rows import effective
    from mfabric_jax.apps.serving.search import search, sizes_of
    from mfabric_jax.apps.serving.serving_steps import measured_facts
    from mfabric_jax.report.tables import wrap
    from mfabric_jax.support.measured_errors import MEASURED

    searching = _searches(cases)
    kinds = [case.network.fabric for case in cases for _ in (sizes_of(case) if searching else (1,))]
    rows_of = functools.partial(search if searching else serve, cases)
    columns = options.columns("serve")
    config = effective(cases) | {MEASURED: measured_facts()}
    every = shared.collect_rows("serve", options.out, config, rows_of, len(kinds), columns, kinds=kinds)
    groups = _by_fabric(every) if searching else []
    rows = [sentences.shown_row(own) for own in groups] if searching else every
    shared.print_conclusions(sentences.conclusions(every))
    print(wrap(sentences.common(every)))
    loaded = any(row.get("load_requests") for row in rows)
    if options.all_columns or not loaded:
        print(report.plain([_table_row(row) for row in rows], _columns(rows, options.all_columns)))
    if loaded:
        under = report.plain([_under_load(row) for row in rows], _load_columns(rows, options.all_columns))
        print(wrap(f"Under the load{sentences.end_of_band(rows)}{'' if options.all_columns else P99}:") + f"\n{under}")
    if any("load_requests" in row for row in rows):
        shared.print_lines(sentences.load_sentences(rows, cases, options.all_columns))
        _tell_headroom(list(sentences.headroom_sentences(rows, cases)), options.out)
    shared.print_lines(sentences.search_sentences(groups, every, options.all_columns) if searching else ())
    if searching and not options.all_columns:
        unbroken = "\n".join(sentences.commands_to_repeat(every, cases))  # a terminal's lines can be pasted
        print(unbroken)
    shared.print_lines(sentences.locality_sentences(rows, cases))
    shared.print_lines([*sentences.row_sentences(rows, every), *sentences.context_sentences(cases)])
    shared.print_lines(sentences.host_sentences(cases))
    shared.print_lines([*sentences.network_sentences(every), *sentences.domain_sentences(cases)])
    shared.print_lines([*sentences.price_sentences(rows, cases), *shared.alike_notes(cases)])
    if options.figures is not None:
        from mfabric_jax.report.figures import draw_serving

        shared.tell(draw_serving(every, pathlib.Path(options.figures) / "serving.png"))


def _tell_headroom(lines: list[str], out: str | None) -> None:
    """Print the headroom of the best pools, and keep it beside the rows, for their page."""
    from mfabric_jax.report.rows import add_facts
    from mfabric_jax.report.served import HEADROOM

    shared.print_lines(lines)
    if lines and out is not None:
        add_facts(out, {HEADROOM: lines})


def _serve_clients(cases: Cases, options: Options) -> None:
    shared.check_flags(cases, "serve --clients", BY_REPLICAS, unread=UNREAD_BY_REPLICAS)
    sentences.check_use(cases)
    if options.figures is not None:
        raise InputError(f"figures do not show serve --clients; leave out --figures {options.figures}.")
    shared.check_outputs(options.out)
    from mfabric_jax import report
    from mfabric_jax.apps.serving.clients import client_cases, client_rows, unknown_prices
    from mfabric_jax.apps.serving.rows import effective

    columns, count = options.columns("serve --clients"), len(client_cases(cases))
    rows_of = functools.partial(client_rows, cases)
    rows = shared.collect_rows("serve", options.out, effective(cases), rows_of, count, columns)
    titles = {"tpot": "tpot [ms]", "band": "band [ms]"}
    titles |= {"prompts": "of which prompts [ms]"} if options.all_columns else {}
    titles |= {"ttft": "first pass [ms]", "tokens_per_s_per_gpu": "tokens/s/GPU", "usd_per_million_tokens": "$/M"}
    titles |= {"memory_gb": "memory [GB]"} if options.all_columns else {}
    titles |= {"in_time": "in time"} if any(row["tpot_limit_s"] is not None for row in rows) else {"fits": "fits"}
    apart = sentences.apart_of_replicas(rows)
    named = [report.TableColumn(name, name.removeprefix("serving.replica."), apart=True) for name in apart]
    shown = [report.TableColumn(name, title) for name, title in titles.items()]
    shared.print_conclusions(sentences.client_conclusions(rows))
    print(sentences.common_of_replicas(rows[0], apart))
    print(report.plain([_client_line(row) for row in rows], [*named, *shown]))
    shared.print_lines([*sentences.replica_sentences(cases), *unknown_prices(cases)])


def _client_line(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table: times in milliseconds, the band in one cell."""
    from mfabric_jax import units

    times = {name: units.to_ms(row[f"{name}_s"]) for name in ("tpot", "prompts", "ttft")}
    low, high = (units.to_ms(row[f"tpot_{end}_s"]) for end in ("low", "high"))
    words = {True: "yes", False: "no", None: ""}
    judged = {"fits": words[row["fits"]], "in_time": "too large" if row["fits"] is False else words[row["in_time"]]}
    return row | times | {"band": f"{low:.3g} to {high:.3g}"} | judged


def _searches(cases: Cases) -> bool:
    """Whether a time limit is stated but no size of a group."""
    stated = cases.stated
    return "serving.tpot_ms" in stated and not {"serving.ep", *SPLIT_SIZES} & set(stated)


def _by_fabric(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group rows that differ only in sizes. A group keeps its rows that are in time; if no row is, it keeps all."""
    from mfabric_jax.apps.serving.search import rows_within_limits
    from mfabric_jax.report.grid import group_rows

    both = *sentences.APART, *sentences.LIMITS, *sentences.settings_of(rows), "by"
    common = [name for name in both if name != "kernels"]
    return [rows_within_limits(own) or own for own in group_rows(rows, "fabric", *common).values()]


# --------------------------------------------------------------------------------------------------------------- tables
def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table: times in milliseconds, the band in one cell."""
    from mfabric_jax import units

    each = {name: units.to_ms(row[f"{name}_s"]) for name in ("tpot", "ttft")} | _limits_ms(row)
    low, high = (units.to_ms(row[f"tpot_{end}_s"]) for end in ("low", "high"))
    calls = {name: units.to_us(row[f"{name}_s"]) for name in ("dispatch", "combine", "attention", "experts")}
    return row | each | calls | {"band": f"{low:.3g} to {high:.3g}", "overlap": "yes" if row["overlap"] else "no"}


def _uneven(row: dict[str, Any]) -> bool:
    """Whether GPUs may have unequal loads: from the popularity of experts, or from unequal numbers of copies."""
    return row["expert_load"] != "balanced" or round(max(row[name] for name in UNEVEN), 6) > 1


UNEVEN = {"rank_load_over_mean": "busiest/mean", "rank_load_over_mean_in_order": "in order"}
SPLIT = {"attention_gpus": "attention GPUs", "expert_gpus": "expert GPUs", "micro_batches": "micro-batches"}
LOAD = {  # titles of columns under a load, times in milliseconds
    **{"load_requests_per_s": "arrive [1/s]", "requests_per_s": "done [1/s]"},
    **{"goodput_per_s": "done in time [1/s]", "in_slo": "part in time"},
    **{f"load_ttft_{name}_s": f"ttft {name} [ms]" for name in ("p50", "p90", "p99")},
    **{f"load_tpot_{name}_s": f"tpot {name} [ms]" for name in ("p50", "p99")},
    "load_e2e_p50_s": "e2e p50 [ms]",
    **{"prefill_load": "prefill load", "decode_load": "decode load"},
    **{"prefill_queue": "queue for prefill", "decode_queue": "queue for decode", "decode_requests": "requests/GPU"},
    **{"prefill_filled": "passes filled", "load_kv_p99_s": "KV p99 [ms]", "kv_slowdown_p99": "KV slower"},
    **{"load_prefill_gpus": "prefill GPUs", "load_decode_gpus": "decode GPUs"},
    "load_usd_per_million_tokens": "$/M at this load",
}


DECIDE = {  # the only table under a load without --all-columns
    **{"batch": "batch", "load_decode_gpus": "decode", "load_prefill_gpus": "prefill"},
    **{"load_tpot_p99_s": "tpot", "load_ttft_p99_s": "ttft", "in_slo": "in time"},
    "load_usd_per_million_tokens": "$/M",
}
P99 = "; decode, prefill: GPUs of both pools; tpot, ttft: p99 [ms]"


def _under_load(row: dict[str, Any]) -> dict[str, Any]:
    from mfabric_jax import units

    times = [name for name in LOAD if name.endswith("_s") and "per_s" not in name]
    return row | {name: None if row[name] is None else units.to_ms(row[name]) for name in times} | _limits_ms(row)


def _limits_ms(row: dict[str, Any]) -> dict[str, float | None]:
    from mfabric_jax import units

    return {name: None if row[name] is None else units.to_ms(row[name]) for name in sentences.LIMITS}


def _load_columns(rows: list[dict[str, Any]], details: bool) -> list[Any]:
    from mfabric_jax import report

    titles = LOAD if details else DECIDE
    known = {name: title for name, title in titles.items() if any(row[name] is not None for row in rows)}
    columns = [report.TableColumn(name, title, percent=name == "in_slo") for name, title in known.items()]
    return [*_names(rows), *columns]


def _names(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the columns that tell rows apart, under short titles."""
    from mfabric_jax import report

    names = "fabric", *sentences.apart_of(rows), "ep"
    titles = {name: sentences.LIMITS.get(name, name.removeprefix("serving.")) for name in names}
    return [report.TableColumn(name, title, apart=True) for name, title in titles.items()]


def _columns(rows: list[dict[str, Any]], details: bool) -> list[Any]:
    from mfabric_jax import report

    arriving = any(row.get("load_requests") for row in rows)
    usd = {"usd_per_million_tokens": "$/M, pools full" if arriving else "$/M"}
    titles = {"tpot": "tpot [ms]", "band": "band [ms]"}
    titles |= {"ttft": "ttft [ms]"} if details or any(row["ttft_limit_s"] is not None for row in rows) else {}
    titles |= {"tokens_per_s_per_gpu": "tokens/s/GPU"} | usd
    named = _names(rows)
    split = SPLIT if any(row.get("attention_gpus") for row in rows) else {}
    named += [report.TableColumn(name, title) for name, title in split.items()]
    if not details:
        return [*named, "batch", *(report.TableColumn(name, title) for name, title in titles.items())]
    titles |= {"kj_per_million_tokens": "kJ/M tokens"}
    titles |= UNEVEN if any(_uneven(row) for row in rows) else {}
    titles |= {name: f"{name} [us]" for name in ("dispatch", "combine", "attention", "experts")}
    titles |= {"memory_gb": "memory [GB]"}
    columns = [report.TableColumn(name, title) for name, title in titles.items()]
    limited = any(row["batch_limit"] for row in rows)
    overlap_columns = ["overlap"] if limited or len({row["overlap"] for row in rows}) > 1 else []
    return [*named, *overlap_columns, "batch", *(["batch_limit"] if limited else []), *columns, "bound_by"]
