"""Fabrics by name, and their costs. A new fabric needs one file and one line in `case.network.MODULES`.

The file of a fabric is imported when the fabric is first used.
"""

import dataclasses
import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from mfabric_jax.case.network import GRAPH, MODULES, NAMES, Network
from mfabric_jax.checks import not_negative, one_of, whole
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import SHARP_PORT, Prices, Watts
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.site import FabricSite

SITE = {field.name for field in dataclasses.fields(FabricSite)} - {"network"}
NETWORK = {*Network.__struct_fields__}
RENAMED = {"at": "oversubscribed_at"}
Row = TypeVar("Row", bound=Mapping[str, Any])


def get(name: str) -> Fabric:
    """Return the fabric of that name.

    Raise `InputError` if the name is unknown.
    """
    return (
        _load_fabric(GRAPH, "graph_fabric")
        if name == GRAPH
        else _load_fabric(one_of("fabric", name, NAMES), MODULES[name])
    )


def joins_groups(name: object) -> bool:
    """Return whether a fabric joins expert-parallel groups; True for a name that is not known."""
    return name not in NAMES or get(str(name)).joins_groups


def keep_joined(rows: Sequence[Row]) -> list[Row]:
    """Return the rows whose dollars count links between groups: of fabrics that join groups. If there are no such
    rows, return all."""
    return [row for row in rows if joins_groups(row.get("fabric"))] or [*rows]


@functools.cache
def _load_fabric(name: str, module: str) -> Fabric:
    there = vars(importlib.import_module(f"mfabric_jax.fabric.{module}")).values()
    return next(fabric for fabric in there if isinstance(fabric, Fabric) and fabric.name == name)


def site_of(name: str, settings: dict[str, Any]) -> tuple[FabricSite, dict[str, Any]]:
    """Return the site of a fabric, and the settings that are not part of it.

    `settings`: fields of `FabricSite`, the network's settings, the fabric's own settings, and any others.
    """
    about = get(name).about
    site = FabricSite(gpus_per_server=get(name).gpus_per_server, nics=about.nics).with_network(fabric=name)
    own = {*type(site.own).__struct_fields__} if hasattr(site.own, "__struct_fields__") else set()
    values = {RENAMED.get(field, field): value for field, value in settings.items()}
    site = replace(site, **{field: value for field, value in values.items() if field in SITE and value is not None})
    if mine := {field: value for field, value in values.items() if field in own}:
        site = site.with_settings(**mine)
    network = {field: value for field, value in values.items() if field in NETWORK - SITE - own}
    others = {field: value for field, value in values.items() if field not in SITE | NETWORK | own}
    return site.with_network(**network), others


def cluster(name: str, servers: int, nic_gbps: float, regions: np.ndarray | None = None, **settings: Any) -> Cluster:
    """Return a whole cluster of that fabric with `servers` servers or scale-up domains.

    - `regions`: circuits [G S S], if the fabric has circuits.
    - `settings`: fields of `FabricSite`, of `network` and of the fabric's own settings (`radix`, `tiers`, `shape`,
      ...), and of `Cluster` (`goodput`, `link_delay_s`, ...).
    """
    site, others = site_of(name, settings | {"servers": whole("servers", servers)})
    return get(name).cluster(site, nic_gbps, regions, **others)


def cost_table(
    name: str, nic_gbps: float, prices: Prices | None = None, *, gpus: int | None = None, **settings: Any
) -> list[dict[str, Any]]:
    """Return the network cost of one server: a row for each part of each group of NICs.

    Columns: `attached_to`, `part`, `count` per server, `unit_usd`, `usd` (None: price unknown). Further rows: what
    `gpus` GPUs (None: all that are built in) pay besides NICs (nvl72, mfabric-cpo), what switch ports pay for SHARP if
    `network.in-network.sharp` has it, and the rack switch if it has a price. `settings`: as in `cluster`.
    """
    return site_table(get(name), _site(name, gpus, settings), nic_gbps, prices or Prices())


def _site(name: str, gpus: int | None, settings: dict[str, Any]) -> FabricSite:
    domains = get(name).about.domains
    gpus = whole("gpus", gpus) if gpus is not None else (domains and domains.built) or get(name).gpus_per_server
    site, others = site_of(name, {"gpus_per_server": gpus} | settings)
    for field in others:
        one_of(f"setting of {name}", field, sorted(SITE | NETWORK))
    return site


