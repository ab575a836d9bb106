"""Load of experts, the earliest time at which ranks with experts may send, and the bytes of moving experts."""

from typing import Any

import numpy as np
from jaxtyping import Float

from mfabric_jax.case.policies import BOUND
from mfabric_jax.evaluate.links import moving
from mfabric_jax.support import programs
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.timing.iteration import early, expert_load
from mfabric_jax.timing.passes import places
from mfabric_jax.traffic.dispatch import selections_of
from mfabric_jax.traffic.placement import expert_moves
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import expert_state_bytes


def early_of_layers(job: Workload, group: Any, tokens: Any, tile: int | None) -> Any:
    """Return the fields of `Early` [layer M 3 R]."""
    switches = {("none", "none"): "rank", ("levelled", "levelled"): "server"}
    parts = early(job, tokens, tile or 1, ports=switches.get(group.handover, "pair"))
    return array_module(tokens).stack(parts, axis=-2)


def early_of_blocks(job: Workload, early: Float[Array, "*I layer M 3 R"]) -> Any:
    """Return the fields of `Early` for every block [*I P Q L 3 R]."""
    return early[..., *places(job).pick(*early.shape[-4:-2]), :, :]


def busy_of_layers(job: Workload, tokens: Any, tile: int) -> Any:
    """Return `expert_load` [layer M]."""
    return expert_load(job, selections_of(job, tokens), tile)


def busy_of_blocks(job: Workload, load: Float[Array, "*I layer M"]) -> Any:
    """Return `expert_load` of every block [*I P Q L]."""
    where = places(job)
    where = where._replace(layer=where.experts)  # also in passes of weight gradients
    return array_module(load).where(where.layer >= 0, load[..., *where.pick(*load.shape[-2:])], 1)


def moves_of(problem: Any) -> np.ndarray | None:
    """Return the bytes per iteration that move between ranks with experts [I stage R R]; None if no experts move."""
    settings, job, slots = problem.resolved, problem.workload, problem.tokens.slots
    every = getattr(settings.case.placement.rule, "every", 0)
    if not every or slots is None:
        return None
    copied = expert_moves(slots, settings.layout(job), every)
    layers = [[layer % slots.shape[1] for layer in job.stage_layers(stage)] for stage in range(job.pp)]
    stages = np.stack([copied[:, some].sum(axis=1) for some in layers], axis=1)
    return (stages * expert_state_bytes(job)).astype(settings.case.run.dtype)


def moving_loads(problem: Any, group: Any) -> np.ndarray | None:
    """Return `Exchanges.moved` of every iteration of all replicas [I P 2]; None if no experts move."""
    each = [moves_of(replica) for replica in problem.each_replica]
    if any(moves is None for moves in each):
        return None
    moves, region = np.concatenate(each), group_numbers(group, problem.resolved.case.run.dtype)  # type: ignore[arg-type]
    routing = BOUND if problem.resolved.first == BOUND else problem.resolved.routing
    loads = programs.run(moving, problem.workload, region, moves.reshape(-1, *moves.shape[2:]), routing, problem.carry)
    return loads.reshape(*moves.shape[:2], 2)
