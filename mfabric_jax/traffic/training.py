"""Flows between GPUs (by global number) in one iteration of a training job, without tensor parallelism inside servers.

The steps of a collective are pipelined, so every member starts at once and sends all of its bytes. Letters: G
concurrent groups, n members of a group, S servers, m members per server.
"""

import itertools

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import InputError
from mfabric_jax.flows.flows import Flows, flows_of
from mfabric_jax.support.rings import onward, ring_bytes
from mfabric_jax.traffic.dispatch import PER_SERVER, copies_of, forward_copies, selections_of, send_selections
from mfabric_jax.workload import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.volume import context_bytes, context_rounds, pp_bytes, replica_bytes


def together(*flows: Flows) -> Flows:
    """Return concurrent flows concatenated in order; equal labels become one."""
    labels = tuple(dict.fromkeys(label for part in flows for label in part.labels))
    task = [np.array([labels.index(label) for label in part.labels], np.int16)[part.task] for part in flows]
    columns = {name: np.concatenate([getattr(part, name) for part in flows]) for name in ("src", "dst", "size")}
    return flows_of(**columns, task=np.concatenate(task), labels=labels)


def point_to_point(src: ArrayLike, dst: ArrayLike, size: ArrayLike, *, label: str = "point-to-point") -> Flows:
    """Return `size` bytes from each `src` to its `dst` (broadcast), without flows to oneself or of 0 bytes."""
    src, dst, size = (column.ravel() for column in np.broadcast_arrays(src, dst, size))
    kept = (src != dst) & (size > 0)
    src, dst = (ends[kept].astype(np.int64) for ends in (src, dst))
    return flows_of(src, dst, size[kept].astype(np.float64), task=np.int16(0), labels=(label,))


def all_to_all(members: np.ndarray, size: ArrayLike, *, label: str = "all-to-all") -> Flows:
    """Return all-to-alls of groups [G n]; `size` is bytes per ordered pair, a number or [G n n]."""
    return point_to_point(members[:, :, None], members[:, None, :], size, label=label)


def ring_all_reduce(members: np.ndarray, size: ArrayLike, *, label: str = "all-reduce") -> Flows:
    """Return a reduce-scatter and an all-gather of `size` bytes (a number, or per ring [G]) around rings [G n]."""
    sent = np.reshape(ring_bytes(size, members.shape[1]), (-1, 1))
    return point_to_point(members, onward(members, axis=1), sent, label=label)


def hierarchical_all_reduce(members: np.ndarray, size: float, *, label: str = "all-reduce") -> Flows:
    """Return a reduce-scatter inside servers, ring all-reduces between them, and an all-gather inside; members [S m].

    Each ordered pair inside a server has one flow of 2 `size` / m. The i-th members of all servers form a ring that
    all-reduces `size` / m.
    """
    part = size / members.shape[1]
    inside = all_to_all(members, 2 * part, label=f"{label} inside")
    return together(inside, ring_all_reduce(members.T, part, label=f"{label} between"))


# ------------------------------------------------------------------------------------------------ flows of an iteration


def training_flows(workload: Workload, tokens: np.ndarray) -> Flows:
    """Return all flows of one iteration, starting at time 0.

    `tokens` [replica layer M R E] are selections per data-parallel replica and micro-batch (both repeat cyclically),
    MoE layer, source rank and expert. Labels are "EP", "DP inside", "DP between", "DP experts", "PP" and "CP". EP is
    dispatch and combine of every block and micro-batch, forward and backward, one flow per ordered pair of GPUs (a
    tensor-parallel rank sends its slice). DP is the hierarchical all-reduce of gradients, and gathered parameters. PP
    is activations and their gradients. CP is keys and values around rings.
    """
    rings = [context_flows(workload)] if workload.cp > 1 else []
    return together(expert_flows(workload, tokens), gradient_flows(workload), pipeline_flows(workload), *rings)


def gpu_grid(workload: Workload) -> np.ndarray:
    """Return the GPUs by rank [PP DP EP TP]."""
    return np.arange(workload.gpus).reshape(workload.pp, workload.dp, workload.ep, workload.tp)


