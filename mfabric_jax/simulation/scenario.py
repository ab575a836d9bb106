"""A scenario: one model on one fabric with its traffic and all that is assumed.

Circuits that are set before training are wired by name (`WIRINGS`):

- demand: one ring for gradients, and matchings of demand inside every expert-parallel group (NSDI 2023, simplified).
- rings: all NICs in rings over the stage (steps 1, 3, 5, ...), no circuits for a group of its own; a reading of TopoOpt
  in arXiv 2501.03905, the program of which is not public.
- totient-perms: rings and matchings share the NICs in proportion to the bytes of gradients and of all-to-alls, steps of
  rings as in NSDI 2023.

Data-parallel replicas may have traffic of their own: every one is a pipeline, and all wait for the slowest. Gradients
of a stage are reduced once all its replicas are through, so an iteration takes as long as the slowest of them would
alone: of every stage the latest end counts, and what follows is the same for all."""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import traffic
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.design import EpGroup, Fabric, group_numbers
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.topoopt import RING_NICS, ascending_steps, ring_circuits, totient_steps
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.policies import Policy, topoopt, uniform
from mfabric_jax.policies.static import matchings
from mfabric_jax.resolving.resolve import Resolved, check_beside
from mfabric_jax.resolving.settings import Settings, knobs_of
from mfabric_jax.routing import Plan
from mfabric_jax.routing.fixed import wired
from mfabric_jax.text_files import stamp
from mfabric_jax.timing import Iteration, rates_of
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.switching import LONG
from mfabric_jax.traffic import Tokens, dispatched_bytes, sent_tokens, server_bytes
from mfabric_jax.traffic.placement import placed_alike, placement_policy
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.volume import PASSES, replica_bytes, replica_ring

