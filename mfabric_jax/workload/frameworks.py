"""What training frameworks can run: the limits of Megatron Core, each with its source.

Megatron Core checks most of them when it starts. The others are what it has no setting for. Not judged: whether it has
the layers of a model, whether a GPU has the kernels of a dispatcher, memory, and formats of messages (its guide to MoE
names FP8 dispatch, its code refuses it).
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

from mfabric_jax.workload.kernels import DISPATCH_OF, USUAL_DISPATCHER
from mfabric_jax.workload.layout import ENDS, EVEN, expand
from mfabric_jax.workload.mixers import Attention, Mamba1, Mamba2
from mfabric_jax.workload.parallel import Workload
from mfabric_jax.workload.recompute import recomputed_of

MEGATRON, NONE = "megatron-core", "none"
COUNTED = {EVEN: 0, ENDS: 2}  # places in a layout that are no blocks
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
DEEPEP_SERVER, DEEPEP_TOP_K = 8, 32
HYBRIDEP_DOMAIN = 72
HYBRIDEP_TOKENS = (65536 - 2) // 3 // 16 * 16  # of a GPU: a queue of 65,536 has 3 entries a token; in sixteens
BF16, FP32 = 2, 4  # bytes


class FrameworkRule(NamedTuple):
    """A limit of Megatron Core.

    - `holds`: whether a job with a dispatcher (one of `kernels.DISPATCHERS`) keeps to it.
    - `words`: what must hold, up to ", got", then the job's values: a format of `job`, `facts` (its architecture),
      `library` (the dispatcher), and the fields of `Heads`.
    - `source`: where the limit is stated or checked. Paths are of NVIDIA/Megatron-LM@d98e8a6 (0.20.0), below megatron/.
    """

    holds: Callable[[Workload, str], bool]
    words: str
    source: str


class Heads(NamedTuple):
    """Numbers of heads of a model's attention: `heads` of every kind, `kv_heads` of grouped-query attention, and those
    of `recurrent` kinds."""

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    recurrent: tuple[int, ...]


@functools.lru_cache(maxsize=256)
def heads_of(attention: Attention) -> Heads:
    """Return the numbers of heads that GPUs split; for Mamba 2 also its groups, for Mamba 1 its channels."""
    kinds = [kind for kind, _ in attention.shares]
    every = [
        (kind.state, getattr(kind, name))
        for kind in kinds
        for name in ("heads", "key_heads", "groups", "inner")
        if hasattr(kind, name)
    ]
    kv = tuple(kind.kv_heads for kind in kinds if hasattr(kind, "kv_heads"))
    return Heads(tuple(count for _, count in every), kv, tuple(count for state, count in every if state))


def _splits_heads(job: Workload) -> bool:
    return all(count % job.attention_tp == 0 for count in heads_of(job.architecture.attention).heads)


def _splits_kv_heads(job: Workload) -> bool:
    tp = job.attention_tp
    return all(count % tp == 0 or tp % count == 0 for count in heads_of(job.architecture.attention).kv_heads)


def _splits_recurrent_heads(job: Workload) -> bool:
    ranks = job.attention_tp * job.cp
    return all(count % ranks == 0 for count in heads_of(job.architecture.attention).recurrent)


def _has_mamba(job: Workload) -> bool:
    return any(isinstance(kind, Mamba1 | Mamba2) for kind, _ in job.architecture.attention.shares)


def _ends_with_predictions(job: Workload) -> bool:
    """Whether the blocks that predict further tokens are together in the last place, after all others."""
    if job.layout_of_blocks in COUNTED:
        return job.pp * job.chunks == 1
    return not {*expand(job.layout_of_blocks).partition("m")[2]} - {*"mL"}


def _splits_ffns(job: Workload) -> bool:
    facts = job.architecture
    return facts.shared_hidden > 0 or (len(facts.moe_blocks) < facts.blocks and facts.dense_hidden > 0)


def _limits_servers(job: Workload) -> bool:
    """Whether a token may go to at most as many groups of experts as there are, with an expert of each."""
    limit, facts = job.node_limit, job.architecture
    if limit == "model":
        return facts.top_groups <= min(facts.expert_groups, facts.top_k)
    return int(limit) <= min(job.ep // job.ranks_per_server, facts.top_k)  # type: ignore[arg-type]


RULES: tuple[FrameworkRule, ...] = (
    FrameworkRule(
        lambda job, library: job.schedule in ("1f1b", "interleaved"),
        "schedule must be 1f1b or interleaved, got {job.schedule}",
        "core/pipeline_parallel/schedules.py, get_forward_backward_func",
    ),
    FrameworkRule(
        lambda job, library: job.schedule != "interleaved" or job.pp == 1 or job.chunks > 1,
        "chunks must be at least 2 under schedule interleaved, got {job.chunks}",
        "training/arguments.py: one virtual stage counts as none, which is 1f1b",
    ),
    FrameworkRule(
        lambda job, library: (
            job.layout_of_blocks not in COUNTED
            or (job.architecture.blocks + COUNTED[job.layout_of_blocks]) % (job.pp * job.chunks) == 0
        ),
        "blocks (and 2 more under layout ends) must be a multiple of pp x chunks unless layout is written out, got "
        "{facts.blocks} blocks under layout {job.layout_of_blocks} with pp {job.pp} x chunks {job.chunks}",
        "core/transformer/transformer_block.py, get_num_layers_to_build; account_for_embedding_in_pipeline_split, "
        "account_for_loss_in_pipeline_split",
    ),
    FrameworkRule(
        lambda job, library: not job.predicted or _ends_with_predictions(job),
        "layout must be written out with all m in the last place with mtp and pp above 1, got {job.layout_of_blocks}",
        "core/transformer/pipeline_parallel_layer_layout.py, validate_layer_layout; "
        "core/transformer/multi_token_prediction.py, mtp_on_this_rank",
    ),
    FrameworkRule(
        lambda job, library: job.attention_tp == 1 or _splits_heads(job),
        "heads must be a multiple of tp, got {heads} heads with tp {job.attention_tp}",
        "core/transformer/transformer_config.py, num_attention_heads; core/ssm/mamba_mixer.py, nheads and ngroups",
    ),
    FrameworkRule(
        lambda job, library: job.attention_tp == 1 or _splits_kv_heads(job),
        "kv_heads must be a multiple or a divisor of tp, got {kv_heads} kv_heads with tp {job.attention_tp}",
        "core/transformer/transformer_config.py, num_query_groups",
    ),
    FrameworkRule(
        lambda job, library: job.cp == 1 or _splits_recurrent_heads(job),
        "heads of state spaces must be a multiple of tp x cp, got {recurrent} heads with tp {job.attention_tp} x "
        "cp {job.cp}",
        "core/transformer/transformer_config.py, linear_num_key_heads; core/ssm/mamba_context_parallel.py",
    ),
    FrameworkRule(
        lambda job, library: job.architecture.expert_hidden % job.tp == 0,
        "expert_hidden must be a multiple of etp, got {facts.expert_hidden} with etp {job.tp}",
        "core/extensions/transformer_engine.py, TEGroupedLinear (divide)",
    ),
    FrameworkRule(
        lambda job, library: (
            job.attention_tp == 1
            or math.gcd(job.architecture.shared_hidden, job.architecture.dense_hidden) % job.attention_tp == 0
        ),
        "shared_hidden and dense_hidden must be multiples of tp, got {facts.shared_hidden} and {facts.dense_hidden} "
        "with tp {job.attention_tp}",
        "core/extensions/transformer_engine.py, TEColumnParallelLinear (divide)",
    ),
    FrameworkRule(
        lambda job, library: job.attention_tp == 1 or job.sequence_parallel,
        "parallel.sequence must be on with tp above 1, got off with tp {job.attention_tp}",
        "core/transformer/moe/moe_layer.py, MoELayer.forward",
    ),
    FrameworkRule(
        lambda job, library: job.cp == 1 or job.sequence % (2 * job.cp) == 0,
        "sequence must be a multiple of 2 x cp, got {job.sequence} with cp {job.cp}",
        "training/arguments.py, seq_length: a rank has a part from the start and one from the end",
    ),
    FrameworkRule(
        lambda job, library: job.attention_tp == 1 or job.sequence // job.cp % job.attention_tp == 0,
        "sequence / cp must be a multiple of tp, got {job.sequence} with cp {job.cp} and tp {job.attention_tp}",
        "core/tensor_parallel/mappings.py, _split_along_first_dim",
    ),
    FrameworkRule(
        lambda job, library: job.tp == 1 or job.tp_reduces == "copies",
        "tp_reduces must be copies with etp above 1, got {job.tp_reduces} with etp {job.tp}",
        "core/transformer/moe/token_dispatcher.py: all-to-all and flex send every copy to all ranks of an expert",
    ),
    FrameworkRule(
        lambda job, library: job.attention_tp == 1 or job.tp_reduces != "attention" or not _splits_ffns(job),
        "tp_reduces must not be attention with tp above 1 and shared experts or dense FFNs, got tp {job.attention_tp}",
        "core/transformer/mlp.py, linear_fc2: row-parallel, reduced over the TP group",
    ),
    FrameworkRule(
        lambda job, library: not job.overlap_passes or job.ep > 1,
        "ep must be above 1 under overlap passes, got {job.ep}",
        "core/transformer/transformer_config.py, overlap_moe_expert_parallel_comm",
    ),
    FrameworkRule(
        lambda job, library: not job.overlap_passes or job.pp == 1 or job.schedule == "interleaved",
        "schedule must be interleaved (or pp 1) under overlap passes, got {job.schedule} with pp {job.pp}",
        "core/transformer/transformer_config.py, overlap_moe_expert_parallel_comm; "
        "core/pipeline_parallel/combined_1f1b.py has a schedule for pp 1",
    ),
    FrameworkRule(
        lambda job, library: not job.overlap_passes or job.predicted <= 1,
        "mtp must predict at most one further token under overlap passes, got {job.predicted}",
        "core/transformer/transformer_config.py, overlap_moe_expert_parallel_comm",
    ),
    FrameworkRule(
        lambda job, library: not job.overlap_passes or not _has_mamba(job),
        "overlap must be none with Mamba, got passes",
        "core/models/gpt/gpt_model.py, build_schedule_plan, which core/models/hybrid does not have",
    ),
    FrameworkRule(
        lambda job, library: (
            (again := recomputed_of(job.recompute)).whole
            or ("attention" not in again.parts and ("router" not in again.parts or "moe" in again.parts))
        ),
        "recompute must be none, light, block, or parts but attention (and router only with moe), got {job.recompute}",
        "core/transformer/transformer_config.py, recompute_modules: layernorm, mla_up_proj, moe_act, shared_experts, "
        "mlp and moe (with its router); core_attn is not all of attention",
    ),
    FrameworkRule(
        lambda job, library: job.sharding in ("none", "optimizer") or job.pp == 1,
        "sharding must be none or optimizer with pp above 1, got {job.sharding} with pp {job.pp}",
        "training/arguments.py, use_megatron_fsdp: only run with pp 1 in its tests and examples; "
        "core/distributed/fsdp/mcore_fsdp_adapter.py: version 2 refuses more",
    ),
    FrameworkRule(
        lambda job, library: job.sharding != "none" or (job.moment_bytes >= FP32 and job.gathered_bytes >= BF16),
        "sharding must not be none with moments in bf16 or weights in fp8, got {job.sharding}",
        "core/optimizer/__init__.py, use_precision_aware_optimizer; training/arguments.py, fp8_param_gather",
    ),
    FrameworkRule(
        lambda job, library: not job.redundant_experts,
        "redundant_experts must be 0, got {job.redundant_experts}",
        "core/transformer/moe/moe_layer.py, BaseMoELayer: an expert is on one EP rank",
    ),
    FrameworkRule(
        lambda job, library: job.node_limit is None or _limits_servers(job),
        "node_limit must be at most the groups (servers) and top_k, got {job.node_limit}",
        "core/transformer/transformer_config.py, moe_router_group_topk; core/transformer/moe/moe_utils.py, "
        "group_limited_topk",
    ),
    FrameworkRule(
        lambda job, library: DISPATCH_OF[library] == job.dispatch,
        "dispatcher must be nccl with dispatch per-expert, deepep or hybridep with per-server, got {library} with "
        "{job.dispatch}",
        "core/transformer/moe/token_dispatcher.py: alltoall; flex with moe_flex_dispatcher_backend deepep or hybridep",
    ),
    FrameworkRule(
        lambda job, library: library != "deepep" or job.tp * job.ep in DEEPEP_RANKS,
        f"etp x ep must be one of {', '.join(map(str, DEEPEP_RANKS))} with dispatcher deepep, got {{job.tp}} x "
        "{job.ep}",
        "deepseek-ai/DeepEP@dd758ca, deep_ep/buffers/legacy.py, get_dispatch_config (as fused_a2a.py calls it)",
    ),
    FrameworkRule(
        lambda job, library: (
            library != "deepep"
            or job.gpus_per_server == DEEPEP_SERVER
            or job.tp * job.ep <= min(DEEPEP_SERVER, job.gpus_per_server)
        ),
        "gpus_per_server must be 8 (or etp x ep at most 8, in one server) with dispatcher deepep, got "
        "{job.gpus_per_server} with etp x ep {job.tp} x {job.ep}",
        "deepseek-ai/DeepEP@dd758ca, csrc/kernels/legacy/compiled.cuh, LEGACY_NUM_MAX_NVL_PEERS",
    ),
    FrameworkRule(
        lambda job, library: library != "deepep" or job.tp * job.architecture.top_k <= DEEPEP_TOP_K,
        "etp x top_k must be at most 32 with dispatcher deepep, got {job.tp} x {facts.top_k}",
        "deepseek-ai/DeepEP@dd758ca, csrc/kernels/legacy/intranode.cu, num_topk",
    ),
    FrameworkRule(
        lambda job, library: library != "hybridep" or min(job.tp * job.ep, job.gpus_per_server) <= HYBRIDEP_DOMAIN,
        "ranks of a group in one server must be at most 72 with dispatcher hybridep, got {job.gpus_per_server} "
        "gpus_per_server with etp x ep {job.tp} x {job.ep}",
        "deepseek-ai/DeepEP@94a9f8f (branch hybrid-ep), csrc/hybrid_ep/config.cuh, MAX_NUM_OF_RANKS_PER_NODE",
    ),
    FrameworkRule(
        lambda job, library: (
            library != "hybridep" or job.experts_per_rank * min(job.tp * job.ep, job.gpus_per_server) % 4 == 0
        ),
        "experts on the ranks of a server must be a multiple of 4 with dispatcher hybridep, got {job.experts_per_rank} "
        "a rank with etp x ep {job.tp} x {job.ep} and {job.gpus_per_server} gpus_per_server",
        "deepseek-ai/DeepEP@94a9f8f (branch hybrid-ep), csrc/hybrid_ep/config.cuh, is_valid",
    ),
    FrameworkRule(
        lambda job, library: (
            library != "hybridep" or job.servers_per_region == 1 or job.tokens <= job.tp * HYBRIDEP_TOKENS
        ),
        f"tokens of a GPU in a micro-batch must be at most {HYBRIDEP_TOKENS:,} with dispatcher hybridep and a group on "
        "several servers, got {job.tokens:,} an EP rank with etp {job.tp}",
        "deepseek-ai/DeepEP@94a9f8f (branch hybrid-ep), csrc/hybrid_ep/config.cuh, hybrid_ep_token_capacity_is_valid",
    ),
)


def obstacle(job: Workload, dispatcher: str, parts: int = 1) -> str | None:
    """Return the first limit of Megatron Core that a set-up breaks, in words; None if Megatron Core can run it.

    - `dispatcher`: one of `kernels.DISPATCHERS`, or ideal, which stands for the usual one of the job's dispatch.
    - `parts`: parts of a micro-batch whose dispatch, experts and combine overlap. Megatron Core has no such parts.
    """
    library = USUAL_DISPATCHER[job.dispatch] if dispatcher == "ideal" else dispatcher
    if parts > 1:
        return f"overlap must be none or passes, got {parts} parts of a micro-batch"
    for rule in RULES:
        if not rule.holds(job, library):
            return _fill_words(rule.words, job, library)
    return None


def _fill_words(words: str, job: Workload, library: str) -> str:
    facts = job.architecture
    counts = {name: " and ".join(map(str, each)) for name, each in heads_of(facts.attention)._asdict().items()}
    return words.format(job=job, facts=facts, library=library, **counts)


def framework_runs(job: Workload, dispatcher: str, parts: int = 1) -> str:
    """Return "megatron-core" if that framework can run a set-up as it is simulated, else "none"."""
    return MEGATRON if obstacle(job, dispatcher, parts) is None else NONE
