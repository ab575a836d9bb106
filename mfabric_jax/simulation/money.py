"""What a cluster costs and draws, all of it, and what one iteration and a million tokens cost on it."""

import dataclasses
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.registry import cluster_cost, cluster_watts, no_price
from mfabric_jax.resolving.settings import Settings
from mfabric_jax.workload import Workload

SECONDS_AN_HOUR = 3600
MILLION = 1_000_000


class Bill(NamedTuple):
    """Dollars and watts of the network, and of the whole cluster with it: numbers, arrays [N] or None (not known)."""

    network_usd: Any
    cluster_usd: Any
    network_watts: Any
    cluster_watts: Any


def bill_of(settings: Settings, on: Fabric, job: Workload, nic_gbps: Any, **ports: Any) -> Bill:
    """The bill of a cluster. `ports`: other numbers of NICs than those of the settings; they and the bandwidth may be
    arrays."""
    parts, gpu = settings.parts, settings.server
    form = dataclasses.replace(on.form(settings, job), **ports)
    fields = {field.name: getattr(form, field.name) for field in dataclasses.fields(form) if field.name != "servers"}
    where = {"gpus": job.gpus_per_server} | fields
    usd = cluster_cost(on.name, job.servers, nic_gbps, parts.prices, **where)
    watts = cluster_watts(on.name, job.servers, nic_gbps, parts.watts, **where)
    if parts.ocs is not None and on.optical_regions is not None:
        switches = parts.ocs.switches(*on.optical_regions(form, job))
        usd, watts = (
            _sum(usd, _times(switches, parts.ocs.usd or 0)),
            _sum(watts, _times(switches, parts.ocs.watts or 0)),
        )
    server = parts.server_of(gpu.name)
    servers = job.gpus / server.gpus
    gpu_usd = _times(job.gpus, usd_of_gpu(settings))
    rest_usd, rest_watts = _times(servers, server.usd), _times(servers, server.watts)
    return Bill(usd, _sum(usd, gpu_usd, rest_usd), watts, _sum(watts, _times(job.gpus, gpu.watts), rest_watts))


def usd_of_gpu(settings: Settings) -> float | None:
    """Dollars of a GPU: as its file has it, or as listed."""
    parts, gpu = settings.parts, settings.server
    listed = parts.gpus[gpu.name].usd if gpu.name in parts.gpus else None
    return listed if gpu.usd is None else gpu.usd


def costs(settings: Settings, job: Workload, bill: Bill, iteration_s: Any, achieved: Any) -> dict[str, Any]:
    """Columns of a row, numbers or arrays: dollars, kilowatts, and what an iteration and a million tokens take.

    An iteration pays its part of writing the cluster off and its energy, at the meter of the building (PUE). Where
    more than the peak is `achieved`, the GPUs that are priced cannot do it: what they would take is not known.
    """
    running = settings.parts.running
    joules = _times(bill.cluster_watts, running.pue * iteration_s)
    energy = _times(joules, running.usd_per_kwh / (1000 * SECONDS_AN_HOUR))
    usd = _sum(_times(bill.cluster_usd, iteration_s / running.seconds), energy)
    each = MILLION / tokens_of_iteration(job)
    return {
        "network_cost_usd": bill.network_usd,
        "perf_per_dollar": _per(bill.network_usd, iteration_s),
        "cluster_cost_usd": bill.cluster_usd,
        "perf_per_cluster_dollar": _if_can(achieved, _per(bill.cluster_usd, iteration_s)),
        "network_kw": _times(bill.network_watts, 1 / 1000),
        "cluster_kw": _times(bill.cluster_watts, 1 / 1000),
        "usd_per_iteration": _if_can(achieved, usd),
        "joules_per_iteration": _if_can(achieved, joules),
        "usd_per_million_tokens": _if_can(achieved, _times(usd, each)),
        "joules_per_million_tokens": _if_can(achieved, _times(joules, each)),
        "tokens_per_s": tokens_of_iteration(job) / iteration_s,
    }


def tokens_of_iteration(job: Workload) -> int:
    """Tokens that the whole cluster trains on in one iteration."""
    return job.iteration_tokens


def unknown_parts(settings: Settings, on: Fabric, bill: Bill) -> Iterator[str]:
    """A sentence for every part of a cluster whose price or power is not known, and for power that is assumed."""
    parts, gpu = settings.parts, settings.server
    if why := no_price(on.name, parts.prices):
        yield why
    if parts.ocs is not None and on.optical_regions is not None:
        name = parts.ocs.name
        if parts.ocs.port_usd is None:
            give = f"give usd_per_port (or usd, of a switch) in [ocs.{name}] of network.prices."
            yield f"{on.name} has no cost: no price is known of the optical switch {name!r}; {give}"
        if parts.ocs.watts is None and parts.ocs.watts_per_port is None:
            yield f"no power is known of the optical switch {name!r}: {parts.watts.ocs_port:g} W a port are assumed."
    if bill.network_watts is None:
        give = "give it in [watts] of network.prices"
        yield f"{on.name} has no power: that of a part of its network is not known; {give}."
    server = parts.server_of(gpu.name)
    listed = parts.gpus[gpu.name].usd if gpu.name in parts.gpus else None
    known = {
        f"price of GPU {gpu.name}; give usd in its file or in [gpus.{gpu.name}] of network.prices": gpu.usd or listed,
        f"power of GPU {gpu.name}; give watts in its file": gpu.watts,
        f"price of a server of {gpu.name}; give usd in [servers.NAME] of network.prices": server.usd,
        f"power of a server of {gpu.name}; give watts in [servers.NAME] of network.prices": server.watts,
    }
    for what, value in known.items():
        if value is None:
            yield f"whole-cluster {what.split()[0]}: no {what}."


def _if_can(achieved: Any, value: Any) -> Any:
    """The value, a number or an array, but where more than the peak is achieved."""
    if value is None or np.ndim(achieved) == 0:
        return None if np.ndim(achieved) == 0 and achieved > 1 else value
    return np.where(achieved > 1, np.nan, value)


def _sum(*parts: Any) -> Any:
    return None if any(part is None for part in parts) else sum(parts)


def _times(value: Any, factor: Any) -> Any:
    return None if value is None or factor is None else value * factor


def _per(usd: Any, iteration_s: Any) -> Any:
    return None if usd is None else 1 / (iteration_s * usd)
