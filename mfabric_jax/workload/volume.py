"""Bytes that each kind of parallelism moves in one iteration, with ring collectives.

All that TP splits is all-reduced once forward and once backward: attention, experts and dense FFNs. arXiv 2501.03905 is
read as all-reducing attention alone (`tp_reduces` attention), which gives TP : EP = 63 : 37 for Mixtral 8x7B before PP
and DP; with experts it would be 77 : 23. EP bytes and expert gradients do not grow with TP, since each TP rank carries
its slice of the sequence and of every expert.
"""

import itertools
from typing import Any, NamedTuple

from mfabric_jax.support.rings import nvls_bytes, reduced_bytes, ring_bytes, ring_steps
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of

ACTIVATION_BYTES = 2  # bf16: TP all-reduces and PP transfers
PASSES = 2  # forward and backward
MASTER_BYTES = 4  # float32 copy of a parameter


class GradientBytes(NamedTuple):
    """Gradients of one stage [B], whole TP group.

    - `dense`: equal on all groups of GPUs that split attention; includes embedding and head if they are counted.
    - `expert`: routed experts of one EP rank; `copies`: mean part of `expert` in redundant experts.
    """

    dense: float
    expert: float
    copies: float = 0.0


class MeasuredShare(NamedTuple):
    """A published share of an iteration's bytes: bounds as fractions, and the text for a table."""

    low: float
    high: float
    text: str


MEASURED_SOURCE = "arXiv 2501.03905, traffic measured in a production cluster (Mixtral 8x7B on 128 H800 with DP 1)"
_MOSTLY_EP = {"EP": MeasuredShare(0.8, 1.0, "> 80 %")}
MEASURED_SHARES: dict[str, dict[str, MeasuredShare]] = {
    "mixtral-8x7b": {
        "TP": MeasuredShare(0.6, 0.6, "60 %"),
        "EP": MeasuredShare(0.3, 0.3, "30 %"),
        "PP+DP": MeasuredShare(0.0, 0.1, "PP+DP < 6-10 %"),
    },
    "llama-moe": _MOSTLY_EP,
    "qwen-moe": _MOSTLY_EP,
    "qwen-moe-ep16": _MOSTLY_EP,
}


def tp_bytes_per_gpu(workload: Workload) -> float:
    """Return the bytes that one GPU sends in one TP all-reduce of a block, per micro-batch; blocks without a mixer have
    none, and every block counts as the mean."""
    part = workload.architecture.mixer_part
    return part * ring_bytes(workload.folded * pp_bytes(workload), workload.attention_tp)


def ffn_all_reduces(workload: Workload, *, moe: bool) -> float:
    """Return how many TP all-reduces, each of `tp_bytes_per_gpu`, a block's FFN or experts cost a pass.

    A dense FFN, which is split as attention is, pays one as large as attention's. Routed experts pay one of an EP
    rank's own tokens over the `tp` GPUs of an expert. Shared experts, split as attention is, pay their own if routed
    ones are folded; else their output is added before the one all-reduce.

    Under "copies" that of routed experts carries every copy of a token that a rank's gate selects: Megatron-LM's
    all-to-all dispatcher gathers tokens after they are copied for their experts (NVIDIA/Megatron-LM,
    token_dispatcher.py).
    """
    if workload.tp_reduces == "attention" or workload.attention_tp == 1:
        return 0.0
    model = workload.architecture
    as_attention = 1 / model.mixer_part
    if not moe:
        return model.dense_part * as_attention
    copies = model.top_k * model.routed_width / model.hidden if workload.tp_reduces == "copies" else 1.0
    routed = copies * as_attention * (workload.tp - 1) / (workload.attention_tp - 1)
    alone = workload.folded > 1 and model.shared_hidden > 0
    return routed + alone * as_attention


def pp_bytes(workload: Workload) -> float:
    """Return the bytes that one EP rank (its whole TP group) sends to the next stage, per micro-batch and direction."""
    return workload.tokens * workload.architecture.hidden * ACTIVATION_BYTES


class StageParams(NamedTuple):
    """Parameters of one pipeline stage, split as in `GradientBytes`."""

    dense: float
    expert: float


def stage_params(workload: Workload, stage: int) -> StageParams:
    """Return the parameters of one stage, whole TP group, without embedding and output head.

    The last stage also has the MTP projections. Raise `InputError` for a stage that does not exist.
    """
    held = workload.holdings[workload.check_stage(stage)]
    moe, plain = block_params(workload, moe=True), block_params(workload, moe=False)
    dense = sum(held.moe) * moe.dense + sum(held.dense) * plain.dense
    dense += held.ends * workload.predicted * workload.architecture.joining_params
    return StageParams(dense, sum(held.moe) * moe.expert)


