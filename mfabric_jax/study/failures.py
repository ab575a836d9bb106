"""What failures cost: iteration time of mFabric with something broken, over that of the healthy cluster.

One failure hits one region, so one pipeline stage of one replica; circuits are chosen again without what failed. The
pipeline and the gradients wait for that stage. Source: arXiv 2501.03905, section on failures.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric
from mfabric_jax.checks import InputError, names, whole
from mfabric_jax.fabric import Degraded, Region, degraded
from mfabric_jax.policies import Policy, check_legal
from mfabric_jax.routing import relayed_part_times
from mfabric_jax.schedule import Exchanges, First, Iteration, failed_stage, iterate, routed
from mfabric_jax.study.compare import check_dtype, computation, effective, inside, jobs, solve, traced
from mfabric_jax.study.config import Compare

PUBLISHED = {  # (model, failure) -> slow-down at 400 Gbps and 1,024 GPUs, arXiv 2501.03905
    ("deepseek-r1", "electrical-nic"): 0.033,
    ("deepseek-r1", "optical-nic"): 0.033,
    ("mixtral-8x22b", "gpu"): 0.051,
    ("deepseek-r1", "server"): 0.065,
}


@dataclasses.dataclass(frozen=True)
class Failures:
    """What fails, where and when.

    - `setting`: models, policy, routing and all else; its first bandwidth counts, its fabrics do not.
    - `kinds`: of `fabric.KINDS`.   - `stage`: the pipeline stage that is hit; None: the busiest one.
    - `server`: of the stage's region.   - `at`: the first iteration of the run that suffers (0: all of it).
    - `radix`: of edge switches.
    """

    setting: Compare = dataclasses.field(
        default_factory=lambda: Compare(models=("mixtral-8x22b", "deepseek-r1"), nic_gbps=(400.0,))
    )
    kinds: tuple[str, ...] = tuple(fabric.KINDS)
    stage: int | None = None
    server: int = 0
    at: int = 0
    radix: int = 64

    def __post_init__(self):
        names("kinds", self.kinds, fabric.KINDS)
        if self.setting.first not in ("block", "reuse", "random"):
            raise InputError(f"first must be block, reuse or random for failures, got {self.setting.first!r}.")
        if self.setting.policy == "static":
            raise InputError("policy must not be 'static' for failures: circuits are chosen again for what is left.")
        if self.setting.flows != "spray":
            raise InputError(f"flows must be 'spray' for failures, got {self.setting.flows!r}.")
        if whole("at", self.at, at_least=0) >= self.setting.iterations:
            raise InputError(f"at must be below the {self.setting.iterations} iterations of the run, got {self.at}.")
        for name in self.setting.models:
            job = self.setting.workload(name)
            if self.stage is not None and whole("stage", self.stage, at_least=0) >= job.pp:
                raise InputError(f"stage must be below the {job.pp} pipeline stages of {name}, got {self.stage}.")
            if whole("server", self.server, at_least=0) >= job.servers_per_region:
                most = job.servers_per_region
                raise InputError(f"server must be below the {most} of a region of {name}, got {self.server}.")
            nics = float(self.setting.electrical_nics)
            here = Region(job.servers_per_region, 1.0, self.setting.optical_degree, nics)
            for kind in self.kinds:
                left = degraded(here, kind, server=self.server, gpus_per_rank=job.tp, radix=self.radix)
                if left.relays and self.setting.routing != "unsplit":
                    routing = self.setting.routing
                    raise InputError(f"failure 'electrical-nics' is modelled for routing unsplit, got {routing!r}.")


def failures(config: Failures, progress: Callable[[str], None] | None = None) -> Iterator[dict[str, Any]]:
    """A row for every model and kind of failure: iteration times before and after, and the slow-down of the run."""
    check_dtype(config.setting.dtype)
    for name in config.setting.models:
        one = dataclasses.replace(
            config.setting, models=(name,), fabrics=("mfabric",), nic_gbps=config.setting.nic_gbps[:1]
        )
        (job,) = jobs(one)
        assert isinstance(job.fabric, Region)
        healthy = solve(one, job)._replace(count=None)
        within = inside(one, job) / one.nvswitch_Bps("mfabric", one.nic_gbps[0])
        healthy = healthy._replace(inside_s=within)
        before, busiest = _timed(one, job, healthy, None, 0)
        stage = busiest if config.stage is None else config.stage
        for kind in config.kinds:
            left = degraded(job.fabric, kind, server=config.server, gpus_per_rank=job.workload.tp, radix=config.radix)
            hurt = _with_stage(healthy, _solve_stage(one, job, left, stage), stage)
            after, _ = _timed(one, job, hurt, left, stage)
            if progress:
                progress(f"{name}: {kind}")
            yield _row(config, one, job, kind, stage, before, after)


def _solve_stage(config: Compare, job, left: Degraded, stage: int) -> Exchanges:
    """The failed stage's all-to-alls in every iteration [I 1 Q L]."""
    keys = jax.random.split(jax.random.key(config.seed), len(job.tokens.count))
    share = left.share_of_rank(job.workload.ep, job.workload.ranks_per_server)
    parts = functools.partial(relayed_part_times, server=left.server) if left.relays else routed(config.routing)
    tokens, share = (jnp.asarray(x, config.dtype) for x in (job.tokens.count, share))
    region = traced(left.region, config.dtype)
    policy = config.circuits_policy()
    policy = _serving_first(policy, left.server) if left.relays else policy
    solved = _solve_all(job.workload, region, tokens, share, keys, policy, stage, parts, config.first)
    if config.own_policy:
        check_legal(config.policy_name, np.asarray(solved.count), np.asarray(left.region.degrees))
    return solved


