"""A deployment under load: its pools as tables of seconds, and what requests see of them.

Seconds of a step are tabulated over requests of a GPU and their mean context, those of a pass over tokens of a GPU and
prompts, so that the loop of events only interpolates.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.case import Case
from mfabric_jax.serving import step as parts
from mfabric_jax.serving.arrivals import Requests, poisson, read_arrivals, stretched
from mfabric_jax.serving.deployment import TRANSFER, Deployment
from mfabric_jax.serving.loads import SURE
from mfabric_jax.serving.queueing import Decode, Prefill, Table, Timeline, Wire, simulate

GRID = 48, 24  # points of a table of steps: requests, context
PASSES = 24, 8  # of passes: tokens, prompts
LEAST_PASS = 16  # tokens of a micro-batch; fewer take as long
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
SHOWN_PAIRS = 3
FILLED = 0.8  # of passes of groups that are not stated


def stated(case: Case) -> bool:
    """Whether requests arrive."""
    return case.serving.load.rate is not None or case.serving.load.arrivals is not None


def requests_of(deployed: Deployment) -> Requests:
    """What the case's `serving.load` asks for, in the order of arrival."""
    case, load = deployed.case, deployed.case.serving.load
    if load.arrivals is None:
        assert load.rate is not None, "a load has a rate or a trace"
        return poisson(load.rate, load.requests, deployed.prompt, deployed.fresh, case.serving.answer, case.run.seed)
    found = read_arrivals(load.arrivals, load.requests)
    return found if load.rate is None else stretched(found, load.rate)


# ---------------------------------------------------------------------------------------------------------------- pools
def decode_pool(deployed: Deployment, requests: Requests) -> Decode:
    """Groups that decode; a GPU holds the requests of `serving.batch` where its memory does."""
    deployed = deployed.steady()
    model, numbers, serving = deployed.decode.model, deployed.numbers, deployed.case.serving
    alone = deployed.decode.group.shape.gpus / deployed.holders  # where other GPUs hold none
    most = max(1, int(deployed.decoding(numbers).requests * alone * model.tp * (1 + SURE)))
    each = float(deployed.request_bytes(0.0))
    room = float(deployed.most_requests(1.0) * alone * model.tp * deployed.request_bytes(1.0))
    count = deployed.holders // model.tp
    held = np.geomspace(1 / count, max(most, 2 / count), GRID[0])
    context = np.geomspace(requests.prompt.min(), (requests.prompt + requests.answer).max(), GRID[1])
    batch = deployed.batch_of(held / model.tp)
    decoding = deployed.decoding(numbers._replace(batch=batch[:, None], context=context[None]))
    tokens = 1 + numbers.accepted
    step = Table(held, context, np.broadcast_to(decoding.tpot_s * tokens, (len(held), len(context))))
    return Decode(
        serving.load.decode_groups, count, most, room, each, float(deployed.request_bytes(1.0)) - each, step, tokens
    )


