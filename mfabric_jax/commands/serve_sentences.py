"""Sentences of `mfabric serve` on its rows: the best, late or too large ones, missing prices, unsteady loads."""

from collections.abc import Iterator
from typing import Any

from mfabric_jax.case import Case, Cases
from mfabric_jax.checks import InputError

KINDS = "gpu", "prefill_gpu", "nic_gbps", "prefill_nic_gbps"
APART = "model", *KINDS, "kernels", "precision", "tp", "context"  # shown if rows differ in them
STEADY = 0.9  # least ratio of finished to arriving requests in a steady state
LIVES = 5  # least length of a load, in times of a request
NO_CHOICE = "serving.load.", "serving.prompt", "serving.answer"  # rows that differ in these serve another load
DIRECT = "full-mesh", "torus", "twisted-torus"  # their links join servers of one group only
PAGE = 'The page "Serving"'
Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------ settings without use
def check_use(cases: Cases) -> None:
    """Raise InputError if no case reads a setting of the command line."""
    for path, source in cases.sources.items():
        if source != "flag":
            continue
        for begins, used, why in USES:
            if path.startswith(begins) and not any(used(case) for case in cases):
                raise InputError(f"{path} is read only {why}, got {cases.stated[path]!r}.")


def _arrives(case: Case) -> bool:
    return case.serving.load.rate is not None or case.serving.load.arrivals is not None


def _has_limits(case: Case) -> bool:
    return case.serving.tpot_ms is not None or case.serving.load.ttft_ms is not None


def _reads_context(case: Case) -> bool:
    load = case.serving.load
    return load.arrivals is None and (load.rate is None or case.serving.prompt is None)


def _places_experts(case: Case) -> bool:
    return case.serving.experts != "balanced" or case.serving.redundant_experts != 0


OF_LOAD = "requests", "repeat", "warmup", "prefill_groups", "decode_groups", "keep", "tpot_ms"
ARRIVE = "where requests arrive (--rate or --arrivals)"
USES = [  # prefixes of settings, the cases that read them, and the condition in words
    (tuple(f"serving.load.{name}" for name in OF_LOAD), _arrives, ARRIVE),
    (
        ("serving.load.unit", "serving.load.block", "serving.load.turns"),
        lambda case: case.serving.load.arrivals is not None,
        "for a log of requests (--arrivals)",
    ),
    (
        "serving.context",
        _reads_context,
        "where no load has its own (--arrivals, or --rate with --prompt: the prompt and half of the answer)",
    ),
    ("serving.load.keep", lambda case: case.serving.tpot_ms is not None, "with a time limit (--tpot-ms)"),
    ("serving.batch", lambda case: case.serving.tpot_ms is None, "without --tpot-ms, which chooses the batch"),
    ("serving.by", lambda case: _has_limits(case) or _arrives(case), "with a time limit (--tpot-ms)"),
    ("serving.replica", lambda case: case.serving.replica.clients is not None, "with --clients"),
    ("serving.split.micro", lambda case: case.serving.split.attention_gpus, "with serving.split.attention_gpus"),
    ("serving.eplb", _places_experts, "where serving.experts is not balanced or experts have copies"),
    ("traffic.trace", lambda case: case.serving.experts == "trace", "with --set serving.experts=trace"),
    (
        "traffic.source",
        lambda case: case.serving.experts in ("trace", "generated"),
        "where serving.experts is trace or generated",
    ),
    ("traffic.generated", lambda case: case.serving.experts == "generated", "with --set serving.experts=generated"),
]


