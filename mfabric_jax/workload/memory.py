"""Memory of a GPU in training: weights, gradients, optimizer (arXiv 1910.02054), activations by part, and buffers.

Activations follow arXiv 2205.05198, for gated FFNs, no dropout, fused attention, expert probabilities applied to the
gated product, and recomputation (elements: `activation_bytes`). Ranks receive even loads, unless `loads` states a
`RankLoad` per pipeline stage. `HEADROOM` covers communicators, fragmentation and libraries.
"""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.workload.parallel import SHARDING, Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import Holding
from mfabric_jax.workload.schedules import passes_in_memory as held_passes
from mfabric_jax.workload.volume import (
    ACTIVATION_BYTES,
    MASTER_BYTES,
    block_params,
    stage_params,
    word_params,
)

GATHERED = 2  # blocks that a GPU holds complete under sharded parameters: the current and the next one
LOGIT_BYTES = 4  # float32: routers and output head
# Three NCCL communicators took 6 GB (github.com/NVIDIA/nccl, issue 864): 7.5 % of 80 GB, before fragmentation. Groups
# of TP, EP, DP and PP need more than three. Other memory estimators leave both out.
HEADROOM = 0.08
UNKNOWN_BYTES = float(units.gigabytes(80))  # assumed if the memory of a GPU is not known


def usable_bytes(memory_bytes: float | None) -> float:
    """Return the bytes of a GPU's memory that a set-up may fill; None stands for an unknown size."""
    return (1 - HEADROOM) * (UNKNOWN_BYTES if memory_bytes is None else memory_bytes)


class Memory(NamedTuple):
    """Peak bytes on one GPU of a pipeline stage. `attention` and `inner` (experts, FFNs) are activations, `logits`
    belong to output heads on the last stage, and `buffers` hold recomputed activations, rows in transit, and the block
    by which a pair of passes exceeds one."""

    weights: float
    gradients: float
    optimizer: float
    attention: float
    inner: float
    logits: float
    buffers: float

    @property
    def activations(self) -> float:
        return self.attention + self.inner

    @property
    def total(self) -> float:
        return sum(self)


class RankLoad(NamedTuple):
    """Load of a stage's fullest rank, over an even load.

    - `kept`: mean over the stage's blocks, for rows that are kept in all blocks.
    - `block`: the most in any single block, for buffers that exist for one block at a time.
    """

    kept: float = 1.0
    block: float = 1.0


Loads = Sequence[RankLoad] | None


def memory_of(workload: Workload, stage: int, loads: Loads = None) -> Memory:
    """Return the memory of one GPU of a pipeline stage [B]. Raise `InputError` for a stage that does not exist."""
    return _OnGpus(workload, loads).of(workload.check_stage(stage))


