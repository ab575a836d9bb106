"""The GPUs of one expert-parallel group on a fabric, and how long a token's copies take to cross it.

Bytes scale an all-to-all's time, and bandwidth divides it, so both are computed once for a byte a copy and NICs (or
NVLinks) of 1 byte/s, exactly max-min fair; a step multiplies. Circuits are chosen once, for the mean of the layers, and
stay: no step of decoding lasts as long as a turn.
"""

import dataclasses
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from mfabric_jax import fabric, policies
from mfabric_jax.apps.serving.families import Family
from mfabric_jax.apps.serving.loads import Copies, Load, copies_of
from mfabric_jax.case import Case
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.asking import asked_of
from mfabric_jax.evaluate.links import unit_on_host
from mfabric_jax.evaluate.resolving import limits
from mfabric_jax.evaluate.resolving.resolve import STAYING, gpu_of, hardware_of
from mfabric_jax.evaluate.resolving.resolved import Hardware
from mfabric_jax.evaluate.solver import Question
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.site import Site
from mfabric_jax.policies.reads import ALONE
from mfabric_jax.policies.wirings import ALL_TO_ALLS, wired_as
from mfabric_jax.routing.fixed import fixed_times_now, inside_times_now, wired
from mfabric_jax.routing.graphs import ways_on_links
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.host_arrays import once_each_row
from mfabric_jax.traffic.dispatch import server_bytes
from mfabric_jax.workload import Gpu


@dataclasses.dataclass(frozen=True)
class Shape:
    """The size of the cluster of one group, as fabrics read it of a job."""

    gpus: int
    gpus_per_server: int
    tp = pp = dp = cp = folded = sequence_ranks = 1

    @property
    def ep(self) -> int:
        """GPUs that share the experts."""
        return self.gpus

    @property
    def servers(self) -> int:
        """Servers, or parts of scale-up domains."""
        return self.gpus // self.gpus_per_server

    @property
    def servers_per_region(self) -> int:
        """All of them."""
        return self.servers

    @property
    def ranks_per_server(self) -> int:
        """GPUs of a server."""
        return self.gpus_per_server


class Group(NamedTuple):
    """A group's GPUs on the fabric of a case."""

    on: Fabric
    hardware: Hardware
    shape: Shape

    @property
    def gpu(self) -> Gpu:
        return self.hardware.server

    @property
    def site(self) -> Site:
        return self.hardware.site_of(self.shape)

    @property
    def domains(self) -> int:
        """Scale-up domains (or servers) of the group."""
        return self.shape.servers

    def inside_Bps(self, nic_gbps: Any) -> Any:
        """Of a GPU in its server or domain [bytes/s]; a domain gives it no more than it has."""
        own = self.gpu.nvlink
        of_domain = self.on.inside_Bps(self.hardware.case.network.gpu_tbps, nic_gbps, own)
        return array_module(of_domain).minimum(of_domain, own)


LEAST_TIERS = 2  # caches go from groups that prefill to groups that decode, so several groups share a network


def check_network(case: Case) -> None:
    """`InputError` or `Misfit` for settings of the network that the fabric refuses or that serving does not read."""
    limits.check_beside("serving", case)
    limits.check_network(case, fabric.get(case.network.fabric), 0)  # whether a group has room is asked of its size


def check_links(group: Group) -> None:
    """`Misfit` where the fabric cannot join the servers of a group."""
    if group.domains > 1:
        network = group.hardware.case.network
        group.on.group(group.site, network.nic_gbps)


def group_of(case: Case, gpus: int, named: str = "serving.ep") -> Group:
    """The group of `gpus` GPUs of a case, `named` in mistakes; `Misfit` where they do not fill servers or domains."""
    on = fabric.get(case.network.fabric)
    gpu = gpu_of(case)
    size = on.gpus_of(gpu)
    if gpus > size and not on.leaves_spares and gpus % size:
        more = _larger_domain(gpu, gpus) if size > gpu.gpus_per_server else ""
        raise Misfit(f"{named} must fill servers of {size} GPUs on {on.name}: a multiple of {size}, got {gpus}{more}.")
    used = min(gpus, size) if not on.leaves_spares else on.used_of(gpu, gpus, gpus, 1)
    if gpus % used:
        raise Misfit(f"{named} must fill domains of {used} GPUs on {on.name}, got {gpus}.")
    shape = Shape(gpus, used)
    return Group(on, hardware_of(case, shape.servers, LEAST_TIERS, STAYING), shape)


