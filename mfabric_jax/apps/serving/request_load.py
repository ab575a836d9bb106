"""A deployment under load: tables of seconds for its pools, and the times that requests see.

One table gives the seconds of a step by requests of a GPU and mean context, the other the seconds of a pass by tokens
of a GPU and prompt length. The event loop only interpolates.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from mfabric_jax import units
from mfabric_jax.apps.serving.arrivals import Requests, poisson, read_arrivals, repeat_requests, stretch_to_rate
from mfabric_jax.apps.serving.columns import LOADED
from mfabric_jax.apps.serving.deployment import PASS, Deployment, prompt_of
from mfabric_jax.apps.serving.expert_load import SURE
from mfabric_jax.apps.serving.layer_parts import cache_bytes, state_bytes
from mfabric_jax.apps.serving.queueing import (
    DecodePool,
    Late,
    Limits,
    LookupTable,
    PrefillPool,
    Timeline,
    Wire,
    simulate,
)
from mfabric_jax.apps.serving.steady import falls_behind
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.rows.costs import MILLION

GRID = 48, 24  # points of the table of steps: requests, context
PASSES = 24, 8  # points of the table of passes: tokens, prompts
LEAST_PASS = 16  # tokens of a micro-batch; fewer take equally long
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
SHOWN_PAIRS = 3
FILLED = 0.8  # fraction to which passes are filled when the number of prefill groups is not stated


def has_load(case: Case) -> bool:
    """Whether a case states a load."""
    return case.serving.load.rate is not None or case.serving.load.arrivals is not None


def requests_of(deployed: Deployment) -> Requests:
    """Return the requests of the case's `serving.load`, in the order of arrival."""
    case, load = deployed.case, deployed.case.serving.load
    if load.arrivals is None and load.turns == "after":
        raise InputError(
            "serving.load.turns must be open without serving.load.arrivals, a log of requests, got 'after'."
        )
    if load.arrivals is None:
        assert load.rate is not None, "a load has a rate or a trace"
        count = load.requests * load.repeat
        return poisson(load.rate, count, deployed.prompt, deployed.fresh, case.serving.answer, case.run.seed)
    requests = _read_log(case)
    return repeat_requests(requests if load.rate is None else stretch_to_rate(requests, load.rate), load.repeat)


def _read_log(case: Case) -> Requests:
    load = case.serving.load
    assert load.arrivals is not None, "the case names a log"
    return read_arrivals(load.arrivals, load.requests, load.unit, load.block, load.turns)


def with_load_context(case: Case) -> Case:
    """Return the case with the mean context of its load instead of `serving.context`. A log also gives its mean answer
    and, unless `serving.prompt` is stated, its median prompt. Unchanged without a load. Raise `InputError` for an
    unreadable log."""
    if not has_load(case):
        return case
    prompt = prompt_of(case)
    if case.serving.load.arrivals is None:
        return case.with_({"serving.prompt": prompt, "serving.context": prompt + case.serving.answer / 2})
    requests = _read_log(case)
    prompt = case.serving.prompt or max(1, round(float(np.median(requests.prompt))))
    answer = max(1, round(float(requests.answer.mean())))
    of_log = {"serving.prompt": prompt, "serving.answer": answer, "serving.context": mean_context(requests)}
    return case.with_(of_log)


# ---------------------------------------------------------------------------------------------------------------- pools
def _decode_groups(case: Case) -> int:
    return case.serving.load.decode_groups or 1


def decode_pool(deployed: Deployment, requests: Requests) -> DecodePool:
    """Return the decoding pool; a GPU holds the requests of `serving.batch` if they fit its memory."""
    deployed = deployed.steady()
    model, numbers = deployed.decode.model, deployed.numbers
    alone = deployed.decode.group.shape.gpus / deployed.holders  # above 1 if some GPUs hold no requests
    most = max(1, int(deployed.decoding(numbers).requests * alone * model.tp * (1 + SURE)))
    room = float(deployed.most_requests(1.0) * alone * model.tp * deployed.request_bytes(1.0))
    count = deployed.holders // model.tp
    held = np.geomspace(1 / count, max(most, 2 / count), GRID[0])
    context = np.geomspace(requests.prompt.min(), (requests.prompt + requests.answer).max(), GRID[1])
    batch = deployed.batch_of(held / model.tp)
    judged_s = deployed.tpot_for_limit_s(numbers._replace(batch=batch[:, None], context=context[None]))
    tokens = 1 + numbers.accepted
    step = LookupTable(held, context, np.broadcast_to(judged_s * tokens, (len(held), len(context))))
    return DecodePool(_decode_groups(deployed.case), count, most, room, deployed.request_bytes, step, tokens)


