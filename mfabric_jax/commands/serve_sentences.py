"""Sentences of `mfabric serve` on its rows: the best, late or too large ones, missing prices, unsteady loads."""

import math
from collections.abc import Iterator
from typing import Any

from mfabric_jax import units
from mfabric_jax.case import Case, Cases
from mfabric_jax.checks import InputError
from mfabric_jax.report.grid import group_rows
from mfabric_jax.report.numerals import count_phrase, number
from mfabric_jax.report.repeated import repeat_command
from mfabric_jax.report.served import half_load_usd, locality_words, measured_words, unjoined_words

KINDS = "gpu", "prefill_gpu", "nic_gbps", "prefill_nic_gbps"
APART = "model", *KINDS, "kernels", "precision", "tp", "context"  # shown if rows differ in them
LIMITS = {"tpot_limit_s": "limit [ms]", "ttft_limit_s": "ttft limit [ms]"}  # titles
NO_CHOICE = "serving.load.", "serving.prompt", "serving.answer"  # rows that differ in these serve another load
PAGE = 'The page "Serving"'
CLIENTS = "serving.replica.clients"
OF_REPLICAS = (
    f"band: of tpot; it holds 8 of 10 measured rows. {PAGE} has the errors.",
    "first pass: of a lone prompt; a first token also waits in a queue, which is left out.",
    "tokens/s/GPU: clients / tpot; a measured rate is lower, since it contains the wait for first tokens.",
    "$/M: GPUs, their servers and energy, without a network, which one replica does not use.",
)
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
    ("serving.answer", lambda case: case.serving.load.arrivals is None, "without --arrivals, whose log has answers"),
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
def settings_of(rows: list[Row]) -> list[str]:
    """Return the columns that are paths of settings."""
    return [name for name in rows[0] if "." in name]


def apart_of(rows: list[Row]) -> list[str]:
    """Return the columns, except fabric and size, in which rows differ."""
    named = (*APART, *LIMITS, *settings_of(rows))
    return [name for name in named if len({row[name] for row in rows}) > 1 and not _repeats(name, rows)]


def _repeats(name: str, rows: list[Row]) -> bool:
    """Whether a column of prefill equals that of decoding in every row."""
    return name.startswith("prefill_") and all(row[name] == row[name.removeprefix("prefill_")] for row in rows)


def name_row(row: Row, rows: list[Row], *, sized: bool = True) -> str:
    """Name a row in a sentence, with the columns in which rows differ. `sized`: also with its size."""
    apart = [_of_column(row, name) for name in apart_of(rows) if name not in ("model", "kernels")]
    return ", ".join([f"{row['model']} on {row['fabric']}", *apart, *([f"ep {row['ep']}"] if sized else [])])


def _of_column(row: Row, name: str) -> str:
    if name not in LIMITS:
        return f"{name} {row[name]}"
    kind, limit_s = LIMITS[name].removesuffix(" [ms]"), row[name]
    return f"{kind} {'none' if limit_s is None else f'{units.to_ms(limit_s):g} ms'}"


def common(rows: list[Row]) -> str:
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


def apart_of_replicas(rows: list[Row]) -> list[str]:
    """Return the columns in which replicas differ."""
    return [name for name in ("model", "gpu", "tp", "ep", *settings_of(rows)) if len({row[name] for row in rows}) > 1]


def common_of_replicas(row: Row, apart: list[str]) -> str:
    """Return the values that all replicas share, from the row of one; `apart`: what differs."""
    texts = {"model": row["model"], "gpu": row["gpu"], "tp": f"tp {row['tp']}", "ep": f"ep {row['ep']}"}
    return ", ".join(words for name, words in texts.items() if name not in apart)


def _prefill_kind(row: Row) -> str:
    """Name the GPUs and NICs that prefill where they differ from those that decode, else an empty text."""
    if (row["gpu"], row["nic_gbps"]) == (row["prefill_gpu"], row["prefill_nic_gbps"]):
        return ""
    return f"prefill on {row['prefill_gpu']} with {row['prefill_nic_gbps']:g} Gbps a NIC"


