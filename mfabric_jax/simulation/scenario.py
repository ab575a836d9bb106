"""A scenario: one model on one fabric with its traffic and all that is assumed."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import traffic
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError
from mfabric_jax.fabric.design import Fabric, group_numbers
from mfabric_jax.resolving._resolve import Resolved
from mfabric_jax.resolving.limits import check_beside
from mfabric_jax.resolving.settings import Settings, knobs_of
from mfabric_jax.routing.fixed import wired
from mfabric_jax.simulation.foreseen import measured_decision_s
from mfabric_jax.simulation.replicas import drawn_apart, read_apart, replicas_of
from mfabric_jax.simulation.wiring import WIRINGS
from mfabric_jax.text_files import stamp
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.spans import LONG
from mfabric_jax.traffic import Tokens, dispatched_bytes, sent_tokens, server_bytes
from mfabric_jax.traffic.placement import placed_alike, placement_policy
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

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
        return self.settings.rates(self.fabric, self.group, nic_gbps)._replace(decision_s=self.decision_s)

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
    tokens, *others = _traffic_once(TrafficOf(resolved)) if traffic is None else traffic
    (group, *_) = resolved.fabric.groups(settings, job, bandwidths[0], (settings.case.network.nic_use,))
    rest = {"circuits_for": settings.circuits_for, "variant": variant, "others": tuple(others)}
    one = Scenario(settings, resolved.fabric, job, tokens, group, bandwidths, **rest)  # type: ignore[arg-type]
    return dataclasses.replace(one, group=linked(one, one.group), decision_s=_decision_s(one))


class TrafficOf:
    """A case as far as its traffic goes: what is placed is placed on servers, which fabrics may have larger."""

    def __init__(self, resolved: Resolved):
        self.resolved, case, job = resolved, resolved.case, resolved.job
        shape = {field.name: getattr(job, field.name) for field in dataclasses.fields(job)}
        if case.placement.rule.name == "contiguous":
            del shape["gpus_per_server"]
        run = case.run.seed, case.run.iterations, case.run.replicas
        past = resolved.settings.plan_on, resolved.settings.circuits_for in LONG
        source = case.traffic.source
        file = stamp(getattr(source, "value", None) or getattr(source, "path", None) or "")
        self._key = tuple(shape.items()), case.traffic, file, case.placement, run, past

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, TrafficOf) and self._key == other._key


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
    first = jnp.asarray(one.sent[0, 0, 0], settings.dtype)
    demand = server_bytes(dispatched_bytes(job, first), job.ranks_per_server)
    policy = settings.circuits_policy(jnp.asarray(one.mean_demand, settings.dtype))
    return measured_decision_s(policy, group_numbers(one.group, settings.dtype), demand, jax.random.key(settings.seed))


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
