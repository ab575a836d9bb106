"""The GPUs of one expert-parallel group on a fabric, and how long a token's copies take to cross it.

The time of an all-to-all is proportional to bytes over bandwidth. So it is computed once, exactly max-min fair, for 1
byte per copy and NICs (or NVLinks) of 1 byte/s; a step then scales it. Circuits are chosen once, for the mean of the
layers, and stay: reconfiguration takes longer than a decoding step.
"""

import dataclasses
from typing import Any, NamedTuple

import msgspec
import numpy as np
from jaxtyping import Float

from mfabric_jax import fabric, policies
from mfabric_jax.apps.serving.expert_load import Copies, ExpertLoad, copies_of
from mfabric_jax.case import Case
from mfabric_jax.case.serving import ServingSettings
from mfabric_jax.checks import Misfit
from mfabric_jax.evaluate.asking import region_functions
from mfabric_jax.evaluate.links import unit_on_host
from mfabric_jax.evaluate.resolving import limits
from mfabric_jax.evaluate.resolving.resolve import STAYING, gpu_of, hardware_of
from mfabric_jax.evaluate.resolving.resolved import Hardware, tree_room
from mfabric_jax.evaluate.rows.costs import PLACES, Bill, bill_of, tree_nics
from mfabric_jax.evaluate.solver import Question
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.parts_list import PartsTable
from mfabric_jax.fabric.site import FabricSite
from mfabric_jax.policies.reads import ALONE
from mfabric_jax.policies.wirings import ALL_TO_ALLS, wire_group
from mfabric_jax.routing.fixed import add_paths, fixed_times_now, inside_times_now
from mfabric_jax.routing.graphs import paths_on_links
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.host_arrays import once_each_row
from mfabric_jax.traffic.dispatch import server_bytes
from mfabric_jax.workload import Gpu
from mfabric_jax.workload.dispatch_kernels import Family


@dataclasses.dataclass(frozen=True)
class GroupShape:
    """The size of a cluster with one group, with the fields that fabrics read from a job."""

    gpus: int
    gpus_per_server: int
    tp = pp = dp = cp = folded = sequence_ranks = 1

    @property
    def ep(self) -> int:
        """GPUs that share the experts."""
        return self.gpus

    @property
    def servers(self) -> int:
        """Servers, or (parts of) scale-up domains."""
        return self.gpus // self.gpus_per_server

    @property
    def servers_per_region(self) -> int:
        """Servers of the group's region, which are all servers."""
        return self.servers

    @property
    def ranks_per_server(self) -> int:
        """EP ranks of a server: one per GPU."""
        return self.gpus_per_server


class ServingGroup(NamedTuple):
    """The GPUs of an expert-parallel group on the fabric `on` of a case; `tiers`: `network.tiers` as stated."""

    on: Fabric
    hardware: Hardware
    shape: GroupShape
    tiers: int | str

    @property
    def gpu(self) -> Gpu:
        return self.hardware.server

    @property
    def site(self) -> FabricSite:
        return self.hardware.site_of(self.shape)

    @property
    def domains(self) -> int:
        """Number of scale-up domains (or servers) of the group."""
        return self.shape.servers

    @property
    def leaving(self) -> float:
        """Part of a NIC with which a GPU's caches leave the group: NICs on packet switches over GPUs; at most 1.

        It is 1 too if no NIC is on a switch: what the links of a mesh or torus lack is not modelled.
        """
        nics = sum(group.nics for group in self.on.parts(self.site) if group.attachment.switch_ports)
        return min(1.0, float(nics) / self.shape.gpus_per_server) if nics else 1.0

    @property
    def tree_nics(self) -> float:
        """NICs on switch trees that the group needs."""
        return tree_nics(self.hardware, self.shape)

    def tiers_for(self, nics: float) -> int:
        """Return the tiers to pay for, unless stated, of the trees of a network with this many NICs on them."""
        if self.tiers != "fewest":
            return int(self.tiers)
        return tree_room(self.hardware.case.network, self.on).paid_tiers_for(round(nics, PLACES))

    def bill_on(self, tiers: int, parts: PartsTable | None = None) -> Bill:
        """Return the bill of the group as part of a network whose trees have these tiers; `parts`: other prices."""
        network = self.hardware.case.network
        if tiers == 1:  # no links up, so no ratio
            network = msgspec.structs.replace(network, oversubscription=1.0)
        return bill_of(self.hardware, self.shape, self.hardware.nic_gbps, parts, tiers=tiers, network=network)

    def inside_Bps(self, nic_gbps: Any) -> Any:
        """Return a GPU's bandwidth [bytes/s] inside its server or domain: the domain's, at most the GPU's own."""
        own = self.gpu.nvlink
        of_domain = self.on.inside_Bps(self.hardware.case.network.gpu_tbps, nic_gbps, own)
        return array_module(of_domain).minimum(of_domain, own)


NO_SERVING = ServingSettings()
LEAST_TIERS = 2  # of trees that a group's bytes cross, as where kernels were measured; dollars count those needed


def check_network(case: Case) -> None:
    """Raise `InputError` or `Misfit` for network settings that the fabric refuses or that serving does not read."""
    limits.check_modelled("serving", case)
    limits.check_network(case, fabric.get(case.network.fabric))


def check_links(group: ServingGroup) -> None:
    """Raise `Misfit` if the fabric cannot connect the servers of a group."""
    if group.domains > 1:
        network = group.hardware.case.network
        group.on.group(group.site, network.nic_gbps)


