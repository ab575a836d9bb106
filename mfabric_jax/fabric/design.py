"""What a fabric answers for. Each fabric is one file with one `Fabric`, and one line in `registry`."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, not_negative, part, positive, whole
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.ocs import Ocs, get_ocs
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.transport import NONE, Transport, get_transport
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.workload import Gpu, Workload, get_gpu
from mfabric_jax.workload.gpus import DEFAULT_GPU, GPUS

EpGroup = Electrical | Region | DirectLinks
SERVER_GPUS = 8
DELAY_S = units.ms(25)
NVSWITCH_GIGABYTES_PER_S = 900.0  # per GPU and direction, as the paper simulates it
NVSWITCHES = 6  # of a server of 8 A100 (NVIDIA DGX A100 user guide); of 8 H100: 4
ELECTRICAL_SHARE = 4  # of mfabric: one in so many NICs of a server, so 2 of 8
if TYPE_CHECKING:
    GpuChoice = str | Gpu
    TransportChoice = str | Transport
else:
    GpuChoice = TransportChoice = str  # a command line has words only


class ClusterShape(Protocol):
    """What the form of a cluster depends on, whatever runs there; a `Workload` has it."""

    @property
    def servers(self) -> int: ...
    @property
    def gpus_per_server(self) -> int: ...
    @property
    def servers_per_region(self) -> int: ...
    @property
    def pp(self) -> int: ...


class HasPorts(Protocol):
    """What the form of a cluster reads of settings.

    - `server_nics`: of a server; None: as many as usual there.   - `optical_degree`, `electrical_nics`: of them, those
      on the optical switch and on the tree of mfabric.   - `gpu_tbps`: of a GPU in a scale-up domain.
    """

    @property
    def server_nics(self) -> int | None: ...
    @property
    def optical_degree(self) -> int: ...
    @property
    def electrical_nics(self) -> int: ...
    @property
    def tiers(self) -> int: ...
    @property
    def pxn(self) -> bool: ...
    @property
    def gpu_tbps(self) -> float: ...


class HasCircuits(HasPorts, Protocol):
    """What a group reads of settings, too: its circuits' delay, the optical switch that is named, TopoOpt's wiring."""

    @property
    def delay_s(self) -> float: ...
    @property
    def optical_switch(self) -> Ocs | None: ...
    @property
    def wiring(self) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a user may say about servers."""

    gpu: GpuChoice | None = None
    """A100-80GB-SXM (default), H100-SXM, H800-SXM, H20-SXM, H200-SXM, B200-HGX, B300-HGX, GB200-NVL72, GB300-NVL72,
    MI300X, MI355X, or a .toml or .json file of your own; one that is named brings its own NVLink, a file its servers
    and NICs, too."""

    def check_server(self) -> None:
        """`InputError` for an unknown GPU; a file is read once, here."""
        if self.gpu is not None and self.server.name != self.gpu:
            object.__setattr__(self, "gpu", self.server)

    @property
    def server(self) -> Gpu:
        """The GPU that computes, and the server it sits in."""
        return GPUS[DEFAULT_GPU] if self.gpu is None else get_gpu(self.gpu)

    @property
    def own_nvlink_Bps(self) -> float:
        """What the NVSwitch of a server gives a GPU [bytes/s]."""
        return units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S) if self.gpu is None else self.server.nvlink


