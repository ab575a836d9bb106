"""Paths that flows take where they do not spread over circuits, NICs and links."""

import dataclasses
from typing import Any

from mfabric_jax import routing, units
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.fabric.design import Form
from mfabric_jax.fabric.tree import roomy_radix
from mfabric_jax.routing.fixed import SinglePaths, single_part_times, single_paths, single_ways
from mfabric_jax.traffic.dispatch import PER_SERVER

WIDE = 1e15  # gigabytes/s: no limit


def carried(settings: Resolved, group: Any) -> Any:
    """`carry` of `timing.exchanges`; None: bytes spread over circuits, NICs and links."""
    paths: Any = settings.case.network.paths
    job, seed = settings.job, settings.case.run.seed
    if group.shares_links:
        return routing.ways_on_links(group, job, paths.name, seed)
    if paths.name == "spray" or not settings.fabric.single_paths(settings):
        return None
    if group.reconfigures:
        if paths.circuits == "pooled":
            return None
        flows = job.ranks_per_server ** (1 if job.dispatch == PER_SERVER else 2) * job.tp
        return single_part_times(flows, int(group.electrical_nics), seed=seed)
    if group.forwards:
        return single_ways(group, job.ep, job.tp, job.gpus_per_server, seed=seed)
    return _over_switches(settings, group)


def _over_switches(settings: Resolved, group: Any) -> SinglePaths:
    network, job = settings.case.network, settings.job
    paths: Any = network.paths
    if group.nics != job.gpus_per_server:
        raise InputError(f"single paths are drawn for one NIC a GPU ({job.gpus_per_server}), got {group.nics} nics.")
    gpus = job.ep * job.tp
    groups = 1 if paths.busy == "group" else job.gpus // gpus
    servers = max(2, -(-groups * gpus // job.gpus_per_server))
    one_switch = settings.tiers == 1  # has room for all NICs
    radix = servers * group.nics if one_switch else roomy_radix(network.radix, servers, group.nics)
    form = Form(radix=radix, pxn=group.pxn, nic_use=group.nic_use, gpus_per_server=job.gpus_per_server)
    form = dataclasses.replace(form, tiers=1) if one_switch else form
    there = settings.fabric.cluster(servers, units.to_gbps(1.0), form, {"nvswitch_gigabytes_per_s": WIDE})
    return single_paths(there, job.ep, job.tp, groups=groups, seed=settings.case.run.seed)
