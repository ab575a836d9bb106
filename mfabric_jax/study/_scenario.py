"""A scenario: one model on one fabric with its traffic and all that is assumed."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import fabric, traffic
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.design import Fabric, group_numbers
from mfabric_jax.policies import topoopt
from mfabric_jax.routing.fixed import wired
from mfabric_jax.schedule.iteration import FabricRates
from mfabric_jax.schedule.spans import LONG
from mfabric_jax.study._foreseen import measured_decision_s
from mfabric_jax.study.config import Assumptions, Compare
from mfabric_jax.study.settings import ModelName
from mfabric_jax.traffic import Tokens, rank_bytes, server_bytes
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

AS_SET = "as set"  # the variant of a row whose settings were all given
REPEATED = {"block": "iteration and micro-batch", "one": "iteration, block and micro-batch"}


@dataclasses.dataclass(frozen=True)
class Scenario:
    """One model on one fabric, at all bandwidths at which its group has the same links but for their speed."""

    settings: Assumptions
    fabric: Fabric
    workload: Workload
    tokens: Tokens
    group: Any  # an `EpGroup`
    bandwidths: tuple[float, ...]
    circuits_for: str = "all-to-all"
    decision_s: float = 0.0
    variant: str = AS_SET

    @property
    def weighs(self) -> bool:
        """Whether circuits depend on bandwidth and computation, not on demand alone."""
        return self.settings.first == "pays" and self.group.reconfigures

    @property
    def mean_demand(self) -> jax.Array:
        """Bytes between the servers of a region [S S], the mean all-to-all of the run."""
        return mean_demand(self.workload, self.tokens)

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
        paths = self.fabric.name if self.settings.flows == "single" else None
        variant = self.variant if self.group.reconfigures else None
        return self.workload, form, numbers, paths, self.circuits_for, variant

    @property
    def inside_key(self) -> Any:
        """Scenarios with the same key have the same all-to-alls inside servers."""
        return "inside", self.workload, self.group.handover


def scenarios(config: Compare) -> list[Scenario]:
    """What there is to simulate, in the order of the rows; the traffic is read or drawn here."""
    made = []
    for model in config.models:
        config.achieved(config.workload(model))  # a measured iteration that cannot be is refused before all else
        tokens = tokens_of(config, config.workload(model), config.circuits_for)
        for name in config.fabrics:
            for variant, settings in variants_of(config, name).items():
                given = settings, model, name, config.nic_gbps, settings.nic_use, tokens, config.circuits_for
                made += scenarios_on(*given, variant=variant)
    return made


def variants_of(config: Compare, name: str) -> dict[str, Compare]:
    """In which ways a comparison shows a fabric, by name."""
    variants = fabric.get(name).variants if config.variants == "usual" else {}
    one = {"models": config.models, "fabrics": (name,), "variants": "one"}
    return {way: dataclasses.replace(config, **one, **changed) for way, changed in variants.items()} or {AS_SET: config}


def scenarios_on(
    settings: Assumptions,
    model: ModelName,
    name: str,
    nic_gbps: Sequence[float],
    nic_uses: Sequence[str],
    tokens: Tokens,
    circuits_for: Sequence[str] = ("all-to-all",),
    variant: str = AS_SET,
) -> list[Scenario]:
    """One model on one fabric: a scenario for every use of its NICs, for bandwidths that change its links, and, where
    circuits change, for every span in which they stay."""
    on = fabric.get(name)
    job = settings.workload(model, on.gpus_of(settings.server))
    columns = [settings.groups(model, name, gbps, nic_uses) for gbps in nic_gbps]
    made: dict[Any, Scenario] = {}
    spans = circuits_for if on.reconfigures else circuits_for[:1]
    for span, use in itertools.product(spans, range(len(columns[0]))):
        for gbps, groups in zip(nic_gbps, columns, strict=True):
            one = Scenario(settings, on, job, tokens, groups[use], (gbps,), span, variant=variant)
            key = use, one.between_key
            if key in made:
                made[key] = dataclasses.replace(made[key], bandwidths=(*made[key].bandwidths, gbps))
            else:
                made[key] = dataclasses.replace(one, group=_linked(one), decision_s=_decision_s(one))
    return list(made.values())


def _decision_s(one: Scenario) -> float:
    """Seconds of a decision; a policy is timed with the first all-to-all of the run."""
    settings, job = one.settings, one.workload
    if not one.group.reconfigures:
        return 0.0
    if not isinstance(settings.decision_s, str):
        return settings.decision_s
    first = jnp.asarray(one.tokens.count[0, 0, 0], settings.dtype)
    demand = server_bytes(rank_bytes(first, job.dispatch_bytes_per_selection), job.ranks_per_server)
    policy = settings.circuits_policy(jnp.asarray(one.mean_demand, settings.dtype))
    return measured_decision_s(policy, group_numbers(one.group, settings.dtype), demand, jax.random.key(settings.seed))


def _linked(one: Scenario) -> Any:
    """The group; where its links are chosen once, they are chosen for the mean traffic of the run."""
    group = one.group
    if group.reconfigures or getattr(group, "count", group) is not None:
        return group
    region = Region(group.servers, group.nic_gbps, group.nics)
    return wired(group, topoopt(one.mean_demand, region).circuits.count)


def mean_demand(workload: Workload, tokens: Tokens) -> jax.Array:
    """Bytes between the servers of a region [S S], the mean all-to-all of the run."""
    mean = np.asarray(tokens.count, np.float64).mean(axis=(0, 1, 2))
    return server_bytes(rank_bytes(mean, workload.dispatch_bytes_per_selection), workload.ranks_per_server)


def tokens_of(settings: Assumptions, workload: Workload, circuits_for: Sequence[str] = ()) -> Tokens:
    """The traffic of one model; where matrices repeat, one is given for all. Where circuits are chosen on the past of a
    span, the first iteration is that past, and one more is drawn or read."""
    past = settings.plan_on == "past" and any(span in LONG for span in circuits_for)
    tokens = _tokens(settings, workload, settings.iterations + past)
    tokens = tokens.after_the_first() if past else tokens
    if settings.matrices == "each":
        return tokens
    layers = slice(None) if settings.matrices == "block" else slice(1)
    alike = tokens.count[:1, layers, :1]
    return Tokens(alike, f"{tokens.source}, the same for every {REPEATED[settings.matrices]}", alike[0])


def _tokens(settings: Assumptions, workload: Workload, iterations: int) -> Tokens:
    if settings.trace is not None:
        return traffic.recorded(workload, settings.trace, settings.records, iterations, settings.axes)
    if (knobs := settings.knobs()) is not None:
        return traffic.from_knobs(workload, knobs, iterations, settings.drawn, settings.seed)
    drawn: dict[str, Any] = {"iterations": iterations, "micro_batches": settings.drawn}
    drawn |= {"seed": settings.seed, "drift": settings.drift}
    if settings.traffic == "generated":
        return traffic.generated(workload, settings.skew, **drawn)
    return traffic.measured(workload, **drawn)


def check_dtype(dtype: str) -> None:
    """`InputError` for float64 where JAX would silently compute in float32."""
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")
