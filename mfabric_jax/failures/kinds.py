"""Which failures a fabric has, by what one expert-parallel group sees of it, why it has no others, and how many of each
kind a cluster has."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

from mfabric_jax.fabric.design import Fabric, Form
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.region import Region
from mfabric_jax.simulation.scenario import Scenario

NO_RELAY = "no circuit leads to a server that could relay"
UNSPLIT = "what is relayed then is modelled for routing unsplit alone"
NO_OPTICS = "it has no optical switch"
NO_PACKETS = "it has no packet switches"
FIXED = "its optical switches are set once and not modelled by themselves"
NO_SPARE = "no spare is wired to the neighbours, so the job waits for the repair"
ALONE = "a group is one server"


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


def devices(kind: str, one: Scenario, radix: int, nvswitches: int) -> int:
    """How many of them the cluster has, of the parts that its bill counts.

    - `radix`: of packet switches.   - `nvswitches`: of a server.

    `electrical-nics` are those of a server, together; links those from the edge up, or those between servers; switches
    those at the edge.
    """
    job, on = one.workload, one.fabric
    form = dataclasses.replace(on.form(one.settings, job), radix=radix)
    nics, regions = nics_of_server(one, form), -(-job.servers // job.servers_per_region)
    tree, hosts = on.tree(form), job.servers * nics.electrical
    each = {
        "electrical-nic": hosts,
        "electrical-nics": job.servers,
        "optical-nic": job.servers * nics.optical,
        "link": tree.uplinks_of(hosts) if tree else on.direct_links(form, job),
        "gpu": job.gpus,
        "server": job.servers,
        "optical-switch": _optical_switches(one, form) or regions,
        "controller": regions,
        "nvswitch": job.servers * nvswitches,
        "switch": tree.edges_of(hosts) if tree else 0,
    }
    return each[kind]


class ServerNics(NamedTuple):
    """NICs of a server on packet switches, and its other ports."""

    electrical: int
    optical: int


def nics_of_server(one: Scenario, form: Form) -> ServerNics:
    """As the parts of the fabric have them; ports of GPUs, whose price is that of the GPU, as its groups do."""
    switched, others = 0, 0
    for group in one.fabric.parts(form):
        if group.attachment.switch_ports:
            switched += group.nics
        else:
            others += group.nics
    own = int(one.group.optical_degree) if one.group.own_ports else 0
    return ServerNics(int(switched), round(others) + own)


def _optical_switches(one: Scenario, form: Form) -> int | None:
    """Those that are bought; None where no switch is named: one for every region."""
    switch, regions = one.settings.parts.ocs, one.fabric.optical_regions
    return None if switch is None or regions is None else switch.switches(*regions(form, one.workload))


def said_of(name: str, kinds: Iterable[str], absent: dict[str, str]) -> str | None:
    """A sentence on the kinds that a fabric lacks, of those asked for."""
    by_reason: dict[str, list[str]] = {}
    for kind in kinds:
        if kind in absent:
            by_reason.setdefault(absent[kind], []).append(kind)
    parts = [f"{', '.join(some)} ({why})" for why, some in by_reason.items()]
    return f"{name} has no failure {'; '.join(parts)}." if parts else None
