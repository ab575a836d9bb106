"""The configuration of `compare`, checked before any compute."""

import dataclasses
from typing import Any

import jax

from mfabric_jax import fabric, policies, units, workload
from mfabric_jax.checks import InputError, listed, names, not_negative, one_of, positive, whole
from mfabric_jax.fabric import DOMAIN_GPUS, SCALE_UP, Electrical, Flat, Prices, Region
from mfabric_jax.routing import ROUTINGS
from mfabric_jax.schedule import FIRST, NVSWITCH_GIGABYTES_PER_S, Rates
from mfabric_jax.study.calibration import CALIBRATED
from mfabric_jax.traffic import WORKLOADS, Knobs
from mfabric_jax.traffic.predictor import REGISTRY as PREDICTORS
from mfabric_jax.workload import DEFAULT_GPU, Workload, get_gpu

DTYPES = ("float32", "float64")
TRAFFIC = ("measured", "generated")
SERVER_GPUS = 8
DELAY_S = units.ms(25)
DEGREES = ("dp", "tp", "pp", "ep", "gpus", "micro_batch", "micro_batches", "sequence")
OF_JOB = (*DEGREES, "schedule", "chunks", "recompute")
FLOWS = ("spray", "single")
MATRICES = ("each", "block", "one")
COMPUTE = ("calibrated", "achieved")