# ------------------------------------------------------------------------------------------------------------ sentences
def shown_row(rows: list[Row]) -> Row:
    """Return the row that stands for a fabric in the table: the cheapest; without prices, the fastest."""
    from mfabric_jax.apps.serving.search import cheapest, fastest

    return cheapest(rows) or fastest(rows)


def search_sentences(groups: list[list[Row]], rows: list[Row], details: bool) -> Iterator[str]:
    """Yield what a search tried, and where no size is in time; `details`: also the best pools of every fabric.

    `groups`: the rows of each fabric.
    """
    from mfabric_jax.apps.serving.search import rows_within_limits

    sizes = sorted({row["ep"] for row in rows})
    dear = sum(bool(row.get("unsimulated")) for row in rows)
    unsimulated = f"; {dear} provably cost more than the best and were not simulated" if dear else ""
    yield f"{len(rows)} set-ups were tried, with {sizes[0]} to {sizes[-1]} GPUs in a group{unsimulated}."
    several = len({_times(row) for row in rows}) > 1
    for own in groups:
        best = shown_row(own)
        named = name_row(best, rows, sized=False) + (f", within {_times(best)}" if several else "")
        if not rows_within_limits(own):
            yield f"{named}: no size that fits in memory keeps to {_times(best)}."
        elif details:
            yield _of_pools(own, named)
    if not details:
        yield "--all-columns prints the pools of every row."


def _of_pools(own: list[Row], named: str) -> str:
    """Return the fastest and the cheapest pools of a fabric."""
    from mfabric_jax.apps.serving.search import cheapest, fastest

    best, least = fastest(own), cheapest(own)
    most = f"{named}: {_most(best)} with {_pools(best)}"
    if least is None:
        return f"{most}."
    if least is best:
        return f"{most}, which is also cheapest: {_dollars(best)}."
    return f"{most}; cheapest: {_dollars(least)} with {_pools(least)}."


def commands_to_repeat(rows: list[Row], cases: Cases) -> Iterator[str]:
    """Yield the commands that serve the best rows again, without a search."""
    facts = {"stated": cases.stated, "sources": cases.sources, "varied": cases.varied}
    for best in best_rows(rows):
        if (command := repeat_command(best, facts)) is not None:
            yield f"To repeat {name_row(best, rows, sized=False)} ({_shares(best)}):\n{command}"


def _times(row: Row) -> str:
    """Return the time limits of a row, in words."""
    limits = {"": row["tpot_limit_s"], " to the first token": row["ttft_limit_s"]}
    return " and ".join(f"{1000 * limit:g} ms{what}" for what, limit in limits.items() if limit is not None)


def _most(row: Row) -> str:
    from mfabric_jax.apps.serving.search import gpus_of

    gpus = gpus_of(row)
    return f"most tokens/s/GPU: {row['tokens_per_s_per_gpu']:,.0f}" if gpus is None else f"fewest GPUs: {gpus:,}"


def _dollars(row: Row) -> str:
    """Return dollars per million answer tokens, and the GPUs that they count."""
    from mfabric_jax.apps.serving.search import gpus_of, usd_of

    gpus = gpus_of(row)
    of = "" if gpus is None else f" at this load (all {gpus:,} GPUs of both pools over the tokens they serve)"
    return f"{number(usd_of(row))} $ a million answer tokens{of}"


def _pools(row: Row) -> str:
    """Return the sizes of a row's pools."""
    overlap, prefill_overlap = (
        f"{'with' if row[name] else 'without'} overlap" for name in ("overlap", "prefill_overlap")
    )
    decode = f"ep {row['ep']}, batch {row['batch']:g}, {overlap}"
    prefill = f"prefill ep {row['prefill_ep']}, {row['prefill_tokens']:,} tokens a pass, {prefill_overlap}"
    return f"{decode}; {prefill} ({_shares(row)})"


