"""`mfabric serve`: inference on fabrics."""

import dataclasses
import functools
import pathlib
from collections.abc import Iterator
from typing import Any

from mfabric_jax.case import Cases
from mfabric_jax.case.layers import Layer
from mfabric_jax.commands import shared

READS = (
    *("model.", "gpu.", "network.", "serving.", "traffic.", "circuits.policy", "circuits.routing", "circuits.ocs"),
    *("circuits.delay_s", "run.seed", "run.dtype"),
)
FABRICS = ["fat-tree", "torus", "full-mesh", "mfabric", "nvl72"]
BELOW = [Layer("serve", {"model.name": "deepseek-v3", "network.fabric": FABRICS})]
SPLIT_SIZES = "serving.split.attention_gpus", "serving.split.expert_gpus"
APART = ("model", "gpu", "nic_gbps", "kernels", "precision", "tp", "context")  # shown where rows differ in them
STEADY = 0.9  # requests done among those that arrive, below which a sentence says so


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options(shared.RowsAndPictures):
    """A model that answers requests: seconds from token to token, tokens a second, dollars a million, by fabric.
    --tpot-ms: the best batch within that time; without --ep the best size of a group, too. --rate, --arrivals FILE:
    requests arrive. Formats of weights, prefill, attention apart from experts: --help serving.
    """


def run(cases: Cases, options: Options) -> None:
    shared.check_flags(cases, "serve", READS)
    shared.check_outputs(options.out, figures=options.figures)
    shared.start_jax("float64", options.device)
    from mfabric_jax import report
    from mfabric_jax.report.figures import served
    from mfabric_jax.serving import serve
    from mfabric_jax.serving.rows import effective
    from mfabric_jax.serving.search import fastest, search, sizes_of

    searching = _searches(cases)
    count = sum(len(sizes_of(case)) for case in cases) if searching else len(cases)
    rows_of = functools.partial(search if searching else serve, cases)
    every = shared.kept_rows("serve", options.out, effective(cases), rows_of, count)
    rows = [fastest(own) for own in _by_fabric(every).values()] if searching else every
    print(_common(every))
    print(report.plain([_shown(row) for row in rows], _columns(rows)))
    if any("load_requests" in row for row in rows):
        if any(row["load_requests"] for row in rows):
            print(report.plain([_under_load(row) for row in rows], _load_columns(rows)))
        shared.print_lines(_said_of_load(rows))
    shared.print_lines(_said_of_search(every) if searching else ())
    shared.print_lines(_said(rows))
    if options.figures is not None:
        shared.tell(served(every, pathlib.Path(options.figures) / "serving.png"))


def _searches(cases: Cases) -> bool:
    """Whether a time is stated, and no size of a group."""
    stated = cases.stated
    return "serving.tpot_ms" in stated and not {"serving.ep", *SPLIT_SIZES} & set(stated)


def _by_fabric(rows: list[dict[str, Any]]) -> dict[tuple, list[dict[str, Any]]]:
    """Rows that differ in sizes alone, by what they have in common: of each those in time, or all where none is."""
    from mfabric_jax.report.grid import grouped
    from mfabric_jax.serving.search import in_time

    common = [name for name in (*APART, *_settings(rows), "tpot_limit_s") if name != "kernels"]
    return {key: in_time(own) or own for key, own in grouped(rows, "fabric", *common).items()}


def _said_of_search(rows: list[dict[str, Any]]) -> Iterator[str]:
    """The best pools of every fabric."""
    from mfabric_jax.serving.search import cheapest, fastest, in_time

    yield f"{len(rows)} set-ups were tried, of {', '.join(map(str, sorted({row['ep'] for row in rows})))} GPUs."
    for own in _by_fabric(rows).values():
        best, least = fastest(own), cheapest(own)
        where = _where(best, rows, sized=False)
        if not in_time(own):
            yield f"{where}: no size keeps to {1000 * best['tpot_limit_s']:g} ms within its memory."
            continue
        most = f"{where}: most tokens/s/GPU: {best['tokens_per_s_per_gpu']:,.0f} with {_pools(best)}"
        if least is None:
            yield f"{most}."
        elif least is best:
            yield f"{most}, which is cheapest, too: {best['usd_per_million_tokens']:.3g} $ a million tokens."
        else:
            yield f"{most}; cheapest: {least['usd_per_million_tokens']:.3g} $ a million tokens with {_pools(least)}."


