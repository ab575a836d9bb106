"""The input and the answers of a fabric: plain values, without JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from mfabric_jax import units
from mfabric_jax.case.network import Network
from mfabric_jax.fabric.grids import shape_text
from mfabric_jax.fabric.tree import Tree

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh
    from mfabric_jax.fabric.parts_list import Ocs

SERVER_GPUS = 8
DELAY_S = units.ms(25)
NVSWITCH_GIGABYTES_PER_S = 900.0  # per GPU and direction, as the paper simulates it


class ClusterShape(Protocol):
    """The size of a cluster, independent of its job; a `Workload` satisfies it."""

    @property
    def servers(self) -> int: ...
    @property
    def gpus_per_server(self) -> int: ...
    @property
    def servers_per_region(self) -> int: ...
    @property
    def pp(self) -> int: ...


@dataclass(frozen=True, kw_only=True)
class FabricSite:
    """The servers, NICs and switches that a fabric is laid out for. For `Fabric.parts`, NIC counts may be arrays [N].

    - `network`: the network settings of a case, with a table for each fabric (`own`).
    - `servers`, `gpus_per_server`: servers, or parts of scale-up domains; `pp`: number of pipeline stages.
    - `servers_per_region`: servers of an expert-parallel group; None: all.
    - `nics`: of a server; None: one per GPU (`server_nics` is their number in either case). On mfabric,
      `optical_degree` of them are on the optical switch and `electrical_nics` on the tree.
    - `tiers`: of switch trees; `laid_out`: trees are priced by the uplinks that their edge switches need, else as full
      trees.
    - `delay_s`: of a reconfiguration; `ocs`: the optical switch; None: one with enough ports; `panels`: patch panels
      instead of it.
    - `job`: the workload, if there is one.
    """

    network: Network = field(default_factory=Network)
    servers: int = 64
    gpus_per_server: int = SERVER_GPUS
    servers_per_region: int | None = None
    pp: int = 1
    nics: Any = None
    optical_degree: Any = 6
    electrical_nics: Any = 2
    tiers: Any = 3
    laid_out: bool = False
    delay_s: float = DELAY_S
    ocs: Ocs | None = None
    panels: bool = False
    job: Any = None

    @property
    def own(self) -> Any:
        """The settings of this fabric only; None if it has none."""
        return getattr(self.network, self.network.fabric.replace("-", "_"), None)

    @property
    def gpus(self) -> int:
        return self.servers * self.gpus_per_server

    @property
    def group_servers(self) -> int:
        """Servers of an expert-parallel group."""
        return self.servers_per_region or self.servers

    @property
    def stage_servers(self) -> int:
        return self.servers // self.pp

    @property
    def server_nics(self) -> Any:
        return self.gpus_per_server if self.nics is None else self.nics

    @property
    def share_by_speed(self) -> dict[float, float]:
        """The share of a server's NICs that have each bandwidth over `nic_gbps`, the fastest first."""
        speeds = self.network.rails.speeds
        return {each: speeds.count(each) / len(speeds) for each in sorted(set(speeds), reverse=True)} or {1: 1}

    @property
    def leaf_servers(self) -> int | None:
        """Servers below an edge switch of an oversubscribed tree without rails; None: as many as its ports allow."""
        return None if self.network.leaf_servers == "most" else self.network.leaf_servers

    def ratio(self, usual: float = 1.0) -> float:
        """Return the oversubscription of a tree: the setting, or by default `usual`."""
        return usual if self.network.oversubscription is None else self.network.oversubscription

    def with_network(self, **changes: Any) -> FabricSite:
        return replace(self, network=msgspec.structs.replace(self.network, **changes))

    def with_settings(self, **changes: Any) -> FabricSite:
        """Return the site with changes to the settings of this fabric only; a shape may be a tuple."""
        changes = {name: shape_text(value) if name == "shape" and value else value for name, value in changes.items()}
        table = self.network.fabric.replace("-", "_")
        return self.with_network(**{table: msgspec.structs.replace(self.own, **changes)})


