"""The configuration of `compare`, checked before any compute."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from mfabric_jax import fabric, policies, workload
from mfabric_jax.checks import InputError, not_negative, one_of, positive, whole
from mfabric_jax.fabric import Electrical, Prices, Region
from mfabric_jax.routing import ROUTINGS
from mfabric_jax.schedule import NVSWITCH_GIGABYTES_PER_S
from mfabric_jax.workload import DEFAULT_GPU, Workload, get_gpu

DTYPES = ("float32", "float64")
TRAFFIC = ("measured", "generated")
OF_CIRCUITS = tuple(name for name in ROUTINGS if name != "relay")     # relay needs shares, which no policy here gives
DEGREES = ("dp", "tp", "pp", "ep", "gpus", "micro_batch", "micro_batches", "sequence")


@dataclasses.dataclass(frozen=True)
class Compare:
    """What to compare, and under which assumptions.

    - `models`, `fabrics`, `nic_gbps`: one row for each combination; `nic_use` (own, pooled) adds rows for the
      electrical fabrics; mFabric always pools its NICs.
    - `policy`, `rule`, `routing`: how mFabric chooses circuits (`rule`: greedy's) and uses them.
    - `eps_waits`: traffic on packet switches waits for a reconfiguration too, not only that on circuits.
    - `trace`, `records`: recorded routing instead of generated; first and last record used.
    - `traffic`: "measured" (expert shares of trained models; `drift` between iterations) or "generated" (`skew`).
    - `iterations`: how many are simulated and averaged.
    - `gpu`, `efficiency`: compute seconds are floating-point operations over peak x efficiency.
    - `dp` ... `sequence`: None keeps the model's own.
    """

    models: tuple[str, ...] = ("mixtral-8x22b", "mixtral-8x7b", "llama-moe", "qwen-moe", "deepseek-r1")
    fabrics: tuple[str, ...] = ("fat-tree", "oversub-fat-tree", "rail-optimized", "mfabric")
    nic_gbps: tuple[float, ...] = (100.0, 200.0, 400.0, 800.0)
    nic_use: tuple[str, ...] = ("own",)
    policy: str = "greedy"
    rule: str = "printed"
    routing: str = "unsplit"
    optical_degree: int = 6
    electrical_nics: int = 2
    delay_s: float = 0.025
    eps_waits: bool = False
    traffic: str = "measured"
    skew: float = 0.0
    drift: float = 0.05
    trace: str | None = None
    records: tuple[int, int] | None = None
    iterations: int = 1
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
    seed: int = 0
    dtype: str = "float32"

    def __post_init__(self):
        for field in ("models", "fabrics", "nic_gbps", "nic_use"):
            value = getattr(self, field)
            if isinstance(value, str) or not isinstance(value, Sequence):
                raise InputError(f"{field} must be a list or tuple, got {value!r}.")
        for field, allowed in (("models", workload.NAMES), ("fabrics", fabric.NAMES), ("nic_use", fabric.NIC_USES)):
            _names(field, getattr(self, field), allowed)
        if not self.nic_gbps:
            raise InputError("nic_gbps must name at least one bandwidth.")
        if len(set(self.nic_gbps)) < len(self.nic_gbps):
            raise InputError(f"nic_gbps must not repeat a bandwidth, got {list(self.nic_gbps)}.")
        for gbps in self.nic_gbps:
            Prices().at("nic", positive("nic_gbps", gbps))
        one_of("policy", self.policy, policies.REGISTRY)
        one_of("rule", self.rule, policies.RULES)
        one_of("routing", self.routing, OF_CIRCUITS)
        one_of("traffic", self.traffic, TRAFFIC)
        one_of("dtype", self.dtype, DTYPES)
        whole("optical_degree", self.optical_degree, at_least=0)
        whole("electrical_nics", self.electrical_nics, at_least=0)
        whole("iterations", self.iterations)
        whole("seed", self.seed, at_least=0)
        for field in ("delay_s", "skew", "drift"):
            not_negative(field, getattr(self, field))
        for field in ("efficiency", "nvswitch_gigabytes_per_s"):
            positive(field, getattr(self, field))
        if self.electrical_nics == 0:
            raise InputError("electrical_nics must be at least 1: gradients and pipeline transfers use them, got 0.")
        if self.records is not None and self.trace is None:
            raise InputError("records chooses from a trace; name one with trace.")
        get_gpu(self.gpu)
        for name in self.models:
            job = self.workload(name)
            for one in self.variants(job):
                if isinstance(one, Electrical):
                    one.check_gpus(job.gpus_per_server)

    def workload(self, name: str) -> Workload:
        """A model with this configuration's overrides."""
        given: dict[str, Any] = {field: getattr(self, field) for field in DEGREES if getattr(self, field) is not None}
        return workload.get(name, **given)

    def variants(self, job: Workload) -> list[Electrical | Region]:
        """The fabrics to compare for one model, at the first bandwidth; a row each."""
        gbps, found = self.nic_gbps[0], []
        for name in self.fabrics:
            if name == "mfabric":
                found.append(
                    Region(
                        job.servers_per_region, gbps, self.optical_degree, float(self.electrical_nics), self.delay_s
                    )
                )
            else:
                over = fabric.ELECTRICAL[name]
                found += [Electrical(name, gbps, oversubscription=over, nic_use=use) for use in self.nic_use]
        return found

    def circuits_policy(self):
        """The policy with its settings."""
        return policies.get(self.policy, **({"rule": self.rule} if self.policy == "greedy" else {}))


def _names(field: str, given: tuple[str, ...], allowed) -> None:
    if not given:
        raise InputError(f"{field} must name at least one; allowed: {', '.join(allowed)}.")
    for name in given:
        one_of(field, name, allowed)
    if len(set(given)) < len(given):
        raise InputError(f"{field} must not repeat a name, got {', '.join(given)}.")
