"""TopoOpt: all NICs on patch panels, circuits chosen once for expected demand, servers forward for each other.

A ring over the servers of a stage for gradients, one circuit from each server to its peers in the neighbouring stages,
matchings inside expert-parallel groups with the other NICs: wiring "demand"; others have more rings over the stage.
Gradients go around rings in both directions, so at twice the rate of a NIC a ring. Source: Wang et al., NSDI 2023.
"""

from typing import Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import PATCH_PANEL, PartGroup
from mfabric_jax.fabric.design import SERVER_GPUS, ClusterShape, Fabric, Form, HasCircuits, needs_regions, nics_of
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.packet_trees import tree_form
from mfabric_jax.fabric.rings import RING_NICS
from mfabric_jax.workload import Workload


def _stage_nics(job: ClusterShape) -> int:
    """NICs of a server that lead to neighbouring stages, one each."""
    return min(2, job.pp - 1)


def _groups(settings: HasCircuits, job: Workload, nic_gbps: float, nic_uses) -> list[DirectLinks]:
    """Without circuits yet: they are chosen for the mean demand of the run."""
    nics = nics_of(settings, job)
    least = RING_NICS + _stage_nics(job)
    if nics < least:
        raise InputError(f"topoopt needs {least} NICs for its ring and pipeline neighbours, got nics {nics}.")
    return [DirectLinks(job.servers_per_region, nic_gbps, nics - _stage_nics(job), RING_NICS, 1)]


def _cluster(servers: int, nic_gbps: float, form: Form, rest: dict[str, Any]) -> Cluster:
    gpus = form.gpus_per_server or SERVER_GPUS
    regions = needs_regions("topoopt", form)
    return Cluster("topoopt", servers, nic_gbps, gpus_per_server=gpus, nic_use="pooled", regions=regions, **rest)


def _circuits(job: ClusterShape, form: Form, nic_gbps: float, choose) -> np.ndarray:
    """Circuits of the whole cluster [1 S S]."""
    stage, size = job.servers // job.pp, job.servers_per_region
    between = choose((form.nics or job.gpus_per_server) - _stage_nics(job), "topoopt")
    count = np.zeros((job.servers, job.servers), np.int64)
    for group, circuits in enumerate(between):
        count[group * size : (group + 1) * size, group * size : (group + 1) * size] = circuits
    server = np.arange(job.servers)
    follow = server // stage * stage + (server + 1) % stage  # the ring; inside regions the chain is there
    closing = (follow != server) & ((follow // size != server // size) | (follow != server + 1))
    ahead = server[: job.servers - stage]
    for a, b in ((server[closing], follow[closing]), (ahead, ahead + stage)):
        np.add.at(count, (a, b), 1)
        np.add.at(count, (b, a), 1)
    return count[None]


def _links(form: Form, job: ClusterShape) -> int:
    """NICs that lead to a stage before the first or behind the last have no link."""
    inside = job.servers * (_nics(form) - _stage_nics(job)) // 2
    return inside + job.servers - job.servers // job.pp


def _nics(form: Form) -> Any:
    return SERVER_GPUS if form.nics is None else form.nics


TOPOOPT = Fabric(
    name="topoopt",
    summary="circuits alone, chosen before training; servers forward where two have none",
    look=("TopoOpt", "#CC79A7", "P"),
    groups=_groups,
    cluster=_cluster,
    circuits=_circuits,
    parts=lambda form: (PartGroup(_nics(form), "patch panel", PATCH_PANEL),),
    form=tree_form,
    direct_links=_links,
    path_links=lambda settings: 1,
    policy="topoopt",
    routing="forwarding",
    single_paths=lambda settings: settings.wiring != "demand",
    panels=True,
)
