"""What is assumed, and what is compared, checked before any compute."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from mfabric_jax import fabric, policies
from mfabric_jax.checks import InputError, names, not_negative, positive, whole
from mfabric_jax.fabric import Prices
from mfabric_jax.fabric.design import EpGroup, Fabric, FabricSettings
from mfabric_jax.fabric.electrical import NIC_USES
from mfabric_jax.fabric.parts_list import Parts
from mfabric_jax.fabric.tree import check_two_tiers
from mfabric_jax.schedule import Rules, rates_of
from mfabric_jax.schedule.iteration import FabricRates
from mfabric_jax.schedule.switching import check_lane
from mfabric_jax.simulation.calibration import CALIBRATED, Calibrated
from mfabric_jax.simulation.replicas import replicas_of
from mfabric_jax.study.fields import check_choices
from mfabric_jax.study.settings import (
    OF_SERVER,
    CircuitSettings,
    ComputeSettings,
    ModelName,
    PlacementSettings,
    RunSettings,
    SetUp,
    TimingSettings,
    TrafficSettings,
)
from mfabric_jax.traffic.dispatch import PER_SERVER
from mfabric_jax.traffic.placement import Room
from mfabric_jax.workload import Workload, block_seconds
from mfabric_jax.workload.catalog import check_models
from mfabric_jax.workload.compute import BlockSeconds

MEASUREMENT = ("measured_iteration_s", "measured_on", "measured_gbps", "measured_nic_use")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assumptions(
    RunSettings,
    TimingSettings,
    ComputeSettings,
    TrafficSettings,
    PlacementSettings,
    CircuitSettings,
    FabricSettings,
    SetUp,
):
    """Everything that an iteration depends on but its model, its fabric and the bandwidth of NICs.

    Defaults are those of preset "paper"; `presets.PRESETS` has others. "static" and TopoOpt's circuits are chosen once,
    for the mean traffic of the run.
    """

    def __post_init__(self):
        check_choices(self)
        self.check_fabric()
        self.check_circuits()
        self.check_compute()
        self.check_traffic()
        self.check_placement(self.redundant_experts)
        policies.suited(self.policy, rule=self.rule, routing=self.routing)
        if self.first == "pays" and self.recompute == "block":
            raise InputError("first 'pays' does not foresee all-to-alls computed again; recompute must not be 'block'.")
        if self.combine_start == "rank" and (self.overlap_parts > 1 or self.recompute == "block"):
            has = f"overlap_parts {self.overlap_parts}" if self.overlap_parts > 1 else "recompute 'block'"
            raise InputError(f"combine_start 'rank' does not foresee {has}; it must be 'barrier' there.")
        whole("overlap_parts", self.overlap_parts)
        if not 0 <= not_negative("comm_cores", self.comm_cores) < 1:
            raise InputError(f"comm_cores must be a part below 1 of a GPU's cores, got {self.comm_cores!r}.")
        whole("seed", self.seed, at_least=0)
        self.price_list()

    def check_replicas(self, circuits_for: Sequence[str]) -> None:
        """`InputError` for circuits that would be planned once for the different traffic of several replicas."""
        if "run" in circuits_for and self.replicas != 1:
            raise InputError(f"circuits_for 'run' plans for one replica; replicas must be 1, got {self.replicas}.")

    def check_one_replica(self, of: str) -> None:
        """`InputError` for several replicas where one is shown."""
        if self.replicas != 1:
            raise InputError(f"{of} of one replica; replicas must be 1, got {self.replicas}.")

    @property
    def calibrated(self) -> dict[str, Calibrated]:
        """The calibration under the preset that these assumptions are nearest to."""
        if (self.flows, self.matrices) == ("single", "one"):
            return CALIBRATED["released"]
        return CALIBRATED["today" if self.expert_load == "received" else "paper"]

    def achieved(self, job: Workload) -> float:
        """Achieved over peak FLOP/s of the GPU for a model."""
        if self.rates_from == "calibrated" and job.known_as in self.calibrated:
            return self.calibrated[job.known_as].efficiency
        if self.measured_iteration_s is None:
            return self.usual_efficiency
        from mfabric_jax.simulation.measured import efficiency_of

        return efficiency_of(self.as_measured(job), self.measured_iteration_s)

    def as_measured(self, job: Workload) -> "Compare":
        """The iteration that was measured, as something to simulate."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(Assumptions)}
        shared |= dict.fromkeys(MEASUREMENT) | {"efficiency": 1.0}
        shared |= {field.name: None for field in dataclasses.fields(SetUp) if field.name not in OF_SERVER}  # in the job
        job = dataclasses.replace(job, gpus_per_server=self.server.gpus_per_server)
        at = {"nic_gbps": (self.measured_at,), "nic_use": (self.measured_nic_use or "own",)}
        return Compare(**shared, models=(job,), fabrics=(self.measured_fabric,), **at)

    @property
    def measured_fabric(self) -> str:
        """Where it was measured."""
        return self.measured_on or "fat-tree"

    @property
    def measured_at(self) -> float:
        """Gbps of the iteration that was measured."""
        first = np.atleast_1d(getattr(self, "nic_gbps", 400.0))[0]
        return float(first if self.measured_gbps is None else self.measured_gbps)

    def check_measured(self, models: Sequence[ModelName]) -> None:
        """`InputError` for a measurement of several models, or of an iteration that its own speed changes."""
        if self.measured_iteration_s is None:
            return
        if self.measured_nic_use is None:  # variants and cases keep what the run began with
            object.__setattr__(self, "measured_nic_use", str(np.atleast_1d(getattr(self, "nic_use", "own"))[0]))
        names("measured_nic_use", (self.measured_nic_use,), NIC_USES)
        on = fabric.get(self.measured_fabric)
        if getattr(self, "variants", "one") == "usual" and on.variants and on.reconfigures:
            raise InputError(f"measured_on {self.measured_on!r} has several variants here; say its policy and routing.")
        if len(models) > 1:
            raise InputError(f"measured_iteration_s is of one model a run, got models {', '.join(map(str, models))}.")
        if fabric.get(self.measured_fabric).reconfigures and self.first == "pays":
            raise InputError(
                f"measured_on {self.measured_on!r} needs first other than 'pays', which weighs computation."
            )
        self.as_measured(self.workload(models[0]))

    def room(self, job: Workload) -> Room:
        """The slots that a group's experts are placed in."""
        facts = job.architecture
        limited = job.node_limit == "model" and facts.expert_groups > 1
        groups = self.placement_groups or (facts.expert_groups if limited else facts.experts)
        room = Room(job.ep, job.ranks_per_server, job.expert_slots, groups)
        room.check(facts.experts)
        whole_groups = self.placement == "hierarchical" and groups == facts.expert_groups == room.servers
        if limited and self.placement != "contiguous" and not whole_groups:
            raise InputError(
                f"node_limit 'model' is of groups of neighbouring experts: placement must be contiguous, or"
                f" hierarchical with one group a server ({room.servers}), got {self.placement!r} with {groups}."
            )
        return room

    def block_seconds(self, job: Workload, efficiency: float | None = None) -> BlockSeconds:
        """Seconds of a block; `efficiency`: None: what is achieved."""
        achieved = self.achieved(job) if efficiency is None else efficiency
        return block_seconds(job, self.server, achieved, self.compute_precision)

    @functools.cached_property
    def parts(self) -> Parts:
        """The table of parts in use."""
        return Parts.read(self.prices, self.ocs)

    def price_list(self) -> Prices:
        """The prices of the network in use."""
        return self.parts.prices

    def nvlink_Bps(self, on: Fabric, nic_gbps: Any) -> Any:
        """What a GPU has inside its server or scale-up domain [bytes/s]; the bandwidth may be traced."""
        return on.nvlink_Bps(self.gpu_tbps, nic_gbps, self.own_nvlink_Bps)

    def rates(self, on: Fabric, group: EpGroup, nic_gbps: Any) -> FabricRates:
        """What the timeline needs of a fabric at a bandwidth."""
        at, used = on.at(group, nic_gbps, self.gpu_tbps), self.carried_by
        latency_s = used.path_s(on.path_links(self), self.link_delay_s, at.nic_Bps)
        rest = {"latency_s": latency_s, "nvlink_Bps": self.nvlink_Bps(on, nic_gbps)}
        rest["memory_Bps"] = self.server.memory_Bps or float("inf")
        if at.reconfigures:
            rest |= {"delay_s": at.delay_s + self.reactivation_s, "each_s": self.each_s}
        return rates_of(at, goodput=self.goodput * used.paced, acks=used.acks_back, **rest)

    @property
    def rules(self) -> Rules:
        """How an iteration runs."""
        return Rules(self.eps_waits, self.overlap_parts, dp_overlap=self.dp_overlap, comm_cores=self.comm_cores)

    @property
    def policy_name(self) -> str:
        """For rows and titles: a function goes by its own name."""
        return policies.name_of(self.policy)

    @property
    def own_policy(self) -> bool:
        """Whether the policy is a function of the user's own."""
        return policies.is_own(self.policy)

    def circuits_policy(self, mean=None) -> policies.Policy:
        """The policy with its settings; `mean` is the demand that "static" is for."""
        if self.policy == "static":
            return jax.tree_util.Partial(policies.static, mean=mean)
        policy = policies.suited(self.policy, rule=self.rule, routing=self.routing)
        settles = self.first == "pays" and self.policy in policies.SETTLE_TIES
        return policies.for_demand_alone(policy) if settles else policy

    def check_overlap(self, job: Workload, on: Fabric) -> None:
        """`InputError` for settings that do not go with passes that overlap, or need them."""
        if not job.overlap_passes:
            if self.comm_cores:
                raise InputError(f"comm_cores is of passes that overlap (overlap_passes), got {self.comm_cores!r}.")
            return
        for field, only in (("overlap_parts", 1), ("combine_start", "barrier")):
            if (value := getattr(self, field)) != only:
                raise InputError(f"{field} must be {only!r} where passes overlap, got {value!r}.")
        for span in np.atleast_1d(getattr(self, "circuits_for", "all-to-all")) if on.reconfigures else ():
            check_lane(self.first, str(span), partial=self.partial)

    def groups(self, model: ModelName, name: str, nic_gbps: float, nic_uses: Sequence[str]) -> list[Any]:
        """What one expert-parallel group of the model sees of a fabric, checked."""
        on = fabric.get(name)
        job = self.workload(model, on.gpus_of(self.server))
        if job.optimizer_step == "counted" and self.server.memory_Bps is None:
            gpu = self.server.name
            raise InputError(f"optimizer_step 'counted' needs memory_gigabytes_per_s of the GPU {gpu}, not known.")
        if self.combine_start == "rank" and job.dispatch == PER_SERVER:
            raise InputError("dispatch 'per-server' adds up a server's answers: combine_start must be 'barrier'.")
        if self.dp_overlap and job.sharding in ("gradients", "parameters"):
            raise InputError(f"dp_overlap is of sharding none or optimizer, got {job.sharding!r}: it overlaps anyway.")
        replicas_of(self.replicas, job)
        self.check_overlap(job, on)
        self.room(job)
        form = on.form(self, job)
        nics = form.electrical_nics if on.reconfigures else form.nics or job.gpus_per_server
        if form.tiers == 2:
            check_two_tiers(job.servers * int(nics))
        groups = on.groups(self, job, nic_gbps, nic_uses)
        for group in groups:
            if group.reconfigures:
                rest = {"rule": self.rule, "routing": self.routing}
                policies.tried(self.policy, (group.servers,), int(group.optical_degree), **rest)
        return groups


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare(Assumptions):
    """What to compare, and under which assumptions: a row for each model, fabric and bandwidth."""

    models: tuple[ModelName, ...] = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1")
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3, or .toml
    or .json files (docs/models.md); each with degrees of its own, as in qwen-moe:ep=16:dp=16"""
    fabrics: tuple[str, ...] = ("fat-tree", "oversub-fat-tree", "rail-optimized", "mfabric")
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, torus"""
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)
    """Bandwidth of every NIC; prices are known from 100 to 800."""
    nic_use: tuple[str, ...] = ("own",)
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything; own,pooled shows both (mFabric pools)."""
    circuits_for: tuple[str, ...] = ("all-to-all",)
    """For how long circuits stay set, each with its own rows: all-to-all, block, stage, iteration, run."""
    variants: Literal["one", "usual"] = "one"
    """one: every fabric as these settings say; usual: fat-tree with own and with pooled NICs, mfabric as published
    (greedy, unsplit) and at its best (joint, relay, first pays); the command's default where none of these is given."""

    def __post_init__(self):
        self.check_spans(self.circuits_for)
        self.check_replicas(self.circuits_for)
        check_models("models", self.models)
        names("fabrics", self.fabrics, fabric.NAMES)
        names("nic_use", self.nic_use, NIC_USES)
        super().__post_init__()
        check_bandwidths(self.nic_gbps, self.price_list())
        for model in self.models:
            for name in self.fabrics:
                for nic_gbps in self.nic_gbps:
                    self.groups(model, name, nic_gbps, self.nic_use)
        self.check_measured(self.models)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case(Assumptions):
    """One model on one fabric at one bandwidth."""

    model: ModelName = "mixtral-8x7b"
    """mixtral-8x22b, mixtral-8x7b, llama-moe, qwen-moe, qwen-moe-ep16, deepseek-r1, deepseek-v3, or a .toml
    or .json file (docs/models.md); with degrees of its own, as in qwen-moe:ep=16:dp=16"""
    fabric: str = "mfabric"
    """fat-tree, oversub-fat-tree, rail-optimized, rail-only, topoopt, mfabric, nvl72, mfabric-cpo, torus"""
    nic_gbps: float = 400.0
    """Bandwidth of every NIC."""
    nic_use: str = "own"
    """own: each GPU uses its own NIC; pooled: a server's NICs carry anything."""
    circuits_for: str = "all-to-all"
    """For how long circuits stay set: all-to-all, block, stage, iteration, run."""

    def __post_init__(self):
        self.check_spans((self.circuits_for,))
        self.check_replicas((self.circuits_for,))
        check_models("model", (self.model,))
        for field, allowed in (("fabric", fabric.NAMES), ("nic_use", NIC_USES)):
            names(field, (getattr(self, field),), allowed)
        super().__post_init__()
        check_bandwidths((self.nic_gbps,), self.price_list())
        self.groups(self.model, self.fabric, self.nic_gbps, (self.nic_use,))
        self.check_measured((self.model,))

    def compared(self) -> Compare:
        """The comparison of this one case."""
        shared = {field.name: getattr(self, field.name) for field in dataclasses.fields(Assumptions)}
        axes: dict[str, Any] = {"models": (self.model,), "fabrics": (self.fabric,)}
        axes |= {"nic_gbps": (self.nic_gbps,), "nic_use": (self.nic_use,), "circuits_for": (self.circuits_for,)}
        return Compare(**shared, **axes)


def check_bandwidths(nic_gbps: Any, prices: Prices) -> None:
    """`InputError` for a bandwidth without a price, or named twice."""
    if isinstance(nic_gbps, str) or not isinstance(nic_gbps, Sequence):
        raise InputError(f"nic_gbps must be a list or tuple, got {nic_gbps!r}.")
    if not nic_gbps:
        raise InputError("nic_gbps must name at least one bandwidth.")
    if len(set(nic_gbps)) < len(nic_gbps):
        raise InputError(f"nic_gbps must not repeat a bandwidth, got {list(nic_gbps)}.")
    for gbps in nic_gbps:
        prices.at("nic", positive("nic_gbps", gbps))
