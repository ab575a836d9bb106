"""What failures cost: iteration time with something broken, over that of the healthy cluster.

One failure hits one region, so one pipeline stage of one replica; mFabric chooses circuits again for what is left. The
pipeline and the gradients wait for that stage. Source: arXiv 2501.03905, section on failures.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.checks import InputError, names, not_negative, whole
from mfabric_jax.fabric import Circuits, Region, degraded
from mfabric_jax.fabric.design import Fabric, group_numbers
from mfabric_jax.fabric.failures import KINDS, Degraded
from mfabric_jax.fabric.registry import NAMES, get, no_price
from mfabric_jax.policies import Policy, check_legal
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import relayed_part_times
from mfabric_jax.schedule import First, Iteration, Rules, iterate
from mfabric_jax.schedule.all_to_alls import Exchanges, places
from mfabric_jax.schedule.exchange import acknowledged, at_unit_bandwidth, failed_stage, steady_stage, with_acks
from mfabric_jax.schedule.switching import routed
from mfabric_jax.study._compare import effective
from mfabric_jax.study._expected_loss import Rate, read_rates
from mfabric_jax.study._failure_kinds import kinds_on, said_of, why_absent
from mfabric_jax.study._failure_rows import row_of
from mfabric_jax.study._faster import faster_by
from mfabric_jax.study._packet_failures import Hit, PacketsLeft, packets_left
from mfabric_jax.study._scenario import Scenario, check_dtype, scenarios
from mfabric_jax.study._simulate import solve
from mfabric_jax.study.config import Compare
from mfabric_jax.study.settings import ModelName
from mfabric_jax.traffic import dispatched_bytes, server_bytes

OPTICAL = "mfabric"
IDLE = "a GPU moves to another domain; where GPUs of its own are idle (8 of an NVL72's 72), it costs the restart alone"


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailureSettings:
    """What fails, where and when."""

    kinds: tuple[str, ...] = tuple(KINDS)
    """What fails: electrical-nic (one of a server), electrical-nics (all), optical-nic (or its switch port), link
    (between switches), gpu, server, optical-switch (of a region), controller (of its circuits), nvswitch (of a
    server), switch (edge switch of a packet fabric). Each fabric gives rows for those it has."""
    stage: int | None = None
    """The pipeline stage that is hit (default: the busiest)."""
    server: int = 0
    """The server of its region that is hit."""
    at: int = 0
    """First iteration that suffers; before it the run is healthy."""
    radix: int = 64
    """Ports of every electrical switch; spraying goes on over the links that are left."""
    nvswitches: int | None = None
    """NVSwitches of a server or scale-up domain (default: 6, as beside eight A100; nvl72 and mfabric-cpo: 18; beside
    eight H100 there are 4)."""
    rates: str | None = None
    """How often what fails: a .toml or .json file, for the loss per month (see the docs)."""
    checkpoint_interval_s: float = 3600.0
    """Between checkpoints; a failure that stops the job loses half of it on average."""
    restart_s: float = 600.0
    """Until a stopped job runs again from its checkpoint."""


@dataclasses.dataclass(frozen=True)
class Failures(FailureSettings):
    """Failures of `fabrics`: `setting` says models, policy, routing and all else; its first bandwidth counts, its own
    fabrics do not."""

    setting: Compare = dataclasses.field(
        default_factory=lambda: Compare(models=("mixtral-8x22b", "deepseek-r1"), nic_gbps=(400.0,))
    )
    fabrics: tuple[str, ...] = (OPTICAL,)

    def __post_init__(self):
        names("kinds", self.kinds, KINDS)
        names("fabrics", self.fabrics, NAMES)
        self.rate_of()
        if self.nvswitches is not None and whole("nvswitches", self.nvswitches) < 2 and "nvswitch" in self.kinds:
            raise InputError("nvswitches must be at least 2 for failure 'nvswitch' (the others carry), got 1.")
        for field in ("checkpoint_interval_s", "restart_s"):
            not_negative(field, getattr(self, field))
        if self.setting.first not in ("block", "reuse", "random"):
            raise InputError(f"first must be block, reuse or random for failures, got {self.setting.first!r}.")
        if (spans := self.setting.circuits_for) != ("all-to-all",):
            raise InputError(f"circuits_for must be all-to-all for failures, got {', '.join(spans)}.")
        self.setting.check_one_replica("failures are")
        if self.setting.partial:
            raise InputError("partial must be false for failures, got true.")
        if self.setting.reconfiguration_cost != "changed":
            raise InputError("reconfiguration_cost must be changed for failures, got 'always'.")
        if self.setting.replace_every:
            raise InputError(f"replace_every must be 0 for failures, got {self.setting.replace_every}.")
        if self.setting.policy == "static":
            raise InputError("policy must not be 'static' for failures: circuits are chosen again for what is left.")
        if self.setting.flows != "spray":
            raise InputError(f"flows must be 'spray' for failures, got {self.setting.flows!r}.")
        if self.setting.wiring != "demand":
            raise InputError(f"wiring must be 'demand' for failures, got {self.setting.wiring!r}.")
        if whole("at", self.at, at_least=0) >= self.setting.iterations:
            raise InputError(f"at must be below the {self.setting.iterations} iterations of the run, got {self.at}.")
        for name in self.setting.models:
            job = self.setting.workload(name)
            if self.stage is not None and whole("stage", self.stage, at_least=0) >= job.pp:
                raise InputError(f"stage must be below the {job.pp} pipeline stages of {job.model}, got {self.stage}.")
            for fabric in self.fabrics:
                self._check_group(name, fabric)
        self._check_absent()

    def _check_group(self, model: ModelName, fabric: str) -> None:
        """`InputError` for a server that a group has not."""
        job = self.setting.workload(model, get(fabric).gpus_of(self.setting.server))
        if whole("server", self.server, at_least=0) >= job.servers_per_region:
            most = job.servers_per_region
            raise InputError(f"server must be below the {most} of a region of {job.model}, got {self.server}.")

    def _check_absent(self) -> None:
        """`InputError` for a kind that was asked for and that no fabric has."""
        absent = {fabric: self._absent(fabric) for fabric in self.fabrics}
        for kind in self.kinds if self.kinds != tuple(KINDS) else ():
            if all(kind in reasons for reasons in absent.values()):
                why = "; ".join(f"{fabric}: {reasons[kind]}" for fabric, reasons in absent.items())
                raise InputError(f"failure {kind!r} is on none of the fabrics ({why}).")

    def _groups(self, model: ModelName, fabric: str) -> list[Any]:
        return self.setting.groups(model, fabric, self.setting.nic_gbps[0], self.setting.nic_use)

    def _absent(self, fabric: str) -> dict[str, str]:
        """{kind: why no model has it on a fabric}."""
        found = [
            why_absent(group, get(fabric), self.setting.routing)
            for model in self.setting.models
            for group in self._groups(model, fabric)
        ]
        return {kind: why for kind, why in found[0].items() if all(kind in one for one in found)}

    @property
    def notes(self) -> list[str]:
        """Sentences on kinds that a fabric lacks, on spares of scale-up domains, and on those without a price."""
        said = [said_of(fabric, self.kinds, self._absent(fabric)) for fabric in self.fabrics]
        said += [f"{fabric}: {IDLE}." for fabric in self.fabrics if "gpu" in self.kinds and get(fabric).domain_gpus]
        said += [no_price(fabric, self.setting.price_list()) for fabric in self.fabrics]
        return [one for one in said if one]

    def left(self, region: Region, kind: str, gpus_per_rank: int, nvswitches: int) -> Degraded:
        """What is left of a region."""
        given = {"server": self.server, "radix": self.radix, "nvswitches": nvswitches}
        return degraded(region, kind, gpus_per_rank=gpus_per_rank, **given)

    def nvswitches_of(self, on: Fabric) -> int:
        """Of a server or scale-up domain."""
        return on.nvswitches if self.nvswitches is None else self.nvswitches

    def rate_of(self) -> dict[str, Rate]:
        """How often each kind fails, of those in the file."""
        return {} if self.rates is None else read_rates(self.rates)


def failures(
    config: Failures, progress: Callable[[str], None] | None = None, *, start: int = 0
) -> Iterator[dict[str, Any]]:
    """A row for every model and kind of failure: iteration times before and after, and the slow-down of the run.

    - `start`: rows before this one are left out, and not computed.
    """
    check_dtype(config.setting.dtype)
    number = itertools.count()
    for name, fabric in itertools.product(config.setting.models, config.fabrics):
        axes = {"models": (name,), "fabrics": (fabric,), "nic_gbps": config.setting.nic_gbps[:1], "variants": "one"}
        for one in scenarios(dataclasses.replace(config.setting, **axes)):
            has = kinds_on(one.group, one.fabric, one.settings.routing)
            kinds = [kind for kind in config.kinds if kind in has and next(number) >= start]
            if not kinds:
                continue
            healthy = solve(one)
            before, busiest = _timed(one, healthy, None, 0)
            stage = busiest if config.stage is None else config.stage
            for kind in kinds:
                left, solved = _broken(config, one, kind, stage)
                after, _ = _timed(one, _with_stage(healthy, solved, stage, left), left, stage)
                row = row_of(config, one, kind, stage, before, after)
                given = {"moved": left.moved, "unsplit": row["routing"] == "unsplit", "slow_down": row["slow_down"]}
                given["at"] = config.at
                why = {"faster_by": faster_by(healthy, solved, stage, **given)}
                if progress:
                    progress(f"{one.workload.model}: {kind}")
                yield row | why


def _broken(config: Failures, one: Scenario, kind: str, stage: int) -> tuple[Degraded | PacketsLeft, Exchanges]:
    """What is left, and the all-to-alls of the stage that is hit."""
    if one.group.reconfigures:
        region = config.left(one.group, kind, one.workload.tp, config.nvswitches_of(one.fabric))
        return region, _solve_stage(one, region, stage)
    nvswitches, rails = config.nvswitches_of(one.fabric), one.fabric.rails
    hit = Hit(kind, config.server, config.radix, nvswitches, rails, one.mean_demand)
    left = packets_left(at_unit_bandwidth(one.group, one.settings.dtype), one.workload, hit)
    tokens = jnp.asarray(one.sent, one.settings.dtype)
    carrier: Any = left.carrier
    carrier = group_numbers(carrier, one.settings.dtype)
    return left, _solve_packets(one.workload, tokens, carrier, stage, one.settings.carried_by.acks_back)


@eqx.filter_jit
def _solve_packets(workload, tokens, carrier, stage: int, acks: float) -> Exchanges:
    def seconds(demand):
        return carrier.seconds(acknowledged(demand, acks))

    return jax.lax.map(lambda drawn: steady_stage(workload, drawn, seconds, stage), tokens)


def _solve_stage(one: Scenario, left: Degraded, stage: int) -> Exchanges:
    """The failed stage's all-to-alls in every iteration [I 1 Q L]."""
    settings, job = one.settings, one.workload
    keys = jax.random.split(jax.random.key(settings.seed), len(one.tokens.count))
    share = left.share_of_rank(job.ep, job.ranks_per_server)
    parts = functools.partial(relayed_part_times, server=left.server) if left.relays else routed(settings.routing)
    parts = with_acks(parts, settings.carried_by.acks_back)
    tokens, share = (jnp.asarray(x, settings.dtype) for x in (one.sent, share))
    region: Any = group_numbers(left.region, settings.dtype)
    policy = settings.circuits_policy()
    policy = _serving_first(policy, left.server) if left.relays else policy
    policy = jax.tree_util.Partial(_staying, count=_last_circuits(one, policy, region, stage)) if left.stays else policy
    first = First(settings.first, cold=settings.cold_start)
    solved = _solve_all(job, region, tokens, share, keys, policy, stage, parts, first)
    if settings.own_policy:
        check_legal(settings.policy_name, np.asarray(solved.count), np.asarray(left.region.degrees))
    return solved


