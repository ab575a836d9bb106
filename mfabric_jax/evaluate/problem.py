"""A problem: one model on one fabric with its traffic and assumptions.

Data-parallel replicas may have their own traffic. Gradients of a stage wait for all replicas, so an iteration takes as
long as the slowest replica.
"""

import dataclasses
import functools
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import policies, routing, timing, units
from mfabric_jax.case.policies import BOUND
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.demands import BetweenServers
from mfabric_jax.evaluate.experts import busy_of_blocks, busy_of_layers
from mfabric_jax.evaluate.numbers import PATHS, NetworkOf
from mfabric_jax.evaluate.paths import carry_of
from mfabric_jax.evaluate.resolving.limits import check_modelled
from mfabric_jax.evaluate.resolving.resolved import SCHEDULE, Resolved
from mfabric_jax.evaluate.resolving.traffic import traffic_of
from mfabric_jax.evaluate.rules import TradeOff, trade_off_of
from mfabric_jax.fabric import Circuits
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.policies import Policy, is_own, uniform, weighs_changes
from mfabric_jax.routing import Plan
from mfabric_jax.routing.fixed import add_paths
from mfabric_jax.support import programs
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.traffic import Tokens, dispatched_bytes, sent_tokens, server_bytes
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds

DTYPES = ("float32", "float64")
MOST_KEPT = 1 << 29  # bytes of results that problems share
AS_SET = "as set"  # variant name of a row without variants


class Shared:
    """Results by key, each computed once; if they have more than `most` bytes, the least recently used are forgotten.

    The size of a result without arrays is its `nbytes`.
    """

    def __init__(self, most: float = math.inf) -> None:
        self._most, self._one = most, threading.Lock()
        self._known: dict[Any, tuple[Any, int]] = {}
        self._locks: dict[Any, threading.Lock] = {}

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """Return the result of `make`, cached under a key; concurrent calls for that key wait."""
        with self._locks.setdefault(key, threading.Lock()):
            with self._one:
                known = self._known.pop(key, None)
            result = make() if known is None else known[0]
            size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(result)) if known is None else known[1]
            with self._one:
                self._known[key] = result, size  # at the end: used last
                while sum(size for _, size in self._known.values()) > self._most:
                    first = next(iter(self._known))
                    del self._known[first]
                    self._locks.pop(first, None)
        return result


_SOLVED = Shared(MOST_KEPT)