@functools.lru_cache
def _serving_first(policy: Policy, server: int) -> Policy:
    """The policy, told that the bytes of one server are more urgent than all others: circuits are its only way out."""

    def urgent(demand, region, *, previous=None, key=None):
        here = jnp.arange(demand.shape[0]) == server
        heavier = jnp.where(here[:, None] | here[None, :], 1 + demand.sum() / jnp.maximum(demand[server].sum(), 1), 1)
        return policy(demand * heavier, region, previous=previous, key=key)

    return urgent


@eqx.filter_jit
def _solve_all(workload, region: Region, tokens, share, keys, policy, stage: int, parts, first: str) -> Exchanges:
    def one(drawn):
        return failed_stage(workload, region, drawn[0], share, policy, stage, parts, first=First(first), key=drawn[1])

    return jax.lax.map(one, (tokens, keys))


def _with_stage(healthy: Exchanges, failed: Exchanges, stage: int) -> Exchanges:
    """The healthy all-to-alls with those of one stage replaced; what stays inside servers stays."""
    return healthy._replace(
        optical=healthy.optical.at[:, stage].set(failed.optical[:, 0]),
        electrical=healthy.electrical.at[:, stage].set(failed.electrical[:, 0]),
        switch=healthy.switch.at[:, stage].set(failed.switch[:, 0]),
    )


def _timed(config: Compare, job, solved: Exchanges, left: Degraded | None, stage: int) -> tuple[np.ndarray, int]:
    """Seconds of every iteration [I], and the busiest stage of the first."""
    stages, region = np.arange(job.workload.pp), job.fabric
    nvswitch_Bps = config.nvswitch_Bps("mfabric", config.nic_gbps[0])
    rates = config.rates(region, config.nic_gbps[0])
    eps = np.full(len(stages), float(rates.eps_Bps))
    tp = np.full(len(stages), nvswitch_Bps)
    if left is not None:
        eps[stage] *= left.eps_left
        tp[stage] = eps[stage] if left.tp_on_eps else tp[stage]
    rates = rates._replace(eps_Bps=eps, send_Bps=eps)
    seconds = computation(config, job)
    given = jax.tree.map(lambda x: jnp.asarray(x, config.dtype), (rates, seconds, nvswitch_Bps, tp))
    rules = config.eps_waits, config.overlap_parts, config.dp_overlap
    timed = _time_all(job.workload, solved, given, rules)
    return np.asarray(timed.iteration_s, np.float64), int(timed.stage[0])


@eqx.filter_jit
def _time_all(workload, solved: Exchanges, given: tuple, rules: tuple[bool, int, bool]) -> Iteration:
    (rates, seconds, nvswitch_Bps, tp_Bps), (eps_waits, overlap_parts, dp_overlap) = given, rules

    def one(solved):
        return iterate(
            workload,
            rates,
            solved,
            seconds,
            nvswitch_Bps,
            eps_waits=eps_waits,
            overlap_parts=overlap_parts,
            dp_overlap=dp_overlap,
            tp_Bps=tp_Bps,
        )

    return jax.vmap(one)(solved)


def _row(config: Failures, one: Compare, job, kind: str, stage: int, before: np.ndarray, after: np.ndarray) -> dict:
    suffers = np.arange(len(before)) >= config.at
    run = np.where(suffers, after, before)
    return {
        "model": job.workload.model,
        "failure": kind,
        "nic_gbps": one.nic_gbps[0],
        "gpus": job.workload.gpus,
        "policy": one.policy,
        "routing": one.routing,
        "stage": stage,
        "server": config.server,
        "at": config.at,
        "iterations": len(before),
        "healthy_s": float(before.mean()),
        "failed_s": float(after[suffers].mean()),
        "slow_down": float((after[suffers] / before[suffers]).mean() - 1),
        "run_slow_down": float(run.sum() / before.sum() - 1),
        "published": PUBLISHED.get((job.workload.model, kind)) if _as_published(one, job) else None,
        "dtype": one.dtype,
    }


def _as_published(one: Compare, job) -> bool:
    return one.nic_gbps[0] == 400 and job.workload.gpus == 1024


def effective_failures(config: Failures) -> dict[str, Any]:
    """The configuration with every value resolved, and where the result comes from."""
    own = {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.name != "setting"}
    return own | effective(config.setting)