def _pools(row: dict[str, Any]) -> str:
    """The flags that ask for a row's pools again."""
    return (
        f"--ep {row['ep']} --batch {row['batch']:g} --set serving.prefill.ep={row['prefill_ep']} "
        f"({row['prefill_gpus']:.2g} GPUs prefill for each that decodes)"
    )


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row with milliseconds, and its band in one cell."""
    from mfabric_jax import units

    each = {name: units.to_ms(row[f"{name}_s"]) for name in ("tpot", "ttft")}
    low, high = (units.to_ms(row[f"tpot_{end}_s"]) for end in ("low", "high"))
    calls = {name: units.to_us(row[f"{name}_s"]) for name in ("dispatch", "combine", "attention", "experts")}
    return row | each | calls | {"band": f"{low:.3g} to {high:.3g}"}


def _settings(rows: list[dict[str, Any]]) -> list[str]:
    """Columns that are settings by their paths."""
    return [name for name in rows[0] if "." in name]


def _apart(rows: list[dict[str, Any]]) -> list[str]:
    return [name for name in (*APART, *_settings(rows)) if len({row[name] for row in rows}) > 1]


def _common(rows: list[dict[str, Any]]) -> str:
    """What all rows are about, but for what columns tell apart."""
    first, apart = rows[0], _apart(rows)
    said = {
        "model": str(first["model"]),
        "gpu": str(first["gpu"]),
        "nic_gbps": f"{first['nic_gbps']:g} Gbps a NIC",
        "context": f"{first['context']:,g} tokens of context",
        "kernels": str(first["kernels"]),
    }
    return ", ".join(words for name, words in said.items() if name not in apart)


def _where(row: dict[str, Any], rows: list[dict[str, Any]], *, sized: bool = True) -> str:
    """A row in a sentence, with what tells it from others; `sized`: its size, too."""
    apart = [f"{name} {row[name]}" for name in _apart(rows) if name not in ("model", "kernels")]
    return ", ".join([f"{row['model']} on {row['fabric']}", *apart, *([f"ep {row['ep']}"] if sized else [])])


SPLIT = {"attention_gpus": "attention GPUs", "expert_gpus": "expert GPUs", "micro_batches": "micro-batches"}
LOAD = {  # titles of what requests see, times in milliseconds
    **{"load_requests_per_s": "arrive [1/s]", "requests_per_s": "done [1/s]", "goodput_per_s": "in time [1/s]"},
    **{f"load_ttft_{name}_s": f"ttft {name} [ms]" for name in ("p50", "p90", "p99")},
    **{f"load_tpot_{name}_s": f"tpot {name} [ms]" for name in ("p50", "p99")},
    "load_e2e_p50_s": "e2e p50 [ms]",
    **{"prefill_queue": "queue for prefill", "decode_queue": "queue for memory", "decode_requests": "requests/GPU"},
    **{"prefill_filled": "passes filled", "load_kv_p99_s": "KV p99 [ms]", "kv_slowdown_p99": "KV slower"},
    **{"load_prefill_gpus": "prefill GPUs", "load_decode_gpus": "decode GPUs"},
}


def _under_load(row: dict[str, Any]) -> dict[str, Any]:
    from mfabric_jax import units

    times = [name for name in LOAD if name.endswith("_s") and "per_s" not in name]
    return row | {name: None if row[name] is None else units.to_ms(row[name]) for name in times}


def _load_columns(rows: list[dict[str, Any]]) -> list[Any]:
    from mfabric_jax import report

    known = {name: title for name, title in LOAD.items() if any(row[name] is not None for row in rows)}
    columns = [report.Column(name, title, digits=3) for name, title in known.items()]
    return ["fabric", *_apart(rows), "ep", *columns]


def _said_of_load(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What the trace or memory left out, what is not steady, and where caches meet."""
    for row in rows:
        where = _where(row, rows)
        if row["load_requests"] is None:
            yield f"{where}: memory holds none of the requests."
            continue
        arrive, done = row["load_requests_per_s"], row["requests_per_s"]
        if arrive is not None and done is not None and done < STEADY * arrive:
            yield (
                f"{where}: {arrive:.3g} requests arrive a second and {done:.3g} are done: either the pools cannot keep "
                f"up, or the load is too short. A request takes {row['load_e2e_p50_s']:.3g} s (median), and those of "
                f"the first {row['load_warmup_s']:.3g} s do not count; raise serving.load.requests."
            )
        yield (
            f"{where}: caches are up to {row['kv_slowdown_p99']:.3g} times slower than alone (p99); most bytes go from "
            f"{row['kv_hot_pair']}, {row['kv_hot_pair_over_mean']:.3g} times a pair's mean; the busiest NIC carries "
            f"caches {100 * row['kv_busiest_nic']:.2g} % of the time."
        )
        if row["refused"]:
            yield f"{where}: {row['refused']:,} requests are larger than a GPU's memory and were refused."
    left_out = max(row["left_out"] or 0 for row in rows)
    if left_out:
        yield f"{left_out:,} requests of the trace have no answer or no prompt (failed ones) and were left out."


