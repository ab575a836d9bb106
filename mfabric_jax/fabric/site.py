"""What a fabric is laid out for, and what it answers: plain values, without JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from mfabric_jax import units
from mfabric_jax.case.tree import Network
from mfabric_jax.fabric.grids import written
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
class Site:
    """Servers, their NICs and switches, for which a fabric is laid out. In `parts` numbers of NICs may be arrays [N].

    - `network`: the settings of a case, with the table of each fabric (`own`).
    - `servers`, `gpus_per_server`: servers, or parts of scale-up domains; `pp`: stages that they form.
    - `servers_per_region`: of an expert-parallel group; None: all.
    - `nics`: of a server, None: one for each GPU (`server_nics` says how many then); of these mfabric has
      `optical_degree` on the optical switch and `electrical_nics` on the tree.
    - `tiers`: of switch trees; `laid_out`: trees are priced by the links up that their edge switches need, else as if
      all were full.
    - `delay_s`: of a reconfiguration; `ocs`: the optical switch, None: of as many ports as needed; `panels`: patch
      panels instead of it.
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
        """Settings of the fabric alone; None if it has none."""
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
    def leaf_servers(self) -> int | None:
        """Servers below an edge switch of an oversubscribed tree without rails; None: its ports are filled."""
        return None if self.network.leaf_servers == "most" else self.network.leaf_servers

    def ratio(self, usual: float = 1.0) -> float:
        """Oversubscription of a tree: the setting, or the fabric's usual one."""
        return usual if self.network.oversubscription is None else self.network.oversubscription

    def with_network(self, **changes: Any) -> Site:
        return replace(self, network=msgspec.structs.replace(self.network, **changes))

    def with_own(self, **changes: Any) -> Site:
        """With other settings of the fabric alone; a shape may be a tuple."""
        changes = {name: written(value) if name == "shape" and value else value for name, value in changes.items()}
        table = self.network.fabric.replace("-", "_")
        return self.with_network(**{table: msgspec.structs.replace(self.own, **changes)})


class Links(NamedTuple):
    """The links of a whole cluster.

    - `tree`: over the NICs with switch ports, one host in each part; None: no switches.
    - `mesh`: makes the unchanging links between servers, and routers behind them; None: no such links.
    - `rails`: NICs of equal rank share an edge switch; `pxn`: data crosses the NVSwitch to its rail.
    - `nic_use`: "own" or "pooled"; None: as set, pooled where a GPU has no NIC of its own.
    """

    tree: Tree | None = None
    mesh: Callable[[], Mesh] | None = None
    rails: bool = False
    pxn: bool = False
    nic_use: str | None = None


class Paths(NamedTuple):
    """How bytes cross the links.

    - `rule`: shown in rows; None: as circuits are used (`circuits.routing`).
    - `links`: on a path between servers; where servers forward, at the least.
    - `single`: flows may take one path each; otherwise they spread.
    - `delay_s`: mean propagation of the links of the slowest path; None: `network.link_delay_s`.
    """

    rule: str | None
    links: int
    single: bool = False
    delay_s: float | None = None


class Domain(NamedTuple):
    """A scale-up domain: its GPUs, what each of them sends inside it [bytes/s], and switch planes that carry this."""

    gpus: int
    Bps: float
    planes: int


def server_Bps(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any) -> Any:
    return own_Bps


@dataclass(frozen=True, kw_only=True)
class Domains:
    """The scale-up domains of a fabric.

    - `gpus`: of a domain that can work, unless the GPU sets it; `built`: GPUs with which it is built, None: all work.
    - `price`: field of `Prices` per GPU besides its NICs, and what it pays for.
    - `inside_Bps(gpu_tbps, nic_gbps, own_Bps)`: bytes/s of a GPU in its domain; `own_Bps`: by its data sheet.
    - `stated(value_at)`: the domain by settings, `value_at(path)`, instead of what the GPU sets; its jobs leave spares.
    - `nvswitches`: of a domain; None: those of the GPU.
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
      to every region, `choose(degree, "topoopt")` a named one, and `choose(nics, wiring)` wires every stage. None:
      circuits are in `Links.mesh`.
    - `switches(site)`: optical ports of one region, and number of regions; None: no such ports, or included in the
      price per GPU.
    - `policy`: shown in rows, None: the user's choice; `reconfigures`: circuits change during training.
    - `degree_varies`: `network.mfabric.optical_degree` shares a server's NICs, and may differ from case to case of one
      program.
    - `switch_a_nic`: every optical NIC has a separate switch.
    - `phases`: circuits serve one kind of communication (all-to-alls, sends, gradients) at a time.
    """

    wires: Callable[[Site, Any, Callable[..., np.ndarray]], np.ndarray] | None = None
    switches: Callable[[Site], tuple[Any, Any]] | None = None
    policy: str | None = "none"
    reconfigures: bool = False
    degree_varies: bool = False
    switch_a_nic: bool = False
    phases: bool = False


NO_OPTICS = Optics()


@dataclass(frozen=True, kw_only=True)
class About:
    """What is true of a fabric wherever it is built.

    - `look`: label, colour and Matplotlib marker in pictures, unlike those of every other fabric.
    - `ratio`: usual oversubscription of the switch tree.
    - `nics`: usual number of a server; None: that of the GPU, else one for each GPU.
    - `domains`: None: servers, no scale-up domains.
    """

    name: str
    summary: str
    look: tuple[str, str, str]
    ratio: float = 1.0
    nics: int | None = None
    domains: Domains | None = None
    optics: Optics = NO_OPTICS
