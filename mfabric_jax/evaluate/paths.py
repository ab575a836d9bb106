"""Paths of flows that do not spread over circuits, NICs and links."""

from typing import Any

from mfabric_jax import routing, units
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.fabric.tree import roomy_radix
from mfabric_jax.routing.fixed import SinglePaths, single_part_times, single_paths, single_shortest_paths
from mfabric_jax.traffic.dispatch import PER_SERVER

WIDE = 1e15  # gigabytes/s: no limit


def carry_of(settings: Resolved, group: Any) -> Any:
    """Return `carry` for `timing.exchanges`; None if bytes spread over circuits, NICs and links."""
    paths: Any = settings.case.network.paths
    job, seed = settings.job, settings.case.run.seed
    if group.shares_links:
        return routing.paths_on_links(group, job, paths.name, seed)
    if paths.name == "spray" or not settings.fabric.paths(settings.site).single:
        return None
    if group.reconfigures:
        if paths.circuits == "pooled":
            return None
        flows = job.ranks_per_server ** (1 if job.dispatch == PER_SERVER else 2) * job.tp
        return single_part_times(flows, int(group.electrical_nics), seed=seed)
    if group.forwards:
        return single_shortest_paths(group, job.ep, job.tp, job.gpus_per_server, seed=seed)
    return _over_switches(settings, group)


def _over_switches(settings: Resolved, group: Any) -> SinglePaths:
    network, job = settings.case.network, settings.job
    paths: Any = network.paths
    if group.nics != job.gpus_per_server:
        raise InputError(
            f"network.nics must be {job.gpus_per_server}, one per GPU, for single paths, got {group.nics}."
        )
    gpus = job.ep * job.tp
    groups = 1 if paths.busy == "group" else job.gpus // gpus
    servers = max(2, -(-groups * gpus // job.gpus_per_server))
    one_switch = settings.tiers == 1  # has room for all NICs
    radix = servers * group.nics if one_switch else roomy_radix(network.radix, servers, group.nics)
    site = FabricSite(
        network=network, servers=servers, gpus_per_server=job.gpus_per_server, tiers=1 if one_switch else 3
    )
    site = site.with_network(radix=radix, nic_use=group.nic_use, oversubscription=None)
    site = site.with_settings(planes=1) if hasattr(site.own, "planes") else site  # `radix` counts whole NICs
    there = settings.fabric.cluster(site, units.to_gbps(1.0), nvswitch_gigabytes_per_s=WIDE)
    return single_paths(there, job.ep, job.tp, groups=groups, seed=settings.case.run.seed)
