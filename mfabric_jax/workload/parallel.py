"""A training job on GPUs: parallel degrees, micro-batches, and the server of every rank.

TP ranks fill a server first, then EP, DP and PP ranks. A region is the servers of one EP group (arXiv 2501.03905).
"""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax import checks
from mfabric_jax.support.host_arrays import host_indices
from mfabric_jax.workload.layout import EVEN, places_of
from mfabric_jax.workload.models import Architecture
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import (
    SCHEDULES,
    Holding,
    ModelPart,
    PipelineSchedule,
    PipelineShape,
    check_shape,
    holdings,
    model_parts,
)

SCALED = 128  # elements of a token per 4-byte scale
FP8 = 1 + 4 / SCALED
PRECISIONS: dict[str, dict[str, float]] = {  # bytes per element
    "bf16": {"dispatch_bytes": 2, "combine_bytes": 2, "grad_bytes": 2},
    # DeepSeek-V3 (arXiv 2412.19437) sends tokens to experts, and one of the two gradients, in FP8 with scales; outputs
    # of experts and all else in bf16. Here a dispatch and its gradient have the same size.
    "fp8": {"dispatch_bytes": FP8, "combine_bytes": 2, "grad_bytes": 2},
}
_WEIGHTS, _SUMS = {"bf16": 2.0, "fp8": 1.0}, {"bf16": 2.0, "fp32": 4.0}
BYTES = {  # bytes per element, by number format: sent (FP8 with the scales of tokens), and in memory
    "dispatch": {"bf16": 2.0, "fp8": FP8},
    "combine": {"bf16": 2.0, "fp8": FP8},
    "gradients": _WEIGHTS,
    **{"accumulated": _SUMS, "moments": _SUMS, "weights": _WEIGHTS, "kept": _WEIGHTS},
}


PAIR = "is two servers, one pair: every policy that uses all circuits sets the same ones"
INSIDE = "fits into one server: no all-to-all leaves it"


def region_remark(servers: int, what: str = "A region") -> str | None:
    """Return a sentence for regions of one or two servers; None for larger regions, where policies can choose other
    circuits."""
    remark = {1: INSIDE, 2: PAIR}.get(servers)
    return None if remark is None else f"{what} {remark}."


DISPATCH = ("per-expert", "per-server")
DEGREES = ("tp", "ep", "dp", "pp")
SHARDING = ("none", "optimizer", "gradients", "parameters")
COUNTED = ("left-out", "counted", "known")
TP_REDUCES = ("attention", "all", "copies")
OF_EP_GROUP = (  # fields that decide, with the tokens of a rank, what the ranks of an EP group send each other
    *("model", "architecture", "tp", "ep", "gpus_per_server", "redundant_experts"),
    *("dispatch_bytes", "dispatch", "node_limit", "capacity_factor"),
)


@dataclasses.dataclass(frozen=True)
class RankLayout:
    """Maps global ranks of a job to tensor-, expert-, data- and pipeline-parallel ranks.

    - `order`: the four names joined by "-", fastest-varying first. Megatron's tp-cp-ep-dp-pp is accepted too;
      context-parallel ranks then count in `ep` and `dp`.
    - `chunks`: model chunks per pipeline stage. `experts`: of the model; None: not known.

    Raise `InputError` for a degree below 1, another order, or experts that `ep` does not divide.
    """

    tp: int = 1
    ep: int = 1
    dp: int = 1
    pp: int = 1
    order: str = "-".join(DEGREES)
    chunks: int = 1
    experts: int | None = None

    def __post_init__(self) -> None:
        for field in (*DEGREES, "chunks"):
            checks.whole(field, getattr(self, field))
        if sorted(self._names) != sorted(DEGREES):
            raise checks.InputError(
                f"order must name tp, ep, dp and pp once each, like tp-ep-dp-pp, got {self.order!r}."
            )
        if self.experts is not None and checks.whole("experts", self.experts) % self.ep:
            raise checks.InputError(f"experts must be a multiple of ep = {self.ep}, got {self.experts}.")

    @property
    def _names(self) -> list[str]:
        return [name for name in self.order.split("-") if name != "cp"]

    @property
    def ranks(self) -> int:
        return self.tp * self.ep * self.dp * self.pp

    @property
    def words(self) -> str:
        return ", ".join(f"{name} {getattr(self, name)}" for name in DEGREES)

    def index(self, rank: np.ndarray) -> dict[str, np.ndarray]:
        rank, index = host_indices("rank", rank, 0, self.ranks - 1), {}
        for name in self._names:
            rank, index[name] = np.divmod(rank, getattr(self, name))
        return index

    def ranks_per_server(self, gpus: int) -> int:
        """Return the number of EP ranks that share a server of `gpus` GPUs."""
        return len(np.unique(self.index(np.arange(min(gpus, self.ranks)))["ep"]))


