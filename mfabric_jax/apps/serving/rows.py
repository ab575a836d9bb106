"""Rows of a serving comparison, one per case."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from mfabric_jax import fabric, units
from mfabric_jax.apps.serving import request_load
from mfabric_jax.apps.serving.columns import QUOTES_OF_TOKENS, SPLIT
from mfabric_jax.apps.serving.deployment import (
    PASS,
    Decoding,
    Deployment,
    check_sizes,
    limit_basis,
)
from mfabric_jax.apps.serving.disaggregated import Split
from mfabric_jax.apps.serving.disaggregated import is_split as split_stated
from mfabric_jax.apps.serving.group import check_network, group_of
from mfabric_jax.apps.serving.kinds import prefill_case
from mfabric_jax.apps.serving.limits import is_in_time
from mfabric_jax.apps.serving.pools import cached_deployment, prefill_choices, with_prefill_only
from mfabric_jax.apps.serving.sizing import (
    UNKNOWN,
    Best,
    PrefillChoice,
    batches_of,
    best_of,
    candidates_of,
    decode_choices,
    fewest,
)
from mfabric_jax.apps.serving.step import MEASURED_OVER_PREDICTED, band
from mfabric_jax.case import Case, Cases
from mfabric_jax.case import cases as several
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import gpu_of
from mfabric_jax.evaluate.rows.costs import bill_of, unknown_parts
from mfabric_jax.evaluate.rows.results import provenance, side_by_side, warn_of_unread_gpus
from mfabric_jax.workload.kernels import HOW

THOUSAND = 1000
LOAD_USD = "load_usd_per_million_tokens"


def serve(
    cases: Case | Cases,
    *,
    start: int = 0,
    progress: Callable[[str], None] = lambda words: None,
) -> Iterator[dict[str, Any]]:
    """Yield a row per case as soon as it is ready: time per token, tokens per second, parts of a step, and cost.

    - `start`: number of cases to skip.

    Rows also have `columns.LOADED` if any case states a load, `columns.SPLIT` if any is split, and a column for
    each other setting that differs between cases, named by its path. Under a load all columns are at its mean context,
    and with `serving.tpot_ms` open settings of prefill are searched. Raise `InputError` and `Misfit` as `deployment`
    does.
    """
    case_set = several(cases)
    every = list(case_set)
    arriving, splitting = any(map(request_load.has_load, every)), any(map(split_stated, every))
    for case in every:
        check_case(case)
    for case in every[start:]:
        loaded = request_load.with_load_context(case)
        deployed = cached_deployment(loaded)
        progress(work_name(case, case.serving.ep))
        searching = request_load.has_load(case) and case.serving.tpot_ms is not None
        prefill = prefill_choices(with_prefill_only(loaded)) if searching else [PrefillChoice.of(deployed)]
        member, outcome = next(best_members(deployed, prefill, progress))
        row = full_row(member, outcome, arriving=arriving, splitting=splitting)
        yield row | case_set.differences(case, SHOWN)


def work_name(case: Case, size: int) -> str:
    """Return the words that name a row at work."""
    return f"{case.model.name} on {case.network.fabric}, {case.gpu.name}, ep {size}"


Member = tuple[Deployment, request_load.LoadOutcome | None]


def best_members(
    deployed: Deployment, prefill: Sequence[PrefillChoice], progress: Callable[[str], None], best: Best = UNKNOWN
) -> Iterator[Member]:
    """Yield the deployment with its best batch and the best of the `prefill` pools, and the outcome of its load.

    Under a load, this is the member with the fewest GPUs that serves it within the limits. Without a load, the cheapest
    member follows if it differs. Without `serving.tpot_ms`, yield the deployment unchanged. Raise `TooDear` if no
    member can be as good as `best` under a load.
    """
    case = deployed.case
    if case.serving.tpot_ms is None:
        yield deployed, request_load.run_load(deployed) if request_load.has_load(case) else None
    elif request_load.has_load(case):
        yield fewest(decode_choices(deployed), prefill, progress, best)
    else:
        batches = [batches_of(candidate, case.serving.context) for candidate in candidates_of(deployed)]
        yield from ((member, None) for member in best_of(batches, prefill))


def full_row(
    deployed: Deployment, outcome: request_load.LoadOutcome | None, *, arriving: bool, splitting: bool = False
) -> dict[str, Any]:
    """Return `row_of`, with the columns of a split and of a load if any row has them."""
    case, row = deployed.case, row_of(deployed)
    if (
        request_load.has_load(case) and case.serving.tpot_ms is not None
    ):  # the load's contexts, not `serving.context`, must fit
        fits = outcome is not None and deployed.prefill_fits
        row |= {"fits": fits, "bound_by": deployed.slowest(deployed.decoding(deployed.numbers)) if fits else "memory"}
    more = _split_columns(deployed) if splitting else {}
    more |= request_load.columns(deployed, outcome) if arriving else {}
    if outcome is not None:
        groups = outcome.decode.groups, outcome.prefill.groups
        more |= _network_columns(deployed, groups) | _quoted_at_load(deployed, groups, more[LOAD_USD])
    return row | {"in_time": is_in_time(row | more)} | more


SHOWN = {  # settings that have columns
    *("model.name", "gpu.name", "network.fabric", "network.nic_gbps"),
    *(f"serving.{name}" for name in ("ep", "tp", "batch", "context", "kernels", "tpot_ms", "formats.dispatch")),
    *(f"serving.{name}" for name in ("overlap", "prefill.overlap", "prefill.tokens", "load.ttft_ms", "by")),
    *(
        "serving.prefill.gpu",
        "serving.prefill.nic_gbps",
        "serving.prefill.ep",
        "serving.split.attention_gpus",
        "serving.split.expert_gpus",
    ),
}


def _split_columns(deployed: Deployment) -> dict[str, Any]:
    if not isinstance(deployed, Split):
        return dict.fromkeys(SPLIT)
    return deployed.columns(deployed.decoding(deployed.numbers))


def check_case(case: Case) -> None:
    """Check network, kernels and sizes of a case before anything is solved. Raise `InputError` or `Misfit`."""
    check_network(case)
    check_network(prefill_case(case))
    if not split_stated(case):
        check_sizes(case)


EXPERTS = "expert_load", "rank_load_over_mean", "rank_load_over_mean_in_order"


def unknown_prices(case: Case) -> list[str]:
    """Return a sentence for each unknown price and power that the case's dollars and joules need."""
    prefill = prefill_case(case)
    return _unknown_prices(case) + (_unknown_prices(prefill) if prefill != case else [])