def _shares(row: Row) -> str:
    """Return how many GPUs decode and prefill."""
    if row.get("load_requests") is None:
        return f"{number(row['prefill_gpus'], 2)} GPUs prefill for each GPU that decodes"
    return f"{row['load_decode_gpus']:,} GPUs decode, {row['load_prefill_gpus']:,} prefill"


def load_sentences(rows: list[Row], cases: Cases, details: bool) -> Iterator[str]:
    """Yield sentences on late or unsteady rows and on requests refused or left out; of the best rows, with `details`
    of all rows, also on the load of pools and on KV transfers."""
    best = best_rows(rows)
    explained = rows if details else best or rows[:1]
    for row in rows:
        named = name_row(row, rows)
        if row["load_requests"] is None:
            yield f"{named}: memory holds none of the requests."
            continue
        if any(row is chosen for chosen in explained):
            yield from _of_load(row, named)
        if any(row is chosen for chosen in best):
            yield from spare_sentences(row, named)
        yield from _late(row, named)
        yield from _unsteady(row, named, cases)
        if row["refused"]:
            yield f"{named}: {row['refused']:,} requests do not fit in a GPU's memory and were refused."
    if all(case.serving.load.arrivals is None for case in cases):
        yield (
            "All requests have the stated lengths. If yours differ in length, fewer are in time: check with a log "
            "(--arrivals FILE)."
        )
    left_out = max(row["left_out"] or 0 for row in rows)
    if left_out:
        yield f"{left_out:,} requests of the log have no answer or no prompt (they failed) and were left out."


def _of_load(row: Row, named: str) -> Iterator[str]:
    if row["load_tokens_per_s"] is not None:
        end = ", at the slow end of the band" if row["by"] == "high" else ""
        yield (
            f"{named}: the load is {row['load_tokens_per_s']:,.0f} tokens/s of answers "
            f"({number(row['load_requests_per_s'])} requests/s arrived after the warm-up), "
            f"{number(100 * row['decode_load'])} % of what {row['load_decode_gpus']:,} GPUs decode; prompts are "
            f"{number(100 * row['prefill_load'])} % of what {row['load_prefill_gpus']:,} GPUs prefill in full "
            f"passes{end}."
        )
    yield (
        f"{named}: KV transfers take up to {number(row['kv_slowdown_p99'])} times as long as on an idle network (p99); "
        f"the busiest pair is {row['kv_hot_pair']}, with {number(row['kv_hot_pair_over_mean'])} times the mean bytes; "
        f"the busiest NIC carries caches {number(100 * row['kv_busiest_nic'], 2)} % of the time."
    )


def headroom_sentences(rows: list[Row], cases: Cases) -> Iterator[str]:
    """Yield the headroom of the best rows in time."""
    for row in best_rows(rows):
        if row.get("load_requests") is not None:
            yield from _of_headroom(row, name_row(row, rows), cases)


def _of_headroom(row: Row, named: str, cases: Cases) -> Iterator[str]:
    """Yield up to which rate the pools of a row in time stay in time, and what one more group adds."""
    from mfabric_jax.apps.serving.headroom import case_of_row, growth, headroom

    case = case_of_row(row, cases)
    if case is None or case.serving.load.rate is None or row["in_slo_limit"] is None or row["load_turns"] is not None:
        return
    rate, now, more = case.serving.load.rate, headroom(case, row), growth(case, row)
    usd = "" if more.price is None else f", {number(more.price * row['load_usd_per_million_tokens'])} $ at your rate"
    grown = f"; with one more {more.pool} group ({more.gpus} GPUs) up to {number(more.in_time)}{usd}"
    yield (
        f"{named}: these pools stay in time up to {number(now.in_time)} requests/s, "
        f"{number(100 * (now.in_time / rate - 1), 2)} % above yours "
        f"(a pool is full at {number(now.full)}){grown if more.in_time > now.in_time else ''}."
    )


