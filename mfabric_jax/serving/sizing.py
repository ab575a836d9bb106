"""How many groups of each pool a load needs: the fewest by what they can do, then more of the pool that makes requests
late, until `serving.load.keep` of them are in time.

Times are `serving.tpot_ms` (or `serving.load.tpot_ms`) and `serving.load.ttft_ms`; groups that are stated stay.
"""

import dataclasses
import math

import numpy as np

from mfabric_jax.serving.deployment import Deployment
from mfabric_jax.serving.load import Outcome, capacity, in_time, requests_of, run_load

MOST_TRIES = 64


def sized(deployed: Deployment) -> Deployment:
    """With groups that keep requests in time, or the last ones that were tried. `InputError` for a log that cannot be
    read."""
    load = deployed.case.serving.load
    if load.decode_groups is None:
        deployed = _with(deployed, decode_groups=_needed(deployed))
    stated = {name for name in ("decode_groups", "prefill_groups") if getattr(load, name) is not None}
    for _ in range(MOST_TRIES):
        outcome = run_load(deployed)
        if outcome is None:
            break
        groups = {"decode_groups": outcome.decode.groups, "prefill_groups": outcome.prefill.groups}
        deployed = _with(deployed, **groups)
        late = _late(deployed, outcome)
        if late is None or late in stated:
            break
        deployed = _with(deployed, **groups | {late: groups[late] + 1})
    return deployed


def _with(deployed: Deployment, **groups: int) -> Deployment:
    said = {f"serving.load.{name}": count for name, count in groups.items()}
    return dataclasses.replace(deployed, case=deployed.case.with_(said))


def _needed(deployed: Deployment) -> int:
    """Groups that decode as many tokens a second as are asked for."""
    requests = requests_of(deployed)
    if math.isinf(requests.rate):
        return 1
    return max(1, math.ceil(requests.rate * requests.answer.mean() / capacity(deployed, requests)))


def _late(deployed: Deployment, outcome: Outcome) -> str | None:
    """The pool that makes most requests late; None where enough of them are in time."""
    first_in_time, next_in_time = in_time(deployed.case, outcome)
    counted = slice(outcome.first, None)
    if (first_in_time & next_in_time)[counted].mean() >= deployed.case.serving.load.keep:
        return None
    if (~next_in_time[counted]).sum() > (~first_in_time[counted]).sum():
        return "decode_groups"
    times = outcome.timeline
    late = ~first_in_time & (np.arange(len(first_in_time)) >= outcome.first)
    for_prefill = (times.prefilled_s - outcome.requests.arrival_s)[late].mean()
    for_decode = (times.first_s - times.prefilled_s)[late].mean()
    return "prefill_groups" if for_prefill >= for_decode else "decode_groups"