def _unknown_prices(case: Case) -> list[str]:
    sizes = case.serving.split.attention_gpus or case.serving.ep, case.serving.split.expert_gpus or 0
    try:
        group = group_of(case, sum(sizes))
    except Misfit:  # a search states no size
        group = group_of(case, fabric.get(case.network.fabric).gpus_of(gpu_of(case)))
    bill = bill_of(group.hardware, group.shape, case.network.nic_gbps)
    return list(unknown_parts(group.hardware, bill))


def row_of(deployed: Deployment) -> dict[str, Any]:
    """Return the row of a deployment for the numbers of its case."""
    case, numbers = deployed.case, deployed.numbers
    decoding = deployed.decoding(numbers)
    names = {
        "model": deployed.decode.model.architecture.name,
        "gpu": case.gpu.name,
        "fabric": case.network.fabric,
        "nic_gbps": case.network.nic_gbps,
        "kernels": deployed.decode.family.name,
        "precision": case.serving.formats.dispatch,
        "ep": deployed.decode.model.gpus,
        "tp": case.serving.tp,
        "batch": case.serving.batch,
        "context": case.serving.context,
        "overlap": deployed.overlap,
        **dict(zip(EXPERTS, (deployed.decode.taken.words, *deployed.decode.uneven()), strict=True)),
    }
    memory = _memory_columns(deployed, decoding)
    dollars, joules = deployed.per_million(decoding, numbers.nic_gbps)
    row = {
        **names,
        **_step_columns(deployed, decoding),
        **_prefill_columns(deployed, decoding),
        **memory,
        "usd_per_million_tokens": _number(dollars),
        "kj_per_million_tokens": None if joules is None else float(joules) / THOUSAND,
        **_network_columns(deployed, deployed.groups),
        **dict.fromkeys(QUOTES_OF_TOKENS),
        **{name: _number(deployed.per_million(decoding, numbers.nic_gbps, name)[0]) for name in deployed.quotes},
        "bound_by": deployed.slowest(decoding) if memory["fits"] else "memory",
    }
    return row | {"in_time": is_in_time(row)}


def _network_columns(deployed: Deployment, groups: tuple[int, int]) -> dict[str, Any]:
    network, has_tree = deployed.network_of(groups), deployed.decode.group.tree_nics > 0
    return {"network_gpus": network.gpus, "network_tiers": network.tiers if has_tree else None}


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


def _quoted_at_load(deployed: Deployment, groups: tuple[int, int], usual: float | None) -> dict[str, float]:
    """Dollars at a load at other quoted prices."""
    usd, known = deployed.usd_per_s(groups), {name: deployed.usd_per_s(groups, name) for name in deployed.quotes}
    if usual is None or usd is None:
        return {}
    return {name: usual * each / usd for name, each in known.items() if each is not None}


