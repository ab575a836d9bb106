"""Dollars and watts of a cluster, and the columns that hold them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolved import Hardware, Resolved
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.parts_list import PartsTable, Running
from mfabric_jax.fabric.registry import no_price, site_cost, site_table, site_watts
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.support.bands import HIGH, LOW, LOW_PORTS, LOW_PORTS_NETWORK, QUOTED
from mfabric_jax.support.columns import Column, Columns
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.evaluate.problem import Problem

Row = dict[str, Any]
SECONDS_AN_HOUR = 3600
MILLION = 1_000_000
PLACES = 6  # decimal places to which numbers of GPUs are compared

COST = Columns(
    Column("network_cost_usd", "USD", "Price of the network."),
    Column("perf_per_dollar", "1/(s USD)", "Iterations per second and dollar of the network.", rises=True),
    Column("cluster_cost_usd", "USD", "Price of the whole cluster, with idle GPUs that the job must pay for."),
    Column("perf_per_cluster_dollar", "1/(s USD)", "Iterations per second and dollar of the cluster.", rises=True),
    Column("network_kw", "kW", "Power of the network."),
    Column("cluster_kw", "kW", "Power of the whole cluster."),
    Column("usd_per_iteration", "USD", "Cost of an iteration: depreciation and energy.", detail=True),
    Column("usd_per_gpu_hour", "USD", "Cost of an hour of each working GPU: depreciation and energy."),
    Column("joules_per_iteration", "J", "Energy of an iteration at the meter.", detail=True),
    Column("usd_per_million_tokens", "USD", "Cost of a million tokens."),
    Column("joules_per_million_tokens", "J", "Energy of a million tokens at the meter."),
    Column("tokens_per_s", "tokens/s", "Tokens that the whole cluster trains per second.", rises=True),
)
TRAINING = Columns(
    Column("training_tokens", "tokens", "Tokens of a whole training (`job.training_tokens`)."),
    Column("training_days", "days", "Length of the whole training."),
    Column("training_low_days", "days", "Length of the whole training at the low end of the band.", detail=True),
    Column("training_high_days", "days", "Length of the whole training at the high end of the band.", detail=True),
    Column("training_usd", "USD", "Cost of the whole training."),
    Column("training_kwh", "kWh", "Energy of the whole training at the meter.", detail=True),
)
QUOTES = Columns(
    Column(LOW_PORTS, "USD", "Cost of a million tokens with switch ports at their lowest quoted price."),
    Column("low_gpus_usd", "USD", "Cost of a million tokens with GPUs at their lowest quoted price."),
    Column("high_gpus_usd", "USD", "Cost of a million tokens with GPUs at their highest quoted price."),
    Column(LOW_PORTS_NETWORK, "USD", "Price of the network with switch ports at their lowest quoted price."),
)
PANELS = Columns(
    Column(
        "panel_network_cost_usd",
        "USD",
        "Price of the network with patch panels if its optical switch never reconfigured; else empty.",
    ),
    Column("panel_usd_per_million_tokens", "USD", "Cost of a million tokens with these patch panels; else empty."),
)
ON_PANELS = {
    "panel_network_cost_usd": "network_cost_usd",
    "panel_usd_per_million_tokens": "usd_per_million_tokens",
}


class Bill(NamedTuple):
    """Dollars and watts of the network and of the whole cluster: numbers, arrays [N], or None (unknown)."""

    network_usd: Any
    cluster_usd: Any
    network_watts: Any
    cluster_watts: Any

    @property
    def without_network(self) -> "Bill":
        """The bill of GPUs and servers alone."""
        usd, watts = (
            add(whole, multiply(network, -1))
            for whole, network in ((self.cluster_usd, self.network_usd), (self.cluster_watts, self.network_watts))
        )
        return Bill(0.0, usd, 0.0, watts)

    def per_gpu_second(self, running: Running, gpus: int) -> tuple[float | None, float | None]:
        """Return dollars and joules per second of each of the `gpus` at work; None: not known."""
        if self.cluster_watts is None:
            return None, None
        joules = running.pue * float(self.cluster_watts) / gpus
        if self.cluster_usd is None:
            return None, joules
        energy = joules * running.usd_per_kwh / (1000 * SECONDS_AN_HOUR)
        return float(self.cluster_usd) / gpus / running.seconds + energy, joules


def bill_of(settings: Hardware, job: Any, nic_gbps: Any, parts: PartsTable | None = None, **ports: Any) -> Bill:
    """Return the bill of a cluster. It has GPUs in use and idle GPUs that the job must pay for; idle GPUs add no watts.

    A job pays for whole servers or domains, or for a part if it fills none (`Fabric.share_of`).

    - `job`: a `Workload`, or the shape of a serving group; `parts`: other prices.
    - `nic_gbps`, `ports` (fields of `FabricSite` that override the settings): may be arrays.
    """
    parts, gpu, on = parts or settings.parts, settings.server, settings.fabric
    site, share = _site_and_share(settings, job, ports)
    usd = multiply(site_cost(on, site, nic_gbps, parts.prices), share)
    watts = multiply(site_watts(on, site, nic_gbps, parts.watts), share)
    switches_usd, switches_watts = _whole_switches(parts, on, site, share)
    usd, watts = add(usd, switches_usd), add(watts, switches_watts)
    server = parts.server_of(gpu.name)
    rest_watts = multiply(on.paid_gpus(gpu, job) / server.gpus, server.watts)
    hosts_usd = _hosts_usd(settings, job, parts).values()
    return Bill(usd, add(usd, *hosts_usd), watts, add(watts, multiply(job.gpus, gpu.watts), rest_watts))


def tree_nics(settings: Hardware, job: Any) -> float:
    """Return the NICs on switch trees that a job needs: its part of those of shared servers."""
    on = settings.fabric
    if on.domain_gpus is not None:
        return job.gpus
    site, share = _site_and_share(settings, job, {})
    return share * site.servers * sum(float(group.nics) for group in on.parts(site) if group.attachment.switch_ports)


def bill_by_part(settings: Hardware, job: Any, nic_gbps: float) -> dict[str, float]:
    """Return the dollars of a cluster by the part that they buy; together they are the `cluster_usd` of `bill_of`.

    Parts are those of `Prices`, "ocs" (whole optical switches), "gpus" and "servers". Raise `InputError` if the price
    of one is unknown.
    """
    parts, on = settings.parts, settings.fabric
    site, share = _site_and_share(settings, job, {})
    usd: dict[str, Any] = {}
    for row in site_table(on, site, nic_gbps, parts.prices):
        usd[row["part"]] = add(usd.get(row["part"], 0.0), multiply(row["usd"], share * site.servers))
    usd["ocs"], _ = _whole_switches(parts, on, site, share)
    usd |= _hosts_usd(settings, job, parts)
    if unknown := [part for part, each in usd.items() if each is None]:
        raise InputError(f"{on.name} has no price of {', '.join(unknown)}; give it in network.prices.")
    return {part: float(each) for part, each in usd.items() if each}


def _hosts_usd(settings: Hardware, job: Any, parts: PartsTable) -> dict[str, Any]:
    """Return the dollars of GPUs and of servers without them; None: unknown."""
    gpu = settings.server
    server, paid = parts.server_of(gpu.name), settings.fabric.paid_gpus(gpu, job)
    return {"gpus": multiply(paid, usd_of_gpu(settings, parts)), "servers": multiply(paid / server.gpus, server.usd)}


def _site_and_share(settings: Hardware, job: Any, ports: Mapping[str, Any]) -> tuple[FabricSite, Any]:
    """Return the site that a job is built on, and its share of the servers or domains."""
    gpu, on = settings.server, settings.fabric
    built, share = on.physical_gpus(gpu), on.share_of(gpu, job.gpus_per_server)
    site = dataclasses.replace(settings.site_of(job), gpus_per_server=built, **ports)
    return site if on.domain_gpus is None else dataclasses.replace(site, nics=built), share  # one NIC per GPU


def _whole_switches(parts: PartsTable, on: Fabric, site: FabricSite, share: Any) -> tuple[Any, Any]:
    """Return dollars and watts of whole optical switches; 0 where the case names no switch or the site has none."""
    switches_of = on.about.optics.switches
    if parts.ocs is None or switches_of is None or site.panels:
        return 0, 0
    count = share * parts.ocs.switches(*switches_of(site))
    return count * (parts.ocs.usd or 0), count * (parts.ocs.watts or 0)


def usd_of_gpu(settings: Hardware, parts: PartsTable | None = None) -> float | None:
    """Return the dollars of a GPU, from its file or the price list; `parts`: another list."""
    parts, gpu = parts or settings.parts, settings.server
    listed = parts.gpus[gpu.name].usd if gpu.name in parts.gpus else None
    return listed if gpu.usd is None else gpu.usd


def costs(settings: Resolved, job: Workload, bill: Bill, iteration_s: Any, achieved: Any) -> Row:
    """Return columns of dollars and power: of the cluster, per iteration (energy times PUE), and per million tokens.

    Columns that combine the GPUs' price or power with time are unknown where `achieved` exceeds the GPUs' peak.
    """
    running = settings.parts.running
    joules = multiply(bill.cluster_watts, running.pue * iteration_s)
    energy = multiply(joules, running.usd_per_kwh / (1000 * SECONDS_AN_HOUR))
    usd = add(multiply(bill.cluster_usd, iteration_s / running.seconds), energy)
    each = MILLION / job.iteration_tokens
    return {
        "network_cost_usd": bill.network_usd,
        "perf_per_dollar": _per(bill.network_usd, iteration_s),
        "cluster_cost_usd": bill.cluster_usd,
        "perf_per_cluster_dollar": _if_can(achieved, _per(bill.cluster_usd, iteration_s)),
        "network_kw": multiply(bill.network_watts, 1 / 1000),
        "cluster_kw": multiply(bill.cluster_watts, 1 / 1000),
        "usd_per_iteration": _if_can(achieved, usd),
        "usd_per_gpu_hour": _usd_per_gpu_hour(running, job, bill),
        "joules_per_iteration": _if_can(achieved, joules),
        "usd_per_million_tokens": _if_can(achieved, multiply(usd, each)),
        "joules_per_million_tokens": _if_can(achieved, multiply(joules, each)),
        "tokens_per_s": job.iteration_tokens / iteration_s,
    }


def _usd_per_gpu_hour(running: Running, job: Workload, bill: Bill) -> Any:
    """Return the dollars of an hour of the cluster over its working GPUs; no time of an iteration is in it."""
    energy = multiply(bill.cluster_watts, running.pue * running.usd_per_kwh / 1000)
    return multiply(add(multiply(bill.cluster_usd, SECONDS_AN_HOUR / running.seconds), energy), 1 / job.gpus)


def training_columns(settings: Resolved, columns: Mapping[str, Any]) -> Row:
    """Return the columns of a whole training from the columns of an iteration; nan if `job.training_tokens` is open.

    They are days (also at both ends of the band), dollars at the price of a million tokens, and kWh at the meter.
    """
    stated = settings.case.job.training_tokens
    tokens = np.full_like(columns["iteration_s"], np.nan if stated is None else stated)
    days = tokens / columns["tokens_per_iteration"] / (24 * SECONDS_AN_HOUR)
    return {
        "training_tokens": tokens,
        "training_days": columns["iteration_s"] * days,
        "training_low_days": columns[LOW] * days,
        "training_high_days": columns[HIGH] * days,
        "training_usd": columns["usd_per_million_tokens"] * (tokens / MILLION),
        "training_kwh": columns["joules_per_million_tokens"] * (tokens / MILLION / (1000 * SECONDS_AN_HOUR)),
    }


def idle_spares(settings: Resolved, job: Workload) -> str | None:
    """Return a sentence on GPUs of scale-up domains that no group fills; None if there are none."""
    on, gpu = settings.fabric, settings.server
    paid, size = on.paid_gpus(gpu, job), on.physical_gpus(gpu)
    if round(paid, PLACES) == job.gpus:
        return None
    used = f"{job.model} uses {job.gpus:,} of {paid:,.12g} GPUs in {paid / size:,.12g} domains of {size}"
    return f"{on.name}: {used}; the others are idle but paid for."


def unknown_parts(settings: Hardware, bill: Bill) -> Iterator[str]:
    """Yield a sentence for every part of a cluster whose price or power is unknown, and for power that is assumed."""
    parts, gpu, on = settings.parts, settings.server, settings.fabric
    if why := no_price(on.name, parts.prices):
        yield why
    if parts.ocs is not None and on.about.optics.switches is not None:
        name = parts.ocs.name
        if parts.ocs.port_usd is None:
            give = f"give usd_per_port (or usd, of a switch) in [ocs.{name}] of network.prices."
            yield f"{on.name} has no cost: the price of optical switch {name!r} is unknown; {give}"
        if parts.ocs.watts is None and parts.ocs.watts_per_port is None:
            yield f"the power of optical switch {name!r} is unknown: {parts.watts.ocs_port:g} W per port are assumed."
    if bill.network_watts is None:
        give = "give it in [watts] of network.prices"
        yield f"{on.name} has no power: the power of a network part is unknown; {give}."
    server = parts.server_of(gpu.name)
    usd = usd_of_gpu(settings)
    known = {
        f"price of GPU {gpu.name}; give usd in its file or in [gpus.{gpu.name}] of network.prices": usd,
        f"power of GPU {gpu.name}; give watts in its file": gpu.watts,
        f"price of a server of {gpu.name}; give usd in [servers.NAME] of network.prices": server.usd,
        f"power of a server of {gpu.name}; give watts in [servers.NAME] of network.prices": server.watts,
    }
    for what, value in known.items():
        if value is None:
            yield f"whole-cluster {what.split()[0]}: no {what}."


def _if_can(achieved: Any, value: Any) -> Any:
    if value is None or np.ndim(achieved) == 0:
        return None if np.ndim(achieved) == 0 and achieved > 1 else value
    return np.where(achieved > 1, np.nan, value)


def add(*parts: Any) -> Any:
    """Return the sum; None if a part is not known."""
    return None if any(part is None for part in parts) else sum(parts)


def multiply(value: Any, factor: Any) -> Any:
    """Return the product; None if either is not known."""
    return None if value is None or factor is None else value * factor


def _per(usd: Any, iteration_s: Any) -> Any:
    return None if usd is None else 1 / (iteration_s * usd)


def columns_at_quotes(settings: Resolved, priced: Callable[..., Any]) -> Row:
    """Costs of a million tokens and of the network at other quoted prices; None where no other price is quoted."""
    columns: Row = dict.fromkeys(QUOTED)
    for column, parts in settings.parts.quote_variants(settings.server.name).items():
        bill, each = priced(parts)
        columns[column] = each["usd_per_million_tokens"]
        if column == LOW_PORTS:
            columns[LOW_PORTS_NETWORK] = bill.network_usd
    return columns


def columns_on_panels(problem: "Problem", reconfigured: Any, priced: Callable[..., Any]) -> Row:
    """Costs with patch panels instead of a switch that never reconfigured; None if the switch did, or if there is
    none."""
    if not problem.fabric.reconfigures or problem.fabric.about.optics.switches is None:
        return dict.fromkeys(ON_PANELS)
    _, usd_of = priced(panels=True)
    reconfigured = (reconfigured > 0) | (problem.circuits_for not in ("all-to-all", "run"))  # other spans reconfigure
    each = {column: usd_of[name] for column, name in ON_PANELS.items()}
    return {column: None if usd is None else np.where(reconfigured, np.nan, usd) for column, usd in each.items()}
