"""What the engine reads of one case: numbers and names, every value resolved, no default here.

`resolve` makes it from a `Case`; nothing else does.
"""

import dataclasses
import functools
from typing import Any

import jax

from mfabric_jax import policies
from mfabric_jax.case.paths import Case
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Prices
from mfabric_jax.fabric.design import EpGroup, Fabric
from mfabric_jax.fabric.parts_list import Ocs, Parts, get_ocs
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.resolving.calibration import CALIBRATED, Calibrated
from mfabric_jax.timing import Rules, rates_of
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.traffic import Knobs
from mfabric_jax.traffic.knobs import WORKLOADS
from mfabric_jax.traffic.placement import Room
from mfabric_jax.workload import Gpu, Workload, block_seconds
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.gpus import DEFAULT_GPU

HALF = 0.5  # of the peak, of a model without published times


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """GPUs, NICs and switches of one case, whatever runs there.

    - `case`: with every value of these resolved.   - `server`: the GPU that computes, and its server.
    - `own_nvlink_Bps`: what the NVSwitch of a server gives a GPU.   - `carried_by`: the transport.
    - `server_nics`: NICs of a server, where the case or the GPU says how many.
    Names and meaning of the others: `case.tree`.
    """

    case: Case
    server: Gpu
    own_nvlink_Bps: float
    carried_by: Transport
    goodput: float
    server_nics: int | None
    optical_degree: int
    electrical_nics: int
    tiers: int
    delay_s: float

    @property
    def pxn(self) -> bool:
        return self.case.network.rail_optimized.pxn

    @property
    def gpu_tbps(self) -> float:
        return self.case.network.gpu_tbps

    @property
    def link_delay_s(self) -> float:
        return self.case.network.link_delay_s

    @property
    def optical_switch(self) -> Ocs | None:
        """The one that is named."""
        ocs = self.case.circuits.ocs
        return None if ocs is None else get_ocs(ocs, self.case.network.prices)

    @property
    def wiring(self) -> str:
        return self.case.network.topoopt.wiring

    @property
    def policy(self) -> Any:
        return self.case.circuits.policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings(Hardware):
    """One case as the engine has it, every value resolved.

    - `measured`: the rate that was solved from a measured iteration.
    """

    measured: float | None = None

    @property
    def seed(self) -> int:
        return self.case.run.seed

    @property
    def dtype(self) -> str:
        return self.case.run.dtype

    @property
    def routing(self) -> str:
        return self.case.circuits.routing

    @property
    def turn(self) -> Any:
        """When circuits turn: an alternative of `circuits.turn`."""
        return self.case.circuits.turn

    @property
    def first(self) -> str:
        """What the first all-to-all of a block does, as `schedule.First` names it."""
        if self.turn.name == "predict" and self.turn.predictor == "random":
            return "random"
        return "block" if self.turn.name in ("on-demand", "always", "span") else self.turn.name

    @property
    def circuits_for(self) -> str:
        """How long circuits stay: for an all-to-all, or a span of `schedule.spans`."""
        if self.turn.name == "span":
            return self.turn.length
        return "block" if self.turn.name == "predict" and self.turn.both else "all-to-all"

    @property
    def plan_on(self) -> str:
        """What long spans are planned on: the span itself, or the past."""
        return "span" if self.turn.name == "span" and self.turn.chosen_on == "actual" else "past"

    @property
    def compute_precision(self) -> str:
        return self.case.job.precision.compute  # type: ignore[return-value]

    # ------------------------------------------------------------------------------------------ the rate of computation
    @property
    def rates_from(self) -> str:
        """Where the rate comes from: efficiency, measured or calibrated."""
        return self.case.compute.rate.name

    @property
    def calibrated(self) -> dict[str, Calibrated]:
        """Published times that rates are fitted to, under the assumptions of the case: rates of one GPU alone."""
        if self.rates_from != "calibrated" or (self.server.name, self.compute_precision) != (DEFAULT_GPU, "bf16"):
            return {}
        return CALIBRATED[self.case.compute.rate.value]  # type: ignore[union-attr]

    def achieved(self, job: Workload) -> float:
        """Achieved over peak FLOP/s of the GPU for a model."""
        rate = self.case.compute.rate
        if self.rates_from == "calibrated":
            known = self.calibrated.get(job.known_as)
            return HALF if known is None else known.efficiency
        if self.rates_from == "measured":
            if self.measured is None:
                raise InputError("compute.measured: the rate is solved when the case is simulated, not before.")
            return self.measured
        return rate.value  # type: ignore[union-attr,return-value]

    def block_seconds(self, job: Workload, efficiency: float | None = None) -> BlockSeconds:
        """Seconds of a block; `efficiency`: None: what is achieved."""
        achieved = self.achieved(job) if efficiency is None else efficiency
        return block_seconds(job, self.server, achieved, self.compute_precision)

    def room(self, job: Workload) -> Room:
        """The slots that a group's experts are placed in."""
        facts, rule = job.architecture, self.case.placement.rule
        limited = job.node_limit == "model" and facts.expert_groups > 1
        groups = getattr(rule, "groups", None) or (facts.expert_groups if limited else facts.experts)
        room = Room(job.ep, job.ranks_per_server, job.expert_slots, groups)
        room.check(facts.experts)
        whole_groups = rule.name == "hierarchical" and groups == facts.expert_groups == room.servers
        if limited and rule.name != "contiguous" and not whole_groups:
            raise InputError(
                f"job.per-server.node_limit 'model' is of groups of neighbouring experts: placement.rule must be "
                f"contiguous, or hierarchical with one group a server ({room.servers}), got {rule.name!r} with "
                f"{groups}."
            )
        return room

    # ---------------------------------------------------------------------------------------------------------- network
    @functools.cached_property
    def parts(self) -> Parts:
        """The table of parts in use."""
        return Parts.read(self.case.network.prices, self.case.circuits.ocs)

    def price_list(self) -> Prices:
        """The prices of the network in use."""
        return self.parts.prices

    def nvlink_Bps(self, on: Fabric, nic_gbps: Any) -> Any:
        """What a GPU has inside its server or scale-up domain [bytes/s]; the bandwidth may be traced."""
        return on.nvlink_Bps(self.gpu_tbps, nic_gbps, self.own_nvlink_Bps)

    def rates(self, on: Fabric, group: EpGroup, nic_gbps: Any) -> FabricRates:
        """What the timeline needs of a fabric at a bandwidth."""
        numbers = {"goodput": self.goodput, "link_delay_s": self.link_delay_s}
        numbers |= {"each_s": self.case.circuits.each_s, "reactivation_s": self.case.circuits.reactivation_s}
        numbers |= {"nvlink_Bps": self.nvlink_Bps(on, nic_gbps), "memory_Bps": self.server.memory_Bps or float("inf")}
        return rates_at(on.at(group, nic_gbps, self.gpu_tbps), self.carried_by, on.path_links(self), **numbers)

    @property
    def rules(self) -> Rules:
        """How an iteration runs."""
        case: Any = self.case
        overlap = case.job.overlap
        return Rules(
            case.circuits.packets_wait,
            overlap.value if overlap.name == "parts" else 1,
            dp_overlap=case.job.overlap_gradients,
            comm_cores=overlap.comm_cores if overlap.name == "passes" else 0.0,
        )

    # --------------------------------------------------------------------------------------------------------- circuits
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
        policy = policies.suited(self.policy, routing=self.routing)
        alone = self.first == "pays" or self.case.job.overlap.name == "passes"  # type: ignore[union-attr]
        return policies.for_demand_alone(policy) if alone and self.policy in policies.SETTLE_TIES else policy


def knobs_of(source: Any) -> Knobs:
    """Knobs of traffic: of a named workload, or of a file. `InputError` for one that is neither."""
    if source.value.endswith(".json"):
        return Knobs.read(source.value)
    return WORKLOADS[one_of("traffic.knobs", source.value, WORKLOADS)]


def rates_at(
    group: EpGroup,
    used: Transport,
    links: Any,
    *,
    goodput: Any,
    link_delay_s: Any,
    nvlink_Bps: Any,
    memory_Bps: Any,
    each_s: Any = 0.0,
    reactivation_s: Any = 0.0,
    decision_s: Any = 0.0,
) -> FabricRates:
    """What the timeline needs of a group at its bandwidth, whose transport is `used` and whose paths have so many
    `links`. All numbers may be traced."""
    rest = {"latency_s": used.path_s(links, link_delay_s, group.nic_Bps), "nvlink_Bps": nvlink_Bps}
    if group.reconfigures:
        rest |= {"delay_s": group.delay_s + reactivation_s, "each_s": each_s, "decision_s": decision_s}
    return rates_of(group, goodput=goodput * used.paced, acks=used.acks_back, memory_Bps=memory_Bps, **rest)
