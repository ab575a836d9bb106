"""The clusters of the field by name, with the settings under which they are compared."""

import numpy as np

from mfabric_jax.checks import InputError, one_of, whole
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.tree import Tree

CLUSTERS = (
    "fat-tree",
    "oversub-fat-tree",
    "rail-optimized",
    "rail-only",
    "topoopt",
    "mfabric",
    "nvl72",
    "mfabric-cpo",
)
SCALE_UP = ("nvl72", "mfabric-cpo")  # domains of 64 GPUs in place of servers of 8
DOMAIN_GPUS = 64
CPO_CIRCUITS_PER_GPU = 4
CPO_NVSWITCH = 450.0  # gigabytes/s: circuits take half of what an nvl72 GPU has inside its domain
OVERSUBSCRIPTION = 3.0


def cluster(
    name: str,
    servers: int,
    nic_gbps: float,
    *,
    regions: np.ndarray | None = None,
    electrical_nics: int = 2,
    radix: int = 64,
    tiers: int = 3,
    oversubscription: float | None = None,
    at: str = "edge",
    pxn: bool = False,
    nic_use: str = "own",
    **settings,
) -> Cluster:
    """A fabric of the field over `servers` servers.

    - fat-tree, oversub-fat-tree (3:1 unless `oversubscription` says otherwise), rail-optimized: all NICs on one tree.
    - rail-only: a tree of its own, of two tiers, for every rail; data changes rails over the NVSwitch (always `pxn`).
    - mfabric: `electrical_nics` of a server on a tree, pooled; circuits `regions` [G S S].
    - topoopt: circuits alone, `regions` [1 S S]; servers forward where two have none.
    - nvl72: domains of 64 GPUs, one Ethernet NIC a GPU; mfabric-cpo: the same with circuits between domains, for which
      its GPUs give half of their NVLinks.

    - `radix`, `tiers`, `at`: of the tree.   - `nic_use`, `pxn`, `settings`: as in `Cluster`.
    """
    one_of("fabric", name, CLUSTERS)
    whole("servers", servers)
    optical = name in ("topoopt", "mfabric", "mfabric-cpo")
    if optical == (regions is None):
        raise InputError(f"{name} {'needs' if optical else 'has no'} circuits; regions was {_shape(regions)}.")
    gpus = settings.setdefault("gpus_per_server", DOMAIN_GPUS if name in SCALE_UP else 8)
    if name == "mfabric-cpo":
        settings.setdefault("nvswitch_gigabytes_per_s", CPO_NVSWITCH)
    if name == "topoopt":
        return Cluster(name, servers, nic_gbps, nic_use="pooled", regions=regions, **settings)
    over = oversubscription
    if over is None:
        over = OVERSUBSCRIPTION if name == "oversub-fat-tree" else 1.0
    nics = electrical_nics if name == "mfabric" else gpus
    if name == "mfabric" and nics == 0:
        return Cluster(name, servers, nic_gbps, nic_use="pooled", regions=regions, **settings)
    parts, tiers = (gpus, 2) if name == "rail-only" else (1, tiers)
    tree = Tree(servers * nics, radix, tiers, over, at, parts)
    return Cluster(
        name,
        servers,
        nic_gbps,
        tree=tree,
        rails=name in ("rail-optimized", "rail-only"),
        pxn=pxn or name == "rail-only",
        nic_use="pooled" if name == "mfabric" else nic_use,
        regions=regions,
        **settings,
    )


def _shape(regions) -> str:
    return "not given" if regions is None else str(list(np.shape(regions)))