class FabricLinks(NamedTuple):
    """The links of a whole cluster.

    - `tree`: switch tree of the NICs with switch ports, with one host in each part; None: no switches.
    - `mesh`: function that makes the fixed links between servers, and routers behind them; None: no fixed links.
    - `rails`: NICs of equal rank share an edge switch; `pxn`: data crosses the NVSwitch to its destination's rail.
    - `nic_use`: "own" or "pooled"; None: the setting, or pooled if GPUs do not have a NIC each.
    """

    tree: Tree | None = None
    mesh: Callable[[], Mesh] | None = None
    rails: bool = False
    pxn: bool = False
    nic_use: str | None = None


class FabricPaths(NamedTuple):
    """How bytes cross the links.

    - `rule`: name shown in rows; None: the name of the routing over circuits (`circuits.routing`).
    - `links`: number of links of a path between servers; the least number if servers forward.
    - `single`: flows may take one path each; otherwise they spread over all.
    - `delay_s`: mean propagation delay of the links of the slowest path; None: `network.link_delay_s`.
    """

    rule: str | None
    links: int
    single: bool = False
    delay_s: float | None = None


class Domain(NamedTuple):
    """A scale-up domain: its GPUs, the bandwidth of each inside it [bytes/s], and the switch planes that carry it."""

    gpus: int
    Bps: float
    planes: int


def server_Bps(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any) -> Any:
    return own_Bps


@dataclass(frozen=True, kw_only=True)
class Domains:
    """The scale-up domains of a fabric.

    - `gpus`: GPUs of a domain that work, unless the GPU sets another number; `built`: GPUs that it has; None: all work.
    - `price`: field of `Prices` paid per GPU besides its NICs, and what it pays for.
    - `inside_Bps(gpu_tbps, nic_gbps, own_Bps)`: bandwidth of a GPU in its domain [bytes/s]; `own_Bps`: the bandwidth on
      its data sheet.
    - `stated(value_at)`: the domain that settings give instead of the GPU; `value_at(path)` reads a setting. Jobs may
      then leave spare GPUs.
    - `nvswitches`: NVSwitches of a domain; None: as the GPU says.
    """

    gpus: int
    price: tuple[str, str]
    built: int | None = None
    inside_Bps: Callable[[Any, Any, Any], Any] = server_Bps
    stated: Callable[[Callable[[str], Any]], Domain] | None = None
    nvswitches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Optics:
    """Optical switches or panels of a fabric.

    - `wires(site, nic_gbps, choose)`: circuits [G S S] of the whole cluster; `choose(degree)` applies the user's policy
      to every region, `choose(degree, "topoopt")` applies a named one, and `choose(nics, wiring)` wires every stage.
      None: circuits are in `FabricLinks.mesh`.
    - `switches(site)`: number of ports that one optical switch must join (the ports of a region, rail or ring), and how
      many such sets there are. None: no optical ports are shared, or the price per GPU includes them.
    - `policy`: the policy shown in rows; None: the user's choice; `reconfigures`: circuits change during training.
    - `degree_varies`: `network.mfabric.optical_degree` divides a server's NICs, and cases of one program may differ
      in it.
    - `switch_a_nic`: every optical NIC has its own switch.
    - `phases`: circuits serve one kind of communication (all-to-alls, sends, gradients) at a time.
    """

    wires: Callable[[FabricSite, Any, Callable[..., np.ndarray]], np.ndarray] | None = None
    switches: Callable[[FabricSite], tuple[Any, Any]] | None = None
    policy: str | None = "none"
    reconfigures: bool = False
    degree_varies: bool = False
    switch_a_nic: bool = False
    phases: bool = False


NO_OPTICS = Optics()


@dataclass(frozen=True, kw_only=True)
class About:
    """Facts of a fabric that are the same at every site.

    - `look`: label, colour and Matplotlib marker in pictures, unique to the fabric.
    - `ratio`: default oversubscription of the switch tree.
    - `nics`: default NICs of a server; None: as the GPU says, else one per GPU.
    - `domains`: its scale-up domains; None: it has servers.
    """

    name: str
    summary: str
    look: tuple[str, str, str]
    ratio: float = 1.0
    nics: int | None = None
    domains: Domains | None = None
    optics: Optics = NO_OPTICS