def spare_sentences(row: Row, named: str) -> Iterator[str]:
    """Yield which pools have a single group, so that one failure stops them."""
    sizes = {"decoding": row["load_decode_gpus"] / row["ep"], "prefill": row["load_prefill_gpus"] / row["prefill_ep"]}
    if alone := [what for what, groups in sizes.items() if groups == 1]:
        yield f"{named}: one failed GPU stops {' or '.join(alone)}: no other group takes over."


def _late(row: Row, named: str) -> Iterator[str]:
    if row["in_slo_limit"] is not None and row["in_slo"] is not None and row["in_slo"] < row["in_slo_limit"]:
        yield (
            f"{named}: {number(100 * row['in_slo'])} % of requests are in time, but serving.load.keep is "
            f"{100 * row['in_slo_limit']:g} %; more groups were not tried, or do not help."
        )


def _unsteady(row: Row, named: str, cases: Cases) -> Iterator[str]:
    from mfabric_jax.apps.serving.steady import falls_behind, is_too_short, overloaded_pools, times_too_short

    arrive, done, life, window = (
        row[name] for name in ("load_requests_per_s", "requests_per_s", "load_e2e_p50_s", "load_window_s")
    )
    if full := overloaded_pools(row):
        groups = " and ".join(f"serving.load.{pool}_groups" for pool in full)
        rates = f"{number(arrive)} requests per second arrive and {number(done)} finish"
        yield f"{named}: the pools do not keep up: {rates}; raise {groups}, or lower the load."
    elif is_too_short(row):
        yield (
            f"{named}: the load is too short: {number(window)} s are counted after the warm-up, "
            f"{number(window / life, 2)} times a median request ({number(life)} s), "
            "so pools are still filling up and look better than in steady state; "
            f"{_longer(row, cases, times_too_short(row))}."
        )
    elif falls_behind(row):
        rates = f"{number(arrive)} requests per second arrive, {number(done)} finish"
        yield f"{named}: {rates}: the pools do not keep up; {_longer(row, cases)}."


def _longer(row: Row, cases: Cases, times: float | None = None) -> str:
    """Return how to lengthen a load, by `times` if known; a log may have no more requests."""
    load = next(iter(cases)).serving.load
    read = row["load_requests"] + row["refused"] + (row["left_out"] or 0)
    exhausted = load.arrivals is not None and read < load.requests * load.repeat
    to = "" if times is None else f" to {_round_up(times * (load.repeat if exhausted else read / load.repeat)):,}"
    return f"raise serving.load.{f'repeat{to}, because the log has no more requests' if exhausted else f'requests{to}'}"


def _round_up(value: float) -> int:
    """The next whole number of two digits and zeros."""
    step = 10 ** max(0, len(str(int(value))) - 2)
    return step * math.ceil(value / step)


def best_rows(every: list[Row]) -> list[Row]:
    """Return the cheapest row in time of each model and load."""
    from mfabric_jax.apps.serving.search import cheapest, rows_within_limits

    best = (cheapest(rows_within_limits(own)) for own in _by_load(every))
    return [row for row in best if row is not None]


def _by_load(every: list[Row]) -> list[list[Row]]:
    return list(group_rows(every, "model", *_loads(every)).values())


def _loads(every: list[Row]) -> list[str]:
    """Return the columns in which the loads and the time limits of rows differ."""
    loads = [name for name in settings_of(every) if name.startswith(NO_CHOICE) and not name.endswith("_groups")]
    return [*loads, *(name for name in LIMITS if name in apart_of(every))]


def conclusions(every: list[Row]) -> Iterator[str]:
    """Yield the cheapest row of each model and load that fits and is in time, or that no row is, and which do not
    rank."""
    from mfabric_jax.apps.serving.search import cheapest, rows_within_limits

    for own in _by_load(every):
        best = cheapest(good := rows_within_limits(own))
        if not good:
            named = ", ".join([str(own[0]["model"]), *(_of_column(own[0], name) for name in _loads(every))])
            yield f"{named}: no row fits the memory{_aims(own)}."
        elif best is not None:
            named = f"{name_row(best, every)}, batch {best['batch']:g}"
            words = f"{_opening(best)}: {named}, at {_dollars(best)}, prefill included."
            yield f"{words}{_at_half_load(best)}{_equals(best, own)}"
    yield from unjoined_words(rows_within_limits(every))