def _columns(rows: list[dict[str, Any]]) -> list[Any]:
    from mfabric_jax import report

    apart = _apart(rows)
    titles = {"tpot": "tpot [ms]", "band": "band [ms]", "tokens_per_s_per_gpu": "tokens/s/GPU"}
    titles |= {"usd_per_million_tokens": "$/M tokens", "kj_per_million_tokens": "kJ/M tokens", "ttft": "ttft [ms]"}
    titles |= {name: f"{name} [us]" for name in ("dispatch", "combine", "attention", "experts")}
    titles |= {"memory_gb": "memory [GB]"}
    columns = [report.Column(name, title, digits=3) for name, title in titles.items()]
    split = SPLIT if any(row.get("attention_gpus") for row in rows) else {}
    split_columns = [report.Column(name, title) for name, title in split.items()]
    limit = ["batch_limit"] if any(row["batch_limit"] for row in rows) else []
    return ["fabric", *apart, "ep", *split_columns, "batch", *limit, *columns, "bound_by"]


def _said(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Which row is cheapest, what is too slow or does not fit, where one micro-batch is quicker, what the band is."""
    from mfabric_jax import units
    from mfabric_jax.serving.search import cheapest, in_time

    for model in dict.fromkeys(row["model"] for row in rows):
        best = cheapest(in_time(row for row in rows if row["model"] == model))
        if best is not None:
            yield (
                f"Cheapest where it fits{', is in time' * (best['tpot_limit_s'] is not None)} and has a price: "
                f"{_where(best, rows)}, batch {best['batch']:g}: {best['usd_per_million_tokens']:.3g} $ a million "
                "tokens, prefill included."
            )
    for row in rows:
        yield from _said_of_memory(row, _where(row, rows))
    quicker = [row for row in rows if row["serial_s"] < row["tpot_s"]]
    if quicker:
        best = min(quicker, key=lambda row: row["serial_s"] / row["tpot_s"])
        as_one, as_two = (units.to_ms(best[name]) for name in ("serial_s", "tpot_s"))
        yield (
            f"Two micro-batches read the weights of experts twice. As one, nothing hidden, {len(quicker)} of "
            f"{len(rows)} rows are quicker: {_where(best, rows)}, batch {best['batch']:g} takes "
            f"{as_one:.3g} ms for {as_two:.3g}. Ask with --set serving.overlap=false, and twice the batch."
        )
    yield (
        "band: from the quicker of hidden and not hidden communication with fast kernels to the slower one with slow "
        "kernels; docs/serving.md says what is modelled."
    )


def _said_of_memory(row: dict[str, Any], where: str) -> Iterator[str]:
    if row["requests"] > row["most_requests"]:
        held = max(0, int(row["most_requests"]))
        yield f"{where}: {row['requests']:g} requests of a GPU do not fit; memory holds {held}."
    if row["prefill_memory_gb"] > row["gpu_memory_gb"]:
        yield (
            f"{where}: GPUs that prefill need {row['prefill_memory_gb']:.4g} GB and have {row['gpu_memory_gb']:g}; "
            f"state serving.prefill.ep above {row['prefill_ep']}, so that more of them share the experts."
        )
