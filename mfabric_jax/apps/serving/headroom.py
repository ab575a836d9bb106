"""How many more requests a second the pools of a row serve in time."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from mfabric_jax.apps.serving import request_load
from mfabric_jax.apps.serving.pools import cached_deployment
from mfabric_jax.apps.serving.queueing import Late
from mfabric_jax.apps.serving.rows import SHOWN
from mfabric_jax.case import Case, Cases
from mfabric_jax.case.pools_of_row import settings_of_pools
from mfabric_jax.evaluate.resolving.resolve import model_of

STEPS = 5  # simulations of a search for the highest rate in time


class Headroom(NamedTuple):
    """The highest simulated rate in time, and the rate at which a pool is full [requests/s]."""

    in_time: float
    full: float


@dataclasses.dataclass(frozen=True)
class Growth:
    """One more group of a pool: its GPUs, the rate in time [requests/s], and what the pools then cost over now."""

    pool: str
    gpus: int
    in_time: float
    price: float | None


def case_of_row(row: Mapping[str, Any], cases: Cases) -> Case | None:
    """Return the case of a row under a load, with its pools stated; None if several or no cases match."""
    pools = settings_of_pools(row)
    matches = list(dict.fromkeys(case.with_(pools) for case in cases if _matches(case, row, cases)))
    return matches[0] if len(matches) == 1 else None


def _matches(case: Case, row: Mapping[str, Any], cases: Cases) -> bool:
    serving, network = case.serving, case.network
    values = {
        **{"model": model_of(case).architecture.name, "gpu": case.gpu.name, "fabric": network.fabric},
        **{"nic_gbps": network.nic_gbps, "tp": serving.tp, "precision": serving.formats.dispatch},
        **{"prefill_gpu": serving.prefill.gpu or case.gpu.name},
        **{"prefill_nic_gbps": serving.prefill.nic_gbps or network.nic_gbps},
        **cases.differences(case, SHOWN),
    }
    return all(row[name] == value for name, value in values.items())


def headroom(case: Case, row: Mapping[str, Any]) -> Headroom:
    """Return the headroom of a row in time, by bisection between its rate and that at which a pool is full."""
    rate = case.serving.load.rate
    assert rate is not None, "the case states a rate"
    return _between(case, rate, rate / max(row["decode_load"], row["prefill_load"]))


def _between(case: Case, low: float, full: float) -> Headroom:
    high = full
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if _is_in_time(case.with_({"serving.load.rate": middle})) else (low, middle)
    return Headroom(low, full)


def _is_in_time(case: Case) -> bool:
    deployed = cached_deployment(request_load.with_load_context(case))
    load = request_load.admitted_load(deployed)
    if load is None:
        return False
    late = Late(request_load.limits_of(deployed.case, load), load.requests)
    return request_load.outcome_of(deployed, load, late) is not None


def growth(case: Case, row: Mapping[str, Any]) -> Growth:
    """Return what one more group adds to a row in time, in the pool where it adds most."""
    return max((_growth_of(pool, case, row) for pool in ("decode", "prefill")), key=lambda more: more.in_time)


def _growth_of(pool: str, case: Case, row: Mapping[str, Any]) -> Growth:
    stated = case.serving.load
    groups = {"decode": stated.decode_groups or 1, "prefill": stated.prefill_groups or 1}
    more = groups | {pool: groups[pool] + 1}
    rate = stated.rate
    assert rate is not None, "the case states a rate"
    full = min(rate / row[f"{each}_load"] * more[each] / groups[each] for each in groups)
    grown = case.with_({f"serving.load.{pool}_groups": more[pool]})
    deployed = cached_deployment(request_load.with_load_context(case))
    pools = {"decode": deployed.decode, "prefill": deployed.prefill}
    usd_more, usd_now = (deployed.usd_per_s((count["decode"], count["prefill"])) for count in (more, groups))
    ratio = None if usd_more is None or usd_now is None else usd_more / usd_now
    return Growth(pool, pools[pool].group.shape.gpus, _between(grown, rate, full).in_time, ratio)