@dataclasses.dataclass(frozen=True)
class Compare:
    """What to compare, and under which assumptions.

    Defaults are those of preset "paper"; `presets.PRESETS` has others.

    - `models`, `fabrics`, `nic_gbps`: one row for each combination; `nic_use` (own, pooled) adds rows for the
      electrical fabrics; mFabric always pools its NICs.
    - `nics`: of a server on everything but mfabric, nvl72 and mfabric-cpo; None: one for each GPU (own needs that).
    - `pxn`: on rail-optimized, data crosses the NVSwitch to the rail of its destination first (rail-only always does).
    - `tiers`: of the switch trees that are paid for; `prices`: a file of the user's own.
    - `policy`, `rule`, `routing`: how mFabric chooses circuits (`rule`: greedy's) and uses them; `policy` is a name or
      any function of the signature. "static" and TopoOpt's circuits are chosen once, for the mean traffic of the run.
    - `optical_degree`, `electrical_nics`, `delay_s`: of mFabric; `ocs`: a switch from the table (`fabric.OCS`), whose
      ports bound the region and whose slowest reconfiguration is the default of `delay_s` (without one 25 ms).
    - `gpu_tbps`: nvl72 and mfabric-cpo: what a GPU has in all; beside one Ethernet NIC the rest is NVLink, or half
      NVLink and half optical ports of the NIC's bandwidth.
    - `first`: which circuits the first all-to-all of a forward block finds (`schedule.FIRST`); `predictor`: of demand,
      for "predict" (`traffic.PREDICTORS`; None: the most accurate).
    - `eps_waits`: traffic on packet switches waits for a reconfiguration too, not only that on circuits.
    - `reactivation_s`: NICs come back so much after the switch has turned.
    - `flows`: "spray", or "single": each GPU-to-GPU flow takes one random shortest path (topoopt sprays).
    - `matrices`: "each" block and micro-batch has its own traffic; or "block": micro-batches and iterations repeat the
      first; or "one" for everything.
    - `trace`, `records`: recorded routing instead of generated; first and last record used.
    - `traffic`: "measured" (expert shares of trained models; `drift` between iterations), "generated" (`skew`,
      `drift`), a named workload (`traffic.WORKLOADS`), or a .json file of knobs (`mfabric traces fit`).
    - `goodput`: part of the NIC bandwidth that is payload; `link_delay_s`: propagation of a link (a path between
      servers has two for every tier of a tree, also on mFabric, whose packet switches are the longer way; two on rails
      with pxn, one on TopoOpt).
    - `drawn`: different micro-batches of an iteration; more are read cyclically (a trace brings its own).
    - `iterations`: how many are simulated and averaged.
    - `compute`: "calibrated": the rate that published fat-tree times imply, where there are any (`study.CALIBRATED`);
      "achieved": `gpu` at `efficiency` of its peak. None: calibrated, unless gpu or efficiency is given.
    - `overlap_parts`: of dispatch, experts and combine (1: nothing overlaps); `dp_overlap`: gradients are all-reduced
      beside the backward pass.
    - `dp` ... `recompute`: None keeps the model's own.
    """

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1")
    fabrics: tuple[str, ...] = ("fat-tree", "oversub-fat-tree", "rail-optimized", "mfabric")
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)
    nic_use: tuple[str, ...] = ("own",)
    nics: int | None = None
    pxn: bool = False
    tiers: int = 3
    prices: str | None = None
    policy: str | policies.Policy = "greedy"
    rule: str = "printed"
    routing: str = "unsplit"
    optical_degree: int = 6
    electrical_nics: int = 2
    ocs: str | None = None
    delay_s: float = None  # type: ignore[assignment]
    gpu_tbps: float = 8.0
    goodput: float = 1.0
    link_delay_s: float = 0.0
    first: str = "block"
    predictor: str | None = None
    eps_waits: bool = False
    reactivation_s: float = 0.0
    flows: str = "spray"
    matrices: str = "each"
    overlap_parts: int = 1
    dp_overlap: bool = False
    traffic: str = "measured"
    skew: float = 0.0
    drift: float = 0.05
    trace: str | None = None
    records: tuple[int, int] | None = None
    drawn: int = 4
    iterations: int = 1
    compute: str = None  # type: ignore[assignment]
    gpu: str = DEFAULT_GPU
    efficiency: float = 0.5
    nvswitch_gigabytes_per_s: float = NVSWITCH_GIGABYTES_PER_S
    dp: int | None = None
    tp: int | None = None
    pp: int | None = None
    ep: int | None = None
    gpus: int | None = None
    micro_batch: int | None = None
    micro_batches: int | None = None
    sequence: int | None = None
    schedule: str | None = None
    chunks: int | None = None
    recompute: str | None = None
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self):
        listed("nic_gbps", self.nic_gbps)
        for field, allowed in (("models", workload.NAMES), ("fabrics", fabric.NAMES), ("nic_use", fabric.NIC_USES)):
            names(field, getattr(self, field), allowed)
        self._resolve_delay()
        self._resolve_compute()
        if not self.nic_gbps:
            raise InputError("nic_gbps must name at least one bandwidth.")
        if len(set(self.nic_gbps)) < len(self.nic_gbps):
            raise InputError(f"nic_gbps must not repeat a bandwidth, got {list(self.nic_gbps)}.")
        for gbps in self.nic_gbps:
            self.price_list().at("nic", positive("nic_gbps", gbps))
        if self.tiers not in (2, 3):
            raise InputError(f"tiers must be 2 or 3, got {self.tiers!r}.")
        for field in ("pxn", "eps_waits", "dp_overlap"):
            if not isinstance(getattr(self, field), bool):
                raise InputError(f"{field} must be true or false, got {getattr(self, field)!r}.")
        positive("gpu_tbps", self.gpu_tbps)
        one_of("rule", self.rule, policies.RULES)
        one_of("routing", self.routing, ROUTINGS)
        policies.suited(self.policy, rule=self.rule, routing=self.routing)
        one_of("first", self.first, FIRST)
        one_of("flows", self.flows, FLOWS)
        one_of("matrices", self.matrices, MATRICES)
        if self.first == "pays" and self.recompute == "block":
            raise InputError("first 'pays' does not foresee all-to-alls computed again; recompute must not be 'block'.")
        if self.predictor is not None:
            one_of("predictor", self.predictor, PREDICTORS)
        if self.flows == "single" and self.routing != "unsplit":
            raise InputError(f"flows 'single' needs routing unsplit, got {self.routing!r}.")
        self.knobs()
        one_of("dtype", self.dtype, DTYPES)
        whole("optical_degree", self.optical_degree, at_least=0)
        whole("electrical_nics", self.electrical_nics, at_least=0)
        whole("iterations", self.iterations)
        whole("drawn", self.drawn)
        whole("overlap_parts", self.overlap_parts)
        if self.nics is not None:
            whole("nics", self.nics)
        whole("seed", self.seed, at_least=0)
        if not 0 < self.goodput <= 1:
            raise InputError(f"goodput must be above 0 and at most 1, got {self.goodput}.")
        for field in ("delay_s", "reactivation_s", "link_delay_s", "skew", "drift"):
            not_negative(field, getattr(self, field))
        for field in ("efficiency", "nvswitch_gigabytes_per_s"):
            positive(field, getattr(self, field))
        if self.electrical_nics == 0:
            raise InputError("electrical_nics must be at least 1: gradients and pipeline transfers use them, got 0.")
        self._check_traffic()
        get_gpu(self.gpu)
        if self.ocs is not None:
            fabric.get_ocs(self.ocs)
        if set(self.fabrics) & set(SCALE_UP) and units.tbps(self.gpu_tbps) <= units.gbps(max(self.nic_gbps)):
            most = max(self.nic_gbps)
            raise InputError(f"gpu_tbps {self.gpu_tbps:g} leaves no NVLink beside a NIC of nic_gbps {most:g} to a GPU.")
        for name in self.models:
            for job, one in self.variants(name):
                if isinstance(one, Electrical):
                    one.check_gpus(job.gpus_per_server)
                if isinstance(one, Region) and self.ocs is not None:
                    fabric.get_ocs(self.ocs).check_region(one.servers, int(one.optical_degree))
                if isinstance(one, Region):
                    settings = {"rule": self.rule, "routing": self.routing}
                    policies.tried(self.policy, (one.servers,), int(one.optical_degree), **settings)

    def _check_traffic(self) -> None:
        """`InputError` for settings of traffic that would not be used."""
        if self.records is not None and self.trace is None:
            raise InputError("records chooses from a trace; name one with trace.")
        if self.trace is not None and (self.traffic, self.skew) != ("measured", 0):
            named = "traffic" if self.traffic != "measured" else "skew"
            raise InputError(f"{named} {getattr(self, named)!r} is not used beside a trace; leave out one of them.")
        if self.skew and self.traffic != "generated":
            raise InputError(f"skew is of traffic 'generated' alone, got traffic {self.traffic!r}.")

    def knobs(self) -> Knobs | None:
        """Of the traffic, where it is a named workload or a file of knobs."""
        if self.traffic.endswith(".json"):
            return Knobs.read(self.traffic)
        one_of("traffic", self.traffic, (*TRAFFIC, *WORKLOADS))
        return WORKLOADS.get(self.traffic)

    def _resolve_compute(self) -> None:
        """`compute` where it was left open."""
        given = (self.gpu, self.efficiency) != (DEFAULT_GPU, 0.5)
        if self.compute is None:
            object.__setattr__(self, "compute", "achieved" if given else "calibrated")
        elif one_of("compute", self.compute, COMPUTE) == "calibrated" and given:
            raise InputError("compute 'calibrated' takes no gpu or efficiency; with these it must be 'achieved'.")

    def achieved(self, model: str) -> float:
        """Achieved over peak FLOP/s of `gpu` for a model."""
        if self.compute == "calibrated" and model in CALIBRATED:
            return CALIBRATED[model].efficiency
        return self.efficiency

    def _resolve_delay(self) -> None:
        """`delay_s` where it was left open."""
        if self.delay_s is not None:
            return
        delay_s = DELAY_S
        if self.ocs is not None:
            switch = fabric.get_ocs(self.ocs)
            if switch.delay_s is None:
                raise InputError(f"ocs {self.ocs!r} has no reported delay; give delay_s.")
            delay_s = switch.delay_s[1]
        object.__setattr__(self, "delay_s", delay_s)

    def price_list(self) -> Prices:
        """The prices in use."""
        return Prices() if self.prices is None else Prices.read(self.prices)

    def workload(self, name: str, gpus_per_server: int = SERVER_GPUS) -> Workload:
        """A model with this configuration's overrides."""
        given: dict[str, Any] = {field: getattr(self, field) for field in OF_JOB if getattr(self, field) is not None}
        return workload.get(name, gpus_per_server=gpus_per_server, **given)

    def variants(self, model: str) -> list[tuple[Workload, Electrical | Region | Flat]]:
        """The fabrics to compare for one model, with the job as it sits on them; rows at all `bandwidths` of each."""
        found = []
        for name in self.fabrics:
            job = self.workload(model, DOMAIN_GPUS if name in SCALE_UP else SERVER_GPUS)
            found += [(job, one) for one in self._variants(name, job)]
        return found

    def _variants(self, name: str, job: Workload) -> list[Electrical | Region | Flat]:
        gbps, gpus = self.nic_gbps[0], job.gpus_per_server
        if name == "mfabric":
            nics = float(self.electrical_nics)
            return [Region(job.servers_per_region, gbps, self.optical_degree, nics, self.delay_s)]
        if name == "mfabric-cpo":
            circuits = [ports * gpus for ports in dict.fromkeys(map(self.optical_ports, self.nic_gbps))]
            return [Region(job.servers_per_region, gbps, n, float(gpus), self.delay_s, name=name) for n in circuits]
        nics = gpus if self.nics is None or name == "nvl72" else self.nics
        if name == "topoopt":
            return [Flat(job.servers_per_region, gbps, nics, min(2, job.pp - 1))]
        over = fabric.ELECTRICAL[name]
        pxn = name == "rail-only" or (self.pxn and name == "rail-optimized")
        uses = ("own",) if pxn or name == "nvl72" else self.nic_use
        return [Electrical(name, gbps, nics, over, use, pxn) for use in uses]

    def bandwidths(self, one: Electrical | Region | Flat) -> tuple[float, ...]:
        """Those at which a fabric is what it is: with co-packaged optics a GPU has fewer ports of a higher one."""
        if not isinstance(one, Region) or one.name != "mfabric-cpo":
            return self.nic_gbps
        return tuple(gbps for gbps in self.nic_gbps if self.optical_ports(gbps) * DOMAIN_GPUS == one.optical_degree)

    def rates(self, one: Electrical | Region | Flat, gbps: float) -> Rates:
        """What the timeline needs of a fabric at a bandwidth."""
        at = dataclasses.replace(one, nic_gbps=gbps)
        nic, eps, send = (bytes_per_s * self.goodput for bytes_per_s in (at.nic_Bps, at.eps_Bps, at.send_Bps))
        delay_s = at.delay_s + self.reactivation_s if isinstance(one, Region) else at.delay_s
        return Rates(nic, eps, send, delay_s, self.links(one) * self.link_delay_s)

    def links(self, one: Electrical | Region | Flat) -> int:
        """Of a path between servers."""
        return 1 if isinstance(one, Flat) else 2 if getattr(one, "pxn", False) else 2 * self.tiers

    def optical_ports(self, gbps: float) -> int:
        """Optical ports of a GPU with co-packaged optics: those that fit half of what is not Ethernet."""
        ports = int((units.to_gbps(units.tbps(self.gpu_tbps)) - gbps) // (2 * gbps))
        if ports < 1:
            raise InputError(f"gpu_tbps {self.gpu_tbps:g} leaves no optical port of nic_gbps {gbps:g} to a GPU.")
        return ports

    def nvswitch_Bps(self, name: str, gbps: float) -> float:
        """What a GPU has inside its server or scale-up domain [bytes/s]."""
        if name not in SCALE_UP:
            return units.gigabytes_per_s(self.nvswitch_gigabytes_per_s)
        beside = units.tbps(self.gpu_tbps) - units.gbps(gbps)
        return beside if name == "nvl72" else beside / 2

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
        return policies.suited(self.policy, rule=self.rule, routing=self.routing)