# --------------------------------------------------------------------------------------------------------- rows by name
def settings_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns that are paths of settings."""
    return [name for name in rows[0] if "." in name]


def apart_of(rows: list[dict[str, Any]]) -> list[str]:
    """Return the columns, except fabric and size, in which rows differ."""
    return [name for name in (*APART, *settings_of(rows)) if len({row[name] for row in rows}) > 1]


def name_row(row: Row, rows: list[dict[str, Any]], *, sized: bool = True) -> str:
    """Name a row in a sentence, with the columns in which rows differ. `sized`: also with its size."""
    apart = [f"{name} {row[name]}" for name in apart_of(rows) if name not in ("model", "kernels")]
    return ", ".join([f"{row['model']} on {row['fabric']}", *apart, *([f"ep {row['ep']}"] if sized else [])])


def common(rows: list[dict[str, Any]]) -> str:
    """Return the values that all rows share."""
    first, apart = rows[0], apart_of(rows)
    texts = {
        "model": str(first["model"]),
        "gpu": str(first["gpu"]),
        "nic_gbps": f"{first['nic_gbps']:g} Gbps a NIC",
        "prefill_gpu": _prefill_kind(first),
        "context": f"{first['context']:,.6g} tokens of context",
        "kernels": str(first["kernels"]),
    }
    words = [words for name, words in texts.items() if words and name not in apart]
    taken = dict.fromkeys(row["expert_load"] for row in rows)
    return ", ".join([*words, *(f"experts {load}" for load in taken if len(taken) > 1 or load != "balanced")])


def _prefill_kind(row: Row) -> str:
    """Name the GPUs and NICs that prefill where they differ from those that decode, else an empty text."""
    if (row["gpu"], row["nic_gbps"]) == (row["prefill_gpu"], row["prefill_nic_gbps"]):
        return ""
    return f"prefill on {row['prefill_gpu']} with {row['prefill_nic_gbps']:g} Gbps a NIC"


# ------------------------------------------------------------------------------------------------------------ sentences
def search_sentences(groups: list[list[dict[str, Any]]], rows: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the best pools of every fabric; `groups`: the rows of each fabric."""
    from mfabric_jax.apps.serving.search import cheapest, fastest, rows_within_limits

    yield f"{len(rows)} set-ups were tried, with {', '.join(map(str, sorted({row['ep'] for row in rows})))} GPUs."
    several = len({_times(row) for row in rows}) > 1
    for own in groups:
        best, least = fastest(own), cheapest(own)
        named = name_row(best, rows, sized=False) + (f", within {_times(best)}" if several else "")
        if not rows_within_limits(own):
            yield f"{named}: no size that fits in memory keeps to {_times(best)}."
            continue
        most = f"{named}: {_most(best)} with {_pools(best)}"
        if least is None:
            yield f"{most}."
        elif least is best:
            yield f"{most}, which is also cheapest: {_dollars(best)}."
        else:
            yield f"{most}; cheapest: {_dollars(least)} with {_pools(least)}."

    yield "The options of a row repeat it in place of --tpot-ms, --by and what is searched."


def _times(row: Row) -> str:
    """Return the time limits of a row, in words."""
    limits = {"": row["tpot_limit_s"], " to the first token": row["ttft_limit_s"]}
    return " and ".join(f"{1000 * limit:g} ms{what}" for what, limit in limits.items() if limit is not None)


def _most(row: Row) -> str:
    from mfabric_jax.apps.serving.search import gpus_of

    gpus = gpus_of(row)
    return f"most tokens/s/GPU: {row['tokens_per_s_per_gpu']:,.0f}" if gpus is None else f"fewest GPUs: {gpus:,}"


def _dollars(row: Row) -> str:
    """Return dollars per million tokens, and the GPUs that they count."""
    from mfabric_jax.apps.serving.search import gpus_of, usd_of

    gpus = gpus_of(row)
    of = "" if gpus is None else f" at this load (all {gpus:,} GPUs of both pools over the tokens they serve)"
    return f"{usd_of(row):.3g} $ a million tokens{of}"


