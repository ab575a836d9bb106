"""Settings, each written once: fields with their documentation, choices and checks.

The command line takes its options from these classes, a sweep its settings, Python their keywords.
"""

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any, Literal

from mfabric_jax import units
from mfabric_jax.checks import InputError, names, not_negative, one_of, positive, whole
from mfabric_jax.fabric.design import ServerSettings
from mfabric_jax.schedule.spans import LONG, SPANS
from mfabric_jax.schedule.uneven import TILE
from mfabric_jax.traffic import Knobs
from mfabric_jax.traffic.knobs import WORKLOADS
from mfabric_jax.traffic.named_axes import axes_of
from mfabric_jax.traffic.placement_policies import REGISTRY as PLACEMENTS
from mfabric_jax.traffic.predictor import REGISTRY as PREDICTORS
from mfabric_jax.workload import NAMES, Workload, get, micro_batches_for
from mfabric_jax.workload.gpus import DEFAULT_GPU, GPUS

if typing.TYPE_CHECKING:
    ModelName = str | Workload
else:
    ModelName = str  # of a command's words

TRAFFIC = ("measured", "generated", "authors")
DType = Literal["float32", "float64"]
MEASURED = "measured"
EFFICIENCY = 0.5  # achieved over peak FLOP/s, where nothing says more
DTYPES: tuple[str, ...] = typing.get_args(DType)
OF_SERVER = tuple(field.name for field in dataclasses.fields(ServerSettings))


