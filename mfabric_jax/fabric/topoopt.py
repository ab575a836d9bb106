"""TopoOpt: all NICs on patch panels, circuits chosen once for expected demand; servers forward for each other.

Rings over the servers of a stage carry gradients, and matchings inside expert-parallel groups carry all-to-alls. One
circuit joins each server to its peer in the previous stage, and one to its peer in the next. `policies.wirings` divides
the NICs among these. Gradients use rings in both directions, at twice a NIC's rate per ring. Source: Wang et al., NSDI
2023.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import THROUGH_PANEL, PartGroup
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.nic_use import RING_NICS
from mfabric_jax.fabric.site import About, FabricLinks, FabricPaths, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks

NAME = "topoopt"


def _stage_nics(site: FabricSite) -> int:
    return min(2, site.pp - 1)


class TopoOptFabric(Fabric):
    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(nic_use="pooled")

    def group(self, site: FabricSite, nic_gbps: Any) -> DirectLinks:
        nics, least = site.server_nics, RING_NICS + _stage_nics(site)
        if nics < least:
            raise InputError(f"topoopt needs {least} NICs for its ring and pipeline neighbours, got nics {nics}.")
        return views.DirectLinks(site.group_servers, nic_gbps, nics - _stage_nics(site), RING_NICS, 1, panels=True)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        return (PartGroup(site.server_nics, "patch panel", THROUGH_PANEL),)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("forwarding", 1, single=site.own.wiring != "demand")


def _wires(site: FabricSite, nic_gbps: Any, choose: Any) -> np.ndarray:
    stage, nics = site.stage_servers, site.server_nics - _stage_nics(site)
    count, server = np.zeros((site.servers, site.servers), np.int64), np.arange(site.servers)
    if site.own.wiring == "demand":
        _place(count, choose(nics, NAME))
        size, follow = site.group_servers, server // stage * stage + (server + 1) % stage
        inside = (follow // size == server // size) & (follow == server + 1)  # circuits of regions include them
        _join(count, *(ends[(follow != server) & ~inside] for ends in (server, follow)))
    else:
        _place(count, choose(nics, site.own.wiring))
    ahead = server[: site.servers - stage]
    _join(count, ahead, ahead + stage)
    return count[None]


def _place(count: np.ndarray, parts: np.ndarray) -> None:
    """Add the circuits [N S S] of the N parts of the cluster to its circuits, in order."""
    size = parts.shape[-1]
    for number, circuits in enumerate(parts):
        own = slice(number * size, (number + 1) * size)
        count[own, own] += circuits


def _join(count: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.add.at(count, (a, b), 1)
    np.add.at(count, (b, a), 1)


TOPOOPT = TopoOptFabric(
    About(
        name=NAME,
        summary="only circuits, chosen before training; servers forward between pairs without a circuit",
        look=("TopoOpt", "#CC79A7", "P"),
        optics=Optics(wires=_wires, policy="topoopt"),
    )
)
