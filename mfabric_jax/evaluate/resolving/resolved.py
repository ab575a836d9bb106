"""A case with every value resolved by `resolve`: the engine's input, without defaults.

Every model has one achieved FLOP/s rate. Each preset fits it to published iteration times of arXiv 2501.03905: of a
non-blocking fat-tree at 100, 200, 400 and 800 Gbps, as three ratios to the time at 800 Gbps.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from importlib import resources
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from mfabric_jax import fabric, units
from mfabric_jax.case.paths import Case, flat
from mfabric_jax.case.policies import BOUND, NO_SCHEDULE, name_of
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.parts_list import PartsTable
from mfabric_jax.fabric.site import ClusterShape, FabricSite
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.fabric.tree import DOWN, Tree
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.support.measured_errors import Calibration, StepBand, calibration, step_band
from mfabric_jax.support.notebooks import html_table
from mfabric_jax.traffic.knobs import WORKLOADS, Knobs
from mfabric_jax.traffic.placement import SlotLayout
from mfabric_jax.workload import Gpu, Workload, block_seconds
from mfabric_jax.workload.block_kernels import achieved_by_kernels, kernel_seconds
from mfabric_jax.workload.compute import BlockSeconds, scale_seconds
from mfabric_jax.workload.gpus import DEFAULT_GPU
from mfabric_jax.workload.kernels import IDEAL, BandwidthShares, shares_of
from mfabric_jax.workload.measured_kernels import by_size, copied_Bps, measured_kernels, with_nvls
from mfabric_jax.workload.training_code import FUSED, TrainingCode, unfused_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from mfabric_jax.circuit_schedules.carrying import Carried
    from mfabric_jax.fabric import Region
    from mfabric_jax.policies import Policy
    from mfabric_jax.timing import Rules
    from mfabric_jax.timing.scheduled import Planner

# Imported at first use: they import JAX, and settings must be readable without it.
planned, policies, timing = (
    LazyModule(f"mfabric_jax.{name}") for name in ("circuit_schedules.planned", "policies", "timing")
)
SCHEDULE = "schedule"  # the rule of circuits that change during an all-to-all
LONG = ("stage", "iteration", "run")  # spans whose circuits are known before a pass begins
BANDWIDTHS = (100.0, 200.0, 400.0, 800.0)
PUBLISHED: dict[str, tuple[float, ...]] = {
    "mixtral-8x22b": (1.374, 1.194, 1.082, 1.024),
    "mixtral-8x7b": (1.210, 1.079, 1.030, 1.000),
    "llama-moe": (3.932, 2.188, 1.346, 1.000),
    "qwen-moe": (5.094, 2.730, 1.563, 1.000),
}


class CalibrationFit(NamedTuple):
    """Fit of a model: `efficiency` over the default GPU's peak (may exceed 1), `compute_s`, and errors."""

    efficiency: float
    compute_s: float
    ratios: Sequence[float]
    residuals: Sequence[float]


@functools.cache
def calibration_fits(name: str) -> dict[str, CalibrationFit]:
    """Return the fits by model that `mfabric calibrate` made under a preset (calibrations/NAME.json)."""
    file = resources.files("mfabric_jax.evaluate.resolving") / "calibrations" / f"{name}.json"
    return {model: CalibrationFit(**fit) for model, fit in json.loads(file.read_text())["models"].items()}


ASSUMED_EFFICIENCY = 0.5  # achieved over peak FLOP/s of a model without published times


def own_settings(case: Case, fabric: str) -> Any:
    """Return the settings of one fabric; None if it has none."""
    return getattr(case.network, fabric.replace("-", "_"), None)