@dataclass(frozen=True, kw_only=True)
class PortSettings(ServerSettings):
    """What a user may say about the ports of a server; each fabric reads what it has."""

    nics: int | None = None
    """NICs of a server on everything but mfabric, nvl72 and mfabric-cpo (default: those of --gpu, or one a GPU, or
    6 on a torus)."""
    pxn: bool = False
    """On rail-optimized, data crosses the NVSwitch to the rail of its destination first (rail-only always does)."""
    tiers: Literal[2, 3] = 3
    """Tiers of the switch trees: 3 (the paper's), or 2 where the cluster is small enough."""
    optical_degree: int = None  # type: ignore[assignment]
    """NICs of a server on the optical switch of mfabric (default: 6 of 8, 3 of 4, ...)."""
    electrical_nics: int = None  # type: ignore[assignment]
    """NICs of a server on the electrical fabric of mfabric (default: one in four, 2 of 8)."""
    gpu_tbps: float = 8.0
    """nvl72 and mfabric-cpo: bandwidth of a GPU in all, per direction."""
    goodput: float = 1.0
    """Part of the NIC bandwidth that is payload (headers take the rest)."""
    transport: TransportChoice = "none"
    """What headers, a receiver's pace and acknowledgements take of the NIC bandwidth, and what messages wait: none,
    ndp, dctcp, or a .toml or .json file of constants (docs/fabrics.md); instead of goodput."""

    def check_ports(self, least_electrical: int = 0) -> None:
        """`InputError` for a value that no server has; `optical_degree` and `electrical_nics` get their defaults."""
        self.check_server()
        if self.nics is not None:
            whole("nics", self.nics)
        self._share_nics()
        whole("optical_degree", self.optical_degree, at_least=0)
        whole("electrical_nics", self.electrical_nics, at_least=0)
        if self.electrical_nics < least_electrical:
            raise InputError("electrical_nics must be at least 1: gradients and pipeline transfers use them, got 0.")
        positive("gpu_tbps", self.gpu_tbps)
        part("goodput", self.goodput)
        self._check_transport()

    def _check_transport(self) -> None:
        """A file is read once, here."""
        used = self.carried_by
        if self.transport != used.name:
            object.__setattr__(self, "transport", used)
        if used != NONE and self.goodput != 1:
            raise InputError(
                f"goodput {self.goodput} is not used beside transport {used.name!r}, which decides it; leave out one."
            )

    @property
    def carried_by(self) -> Transport:
        """The transport of all that leaves a server."""
        return get_transport(self.transport)

    def _share_nics(self) -> None:
        """Of the NICs of a server, some are on the packet switches of mfabric, the others on its optical switch."""
        nics = self._usual_nics
        electrical = max(1, nics // ELECTRICAL_SHARE)
        for name, share in (("optical_degree", nics - electrical), ("electrical_nics", electrical)):
            if getattr(self, name) is None:
                object.__setattr__(self, name, share)

    @property
    def _usual_nics(self) -> int:
        """NICs of a server, in all, where the user does not say how mfabric's are shared."""
        return self.server.nics or self.server.gpus_per_server

    @property
    def server_nics(self) -> int | None:
        """NICs of a server, where the user or the GPU says how many."""
        return self.server.nics if self.nics is None else self.nics


@dataclass(frozen=True, kw_only=True)
class FabricSettings(PortSettings):
    """What a user may say about fabrics as an iteration sees them."""

    prices: str | None = None
    """A .toml or .json file of your own prices and watts: any part of the table of parts (docs/cost.md)."""
    ocs: str | None = None
    """An optical switch of the table of parts, whose ports bound the region, with its price, power and delay:
    telescent, polatis, calient, palomar, rotornet, lightmatter, epiphotonics, or one of --prices."""
    delay_s: float = None  # type: ignore[assignment]
    """Reconfiguration delay of the optical switch (default: 0.025, or the slowest of --ocs)."""
    each_s: float = 0.0
    """Further delay for every circuit that is set up anew."""
    reactivation_s: float = 0.0
    """NICs come back so much after the optical switch has turned (measured on a testbed: 5.67)."""
    path_radix: int = 16
    """Ports of every switch where flows take single paths, doubled until all servers fit; 16: one server of 8 NICs
    under an edge switch, 8 servers at a rail switch."""
    busy: Literal["group", "cluster"] = "group"
    """Whose all-to-alls run at once where flows take single paths over switches: those of one expert-parallel group, or
    of all groups of the cluster, each like the other (mfabric: its group alone)."""
    wiring: Literal["demand", "rings", "totient-perms"] = "demand"
    """Circuits of topoopt: demand, one ring for gradients and matchings in every group; rings, three rings over the
    stage and none for a group; totient-perms, rings and matchings by the bytes of each. In the last two all groups of a
    stage are busy at once, and flows single takes single paths."""
    link_delay_s: float = 0.0
    """Propagation of a link: a path between servers has two for every tier of a tree (also on mfabric, whose packet
    switches are the longer way), two on rails with pxn, one on topoopt and torus."""

    def check_fabric(self) -> None:
        """`InputError` for a value that no fabric has; `delay_s` gets its default."""
        self.check_ports(least_electrical=1)
        switch = self.optical_switch
        if self.delay_s is None:
            object.__setattr__(self, "delay_s", self._delay_of(switch))
        if whole("path_radix", self.path_radix, at_least=4) % 2:
            raise InputError(f"path_radix must be even (half of the ports go up), got {self.path_radix}.")
        for name in ("delay_s", "each_s", "reactivation_s", "link_delay_s"):
            not_negative(name, getattr(self, name))

    @property
    def optical_switch(self) -> Ocs | None:
        """The one that is named."""
        return None if self.ocs is None else get_ocs(self.ocs, self.prices)

    def _delay_of(self, switch: Ocs | None) -> float:
        if switch is None:
            return DELAY_S
        if switch.delay_s is None:
            raise InputError(f"ocs {self.ocs!r} has no reported delay; give delay_s.")
        return switch.delay_s[1]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a whole cluster, and of what one server has on its network.

    - `regions` [G S S]: circuits, where the fabric has some.   - `nics`: of a server; None: those usual there.
    - `radix`, `tiers`, `at`, `oversubscription`: of the switch tree (None: the fabric's own ratio).
    - `shape`: of a torus; None: near a cube.   - `nvswitch_gigabytes_per_s`: None: what the fabric gives a GPU.
    """

    regions: np.ndarray | None = field(default=None, repr=False)
    nics: Any = None
    optical_degree: Any = 6
    electrical_nics: Any = 2
    radix: int = 64
    tiers: int = 3
    oversubscription: float | None = None
    at: str = "edge"
    pxn: bool = False
    nic_use: str = "own"
    gpu_tbps: float = 8.0
    shape: tuple[int, int, int] | None = None
    gpus_per_server: int | None = None
    nvswitch_gigabytes_per_s: float | None = None


def server_nvlink(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any) -> Any:
    """Inside a server: what its NVSwitch gives a GPU, whatever the network."""
    return own_Bps


def tree_links(settings: HasCircuits) -> int:
    """Links of a path between servers over a switch tree."""
    return 2 * settings.tiers


def no_circuits(job: ClusterShape, form: Form, nic_gbps: float, choose: Callable[..., np.ndarray]) -> None:
    """A fabric without circuits to choose."""


def at_bandwidth(group: EpGroup, nic_gbps: Any, gpu_tbps: Any = None) -> EpGroup:
    """The same group with NICs of another bandwidth."""
    return eqx.tree_at(lambda g: g.nic_gbps, group, nic_gbps)


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """One fabric: functions and facts, no state.

    - `look`: what a reader calls it, its colour and its marker (Matplotlib's letter) in pictures.
    - `groups(settings, job, nic_gbps, nic_uses)`: what one expert-parallel group sees of it, for every use of NICs
      that differs; routing solves it from the data alone.
    - `cluster(servers, nic_gbps, form, rest)`: the whole cluster; `rest` are further fields of `Cluster`.
    - `parts(form)`: the NICs of one server and what hangs behind each, for prices and watts.
    - `tree(form)`: the switch tree over the NICs on packet switches, with one host in each part; None: no such NICs.
    - `direct_links(form, job)`: how many links of the whole cluster join a server to another without a switch.
    - `circuits(job, form, nic_gbps, choose)`: circuits [G S S] of the whole cluster, or None; `choose(degree)` asks the
      user's policy for those of every region, `choose(degree, "topoopt")` a named one.
    - `form(settings, job)`: what `parts` and `cluster` depend on.
    - `nvlink_Bps(gpu_tbps, nic_gbps, own_Bps)`: bytes/s of a GPU inside its server or scale-up domain.
    - `at(group, nic_gbps, gpu_tbps)`: a group at another bandwidth (maybe traced).
    - `path_links(settings)`: links of a path between servers.
    - `domain_gpus`: of a scale-up domain, unless the GPU says; None: the fabric is made of servers.
    - `per_gpu`: the price that a GPU pays beside its NICs, and for what.   - `data`: settings that may be traced.
    - `optical_regions(form, job)`: ports of one region on its optical switch, and how many regions there are. None: no
      such ports, or in the price that a GPU pays.
    - `policy`, `routing`: what rows say; None: what the user chose.   - `reconfigures`: its circuits change.
    - `single_paths(settings)`: flows may take one path each; else they always spread.
    - `variants`: settings that a plain comparison shows, by name; none: it shows the fabric once.
    - `rails`: NICs of equal rank share an edge switch.   - `panels`: links end on patch panels, and so do spares.
    - `nvswitches`: of a server or scale-up domain.   - `usual_nics`: of a server; None: one for each GPU.
    """

    name: str
    summary: str
    look: tuple[str, str, str]
    groups: Callable[..., list[Any]]
    cluster: Callable[[int, float, Form, dict[str, Any]], Cluster]
    parts: Callable[[Form], tuple[PartGroup, ...]]
    form: Callable[[HasPorts, ClusterShape], Form]
    tree: Callable[[Form], Tree | None] = lambda form: None
    direct_links: Callable[[Form, ClusterShape], int] = lambda form, job: 0
    circuits: Callable[..., np.ndarray | None] = no_circuits
    nvlink_Bps: Callable[[Any, Any, Any], Any] = server_nvlink
    at: Callable[..., Any] = at_bandwidth
    path_links: Callable[[HasCircuits], int] = tree_links
    domain_gpus: int | None = None
    per_gpu: tuple[str, str] | None = None
    data: tuple[str, ...] = ()
    optical_regions: Callable[[Form, Workload], tuple[Any, Any]] | None = None
    policy: str | None = "none"
    routing: str | None = "spraying"
    reconfigures: bool = False
    single_paths: Callable[[HasCircuits], bool] = lambda settings: True
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)
    rails: bool = False
    panels: bool = False
    nvswitches: int = NVSWITCHES
    usual_nics: int | None = None

    @property
    def gpus_per_server(self) -> int:
        """GPUs of a server or scale-up domain of the catalogue's GPUs."""
        return self.domain_gpus or SERVER_GPUS

    def gpus_of(self, server: Gpu) -> int:
        """GPUs of a server or scale-up domain."""
        if self.domain_gpus is None:
            return server.gpus_per_server
        return server.scale_up_gpus or self.domain_gpus


def nics_of(settings: HasPorts, job: ClusterShape) -> int:
    """One NIC for each GPU, unless the user or the GPU says otherwise."""
    return settings.server_nics or job.gpus_per_server


def check_own(nic_use: str, nics: int, gpus_per_server: int) -> None:
    """`own` needs a NIC for every GPU."""
    if nic_use == "own" and nics != gpus_per_server:
        raise InputError(
            f"nic_use 'own' gives each GPU its own NIC, but a server has {gpus_per_server} GPUs and "
            f"{nics} NICs; use nic_use 'pooled' or {gpus_per_server} NICs."
        )


def group_numbers(group: EpGroup, dtype: str) -> EpGroup:
    """The group with its numbers as arrays, so that other values reuse the compiled program."""

    def leaf(x):
        return jnp.asarray(x, jnp.int32 if np.asarray(x).dtype.kind in "iu" else dtype)

    return jax.tree.map(leaf, group)


def as_data(tree: Any, dtype: Any) -> Any:
    """Real numbers of a tree as arrays, so that other values reuse the compiled program; all else as it is."""
    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if isinstance(x, float | np.floating) else x, tree)


def needs_regions(name: str, form: Form) -> np.ndarray:
    """The circuits of a fabric that has no cluster without them."""
    if form.regions is None:
        raise InputError(f"{name} needs circuits; regions was not given.")
    return form.regions


def has_no_regions(name: str, form: Form) -> None:
    """`InputError` for circuits where there are none."""
    if form.regions is not None:
        raise InputError(f"{name} has no circuits; regions was {list(np.shape(form.regions))}.")
