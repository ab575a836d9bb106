"""What the pictures of a comparison need besides its rows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.case import Block, Case, Cases
from mfabric_jax.resolving._resolve import resolve
from mfabric_jax.schedule.trace import one_block
from mfabric_jax.simulation._timeline import timeline
from mfabric_jax.simulation.measured import scenario_at
from mfabric_jax.simulation.scenario import Scenario
from mfabric_jax.traffic import dispatched_bytes, server_bytes

NEAR_GBPS = 400.0


def examples(asked: Cases) -> tuple[dict[str, dict], dict[str, list]]:
    """A region with its circuits, and timelines of a block with circuits and without, by title.

    Of the first model whose regions of circuits have more than two servers (else the first), in the middle of the
    model, near 400 Gbps; empty where no case has circuits that change.
    """
    every = [(block, resolve(block.case)) for block in asked.blocks]
    optical = [(block, one) for block, one in every if one.fabric.reconfigures]
    if not optical:
        return {}, {}
    several = [(block, one) for block, one in optical if one.job.servers_per_region > 2]
    block, resolved = (several or optical)[0]
    beside = [other for other, one in every if one.job.model == resolved.job.model and not one.fabric.reconfigures]
    shown = [_scenario(one) for one in (*beside[:1], block)]
    title = f"{resolved.job.model}: one region, {resolved.settings.policy_name} circuits"
    lines = {f"{one.workload.model} on {one.fabric.name} at {one.bandwidths[0]:g} Gbps": one for one in shown}
    return {title: _region(shown[-1])}, {name: one_block(one.workload, timeline(one)[0]) for name, one in lines.items()}


def _scenario(block: Block) -> Scenario:
    """One iteration of the case of a block whose bandwidth is nearest to 400 Gbps."""
    near: Case = min(block, key=lambda case: abs(case.network.nic_gbps - NEAR_GBPS))
    return scenario_at(resolve(near.with_({"run.iterations": 1, "run.sample": None})), (near.network.nic_gbps,))


def _region(one: Scenario) -> dict[str, Any]:
    """Demand between the servers of a region [S S] bytes, and the circuits chosen for it [S S]."""
    settings, job = one.settings, one.workload
    sent = jnp.asarray(one.sent[0, job.moe_layers // 2 % one.tokens.count.shape[1], 0], settings.dtype)
    demand = server_bytes(dispatched_bytes(job, sent), job.ranks_per_server)
    policy = settings.circuits_policy(one.mean_demand.astype(settings.dtype))
    plan = policy(demand, one.group, previous=None, key=jax.random.key(settings.seed))
    return {"demand": np.asarray(demand) * (1 - np.eye(len(demand))), "circuits": np.asarray(plan.circuits.count)}
