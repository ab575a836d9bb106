"""Rates and seconds of cases that differ only in numbers: of one case, of many [N], or traced by JAX."""

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.checks import one_of
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.transport import Transport
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.timing.iteration import FabricRates, rates_of
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.kernels import BandwidthShares

Numbers = Mapping[str, Any]
NUMBERS = {  # path of a number in a case: its name here
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
WHOLE = ("sample", "optical_degree")  # integers
DEGREES = ("optical_degree", "electrical_nics")  # fields of a region that a case's number may set


class NetworkOf(eqx.Module):
    """A problem's group, and the parts of its rates and seconds that the numbers of a case do not change."""

    on: Fabric = eqx.field(static=True)
    dtype: str = eqx.field(static=True)
    gpu_tbps: float = eqx.field(static=True)
    transport: Transport = eqx.field(static=True)
    weighs: bool = eqx.field(static=True)
    group: Any
    nics: Array
    decision_s: Float[Array, ""]
    peak_s: BlockSeconds
    shares: BandwidthShares
    path_links: Float[Array, "D"]  # one per number of a server's optical NICs if that varies, else one
    own_delay_s: Float[Array, ""] | None  # delay of a link; replaces `network.link_delay_s`
    memory_Bps: Float[Array, ""]
    fixed_s: Float[Array, ""]
    oversubscription: Float[Array, ""]

    @property
    def varies(self) -> bool:
        """Whether the number of optical NICs may vary between cases."""
        return self.on.about.optics.degree_varies

    @property
    def input_paths(self) -> tuple[str, ...]:
        """Paths of the numbers that the all-to-alls depend on."""
        if not self.on.reconfigures:
            return (PATHS["sample"],)
        ports = ("optical_degree",) if self.varies else ("nic_gbps",)
        weighed = TRADED_OFF if self.weighs else ()
        return tuple(dict.fromkeys(PATHS[name] for name in ("sample", *ports, *weighed)))

    def costs(self, case: Numbers) -> tuple[FabricRates, BlockSeconds]:
        """Return the rates of a case, and the seconds of a block."""
        typed, used, shares = self._to_arrays(case), self.transport, self.shares
        group, own = self._group(typed), units.gigabytes_per_s(typed["nvlink_gigabytes_per_s"])
        link_delay_s = typed["link_delay_s"] if self.own_delay_s is None else self.own_delay_s
        links = self.path_links[typed["optical_degree"] if self.varies else 0]
        nvlink_Bps = self.on.inside_Bps(self.gpu_tbps, typed["nic_gbps"], own)
        fields = {
            "goodput": typed["goodput"] * used.receiver_goodput,
            "acks": used.acks_back,
            "latency_s": used.path_s(links, link_delay_s, group.nic_Bps * min(group.speeds, default=1)),
            "alpha_s": typed["alpha_s"],
            "nvlink_Bps": nvlink_Bps * shares.ring_nvlink,
            "inside_Bps": nvlink_Bps * shares.nvlink,
            "memory_Bps": self.memory_Bps,
            "fixed_s": self.fixed_s,
            "tp_over": shares.tp_nvlink / shares.ring_nvlink,
            "beside": shares.beside,
            "ring_cores": shares.ring_cores,
            "counts_s": shares.counts_s,
        }
        if group.reconfigures or group.phases:
            fields["delay_s"] = group.delay_s + typed["reactivation_s"]
            fields["each_s"] = typed.get("each_s", 0.0)
            fields["decision_s"] = self.decision_s
        rates = rates_of(group, **fields)
        rates = rates._replace(
            nic_Bps=rates.nic_Bps * shares.nic,
            eps_Bps=rates.eps_Bps * shares.ring_nic,
            send_Bps=rates.send_Bps * shares.send,
        )
        xp, shape = array_module(self, typed), np.shape(typed["nic_gbps"])
        rates = jax.tree.map(lambda x: xp.broadcast_to(xp.asarray(x, self.dtype), shape), rates)
        return rates, jax.tree.map(lambda x: x / typed["efficiency"], self.peak_s)

    def group_at(self, case: Numbers) -> Any:
        """Return the group with the numbers of one case."""
        return self._group(self._to_arrays(case))

    def _group(self, typed: Mapping[str, Any]) -> Any:
        group = self.group.with_bandwidth(typed["nic_gbps"], self.gpu_tbps)
        for name in (*(DEGREES if self.varies else ()), *(("delay_s",) if group.reconfigures or group.phases else ())):
            group = eqx.tree_at(lambda g, name=name: getattr(g, name), group, typed[name])
        return group

    def _to_arrays(self, case: Numbers) -> dict[str, Any]:
        for path in case:
            one_of("number of a case", path, NUMBERS)
        xp = array_module(self, case)
        arrays = {
            NUMBERS[path]: xp.asarray(x, np.int32 if NUMBERS[path] in WHOLE else self.dtype) for path, x in case.items()
        }
        if "optical_degree" in arrays:
            arrays["electrical_nics"] = (self.nics - arrays["optical_degree"]).astype(
                self.dtype
            ) / self.oversubscription
        return arrays