def prefill_pool(deployed: Deployment, requests: Requests, groups: int | None = None) -> PrefillPool:
    """Return the prefill pool.

    - `groups`: by default as stated, else the fewest that keep up with passes filled to `FILLED`. They must keep up
      with arrivals, or with full decoding groups if those handle fewer requests.
    """
    case, model = deployed.case, deployed.prefill.model
    low, high = float(requests.prompt.min()), float(requests.prompt.max())
    prompts = np.unique(np.geomspace(low, high, PASSES[1] if high > low else 1).round())
    most = case.serving.prefill.tokens or PASS
    tokens = np.unique(np.geomspace(min(LEAST_PASS, most), most, PASSES[0]).round())
    seconds = [[_pass_s(deployed, int(some), int(prompt)) for prompt in prompts] for some in tokens]
    taken = tokens * model.tp * (2 if deployed.prefill_overlap else 1)
    table = LookupTable(taken, prompts, np.array(seconds))
    groups = groups or case.serving.load.prefill_groups or _keeping_up(deployed, requests)
    return PrefillPool(groups, deployed.prefill.group.shape.gpus // model.tp, float(taken[-1]), table)


def _pass_s(deployed: Deployment, tokens: int, prompt: int) -> float:
    case = deployed.case.with_({"serving.prefill.tokens": tokens, "serving.prompt": prompt})
    return float(dataclasses.replace(deployed, case=case).pass_for_limit_s(case.network.nic_gbps))


def _keeping_up(deployed: Deployment, requests: Requests) -> int:
    served = _decode_groups(deployed.case) * capacity(deployed, requests)
    prompt_tokens_per_s = min(served / requests.answer.mean(), requests.rate) * requests.fresh.mean()
    return max(1, math.ceil(prompt_tokens_per_s / (FILLED * prefill_capacity(deployed, requests))))


def mean_context(requests: Requests) -> float:
    """Return the mean tokens in the cache of a decoding request: its prompt and half of its answer."""
    return float((requests.prompt + requests.answer / 2).mean())


POINTS = 1024  # numbers of requests at which `capacity` is evaluated, in each of two passes


def capacity(deployed: Deployment, requests: Requests) -> float:
    """Return the most answer tokens per second of a decoding group.

    Batch, memory and, if stated, `serving.tpot_ms` limit its requests. The result is the maximum over all numbers of
    requests up to that limit, so a larger batch never decodes less.
    """
    context, case = mean_context(requests), deployed.case
    numbers = deployed.numbers._replace(context=context)
    stated, fits = float(deployed.decoding(numbers).requests), float(deployed.most_requests(context))
    held, gpus = min(stated, fits), deployed.decode.group.shape.gpus
    if case.serving.tpot_ms is None:
        numbers = numbers._replace(batch=deployed.batch_of(held)) if fits < stated else numbers
        return gpus * held / float(deployed.tpot_for_limit_s(numbers))
    steady, limit_s = deployed.steady(), float(units.ms(case.serving.tpot_ms))
    low, high = 0.0, held
    for _ in range(2):  # the second pass is between the neighbours of the best point
        some = np.linspace(low, high, POINTS + 1)[1:]
        seconds = np.asarray(steady.tpot_for_limit_s(numbers._replace(batch=deployed.batch_of(some)))) + 0 * some
        rate = np.where(seconds <= limit_s, some / seconds, 0.0)
        best = int(rate.argmax())
        if not rate[best]:  # all are late: take the best rate of all
            return gpus * float((some / seconds).max())
        low, high = some[max(0, best - 1)], some[min(POINTS - 1, best + 1)]
    return gpus * float(rate[best])


def prefill_capacity(deployed: Deployment, requests: Requests) -> float:
    """Return the prompt tokens per second of a prefill group, in full passes."""
    seconds = _pass_s(deployed, deployed.case.serving.prefill.tokens or PASS, round(float(requests.prompt.mean())))
    return deployed.prefill.group.shape.gpus * deployed.pass_tokens / seconds


def wire_of(deployed: Deployment) -> Wire:
    """Return the wire of a transfer: a request uses a GPU's NIC at each end, as in `Deployment.transfer_s`."""
    model = deployed.decode.model
    sender, receiver = map(float, deployed.transfer_Bps(deployed.case.network.nic_gbps))
    return Wire(sender, receiver, lambda prompt: cache_bytes(model, prompt) + state_bytes(model))


# -------------------------------------------------------------------------------------------------------------- results
class LoadOutcome(NamedTuple):
    """Requests, pools and events of a simulated load.

    - `requests`: with the times at which they arrived; after answers, these are not in order.
    - `first`: number of the first request that counts; earlier ones warm up the pools.
    - `refused`: requests larger than a GPU's memory; `refused_late`: how many of these arrive after the warm-up.
    """

    requests: Requests
    prefill: PrefillPool
    decode: DecodePool
    wire: Wire
    timeline: Timeline
    refused: int
    first: int
    refused_late: int = 0

    @property
    def window(self) -> tuple[float, float]:
        """Moments of the first and last counted arrival [s]."""
        counted = self.requests.arrival_s[self.first :]
        return float(counted.min()), float(counted.max())

    @property
    def ttft_s(self) -> Float[np.ndarray, "R"]:
        """Seconds from arrival to first token."""
        return self.timeline.first_s - self.requests.arrival_s

    @property
    def first_token_s(self) -> float:
        """The p99 of `ttft_s` of requests that count."""
        return float(np.quantile(self.ttft_s[self.first :], QUANTILES["p99"]))

    @property
    def e2e_s(self) -> Float[np.ndarray, "R"]:
        """Seconds from arrival to last token."""
        return self.timeline.end_s - self.requests.arrival_s

    @property
    def tpot_s(self) -> Float[np.ndarray, "R"]:
        """Mean seconds from token to token; nan for an answer of one token."""
        further = np.where(self.requests.answer > 1, self.requests.answer - 1, math.nan)
        return (self.timeline.end_s - self.timeline.first_s) / further


class AdmittedLoad(NamedTuple):
    """The load of a deployment: `requests` that fit its memory, how many it refuses (`refused_late` of them after the
    warm-up), and the number of the first request that counts."""

    requests: Requests
    refused: int
    refused_late: int
    first: int


def admitted_load(deployed: Deployment) -> AdmittedLoad | None:
    """Return the case's load; None if no request fits the memory. Raise `InputError` for an unreadable log."""
    requests = requests_of(deployed)
    decode = decode_pool(deployed, requests)
    fits = decode.reserved_bytes(requests) <= decode.room
    if not fits.any():
        return None
    kept = requests.select(fits)
    first = int(deployed.case.serving.load.warmup * len(kept))
    since = int(np.flatnonzero(fits)[first])
    return AdmittedLoad(kept, int((~fits).sum()), int((~fits[since:]).sum()), first)


def limits_of(case: Case, load: AdmittedLoad) -> Limits:
    """Return the limits on requests, and how many may be late by `serving.load.keep`. Refused requests are late."""
    (late_s, slow_s), keep = _limits_s(case), case.serving.load.keep
    counted = len(load.requests) - load.first + load.refused_late
    about = int(counted * (1 - keep)) + 1
    most = next(late for late in range(about, -1, -1) if (counted - late) / counted >= keep)
    return Limits(late_s, slow_s, load.first, most - load.refused_late)


def run_load(deployed: Deployment) -> LoadOutcome | None:
    """Simulate the case's load on its deployment; return None if no request fits the memory.

    Raise `InputError` for an unreadable log.
    """
    load = admitted_load(deployed)
    return None if load is None else outcome_of(deployed, load)


def outcome_of(deployed: Deployment, load: AdmittedLoad, late: Late | None = None) -> LoadOutcome | None:
    """Simulate a load on a deployment; stop and return None as soon as too many requests are `late`."""
    requests = load.requests
    prefill, decode, wire = prefill_pool(deployed, requests), decode_pool(deployed, requests), wire_of(deployed)
    timeline = simulate(requests, prefill, decode, wire, late)
    if timeline is None:
        return None
    requests = dataclasses.replace(requests, arrival_s=timeline.arrived_s)
    return LoadOutcome(requests, prefill, decode, wire, timeline, load.refused, load.first, load.refused_late)


def columns(deployed: Deployment, outcome: LoadOutcome | None = None) -> dict[str, Any]:
    """Return the columns `LOADED` of a row; all None if the case states no load or no request fits the memory.

    - `outcome`: outcome of the load, if already known.
    """
    if outcome is None and has_load(deployed.case):
        outcome = run_load(deployed)
    if outcome is None:
        return dict.fromkeys(LOADED)
    figures = _of_requests(deployed, outcome) | _of_pools(deployed, outcome) | _of_transfers(outcome)
    figures |= _of_capacity(deployed, outcome)
    figures["unsimulated"] = None
    figures["load_usd_per_million_tokens"] = _usd_per_million(deployed, outcome, figures)
    return {name: figures[name] for name in LOADED}


def _limits(case: Case) -> tuple[float | None, float | None]:
    """Limits on the time to first token and from token to token [ms]; None: no limit."""
    load = case.serving.load
    return load.ttft_ms, load.tpot_ms or case.serving.tpot_ms


def _limits_s(case: Case) -> tuple[float, float]:
    """The limits in seconds; infinite if there is none."""
    late_s, slow_s = (math.inf if limit is None else float(units.ms(limit)) for limit in _limits(case))
    return late_s, slow_s


def requests_within_limits(case: Case, outcome: LoadOutcome) -> tuple[Bool[np.ndarray, "R"], Bool[np.ndarray, "R"]]:
    """Return which requests meet the limit on time to first token, and which meet the one from token to token."""
    late_s, slow_s = _limits_s(case)
    return outcome.ttft_s <= late_s, ~(outcome.tpot_s > slow_s)


def _of_requests(deployed: Deployment, outcome: LoadOutcome) -> dict[str, Any]:
    case, (begin, end) = deployed.case, outcome.window
    ttft, tpot, e2e = (values[outcome.first :] for values in (outcome.ttft_s, outcome.tpot_s, outcome.e2e_s))
    limited = any(limit is not None for limit in _limits(case))
    first_good, next_good = requests_within_limits(case, outcome)
    good, ends = first_good & next_good, outcome.timeline.end_s
    counted = len(good) - outcome.first + outcome.refused_late

    def per_s(moments: np.ndarray) -> float | None:
        """Events per second in the window, excluding events at its first moment."""
        return float(((moments > begin) & (moments <= end)).sum()) / (end - begin) if end > begin else None

    figures: dict[str, Any] = {
        "load_requests_per_s": per_s(outcome.requests.arrival_s),
        "requests_per_s": per_s(ends),
        "goodput_per_s": per_s(ends[good]) if limited else None,
        "in_slo": float(good[outcome.first :].sum()) / counted if limited else None,
        "in_slo_limit": case.serving.load.keep if case.serving.tpot_ms is not None else None,
        "load_warmup_s": begin,
        "load_window_s": end - begin,
        "load_requests": len(outcome.requests),
        "load_turns": None if (turns := outcome.requests.turns) is None else int((turns.previous >= 0).sum()),
        "refused": outcome.refused,
        "left_out": outcome.requests.left_out,
    }
    for what, values in (("ttft", ttft), ("tpot", tpot[~np.isnan(tpot)]), ("e2e", e2e)):
        for name, part in QUANTILES.items():
            figures[f"load_{what}_{name}_s"] = float(np.quantile(values, part)) if len(values) else None
    return figures


def _of_capacity(deployed: Deployment, outcome: LoadOutcome) -> dict[str, Any]:
    """Demand over capacity of the pools."""
    requests, decode, prefill = outcome.requests, outcome.decode, outcome.prefill
    if math.isinf(requests.rate):
        return dict.fromkeys(("load_tokens_per_s", "decode_load", "prefill_load"))
    answer_tokens_per_s = requests.rate * float(requests.answer.mean())
    prompt_tokens_per_s = requests.rate * float(requests.fresh.mean())
    return {
        "load_tokens_per_s": answer_tokens_per_s,
        "decode_load": answer_tokens_per_s / (decode.groups * capacity(deployed, requests)),
        "prefill_load": prompt_tokens_per_s / (prefill.groups * prefill_capacity(deployed, requests)),
    }


def _usd_per_million(deployed: Deployment, outcome: LoadOutcome, figures: Mapping[str, Any]) -> float | None:
    """Dollars per million served answer tokens, idle GPUs included; None without prices or served tokens."""
    usd_per_s = deployed.usd_per_s((outcome.decode.groups, outcome.prefill.groups))
    tokens_per_s = _served_tokens_per_s(deployed, outcome, figures)
    return None if usd_per_s is None or not tokens_per_s else MILLION * usd_per_s / tokens_per_s


def _served_tokens_per_s(deployed: Deployment, outcome: LoadOutcome, figures: Mapping[str, Any]) -> float:
    """Answer tokens per second: those that arrive if the pools keep up, whose finished requests in a window of limited
    length would only add noise; else those of requests that finish in the window. If all requests arrive at once,
    what full pools decode."""
    requests, (begin, end) = outcome.requests, outcome.window
    arriving = figures["load_tokens_per_s"]
    if arriving is None:
        full = outcome.prefill.groups * prefill_capacity(deployed, requests) / requests.fresh.mean()
        return min(outcome.decode.groups * capacity(deployed, requests), float(full * requests.answer.mean()))
    if not falls_behind(figures):
        return arriving
    ends = outcome.timeline.end_s
    finished = float(requests.answer[(ends > begin) & (ends <= end)].sum())
    return min(arriving, finished / (end - begin)) if end > begin else 0.0


def mean_present(begin: np.ndarray, end: np.ndarray, window: tuple[float, float], weight: Any = 1.0) -> float | None:
    """Return how many intervals cover a moment of a window, on average; None for a window of zero length."""
    if window[1] <= window[0]:
        return None
    inside = np.clip(end, *window) - np.clip(begin, *window)
    return float((inside * weight).sum() / (window[1] - window[0]))


def _of_pools(deployed: Deployment, outcome: LoadOutcome) -> dict[str, Any]:
    times, window, requests = outcome.timeline, outcome.window, outcome.requests
    prefill, decode = outcome.prefill, outcome.decode
    gpus = {"prefill": deployed.prefill.group.shape.gpus, "decode": deployed.decode.group.shape.gpus}
    passes, steps = times.passes.T, times.steps.T
    figures = {
        "prefill_queue": mean_present(requests.arrival_s, times.begun_s, window),
        "decode_queue": mean_present(times.prefilled_s, times.sent_s, window),
        "decode_limit": "memory" if decode.most * decode.reserved_bytes(requests).mean() > decode.room else "batch",
        "prefill_busy": mean_present(passes[0], passes[1], window, 1 / prefill.groups),
        "prefill_filled": float(passes[2].mean()) / (prefill.units * prefill.unit_tokens),
        "decode_busy": mean_present(steps[0], steps[1], window, 1 / decode.groups),
        "decode_requests": mean_present(steps[0], steps[1], window, steps[2]),
    }
    count = decode.groups * gpus["decode"]
    held = figures["decode_requests"]
    return figures | {
        "decode_requests": None if held is None else held / count,
        "load_prefill_gpus": prefill.groups * gpus["prefill"],
        "load_decode_gpus": count,
    }


def _of_transfers(outcome: LoadOutcome) -> dict[str, Any]:
    times, sizes = outcome.timeline, outcome.wire.sizes(outcome.requests)
    seconds = (times.landed_s - times.sent_s)[outcome.first :]
    wire = outcome.wire
    slowdown = seconds / (sizes[outcome.first :] / wire.lone_Bps)
    (sender, receiver, most), mean = hot_pairs(outcome)[0], sizes.sum() / _pairs(outcome)
    span = float(times.landed_s.max() - times.sent_s.min())
    ends = (times.sender, wire.sender_Bps), (times.receiver, wire.receiver_Bps)
    busy_s = max(np.bincount(unit, sizes).max() / port_Bps for unit, port_Bps in ends)
    return {
        "load_kv_p50_s": float(np.quantile(seconds, QUANTILES["p50"])),
        "load_kv_p99_s": float(np.quantile(seconds, QUANTILES["p99"])),
        "kv_slowdown_p99": float(np.quantile(slowdown, QUANTILES["p99"])),
        "kv_busiest_nic": float(busy_s / span),
        "kv_hot_pair": f"prefill {sender} -> decode {receiver}",
        "kv_hot_pair_over_mean": float(most / mean),
    }


def _pairs(outcome: LoadOutcome) -> int:
    prefill, decode = outcome.prefill, outcome.decode
    return prefill.groups * prefill.units * decode.groups * decode.units


def hot_pairs(outcome: LoadOutcome, count: int = SHOWN_PAIRS) -> list[tuple[int, int, float]]:
    """Return the pairs of prefill and decoding units with the most bytes between them, and these bytes. A unit is a
    GPU, or the GPUs that split attention."""
    times, sizes = outcome.timeline, outcome.wire.sizes(outcome.requests)
    width = outcome.decode.groups * outcome.decode.units
    pairs, index = np.unique(times.sender * width + times.receiver, return_inverse=True)
    total = np.bincount(index, sizes)
    order = np.lexsort((pairs, -total))[:count]
    return [(int(pairs[each] // width), int(pairs[each] % width), float(total[each])) for each in order]
