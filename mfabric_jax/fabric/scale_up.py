"""Scale-up domains of 64 GPUs (of an NVL72's 72) with one Ethernet NIC per GPU, without or with co-packaged optics.

A GPU has `gpu_tbps` in total, NIC included. On nvl72 the rest is NVLink. On mfabric-cpo half of the rest is NVLink; the
other half is optical ports, as wide as the NIC, to an optical switch between domains. Source: arXiv 2501.03905,
look-ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, concrete
from mfabric_jax.fabric import views
from mfabric_jax.fabric.design import OnTree
from mfabric_jax.fabric.domains import PRICE
from mfabric_jax.fabric.mfabric import check_ports
from mfabric_jax.fabric.nic_use import optical_ports
from mfabric_jax.fabric.site import About, Domains, FabricPaths, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.region import Region

GPUS, BUILT = 64, 72  # GPUs of a domain that work, and all of them: an NVL72
NVSWITCHES = 18  # two in each of 9 trays (NVIDIA GB200 NVL72)


def _beside_nic(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any = None) -> Any:
    beside = units.tbps(gpu_tbps) - units.gbps(nic_gbps)
    if concrete(beside) and np.any(beside <= 0):  # in any of several cases
        nic_gbps = np.max(nic_gbps)
        raise InputError(f"gpu_tbps {gpu_tbps:g} leaves no NVLink for a GPU beside a NIC of nic_gbps {nic_gbps:g}.")
    return beside


def _half_beside_nic(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any = None) -> Any:
    return _beside_nic(gpu_tbps, nic_gbps) / 2


class Nvl72(OnTree):
    def group(self, site: FabricSite, nic_gbps: Any) -> Any:
        _beside_nic(site.network.gpu_tbps, nic_gbps)
        return super().group(site, nic_gbps)


class MFabricCpo(OnTree):
    def group(self, site: FabricSite, nic_gbps: Any) -> Region:
        _beside_nic(site.network.gpu_tbps, nic_gbps)
        gpus = site.gpus_per_server
        circuits = optical_ports(site.network.gpu_tbps, nic_gbps) * gpus
        region = views.Region(site.group_servers, nic_gbps, circuits, gpus / site.ratio(), site.delay_s, own_ports=gpus)
        return check_ports(site, region)

    def paths(self, site: FabricSite) -> FabricPaths:
        return super().paths(site)._replace(rule=None)


def _wires(site: FabricSite, nic_gbps: Any, choose: Any) -> np.ndarray:
    return choose(optical_ports(site.network.gpu_tbps, nic_gbps) * site.gpus_per_server)


NVL72 = Nvl72(
    About(
        name="nvl72",
        summary="domains of 64 GPUs, one Ethernet NIC per GPU",
        look=("NVL72", "#4D4D4D", "X"),
        domains=Domains(gpus=GPUS, built=BUILT, nvswitches=NVSWITCHES, inside_Bps=_beside_nic, price=PRICE),
    )
)
MFABRIC_CPO = MFabricCpo(
    About(
        name="mfabric-cpo",
        summary="domains of 64 GPUs with circuits between them, which take half of a GPU's NVLink bandwidth",
        look=("mFabric CPO", "#E69F00", "h"),
        domains=Domains(
            gpus=GPUS,
            built=BUILT,
            nvswitches=NVSWITCHES,
            inside_Bps=_half_beside_nic,
            price=("co_packaged_per_gpu", "co-packaged optics"),
        ),
        optics=Optics(wires=_wires, policy=None, reconfigures=True),
    )
)