def _at_half_load(row: Row) -> str:
    """Return the dollars if a load that was served at its peak is half of it on average."""
    usd = half_load_usd(row)
    return "" if usd is None else f" At half this load on average: about {number(usd)} $."


def _aims(rows: list[Row]) -> str:
    """Return what rows must do apart from fitting the memory."""
    loaded = any(row.get("load_requests") is not None for row in rows)
    return " and is in time" * _is_timed(rows[0]) + " and keeps up with the load" * loaded


def _is_timed(row: Row) -> bool:
    return row["tpot_limit_s"] is not None or row["ttft_limit_s"] is not None


def _opening(row: Row) -> str:
    """Return the first words on the cheapest row, with what its load does not show."""
    from mfabric_jax.apps.serving.steady import falls_behind, is_too_short

    if row.get("load_requests") is None:
        return f"Cheapest{' in time' * _is_timed(row)}"
    if falls_behind(row):
        return "Cheapest, but its pools do not keep up with the load"
    if is_too_short(row):
        return "Cheapest, but the load is too short to show a steady state"
    if row["in_slo_limit"] is None:  # no part of requests has to be in time
        return (
            "Cheapest"
            if row["in_slo"] is None
            else f"Cheapest, with {number(100 * row['in_slo'])} % of requests in time"
        )
    return "Cheapest in time"


PRINTED = "ep", "batch", "tpot_s", "ttft_s", "tokens_per_s_per_gpu", "usd_per_million_tokens"
PRINTED_OF_LOAD = "in_slo", "load_ttft_p99_s", "load_tpot_p99_s", "load_usd_per_million_tokens"


def _equals(best: Row, rows: list[Row]) -> str:
    """Return the fabrics whose printed digits equal those of the best row."""

    def digits(row: Row) -> list[Any]:
        named = [row[name] for name in (*apart_of(rows), "model")]
        printed = (row.get(name) for name in (*PRINTED, *PRINTED_OF_LOAD))
        return [*named, *(None if value is None else number(value) for value in printed)]

    alike = [row["fabric"] for row in rows if digits(row) == digits(best)]
    alike = [name for name in dict.fromkeys(alike) if name != best["fabric"]]
    return f" Equal in every printed digit: {', '.join(alike)}." if alike else ""


def client_conclusions(rows: list[Row]) -> Iterator[str]:
    """Yield the most clients in time of each replica, where rows have a limit and differ in clients."""
    apart = apart_of_replicas(rows)
    limited = [row for row in rows if row["tpot_limit_s"] is not None and CLIENTS in apart]
    others = [name for name in apart if name != CLIENTS]
    for own in group_rows(limited, *others).values():
        first = own[0]
        named = ", ".join([str(first["model"]), *(f"{name} {first[name]}" for name in others if name != "model")])
        end = " at the slow end of the band" * (first["by"] == "high")
        within = f"{units.to_ms(first['tpot_limit_s']):g} ms a token{end}"
        most = max((row for row in own if row["in_time"]), key=lambda row: row[CLIENTS], default=None)
        if most is None:
            yield f"{named}: no stated number of clients is within {within}."
            continue
        usd = most["usd_per_million_tokens"]
        cost = "" if usd is None else f", at {number(usd)} $ a million answer tokens"
        end = "; more were not tried" if most[CLIENTS] == max(row[CLIENTS] for row in own) else ""
        yield f"{named}: of the stated clients, at most {most[CLIENTS]} are within {within}{cost}{end}."


