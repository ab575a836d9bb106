"""Memory of a GPU in training: weights, gradients, optimizer state and what the backward pass needs of the forward one.

Weights in bf16, Adam with a master copy and two moments in float32 (arXiv 1910.02054), activations in bf16 (the count
of arXiv 2205.05198, for the blocks of today: gated FFNs, no dropout, a fused attention kernel; docs/models.md has the
formula). Loads are balanced; buffers of communication, fragmentation and what libraries take are not in it.
"""

from typing import NamedTuple

from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.volume import ACTIVATION_BYTES, stage_params

WEIGHT_BYTES = 2  # bf16
OPTIMIZER_BYTES = 12  # float32: master copy, mean and variance of the gradient
LOGIT_BYTES = 4  # float32: routers and output head
KEPT_PER_FFN = 3  # gate, up and their product


class Memory(NamedTuple):
    """Bytes that one GPU of a pipeline stage holds at most; `logits`: of the output head, on the last stage."""

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
    model, params = workload.architecture, stage_params(workload, stage)
    dense, expert = (params.dense + _words(workload, stage)) / workload.tp, params.expert / workload.tp
    shared = dense, expert
    if workload.optimizer == "sharded":
        shared = dense / (workload.dp * workload.ep), expert / workload.dp
    last = stage == workload.pp - 1 and model.vocab > 0
    head = 2 * ACTIVATION_BYTES * model.hidden + LOGIT_BYTES * model.vocab
    return Memory(
        weights=WEIGHT_BYTES * (dense + expert),
        gradients=workload.grad_bytes * (dense + expert),
        optimizer=OPTIMIZER_BYTES * sum(shared),
        activations=_activations(workload, stage) / workload.tp,
        logits=last * workload.tokens * head / workload.tp,
    )


def fullest_stage(workload: Workload) -> tuple[int, Memory]:
    """The pipeline stage whose GPUs hold most, and what that is."""
    every = [memory_of(workload, stage) for stage in range(workload.pp)]
    stage = max(range(workload.pp), key=lambda at: every[at].total)
    return stage, every[stage]


def in_flight(workload: Workload, stage: int) -> tuple[int, ...]:
    """Forward passes of every chunk of a stage whose backward pass is still to come, at most, by the schedule."""
    stages, chunks, passes = workload.pp, workload.chunks, workload.micro_batches * workload.chunks
    longest = {
        "1f1b": stages - stage,
        "interleaved": 2 * (stages - stage - 1) + (chunks - 1) * stages + 1,
        "gpipe": passes,
    }
    held = [at % (stages * chunks) // stages for at in range(min(passes, longest[workload.schedule]))]
    return tuple(held.count(chunk) for chunk in range(chunks))


def _words(workload: Workload, stage: int) -> int:
    """Parameters of the embedding on the first stage and of the head on the last: a copy each, where they are tied."""
    model, ends = workload.architecture, (stage == 0) + (stage == workload.pp - 1)
    return model.head_params * (min(ends, 1) if model.tied else ends)


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
    for chunk, passes in enumerate(in_flight(workload, stage)):
        place = chunk * workload.pp + stage
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