def _last_circuits(one: Scenario, policy: Policy, region: Region, stage: int) -> jax.Array:
    """Circuits [S S] for the last all-to-all of the stage in the first iteration."""
    where, sent = places(one.workload), one.sent[0]
    layer, micro_batch = (at[stage][where.layer[stage] >= 0][-1] for at in where.pick(*sent.shape[:2]))
    last = jnp.asarray(sent[layer, micro_batch], one.settings.dtype)
    demand = server_bytes(dispatched_bytes(one.workload, last), one.workload.ranks_per_server)
    return policy(demand, region, previous=None, key=jax.random.key(one.settings.seed)).circuits.count


def _staying(demand, region, *, previous=None, key=None, count):
    """These circuits, whatever the demand."""
    return Plan(Circuits(count))


@functools.lru_cache
def _serving_first(policy: Policy, server: int) -> Policy:
    """The policy, told that the bytes of one server are more urgent than all others: circuits are its only way out."""

    def urgent(demand, region, *, previous=None, key=None):
        here = jnp.arange(demand.shape[0]) == server
        heavier = jnp.where(here[:, None] | here[None, :], 1 + demand.sum() / jnp.maximum(demand[server].sum(), 1), 1)
        return policy(demand * heavier, region, previous=previous, key=key)

    return urgent