def expert_flows(workload: Workload, tokens: np.ndarray) -> Flows:
    """Return one flow per ordered pair of GPUs of every expert-parallel group, with the bytes of one iteration."""
    demand = region_bytes(workload, tokens) / workload.tp
    grid = gpu_grid(workload).transpose(0, 1, 3, 2)  # [P D T R]
    size = np.repeat(demand[:, :, None], workload.tp, axis=2)
    ranks = workload.ep
    return all_to_all(grid.reshape(-1, ranks), size.reshape(-1, ranks, ranks), label="EP")


def region_bytes(workload: Workload, tokens: np.ndarray) -> np.ndarray:
    """Return the bytes from rank to rank of every expert-parallel group in one iteration [PP DP R R].

    They include forward and backward passes and forwarding. `tokens` as in `training_flows`.
    """
    tokens = np.asarray(tokens)
    layers, ranks = workload.moe_layers, workload.ep
    if tokens.ndim != 5 or tokens.shape[1] != layers or tokens.shape[3:] != (ranks, workload.architecture.experts):
        raise InputError(
            f"tokens must be [replica {layers} M {ranks} {workload.architecture.experts}], got {list(tokens.shape)}."
        )
    replica = np.arange(workload.dp) % tokens.shape[0]
    tokens, every = send_selections(workload, tokens).astype(float), np.arange(workload.micro_batches)
    each = np.zeros((workload.pp, len(tokens), *tokens.shape[3:]))  # [PP replica R C]
    for path, some in zip(workload.paths, np.split(every, len(workload.paths)), strict=True):
        times = np.bincount(some % tokens.shape[2], minlength=tokens.shape[2])
        sent = np.einsum("dlmre,m->dlre", tokens, times.astype(float))
        for position, stage in enumerate(path):
            each[stage] += sent[:, workload.place_layers(position)].sum(axis=1)
    each = each[:, replica]
    sent = selections_of(workload, each)
    sent = sent.reshape(*sent.shape[:3], ranks, -1).sum(axis=-1)
    if workload.dispatch == PER_SERVER:
        sent = forward_copies(workload, sent, copies_of(workload, each))
    out, back = workload.dispatch_bytes_per_selection, workload.combine_bytes_per_selection
    again = recomputed_of(workload.recompute).exchanges  # recomputed blocks repeat the forward all-to-alls
    return sent * (out + back + again * out) + sent.swapaxes(-1, -2) * (back + out + again * back)


def gradient_flows(workload: Workload) -> Flows:
    """Return the gradient all-reduces of all stages: dense ones over a stage's servers, experts' over replicas."""
    grid, per_server = gpu_grid(workload), workload.gpus_per_server
    parts = []
    for stages in workload.stages_alike:
        gradients, holders = replica_bytes(workload, stages[0]), grid[list(stages)]
        slices = holders.reshape(-1, workload.attention_tp)
        for slice_ in slices.T:
            members = slice_.reshape(-1, per_server // workload.attention_tp)
            parts.append(hierarchical_all_reduce(members, gradients.dense / workload.attention_tp, label="DP"))
        experts = holders.transpose(2, 3, 0, 1).reshape(-1, len(stages) * workload.dp)
        parts.append(ring_all_reduce(experts, gradients.expert / workload.tp, label="DP experts"))
    return together(*parts)


def pipeline_flows(workload: Workload) -> Flows:
    """Return activations to the next stage and their gradients back, for all micro-batches."""
    grid = gpu_grid(workload)
    size = pp_bytes(workload) / workload.tp * workload.micro_batches / len(workload.paths)
    hops = [hop for path in workload.paths for hop in itertools.pairwise(path) if hop[0] != hop[1]]
    src, dst = (grid[[hop[side] for hop in hops]].ravel() for side in (0, 1))
    forward = point_to_point(src, dst, size, label="PP")
    return together(forward, point_to_point(dst, src, size, label="PP"))


def context_flows(workload: Workload) -> Flows:
    """Return keys and values, and their gradients, around every context-parallel ring, for all blocks."""
    rings = gpu_grid(workload).reshape(workload.pp, -1, workload.cp, workload.attention_tp)
    blocks = np.reshape(workload.stage_blocks, (-1, 1, 1, 1))
    each = workload.micro_batches / workload.order.copies
    size = context_rounds(workload) * each * blocks * (context_bytes(workload) / workload.tp)
    return point_to_point(rings, onward(rings, axis=2), size, label="CP")