def prefill_pool(deployed: Deployment, requests: Requests) -> Prefill:
    """Groups that prefill: as many as are stated, or as keep up with what arrives, but no more than full groups that
    decode take, in passes that are `FILLED`."""
    case, model = deployed.case, deployed.prefill.model
    low, high = float(requests.prompt.min()), float(requests.prompt.max())
    prompts = np.unique(np.geomspace(low, high, PASSES[1] if high > low else 1).round())
    most = case.serving.prefill.tokens
    tokens = np.unique(np.geomspace(min(LEAST_PASS, most), most, PASSES[0]).round())
    seconds = [[_pass_s(deployed, int(some), int(prompt)) for prompt in prompts] for some in tokens]
    taken = tokens * model.tp * (2 if case.serving.overlap else 1)
    table = Table(taken, prompts, np.array(seconds))
    groups = case.serving.load.prefill_groups or _keeping_up(deployed, requests, table)
    return Prefill(groups, deployed.prefill.group.shape.gpus // model.tp, float(taken[-1]), table)


def _pass_s(deployed: Deployment, tokens: int, prompt: int) -> float:
    case = deployed.case.with_({"serving.prefill.tokens": tokens, "serving.prompt": prompt})
    return float(dataclasses.replace(deployed, case=case).prefilling(case.network.nic_gbps).step_s)


def _keeping_up(deployed: Deployment, requests: Requests, pass_s: Table) -> int:
    serving, numbers = deployed.case.serving, deployed.numbers
    context = float((requests.prompt + requests.answer / 2).mean())
    decoding = deployed.decoding(numbers._replace(context=context))
    held = min(float(decoding.requests), float(deployed.most_requests(context)))
    served = serving.load.decode_groups * deployed.decode.group.shape.gpus * held / float(decoding.tpot_s)
    asked = min(served / requests.answer.mean(), requests.rate) * requests.fresh.mean()
    group = FILLED * deployed.prefill.group.shape.gpus * deployed.pass_tokens
    prompt = float(requests.prompt.mean())
    return max(1, math.ceil(asked * pass_s(deployed.pass_tokens * deployed.prefill.model.tp, prompt) / group))


def wire_of(deployed: Deployment) -> Wire:
    """One NIC a request at each end, as `Deployment.transfer_s`."""
    model = deployed.decode.model
    port = TRANSFER * float(units.gbps(deployed.case.network.nic_gbps))
    return Wire(port, parts.state_bytes(model), parts.cache_bytes(model))


# -------------------------------------------------------------------------------------------------------------- results
class Outcome(NamedTuple):
    """Requests, pools and what happened; `first`: of the requests that count, those before it warm the pools up."""

    requests: Requests
    prefill: Prefill
    decode: Decode
    wire: Wire
    timeline: Timeline
    refused: int
    first: int

    @property
    def window(self) -> tuple[float, float]:
        """From the first counted arrival to the last [s]."""
        return float(self.requests.arrival_s[self.first]), float(self.requests.arrival_s[-1])

    @property
    def ttft_s(self) -> Float[np.ndarray, "R"]:
        """From arrival to first token."""
        return self.timeline.first_s - self.requests.arrival_s

    @property
    def e2e_s(self) -> Float[np.ndarray, "R"]:
        """From arrival to last token."""
        return self.timeline.end_s - self.requests.arrival_s

    @property
    def tpot_s(self) -> Float[np.ndarray, "R"]:
        """Mean from token to token; nan where an answer is one token."""
        further = np.where(self.requests.answer > 1, self.requests.answer - 1, math.nan)
        return (self.timeline.end_s - self.timeline.first_s) / further


def run_load(deployed: Deployment) -> Outcome | None:
    """The case's load on its deployment; None where memory holds none of its requests.

    `InputError` for a trace that cannot be read.
    """
    requests = requests_of(deployed)
    decode = decode_pool(deployed, requests)
    fits = decode.reserved(requests) <= decode.room
    if not fits.any():
        return None
    kept = requests.kept(fits)
    prefill, wire = prefill_pool(deployed, kept), wire_of(deployed)
    first = int(deployed.case.serving.load.warmup * len(kept))
    timeline = simulate(kept, prefill, decode, wire)
    return Outcome(kept, prefill, decode, wire, timeline, int((~fits).sum()), first)


COLUMNS = (
    *("load_requests_per_s", "requests_per_s", "goodput_per_s", "in_slo"),
    *(f"load_{what}_{name}_s" for what in ("ttft", "tpot", "e2e") for name in QUANTILES),
    "load_warmup_s",
    *("prefill_queue", "decode_queue", "prefill_busy", "prefill_filled", "decode_busy", "decode_requests"),
    *("load_prefill_gpus", "load_decode_gpus", "load_requests", "refused", "left_out"),
    *("load_kv_p50_s", "load_kv_p99_s", "kv_slowdown_p99", "kv_busiest_nic", "kv_hot_pair", "kv_hot_pair_over_mean"),
)


def columns(deployed: Deployment) -> dict[str, Any]:
    """`COLUMNS` of a row; all None where the case states no load or memory holds no request."""
    outcome = run_load(deployed) if stated(deployed.case) else None
    if outcome is None:
        return dict.fromkeys(COLUMNS)
    found = _of_requests(deployed, outcome) | _of_pools(deployed, outcome) | _of_transfers(outcome)
    return {name: found[name] for name in COLUMNS}


def _of_requests(deployed: Deployment, outcome: Outcome) -> dict[str, Any]:
    serving, (begin, end) = deployed.case.serving, outcome.window
    ttft, tpot, e2e = (values[outcome.first :] for values in (outcome.ttft_s, outcome.tpot_s, outcome.e2e_s))
    late, slow = serving.load.ttft_ms, serving.load.tpot_ms or serving.tpot_ms
    good = np.ones(len(ttft), bool)
    if late is not None:
        good &= ttft <= units.ms(late)
    if slow is not None:
        good &= ~(tpot > units.ms(slow))
    limited = late is not None or slow is not None
    span, ends = end - begin, outcome.timeline.end_s
    per_s = (lambda count: float(count) / span) if span else (lambda count: None)
    found: dict[str, Any] = {
        "load_requests_per_s": None if math.isinf(outcome.requests.rate) else outcome.requests.rate,
        "requests_per_s": per_s(((ends >= begin) & (ends <= end)).sum()),
        "goodput_per_s": per_s(good.sum()) if limited else None,
        "in_slo": float(good.mean()) if limited else None,
        "load_warmup_s": begin,
        "load_requests": len(outcome.requests),
        "refused": outcome.refused,
        "left_out": outcome.requests.left_out,
    }
    for what, values in (("ttft", ttft), ("tpot", tpot[~np.isnan(tpot)]), ("e2e", e2e)):
        for name, part in QUANTILES.items():
            found[f"load_{what}_{name}_s"] = float(np.quantile(values, part)) if len(values) else None
    return found


def mean_present(begin: np.ndarray, end: np.ndarray, window: tuple[float, float], weight: Any = 1.0) -> float | None:
    """How many of some intervals there are at a moment of a window, on average; None for a window of no length."""
    if window[1] <= window[0]:
        return None
    inside = np.clip(end, *window) - np.clip(begin, *window)
    return float((inside * weight).sum() / (window[1] - window[0]))


def _of_pools(deployed: Deployment, outcome: Outcome) -> dict[str, Any]:
    times, window, asked = outcome.timeline, outcome.window, outcome.requests
    prefill, decode = outcome.prefill, outcome.decode
    gpus = {"prefill": deployed.prefill.group.shape.gpus, "decode": deployed.decode.group.shape.gpus}
    passes, steps = times.passes.T, times.steps.T
    found = {
        "prefill_queue": mean_present(asked.arrival_s, times.begun_s, window),
        "decode_queue": mean_present(times.prefilled_s, times.sent_s, window),
        "prefill_busy": mean_present(passes[0], passes[1], window, 1 / prefill.groups),
        "prefill_filled": float(passes[2].mean()) / (prefill.units * prefill.unit_tokens),
        "decode_busy": mean_present(steps[0], steps[1], window, 1 / decode.groups),
        "decode_requests": mean_present(steps[0], steps[1], window, steps[2]),
    }
    count = decode.groups * gpus["decode"]
    held = found["decode_requests"]
    return found | {
        "decode_requests": None if held is None else held / count,
        "load_prefill_gpus": prefill.groups * gpus["prefill"],
        "load_decode_gpus": count,
    }


def _of_transfers(outcome: Outcome) -> dict[str, Any]:
    times, sizes = outcome.timeline, outcome.wire.sizes(outcome.requests)
    seconds = (times.landed_s - times.sent_s)[outcome.first :]
    slower = seconds / (sizes[outcome.first :] / outcome.wire.port_Bps)
    (sender, receiver, most), mean = hot_pairs(outcome)[0], sizes.sum() / _pairs(outcome)
    span = float(times.landed_s.max() - times.sent_s.min())
    busiest = max(np.bincount(unit, sizes).max() for unit in (times.sender, times.receiver))
    return {
        "load_kv_p50_s": float(np.quantile(seconds, QUANTILES["p50"])),
        "load_kv_p99_s": float(np.quantile(seconds, QUANTILES["p99"])),
        "kv_slowdown_p99": float(np.quantile(slower, QUANTILES["p99"])),
        "kv_busiest_nic": float(busiest / (outcome.wire.port_Bps * span)),
        "kv_hot_pair": f"prefill {sender} -> decode {receiver}",
        "kv_hot_pair_over_mean": float(most / mean),
    }


def _pairs(outcome: Outcome) -> int:
    prefill, decode = outcome.prefill, outcome.decode
    return prefill.groups * prefill.units * decode.groups * decode.units


def hot_pairs(outcome: Outcome, count: int = SHOWN_PAIRS) -> list[tuple[int, int, float]]:
    """GPUs (or those that split attention) that prefill and decode between which most bytes travel, and the bytes."""
    times, sizes = outcome.timeline, outcome.wire.sizes(outcome.requests)
    width = outcome.decode.groups * outcome.decode.units
    pairs, index = np.unique(times.sender * width + times.receiver, return_inverse=True)
    total = np.bincount(index, sizes)
    order = np.lexsort((pairs, -total))[:count]
    return [(int(pairs[each] // width), int(pairs[each] % width), float(total[each])) for each in order]
