"""`mfabric serve`: inference on fabrics."""

import dataclasses
import functools
import pathlib
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.case.layers import SettingsLayer
from mfabric_jax.checks import InputError
from mfabric_jax.commands import serve_sentences as sentences
from mfabric_jax.commands import shared

READS = (
    *("model.", "gpu.", "network.", "serving.", "traffic.source", "traffic.trace.", "traffic.generated.skew"),
    *("circuits.policy", "circuits.routing", "circuits.ocs", "run.seed", "run.dtype"),
    "compute.kernels.table",
)
UNREAD = {"gpu.nvswitches": ""}
BY_REPLICAS = (
    *("model.", "gpu.", "run.dtype", "serving.replica.", "serving.tp", "serving.context", "serving.prompt"),
    *("serving.answer", "serving.formats.weights", "serving.reserved_gigabytes", "compute.kernels.table"),
)
UNREAD_BY_REPLICAS = {
    **{"serving.tpot_ms": "", "gpu.nvswitches": ""},
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
    from mfabric_jax.report.tables import wrap

    searching = _searches(cases)
    kinds = [case.network.fabric for case in cases for _ in (sizes_of(case) if searching else (1,))]
    rows_of = functools.partial(search if searching else serve, cases)
    columns = options.columns("serve")
    every = shared.collect_rows("serve", options.out, effective(cases), rows_of, len(kinds), columns, kinds=kinds)
    groups = _by_fabric(every) if searching else []
    rows = [sentences.shown_row(own) for own in groups] if searching else every
    shared.print_conclusions(sentences.conclusions(every))
    print(wrap(sentences.common(every)))
    print(report.plain([_table_row(row) for row in rows], _columns(rows, options.all_columns)))
    if any("load_requests" in row for row in rows):
        if any(row["load_requests"] for row in rows):
            under = report.plain([_under_load(row) for row in rows], _load_columns(rows, options.all_columns))
            print(f"\nUnder the load{sentences.end_of_band(rows)}:\n{under}")
        shared.print_lines(sentences.load_sentences(rows, cases, options.all_columns))
    shared.print_lines(sentences.search_sentences(groups, every, options.all_columns) if searching else ())
    shared.print_lines(sentences.locality_sentences(rows, cases))
    shared.print_lines([*sentences.row_sentences(rows, every), *sentences.context_sentences(cases)])
    shared.print_lines(sentences.domain_sentences(cases))
    shared.print_lines([*sentences.price_sentences(rows, cases), *shared.alike_notes(cases)])
    if options.figures is not None:
        from mfabric_jax.report.figures import draw_serving

        shared.tell(draw_serving(every, pathlib.Path(options.figures) / "serving.png"))


def _serve_clients(cases: Cases, options: Options) -> None:
    shared.check_flags(cases, "serve --clients", BY_REPLICAS, unread=UNREAD_BY_REPLICAS)
    if options.figures is not None:
        raise InputError(f"figures do not show serve --clients; leave out --figures {options.figures}.")
    shared.check_outputs(options.out)
    from mfabric_jax import report
    from mfabric_jax.apps.serving.clients import client_cases, client_rows
    from mfabric_jax.apps.serving.rows import effective

    columns, count = options.columns("serve --clients"), len(client_cases(cases))
    rows_of = functools.partial(client_rows, cases)
    rows = shared.collect_rows("serve", options.out, effective(cases), rows_of, count, columns)
    titles = {"tpot": "tpot [ms]", "band": "band [ms]", "prompts": "of which prompts [ms]", "ttft": "ttft [ms]"}
    titles |= {"tokens_per_s_per_gpu": "tokens/s/GPU", "memory_gb": "memory [GB]"}
    names = ["model", "gpu", "tp", "ep", *sentences.settings_of(rows)]
    apart = [name for name in names if len({row[name] for row in rows}) > 1]
    named = [report.TableColumn(name, name.removeprefix("serving.replica."), apart=True) for name in apart]
    named += [report.TableColumn(name, name) for name in names if name not in apart]
    shown = [report.TableColumn(name, title) for name, title in titles.items()]
    print(report.plain([_client_line(row) for row in rows], [*named, *shown, "fits"]))
    shared.print_lines([sentences.REPLICA_BAND])


def _client_line(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table: times in milliseconds, the band in one cell."""
    from mfabric_jax import units
    from mfabric_jax.apps.serving.served_rows import BAND

    times = {name: units.to_ms(row[f"{name}_s"]) for name in ("tpot", "prompts", "ttft")}
    low, high = (end * times["tpot"] for end in BAND)
    return row | times | {"band": f"{low:.3g} to {high:.3g}", "fits": {True: "yes", False: "no", None: ""}[row["fits"]]}


def _searches(cases: Cases) -> bool:
    """Whether a time limit is stated but no size of a group."""
    stated = cases.stated
    return "serving.tpot_ms" in stated and not {"serving.ep", *SPLIT_SIZES} & set(stated)


def _by_fabric(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group rows that differ only in sizes. A group keeps its rows that are in time; if no row is, it keeps all."""
    from mfabric_jax.apps.serving.search import rows_within_limits
    from mfabric_jax.report.grid import group_rows

    both = *sentences.APART, *sentences.settings_of(rows), "tpot_limit_s", "ttft_limit_s", "by"
    common = [name for name in both if name != "kernels"]
    return [rows_within_limits(own) or own for own in group_rows(rows, "fabric", *common).values()]


# --------------------------------------------------------------------------------------------------------------- tables
def _table_row(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table: times in milliseconds, the band in one cell."""
    from mfabric_jax import units

    each = {name: units.to_ms(row[f"{name}_s"]) for name in ("tpot", "ttft")}
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


DECIDE = {  # columns under a load without --all-columns
    *("load_requests_per_s", "requests_per_s", "in_slo", "load_ttft_p99_s", "load_tpot_p99_s"),
    *("load_prefill_gpus", "load_decode_gpus", "load_usd_per_million_tokens"),
}


def _under_load(row: dict[str, Any]) -> dict[str, Any]:
    from mfabric_jax import units

    times = [name for name in LOAD if name.endswith("_s") and "per_s" not in name]
    return row | {name: None if row[name] is None else units.to_ms(row[name]) for name in times}


def _load_columns(rows: list[dict[str, Any]], details: bool) -> list[Any]:
    from mfabric_jax import report

    titles = {name: title for name, title in LOAD.items() if details or name in DECIDE}
    known = {name: title for name, title in titles.items() if any(row[name] is not None for row in rows)}
    columns = [report.TableColumn(name, title) for name, title in known.items()]
    return [*_names(rows), *columns]


def _names(rows: list[dict[str, Any]]) -> list[Any]:
    """Return the columns that tell rows apart, under short titles."""
    from mfabric_jax import report

    names = "fabric", *sentences.apart_of(rows), "ep"
    return [report.TableColumn(name, name.removeprefix("serving."), apart=True) for name in names]


def _columns(rows: list[dict[str, Any]], details: bool) -> list[Any]:
    from mfabric_jax import report

    arriving = any(row.get("load_requests") for row in rows)
    usd = {"usd_per_million_tokens": "$/M, pools full" if arriving else "$/M tokens"}
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