def _at(path: str) -> property:
    """A property that reads the case at a path of its tree."""
    return property(attrgetter(f"case.{path}"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hardware:
    """GPUs, NICs and switches of one resolved case (fields as in `case`); `server`: GPU and server.

    - `tiers_by_degree`: tiers for 0, 1, ... optical NICs of a server; empty if that number cannot vary.
    - `shares_network`: these servers are part of a cluster whose other servers fill the switches.
    """

    case: Case
    server: Gpu
    carried_by: Transport
    goodput: float
    server_nics: int | None
    optical_degree: int
    electrical_nics: int
    tiers: int
    tiers_by_degree: tuple[int, ...] = dataclasses.field(compare=False)
    delay_s: float
    shares_network: bool = False

    policy = _at("circuits.policy")  # a name, or a function
    routing = _at("circuits.routing")
    gpu = property(attrgetter("server"))
    optical_switch = property(attrgetter("parts.ocs"))
    graph = _at("network.graph")
    gpu_tbps = _at("network.gpu_tbps")
    nic_gbps = _at("network.nic_gbps")
    oversubscription = _at("network.oversubscription")
    pxn = _at("network.rail_optimized.pxn")
    radix = _at("network.radix")
    ranks_on = _at("network.on_graph.ranks")
    relay = _at("network.on_graph.relay")

    @property
    def fabric(self) -> Fabric:
        return fabric.get(self.case.network.fabric)

    @property
    def leaf_servers(self) -> int | None:
        stated = self.case.network.leaf_servers
        return None if stated == "most" else stated

    def own(self, fabric: str) -> Any:
        """Return the settings of one fabric; None if it has none."""
        return own_settings(self.case, fabric)

    def site_of(self, shape: ClusterShape) -> FabricSite:
        """Return the site for which the fabric is laid out: servers of a shape with this hardware."""
        in_domains = self.fabric.domain_gpus is not None  # domains have a NIC for each GPU
        return FabricSite(
            network=self.case.network,
            servers=shape.servers,
            gpus_per_server=shape.gpus_per_server,
            servers_per_region=shape.servers_per_region,
            pp=shape.pp,
            nics=shape.gpus_per_server if in_domains else self.server_nics or self.fabric.about.nics,
            optical_degree=self.optical_degree,
            electrical_nics=self.electrical_nics,
            tiers=self.tiers,
            laid_out=self.leaf_servers is None and not self.shares_network,
            delay_s=self.delay_s,
            ocs=self.parts.ocs,
            job=shape,
        )

    @functools.cached_property
    def parts(self) -> PartsTable:
        """The prices and watts of parts. Links of a domain cost nothing more if they come with the rack of the GPUs."""
        listed = PartsTable.read(self.case.network.prices, self.case.circuits.ocs)
        domains, rack = self.fabric.about.domains, listed.server_of(self.server.name)
        if domains is None or domains.price[1] != rack.includes or self.fabric.physical_gpus(self.server) != rack.gpus:
            return listed
        return listed.with_paid(domains.price[0])

    def planner(self, region: Region) -> Planner:
        """Return the function that times a region's all-to-alls under the scheduler of the case.

        Raise InputError if the scheduler does not work there.
        """
        return planned.planner(self.case.circuits.schedule, region, **self._switches)

    def carrier(self, region: Region) -> Callable[[np.ndarray, bool], Carried]:
        """Return a function that gives the part of a region's all-to-all that each configuration of a schedule
        carries."""
        return planned.carrier(self.case.circuits.schedule, region, **self._switches)

    @property
    def _switches(self) -> dict[str, Any]:
        circuits = self.case.circuits
        return {"switches": circuits.switches, "all_stop": circuits.all_stop, "directed": circuits.directed}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Resolved(Hardware):
    """One case with every value resolved.

    - `case`: the case without open values; `original`: the case as stated.
    - `job`: the model on its GPUs; `why`: reasons for filled values, by path; `recipe`: source of the set-up.
    - `measured`: the rate solved from a measured iteration.
    - `searched`: what a search of set-ups found, a `setups.SearchResult`; None: there was none.
    """

    job: Workload
    why: Mapping[str, str] = dataclasses.field(hash=False, compare=False)
    original: Case = dataclasses.field(hash=False, compare=False)
    measured: float | None = None
    recipe: str = "none"
    searched: Any = dataclasses.field(default=None, hash=False, compare=False)

    @functools.cached_property
    def site(self) -> FabricSite:
        return self.site_of(self.job)

    def is_given(self, path: str) -> bool:
        """Whether the case, a recipe or the model's file states the value at a path."""
        return self.why.get(path, "recipe").startswith(("recipe", "file"))

    def __repr__(self) -> str:
        filled = {path: value for path, value in flat(self.case).items() if path in self.why}
        return f"<Resolved: {self.job.model} on {self.job.gpus:,} GPUs, {self.fabric.name}; filled {filled!r}>"

    def _repr_html_(self) -> str:
        values = flat(self.case)
        rows = [{"setting": path, "value": str(values.get(path)), "why": why} for path, why in self.why.items()]
        return html_table(rows, f"{self.job.model} on {self.job.gpus:,} GPUs, {self.fabric.name}: filled values")

    @property
    def is_scheduled(self) -> bool:
        """Whether circuits change during an all-to-all."""
        return self.case.circuits.schedule != NO_SCHEDULE

    @property
    def first(self) -> str:
        """Name of the rule in `timing.First`, or `SCHEDULE`."""
        reconfigure: Any = self.case.circuits.reconfigure
        if self.is_scheduled:
            return SCHEDULE
        if reconfigure.name == "predict" and reconfigure.predictor == "random":
            return "random"
        return "block" if reconfigure.name in ("on-demand", "always", "span") else reconfigure.name

    @property
    def horizon(self) -> float | None:
        """Blocks against which the rule "pays" weighs a reconfiguration; None: from how circuits age."""
        return getattr(self.case.circuits.reconfigure, "horizon", None)

    @property
    def circuits_for(self) -> str:
        """Name of the span in `timing.CircuitSpan`."""
        reconfigure: Any = self.case.circuits.reconfigure
        if reconfigure.name == "span":
            return reconfigure.length
        if reconfigure.name == BOUND:
            return "none"
        return "block" if reconfigure.name == "predict" and reconfigure.both else "all-to-all"

    @property
    def plan_on(self) -> str:
        """Selections for which long spans are planned: those of the span itself ("span"), or of the past ("past")."""
        reconfigure: Any = self.case.circuits.reconfigure
        return "span" if reconfigure.name == "span" and reconfigure.chosen_on == "actual" else "past"

    @property
    def past(self) -> bool:
        """Whether one more iteration is drawn before the others, to plan long spans for it."""
        return self.plan_on == "past" and self.circuits_for in LONG

    @property
    def calibrations(self) -> dict[str, CalibrationFit]:
        """Fitted rates by model, under the assumptions of the case."""
        rate: Any = self.case.compute.rate
        of_gpu = self.server.name, self.case.job.precision.compute
        return calibration_fits(rate.value) if rate.name == "calibrated" and of_gpu == (DEFAULT_GPU, "bf16") else {}

    def efficiency_of(self, job: Workload) -> float:
        rate: Any = self.case.compute.rate
        if rate.name == "kernels":
            return achieved_by_kernels(job, self.server, self._format, self.of_kernels(job))
        if rate.name == "calibrated":
            known = self.calibrations.get(job.known_as)
            return ASSUMED_EFFICIENCY if known is None else known.efficiency
        if rate.name == "measured":
            if self.measured is None:
                raise InputError("compute.measured: the rate is solved when the case is simulated, not before.")
            return self.measured
        return rate.value

    def block_seconds(self, job: Workload, efficiency: float | None = None) -> BlockSeconds:
        """Return the seconds of a block; `efficiency` None: `achieved`."""
        if self.case.compute.rate.name == "kernels":
            seconds = self.of_kernels(job)
            return seconds if efficiency is None else scale_seconds(seconds, self.efficiency_of(job) / efficiency)
        achieved = self.efficiency_of(job) if efficiency is None else efficiency
        return block_seconds(job, self.server, achieved, self._format)

    @property
    def _format(self) -> str:
        return self.case.job.precision.compute  # type: ignore[return-value]

    def of_kernels(self, job: Workload, how: str = "usual") -> BlockSeconds:
        """Return the seconds of a block by measured kernels; `how`: one of `kernels.HOW`."""
        rate: Any = self.case.compute.rate
        seconds = kernel_seconds(job, self.server, self._format, how, path=rate.table, code=self.code)
        return seconds if self.calibration is None else scale_seconds(seconds, self.calibration.compute)

    @property
    def calibration(self) -> Calibration | None:
        return calibration() if self.case.compute.calibration == "measured" else None

    @property
    def step_band(self) -> StepBand | None:
        """The band of a step that kernels as they were measured predict; None under other rates."""
        if self.case.compute.rate.name != "kernels":
            return None
        return step_band() if self.calibration is None else StepBand(self.calibration.low, self.calibration.high)

    @property
    def code(self) -> TrainingCode:
        """The training program. Raise `InputError` if it is stated for another source of the rate than kernels."""
        own: Any = self.case.compute.code
        if self.case.compute.rate.name != "kernels":
            if own != type(own)():
                raise InputError("compute.code applies to compute.rate kernels alone; leave it out.")
            return FUSED
        return TrainingCode(
            *(float(units.us(own.host_us)), own.graphs, own.experts, float(units.us(own.loop_us))),
            *(own.weights_rate, unfused_parts(own.unfused), float(units.ms(own.step_ms))),
        )

    def shares(self, job: Workload, how: str = "usual") -> BandwidthShares:
        """Return achieved over nominal bandwidth of communication."""
        case: Any = self.case
        if case.compute.rate.name != "kernels":
            return with_nvls(IDEAL, job)
        how_so = how, case.compute.rate.table
        every = shares_of(job.servers_per_region, case.job.dispatcher, *how_so)
        shares = by_size(every, job, self.server, case.job.dispatcher, *how_so)
        return shares if self.calibration is None else shares.slow_down(self.calibration.communication)

    @property
    def memory_Bps(self) -> float:
        """Bandwidth of a GPU's memory in the optimizer step; infinite if unknown."""
        rate: Any = self.case.compute.rate
        if rate.name != "kernels":
            return self.server.memory_Bps or math.inf
        copied = copied_Bps(measured_kernels(self.server, path=rate.table))
        return copied if self.calibration is None else copied / self.calibration.compute

    @property
    def fixed_s(self) -> float:
        """Seconds of a step that nothing hides."""
        return self.code.step_s if self.calibration is None else self.code.step_s * self.calibration.compute

    def layout(self, job: Workload) -> SlotLayout:
        """Return `room_of` for the case."""
        return room_of(self.case, job)

    @property
    def rules(self) -> Rules:
        case: Any = self.case
        overlap = case.job.overlap
        return timing.Rules(
            case.circuits.packets_wait,
            overlap.value if overlap.name == "parts" else 1,
            dp_overlap=case.job.overlap_gradients,
            comm_cores=overlap.comm_cores if overlap.name == "passes" else 0.0,
        )

    @property
    def policy_name(self) -> str:
        return name_of(self.case.circuits.policy)

    def circuits_policy(self, mean: Any = None) -> Policy:
        """Return the policy with its settings and memory; `mean`: demand for "static"."""
        case: Any = self.case
        name = case.circuits.policy
        if name == "static":
            return policies.static_for(mean)
        policy = policies.get_suitable(name, routing=case.circuits.routing, names=self.case.network.acos.topologies)
        alone = self.first == "pays" or case.job.overlap.name == "passes"
        if alone and policies.may_use_previous(name):
            return policies.for_demand_alone(policy)
        return policies.with_memory(policy)


def knobs_of(source: Any) -> Knobs:
    """Return the knobs of a named workload or of a file; raise InputError for anything else."""
    if source.value.endswith(".json"):
        return Knobs.read(source.value)
    return WORKLOADS[one_of("traffic.knobs", source.value, WORKLOADS)]


def room_of(case: Case, job: Workload) -> SlotLayout:
    """Return the slots of a group; raise InputError for a placement that the gate does not allow."""
    facts, rule = job.architecture, case.placement.rule
    limited = job.node_limit == "model" and facts.expert_groups > 1
    groups = getattr(rule, "groups", None) or (facts.expert_groups if limited else facts.experts)
    layout = SlotLayout(job.ep, job.ranks_per_server, job.expert_slots, groups)
    layout.check(facts.experts)
    whole_groups = rule.name == "hierarchical" and groups == facts.expert_groups == layout.servers
    if limited and rule.name != "contiguous" and not whole_groups:
        raise InputError(
            f"placement.rule must be contiguous, or hierarchical with one group per server ({layout.servers}), because "
            f"the groups of job.per-server.node_limit 'model' are neighbouring experts, got {rule.name!r} "
            f"with {groups}."
        )
    return layout


LEAST_RADIX = 4  # half of its ports go up


class TreeRoom(NamedTuple):
    """How many NICs one switch and two tiers of a fabric connect, and over how many separate trees its NICs divide.

    - `one_switch`: 0 if an oversubscribed tree needs uplinks, None without a tree.
    - `one_edge`: NICs below one edge switch of two tiers, which needs no uplinks if there are no others.
    """

    one_switch: int | None
    two_tiers: int
    trees: int
    one_edge: int = 0

    def tiers_for(self, nics: float) -> int:
        """Return the fewest tiers that hold all NICs of the trees together."""
        each = -(-nics // self.trees)
        return 1 if each <= (self.one_switch or 0) else 2 if each <= self.two_tiers else 3

    def paid_tiers_for(self, nics: float) -> int:
        """Return the fewest tiers to pay for: as `tiers_for`, but 1 if one edge switch holds all NICs of a tree."""
        return 1 if -(-nics // self.trees) <= self.one_edge else self.tiers_for(nics)


def tree_room(network: Any, on: Fabric) -> TreeRoom:
    """Return the room of a fabric's trees under the `network` of a case, whose NICs are filled."""
    at_edge = network.oversubscribed_at == "edge"
    two = Tree(1, network.radix, tiers=2).most_hosts * at_edge
    site = FabricSite(network=network, nics=network.nics).with_network(radix=max(network.radix, LEAST_RADIX))
    tree = on.links(site).tree
    if tree is None:
        return TreeRoom(None, two, 1)
    full = (network.oversubscription or tree.oversubscription) == 1
    alone = tree.edge_ports[DOWN] * (at_edge and site.leaf_servers is None)
    return TreeRoom(tree.radix * (full and at_edge), two, tree.parts, alone)