@dataclasses.dataclass(frozen=True)
class Problem:
    """One model on one fabric, at bandwidths that only scale the links of its group."""

    resolved: Resolved
    tokens: Tokens
    group: Any  # an `EpGroup`
    bandwidths: tuple[float, ...]
    circuits_for: str = "all-to-all"
    decision_s: float = 0.0
    variant: str = AS_SET
    others: tuple[Tokens, ...] = ()  # traffic of further replicas

    @property
    def fabric(self) -> Fabric:
        return self.resolved.fabric

    @property
    def workload(self) -> Workload:
        return self.resolved.job

    @property
    def every_replica(self) -> tuple[Tokens, ...]:
        return self.tokens, *self.others

    @property
    def each_replica(self) -> "list[Problem]":
        """A problem for every replica."""
        return [dataclasses.replace(self, tokens=tokens, others=()) for tokens in self.every_replica]

    @property
    def shown_iteration(self) -> int:
        """Index of the iteration to show: `run.sample`, or the last."""
        sample = self.resolved.case.run.sample
        return len(self.tokens.count) - 1 if sample is None else sample

    def once(self, make: Callable[[], Any], *of: Any) -> Any:
        """Return the result of `make`, computed once for the same tokens, equal EP groups, and equal values `of`.

        `of` names the result and holds all else that decides it. So problems share what does not depend on pipelines.
        """
        if (key := programs.contents(of)) is None:
            return make()
        tokens = tuple(replica.digest for replica in self.every_replica)
        return _SOLVED.get((self.workload.ep_group, tokens, key), make)

    @property
    def own_selections(self) -> np.ndarray:
        return sent_tokens(self.workload, self.tokens)

    @property
    def iterations(self) -> int:
        """Number of iterations over all replicas."""
        return sum(len(replica.count) for replica in self.every_replica)

    @functools.cached_property
    def selections(self) -> Float[np.ndarray, "I layer M R C"]:
        """Selections of experts that all replicas send, in float64."""
        each = [np.asarray(replica.own_selections, float) for replica in self.each_replica]
        return np.concatenate(each) if self.others else each[0]

    @property
    def between(self) -> BetweenServers:
        """Demands between servers of all replicas."""
        return self.once(lambda: BetweenServers.of(self.workload.ep_group, self.selections), "between")

    @functools.cached_property
    def busy(self) -> Float[np.ndarray, "I P Q L"] | None:
        """`expert_load` of every block; None: experts are balanced."""
        job, experts = self.workload, cast(Any, self.resolved.case.compute.experts)
        if experts.name != "received":
            return None

        def load() -> np.ndarray:
            return np.stack([busy_of_layers(job.ep_group, each, experts.tile) for each in self.selections])

        return busy_of_blocks(job, self.once(load, "busy", experts.tile))

    @property
    def weighs(self) -> bool:
        """Whether circuits also depend on bandwidth and computation; a user's policy reads the values of its row."""
        if not self.group.reconfigures or self.resolved.first == BOUND:
            return False
        paced = self.resolved.first in ("pays", SCHEDULE) or weighs_changes(self.resolved.policy)
        return paced or is_own(self.resolved.policy)

    @functools.cached_property
    def plans_schedules(self) -> bool:
        """Whether the plans of the user's policy hold schedules."""
        if not (self.group.reconfigures and is_own(self.resolved.policy)) or self.resolved.is_scheduled:
            return False
        run = self.resolved.case.run
        demand = jax.ShapeDtypeStruct((self.group.servers, self.group.servers), run.dtype)
        region, key = group_numbers(self.group, run.dtype), jax.random.key(run.seed)
        return timing.carries_schedule(self.resolved.circuits_policy(), region, demand, key)

    @functools.cached_property
    def mean_demand(self) -> Float[Array, "S S"]:
        """Bytes between the servers of a region [S S]: the mean all-to-all of the run, over all replicas."""
        job = self.workload.ep_group

        def mean() -> np.ndarray:
            each = (np.asarray(replica.own_selections, np.float64) for replica in self.each_replica)
            mean = np.mean([sent.mean(axis=(0, 1, 2)) for sent in each], axis=0)
            return server_bytes(dispatched_bytes(job, mean), job.ranks_per_server)

        return self.once(mean, "mean")

    @functools.cached_property
    def carry(self) -> Any:
        """Paths of flows that do not spread; None: bytes spread over circuits, NICs and links."""
        return carry_of(self.resolved, self.group)

    @functools.cached_property
    def costs(self) -> TradeOff:
        """Costs and gains of a reconfiguration, at every bandwidth."""
        each = [(self.rates(gbps), self.seconds) for gbps in self.bandwidths]
        rates, seconds = jax.tree.map(lambda *x: np.array(x, float), *each)
        return trade_off_of(self.workload, rates, seconds, self.resolved.routing, self.resolved.horizon)

    @functools.cached_property
    def path_links(self) -> float:
        """Links on the longest path between servers: the fabric's, or the group's if its servers forward over more."""
        return max(self.fabric.paths(self.resolved.site).links, getattr(self.group, "longest_path_links", None) or 0)

    @property
    def path_links_by_degree(self) -> tuple[float, ...]:
        """`path_links` for 0, 1, ... optical NICs of a server; empty if that number cannot vary."""
        each = (dataclasses.replace(self.resolved, tiers=tiers) for tiers in self.resolved.tiers_by_degree)
        return tuple(dataclasses.replace(self, resolved=resolved).path_links for resolved in each)

    @functools.cached_property
    def own_delay_s(self) -> float | None:
        """Delay of a link if the fabric sets it; None: `network.link_delay_s`."""
        return self.fabric.paths(self.resolved.site).delay_s

    @functools.cached_property
    def network(self) -> NetworkOf:
        """The problem's rates and seconds as functions of its numbers, in float64."""
        return network_of(self, "float64")

    def rates(self, nic_gbps: float) -> FabricRates:
        """Return the rates at a NIC bandwidth."""
        rates, _ = self.network.costs(numbers_of(self) | {PATHS["nic_gbps"]: nic_gbps})
        return rates

    @property
    def seconds(self) -> BlockSeconds:
        return self.resolved.block_seconds(self.workload)

    @property
    def between_key(self) -> Any:
        """Key of the all-to-alls between servers; problems with equal keys share them."""
        leaves, form = jax.tree.flatten(eqx.tree_at(lambda group: group.nic_gbps, self.group, 1.0))
        numbers = tuple(np.asarray(leaf).tobytes() for leaf in leaves)
        settings = self.resolved
        network = settings.case.network
        single = (self.fabric.name, network.paths, network.radix) if network.paths.name == "ecmp" else None
        # Only fabrics with circuits have settings that the group does not contain.
        wired = settings.own(self.fabric.name) if self.fabric.about.optics.wires is not None else None
        paths = single, wired
        variant = self.variant if self.group.reconfigures else None
        return self.workload, form, numbers, paths, self.circuits_for, variant, self._solve_key

    @property
    def _traffic_key(self) -> Any:
        case = self.resolved.case
        return case.traffic, case.placement, case.run, self.resolved.past

    @property
    def _solve_key(self) -> Any:
        case = self.resolved.case
        if self.weighs:
            return case.with_({"network.nic_gbps": 1.0}), self.bandwidths
        circuits = case.circuits if self.group.reconfigures else None
        return self._traffic_key, circuits, case.compute.experts, case.network.payload, case.network.paths


