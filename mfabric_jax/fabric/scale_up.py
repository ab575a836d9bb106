"""Scale-up domains of 64 GPUs (of an NVL72's 72) with one Ethernet NIC per GPU, without or with co-packaged optics.

A GPU has `gpu_tbps` in all. What its NIC leaves is NVLink (nvl72), or half NVLink and half optical ports of the NIC's
bandwidth to an optical switch between domains (mfabric-cpo). Source: arXiv 2501.03905, look-ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, Misfit, concrete
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import Asked, ClusterShape, Fabric, Form
from mfabric_jax.fabric.fat_tree import attachment_of, nic_tree, on_switches, ratio_of, switches_of
from mfabric_jax.fabric.mfabric import check_ports
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.electrical import Electrical
    from mfabric_jax.fabric.region import Region

DOMAIN_GPUS, BUILT_GPUS = 64, 72  # that work, and that a domain has: an NVL72
DOMAIN_NVSWITCHES = 18  # two in each of 9 trays (NVIDIA GB200 NVL72)


def _beside_nic(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any = None) -> Any:
    beside = units.tbps(gpu_tbps) - units.gbps(nic_gbps)
    if concrete(beside) and np.any(beside <= 0):  # of many cases: at any
        nic_gbps = np.max(nic_gbps)
        raise InputError(f"gpu_tbps {gpu_tbps:g} leaves no NVLink beside a NIC of nic_gbps {nic_gbps:g} to a GPU.")
    return beside


def _half_beside_nic(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any = None) -> Any:
    return _beside_nic(gpu_tbps, nic_gbps) / 2


def optical_ports(gpu_tbps: Any, nic_gbps: Any) -> Any:
    """Optical ports of a GPU: as many as fit half of its non-Ethernet bandwidth; maybe traced, or of many cases [N]."""
    ports = (units.to_gbps(units.tbps(gpu_tbps)) - nic_gbps) // (2 * nic_gbps)
    if concrete(ports) and np.any(ports < 1):
        nic_gbps = np.max(nic_gbps)
        raise InputError(f"gpu_tbps {gpu_tbps:g} leaves no optical port of nic_gbps {nic_gbps:g} to a GPU.")
    return ports.astype(np.int32) if np.ndim(ports) or not concrete(ports) else int(ports)


def _nvl72_groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses) -> list[Electrical]:
    _beside_nic(settings.case.network.gpu_tbps, nic_gbps)
    return [on_switches(settings, job, nic_gbps, job.gpus_per_server)]


def _cpo_groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses) -> list[Region]:
    _beside_nic(settings.case.network.gpu_tbps, nic_gbps)
    if (ratio := ratio_of(settings.case.network)) != 1:
        raise Misfit(f"network.oversubscription must be auto or 1 on mfabric-cpo, got {ratio:g}.")
    gpus = job.gpus_per_server
    circuits = optical_ports(settings.case.network.gpu_tbps, nic_gbps) * gpus
    from mfabric_jax.fabric.region import Region

    region = Region(job.servers_per_region, nic_gbps, circuits, float(gpus), settings.delay_s, own_ports=True)
    return [check_ports(settings, region)]


def _cpo_at(group: Region, nic_gbps: Any, gpu_tbps: Any) -> Region:
    import equinox as eqx
    import jax

    gpus = group.electrical_nics
    gpus = gpus.astype(np.int32) if isinstance(gpus, jax.Array) else int(gpus)
    degree = optical_ports(gpu_tbps, nic_gbps) * gpus
    return eqx.tree_at(lambda g: (g.nic_gbps, g.optical_degree), group, (nic_gbps, degree))


def _parts(form: Form) -> tuple[PartGroup, ...]:
    nics = form.gpus_per_server or DOMAIN_GPUS if form.nics is None else form.nics
    return (PartGroup(nics, "switch tree", attachment_of(form, nics)),)


def _form(settings: Asked, job: ClusterShape) -> Form:
    return Form(nics=job.gpus_per_server, gpu_tbps=settings.case.network.gpu_tbps, **switches_of(settings, job))


NVL72 = Fabric(
    name="nvl72",
    summary="domains of 64 GPUs, one Ethernet NIC a GPU",
    look=("NVL72", "#4D4D4D", "X"),
    groups=_nvl72_groups,
    tree=nic_tree,
    parts=_parts,
    form=_form,
    nvlink_Bps=_beside_nic,
    domain_gpus=DOMAIN_GPUS,
    built_gpus=BUILT_GPUS,
    nvswitches=DOMAIN_NVSWITCHES,
    per_gpu=("scale_up_per_gpu", "NVLink domains"),
)
MFABRIC_CPO = Fabric(
    name="mfabric-cpo",
    summary="domains of 64 GPUs with circuits between them, for which GPUs give half of their NVLinks",
    look=("mFabric CPO", "#E69F00", "h"),
    groups=_cpo_groups,
    tree=nic_tree,
    circuits=lambda job, form, gbps, choose: choose(optical_ports(form.gpu_tbps, gbps) * job.gpus_per_server),
    parts=_parts,
    form=_form,
    nvlink_Bps=_half_beside_nic,
    at=_cpo_at,
    domain_gpus=DOMAIN_GPUS,
    built_gpus=BUILT_GPUS,
    nvswitches=DOMAIN_NVSWITCHES,
    per_gpu=("co_packaged_per_gpu", "co-packaged optics"),
    policy=None,
    routing=None,
    reconfigures=True,
)
