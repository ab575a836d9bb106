"""Memory of a GPU in training. Weights and activations are bf16; Adam keeps a master copy and two moments in float32
(arXiv 1910.02054); activations follow arXiv 2205.05198 for gated FFNs, no dropout and fused attention (formula:
docs/models.md). Loads are balanced. `HEADROOM` covers communication buffers, fragmentation and libraries."""

from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.workload.parallel import SHARDING, Workload
from mfabric_jax.workload.schedules import Holding
from mfabric_jax.workload.schedules import held as held_passes
from mfabric_jax.workload.volume import (
    ACTIVATION_BYTES,
    OPTIMIZER_BYTES,
    WEIGHT_BYTES,
    held_params,
    kinds_of_block,
    stage_params,
    word_params,
)

GATHERED = 2  # blocks held whole under sharded parameters: the current one and the next
LOGIT_BYTES = 4  # float32: routers and output head
KEPT_PER_FFN = 3  # gate, up and their product
# Three communicators of NCCL took 6 GB (github.com/NVIDIA/nccl, issue 864), and groups of TP, EP, DP and PP are more
# than three; that is 7.5 % of 80 GB before the allocator loses any to fragments. Estimators of memory leave both out.
HEADROOM = 0.08
UNKNOWN_BYTES = float(units.gigabytes(80))  # assumed if the memory of a GPU is not known


def usable_bytes(memory_bytes: float | None) -> float:
    """Bytes of a GPU's memory that a set-up may fill; None stands for an unknown size."""
    return (1 - HEADROOM) * (UNKNOWN_BYTES if memory_bytes is None else memory_bytes)


class Memory(NamedTuple):
    """Peak bytes on one GPU of a pipeline stage; `logits` belong to the output head on the last stage."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        return sum(self)


def memory_of(workload: Workload, stage: int) -> Memory:
    """Memory of one GPU of a pipeline stage [B]; `InputError` for a stage that does not exist."""
    return _OnGpus(workload).of(workload.check_stage(stage))


def _updated(workload: Workload, dense: float, expert: float) -> float:
    """Parameters whose optimizer state one GPU holds: a share, where replicas share it."""
    if workload.sharding == "none":
        return dense + expert
    replicas = workload.dp * workload.order.copies
    return dense / (replicas * workload.ep // workload.folded) + expert / replicas


def step_bytes(workload: Workload, stage: int) -> float:
    """Bytes of HBM that a GPU of a stage reads and writes in the optimizer step."""
    params, each = stage_params(workload, stage), workload.grad_bytes + 2 * OPTIMIZER_BYTES + WEIGHT_BYTES
    dense = (params.dense + word_params(workload, stage)) / workload.attention_tp
    return each * _updated(workload, dense, params.expert / workload.tp)


def fullest_stage(workload: Workload) -> tuple[int, Memory]:
    """The pipeline stage whose GPUs need the most memory, and that memory [B]."""
    gpus = _OnGpus(workload)
    every = [gpus.of(stage) for stage in range(workload.pp)]
    stage = max(range(workload.pp), key=lambda at: every[at].total)
    return stage, every[stage]


class _OnGpus:
    def __init__(self, workload: Workload):
        self.workload, self.share = workload, SHARDING.index(workload.sharding)
        model, tokens = workload.architecture, workload.tokens
        self.kinds = kinds_of_block(workload)
        self.kept, self.again = _kept(workload)
        self.token = ACTIVATION_BYTES * tokens / workload.tp
        head = 2 * ACTIVATION_BYTES * model.hidden + LOGIT_BYTES * model.vocab
        self.logits = (model.vocab > 0) * tokens * head / workload.tp

    def of(self, stage: int) -> Memory:
        workload, held = self.workload, self.workload.holdings[stage]
        params = held_params(held, *self.kinds)
        dense, expert = (
            (params.dense + word_params(workload, stage)) / workload.attention_tp,
            params.expert / workload.tp,
        )
        shard, block = _updated(workload, dense, expert), self._largest_block(held)
        whole = dense + expert
        return Memory(
            weights=WEIGHT_BYTES * (shard + GATHERED * block if self.share >= SHARDING.index("parameters") else whole),
            gradients=workload.grad_bytes * (shard + block if self.share >= SHARDING.index("gradients") else whole),
            optimizer=OPTIMIZER_BYTES * shard,
            activations=self.token * (self._in_flight(stage, held) + self.again),
            logits=held.ends * self.logits,
        )

    def _largest_block(self, held: Holding) -> float:
        there = zip(self.kinds, (sum(held.moe), sum(held.dense)), strict=True)
        of_gpu = self.workload.attention_tp, self.workload.tp
        return max(params.dense / of_gpu[0] + params.expert / of_gpu[1] for params, count in there if count)

    def _in_flight(self, stage: int, held: Holding) -> float:
        workload = self.workload
        in_flight = held_passes(workload.schedule, stage, workload.shape, workload.chunks * workload.order.copies)
        passes = zip(in_flight, held.moe, held.dense, strict=True)
        return sum(times * (moe * self.kept[True] + dense * self.kept[False]) for times, moe, dense in passes)


def _kept(workload: Workload) -> tuple[dict[bool, float], float]:
    """Elements per token kept by an MoE block and by a dense block, and elements recomputed for one block."""
    model = workload.architecture
    inner = {True: _moe_kept(workload), False: 2 * model.hidden + KEPT_PER_FFN * model.dense_hidden}
    attention = model.attention.kept(model.hidden)
    if workload.recompute == "block":
        return dict.fromkeys(inner, model.hidden), attention + max(inner.values())
    again = attention if workload.recompute == "attention" else 0.0
    stays = model.hidden if again else attention
    return {moe: stays + part for moe, part in inner.items()}, again


def _moe_kept(workload: Workload) -> float:
    model = workload.architecture
    router = model.experts * LOGIT_BYTES / ACTIVATION_BYTES
    chosen = model.top_k * (2 * model.hidden + KEPT_PER_FFN * model.expert_hidden)
    return 2 * model.hidden + router + chosen + KEPT_PER_FFN * model.shared_hidden