def _step_columns(deployed: Deployment, decoding: Decoding) -> dict[str, Any]:
    numbers, serving, step = deployed.numbers, deployed.case.serving, decoding.step
    low_s, high_s = band(deployed.decoding(numbers, HOW[-1]), decoding.tpot_s, "tpot")
    return {
        "tpot_s": float(decoding.tpot_s),
        "tpot_limit_s": _limit_s(serving.tpot_ms),
        "tpot_low_s": low_s,
        "tpot_high_s": high_s,
        "overlapped_s": float(decoding.overlapped_s),
        "serial_s": float(decoding.serial_s),
        "ttft_s": float(deployed.first_token_s(numbers.nic_gbps, decoding)),
        "ttft_limit_s": _limit_s(serving.load.ttft_ms),
        "ttft_high_s": _first_token_high_s(deployed, decoding),
        "by": limit_basis(deployed.case),
        "tokens_per_s_per_gpu": float(decoding.tokens_per_s),
        "tokens_per_s_per_user": 1 / float(decoding.tpot_s),
        "dispatch_s": float(step.dispatch_s),
        "combine_s": float(step.combine_s),
        "attention_s": float(step.attention_s),
        "experts_s": float(step.experts_s),
        "beside_s": float(step.beside_s),
        "exposed_comm_s": float(step.exposed_s),
        "kv_transfer_s": float(deployed.transfer_s(numbers.nic_gbps)),
    }


def _first_token_high_s(deployed: Deployment, decoding: Decoding) -> float:
    """As `Deployment.first_token_s`, at the slow end of the band."""
    nic_gbps, most = deployed.numbers.nic_gbps, {what: ends[1] for what, ends in MEASURED_OVER_PREDICTED.items()}
    pass_s = most["prefill"] * deployed.prefilling(nic_gbps).step_s
    return float(deployed.prompt_s(nic_gbps, pass_s) + most["tpot"] * decoding.step.step_s)


def _limit_s(limit_ms: float | None) -> float | None:
    return None if limit_ms is None else units.ms(limit_ms)


def _prefill_columns(deployed: Deployment, decoding: Decoding) -> dict[str, Any]:
    nic_gbps = deployed.numbers.nic_gbps
    usual = deployed.prefilling(nic_gbps)
    low_s, high_s = band(deployed.prefilling(nic_gbps, HOW[-1]), usual.step_s, "prefill")
    return {
        "prefill_s": float(usual.step_s),
        "prefill_low_s": low_s,
        "prefill_high_s": high_s,
        "prefill_tokens_per_s_per_gpu": deployed.pass_tokens / float(usual.step_s),
        "prefill_memory_gb": float(units.to_gigabytes(deployed.prefill_bytes)),
        "prefill_gpu": deployed.prefill.group.gpu.name,
        "prefill_nic_gbps": deployed.prefill.nic_gbps,
        "prefill_gpu_memory_gb": float(units.to_gigabytes(deployed.prefill.gpu_bytes)),
        "prefill_ep": deployed.prefill.model.gpus,
        "prefill_tokens": deployed.case.serving.prefill.tokens or PASS,
        "prefill_overlap": deployed.prefill_overlap,
        "prefill_gpus": float(deployed.prefill_share(decoding, nic_gbps)),
    }


def _memory_columns(deployed: Deployment, decoding: Decoding) -> dict[str, Any]:
    context, held = deployed.numbers.context, float(decoding.requests)
    most = float(deployed.most_requests(context))
    return {
        "requests": held,
        "most_requests": most,
        "memory_gb": float(units.to_gigabytes(deployed.memory_bytes(held, context))),
        "gpu_memory_gb": float(units.to_gigabytes(deployed.decode.gpu_bytes)),
        "fits": held <= most and deployed.prefill_fits,
        "batch_limit": _batch_limit(deployed, most),
    }


def _batch_limit(deployed: Deployment, most: float) -> str | None:
    """Whether memory or time limits the batch; None without `serving.tpot_ms`."""
    if deployed.case.serving.tpot_ms is None:
        return None
    more = deployed.decoding(deployed.numbers._replace(batch=deployed.case.serving.batch + 1))
    return "memory" if float(more.requests) > most else "time"


def effective(cases: Cases) -> dict[str, Any]:
    """Return the stated settings of cases with their sources, and all resolved settings."""
    each = [block.case for block in cases.blocks]
    warn_of_unread_gpus(own for case in each for own in (case, prefill_case(case)))
    resolved = side_by_side(each, cases)
    facts = {"stated": dict(cases.stated), "resolved": resolved, "sources": dict(cases.sources)}
    return facts | {"varied": list(cases.varied)} | provenance("float64")