def end_of_band(rows: list[Row]) -> str:
    """Return which end of the band times under a load are at; an empty text if rows differ."""
    ends = {row["by"] for row in rows if row["load_requests"] is not None}
    return (
        {"high": ", at the slow end of the band", "predicted": ", as predicted"}[ends.pop()] if len(ends) == 1 else ""
    )


def locality_sentences(rows: list[Row], cases: Cases) -> Iterator[str]:
    """Yield that groups of the best rows lie inside servers, so that only caches cross their network."""
    from mfabric_jax.evaluate.resolving.resolve import gpu_of

    servers = {case.gpu.name: gpu_of(case).gpus_per_server for case in cases}
    yield from dict.fromkeys(filter(None, (locality_words(row, servers[row["gpu"]]) for row in best_rows(rows))))


def row_sentences(shown: list[Row], every: list[Row]) -> Iterator[str]:
    """Yield which `shown` rows do not fit, or are faster with one micro-batch, and the meaning of the band."""
    for row in shown:
        yield from _of_memory(row, name_row(row, shown))
    yield from _of_one_batch(shown)
    yield _of_band(every)
    yield from _of_estimates(every)


def context_sentences(cases: Cases) -> Iterator[str]:
    """Yield that a context is not that of the stated prompts and answers."""
    stated = (
        (case.serving.prompt, case.serving.answer, case.serving.context) for case in cases if _reads_context(case)
    )
    for prompt, answer, context in dict.fromkeys(stated):
        if prompt is not None and context != prompt + answer / 2:
            yield (
                f"Steps are timed at {context:,.6g} tokens of context; prompts of {prompt:,.6g} and answers of "
                f"{answer:,.6g} tokens have {prompt + answer / 2:,.6g} on average (--context)."
            )


def replica_sentences(cases: Cases) -> Iterator[str]:
    """Yield what the columns of replicas leave out, whose kernels they take, and how a fitted time of hosts counts."""
    yield from OF_REPLICAS
    if any(case.serving.replica.engine is None for case in cases):
        yield "engine: the fastest kernels of all engines, prompts in separate passes; --engine names yours."
    yield from host_sentences(cases)


def host_sentences(cases: Cases) -> Iterator[str]:
    """Yield that the slow end, the default rule, counts a fitted `serving.host_s` twice."""
    from mfabric_jax.apps.serving.deployment import limit_basis

    if any(case.serving.host_s and case.serving.by is None and limit_basis(case) == "high" for case in cases):
        yield (
            "The slow end of the band already contains host time: if you fitted serving.host_s to a measurement, it "
            "counts twice; add --by predicted."
        )


def network_sentences(rows: list[Row]) -> Iterator[str]:
    """Yield for how many GPUs the network of each best row is priced, and with how many tiers."""
    for best in best_rows(rows):
        if best["network_tiers"] is not None:
            of = "both pools" if best.get("load_requests") is not None else "one group of each pool"
            yield (
                f"{name_row(best, rows)}: its network is priced as a {best['network_tiers']}-tier tree for "
                f"{best['network_gpus']:,} GPUs, {of}."
            )


def domain_sentences(cases: Cases) -> Iterator[str]:
    """Yield how many GPUs the domains of fabrics have, whose dollars rows count by the share that is used."""
    from mfabric_jax import fabric
    from mfabric_jax.evaluate.resolving.resolve import gpu_of

    fabrics = {case.network.fabric: (fabric.get(case.network.fabric), gpu_of(case)) for case in cases}
    for name, (on, gpu) in fabrics.items():
        if on.domain_gpus is None:
            continue
        built, used = on.physical_gpus(gpu), on.gpus_of(gpu)
        idle = f", {used} of them at work" if used < built else ""
        yield (
            f"{name}: GPUs come in domains of {built}{idle}. Dollars count the share of a domain that a group takes; "
            "whole domains cost more."
        )


