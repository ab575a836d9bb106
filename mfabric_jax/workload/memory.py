"""Memory of a GPU in training: weights, gradients, optimizer state and what the backward pass needs of the forward one.

Weights in bf16, Adam with a master copy and two moments in float32 (arXiv 1910.02054), activations in bf16 (the count
of arXiv 2205.05198, for the blocks of today: gated FFNs, no dropout, a fused attention kernel; docs/models.md has the
formula). Loads are balanced; buffers of communication, fragmentation and what libraries take are not in it.
"""

from typing import NamedTuple

from mfabric_jax.workload.parallel import SHARDING, Workload
from mfabric_jax.workload.schedules import held
from mfabric_jax.workload.volume import (
    ACTIVATION_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    block_params,
    stage_params,
    word_params,
)

GATHERED = 2  # blocks whose parameters a GPU holds whole where these are shared out: the one at work and the next
LOGIT_BYTES = 4  # float32: routers and output head
KEPT_PER_FFN = 3  # gate, up and their product


class Memory(NamedTuple):
    """Bytes that one GPU of a pipeline stage holds at most; `logits`: of the output head, where the model ends."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """All parts [bytes]."""
        return sum(self)


def memory_of(workload: Workload, stage: int) -> Memory:
    """What a GPU of one pipeline stage holds; `InputError` for a stage that does not exist."""
    model, share = workload.architecture, SHARDING.index(workload.sharding)
    whole, shard, block = _whole(workload, stage), updated_params(workload, stage), _largest_block(workload, stage)
    last = model.vocab > 0 and len(workload.place_blocks) - 1 in workload.held_places(stage)
    head = 2 * ACTIVATION_BYTES * model.hidden + LOGIT_BYTES * model.vocab
    return Memory(
        weights=WEIGHT_BYTES * (shard + GATHERED * block if share >= SHARDING.index("parameters") else whole),
        gradients=workload.grad_bytes * (shard + block if share >= SHARDING.index("gradients") else whole),
        optimizer=OPTIMIZER_BYTES * shard,
        activations=_activations(workload, stage) / workload.tp,
        logits=last * workload.tokens * head / workload.tp,
    )


def updated_params(workload: Workload, stage: int) -> float:
    """Parameters whose optimizer state a GPU of a stage has, embedding and head with them: of those that it holds its
    share among their replicas, unless nothing is shared."""
    dense, expert = _held(workload, stage)
    if workload.sharding == "none":
        return dense + expert
    replicas = workload.dp * workload.order.copies
    return dense / (replicas * workload.ep) + expert / replicas


def step_bytes(workload: Workload, stage: int) -> float:
    """Bytes of its memory that a GPU of a stage reads and writes in the optimizer's step: gradient and state read,
    state and weight written, of every parameter that it updates."""
    each = workload.grad_bytes + 2 * OPTIMIZER_BYTES + WEIGHT_BYTES
    return each * updated_params(workload, stage)


def fullest_stage(workload: Workload) -> tuple[int, Memory]:
    """The pipeline stage whose GPUs hold most, and what that is."""
    every = [memory_of(workload, stage) for stage in range(workload.pp)]
    stage = max(range(workload.pp), key=lambda at: every[at].total)
    return stage, every[stage]


def in_flight(workload: Workload, stage: int) -> tuple[int, ...]:
    """Forward passes of every chunk of a stage whose backward pass is still to come, at most, by the schedule; where
    gradients of weights have passes of their own, those."""
    return held(workload.schedule, stage, workload.shape, len(workload.held_places(stage)))


def _held(workload: Workload, stage: int) -> tuple[float, float]:
    """Dense and expert parameters of a GPU of a stage, replicas not shared out."""
    params = stage_params(workload, stage)
    return (params.dense + word_params(workload, stage)) / workload.tp, params.expert / workload.tp


def _whole(workload: Workload, stage: int) -> float:
    return sum(_held(workload, stage))


def _largest_block(workload: Workload, stage: int) -> float:
    """Parameters of the largest block of a stage on a GPU."""
    moe = len(workload.stage_layers(stage))
    kinds = [kind for kind, count in ((True, moe), (False, workload.stage_blocks[stage] - moe)) if count]
    return max(sum(block_params(workload, kind)) for kind in kinds) / workload.tp


def _activations(workload: Workload, stage: int) -> float:
    """Bytes of all passes in flight, the TP group together, and of what is computed again of one block."""
    model, token = workload.architecture, ACTIVATION_BYTES * workload.tokens
    inner = {True: _moe_kept(workload), False: 2 * model.hidden + KEPT_PER_FFN * model.dense_hidden}
    attention = model.attention.kept(model.hidden)
    kept = {
        "none": {moe: attention + part for moe, part in inner.items()},
        "attention": {moe: model.hidden + part for moe, part in inner.items()},
        "block": dict.fromkeys(inner, model.hidden),
    }[workload.recompute]
    again = {"none": 0.0, "attention": attention, "block": attention + max(inner.values())}[workload.recompute]
    held = 0.0
    for place, passes in zip(workload.held_places(stage), in_flight(workload, stage), strict=True):
        moe = len(workload.place_layers(place))
        held += passes * (moe * kept[True] + (workload.place_blocks[place] - moe) * kept[False])
    return token * (held + again)


def _moe_kept(workload: Workload) -> float:
    """Elements per token of an MoE FFN: its input before and after the norm, the router's logits, and for every choice
    what is sent, what its expert computes and what comes back."""
    model = workload.architecture
    router = model.experts * LOGIT_BYTES / ACTIVATION_BYTES
    chosen = model.top_k * (2 * model.hidden + KEPT_PER_FFN * model.expert_hidden)
    return 2 * model.hidden + router + chosen + KEPT_PER_FFN * model.shared_hidden