def _larger_domain(gpu: Gpu, gpus: int) -> str:
    """Whether a domain without spares holds so many GPUs, in words."""
    whole = fabric.get("scale-up")
    return f"; {whole.name} takes {gpus} in one domain" if gpus <= whole.gpus_of(gpu) else ""


class Crossing(NamedTuple):
    """Seconds of one dispatch, mean over layers, for one token of every GPU, a byte a copy and links of 1 byte/s.

    - `between`, `inside`: over the network, and over the NVLinks of the slowest domain.
    - `extra_s`: latency of paths longer than those that kernels were measured on.
    """

    between: float
    inside: float
    extra_s: float = 0.0


USUAL_LINKS = 4  # of a path in the clusters that kernels were measured on: up and down two tiers


def crossing_of(group: Group, family: Family, load: Load) -> Crossing:
    """`Misfit` for kernels that do not reach beyond a domain."""
    group = lanes_of(group, family)
    return crossed(group, copies_of(load, family.copies, group.shape.gpus_per_server))


def lanes_of(group: Group, family: Family, named: str = "serving.ep") -> Group:
    """The group as a family's kernels see it: where pairs inside a domain cross NICs every GPU is a server of its own.

    `Misfit` for kernels that do not reach beyond a domain.
    """
    if family.inside == "nic":
        alone = dataclasses.replace(group.hardware, server_nics=1)
        return group._replace(hardware=alone, shape=Shape(group.shape.gpus, 1))
    if family.reach == "domain" and group.domains > 1:
        raise Misfit(
            f"serving.kernels {family.name} work inside one domain of {group.shape.gpus_per_server} GPUs on "
            f"{group.on.name}, got {named} {group.shape.gpus}."
        )
    return group


def crossed(group: Group, copies: Copies) -> Crossing:
    """How long these copies take."""
    case = group.hardware.case
    inside = once_each_row(lambda each: inside_times_now(each, 1.0), copies.inside).mean()
    if group.domains == 1:
        return Crossing(0.0, float(inside))
    extra = max(0, group.on.paths(group.site).links - USUAL_LINKS) * case.network.link_delay_s
    return Crossing(float(_between(group, copies).mean()), float(inside), extra + case.network.alpha_s)


def _between(group: Group, copies: Copies) -> Float[np.ndarray, "L"]:
    case: Any = group.hardware.case
    links: Any = group.on.group(group.site, case.network.nic_gbps)
    per_server = group.shape.gpus_per_server
    if links.reconfigures:
        return _on_circuits(links, case, server_bytes(copies.between, per_server))
    if links.shares_links:
        ways = ways_on_links(links, group.shape, case.network.paths.name, case.run.seed)  # type: ignore[arg-type]
        unit = unit_on_host(links)
        return once_each_row(lambda each: ways.times_now(unit, each), copies.between)
    if not links.joined and links.mesh is not None:
        links = wired(links)  # type: ignore[arg-type]
    elif not links.joined:
        mean, wiring = server_bytes(copies.between, per_server).mean(0), group.hardware.own(group.on.name).wiring
        links = wired_as(wiring, links, group.shape.servers, mean, ALL_TO_ALLS)  # type: ignore[arg-type]
    unit = unit_on_host(links)
    return once_each_row(lambda each: fixed_times_now(unit, each, per_server), copies.between)


def _on_circuits(region: Any, case: Any, demand: Float[np.ndarray, "L S S"]) -> Float[np.ndarray, "L"]:
    unit = unit_on_host(region)
    policy = policies.suited(case.circuits.policy, routing=case.circuits.routing, names=case.network.acos.topologies)
    policy = policies.for_demand_alone(policy) if policies.knows_place(case.circuits.policy) else policy
    asked = asked_of(unit, policy, ALONE, case.circuits.routing, 0.0, case.run.dtype)
    demand = demand * (1.0 - np.eye(demand.shape[-1]))
    count = asked.choose(Question(demand.mean(0, keepdims=True)))
    seconds = asked.seconds(np.broadcast_to(count, (len(demand), *count.shape[1:])), demand)
    return np.max(np.stack(seconds), axis=0)
