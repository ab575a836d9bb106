"""Scale-up domains of any size and rate, beside a NIC for each GPU on a switch tree.

A GPU has a port at each switch of its domain, all of which it uses at once; a switch has a port for each GPU. So an
NVL72 (NVIDIA GB200: 18 ports of 50 GB/s) has 18 chips of 72 ports and 1,296 links, of one tier that does not block:
ports alone limit. Sources disagree on what an NVL576 is, so count and rate are settings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mfabric_jax import units
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import Asked, ClusterShape, Domain, Fabric, Form
from mfabric_jax.fabric.fat_tree import attachment_of, nic_tree, on_switches, switches_of
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.electrical import Electrical

GPUS = 72


def domain_links(domain: Domain) -> int:
    """Links from GPUs to switches of a domain of one tier."""
    return domain.gpus * domain.planes


def _domain(said: Callable[[str], Any]) -> Domain:
    gpus, ports, rate = (said(f"network.scale-up.{name}") for name in ("gpus", "ports", "port_gigabytes_per_s"))
    return Domain(gpus, ports * units.gigabytes_per_s(rate), ports)


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses) -> list[Electrical]:
    return [on_switches(settings, job, nic_gbps, job.gpus_per_server)]


def _parts(form: Form) -> tuple[PartGroup, ...]:
    nics = form.nics or form.gpus_per_server or GPUS
    return (PartGroup(nics, "switch tree", attachment_of(form, nics)),)


def domain_fabric(
    name: str,
    summary: str,
    look: tuple[str, str, str],
    domain: Callable[[Callable[[str], Any]], Domain],
    gpus: int,
    price_of: str,
    **rest: Any,
) -> Fabric:
    """The fabric of such domains, of `gpus` GPUs where no settings say another number."""

    def form(settings: Asked, job: ClusterShape) -> Form:
        return Form(nics=job.gpus_per_server, **switches_of(settings, job))

    found = Fabric(
        name=name,
        summary=summary,
        look=look,
        groups=_groups,
        tree=nic_tree,
        parts=_parts,
        form=form,
        domain_gpus=gpus,
        domain=domain,
        per_gpu=("scale_up_per_gpu", price_of),
        **rest,
    )
    return found


SCALE_UP = domain_fabric(
    "scale-up",
    "domains of `network.scale-up.gpus` GPUs, a NIC of each beside them",
    ("Scale-up domains", "#7F3C8D", "X"),
    _domain,
    GPUS,
    "NVLink domains",
)
