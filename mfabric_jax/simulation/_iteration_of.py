"""One whole training iteration on a fabric as a function of numbers alone, for `evaluate` and sweeps."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.case import Case
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric.design import Fabric, group_numbers
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.resolving._resolve import resolve
from mfabric_jax.resolving.settings import rates_at
from mfabric_jax.simulation.measured import scenario_at
from mfabric_jax.simulation.scenario import Scenario
from mfabric_jax.simulation.solving import Given, Program, given_of, program_of
from mfabric_jax.timing import Rules, iterate
from mfabric_jax.timing.exchange import exchanges_inside
from mfabric_jax.timing.iteration import FabricRates
from mfabric_jax.timing.passes import Exchanges
from mfabric_jax.timing.switching import trade_off_of
from mfabric_jax.workload.compute import BlockSeconds

Numbers = Mapping[str, Any]
NUMBERS = {  # of a case, by path, and what they are called here
    "network.nic_gbps": "nic_gbps",
    "network.goodput": "goodput",
    "network.link_delay_s": "link_delay_s",
    "network.mfabric.optical_degree": "optical_degree",
    "circuits.delay_s": "delay_s",
    "circuits.each_s": "each_s",
    "circuits.reactivation_s": "reactivation_s",
    "compute.efficiency": "efficiency",
    "gpu.nvlink_gigabytes_per_s": "nvlink_gigabytes_per_s",
    "run.sample": "sample",
}
PATHS = {name: path for path, name in NUMBERS.items()}
TRADED_OFF = ("nic_gbps", "goodput", "delay_s", "each_s", "reactivation_s", "efficiency", "nvlink_gigabytes_per_s")
WHOLE = ("sample", "optical_degree")  # numbers that are whole


class IterationOf(eqx.Module):
    """Numbers of a case, by path (`NUMBERS`) -> seconds of `schedule.Iteration`, and `exposed_comm_s`.

    What is code (model, fabric, rules, a policy) is static; traffic, circuits of a fabric that is wired once and FLOP
    rates are arrays: other ones of the same shapes run in the same program.
    """

    on: Fabric = eqx.field(static=True)
    rules: Rules = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    gpu_tbps: float = eqx.field(static=True)
    transport: Transport = eqx.field(static=True)
    solver: Program
    group: Any
    given: Given
    nics: Int[Array, ""]
    decision_s: Float[Array, ""]
    peak_s: BlockSeconds
    path_links: Float[Array, ""]
    memory_Bps: Float[Array, ""]

    def __call__(self, case: Numbers) -> dict[str, Array]:
        return self.time(case, self.exchanges(case))

    def exchanges(self, case: Numbers) -> Exchanges:
        """The all-to-alls for NICs and an NVSwitch of 1 byte/s, without circuits. They depend on `solved_for` alone."""
        case = self._typed(case)
        group, at = self._group(case), case["sample"]
        workload = self.solver.workload
        weighs, routing = self.solver.first == "pays", self.solver.routing
        trade_off = trade_off_of(workload, *self._costs(case), routing) if weighs else None
        given = self.given.at(at)
        between = self.solver.between(group, given, trade_off)
        return between._replace(inside=exchanges_inside(workload, group, given.tokens), count=None)

    def time(self, case: Numbers, solved: Exchanges) -> dict[str, Array]:
        """Seconds with these all-to-alls."""
        rates, seconds = self._costs(self._typed(case))
        time = iterate(self.solver.workload, rates, solved, seconds, rules=self.rules)
        parts = {name: value for name, value in time._asdict().items() if name.endswith("_s")}
        return parts | {"exposed_comm_s": time.exposed_comm_s}

    @property
    def solved_for(self) -> tuple[str, ...]:
        """Paths of the numbers on which the all-to-alls depend."""
        if not self.on.reconfigures:
            return (PATHS["sample"],)
        ports = ("optical_degree",) if self.on.data else ("nic_gbps",)
        weighed = TRADED_OFF if self.solver.first == "pays" else ()
        return tuple(dict.fromkeys(PATHS[name] for name in ("sample", *ports, *weighed)))

    def _costs(self, case: Numbers) -> tuple[FabricRates, BlockSeconds]:
        """Bandwidths and delays, and computation of a block."""
        names = ("goodput", "link_delay_s", "each_s", "reactivation_s")
        numbers = {name: case[name] for name in names if name in case} | {"memory_Bps": self.memory_Bps}
        own = units.gigabytes_per_s(case["nvlink_gigabytes_per_s"])
        numbers |= {
            "nvlink_Bps": self.on.nvlink_Bps(self.gpu_tbps, case["nic_gbps"], own),
            "decision_s": self.decision_s,
        }
        rates = rates_at(self._group(case), self.transport, self.path_links, **numbers)
        rates = jax.tree.map(lambda x: jnp.asarray(x, self.dtype), rates)
        return rates, jax.tree.map(lambda x: x / case["efficiency"], self.peak_s)

    def _group(self, case: Numbers) -> Any:
        """The group with the numbers of a case."""
        group = self.on.at(self.group, case["nic_gbps"], self.gpu_tbps)
        for name in (*self.on.data, *(("delay_s",) if group.reconfigures else ())):
            group = eqx.tree_at(lambda g, name=name: getattr(g, name), group, case[name])
        return group

    def _typed(self, case: Numbers) -> Numbers:
        """By the names of here; NICs of a server that are on no optical switch are on the tree."""
        for path in case:
            one_of("number of a case", path, NUMBERS)
        names = {NUMBERS[path]: x for path, x in case.items()}
        found = {name: jnp.asarray(x, jnp.int32 if name in WHOLE else self.dtype) for name, x in names.items()}
        if "optical_degree" in found:
            found["electrical_nics"] = (self.nics - found["optical_degree"]).astype(self.dtype)
        return found


def iteration_of(case: Case) -> tuple[IterationOf, dict[str, Any]]:
    """A function of the numbers of a case, and the numbers that this case has, by path, to be changed or swept.

    Numbers are bandwidths, delays, the rate of computation, `run.sample` (which of the drawn or recorded iterations,
    from 0) and, on mFabric, `network.mfabric.optical_degree`. The function is for `evaluate`: its numbers may be
    traced, differentiated and batched; model, fabric, traffic, policy, routing and rules are those of the case. Other
    paths are refused; values are not checked.

    Example: `function, numbers = iteration_of(Case())`, then `evaluate(function, grid(**{path: [value] for path, value
    in numbers.items()} | {"circuits.delay_s": [0.001, 0.025]}))`.
    """
    if case.run.replicas != 1:
        raise InputError(f"a function of numbers is of one replica; run.replicas must be 1, got {case.run.replicas}.")
    return function_of(scenario_at(resolve(case), (case.network.nic_gbps,)))


def function_of(one: Scenario) -> tuple[IterationOf, dict[str, Any]]:
    """`iteration_of` of a scenario, at its first bandwidth."""
    settings, dtype = one.settings, one.settings.dtype
    peak_s = settings.block_seconds(one.workload, 1.0)
    function = IterationOf(
        on=one.fabric,
        rules=settings.rules,
        dtype=dtype,
        gpu_tbps=settings.gpu_tbps,
        nics=jnp.asarray(settings.server_nics or 0, jnp.int32),
        transport=settings.carried_by,
        solver=program_of(one),
        group=group_numbers(one.group, dtype),
        given=given_of(one),
        decision_s=jnp.asarray(one.decision_s, dtype),
        peak_s=jax.tree.map(lambda x: jnp.asarray(x, dtype), peak_s),
        path_links=jnp.asarray(one.fabric.path_links(settings), dtype),
        memory_Bps=jnp.asarray(settings.server.memory_Bps or jnp.inf, dtype),
    )
    case = {"nic_gbps": one.bandwidths[0], "goodput": settings.goodput, "link_delay_s": settings.link_delay_s}
    case |= {"sample": 0, "efficiency": settings.achieved(one.workload)}
    case["nvlink_gigabytes_per_s"] = units.to_gigabytes(settings.own_nvlink_Bps)
    if one.group.reconfigures:
        circuits = settings.case.circuits
        case |= {name: getattr(circuits, name) for name in ("delay_s", "each_s", "reactivation_s")}
    if one.fabric.data:
        case["optical_degree"] = settings.optical_degree
    return function, {PATHS[name]: value for name, value in case.items()}