def _of_one_batch(rows: list[Row]) -> Iterator[str]:
    chosen = [row for row in rows if row["tpot_limit_s"] is None and row["overlap"]]
    quicker = [row for row in chosen if row["serial_s"] < row["tpot_s"]]
    if quicker:
        best = min(quicker, key=lambda row: row["serial_s"] / row["tpot_s"])
        as_one, as_two = (units.to_ms(best[name]) for name in ("serial_s", "tpot_s"))
        counted = f"{len(quicker)} of {count_phrase(len(rows), 'row')} {'is' if len(quicker) == 1 else 'are'}"
        yield (
            f"Two micro-batches overlap, but read the weights of experts twice: {counted} faster with one. "
            f"{name_row(best, rows)}, batch {best['batch']:g} takes "
            f"{number(as_one)} ms instead of {number(as_two)}. Try --set serving.overlap=false and twice the batch."
        )


def _of_band(rows: list[Row]) -> str:
    from mfabric_jax.apps.serving.serving_steps import measured_facts
    from mfabric_jax.apps.serving.step import MEASURED_OVER_PREDICTED

    measured = measured_words(measured_facts(), rows, best_rows(rows) or rows)
    steps, passes = ("{:g} to {:g}".format(*MEASURED_OVER_PREDICTED[what]) for what in ("tpot", "prefill"))
    timed = any(map(_is_timed, rows))
    judged = ". Rows are in time by their prediction (--by predicted)"
    if any(row["by"] == "high" for row in rows):
        judged = ". Rows are in time at the slow end (--by predicted uses the prediction)"
    return (
        "band: at its fast end kernels are fast and hide all communication; its slow end is the prediction times the "
        f"largest ratio measured. Measured steps took {steps} times their prediction, prefill passes {passes} times"
        f"{judged * timed}. {measured} "
        f"{PAGE} has the rows."
    )


def _of_estimates(rows: list[Row]) -> Iterator[str]:
    """Yield which GPUs have estimates of kernels."""
    from mfabric_jax.workload.gpus import GPUS
    from mfabric_jax.workload.kernels import has_family
    from mfabric_jax.workload.measured_kernels import LIKE, known_facts

    named = list(dict.fromkeys(row[name] for row in rows for name in ("gpu", "prefill_gpu")))
    measured = [name for name in named if LIKE.get(name, name) in known_facts()]
    partly = [name for name in measured if has_family(GPUS[name])]
    if partly:
        yield (
            f"{', '.join(partly)}: kernel times are fitted to public tables (the fastest engine), and estimates where "
            'these lack a kernel (decoding attention, dispatch, combine). The page "GPUs" has the sources.'
        )
    if others := [name for name in named if name not in measured]:
        yield f"{', '.join(others)}: kernel times are wide estimates, unless you state a table."


def _of_memory(row: Row, named: str) -> Iterator[str]:
    if not row["fits"] and row["requests"] > row["most_requests"]:
        held = max(0, int(row["most_requests"]))
        yield f"{named}: {row['requests']:g} requests per GPU do not fit; memory holds {held}."
    if row["prefill_memory_gb"] > row["prefill_gpu_memory_gb"]:
        yield (
            f"{named}: GPUs that prefill need {number(row['prefill_memory_gb'])} GB and have "
            f"{row['prefill_gpu_memory_gb']:g}; "
            f"raise serving.prefill.ep above {row['prefill_ep']}, so that more GPUs share the experts."
        )


def price_sentences(rows: list[Row], cases: Cases) -> list[str]:
    """Return the missing prices or powers that leave dollars or joules empty."""
    from mfabric_jax.apps.serving.rows import unknown_prices

    empty = {(row["model"], row["fabric"]) for row in rows if row["usd_per_million_tokens"] is None}
    empty |= {(row["model"], row["fabric"]) for row in rows if row["kj_per_million_tokens"] is None}
    fabrics, sentences = {fabric for _, fabric in empty}, []
    for case in cases:
        if case.network.fabric in fabrics:
            sentences += unknown_prices(case)
    lacks = list(dict.fromkeys(sentences))
    return [*lacks, "Dollars per million answer tokens include energy, so they need price and power."] if lacks else []