def group_of(case: Case, gpus: int, named: str = "serving.ep") -> ServingGroup:
    """Return the group of `gpus` GPUs of a case. `named`: the setting to name in errors.

    Raise `Misfit` if the GPUs do not fill servers or domains.
    """
    on = fabric.get(case.network.fabric)
    gpu = gpu_of(case)
    size = on.gpus_of(gpu)
    if gpus > size and not on.leaves_spares and gpus % size:
        more = _larger_domain(gpu, gpus) if size > gpu.gpus_per_server else ""
        raise Misfit(f"{named} must fill servers of {size} GPUs on {on.name}: a multiple of {size}, got {gpus}{more}.")
    used = min(gpus, size) if not on.leaves_spares else on.used_of(gpu, gpus, gpus, 1)
    if gpus % used:
        raise Misfit(f"{named} must fill domains of {used} GPUs on {on.name}, got {gpus}.")
    shape = GroupShape(gpus, used)
    unread = msgspec.structs.replace(case, serving=NO_SERVING)  # all sizes of a search then share their hardware
    return ServingGroup(on, hardware_of(unread, shape.servers, LEAST_TIERS, STAYING), shape, case.network.tiers)


def _larger_domain(gpu: Gpu, gpus: int) -> str:
    """A hint if a domain without spare GPUs holds all `gpus`, else empty."""
    whole = fabric.get("scale-up")
    return f"; {whole.name} takes {gpus} in one domain" if gpus <= whole.gpus_of(gpu) else ""


class Crossing(NamedTuple):
    """Seconds of one dispatch for one token of every GPU, at 1 byte per copy and links of 1 byte/s; mean over layers.

    - `between`, `inside`: over the network, and over the NVLinks of the slowest domain.
    - `extra_s`: latency of paths that are longer than those on which the kernels were measured.
    """

    between: float
    inside: float
    extra_s: float = 0.0


USUAL_LINKS = 4  # of a path in the clusters where kernels were measured: up and down two tiers


def crossing_of(group: ServingGroup, family: Family, load: ExpertLoad) -> Crossing:
    """Return how copies cross a group with a family's kernels. Raise `Misfit` for kernels that need a single domain."""
    group = lanes_of(group, family)
    return crossing_of_copies(group, copies_of(load, family.copies, group.shape.gpus_per_server))


def lanes_of(group: ServingGroup, family: Family, named: str = "serving.ep") -> ServingGroup:
    """Return the group as kernels see it: every GPU is a server of its own if pairs inside a domain use NICs.

    Raise `Misfit` for kernels that need a single domain.
    """
    if family.inside == "nic":
        alone = dataclasses.replace(group.hardware, server_nics=1)
        return group._replace(hardware=alone, shape=GroupShape(group.shape.gpus, 1))
    if family.reach == "domain" and group.domains > 1:
        raise Misfit(
            f"serving.kernels {family.name} work inside one domain of {group.shape.gpus_per_server} GPUs on "
            f"{group.on.name}, got {named} {group.shape.gpus}."
        )
    return group


def crossing_of_copies(group: ServingGroup, copies: Copies) -> Crossing:
    """Return how long copies take to cross a group."""
    case = group.hardware.case
    inside = once_each_row(lambda each: inside_times_now(each, 1.0), copies.inside).mean()
    if group.domains == 1:
        return Crossing(0.0, float(inside))
    extra = max(0, group.on.paths(group.site).links - USUAL_LINKS) * case.network.link_delay_s
    return Crossing(float(_between(group, copies).mean()), float(inside), extra + case.network.alpha_s)


def _between(group: ServingGroup, copies: Copies) -> Float[np.ndarray, "L"]:
    case: Any = group.hardware.case
    links: Any = group.on.group(group.site, case.network.nic_gbps)
    per_server = group.shape.gpus_per_server
    if links.reconfigures:
        return _on_circuits(links, case, server_bytes(copies.between, per_server))
    if links.shares_links:
        paths = paths_on_links(links, group.shape, case.network.paths.name, case.run.seed)  # type: ignore[arg-type]
        unit = unit_on_host(links)
        return once_each_row(lambda each: paths.times_now(unit, each), copies.between)
    if not links.has_paths and links.mesh is not None:
        links = add_paths(links)  # type: ignore[arg-type]
    elif not links.has_paths:
        mean, wiring = server_bytes(copies.between, per_server).mean(0), group.hardware.own(group.on.name).wiring
        links = wire_group(wiring, links, group.shape.servers, mean, ALL_TO_ALLS)  # type: ignore[arg-type]
    unit = unit_on_host(links)
    return once_each_row(lambda each: fixed_times_now(unit, each, per_server), copies.between)


def _on_circuits(region: Any, case: Any, demand: Float[np.ndarray, "L S S"]) -> Float[np.ndarray, "L"]:
    unit = unit_on_host(region)
    sizes, degree = (int(demand.shape[-1]),), int(np.max(region.optical_degree))
    settings = {"routing": case.circuits.routing, "names": case.network.acos.topologies}
    policy = policies.get_checked(case.circuits.policy, sizes, degree, **settings)
    policy = policies.for_demand_alone(policy) if policies.may_use_previous(case.circuits.policy) else policy
    solver = region_functions(unit, policy, ALONE, case.circuits.routing, 0.0, case.run.dtype)
    demand = demand * (1.0 - np.eye(demand.shape[-1]))
    count = solver.choose(Question(demand.mean(0, keepdims=True)))
    seconds = solver.seconds(np.broadcast_to(count, (len(demand), *count.shape[1:])), demand)
    return np.max(np.stack(seconds), axis=0)
