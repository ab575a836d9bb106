"""Rates and seconds of cases that differ in numbers: one case, many [N], or numbers that JAX traces."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.array_module import Array, array_module
from mfabric_jax.checks import one_of
from mfabric_jax.fabric.design import EpGroup, Fabric
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.timing.iteration import FabricRates, rates_of
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.kernels import Shares

Numbers = Mapping[str, Any]
NUMBERS = {  # of a case, by path, and what they are called here
    "network.nic_gbps": "nic_gbps",
    "network.goodput": "goodput",
    "network.link_delay_s": "link_delay_s",
    "network.alpha_s": "alpha_s",
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


def _rates_at(
    group: EpGroup,
    used: Transport,
    links: Any,
    *,
    goodput: Any,
    link_delay_s: Any,
    nvlink_Bps: Any,
    memory_Bps: Any,
    shares: Shares,
    each_s: Any = 0.0,
    reactivation_s: Any = 0.0,
    decision_s: Any = 0.0,
    alpha_s: Any = 0.0,
) -> FabricRates:
    """The rates of a group with transport `used` and paths of `links` links; all numbers but `shares` may be traced."""
    rest = {"latency_s": used.path_s(links, link_delay_s, group.nic_Bps), "nvlink_Bps": nvlink_Bps * shares.ring_nvlink}
    rest |= {"inside_Bps": nvlink_Bps * shares.nvlink, "counts_s": shares.counts_s, "alpha_s": alpha_s}
    if group.reconfigures or group.phases:
        rest |= {"delay_s": group.delay_s + reactivation_s, "each_s": each_s, "decision_s": decision_s}
    rates = rates_of(group, goodput=goodput * used.paced, acks=used.acks_back, memory_Bps=memory_Bps, **rest)
    nic, eps, send = rates.nic_Bps * shares.nic, rates.eps_Bps * shares.ring_nic, rates.send_Bps * shares.send
    return rates._replace(nic_Bps=nic, eps_Bps=eps, send_Bps=send)


class NetworkOf(eqx.Module):
    """A scenario's group, with what numbers of a case do not change of its rates and seconds."""

    on: Fabric = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    gpu_tbps: float = eqx.field(static=True)
    transport: Transport = eqx.field(static=True)
    weighs: bool = eqx.field(static=True)
    group: Any
    nics: Array
    decision_s: Float[Array, ""]
    peak_s: BlockSeconds
    shares: Shares
    path_links: Float[Array, "D"]  # by the number of a server's optical NICs where this may be a number, else one
    own_delay_s: Float[Array, ""] | None  # of a link, in the place of `network.link_delay_s`
    memory_Bps: Float[Array, ""]
    oversubscription: Float[Array, ""]

    @staticmethod
    def of(one: Any, dtype: str) -> "NetworkOf":
        """That of a scenario, in NumPy arrays."""
        settings = one.resolved

        def number(x: Any) -> np.ndarray:
            return np.asarray(x, dtype)

        def leaf(x: Any) -> np.ndarray:
            return np.asarray(x, np.int32 if np.asarray(x).dtype.kind in "iu" else dtype)

        return NetworkOf(
            on=one.fabric,
            dtype=dtype,
            gpu_tbps=settings.gpu_tbps,
            transport=settings.carried_by,
            weighs=one.weighs,
            group=jax.tree.map(leaf, one.group),
            nics=np.asarray(settings.server_nics or 0, np.int32),
            decision_s=number(one.decision_s),
            peak_s=jax.tree.map(number, settings.block_seconds(one.workload, 1.0)),
            shares=jax.tree.map(number, settings.shares(one.workload)),
            path_links=number(one.path_links_by_degree or (one.path_links,)),
            own_delay_s=None if one.own_delay_s is None else number(one.own_delay_s),
            memory_Bps=number(settings.memory_Bps),
            oversubscription=number(settings.oversubscription or 1.0),
        )

    @property
    def solved_for(self) -> tuple[str, ...]:
        """Paths of the numbers on which the all-to-alls depend."""
        if not self.on.reconfigures:
            return (PATHS["sample"],)
        ports = ("optical_degree",) if self.on.data else ("nic_gbps",)
        weighed = TRADED_OFF if self.weighs else ()
        return tuple(dict.fromkeys(PATHS[name] for name in ("sample", *ports, *weighed)))

    def costs(self, case: Numbers) -> tuple[FabricRates, BlockSeconds]:
        """Rates, and the seconds of a block."""
        typed = self._typed(case)
        names = ("goodput", "link_delay_s", "alpha_s", "each_s", "reactivation_s")
        numbers = {name: typed[name] for name in names if name in typed} | {"memory_Bps": self.memory_Bps}
        if self.own_delay_s is not None:
            numbers["link_delay_s"] = self.own_delay_s
        own = units.gigabytes_per_s(typed["nvlink_gigabytes_per_s"])
        numbers |= {
            "nvlink_Bps": self.on.nvlink_Bps(self.gpu_tbps, typed["nic_gbps"], own),
            "decision_s": self.decision_s,
        }
        path_links = self.path_links[typed["optical_degree"] if self.on.data else 0]
        rates = _rates_at(self._group(typed), self.transport, path_links, shares=self.shares, **numbers)
        xp, shape = array_module(self, typed), np.shape(typed["nic_gbps"])
        rates = jax.tree.map(lambda x: xp.broadcast_to(xp.asarray(x, self.dtype), shape), rates)
        return rates, jax.tree.map(lambda x: x / typed["efficiency"], self.peak_s)

    def group_at(self, case: Numbers) -> Any:
        """The group with the numbers of one case."""
        return self._group(self._typed(case))

    def _group(self, typed: Mapping[str, Any]) -> Any:
        group = self.on.at(self.group, typed["nic_gbps"], self.gpu_tbps)
        for name in (*self.on.data, *(("delay_s",) if group.reconfigures or group.phases else ())):
            group = eqx.tree_at(lambda g, name=name: getattr(g, name), group, typed[name])
        return group

    def _typed(self, case: Numbers) -> dict[str, Any]:
        for path in case:
            one_of("number of a case", path, NUMBERS)
        xp = array_module(self, case)
        found = {
            NUMBERS[path]: xp.asarray(x, np.int32 if NUMBERS[path] in WHOLE else self.dtype) for path, x in case.items()
        }
        if "optical_degree" in found:
            found["electrical_nics"] = (self.nics - found["optical_degree"]).astype(self.dtype) / self.oversubscription
        return found


def numbers_of(one: Any) -> dict[str, Any]:
    """The numbers of a scenario by path, at its first bandwidth."""
    settings = one.resolved
    case = {
        "nic_gbps": one.bandwidths[0],
        "goodput": settings.goodput,
        "link_delay_s": settings.case.network.link_delay_s,
        "alpha_s": settings.case.network.alpha_s,
    }
    case |= {"sample": 0, "efficiency": settings.achieved(one.workload)}
    case["nvlink_gigabytes_per_s"] = units.to_gigabytes(settings.server.nvlink)
    if one.group.reconfigures or one.group.phases:
        names = ("delay_s", "reactivation_s", *(("each_s",) if one.group.reconfigures else ()))
        case |= {name: getattr(settings.case.circuits, name) for name in names}
    if one.fabric.data:
        case["optical_degree"] = settings.optical_degree
    return {PATHS[name]: value for name, value in case.items()}