def problem_of(
    resolved: Resolved,
    bandwidths: tuple[float, ...],
    *,
    variant: str = AS_SET,
    traffic: tuple[Tokens, ...] | None = None,
) -> Problem:
    """Return the problem of a case. It reads or draws the traffic (cached) unless `traffic` of every replica is
    passed."""
    check_modelled("an iteration of one group", resolved.case)
    if traffic is None:
        traffic = traffic_of(resolved.case, resolved.job, past=resolved.past)
    tokens, *others = traffic
    group = resolved.fabric.group(resolved.site, bandwidths[0])
    problem = Problem(resolved, tokens, group, bandwidths, resolved.circuits_for, variant=variant, others=tuple(others))
    return dataclasses.replace(problem, group=link_group(problem, problem.group), decision_s=_decision_s(problem))


def _decision_s(problem: Problem) -> float:
    settings, job = problem.resolved, problem.workload
    if not problem.group.reconfigures:
        return 0.0
    decision_s = settings.case.circuits.decision_s
    if not isinstance(decision_s, str):
        return decision_s
    run = settings.case.run
    first = jnp.asarray(problem.own_selections[0, 0, 0], run.dtype)
    demand = server_bytes(dispatched_bytes(job, first), job.ranks_per_server)
    region = group_numbers(problem.group, run.dtype)
    return measured_decision_s(policy_of_mean(problem), region, demand, jax.random.key(run.seed))


def policy_of_mean(problem: Problem) -> Policy:
    """Return the policy of a problem; "static" gets the mean demand of the run."""
    return problem.resolved.circuits_policy(jnp.asarray(problem.mean_demand, problem.resolved.case.run.dtype))


WARM_UP, TIMED = 3, 15  # decisions


def measured_decision_s(policy: Policy, region: Any, demand: Float[Array, "S S"], key: Array) -> float:
    """Return the median seconds that the compiled policy takes for one region on this machine."""

    @eqx.filter_jit
    def decide(region: Any, demand: Array, before: Array):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    arguments, durations = (region, demand, uniform(None, region).circuits.count), []
    for _ in range(WARM_UP + TIMED):
        began = time.perf_counter()
        jax.block_until_ready(decide(*arguments))
        durations.append(time.perf_counter() - began)
    return statistics.median(durations[WARM_UP:])