@eqx.filter_jit
def _solve_all(workload, region: Region, tokens, share, keys, policy, stage: int, parts, first: First):
    def one(drawn):
        return failed_stage(workload, region, drawn[0], share, policy, stage, parts, first=first, key=drawn[1])

    return jax.lax.map(one, (tokens, keys))


def _with_stage(healthy: Exchanges, failed: Exchanges, stage: int, left: Degraded | PacketsLeft) -> Exchanges:
    """The healthy all-to-alls with those of one stage replaced; what stays inside servers has the NVLink left."""
    if healthy.anew is not None and failed.anew is not None:
        healthy = healthy._replace(anew=healthy.anew.at[:, stage].set(failed.anew[:, 0]))
    return healthy._replace(
        optical=healthy.optical.at[:, stage].set(failed.optical[:, 0]),
        electrical=healthy.electrical.at[:, stage].set(failed.electrical[:, 0]),
        switch=healthy.switch.at[:, stage].set(failed.switch[:, 0]),
        inside=healthy.inside.at[:, stage].divide(left.nvlink_left),
    )


def _timed(one: Scenario, solved: Exchanges, left: Degraded | PacketsLeft | None, stage: int) -> tuple[Iteration, int]:
    """Every iteration [I], and the busiest stage of the first."""
    settings, stages = one.settings, one.workload.pp
    rates = one.rates(one.bandwidths[0])
    eps, send, tp = (np.full(stages, float(each)) for each in (rates.eps_Bps, rates.send_Bps, rates.nvlink_Bps))
    if left is not None:
        eps[stage] *= left.eps_left
        send[stage] *= left.eps_left
        tp[stage] *= left.nvlink_left
        tp[stage] = min(tp[stage], eps[stage] * left.tp_on_eps) if left.tp_on_eps else tp[stage]
    numbers = rates._replace(eps_Bps=eps, send_Bps=send), one.seconds, tp
    numbers = jax.tree.map(lambda x: jnp.asarray(x, settings.dtype), numbers)
    timed = _time_all(one.workload, solved, numbers, settings.rules)
    return jax.tree.map(lambda x: np.asarray(x, np.float64), timed), int(timed.stage[0])


@eqx.filter_jit
def _time_all(workload, solved: Exchanges, numbers: tuple, rules: Rules) -> Iteration:
    rates, seconds, tp_Bps = numbers
    return jax.vmap(lambda one: iterate(workload, rates, one, seconds, rules=rules, tp_Bps=tp_Bps))(solved)


def effective_failures(config: Failures) -> dict[str, Any]:
    """The configuration with every value resolved, and where the result comes from."""
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "setting"}
    shared = effective(config.setting)
    return shared | {"gpu_server": shared.get("server")} | own
