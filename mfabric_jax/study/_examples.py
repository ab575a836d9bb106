"""What the pictures of a comparison need besides its rows."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.schedule.trace import one_block
from mfabric_jax.study._scenario import scenarios, scenarios_on, tokens_of
from mfabric_jax.study._timeline import timeline
from mfabric_jax.study.config import Compare
from mfabric_jax.study.settings import ModelName
from mfabric_jax.traffic import dispatched_bytes, server_bytes

OPTICAL = "mfabric"
OF_BLOCKS = ("fat-tree", OPTICAL)


def examples(config: Compare) -> tuple[dict[str, dict], dict[str, list]]:
    """A region with its circuits, and timelines of a block on the fat-tree, if compared, and on mFabric, by title.

    Of the first model whose region has more than two servers (else the first), in the middle of the model; empty
    without mFabric.
    """
    several = [name for name in config.models if config.workload(name).servers_per_region > 2]
    model = (several or list(config.models))[0]
    workload = config.workload(model)
    if OPTICAL not in config.fabrics:
        return {}, {}
    gbps = min(config.nic_gbps, key=lambda x: abs(x - 400))
    title = f"{workload.model}: one region, {config.policy_name} circuits"
    lines = {f"{workload.model} on {name} at {gbps:g} Gbps": line for name, line in _lines(config, model, gbps)}
    return {title: _region(config, model, gbps)}, lines


def _region(config: Compare, model: ModelName, gbps: float) -> dict[str, np.ndarray]:
    """Demand between the servers of a region [S S] bytes, and the circuits chosen for it [S S]."""
    workload = config.workload(model)
    tokens = tokens_of(dataclasses.replace(config, iterations=1), workload)
    (one,) = scenarios_on(config, model, OPTICAL, (gbps,), ("own",), tokens)
    sent = jnp.asarray(one.sent[0, workload.moe_layers // 2 % tokens.count.shape[1], 0], config.dtype)
    demand = server_bytes(dispatched_bytes(workload, sent), workload.ranks_per_server)
    policy = config.circuits_policy(one.mean_demand.astype(config.dtype))
    plan = policy(demand, one.group, previous=None, key=jax.random.key(config.seed))
    return {"demand": np.asarray(demand) * (1 - np.eye(len(demand))), "circuits": np.asarray(plan.circuits.count)}


def _lines(config: Compare, model: ModelName, gbps: float) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Block timelines by fabric."""
    names = tuple(name for name in config.fabrics if name in OF_BLOCKS)
    chosen = {"models": (model,), "fabrics": names, "nic_gbps": (gbps,), "nic_use": config.nic_use[:1]}
    chosen |= {"circuits_for": config.circuits_for[:1]}
    for one in scenarios(dataclasses.replace(config, iterations=1, variants="one", **chosen)):
        yield one.fabric.name, one_block(one.workload, timeline(one)[0])