def _optimizer_params(workload: Workload, dense: float, expert: float) -> float:
    """Parameters whose optimizer state one GPU holds: all, or its part if replicas shard the state."""
    if workload.sharding == "none":
        return dense + expert
    replicas = workload.dp * workload.order.copies
    return dense / (replicas * workload.ep // workload.folded) + expert / replicas


def step_bytes(workload: Workload, stage: int) -> float:
    """Return the bytes of HBM that a GPU of a stage reads and writes in the optimizer step."""
    states = MASTER_BYTES + 2 * workload.moment_bytes
    params, each = stage_params(workload, stage), workload.accumulated_bytes + 2 * states + workload.gathered_bytes
    dense = (params.dense + word_params(workload, stage)) / workload.attention_tp
    return each * _optimizer_params(workload, dense, params.expert / workload.tp)


def fullest_stage(workload: Workload, loads: Loads = None, stages: Collection[int] | None = None) -> tuple[int, Memory]:
    """Return the pipeline stage, of some `stages` or of all, whose GPUs need the most memory, and that memory [B]."""
    gpus = _OnGpus(workload, loads)
    every = {stage: gpus.of(stage) for stage in (range(workload.pp) if stages is None else stages)}
    return max(every.items(), key=lambda item: item[1].total)


def kept_bytes(workload: Workload) -> tuple[float, float]:
    """Return the bytes per token that a block with experts and one without keep for their backward pass."""
    gpus = _OnGpus(workload, None)
    return gpus.attention + gpus.moe.bytes_at(1.0), gpus.attention + gpus.dense


def least_bytes(workload: Workload, blocks: Any, copies: Any, held: Any, load: float = 1.0) -> Any:
    """Return the bytes [K] that a GPU of a stage needs at least.

    - `blocks`, `copies` [K]: of the stage in one copy of the model, and copies, which share the optimizer's state.
    - `held` [K]: blocks of passes whose activations it keeps; `load`: of its fullest rank, over an even load.

    All blocks count as the kind that needs less. Words and buffers do not count.
    """
    gpus, model = _OnGpus(workload, None), workload.architecture
    states = MASTER_BYTES + 2 * workload.moment_bytes
    each = workload.weight_bytes * (workload.sharding != "parameters")
    each += workload.accumulated_bytes * (workload.sharding in ("none", "optimizer"))
    inner = [gpus.moe.bytes_at(load), gpus.dense]
    there = [bool(model.moe_blocks), len(model.moe_blocks) < model.blocks]
    weights, optimizer, kept = [], [], []
    for params, inside, some in zip(gpus.kinds, inner, there, strict=True):
        if some:
            dense, expert = params.dense / workload.attention_tp, params.expert / workload.tp
            weights.append(each * (dense + expert))
            optimizer.append(states * _optimizer_params(workload, dense, expert))
            kept.append(gpus.attention + inside)
    return blocks * (copies * min(weights) + min(optimizer)) + held * gpus.tokens * min(kept)


class _OnGpus:
    """Bytes per token of a GPU, for blocks with and without experts. `ROUTED` parts grow with a rank's load."""

    def __init__(self, workload: Workload, loads: Loads):
        self.workload, self.share = workload, SHARDING.index(workload.sharding)
        self.loads = (RankLoad(),) * workload.pp if loads is None else loads
        model, again = workload.architecture, recomputed_of(workload.recompute)
        self.kinds = block_params(workload, True), block_params(workload, False)
        self.tokens = workload.tokens / workload.tp
        kept = {kind: activation_bytes(workload, moe=kind) for kind in (True, False)}
        lost = {name for part in again.parts for name in DROPPED[part]}  # recomputed instead of kept
        lost |= {*kept[True], *kept[False]} - {"input"} if again.whole else set()
        stays = {kind: {name: part for name, part in parts.items() if name not in lost} for kind, parts in kept.items()}
        self.attention = sum(part for name, part in stays[True].items() if name in ATTENTION)
        inner = {
            kind: {name: part for name, part in parts.items() if name not in ATTENTION} for kind, parts in stays.items()
        }
        self.dense, self.moe = sum(inner[False].values()), _Routed.of(inner[True])
        self.again = {
            kind: _Routed.of({name: part for name, part in kept[kind].items() if name not in stays[kind]})
            for kind in kept
        }
        rows = model.top_k * model.routed_width * (workload.dispatch_bytes + workload.combine_bytes)
        self.rows = rows if workload.ep > 1 else 0.0
        head = (model.vocab > 0) * (2 * ACTIVATION_BYTES * model.hidden + LOGIT_BYTES * model.vocab)
        joined = 2 * model.hidden * (ACTIVATION_BYTES + workload.kept_bytes)  # two vectors, plain and normed
        self.logits = self.tokens * (head + workload.predicted * (head + joined))

    def of(self, stage: int) -> Memory:
        workload, held = self.workload, self.workload.holdings[stage]
        params = stage_params(workload, stage)
        dense, expert = (
            (params.dense + word_params(workload, stage)) / workload.attention_tp,
            params.expert / workload.tp,
        )
        shard, whole, load = _optimizer_params(workload, dense, expert), dense + expert, self.loads[stage]
        there = zip(self.kinds, (sum(held.moe), sum(held.dense)), strict=True)
        sizes = (kind.dense / workload.attention_tp + kind.expert / workload.tp for kind, count in there if count)
        block = max(sizes)
        in_flight = held_passes(workload.schedule, stage, workload.shape, workload.chunks * workload.order.copies)
        moe, plain = (
            sum(times * count for times, count in zip(in_flight, each, strict=True)) for each in (held.moe, held.dense)
        )
        return Memory(
            weights=workload.weight_bytes
            * (shard + GATHERED * block if self.share >= SHARDING.index("parameters") else whole),
            gradients=workload.accumulated_bytes
            * (shard + block if self.share >= SHARDING.index("gradients") else whole),
            optimizer=(MASTER_BYTES + 2 * workload.moment_bytes) * shard,
            attention=self.tokens * (moe + plain) * self.attention,
            inner=self.tokens * (moe * self.moe.bytes_at(load.kept) + plain * self.dense),
            logits=held.ends * self.logits,
            buffers=self.tokens * self._buffers(held, load.block),
        )

    def _buffers(self, held: Holding, load: float) -> float:
        """Bytes per token that a block computes again and that are in transit.

        Two passes that run together have rows in transit each, and hold a block more than one pass: the forward pass
        has filled its newest block before the backward pass releases its own. Megatron Core's guide to combined 1F1B
        says that concurrent passes raise the peak; how much is our count. Schedules without `warm_up` count both passes
        of a pair as a whole, which is more than that.
        """
        again, order = max(part.bytes_at(load) for part in self.again.values()), self.workload.order
        newest = max(any(held.moe) * self.moe.bytes_at(load), any(held.dense) * self.dense) + self.attention
        pair = self.workload.overlap_passes and order.warm_up is not None
        return again + pair * newest + (1 + pair) * load * self.rows


class _Routed(NamedTuple):
    """Bytes per token that do not depend on a rank's load, and those that do, at an even load."""

    fixed: float
    routed: float

    @classmethod
    def of(cls, parts: dict[str, float]) -> "_Routed":
        routed = sum(part for name, part in parts.items() if name in ROUTED)
        return cls(sum(parts.values()) - routed, routed)

    def bytes_at(self, load: float) -> float:
        return self.fixed + load * self.routed


ROUTED = ("rows", "gate", "gated")  # of `activation_bytes`: activations of tokens that routed experts receive
ATTENTION = ("input", "norm", "qkv", "latents", "mla-up", "out")  # of `activation_bytes`
OF_PRODUCTS = (  # inputs of products, with `Workload.kept_bytes` bytes per element
    *("norm", "out", "inner norm", "rows", "gate", "gated"),
    *("shared gate", "shared gated", "dense gate", "dense gated"),
)
DROPPED = {  # activations that are not kept, by recomputed part
    "norm": ("norm", "inner norm"),
    "mla-up": ("mla-up",),
    "attention": ATTENTION[1:],
    "activation": ("gated", "shared gated", "dense gated"),
    "shared": ("shared gate", "shared gated"),
    "mlp": ("dense gate", "dense gated"),
    "router": ("router",),
    "moe": ("router", "rows", "gate", "gated"),
}


def activation_bytes(workload: Workload, *, moe: bool) -> dict[str, float]:
    """Return the bytes per token that a block keeps for its backward pass, by name, if nothing is recomputed.

    Elements in sum, with h `hidden`, after arXiv 2205.05198:

    - grouped-query attention: 2h + 2 head_dim (heads + kv_heads)
    - latent attention: 2h + 2 (query_rank + kv_rank) + rope_dim + 2 heads (nope_dim + rope_dim + value_dim)
    - linear attention: 2h + 5 heads head_dim
    - dense FFN: 2h + 3 dense_hidden
    - MoE: 2h + 2 experts + top_k (h + 3 expert_hidden) + 3 shared_hidden

    An element has two bytes; inputs of products have `kept_bytes`.
    """
    model = workload.architecture
    there = 1.0 if moe else model.dense_part  # of the blocks, those with an FFN
    elements = model.attention.activation_elements(model.hidden) | {
        "inner input": there * model.hidden,
        "inner norm": there * model.hidden,
    }
    if moe:
        elements["router"] = model.choices * LOGIT_BYTES / ACTIVATION_BYTES
        elements["rows"] = (model.choices > 0) * model.top_k * model.routed_width
        widths = {"": model.top_k * model.expert_hidden, "shared ": model.shared_hidden}
    else:
        widths = {"dense ": there * model.dense_hidden}
    for name, width in widths.items():
        elements |= {f"{name}gate": (model.matrices - 1) * width, f"{name}gated": width}
    size = lambda name: workload.kept_bytes if name in OF_PRODUCTS else ACTIVATION_BYTES  # noqa: E731
    return {name: size(name) * number for name, number in elements.items()}