def _pools(row: Row) -> str:
    """Return the flags that repeat a row's pools, in place of `--tpot-ms`."""
    from mfabric_jax import units

    settings = {"overlap": row["overlap"], "prefill.ep": row["prefill_ep"], "prefill.tokens": row["prefill_tokens"]}
    settings |= {"prefill.overlap": row["prefill_overlap"]} if row["prefill_overlap"] != row["overlap"] else {}
    flags = " ".join(f"--set serving.{name}={str(value).lower()}" for name, value in settings.items())
    if row.get("load_requests") is None:
        share = f"{row['prefill_gpus']:.2g} GPUs prefill for each GPU that decodes"
    else:
        decode, prefill = row["load_decode_gpus"], row["load_prefill_gpus"]
        share = f"{decode:,} GPUs decode, {prefill:,} prefill"
        groups = {"decode": decode // row["ep"], "prefill": prefill // row["prefill_ep"]}
        flags += "".join(f" --set serving.load.{name}_groups={count}" for name, count in groups.items())
        limit_s = row["tpot_limit_s"]
        flags += "" if limit_s is None else f" --set serving.load.tpot_ms={units.to_ms(limit_s):g}"
    if row.get("load_requests") is not None or row["ttft_limit_s"] is not None:
        flags += f" --by {row['by']}"
    return f"--ep {row['ep']} --batch {row['batch']:g} {flags} ({share})"


def load_sentences(rows: list[dict[str, Any]], cases: Cases) -> Iterator[str]:
    """Yield sentences on the load of pools, late or unsteady rows, KV transfers, and requests refused or left out."""
    for row in rows:
        named = name_row(row, rows)
        if row["load_requests"] is None:
            yield f"{named}: memory holds none of the requests."
            continue
        if row["load_tokens_per_s"] is not None:
            end = ", at the slow end of the band" if row["by"] == "high" else ""
            yield (
                f"{named}: the load is {row['load_tokens_per_s']:,.0f} tokens/s of answers, "
                f"{100 * row['decode_load']:.3g} % of what {row['load_decode_gpus']:,} GPUs decode; prompts are "
                f"{100 * row['prefill_load']:.3g} % of what {row['load_prefill_gpus']:,} GPUs prefill in full "
                f"passes{end}."
            )
        yield from _late(row, named)
        yield from _unsteady(row, named, cases)
        yield (
            f"{named}: KV transfers take up to {row['kv_slowdown_p99']:.3g} times as long as on an idle network (p99); "
            f"the busiest pair is {row['kv_hot_pair']}, with {row['kv_hot_pair_over_mean']:.3g} times the mean bytes; "
            f"the busiest NIC carries caches {100 * row['kv_busiest_nic']:.2g} % of the time."
        )
        if row["refused"]:
            yield f"{named}: {row['refused']:,} requests do not fit in a GPU's memory and were refused."
    left_out = max(row["left_out"] or 0 for row in rows)
    if left_out:
        yield f"{left_out:,} requests of the log have no answer or no prompt (they failed) and were left out."


def _late(row: Row, named: str) -> Iterator[str]:
    if row["in_slo_limit"] is not None and row["in_slo"] is not None and row["in_slo"] < row["in_slo_limit"]:
        yield (
            f"{named}: {100 * row['in_slo']:.3g} % of requests are in time, but serving.load.keep is "
            f"{100 * row['in_slo_limit']:g} %; more groups were not tried, or do not help."
        )


def _unsteady(row: Row, named: str, cases: Cases) -> Iterator[str]:
    arrive, done, life, window = (
        row[name] for name in ("load_requests_per_s", "requests_per_s", "load_e2e_p50_s", "load_window_s")
    )
    longer = f"; {_longer(row, cases)}"
    full = [pool for pool in ("decode", "prefill") if (row[f"{pool}_load"] or 0.0) > 1]
    if full:
        groups = " and ".join(f"serving.load.{pool}_groups" for pool in full)
        yield (
            f"{named}: the pools do not keep up: {arrive:.3g} requests per second arrive and {done:.3g} finish; raise "
            f"{groups}, or lower the load."
        )
    elif window < LIVES * life:
        yield (
            f"{named}: the load is too short: {window:.3g} s are counted after the warm-up, {window / life:.2g} times "
            f"a median request ({life:.3g} s), so pools are still filling up and look better than in steady "
            f"state{longer}."
        )
    elif arrive is not None and done is not None and done < STEADY * arrive:
        yield f"{named}: {arrive:.3g} requests per second arrive, {done:.3g} finish: the pools do not keep up{longer}."


def _longer(row: Row, cases: Cases) -> str:
    """Return how to lengthen a load; a log may have no more requests."""
    load = next(iter(cases)).serving.load
    read = row["load_requests"] + row["refused"] + (row["left_out"] or 0)
    exhausted = load.arrivals is not None and read < load.requests * load.repeat
    return f"raise serving.load.{'repeat, because the log has no more requests' if exhausted else 'requests'}"


def conclusions(every: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the cheapest row of each model and load that fits and is in time, or that no row is."""
    from mfabric_jax.apps.serving.search import cheapest, rows_within_limits
    from mfabric_jax.report.grid import group_rows

    loads = [name for name in settings_of(every) if name.startswith(NO_CHOICE) and not name.endswith("_groups")]
    for own in group_rows(every, "model", *loads).values():
        good = rows_within_limits(own)
        best = cheapest(good)
        timed = own[0]["tpot_limit_s"] is not None or own[0]["ttft_limit_s"] is not None
        if not good:
            named = ", ".join([str(own[0]["model"]), *(f"{name} {own[0][name]}" for name in loads)])
            yield f"{named}: no row fits the memory{' and is in time' * timed}."
        elif best is not None:
            yield (
                f"Cheapest{' in time' * timed}: {name_row(best, every)}, batch {best['batch']:g}, at {_dollars(best)}, "
                "prefill included."
            )


def row_sentences(shown: list[dict[str, Any]], every: list[dict[str, Any]]) -> Iterator[str]:
    """Yield which `shown` rows do not fit, or are faster with one micro-batch, what the dollars lack, and the
    meaning of the band."""
    for row in shown:
        yield from _of_memory(row, name_row(row, shown))
    yield from _of_one_batch(shown)
    yield from _of_direct_links(every)
    yield _of_band(every)


def _of_direct_links(rows: list[dict[str, Any]]) -> Iterator[str]:
    direct = [name for name in dict.fromkeys(row["fabric"] for row in rows) if name in DIRECT]
    if direct:
        yield (
            f"{', '.join(direct)}: links join the servers of one group; the dollars lack the links that carry caches "
            "from groups that prefill to groups that decode."
        )


def _of_one_batch(rows: list[dict[str, Any]]) -> Iterator[str]:
    from mfabric_jax import units
    from mfabric_jax.report.numerals import count_phrase

    chosen = [row for row in rows if row["tpot_limit_s"] is None and row["overlap"]]
    quicker = [row for row in chosen if row["serial_s"] < row["tpot_s"]]
    if quicker:
        best = min(quicker, key=lambda row: row["serial_s"] / row["tpot_s"])
        as_one, as_two = (units.to_ms(best[name]) for name in ("serial_s", "tpot_s"))
        counted = f"{len(quicker)} of {count_phrase(len(rows), 'row')} {'is' if len(quicker) == 1 else 'are'}"
        yield (
            f"Two micro-batches overlap, but read the weights of experts twice: {counted} faster with one. "
            f"{name_row(best, rows)}, batch {best['batch']:g} takes "
            f"{as_one:.3g} ms instead of {as_two:.3g}. Try --set serving.overlap=false and twice the batch."
        )


def _of_band(rows: list[dict[str, Any]]) -> str:
    from mfabric_jax.apps.serving.step import MEASURED_OVER_PREDICTED

    steps, passes = ("{:g} to {:g}".format(*MEASURED_OVER_PREDICTED[what]) for what in ("tpot", "prefill"))
    timed = any(row["tpot_limit_s"] is not None or row["ttft_limit_s"] is not None for row in rows)
    judged = ". Rows are in time by their prediction (--by predicted)"
    if any(row["by"] == "high" for row in rows):
        judged = ". Rows are in time at the slow end (--by predicted uses the prediction)"
    return (
        "band: from fast kernels with all communication hidden to the largest excess measured. Measured steps took "
        f"{steps} times their prediction, prefill passes {passes} times{judged * timed}. {PAGE} has the rows."
    )


def _of_memory(row: Row, named: str) -> Iterator[str]:
    if not row["fits"] and row["requests"] > row["most_requests"]:
        held = max(0, int(row["most_requests"]))
        yield f"{named}: {row['requests']:g} requests per GPU do not fit; memory holds {held}."
    if row["prefill_memory_gb"] > row["prefill_gpu_memory_gb"]:
        yield (
            f"{named}: GPUs that prefill need {row['prefill_memory_gb']:.4g} GB and have "
            f"{row['prefill_gpu_memory_gb']:g}; "
            f"raise serving.prefill.ep above {row['prefill_ep']}, so that more GPUs share the experts."
        )


def price_sentences(rows: list[dict[str, Any]], cases: Cases) -> list[str]:
    """Return the missing prices or powers that leave dollars or joules empty."""
    from mfabric_jax.apps.serving.rows import unknown_prices

    empty = {(row["model"], row["fabric"]) for row in rows if row["usd_per_million_tokens"] is None}
    empty |= {(row["model"], row["fabric"]) for row in rows if row["kj_per_million_tokens"] is None}
    fabrics, sentences = {fabric for _, fabric in empty}, []
    for case in cases:
        if case.network.fabric in fabrics:
            sentences += unknown_prices(case)
    lacks = list(dict.fromkeys(sentences))
    return [*lacks, "Dollars per million tokens include energy, so they need price and power."] if lacks else []