DTYPES = ("float32", "float64")
AS_SET = "as set"  # the variant of a row whose settings were all given
REPEATED = {"micro-batches": "iteration and micro-batch", "everything": "iteration, block and micro-batch"}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One model on one fabric, at all bandwidths at which its group has the same links but for their speed."""

    settings: Settings
    fabric: Fabric
    workload: Workload
    tokens: Tokens
    group: Any  # an `EpGroup`
    bandwidths: tuple[float, ...]
    circuits_for: str = "all-to-all"
    decision_s: float = 0.0
    variant: str = AS_SET
    others: tuple[Tokens, ...] = ()  # traffic of further replicas

    @property
    def every_replica(self) -> tuple[Tokens, ...]:
        """Traffic of all replicas that are simulated."""
        return self.tokens, *self.others

    @property
    def each_replica(self) -> "list[Scenario]":
        """Every replica by itself."""
        return [dataclasses.replace(self, tokens=tokens, others=()) for tokens in self.every_replica]

    @property
    def shown(self) -> int:
        """The iteration that stands for all where one is shown: `run.sample`, or the last."""
        sample = self.settings.case.run.sample
        return len(self.tokens.count) - 1 if sample is None else sample

    @property
    def sent(self) -> np.ndarray:
        """What `traffic.sent_tokens` says of the traffic [I layer M R C]."""
        return sent_tokens(self.workload, self.tokens)

    @property
    def weighs(self) -> bool:
        """Whether circuits depend on bandwidth and computation, not on demand alone."""
        return self.settings.first == "pays" and self.group.reconfigures

    @property
    def mean_demand(self) -> jax.Array:
        """Bytes between the servers of a region [S S], the mean all-to-all of the run."""
        return mean_demand(self.workload, *self.every_replica)

    def rates(self, nic_gbps: float) -> FabricRates:
        """What the timeline needs of the fabric at a bandwidth."""
        settings, case, on = self.settings, self.settings.case, self.fabric
        return rates_at(
            on.at(self.group, nic_gbps, settings.gpu_tbps),
            settings.carried_by,
            on.path_links(settings),
            goodput=settings.goodput,
            link_delay_s=case.network.link_delay_s,
            nvlink_Bps=on.nvlink_Bps(settings.gpu_tbps, nic_gbps, settings.server.nvlink),
            memory_Bps=settings.server.memory_Bps or float("inf"),
            each_s=case.circuits.each_s,
            reactivation_s=case.circuits.reactivation_s,
            decision_s=self.decision_s,
        )

    @property
    def seconds(self) -> BlockSeconds:
        """Computation of a block."""
        return self.settings.block_seconds(self.workload)

    @property
    def between_key(self) -> Any:
        """Scenarios with the same key have the same all-to-alls between servers: fabrics that differ in name alone.

        Where flows take single paths these differ from fabric to fabric, though ports are the same.
        """
        leaves, form = jax.tree.flatten(eqx.tree_at(lambda group: group.nic_gbps, self.group, 1.0))
        numbers = tuple(np.asarray(leaf).tobytes() for leaf in leaves)
        settings = self.settings
        network = settings.case.network
        single = (self.fabric.name, network.paths, network.radix) if network.paths.name == "ecmp" else None
        paths = single, settings.wiring
        variant = self.variant if self.group.reconfigures else None
        return self.workload, form, numbers, paths, self.circuits_for, variant, self._solved_for

    @property
    def inside_key(self) -> Any:
        """Scenarios with the same key have the same all-to-alls inside servers."""
        return "inside", self.workload, self.group.handover, self._drawn_for

    @property
    def _drawn_for(self) -> Any:
        """What of a case its traffic depends on, beside its job."""
        case = self.settings.case
        return case.traffic, case.placement, case.run, self.settings.plan_on

    @property
    def _solved_for(self) -> Any:
        """What of a case its all-to-alls depend on, beside its job and its links; all of it where computation and
        bandwidth are weighed."""
        case = self.settings.case
        if self.weighs:
            return case.with_({"network.nic_gbps": 1.0}), self.bandwidths
        circuits = case.circuits if self.group.reconfigures else None
        return self._drawn_for, circuits, case.compute.experts, case.network.payload, case.network.paths


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


def scenario_of(
    resolved: Resolved,
    bandwidths: tuple[float, ...],
    *,
    variant: str = AS_SET,
    traffic: tuple[Tokens, ...] | None = None,
) -> Scenario:
    """A case at bandwidths at which its group has the same links but for their speed; its traffic is read or drawn
    here, once for all cases with the same.

    - `traffic`: of every replica, in place of that of the case.
    """
    settings, job = resolved.settings, resolved.job
    check_beside("an iteration of one group", resolved.case)
    tokens, *others = _traffic_once(TrafficOf.of(resolved)) if traffic is None else traffic
    (group, *_) = resolved.fabric.groups(settings, job, bandwidths[0], (settings.case.network.nic_use,))
    rest = {"circuits_for": settings.circuits_for, "variant": variant, "others": tuple(others)}
    one = Scenario(settings, resolved.fabric, job, tokens, group, bandwidths, **rest)  # type: ignore[arg-type]
    return dataclasses.replace(one, group=linked(one, one.group), decision_s=_decision_s(one))


@dataclasses.dataclass(frozen=True)
class TrafficOf:
    """A case as far as its traffic goes: what is placed is placed on servers, which fabrics may have larger."""

    resolved: Resolved = dataclasses.field(compare=False)
    key: tuple

    @staticmethod
    def of(resolved: Resolved) -> "TrafficOf":
        """The traffic of a resolved case."""
        case, job = resolved.case, resolved.job
        shape = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
        if case.placement.rule.name == "contiguous":
            del shape["gpus_per_server"]
        run = case.run.seed, case.run.iterations, case.run.replicas
        past = resolved.settings.plan_on, resolved.settings.circuits_for in LONG
        source = case.traffic.source
        file = stamp(getattr(source, "value", None) or getattr(source, "path", None) or "")
        return TrafficOf(resolved, (tuple(shape.items()), case.traffic, file, case.placement, run, past))


@functools.lru_cache(maxsize=16)
def _traffic_once(of: TrafficOf) -> tuple[Tokens, ...]:
    resolved = of.resolved
    return traffic_of(resolved.settings, resolved.job)


def _decision_s(one: Scenario) -> float:
    """Seconds of a decision; a policy is timed with the first all-to-all of the run."""
    settings, job = one.settings, one.workload
    if not one.group.reconfigures:
        return 0.0
    decision_s = settings.case.circuits.decision_s
    if not isinstance(decision_s, str):
        return decision_s
    first = jnp.asarray(one.sent[0, 0, 0], settings.case.run.dtype)
    demand = server_bytes(dispatched_bytes(job, first), job.ranks_per_server)
    policy = settings.circuits_policy(jnp.asarray(one.mean_demand, settings.case.run.dtype))
    return measured_decision_s(
        policy, group_numbers(one.group, settings.case.run.dtype), demand, jax.random.key(settings.case.run.seed)
    )


WARM_UP, TIMED = 3, 15  # decisions


def measured_decision_s(policy: Policy, region, demand: Float[Array, "S S"], key: Array) -> float:
    """Seconds in which the compiled policy decides for one region on this machine, the median of some."""

    @eqx.filter_jit
    def decide(region, demand, before):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    given, found = (region, demand, uniform(None, region).circuits.count), []
    for _ in range(WARM_UP + TIMED):
        began = time.perf_counter()
        jax.block_until_ready(decide(*given))
        found.append(time.perf_counter() - began)
    return statistics.median(found[WARM_UP:])


def linked(one: Scenario, group: Any) -> Any:
    """The group with its ways; where its links are chosen once, they are chosen for the mean traffic of the run."""
    if group.joined:
        return group
    if group.mesh is not None:
        return wired(group)
    return WIRINGS[one.settings.wiring](group, one.workload, one.mean_demand)


def mean_demand(workload: Workload, *tokens: Tokens) -> jax.Array:
    """Bytes between the servers of a region [S S], the mean all-to-all of the run, of all replicas."""
    mean = np.mean([np.asarray(sent_tokens(workload, one), np.float64).mean(axis=(0, 1, 2)) for one in tokens], axis=0)
    return server_bytes(dispatched_bytes(workload, mean), workload.ranks_per_server)


def traffic_of(settings: Settings, workload: Workload) -> tuple[Tokens, ...]:
    """Traffic of one model, of every replica, its experts placed; where matrices repeat, there is one for all.

    Where experts are placed, or circuits chosen, on the past of a span, one more iteration is drawn or read, and the
    first one is that past.
    """
    rule: Any = settings.case.placement.rule
    moved = rule.name != "contiguous"
    past = settings.plan_on == "past" and settings.circuits_for in LONG
    past |= moved and rule.loads > 0
    every = _tokens(settings.case, workload, settings.case.run.iterations + past)
    every = tuple(_alike(settings.case, tokens.after_the_first() if past else tokens) for tokens in every)
    if not moved:
        return every
    rest = {"on": "past" if rule.loads else "now", "window": max(1, rule.loads)}
    return placed_alike(every, settings.room(workload), placement_policy(rule.name), every=rule.every, **rest)


def _alike(case: Case, tokens: Tokens) -> Tokens:
    """One matrix for all where matrices repeat."""
    alike = case.traffic.alike
    if alike == "nothing":
        return tokens
    layers = slice(None) if alike == "micro-batches" else slice(1)
    source = f"{tokens.source}, the same for every {REPEATED[alike]}"
    alike = tokens.changed(lambda each: each[:1, layers, :1], source=source)
    return dataclasses.replace(alike, before=alike.count[0])


def _tokens(case: Case, workload: Workload, iterations: int) -> tuple[Tokens, ...]:
    """The traffic of every replica."""
    source: Any = case.traffic.source
    replicas = replicas_of(case.run.replicas, workload)
    if source.name == "trace":

        def read(times: int) -> Tokens:
            return traffic.recorded(workload, source.path, source.records, times * iterations, source.axes)

        return read_apart(read, replicas)
    return drawn_apart(lambda times: _drawn(case, workload, iterations, times * case.traffic.drawn), replicas)


def _drawn(case: Case, workload: Workload, iterations: int, micro_batches: int) -> Tokens:
    source: Any = case.traffic.source
    if source.name == "authors":
        return traffic.authors(workload, iterations)
    if source.name == "knobs":
        return traffic.from_knobs(workload, knobs_of(source), iterations, micro_batches, case.run.seed)
    drawn: dict[str, Any] = {"iterations": iterations, "micro_batches": micro_batches}
    drawn |= {"seed": case.run.seed, "drift": source.drift}
    if source.name == "generated":
        return traffic.generated(workload, source.skew, **drawn)
    return traffic.measured(workload, **drawn)


def check_dtype(dtype: str) -> None:
    """`InputError` for float64 where JAX would silently compute in float32."""
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")


def for_demand(group: DirectLinks, job: Workload, demand: Float[Array, "S S"]) -> DirectLinks:
    """Of one group alone."""
    region = Region(group.servers, group.nic_gbps, jnp.asarray(group.nics, jnp.int32))
    return wired(group, topoopt(demand, region).circuits.count)


def all_rings(group: DirectLinks, job: Workload, demand: Float[Array, "S S"]) -> DirectLinks:
    """Of the stage; `demand` does not matter."""
    servers, rings = job.servers // job.pp, group.nics // RING_NICS
    return _over_stage(group, ring_circuits(servers, ascending_steps(servers, rings)), rings)


def totient_rings(group: DirectLinks, job: Workload, demand: Float[Array, "S S"]) -> DirectLinks:
    """Of the stage, the groups of which have the same `demand`, the mean all-to-all."""
    servers, size = job.servers // job.pp, group.servers
    rings = rings_of(group.nics, gradient_sent(job), all_to_all_sent(job, demand))
    free = jnp.full(size, group.nics - RING_NICS * rings, jnp.int32)
    inside = np.asarray(matchings(jnp.asarray(demand), free))
    between = ring_circuits(servers, totient_steps(servers, rings))
    return _over_stage(group, between + np.kron(np.eye(servers // size, dtype=np.int64), inside), rings)


def _over_stage(group: DirectLinks, count: np.ndarray, rings: int) -> DirectLinks:
    """Gradients go around all rings, in both directions."""
    return dataclasses.replace(wired(group, count), ring_nics=float(RING_NICS * rings))


def rings_of(nics: int, gradients: float, all_to_alls: float) -> int:
    """Rings that share a server's NICs with matchings, by bytes sent; at least one, which joins the stage."""
    part = gradients / (gradients + all_to_alls) if gradients else 0.0
    return min(nics // RING_NICS, max(1, math.ceil(part * nics / RING_NICS)))


def gradient_sent(job: Workload) -> float:
    """Bytes that a server sends to others for the replicas of an iteration, mean over stages: gradients that are
    all-reduced or scattered, weights that are gathered, of every micro-batch where they share these out."""
    sizes = [replica_bytes(job, stage) for stage in range(job.pp)]
    return float(np.mean([replica_ring(job, size.dense, size.expert).between for size in sizes]))


def all_to_all_sent(job: Workload, demand: Float[Array, "S S"]) -> float:
    """Bytes that a server sends to others in the all-to-alls of an iteration, whose mean dispatch is `demand`."""
    away = np.asarray(demand, float) * (1 - np.eye(len(demand)))
    both = 1 + job.combine_bytes_per_selection / job.dispatch_bytes_per_selection
    passes = (PASSES + (job.recompute == "block")) * job.micro_batches * job.moe_layers / job.pp
    return float(away.sum() / len(away) * both * passes)


WIRINGS: dict[str, Callable[..., DirectLinks]] = {
    "demand": for_demand,
    "rings": all_rings,
    "totient-perms": totient_rings,
}


def replicas_of(replicas: int | str, workload: Workload) -> int:
    """How many replicas of a job are simulated; "all": as many as it has."""
    return workload.dp if isinstance(replicas, str) else replicas


def drawn_apart(draw: Callable[[int], Tokens], replicas: int) -> tuple[Tokens, ...]:
    """Traffic of every replica: micro-batches of its own in the same iterations, of so many times as many.

    - `draw`: tokens with so many times as many micro-batches.
    """
    every = draw(replicas)
    size = every.count.shape[2] // replicas
    parts = [slice(at * size, (at + 1) * size) for at in range(replicas)]
    return tuple(every.changed(lambda count, part=part: count[:, :, part]) for part in parts)


def read_apart(read: Callable[[int], Tokens], replicas: int) -> tuple[Tokens, ...]:
    """Traffic of every replica from a recording: of every iteration a record each, in turn.

    - `read`: tokens of so many times as many iterations.
    """
    every = read(replicas)
    return tuple(every.changed(lambda count, at=at: count[at::replicas]) for at in range(replicas))


def slowest(timed: Iteration, replicas: int) -> Iteration:
    """[replica x I ...] -> [I ...]: of every iteration the replica that takes longest."""
    if replicas == 1:
        return timed
    each = jax.tree.map(lambda x: x.reshape(replicas, -1, *x.shape[1:]), timed)
    last = each.iteration_s.argmax(axis=0)[None]
    return jax.tree.map(lambda x: jnp.take_along_axis(x, last, axis=0)[0], each)


def slowest_columns(seconds: Mapping[str, np.ndarray], replicas: int) -> dict[str, np.ndarray]:
    """`slowest` of columns [replica x N], and `replica_s`, seconds of the mean replica [N]."""
    each = {name: values.reshape(replicas, -1) for name, values in seconds.items()}
    last = each["iteration_s"].argmax(axis=0), np.arange(each["iteration_s"].shape[1])
    return {name: values[last] for name, values in each.items()} | {"replica_s": each["iteration_s"].mean(axis=0)}


def mean_of_replicas(timed: Iteration, replicas: int) -> Any:
    """Seconds of the mean replica [I ...]."""
    return timed.iteration_s.reshape(replicas, -1, *timed.iteration_s.shape[1:]).mean(axis=0)