def word_params(workload: Workload, stage: int) -> int:
    """Return the parameters of embedding and head on a stage; a tied matrix counts once if the stage holds both."""
    model, held = workload.architecture, workload.holdings[stage]
    ends = held.begins + held.ends
    if workload.predicted and held.ends and not held.begins:
        ends += 1  # embedding of the tokens from which further ones are predicted
    return model.head_params * (min(ends, 1) if model.tied else ends)


def block_params(workload: Workload, moe: bool) -> StageParams:
    model = workload.architecture
    if not moe:
        return StageParams(model.attention_params + model.dense_params, 0)
    dense = model.attention_params + model.gate_params + model.shared_params
    return StageParams(dense, workload.experts_per_rank * model.expert_params)


def copy_part(workload: Workload, expert: float) -> float:
    """Return the mean fraction of an EP rank's expert parameters that belongs to redundant experts."""
    return expert * workload.redundant_experts / workload.expert_slots


def copy_ring_bytes(copies: Any, members: int) -> Any:
    """Return the mean extra bytes that a rank sends if `copies` bytes of its gradients belong to redundant experts.

    An expert with c slots in each of d groups has a ring of c d members, so its group sends 2 (c - 1)/d more.
    """
    return 2 * copies / members


def expert_state_bytes(workload: Workload) -> float:
    """Return the bytes that move with an expert to another rank: the part of its weights and optimizer state that its
    group holds."""
    replicas = workload.dp * workload.order.copies
    weights = workload.gathered_bytes / (replicas if workload.sharding == "parameters" else 1)
    state = (MASTER_BYTES + 2 * workload.moment_bytes) / (1 if workload.sharding == "none" else replicas)
    return workload.architecture.expert_params * (weights + state)


def replica_bytes(workload: Workload, stage: int, *, last: bool = False) -> GradientBytes:
    """Return the bytes that replicas of a stage exchange in an iteration, as the size of one equivalent all-reduce.

    A reduce-scatter or all-gather counts half. A sharded optimizer all-gathers updated weights; sharded gradients are
    reduce-scattered per micro-batch; sharded parameters are all-gathered forward and backward.

    - `last`: count only what runs at the end of the iteration.
    """
    gradients, weights = workload.grad_bytes / 2, workload.gathered_bytes / 2
    once = 2 * gradients if workload.sharding == "none" else gradients + weights
    passes, end = {"gradients": (gradients, weights), "parameters": (gradients + 2 * weights, 0.0)}.get(
        workload.sharding, (0.0, once)
    )
    each = end if last else end + workload.micro_batches * passes
    params = stage_params(workload, stage)
    words = word_params(workload, stage) if workload.head_counted else 0
    expert = params.expert * each
    return GradientBytes(params.dense * each + words * once, expert, copy_part(workload, expert))


class ReplicaRing(NamedTuple):
    """An all-reduce: bytes that leave a server, bytes that a GPU sends inside its server, and steps between servers.

    Under NVLS, `inside` are the bytes that a ring would send in the same time.
    """

    between: float
    inside: float
    steps: int


def replica_ring(workload: Workload, dense: float, expert: float) -> ReplicaRing:
    """Return the hierarchical all-reduce of a stage: reduce inside servers, ring between them, broadcast inside.

    - `dense`: bytes over all servers of the stage.
    - `expert`: bytes over the replicas and copies of an EP rank, which are assumed to be on different servers.

    Where switches reduce (`Workload.sharp`, `nvls`), each part is a ring or a reduction by switches, whichever sends
    fewer bytes. A reduction also has one step, up and down the tree, and adds up all copies of an expert. A sharded
    optimizer keeps its rings: its reduce-scatter fills links one way and its all-gather the other, each with all bytes,
    and between them lies the optimizer step (NVIDIA/nccl issue 1506).
    """
    holders = workload.order.copies  # stages that hold the same model parts
    servers, per_server = holders * workload.servers // workload.pp, workload.gpus_per_server
    spread = min(holders * workload.dp, servers)  # servers with a replica of one expert
    copies = holders * workload.dp // spread  # replicas inside one server
    held = expert * per_server / (workload.tp * copies)
    of_dense, dense_steps = _between_servers(workload, dense, servers)
    of_experts, expert_steps = _between_servers(workload, held, spread, copy_part(workload, held))
    slice_, slice_of_expert = dense / workload.attention_tp, expert / workload.tp
    local = per_server // workload.attention_tp
    inside = _inside_server(workload, slice_, local) + _inside_server(workload, slice_of_expert, copies)
    return ReplicaRing(of_dense + of_experts, inside, dense_steps + expert_steps)