def site_table(on: Fabric, site: FabricSite, nic_gbps: Any, prices: Prices) -> list[dict[str, Any]]:
    """Return the `cost_table` of a site."""
    rows: list[dict[str, Any]] = []
    for to, part, count, speed in _count_parts(on, site, bool(prices.rack_switch_per_server)):
        unit = prices.price_of(part, nic_gbps * speed)
        dollars = None if unit is None else 1.0 * count * unit  # integers of a file may exceed those of arrays
        rows.append({"attached_to": to, "part": part, "count": count, "unit_usd": unit, "usd": dollars})
    return rows


def _count_parts(on: Fabric, site: FabricSite, rack: bool) -> list[tuple[str, str, Any, float]]:
    """Return what each part of a server attaches to, its kind, its number, and its bandwidth over `nic_gbps`.

    NICs of each speed have their own ports, transceivers and links up, of the same number per NIC.
    """
    for field in ("nics", "optical_degree", "electrical_nics"):
        if getattr(site, field) is not None:
            not_negative(field, getattr(site, field))
    on.check_speeds(site.network.rails.speeds, site.server_nics)
    counts = [
        (group.to if speed == 1 else f"{group.to} at {speed:g} of nic_gbps", part, group.nics * share * count, speed)
        for group in on.parts(site)
        for speed, share in site.share_by_speed.items()
        for part, count in group.attachment.counts.items()
        if np.any(group.nics)
    ]
    if site.network.in_network.sharp:
        ports = sum(count for _, part, count, _ in counts if part == "switch_port")
        counts.append(("switches that reduce", SHARP_PORT, ports, 1))
    if on.about.domains is not None:
        field, what = on.about.domains.price
        counts.append((what, field, site.gpus_per_server, 1))
    return [*counts, ("rack switch", "rack_switch_per_server", 1, 1)] if rack else counts


def cluster_cost(
    name: str, servers: int, nic_gbps: Any, prices: Prices | None = None, *, gpus: int | None = None, **settings: Any
) -> Any:
    """Return the network cost of a cluster [dollars]; None if a price is unknown (`no_price` says why).

    `name`: of its fabric. The bandwidth and the numbers of NICs may be arrays [N], for N clusters.
    """
    site = _site(name, gpus, settings | {"servers": whole("servers", servers)})
    return site_cost(get(name), site, nic_gbps, prices or Prices())


def site_cost(on: Fabric, site: FabricSite, nic_gbps: Any, prices: Prices) -> Any:
    """Return the `cluster_cost` of a site; its `gpus_per_server` GPUs pay for their part of a server or domain."""
    dollars = [row["usd"] for row in site_table(on, site, nic_gbps, prices)]
    return None if any(part is None for part in dollars) else site.servers * sum(dollars)


def cluster_watts(
    name: str, servers: int, nic_gbps: Any, watts: Watts | None = None, *, gpus: int | None = None, **settings: Any
) -> Any:
    """Return the power of a cluster's network at full use [W]; None if the power of a part is unknown.

    Arrays as in `cluster_cost`.
    """
    site = _site(name, gpus, settings | {"servers": whole("servers", servers)})
    return site_watts(get(name), site, nic_gbps, watts or Watts())


def site_watts(on: Fabric, site: FabricSite, nic_gbps: Any, watts: Watts) -> Any:
    """Return the `cluster_watts` of a site."""
    drawn = [
        (watts.watts_of(part, nic_gbps * speed), count)
        for _, part, count, speed in _count_parts(on, site, bool(watts.rack_switch_per_server))
    ]
    if any(each is None for each, _ in drawn):
        return None
    return site.servers * sum(1.0 * count * each for each, count in drawn)


def no_price(name: str, prices: Prices | None = None) -> str | None:
    """Return a sentence that says why a fabric has no cost; None if it has one."""
    domains = get(name).about.domains
    field, what = (None, None) if domains is None else domains.price
    if field is None or getattr(prices or Prices(), field) is not None:
        return None
    return f"{name} has no cost: there are no public prices for {what}; give {field}, dollars per GPU, in the prices."
