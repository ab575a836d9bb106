"""The fabrics by name, and their costs. A new fabric is a file of its own and a line in `case.fabrics.MODULES`.

The file of a fabric is imported when its name is asked for.
"""

import dataclasses
import functools
import importlib
from typing import Any

import numpy as np

from mfabric_jax.case.fabrics import GRAPH, MODULES, NAMES
from mfabric_jax.checks import not_negative, one_of, whole
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import Prices, Watts
from mfabric_jax.fabric.design import Fabric, Form

FORM = {field.name for field in dataclasses.fields(Form)}


def get(name: str) -> Fabric:
    """The fabric of that name; raises `InputError` for an unknown name."""
    return _defined(GRAPH, "own_graph") if name == GRAPH else _defined(one_of("fabric", name, NAMES), MODULES[name])


@functools.cache
def _defined(name: str, module: str) -> Fabric:
    there = vars(importlib.import_module(f"mfabric_jax.fabric.{module}")).values()
    return next(fabric for fabric in there if isinstance(fabric, Fabric) and fabric.name == name)


def cluster(name: str, servers: int, nic_gbps: float, **settings: Any) -> Cluster:
    """A whole cluster of that fabric over `servers` servers or scale-up domains.

    - `settings`: fields of `Form` (`regions`, `radix`, `tiers`, ...) and of `Cluster` (`goodput`, `link_delay_s`, ...).
    """
    whole("servers", servers)
    form = Form(**{field: value for field, value in settings.items() if field in FORM})
    rest = {field: value for field, value in settings.items() if field not in FORM}
    if form.nvswitch_gigabytes_per_s is not None:
        rest["nvswitch_gigabytes_per_s"] = form.nvswitch_gigabytes_per_s
    return get(name).cluster(servers, nic_gbps, form, rest)


def cost_table(
    name: str, nic_gbps: float, prices: Prices | None = None, *, gpus: int | None = None, **form: Any
) -> list[dict[str, Any]]:
    """Network cost of one server: a row for each part of each group of NICs.

    Columns: `attached_to`, `part`, `count` per server, `unit_usd`, `usd` (None: price unknown). Separate rows: what
    `gpus` (None: all with which the fabric is built) pay besides NICs (nvl72, mfabric-cpo), and the rack switch if
    priced. `form`: see `Form`.
    """
    prices = prices or Prices()
    counted = _counted(name, gpus, bool(prices.rack_switch_per_server), form)
    rows: list[dict[str, Any]] = []
    for to, part, count in counted:
        unit = prices.at(part, nic_gbps)
        dollars = None if unit is None else count * unit
        rows.append({"attached_to": to, "part": part, "count": count, "unit_usd": unit, "usd": dollars})
    return rows


def _counted(name: str, gpus: int | None, rack: bool, form: dict[str, Any]) -> list[tuple[str, str, Any]]:
    fabric = get(name)
    gpus = (fabric.built_gpus or fabric.gpus_per_server) if gpus is None else whole("gpus", gpus)
    for field in ("nics", "optical_degree", "electrical_nics"):
        if form.get(field) is not None:
            not_negative(field, form[field])
    complete: dict[str, Any] = {"gpus_per_server": gpus} | form
    found = [
        (group.to, part, group.nics * count)
        for group in fabric.parts(Form(**complete))
        for part, count in group.attachment.counts.items()
        if np.any(group.nics)
    ]
    if fabric.per_gpu is not None:
        found.append((fabric.per_gpu[1], fabric.per_gpu[0], gpus))
    return [*found, ("rack switch", "rack_switch_per_server", 1)] if rack else found


def cluster_cost(
    name: str, servers: int, nic_gbps: Any, prices: Prices | None = None, *, gpus: int | None = None, **form: Any
) -> Any:
    """Networking dollars of a cluster by the name of its fabric; None where no price is known (`no_price` says why).

    The bandwidth and the numbers of NICs may be arrays [N] of several clusters.
    """
    whole("servers", servers)
    dollars = [row["usd"] for row in cost_table(name, nic_gbps, prices, gpus=gpus, servers=servers, **form)]
    return None if any(part is None for part in dollars) else servers * sum(dollars)


def cluster_watts(
    name: str, servers: int, nic_gbps: Any, watts: Watts | None = None, *, gpus: int | None = None, **form: Any
) -> Any:
    """Power of a cluster's network at full use [W]; None if a part's is unknown. Arrays as in `cluster_cost`."""
    whole("servers", servers)
    watts = watts or Watts()
    counted = _counted(name, gpus, bool(watts.rack_switch_per_server), {"servers": servers} | form)
    drawn = [(watts.at(part, nic_gbps), count) for _, part, count in counted]
    return None if any(each is None for each, _ in drawn) else servers * sum(each * count for each, count in drawn)


def no_price(name: str, prices: Prices | None = None) -> str | None:
    """A sentence on why a fabric has no cost; None if it has one."""
    field, what = get(name).per_gpu or (None, None)
    if field is None or getattr(prices or Prices(), field) is not None:
        return None
    return f"{name} has no cost: there are no public prices for {what}; give {field}, dollars per GPU, in the prices."