@dataclasses.dataclass(frozen=True)
class Workload:
    """A training job: one model on one cluster.

    - `dp`, `tp`, `pp`, `ep`: degrees of data, tensor, pipeline and expert parallelism, with product `gpus`.
    - `cp`: neighbouring EP ranks that split the tokens of a sequence (context parallelism); 1: none.
    - `folded`: neighbouring EP ranks that act as further tensor-parallel ranks for everything except routed experts,
      each with its part of the tokens (MoE parallel folding, arXiv 2504.14960); `tp` is the degree of experts.
    - `sequence`: tokens; `micro_batch`: sequences per EP rank; `micro_batches`: per EP rank and iteration.
    - `dispatch_bytes`, `combine_bytes`, `grad_bytes`: bytes per element of the two all-to-alls and of gradients.
    - `accumulated_bytes`, `moment_bytes`, `weight_bytes`: bytes in memory of a parameter's gradient, of each of the
      optimizer's two moments, and of the parameter; `gathered_bytes`: of a parameter that replicas gather.
    - `kept_bytes`: bytes of an element that a matrix product keeps for its backward pass.
    - `schedule`: a name in `schedules.SCHEDULES`; `chunks`: model chunks per stage, for interleaved.
    - `overlap_passes`: a stage runs a forward and a backward pass together; all-to-alls of one overlap the compute of
      the other.
    - `recompute`: what backward passes recompute: a level or parts, as in `workload.recompute`.
    - `tp_reduces`: outputs that TP ranks all-reduce: "all" that they split, "copies" (all, and those of experts for
      every copy of a token), or those of "attention" alone.
    - `sequence_parallel`: between products, TP ranks also split the tokens (arXiv 2205.05198).
    - `predicted`: how many of the last blocks are multi-token prediction (MTP) blocks, each with its own output head.
    - `layout_of_blocks`: how many blocks each place of the pipeline holds (`workload.layout`).
    - `sharding`: what replicas shard: "none", "optimizer" (ZeRO-1), "gradients" (ZeRO-2), "parameters" (ZeRO-3, FSDP).
    - `head`, `optimizer_step`: whether these take time: "left-out", "counted", or "known" (counted if `vocab`, or the
      GPU's memory bandwidth, is known). Memory always includes them.
    - `redundant_experts`: slots of a group beyond one per expert, for copies.
    - `dispatch`: "per-expert" sends a token once per expert; "per-server" sends it once per server, which forwards it
      over the NVSwitch.
    - `node_limit`: most servers that a token may reach; "model": by the model's expert groups; None: not modelled.
    - `capacity_factor`: most selections that an expert takes, over the mean of the all-to-all; it drops the rest. None:
      no limit.
    - `sharp`: switches between servers reduce (SHARP). `nvls`: bandwidth of NVLinks in all-reduces that NVSwitches
      compute over that in rings; 0: they do not.
    - `known_as`: the name under which figures for the job are published; empty: none.

    Raise `InputError` for degrees that do not fit the cluster, the servers, the experts or the blocks.
    """

    model: str
    architecture: Architecture
    dp: int
    tp: int
    pp: int
    ep: int
    gpus: int
    sequence: int = 4096
    micro_batch: int = 8
    micro_batches: int = dataclasses.field(kw_only=True)
    gpus_per_server: int = 8
    dispatch_bytes: float = 2
    combine_bytes: float = 2
    grad_bytes: float = 2
    accumulated_bytes: float = 4
    moment_bytes: float = 4
    weight_bytes: float = 2
    gathered_bytes: float = 2
    kept_bytes: float = 2
    schedule: str = "1f1b"
    chunks: int = 1
    overlap_passes: bool = False
    recompute: str = "none"
    cp: int = 1
    folded: int = 1
    tp_reduces: str = "all"
    sequence_parallel: bool = True
    predicted: int = 0
    layout_of_blocks: str = EVEN
    sharding: str = "optimizer"
    head: str = "left-out"
    optimizer_step: str = "left-out"
    redundant_experts: int = 0
    dispatch: str = "per-expert"
    node_limit: int | str | None = None
    capacity_factor: float | None = None
    sharp: bool = False
    nvls: float = 0.0
    known_as: str = ""

    @classmethod
    def of(
        cls, model: str, architecture: Architecture, dp: int, tp: int, pp: int, ep: int, gpus: int, **fields: Any
    ) -> "Workload":
        """Return a workload; its schedule fills `micro_batches`, `chunks` and `overlap_passes` that are missing or
        None.

        It fills in one micro-batch per stage (dualpipe: two), its own number of chunks, and overlapping passes under
        dualpipe.
        """
        order = SCHEDULES[checks.one_of("schedule", fields.get("schedule", "1f1b"), SCHEDULES)]
        usual = {"chunks": order.chunks or 1, "overlap_passes": order.overlap}
        usual["micro_batches"] = pp * max(1, order.least)
        stated = {field: value for field, value in fields.items() if field not in usual or value is not None}
        return cls(model, architecture, dp, tp, pp, ep, gpus, **usual | stated)

    def __post_init__(self) -> None:
        for field, allowed in (
            *(("schedule", SCHEDULES), ("tp_reduces", TP_REDUCES), ("sharding", SHARDING)),
            *(("head", COUNTED), ("optimizer_step", COUNTED), ("dispatch", DISPATCH)),
        ):
            checks.one_of(field, getattr(self, field), allowed)
        for field in (
            *DEGREES,
            "gpus",
            "sequence",
            "micro_batch",
            "micro_batches",
            "gpus_per_server",
            "chunks",
            "cp",
            "folded",
        ):
            checks.whole(field, getattr(self, field))
        more = "accumulated_bytes", "moment_bytes", "weight_bytes", "gathered_bytes", "kept_bytes"
        for field in ("dispatch_bytes", "combine_bytes", "grad_bytes", *more):
            checks.positive(field, getattr(self, field))
        checks.whole("redundant_experts", self.redundant_experts, at_least=0)
        check_shape(self.schedule, self.shape)
        if self.sharding in ("gradients", "parameters") and (self.order.splits or self.overlap_passes):
            has = "overlap_passes" if self.overlap_passes else f"schedule {self.schedule!r}"
            raise checks.InputError(f"sharding must be none or optimizer with {has}, got {self.sharding!r}.")
        if recomputed_of(self.recompute).exchanges and self.overlap_passes:
            raise checks.InputError(f"overlap_passes needs recompute without moe and block, got {self.recompute!r}.")
        self._check_cluster()
        self._check_model()
        self._check_dispatch()

    def _check_cluster(self) -> None:
        per_server, group, stage = self.gpus_per_server, self.tp * self.ep, self.dp * self.tp * self.ep
        if stage * self.pp != self.gpus:
            degrees = f"{self.dp} x {self.tp} x {self.pp} x {self.ep} = {stage * self.pp}"
            raise checks.InputError(
                f"dp x tp x pp x ep must equal gpus, got {degrees} but gpus = {self.gpus}; gpus (--gpus) of "
                f"{stage * self.pp} would fit."
            )
        if per_server % self.attention_tp:
            what = f"tp x folded = {self.tp} x {self.folded}" if self.folded > 1 else "tp"
            raise checks.InputError(f"{what} must divide gpus_per_server ({per_server}), got {self.attention_tp}.")
        if group % per_server and per_server % group:
            raise checks.InputError(
                f"EP group of tp x ep = {self.tp} x {self.ep} = {group} GPUs does not fit whole servers of "
                f"{per_server}: it must be a multiple or a divisor of gpus_per_server."
            )
        if stage % per_server:
            raise checks.InputError(
                f"a pipeline stage of dp x tp x ep = {self.dp} x {self.tp} x {self.ep} = {stage} GPUs must fill whole "
                f"servers of {per_server} (gpus_per_server)."
            )

    def _check_model(self) -> None:
        facts, places = self.architecture, self.pp * self.chunks
        if self.selections > checks.MOST_WHOLE:
            product = f"{self.micro_batch:,} x {self.sequence:,} x {facts.top_k}"
            least = f"micro_batch x sequence x top_k must be at most {checks.MOST_WHOLE:,} selections"
            raise checks.InputError(f"{least}, got {product}.")
        if facts.experts % self.ep:
            raise checks.InputError(f"ep must divide the {facts.experts} experts, got {self.ep}.")
        if self.redundant_experts % self.ep:
            raise checks.InputError(
                f"redundant_experts must be a multiple of the {self.ep} ranks (ep), got {self.redundant_experts}."
            )
        if self.sequence % self.sequence_ranks or self.ep % self.sequence_ranks:
            divided = f"ep ({self.ep}) and the {self.sequence} tokens of a sequence"
            what = f"cp x folded = {self.cp} x {self.folded}" if self.folded > 1 else "cp"
            raise checks.InputError(f"{what} must divide {divided}, got {self.sequence_ranks}.")
        if self.head == "counted" and not facts.vocab:
            raise checks.InputError(f"head 'counted' needs the vocab of {facts.name}, which is not known.")
        if places > facts.blocks:
            times = f"pp x chunks = {self.pp} x {self.chunks}" if self.chunks > 1 else "pp"
            raise checks.InputError(f"{times} must be at most the {facts.blocks} blocks, got {places}.")
        checks.whole("predicted", self.predicted, at_least=0)
        places_of(self.layout_of_blocks, facts.blocks, self.predicted, places)

    def _check_dispatch(self) -> None:
        factor, limit, facts = self.capacity_factor, self.node_limit, self.architecture
        if factor is not None and checks.positive("capacity_factor", factor) < 1:
            raise checks.InputError(f"capacity_factor must be at least 1, got {factor!r}.")
        if limit is None:
            return
        if self.dispatch != "per-server":
            raise checks.InputError(
                f"node_limit needs dispatch 'per-server' (it changes no bytes under another), got {self.dispatch!r}."
            )
        if isinstance(limit, str):
            checks.one_of("node_limit (unless a number of servers)", limit, ("model",))
            groups, most, what = facts.expert_groups, facts.top_groups, "expert_groups"
        else:
            groups, most, what = self.ep // self.ranks_per_server, checks.whole("node_limit", limit), "servers"
        if facts.experts % groups or most * (facts.experts // groups) < facts.top_k:
            raise checks.InputError(
                f"node_limit {limit!r} must leave a token room for {facts.top_k} of {facts.experts} experts, got "
                f"{most} of {groups} {what}."
            )

    @property
    def layout(self) -> RankLayout:
        degrees = {name: getattr(self, name) for name in DEGREES}
        return RankLayout(**degrees, chunks=self.chunks, experts=self.architecture.experts)

    @functools.cached_property
    def ep_group(self) -> "Workload":
        """The smallest job with an EP group like those of this job. Jobs with equal ones send the same all-to-alls."""
        kept: dict[str, Any] = {name: getattr(self, name) for name in OF_EP_GROUP}
        group = self.tp * self.ep
        gpus = math.lcm(group, self.gpus_per_server)
        return Workload(**kept, dp=gpus // group, pp=1, gpus=gpus, sequence=self.tokens, micro_batch=1, micro_batches=1)

    @property
    def attention_tp(self) -> int:
        """Tensor-parallel degree of attention and of everything else except routed experts."""
        return self.tp * self.folded

    @property
    def stated_degrees(self) -> dict[str, int]:
        """Degrees as `job.parallel` states them: `tp` of attention, and `etp` of experts if it differs."""
        own = {name: getattr(self, name) for name in DEGREES}
        return own if self.folded == 1 else {"tp": self.attention_tp, "etp": own.pop("tp")} | own

    @property
    def spread_words(self) -> str:
        """Degrees in words, such as "DP 2 x TP 2 x PP 8 x EP 4"; folded experts have ETP instead of TP."""
        tp, behind = ("TP", "") if self.folded == 1 else ("ETP", f" (attention TP {self.attention_tp})")
        return f"DP {self.dp} x {tp} {self.tp} x PP {self.pp} x EP {self.ep}{behind}"

    @property
    def sequence_ranks(self) -> int:
        """EP ranks that share the tokens of a sequence."""
        return self.cp * self.folded

    @property
    def tokens(self) -> int:
        """Tokens of one EP rank in one micro-batch."""
        return self.micro_batch * self.sequence // self.sequence_ranks

    @property
    def iteration_tokens(self) -> int:
        """Tokens of an iteration over all replicas."""
        return self.dp * self.ep * self.micro_batches * self.tokens

    @property
    def head_counted(self) -> bool:
        """Whether embedding and output head take time."""
        return self.head != "left-out" and self.architecture.vocab > 0

    @property
    def selections(self) -> int:
        """(Token, expert) pairs that one EP rank's gate selects in one block and micro-batch."""
        return self.tokens * self.architecture.top_k

    @property
    def dispatch_bytes_per_selection(self) -> float:
        """Bytes of one token sent to one expert."""
        return self.architecture.routed_width * self.dispatch_bytes

    @property
    def combine_bytes_per_selection(self) -> float:
        """Bytes of one expert's output for one token."""
        return self.architecture.routed_width * self.combine_bytes

    @property
    def experts_per_rank(self) -> int:
        """Routed experts on one EP rank in every MoE block, copies included."""
        return self.expert_slots // self.ep

    @property
    def expert_slots(self) -> int:
        """Routed experts of a group in every MoE block, copies included."""
        return self.architecture.experts + self.redundant_experts

    @property
    def servers(self) -> int:
        """Servers of the whole cluster."""
        return self.gpus // self.gpus_per_server

    @property
    def servers_per_region(self) -> int:
        """Servers of one EP group, at least 1."""
        return max(1, self.tp * self.ep // self.gpus_per_server)

    @property
    def ranks_per_server(self) -> int:
        """EP ranks of one EP group that share a server."""
        return min(self.ep, self.gpus_per_server // self.tp)

    @property
    def moe_layers(self) -> int:
        """Number of blocks with experts."""
        return len(self.architecture.moe_blocks)

    @property
    def order(self) -> PipelineSchedule:
        return SCHEDULES[self.schedule]

    @property
    def shape(self) -> PipelineShape:
        return PipelineShape(self.pp, self.micro_batches, self.chunks, self.overlap_passes)

    def stage_places(self, stage: int) -> tuple[int, ...]:
        """Return the model parts that a stage holds, one per chunk."""
        return tuple(self.order.part_of(stage, chunk, self.pp) for chunk in range(self.chunks * self.order.copies))

    @functools.cached_property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each copy of the model, its stages in the order of a forward pass. The copies take equal, consecutive
        parts of the micro-batches."""
        paths = []
        for copy in range(self.order.copies):
            chunks = slice(copy * self.chunks, (copy + 1) * self.chunks)
            stage_of = {part: stage for stage in range(self.pp) for part in self.stage_places(stage)[chunks]}
            paths.append(tuple(stage_of[part] for part in sorted(stage_of)))
        return tuple(paths)

    @functools.cached_property
    def stages_alike(self) -> tuple[tuple[int, ...], ...]:
        """Groups of stages that hold the same model parts."""
        alike: dict[tuple[int, ...], list[int]] = {}
        for stage in range(self.pp):
            alike.setdefault(tuple(sorted(self.stage_places(stage))), []).append(stage)
        return tuple(map(tuple, alike.values()))

    @property
    def places(self) -> tuple[ModelPart, ...]:
        return model_parts(self.architecture, self.place_blocks)

    @property
    def holdings(self) -> tuple[Holding, ...]:
        return holdings(self.architecture, self.schedule, self.pp, self.place_blocks)

    @functools.cached_property
    def place_blocks(self) -> tuple[int, ...]:
        """Number of blocks of each model part."""
        return places_of(self.layout_of_blocks, self.architecture.blocks, self.predicted, self.pp * self.chunks)

    def place_layers(self, part: int) -> range:
        """Return the MoE blocks of a part, as numbers among MoE blocks."""
        return self.places[part].layers

    def place_positions(self, part: int) -> tuple[int, ...]:
        """Return the positions of a part's MoE blocks among its blocks, from 0."""
        first, _, layers = self.places[part]
        return tuple(self.architecture.moe_blocks[layer] - first for layer in layers)

    @functools.cached_property
    def stage_blocks(self) -> tuple[int, ...]:
        """Number of blocks of each pipeline stage."""
        return tuple(sum(held.moe) + sum(held.dense) for held in self.holdings)

    def stage_layers(self, stage: int) -> list[int]:
        """Return the MoE blocks of a pipeline stage, as numbers among MoE blocks."""
        self.check_stage(stage)
        return [layer for part in self.stage_places(stage) for layer in self.place_layers(part)]

    def check_stage(self, stage: int) -> int:
        if not 0 <= stage < self.pp:
            raise checks.InputError(f"stage must be from 0 to {self.pp - 1}, got {stage!r}.")
        return stage


class RankPlacement(NamedTuple):
    """Rank indices, server and region of every GPU: six arrays [GPUs] by global GPU number. Servers and regions also
    have global numbers."""

    tp: np.ndarray
    ep: np.ndarray
    dp: np.ndarray
    pp: np.ndarray
    server: np.ndarray
    region: np.ndarray


def place_ranks(workload: Workload) -> RankPlacement:
    """Return the rank indices, server and region of every GPU of the cluster."""
    gpu = np.arange(workload.gpus)
    server = gpu // workload.gpus_per_server
    return RankPlacement(**workload.layout.index(gpu), server=server, region=server // workload.servers_per_region)
