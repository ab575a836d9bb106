"""Rows of a closed loop: as many clients as requests at once, on one replica of `serving.tp` GPUs."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

from mfabric_jax import units
from mfabric_jax.apps.serving.deployment import limit_basis
from mfabric_jax.apps.serving.group import group_of
from mfabric_jax.apps.serving.layer_parts import request_bytes, table_of, weight_bytes
from mfabric_jax.apps.serving.limits import is_in_time
from mfabric_jax.apps.serving.replica import ServedReplica, first_token_s, replica, token_seconds
from mfabric_jax.apps.serving.served_rows import BAND
from mfabric_jax.case import Case, Cases
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.resolving.resolve import gpu_of, model_of
from mfabric_jax.evaluate.resolving.resolved import Hardware
from mfabric_jax.evaluate.rows.costs import MILLION, Bill, bill_of, unknown_parts
from mfabric_jax.workload.gpus import Gpu
from mfabric_jax.workload.measured_kernels import FASTEST

SHOWN = {"model.name", "gpu.name", "serving.tp", "serving.replica.ep", "serving.by"}  # settings that have columns
UNREAD = {"network.fabric": "fat-tree"}  # replicas lie inside a server


def client_cases(cases: Cases) -> list[Case]:
    """Return the cases that differ in what a replica reads."""
    return list(dict.fromkeys(case.with_(UNREAD) for case in cases))


def client_rows(
    cases: Cases, *, start: int = 0, progress: Callable[[str], None] = lambda words: None
) -> Iterator[dict[str, Any]]:
    """Yield a row per case: time per token and to the first token, tokens per second, memory, dollars.

    - `start`: number of cases to skip.

    Rows also have a column for each other setting that differs between cases, named by its path. Raise `InputError` and
    `Misfit` as `replica` does.
    """
    for case in client_cases(cases)[start:]:
        row = client_row(case)
        progress(f"{row['model']} on {row['tp']} {row['gpu']}")
        yield row | cases.differences(case, {*SHOWN, *UNREAD})


def replica_of(case: Case) -> ServedReplica:
    """Return the replica of a case. Raise `Misfit` if its GPUs exceed a server or an NVLink domain."""
    own, serving, gpu = case.serving.replica, case.serving, gpu_of(case)
    domain = gpu.scale_up_gpus or gpu.gpus_per_server
    if serving.tp > max(domain, gpu.gpus_per_server):
        raise Misfit(f"serving.tp must be at most the {domain} GPUs of a server of {gpu.name}, got {serving.tp}.")
    engine, weights = own.engine or FASTEST, serving.formats.weights
    made = functools.partial(replica, model_of(case).architecture, gpu, serving.tp, own.ep, weights)
    return made(engine=engine, cache=own.cache, table=table_of(case))


def client_row(case: Case) -> dict[str, Any]:
    """Return the row of a case that states `serving.replica.clients`."""
    serving, model, gpu = case.serving, replica_of(case), gpu_of(case)
    clients, prompt = serving.replica.clients or 1, int(serving.prompt or serving.context)
    seconds = token_seconds(model, clients, prompt, serving.answer, serving.host_s)
    low_s, high_s = (end * seconds.tpot_s for end in BAND)
    reserved = float(units.gigabytes(serving.reserved_gigabytes))
    held = weight_bytes(model) + clients * request_bytes(model, prompt + serving.answer) + reserved
    row = {
        **{"model": model_of(case).label, "gpu": gpu.name, "tp": serving.tp, "ep": serving.replica.ep},
        "tpot_s": seconds.tpot_s,
        "tpot_limit_s": None if serving.tpot_ms is None else units.ms(serving.tpot_ms),
        **{"tpot_low_s": low_s, "tpot_high_s": high_s, "step_s": seconds.step_s, "prompts_s": seconds.prompts_s},
        "ttft_s": first_token_s(model, prompt, serving.host_s) + units.ms(serving.replica.first_token_ms),
        "by": limit_basis(case),
        "tokens_per_s_per_gpu": clients / seconds.tpot_s / serving.tp,
        "tokens_per_s_per_user": 1 / seconds.tpot_s,
        **_memory(held, gpu),
        "usd_per_million_tokens": _usd_per_million(case, clients / seconds.tpot_s),
    }
    return row | {"in_time": is_in_time(row)}


def _usd_per_million(case: Case, tokens_per_s: float) -> float | None:
    """Dollars per million answer tokens: GPUs, their servers and energy, without a network, which a replica lacks."""
    hardware, bill = _hardware_and_bill(case)
    usd, _ = bill.without_network.per_gpu_second(hardware.parts.running, case.serving.tp)
    return None if usd is None else MILLION * usd * case.serving.tp / tokens_per_s


def unknown_prices(cases: Cases) -> list[str]:
    """Return a sentence for each unknown price and power that the dollars of replicas need."""
    bills = map(_hardware_and_bill, client_cases(cases))
    return list(dict.fromkeys(words for hardware, bill in bills for words in unknown_parts(hardware, bill)))


def _hardware_and_bill(case: Case) -> tuple[Hardware, Bill]:
    group = group_of(case.with_(UNREAD), case.serving.tp, "serving.tp")
    return group.hardware, bill_of(group.hardware, group.shape, group.hardware.nic_gbps)


def _memory(held: float, gpu: Gpu) -> dict[str, Any]:
    size = gpu.memory_bytes
    return {
        "memory_gb": units.to_gigabytes(held),
        "gpu_memory_gb": None if size is None else units.to_gigabytes(size),
        "fits": None if size is None else held <= size,
    }
