"""What the pictures of a comparison need besides its rows."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.fabric import Region
from mfabric_jax.schedule import one_block
from mfabric_jax.study.compare import jobs, mean_demand, tokens_of
from mfabric_jax.study.config import Compare
from mfabric_jax.study.timeline import job_timeline
from mfabric_jax.traffic import rank_bytes, server_bytes
from mfabric_jax.workload import Workload

OF_BLOCKS = ("fat-tree", "mfabric")


def examples(config: Compare) -> tuple[dict[str, dict], dict[str, list]]:
    """A region with its circuits, and timelines of a block on the fat-tree, if compared, and on mFabric, by title.

    Of the first model whose region has more than two servers (else the first), in the middle of the model; empty
    without mFabric.
    """
    several = [name for name in config.models if config.workload(name).servers_per_region > 2]
    workload = config.workload((several or list(config.models))[0])
    if "mfabric" not in config.fabrics:
        return {}, {}
    gbps = min(config.nic_gbps, key=lambda x: abs(x - 400))
    title = f"{workload.model}: one region, {config.policy_name} circuits"
    lines = {f"{workload.model} on {name} at {gbps:g} Gbps": line for name, line in _lines(config, workload, gbps)}
    return {title: _region(config, workload, gbps)}, lines


def _region(config: Compare, workload: Workload, gbps: float) -> dict[str, np.ndarray]:
    """Demand between the servers of a region [S S] bytes, and the circuits chosen for it [S S]."""
    region = Region(workload.servers_per_region, gbps, config.optical_degree, config.electrical_nics, config.delay_s)
    tokens = tokens_of(dataclasses.replace(config, iterations=1), workload)
    drawn = tokens.count
    counts = drawn[0, workload.moe_layers // 2 % drawn.shape[1], 0]
    demand = server_bytes(
        rank_bytes(jnp.asarray(counts, config.dtype), workload.dispatch_bytes_per_selection), workload.ranks_per_server
    )
    policy = config.circuits_policy(mean_demand(workload, tokens).astype(config.dtype))
    plan = policy(demand, region, previous=None, key=jax.random.key(config.seed))
    return {"demand": np.asarray(demand) * (1 - np.eye(region.servers)), "circuits": np.asarray(plan.circuits.count)}


def _lines(config: Compare, workload: Workload, gbps: float) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Block timelines by fabric."""
    names = tuple(name for name in config.fabrics if name in OF_BLOCKS)
    chosen = {"models": (workload.model,), "fabrics": names, "nic_gbps": (gbps,), "nic_use": config.nic_use[:1]}
    one = dataclasses.replace(config, iterations=1, **chosen)
    for job in jobs(one):
        yield job.fabric.name, one_block(job.workload, job_timeline(one, job)[0])