def network_of(problem: Problem, dtype: str) -> NetworkOf:
    """Return the rates and seconds of a problem as functions of its numbers, in NumPy arrays."""
    settings, degrees = problem.resolved, problem.path_links_by_degree
    numbers = {
        "decision_s": problem.decision_s,
        "peak_s": settings.block_seconds(problem.workload, 1.0),
        "shares": settings.shares(problem.workload),
        "path_links": np.asarray(degrees or (problem.path_links,)),
        "own_delay_s": problem.own_delay_s,
        "memory_Bps": settings.memory_Bps,
        "fixed_s": settings.fixed_s,
        "oversubscription": settings.oversubscription or 1.0,
    }
    return NetworkOf(
        on=problem.fabric,
        dtype=dtype,
        gpu_tbps=settings.gpu_tbps,
        transport=settings.carried_by,
        weighs=problem.weighs,
        group=group_numbers(problem.group, dtype),
        nics=np.asarray(settings.server_nics or 0, np.int32),
        **jax.tree.map(lambda x: np.asarray(x, dtype), numbers),
    )


def numbers_of(problem: Problem) -> dict[str, Any]:
    """Return the numbers of a problem by path, at its first bandwidth."""
    settings = problem.resolved
    case = {
        "nic_gbps": problem.bandwidths[0],
        "goodput": settings.goodput,
        "link_delay_s": settings.case.network.link_delay_s,
        "alpha_s": settings.case.network.alpha_s,
    }
    case |= {"sample": 0, "efficiency": settings.efficiency_of(problem.workload)}
    case["nvlink_gigabytes_per_s"] = units.to_gigabytes(settings.server.nvlink)
    if problem.group.reconfigures or problem.group.phases:
        names = ("delay_s", "reactivation_s", *(("each_s",) if problem.group.reconfigures else ()))
        case |= {name: getattr(settings.case.circuits, name) for name in names}
    if problem.fabric.about.optics.degree_varies:
        case["optical_degree"] = settings.optical_degree
    return {PATHS[name]: value for name, value in case.items()}


def own_keys(problem: Problem) -> np.ndarray:
    """Return the key data of every iteration of every replica [I 2]."""
    key, every = jax.random.key(problem.resolved.case.run.seed), []
    for number, replica in enumerate(problem.every_replica):
        every.append(jax.random.split(jax.random.fold_in(key, number) if number else key, len(replica.count)))
    return np.concatenate([np.asarray(jax.random.key_data(each)) for each in every])


def link_group(problem: Problem, group: Any) -> Any:
    """Return the group with its paths and, if its links are fixed, links chosen for the mean traffic of the run."""
    if group.has_paths:
        return group
    if group.shares_links:
        return routing.add_rates(
            group, problem.workload, problem.resolved.case.network.paths.name, problem.resolved.case.run.seed
        )
    if group.mesh is not None:
        return add_paths(group)
    job, demand = problem.workload, problem.mean_demand
    wiring = problem.resolved.own(problem.fabric.name).wiring
    return policies.wire_group(wiring, group, job.servers // job.pp, demand, policies.bytes_sent(job, demand))


def check_dtype(dtype: str) -> None:
    """Raise InputError for float64 if JAX would silently compute in float32."""
    if dtype == "float64" and not jax.config.read("jax_enable_x64"):
        raise InputError("dtype float64 needs jax.config.update('jax_enable_x64', True) before the first computation.")


def slowest_columns(seconds: Mapping[str, np.ndarray], replicas: int) -> dict[str, np.ndarray]:
    """Return the columns [N] of the slowest replicas and `replica_s`, the mean seconds, from columns [replica x N]."""
    each = {name: values.reshape(replicas, -1) for name, values in seconds.items()}
    last = each["iteration_s"].argmax(axis=0), np.arange(each["iteration_s"].shape[1])
    return {name: values[last] for name, values in each.items()} | {"replica_s": each["iteration_s"].mean(axis=0)}
