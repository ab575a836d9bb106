"""Which failures a fabric has, by what one expert-parallel group sees of it, and why it has no others."""

import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.failures import KINDS
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.tree import DOWN, Tree

NO_RELAY = "no circuit leads to a server that could relay"
UNSPLIT = "what is relayed then is modelled for routing unsplit alone"
NO_OPTICS = "it has no optical switch"
NO_PACKETS = "it has no packet switches"
FIXED = "its optical switches are set once and not modelled by themselves"
NO_SPARE = "no spare is wired to the neighbours, so the job waits for the repair"
ALONE = "a group is one server"


def kinds_on(group: Any, on: Fabric, routing: str) -> tuple[str, ...]:
    """What can fail."""
    absent = why_absent(group, on, routing)
    return tuple(kind for kind in KINDS if kind not in absent)


@functools.singledispatch
def why_absent(group: Any, on: Fabric, routing: str) -> dict[str, str]:
    """{kind: why the fabric does not have it}; `routing`: over circuits."""
    raise TypeError(f"group must be Region, Electrical or DirectLinks, got {type(group).__name__}.")


@why_absent.register
def _(group: Region, on: Fabric, routing: str):
    found = {"switch": "of its packet switches a link is modelled, no whole switch"}
    alone = group.servers < 2 or not int(group.optical_degree)
    if alone or routing != "unsplit":
        relayed = ("electrical-nics", "electrical-nic") if float(group.electrical_nics) < 2 else ("electrical-nics",)
        found |= dict.fromkeys(relayed, NO_RELAY if alone else UNSPLIT)
    return found


@why_absent.register
def _(group: Electrical, on: Fabric, routing: str):
    found: dict[str, str] = dict.fromkeys(("optical-nic", "optical-switch", "controller"), NO_OPTICS)
    return found | {"electrical-nics": "its servers have no other network that could relay"}


@why_absent.register
def _(group: DirectLinks, on: Fabric, routing: str):
    found: dict[str, str] = dict.fromkeys(("electrical-nic", "electrical-nics", "switch"), NO_PACKETS)
    found |= dict.fromkeys(("optical-switch", "controller"), FIXED)
    if not on.panels:
        found["optical-nic"] = "a NIC is one end of a link"
        found |= dict.fromkeys(("gpu", "server"), NO_SPARE)
    elif group.nics <= group.ring_nics:
        found["optical-nic"] = "all NICs of a group are in its ring"
    return found | (dict.fromkeys(("link", "optical-nic"), ALONE) if group.servers < 2 else {})


class ServerPorts(NamedTuple):
    """NICs of a server on packet switches and on optics, links and edge switches for each server."""

    electrical: int
    optical: int
    links: float
    switches: float = 0.0


@functools.singledispatch
def ports_of(group: Any, nics: float, radix: int) -> ServerPorts:
    """What a server of a group has; `nics`: all of its NICs; `radix`: of switches."""
    raise TypeError(f"group must be Region, Electrical or DirectLinks, got {type(group).__name__}.")


@ports_of.register
def _(group: Region, nics: float, radix: int):
    return ServerPorts(int(group.electrical_nics), int(group.optical_degree), int(group.electrical_nics))


@ports_of.register
def _(group: Electrical, nics: float, radix: int):
    over = 1.0 if group.oversubscription is None else float(group.oversubscription)
    down = Tree(1, radix, oversubscription=over).edge_ports[DOWN]
    return ServerPorts(group.nics, 0, group.nics, group.nics / down)


@ports_of.register
def _(group: DirectLinks, nics: float, radix: int):
    return ServerPorts(0, round(nics), nics / 2)


def said_of(name: str, kinds: Iterable[str], absent: dict[str, str]) -> str | None:
    """A sentence on the kinds that a fabric lacks, of those asked for."""
    by_reason: dict[str, list[str]] = {}
    for kind in kinds:
        if kind in absent:
            by_reason.setdefault(absent[kind], []).append(kind)
    parts = [f"{', '.join(some)} ({why})" for why, some in by_reason.items()]
    return f"{name} has no failure {'; '.join(parts)}." if parts else None
