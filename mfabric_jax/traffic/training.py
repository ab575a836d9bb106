"""What the GPUs of a training job send each other in one iteration, as flows: expert, data and pipeline parallelism.

Tensor-parallel traffic stays inside servers and is left out.
"""

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.traffic.collectives import (
    Flows,
    all_to_all,
    hierarchical_all_reduce,
    point_to_point,
    ring_all_reduce,
    together,
)
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import gradient_bytes, pp_bytes


def training_flows(workload: Workload, tokens: np.ndarray) -> Flows:
    """All bytes of one iteration, all from time 0 on; labels "EP", "DP inside", "DP between", "DP experts", "PP".

    - `tokens` [replica layer M R E]: selections per data-parallel replica (read cyclically), MoE layer, micro-batch
      (read cyclically), source rank and expert.

    EP: dispatch and combine of every block and micro-batch, forward and backward, one flow for each ordered pair of
    GPUs (a tensor-parallel rank sends its slice). DP: gradients, hierarchical. PP: activations and their gradients.
    """
    return together(expert_flows(workload, tokens), gradient_flows(workload), pipeline_flows(workload))


def gpu_grid(workload: Workload) -> np.ndarray:
    """GPUs by rank [PP DP EP TP]."""
    return np.arange(workload.gpus).reshape(workload.pp, workload.dp, workload.ep, workload.tp)


def expert_flows(workload: Workload, tokens: np.ndarray) -> Flows:
    """All-to-alls of every expert-parallel group: the bytes of one iteration between each ordered pair of its GPUs."""
    demand = region_bytes(workload, tokens) / workload.tp
    grid = gpu_grid(workload).transpose(0, 1, 3, 2)  # [P D T R]
    size = np.repeat(demand[:, :, None], workload.tp, axis=2)
    ranks = workload.ep
    return all_to_all(grid.reshape(-1, ranks), size.reshape(-1, ranks, ranks), label="EP")


def region_bytes(workload: Workload, tokens: np.ndarray) -> np.ndarray:
    """Bytes from rank to rank of every expert-parallel group in one iteration [PP DP R R], both passes."""
    tokens = np.asarray(tokens)
    layers, ranks = workload.moe_layers, workload.ep
    if tokens.ndim != 5 or tokens.shape[1] != layers or tokens.shape[3:] != (ranks, workload.architecture.experts):
        raise InputError(
            f"tokens must be [replica {layers} M {ranks} {workload.architecture.experts}], got {list(tokens.shape)}."
        )
    replica = np.arange(workload.dp) % tokens.shape[0]
    times = np.bincount(np.arange(workload.micro_batches) % tokens.shape[2], minlength=tokens.shape[2])
    selected = np.einsum("dlmre,m->dlre", tokens.astype(float), times.astype(float))
    selected = selected.reshape(*selected.shape[:3], ranks, -1).sum(axis=-1)  # [replica layer R R]
    stages = [workload.stage_layers(stage) for stage in range(workload.pp)]
    sent = np.stack([selected[:, stage].sum(axis=1) for stage in stages])[:, replica]
    out, back = workload.dispatch_bytes_per_selection, workload.combine_bytes_per_selection
    again = workload.recompute == "block"  # the forward all-to-alls once more
    return sent * (out + back + again * out) + sent.swapaxes(-1, -2) * (back + out + again * back)


def gradient_flows(workload: Workload) -> Flows:
    """Gradient all-reduces of every stage: dense ones over all its servers, those of an expert over its replicas."""
    grid, per_server = gpu_grid(workload), workload.gpus_per_server
    parts = []
    for stage in range(workload.pp):
        gradients = gradient_bytes(workload, stage)
        for slice_ in range(workload.tp):
            members = grid[stage, :, :, slice_].reshape(-1, per_server // workload.tp)
            parts.append(hierarchical_all_reduce(members, gradients.dense / workload.tp, label="DP"))
        experts = grid[stage].transpose(1, 2, 0).reshape(-1, workload.dp)
        parts.append(ring_all_reduce(experts, gradients.expert / workload.tp, label="DP experts"))
    return together(*parts)


def pipeline_flows(workload: Workload) -> Flows:
    """Activations to the next stage and their gradients back, all micro-batches."""
    grid = gpu_grid(workload)
    size = pp_bytes(workload) / workload.tp * workload.micro_batches
    places = np.concatenate([grid] * workload.chunks)
    forward = point_to_point(places[:-1].ravel(), places[1:].ravel(), size, label="PP")
    return together(forward, point_to_point(places[1:].ravel(), places[:-1].ravel(), size, label="PP"))