@dataclasses.dataclass(frozen=True, kw_only=True)
class SetUp(ServerSettings):
    """Overrides of a model's own set-up; None keeps it."""

    dp: int | None = None
    """Data-parallel degree; without it gpus decides."""
    tp: int | None = None
    """Tensor-parallel degree."""
    pp: int | None = None
    """Pipeline stages."""
    ep: int | None = None
    """Expert-parallel degree."""
    gpus: int | None = None
    """GPUs of the cluster (default: the product of the degrees)."""
    micro_batch: int | None = None
    """Sequences per EP rank and micro-batch."""
    micro_batches: int | None = None
    """Micro-batches per iteration (default: what bubble asks for; under a preset, in Python and in sweeps the pipeline
    stages; of a file always enough for a bubble of at most 15 %)."""
    bubble: float | None = None
    """Of models known by name, where micro_batches is open: as many as make a bubble of at most that part of an
    iteration, if their own are not more (commands: 0.15 unless there is a preset)."""
    sequence: int | None = None
    """Tokens of a sequence (--seq, too)."""
    schedule: str | None = None
    """Order of passes: 1f1b (default), interleaved, gpipe, zb-h1, zb-v, dualpipe."""
    chunks: int | None = None
    """Chunks of blocks on a stage, under interleaved."""
    overlap_passes: bool | None = None
    """All-to-alls of a pass beside another's computation: under 1f1b, interleaved, dualpipe (there by default)."""
    recompute: str | None = None
    """What the backward pass computes again: none (default), attention, block."""
    precision: str | None = None
    """Of what is sent: bf16 (default), or fp8: tokens to experts and their gradient on the way back in FP8, answers
    and theirs, and gradients of weights, in bf16. Two of the four all-to-alls of a block shrink."""
    dispatch_bytes: float | None = None
    """Bytes per element of a token on its way to an expert, and of its gradient on the way back."""
    combine_bytes: float | None = None
    """Bytes per element of an expert's answer, and of its gradient."""
    grad_bytes: float | None = None
    """Bytes per element of a gradient."""
    cp: int | None = None
    """EP ranks in a row that share sequences (context parallel); default 1. Each has its part of their tokens, and
    keys and values go around."""
    tp_reduces: str | None = None
    """Whose outputs tensor-parallel ranks all-reduce: attention (default), or all: experts and dense FFNs, too."""
    sharding: str | None = None
    """What the replicas of a parameter share out: none, optimizer (default: ZeRO-1), gradients (ZeRO-2), parameters
    (ZeRO-3, FSDP)."""
    head: str | None = None
    """Time of embedding and output head: left-out (default), counted, or known: where the model's vocab is known."""
    optimizer_step: str | None = None
    """Time of the optimizer's step: left-out (default), counted, or known: where the GPU's memory bandwidth is."""
    redundant_experts: int | None = None
    """Slots of an expert-parallel group for copies of experts, a multiple of its ranks (default 0); placement fills
    them."""
    dispatch: str | None = None
    """How tokens travel: per-expert (default), once for every expert; per-server, once to every server, whose NVSwitch
    carries them on (as DeepEP does)."""
    node_limit: int | str | None = None
    """Of per-server: how many servers a token may reach at most, or model: as its groups of experts say (DeepSeek: 4 of
    8). Default: as many as its experts are on."""
    capacity_factor: float | None = None
    """What an expert takes of an all-to-all at most, over the mean; the rest is dropped (default: nothing is)."""

    def workload(self, name: ModelName, gpus_per_server: int | None = None, **changed: Any) -> Workload:
        """A model with these overrides; `name`: as `workload.get` takes it.

        - `gpus_per_server`: None: of the GPU's own servers.
        """
        own = [field.name for field in dataclasses.fields(SetUp) if field.name not in (*OF_SERVER, "bubble")]
        given = {name: getattr(self, name) for name in own} | changed
        given = {field: value for field, value in given.items() if value is not None}
        given["gpus_per_server"] = gpus_per_server or self.server.gpus_per_server
        given["server"] = self.server
        job = get(name, **given)
        if self.bubble is None:
            return job
        enough = micro_batches_for(self.bubble, job.pp, job.chunks, job.schedule, job.overlap_passes)
        said = "micro_batches" in given or ":micro_batches=" in str(name).replace("-", "_") or job.known_as not in NAMES
        return job if said or enough <= job.micro_batches else get(name, **given, micro_batches=enough)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlacementSettings:
    """Where experts live."""

    placement: str = "contiguous"
    """Which ranks hold which experts: contiguous, longest-processing-time, hierarchical (as DeepSeek's EPLB),
    with-circuits (hierarchical, then swaps that spare the ports between servers)."""
    placement_groups: int | None = None
    """Of hierarchical: groups of neighbouring experts that stay on one server (default: every expert is one)."""
    placed_on: Literal["past", "now"] = "past"
    """Loads that experts are placed on: past, of the iterations before; now, of those that follow, as if known."""
    placed_window: int = 1
    """Of past: over at most so many iterations."""
    replace_every: int = 0
    """Experts are placed again every so many iterations, and what moves takes time; 0: once, before the run."""

    def check_placement(self, copies: int | None) -> None:
        """`InputError` for a value that no placement has, or that would not be used."""
        one_of("placement", self.placement, PLACEMENTS)
        whole("placed_window", self.placed_window)
        whole("replace_every", self.replace_every, at_least=0)
        if self.placement_groups is not None:
            whole("placement_groups", self.placement_groups)
        if self.placement != "contiguous":
            return
        for field, value in (("redundant_experts", copies), ("replace_every", self.replace_every)):
            if value:
                others = " or ".join(name for name in PLACEMENTS if name != "contiguous")
                raise InputError(f"{field} {value} needs placement {others}, got 'contiguous'.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrafficSettings:
    """Where tokens go."""

    trace: str | None = None
    """Recorded routing: a file or folder in any format that mfabric traces --help lists."""
    records: tuple[int, int] | None = None
    """FIRST-LAST record of the trace (default for a gate trace: 2011-5001)."""
    axes: str | None = None
    """Of a trace that is an array, in order: iteration,layer,micro-batch,source,expert (or destination), or some."""
    traffic: str = "measured"
    """measured: expert shares of trained models; generated: popularity rank^-skew; authors: the 8 x 8 matrix in the
    code that mFabric's authors released, tiled over ranks; balanced, hot-experts, spread-hot-experts, hot-rank,
    rotating-hot-spot, burst, empty-experts, power-law-0.6, -0.8, -1.01, -1.2, log-normal; or a .json file of knobs,
    from `mfabric traces fit`."""
    skew: float = 0.0
    """Skew of generated traffic; 0 is balanced."""
    drift: float = 0.05
    """How much expert popularity moves from iteration to iteration (standard deviation of its logarithm)."""
    drawn: int = 4
    """Different micro-batches of an iteration; more are read cyclically (a trace brings its own)."""
    iterations: int = 1
    """Iterations to simulate and average; of a trace the first so many records."""
    replicas: int | str = 1
    """Data-parallel replicas with traffic of their own, which wait for the slowest: 1 stands for all; a number, or all.
    Of drawn traffic each has its own micro-batches, of a trace its own records."""
    matrices: Literal["each", "block", "one"] = "each"
    """each block and micro-batch has its own traffic; block: micro-batches and iterations alike; one: all alike."""

    def check_traffic(self) -> None:
        """`InputError` for a value that no traffic has, or that would not be used."""
        for field in ("iterations", "drawn"):
            whole(field, getattr(self, field))
        for field in ("skew", "drift"):
            not_negative(field, getattr(self, field))
        self.knobs()
        if self.axes is not None:
            axes_of(self.axes)
        for field, does in (("records", "chooses from"), ("axes", "describes")):
            if getattr(self, field) is not None and self.trace is None:
                raise InputError(f"{field} {does} a trace; name one with trace.")
        if self.trace is not None and (self.traffic, self.skew) != ("measured", 0):
            named = "traffic" if self.traffic != "measured" else "skew"
            raise InputError(f"{named} {getattr(self, named)!r} is not used beside a trace; leave out one of them.")
        if self.replicas != 1 and (self.matrices != "each" or self.traffic == "authors"):
            alike = f"matrices {self.matrices!r}" if self.matrices != "each" else "traffic 'authors'"
            raise InputError(f"replicas are all alike under {alike}; they must be 1, got {self.replicas}.")
        if self.skew and self.traffic != "generated":
            raise InputError(f"skew is of traffic 'generated' alone, got traffic {self.traffic!r}.")

    def knobs(self) -> Knobs | None:
        """Of the traffic, where it is a named workload or a file of knobs."""
        if self.traffic.endswith(".json"):
            return Knobs.read(self.traffic)
        one_of("traffic", self.traffic, (*TRAFFIC, *WORKLOADS))
        return WORKLOADS.get(self.traffic)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeSettings(ServerSettings):
    """How fast GPUs compute, and what they have inside a server."""

    compute: Literal["calibrated", "achieved"] | None = None
    """calibrated (to published fat-tree times, where there are any) or achieved (--gpu at --efficiency); default:
    calibrated unless gpu or efficiency is given."""
    efficiency: float | None = None
    """Achieved over peak FLOP/s (default: 0.5, where nothing is calibrated)."""
    compute_precision: Literal["bf16", "fp8"] = "bf16"
    """Whose peak counts, bf16 or fp8."""
    expert_load: Literal["balanced", "received"] = "balanced"
    """How long experts compute: balanced, as if all had equally many tokens (the paper's; presets, Python and sweeps);
    received, as the busiest rank does for those it received (commands without a preset)."""
    expert_tile: int = TILE
    """Of received: every expert's tokens are rounded up to whole tiles of so many, as grouped matrix products are."""
    combine_start: Literal["barrier", "rank"] = "barrier"
    """When ranks send what their experts made, under received: barrier, once the busiest is done; rank, each when it is
    done itself."""
    measured_iteration_s: float | None = None
    """Instead of efficiency: an iteration of yours takes so long; what the GPU achieves is solved from it. One
    model a run."""
    measured_on: str | None = None
    """The fabric on which it was measured (default: fat-tree)."""
    measured_nic_use: str | None = None
    """How its GPUs used NICs, own or pooled (default: the first nic_use of the run)."""
    measured_gbps: float | None = None
    """The bandwidth of its NICs (default: the first of the run)."""
    nvswitch_gigabytes_per_s: float | None = None
    """NVSwitch rate of a GPU, per direction (default: that of --gpu; 900, as the paper simulates, where none is
    named)."""

    def check_compute(self) -> None:
        """`InputError` for a value that no GPU has."""
        for field in ("efficiency", "nvswitch_gigabytes_per_s", "measured_iteration_s", "measured_gbps"):
            if getattr(self, field) is not None:
                positive(field, getattr(self, field))
        whole("expert_tile", self.expert_tile)
        if self.combine_start == "rank" and self.expert_load != "received":
            raise InputError(f"combine_start 'rank' needs expert_load 'received', got {self.expert_load!r}.")
        self.server.peak(self.compute_precision)
        measured = self.measured_iteration_s is not None
        if measured and self.efficiency is not None:
            raise InputError(f"efficiency {self.efficiency} is not used beside measured_iteration_s; leave out one.")
        where = self.measured_on, self.measured_gbps, self.measured_nic_use
        if not measured and where != (None, None, None):
            raise InputError(
                "measured_on, _gbps and _nic_use say where measured_iteration_s was measured; give it, too."
            )
        said = self.efficiency, self.measured_iteration_s
        other = said != (None, None) or (self.server, self.compute_precision) != (GPUS[DEFAULT_GPU], "bf16")
        if self.compute == "calibrated" and other:
            raise InputError("compute 'calibrated' takes no gpu or efficiency; with these it must be 'achieved'.")

    @property
    def rates_from(self) -> Literal["calibrated", "achieved"]:
        """`compute`, or what it is where left open."""
        said = self.gpu, self.efficiency, self.measured_iteration_s
        given = said != (None, None, None) or self.compute_precision != "bf16"
        return self.compute or ("achieved" if given else "calibrated")

    @property
    def usual_efficiency(self) -> float:
        """`efficiency`, or what it is where left open and nothing is calibrated or measured."""
        return EFFICIENCY if self.efficiency is None else self.efficiency

    @property
    def own_nvlink_Bps(self) -> float:
        """What the NVSwitch of a server gives a GPU [bytes/s]."""
        if self.nvswitch_gigabytes_per_s is not None:
            return units.gigabytes_per_s(self.nvswitch_gigabytes_per_s)
        return super().own_nvlink_Bps


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """How circuits are chosen."""

    policy: Any = "greedy"
    """How circuits are chosen: greedy, uniform, random, static, previous, topoopt, matching, threshold, local-search,
    relaxed, joint, index, learned, exact; a .policy file of mfabric train; or FILE.py:FUNCTION."""
    rule: Literal["printed", "released", "next"] = "printed"
    """greedy's rule: printed, released, next."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CircuitSettings(PolicySettings):
    """How circuits are chosen and used."""

    routing: Literal["unsplit", "best-path", "split", "relay"] = "unsplit"
    """How mFabric uses them: unsplit, best-path, split, relay."""
    first: Literal["block", "reuse", "random", "predict", "pays"] = "block"
    """Circuits of the first all-to-all of a forward block: block, reuse, random, predict, pays (see the docs)."""
    predictor: str | None = None
    """Of demand, for --first predict: transition, previous-layer, previous-iteration, moving-average, uniform."""
    scenarios: int = 8
    """Of --first predict, where the policy takes many demands: so many that may be true, drawn of each prediction."""
    sigma: float | None = None
    """Of their errors, standard deviation of the logarithm (default: that of the predictor so far)."""
    plan_on: Literal["past", "span"] = "past"
    """What circuits for a stage, iteration or run are chosen on: past, the iteration before (a run: before its first);
    span, what they will carry, as if it were known."""
    decision_s: float | str = 0.0
    """Time that a policy takes, paid where nothing hides it: seconds, or measured (on this machine)."""
    partial: bool = False
    """Circuits that stay carry while others turn."""
    reconfiguration_cost: Literal["changed", "always"] = "changed"
    """When a region waits for its switch: changed, where circuits differ from those in place; always, in every block
    and pass, as the code that mFabric's authors released does (with --first block)."""
    cold_start: bool = False
    """Circuits are uniform when an iteration begins (default: as an iteration like it leaves them)."""
    flows: Literal["spray", "single"] = "spray"
    """spray, or single: each flow takes one random shortest path (topoopt sprays unless wiring says else)."""
    circuit_flows: Literal["single", "pooled"] = "single"
    """Under flows single, on mfabric: single, each flow takes one of its pair's circuits, or one electrical NIC;
    pooled, the circuits of a pair are one queue, and so are the electrical NICs of a server."""

    def check_circuits(self) -> None:
        """`InputError` for settings that do not go together."""
        if self.predictor is not None:
            one_of("predictor", self.predictor, PREDICTORS)
        if self.flows == "single" and self.routing != "unsplit":
            raise InputError(f"flows 'single' needs routing unsplit, got {self.routing!r}.")
        if self.reconfiguration_cost == "always" and (self.first != "block" or self.partial):
            has = f"first {self.first!r}" if self.first != "block" else "partial"
            raise InputError(f"reconfiguration_cost 'always' is of first 'block' without partial, got {has}.")
        if self.flows == "single" and self.partial:
            raise InputError("flows 'single' turns all circuits together; partial must be false, got true.")
        whole("scenarios", self.scenarios)
        if self.sigma is not None:
            not_negative("sigma", self.sigma)
        if isinstance(self.decision_s, str):
            one_of("decision_s (beside a number of seconds)", self.decision_s, (MEASURED,))
        else:
            not_negative("decision_s", self.decision_s)

    def check_spans(self, circuits_for: Sequence[str]) -> None:
        """`InputError` for spans that are none, or do not go with `first`."""
        names("circuits_for", circuits_for, SPANS)
        for span in circuits_for:
            if self.reconfiguration_cost == "always" and span != "all-to-all":
                raise InputError(f"reconfiguration_cost 'always' needs circuits_for 'all-to-all', got {span!r}.")
            allowed = ("block",) if span in LONG else ("block", "predict", "random")
            if span != "all-to-all" and self.first not in allowed:
                words = " or ".join(map(repr, allowed))
                raise InputError(f"circuits_for {span!r} needs first {words}, got {self.first!r}.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TimingSettings:
    """What may run at the same time."""

    eps_waits: bool = False
    """Traffic on packet switches waits for a reconfiguration too, not only that on circuits."""
    overlap_parts: int = 1
    """Parts in which dispatch, experts and combine overlap (1: one after the other)."""
    dp_overlap: bool = False
    """Gradients are all-reduced beside the backward pass (sharding none or optimizer)."""
    comm_cores: float = 0.0
    """Part of a GPU's cores that communicates while passes overlap, and does not compute (DeepSeek-V3: 0.152)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Of every run."""

    seed: int = 0
    """Of everything that is drawn."""
    dtype: DType = "float32"
    """float32, float64."""