def _between_servers(workload: Workload, size: float, servers: int, copies: float = 0.0) -> tuple[float, int]:
    """Return the bytes that leave a server in an all-reduce, and its steps; `copies`: of redundant experts."""
    ring, reduced = ring_bytes(size, servers) + copy_ring_bytes(copies, servers), reduced_bytes(size, servers)
    if workload.sharp and workload.sharding == "none" and servers > 1 and reduced <= ring:
        return reduced, 1
    return ring, ring_steps(servers)


def _inside_server(workload: Workload, size: float, gpus: int) -> float:
    """Return the bytes that a GPU sends inside its server in an all-reduce, as in `ReplicaRing.inside`."""
    ring = ring_bytes(size, gpus)
    return ring / nvls_gain(workload.nvls, gpus) if workload.sharding == "none" else ring


def nvls_gain(over_ring: float, gpus: int) -> float:
    """Return the seconds of a ring all-reduce over those by NVLS, if it is faster, else 1.

    - `over_ring`: `Gpu.reduction_part`; 0: there is no NVLS.
    """
    return max(1.0, over_ring * ring_bytes(1, gpus) / nvls_bytes(1, gpus)) if gpus > 1 else 1.0


def context_bytes(workload: Workload) -> float:
    """Return the bytes that one EP rank (whole TP group) sends around its context-parallel ring, per block and
    micro-batch, forward."""
    folded, attention = workload.folded, workload.architecture.attention
    elements = attention.passed_on(folded * workload.tokens, workload.micro_batch) / folded
    return (workload.cp - 1) * ACTIVATION_BYTES * elements


def context_rounds(workload: Workload) -> int:
    """Return how often keys and values go around the ring per block: 1 forward, 2 backward (with gradients), and 1 if
    attention is recomputed."""
    return 3 + ("attention" in recomputed_of(workload.recompute).parts)


def iteration_bytes(workload: Workload) -> dict[str, float]:
    """Return the bytes that all GPUs send in one iteration, by parallelism: "TP", "EP", "PP", "DP" and, if used, "CP".

    - EP: four balanced all-to-alls per MoE block and micro-batch (six if blocks are recomputed), without self-traffic.
    - PP: activations and their gradients over each of the pp x chunks - 1 boundaries (zb-v: one less).
    - DP: ring all-reduces of dense gradients over DP x EP ranks and of expert gradients over DP ranks and copies
      (dualpipe: over twice as many ranks), changed by `sharding` as in `replica_bytes`.
    - CP: keys and values, and their gradients, around every context-parallel ring.
    """
    model, replicas = workload.architecture, workload.dp * workload.ep
    again = recomputed_of(workload.recompute)
    rounds = PASSES + again.exchanges  # how often a micro-batch goes through its all-to-alls
    element = workload.dispatch_bytes_per_selection + workload.combine_bytes_per_selection
    leaving = workload.selections * (workload.ep - 1) / workload.ep
    gradients = [replica_bytes(workload, stage) for stage in range(workload.pp)]
    boundaries, holders = sum(a != b for a, b in itertools.pairwise(workload.paths[0])), workload.order.copies
    dp = workload.dp * holders
    reduces = model.blocks * (PASSES + again.whole) + PASSES * workload.moe_layers * ffn_all_reduces(workload, moe=True)
    reduces += PASSES * (model.blocks - workload.moe_layers) * ffn_all_reduces(workload, moe=False)
    each = {  # of one EP rank, its TP group together
        "TP": workload.micro_batches * reduces * workload.tp * tp_bytes_per_gpu(workload),
        "EP": workload.micro_batches * rounds * workload.moe_layers * leaving * element,
        "PP": workload.micro_batches * PASSES * boundaries * pp_bytes(workload),
        "DP": sum(
            ring_bytes(part.dense / workload.folded, replicas * holders // workload.folded)
            + ring_bytes(part.expert, dp)
            + copy_ring_bytes(part.copies, dp)
            for part in gradients
        ),
    }
    if workload.cp > 1:
        rings = workload.micro_batches * context_rounds(workload) * model.blocks
        each["CP"] = rings * context_bytes(workload)
    return {parallelism: replicas * size for parallelism, size in each.items()}


def share_table(workload: Workload) -> list[dict[str, Any]]:
    """Return a row per parallelism with its `bytes_per_iteration`, `share` of all bytes, and `measured` share (text;
    None if none was published)."""
    volume = iteration_bytes(workload)
    total = sum(volume.values())
    published = MEASURED_SHARES.get(workload.known_as, {})
    published = published | {kind: published["PP+DP"] for kind in ("PP", "DP") if "PP+DP" in published}
    return [
        {
            "parallelism": parallelism,
            "bytes_per_iteration": size,
            "share": size / total if total else 0.0,
            "measured": share.text if (share := published.get(parallelism)) else None,
        }
        for parallelism, size in volume.items()
    ]
