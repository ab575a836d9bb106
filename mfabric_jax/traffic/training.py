"""What the GPUs of a training job send each other in one iteration, as flows: expert, data and pipeline parallelism.

Tensor-parallel traffic stays inside servers and is left out. Context-parallel rings are there where a job has them.
"""

import itertools

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.flows.flows import Flows
from mfabric_jax.rings import onward
from mfabric_jax.traffic.collectives import (
    all_to_all,
    hierarchical_all_reduce,
    point_to_point,
    ring_all_reduce,
    together,
)
from mfabric_jax.traffic.dispatch import PER_SERVER, copies_of, forwarded, selections_of, sent_as
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import context_bytes, context_rounds, pp_bytes, replica_bytes


def training_flows(workload: Workload, tokens: np.ndarray) -> Flows:
    """All bytes of one iteration, all from time 0 on; labels "EP", "DP inside", "DP between", "DP experts", "PP", and
    "CP" of a context-parallel job.

    - `tokens` [replica layer M R E]: selections per data-parallel replica (read cyclically), MoE layer, micro-batch
      (read cyclically), source rank and expert.

    EP: dispatch and combine of every block and micro-batch, forward and backward, one flow for each ordered pair of
    GPUs (a tensor-parallel rank sends its slice). DP: gradients, hierarchical, and parameters that are gathered. PP:
    activations and their gradients. CP: keys and values around their rings.
    """
    rings = [context_flows(workload)] if workload.cp > 1 else []
    return together(expert_flows(workload, tokens), gradient_flows(workload), pipeline_flows(workload), *rings)


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
    """Bytes from rank to rank of every expert-parallel group in one iteration [PP DP R R], both passes; on the way to
    another server, also those that its NVSwitch carries on (`dispatch`)."""
    tokens = np.asarray(tokens)
    layers, ranks = workload.moe_layers, workload.ep
    if tokens.ndim != 5 or tokens.shape[1] != layers or tokens.shape[3:] != (ranks, workload.architecture.experts):
        raise InputError(
            f"tokens must be [replica {layers} M {ranks} {workload.architecture.experts}], got {list(tokens.shape)}."
        )
    replica = np.arange(workload.dp) % tokens.shape[0]
    tokens, every = sent_as(workload, tokens).astype(float), np.arange(workload.micro_batches)
    each = np.zeros((workload.pp, len(tokens), *tokens.shape[3:]))  # [PP replica R C]
    for path, some in zip(workload.paths, np.split(every, len(workload.paths)), strict=True):
        times = np.bincount(some % tokens.shape[2], minlength=tokens.shape[2])
        sent = np.einsum("dlmre,m->dlre", tokens, times.astype(float))
        for place, stage in enumerate(path):
            each[stage] += sent[:, workload.place_layers(place)].sum(axis=1)
    each = each[:, replica]
    sent = selections_of(workload, each)
    sent = sent.reshape(*sent.shape[:3], ranks, -1).sum(axis=-1)
    if workload.dispatch == PER_SERVER:
        sent = forwarded(workload, sent, copies_of(workload, each), np)
    out, back = workload.dispatch_bytes_per_selection, workload.combine_bytes_per_selection
    again = workload.recompute == "block"  # the forward all-to-alls once more
    return sent * (out + back + again * out) + sent.swapaxes(-1, -2) * (back + out + again * back)


def gradient_flows(workload: Workload) -> Flows:
    """Gradient all-reduces of every stage (of two that hold the same, together): dense ones over all its servers, those
    of an expert over its replicas."""
    grid, per_server = gpu_grid(workload), workload.gpus_per_server
    parts = []
    for stages in workload.stages_alike:
        gradients, own = replica_bytes(workload, stages[0]), grid[list(stages)]
        for slice_ in range(workload.tp):
            members = own[:, :, :, slice_].reshape(-1, per_server // workload.tp)
            parts.append(hierarchical_all_reduce(members, gradients.dense / workload.tp, label="DP"))
        experts = own.transpose(2, 3, 0, 1).reshape(-1, len(stages) * workload.dp)
        parts.append(ring_all_reduce(experts, gradients.expert / workload.tp, label="DP experts"))
    return together(*parts)


def pipeline_flows(workload: Workload) -> Flows:
    """Activations to the next stage and their gradients back, all micro-batches."""
    grid = gpu_grid(workload)
    size = pp_bytes(workload) / workload.tp * workload.micro_batches / len(workload.paths)
    hops = [hop for path in workload.paths for hop in itertools.pairwise(path) if hop[0] != hop[1]]
    src, dst = (grid[[hop[side] for hop in hops]].ravel() for side in (0, 1))
    forward = point_to_point(src, dst, size, label="PP")
    return together(forward, point_to_point(dst, src, size, label="PP"))


def context_flows(workload: Workload) -> Flows:
    """Keys and values, and their gradients, around the ring of every context-parallel group, all blocks."""
    rings = gpu_grid(workload).reshape(workload.pp, -1, workload.cp, workload.tp)
    blocks = np.reshape(workload.stage_blocks, (-1, 1, 1, 1))
    each = workload.micro_batches / workload.order.copies
    size = context_rounds(workload) * each * blocks * (context_bytes(workload) / workload.tp)
    return point_to_point(rings, onward(rings, axis=2), size, label="CP")
