"""The interface of a fabric. Each fabric is one file with one `Fabric`, and one line in `case/fabrics.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mfabric_jax import units
from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.tree import Tree
from mfabric_jax.workload import Gpu, Workload

if TYPE_CHECKING:
    from mfabric_jax.case.paths import Case
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh
    from mfabric_jax.fabric.electrical import Electrical
    from mfabric_jax.fabric.region import Region

    EpGroup = Electrical | Region | DirectLinks
else:
    EpGroup = Any
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


class Asked(Protocol):
    """The settings that fabrics read. `server_nics` None: the usual number of NICs, which mfabric splits into
    `optical_degree` on the optical switch and `electrical_nics` on the tree; `leaf_servers`: below an edge switch of an
    oversubscribed tree, None: its ports are filled; `shares_network`: other servers fill the switches; `own(NAME)`:
    those of a fabric alone, `network.NAME` of the case."""

    @property
    def case(self) -> Case: ...
    @property
    def server_nics(self) -> int | None: ...
    @property
    def optical_degree(self) -> int: ...
    @property
    def electrical_nics(self) -> int: ...
    @property
    def tiers(self) -> int: ...
    @property
    def server(self) -> Gpu: ...
    @property
    def leaf_servers(self) -> int | None: ...
    @property
    def shares_network(self) -> bool: ...
    @property
    def delay_s(self) -> float: ...
    @property
    def parts(self) -> Any: ...  # `Parts`
    def own(self, fabric: str) -> Any: ...


class Domain(NamedTuple):
    """A scale-up domain: its GPUs, what each of them sends inside it [bytes/s], and switch planes that carry this."""

    gpus: int
    Bps: float
    planes: int


@dataclass(frozen=True, kw_only=True)
class Form:
    """The form of a whole cluster, and of one server's network attachment.

    - `regions` [G S S]: circuits, if the fabric has some; `nics`: per server, None: the usual number.
    - `radix`, `tiers`, `at`, `oversubscription`: of the switch tree (None: the fabric's own ratio).
    - `leaf_servers`: below an edge switch of an oversubscribed tree without rails; None: its ports are filled.
    - `laid_out`: trees are priced by the links up that their edge switches need; else as if all were full.
    - `wiring`: of circuits that are set before training.
    - `planes`: that every NIC is split over; `panels`: patch panels in the place of optical switches.
    - `graph`: an `own_graph.GraphFile`, for its parts; `graphs`: that small optical switches choose among.
    - `shape`: of a grid of servers or of nodes, None: the fabric's usual one; `servers`: of the cluster.
    - `split`: NICs for each dimension, None: as many for each peer; `ways`: the rule of routing; `side`: servers along
      a node; None: the fabric's.
    - `nvswitch_gigabytes_per_s`: per GPU, None: the fabric's default.
    """

    regions: np.ndarray | None = field(default=None, repr=False)
    nics: Any = None
    optical_degree: Any = 6
    electrical_nics: Any = 2
    radix: int = 64
    tiers: int = 3
    oversubscription: float | None = None
    at: str = "edge"
    leaf_servers: int | None = None
    laid_out: bool = False
    wiring: str = "demand"
    planes: int = 1
    panels: bool = False
    graph: Any = None
    graphs: int = 1
    pxn: bool = False
    nic_use: str = "own"
    gpu_tbps: float = 8.0
    shape: tuple[int, ...] | None = None
    split: tuple[float, ...] | None = None
    ways: str | None = None
    side: int | None = None
    servers: int = 64
    gpus_per_server: int | None = None
    nvswitch_gigabytes_per_s: float | None = None


def server_nvlink(gpu_tbps: Any, nic_gbps: Any, own_Bps: Any) -> Any:
    return own_Bps


def tree_links(settings: Asked) -> int:
    return 2 * settings.tiers


def no_tree(form: Form) -> Tree | None:
    return None


def at_bandwidth(group: EpGroup, nic_gbps: Any, gpu_tbps: Any = None) -> EpGroup:
    import equinox as eqx

    return eqx.tree_at(lambda g: g.nic_gbps, group, nic_gbps)


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """One fabric: functions and constants, no state.

    - `look`: label, colour and Matplotlib marker in pictures.
    - `groups(settings, job, nic_gbps, nic_uses)`: what one expert-parallel group sees of the fabric, for every distinct
      use of NICs; routing solves it from the data alone.
    - `parts(form)`: NICs of one server and the parts behind each, for prices, watts and the number on the tree.
    - `tree(form)`: switch tree over the NICs with switch ports, one host in each part; None: no tree.
    - `mesh(servers, form)`: unchanging links of the whole cluster, and routers; None: no such links.
    - `circuits(job, form, nic_gbps, choose)`: circuits [G S S] of the whole cluster, None without circuits;
      `choose(degree)` applies the user's policy to every region, `choose(degree, "topoopt")` a named one, and
      `choose(nics, wiring)` wires every stage.
    - `form(settings, job)`: the input of `parts` and `cluster`.
    - `nvlink_Bps(gpu_tbps, nic_gbps, own_Bps)`: bytes/s of a GPU inside its server or scale-up domain.
    - `at(group, nic_gbps, gpu_tbps)`: a group at another bandwidth (maybe traced).
    - `fills(servers, group, nics, own)`: values of the fabric's own settings that are left open, by name, for
      expert-parallel groups of `group` servers; None: there are none.
    - `path_links(settings)`: links on a path between servers; where they forward, at the least.
    - `link_delay_s(settings)`: mean propagation of the links of the slowest path; None: `network.link_delay_s`.
    - `domain_gpus`: GPUs of a scale-up domain that can work, unless the GPU sets it; None: it is made of servers.
    - `built_gpus`: GPUs with which such a domain is built; None: all of them can work.
    - `domain(said)`: the domain by what settings of a path say, in place of what the GPU sets. Its jobs leave spares.
    - `per_gpu`: price per GPU besides its NICs, and what it pays for. `data`: settings that may be traced.
    - `optical_regions(form, job)`: optical ports of one region and number of regions; None: no such ports, or included
      in the price per GPU.
    - `policy`, `routing`: values shown in rows (`routing` maybe by the settings), None: the user's choice.
    - `reconfigures`: circuits change.
    - `single_paths(settings)`: whether flows may take one path each; otherwise they spread.
    - `rails`: NICs of equal rank share an edge switch. `pxn`: data always crosses the NVSwitch to its rail.
    - `uses`: "own" or "pooled" NICs; None: as set, pooled where a GPU has no NIC of its own.
    - `phases`: circuits serve one kind of communication (all-to-alls, sends, gradients) at a time.
    - `over_graph`: bytes cross the links of the file that a group names (`routing.graphs`).
    - `nvswitches`: of a scale-up domain, None: those of the GPU. `usual_nics`: per server; None: one for each GPU.
    - `switch_a_nic`: every optical NIC has a separate optical switch.
    """

    name: str
    summary: str
    look: tuple[str, str, str]
    groups: Callable[..., list[Any]]
    parts: Callable[[Form], tuple[PartGroup, ...]]
    form: Callable[[Asked, ClusterShape], Form]
    tree: Callable[[Form], Tree | None] = no_tree
    mesh: Callable[[int, Form], Mesh | None] = lambda servers, form: None
    circuits: Callable[..., np.ndarray] | None = None
    nvlink_Bps: Callable[[Any, Any, Any], Any] = server_nvlink
    at: Callable[..., Any] = at_bandwidth
    path_links: Callable[[Asked], int] = tree_links
    link_delay_s: Callable[[Asked], float | None] = lambda settings: None
    fills: Callable[[int, int, int, Any], Mapping[str, Any]] | None = None
    domain_gpus: int | None = None
    built_gpus: int | None = None
    domain: Callable[[Callable[[str], Any]], Domain] | None = None
    per_gpu: tuple[str, str] | None = None
    data: tuple[str, ...] = ()
    optical_regions: Callable[[Form, Workload], tuple[Any, Any]] | None = None
    policy: str | None = "none"
    routing: str | Callable[[Asked], str] | None = "spraying"
    reconfigures: bool = False
    single_paths: Callable[[Asked], bool] = lambda settings: True
    rails: bool = False
    pxn: bool = False
    uses: str | None = None
    nvswitches: int | None = None
    switch_a_nic: bool = False
    usual_nics: int | None = None
    over_graph: bool = False
    phases: bool = False

    def __repr__(self) -> str:
        return f"<Fabric {self.name}: {self.summary}>"

    @property
    def gpus_per_server(self) -> int:
        """GPUs of a server or scale-up domain, by default."""
        return self.domain_gpus or SERVER_GPUS

    def cluster(self, servers: int, nic_gbps: float, form: Form, rest: dict[str, Any]) -> Cluster:
        """The whole cluster; `rest`: further fields of `Cluster`."""
        self.check_ratio(form.oversubscription)
        gpus = form.gpus_per_server or self.gpus_per_server
        nics = (self.usual_nics or gpus) if form.nics is None else form.nics
        form = replace(form, nics=nics, gpus_per_server=gpus, servers=servers)
        if (form.regions is None) != (self.circuits is None):
            given = "regions was not given" if form.regions is None else f"regions was {list(np.shape(form.regions))}"
            raise InputError(f"{self.name} {'has no' if self.circuits is None else 'needs'} circuits; {given}.")
        tree, on_tree = self.tree(form), sum(group.nics for group in self.parts(form) if group.attachment.switch_ports)
        mesh = self.mesh(servers, form)
        use = self.uses or (form.nic_use if on_tree == gpus else "pooled")
        if "nvswitch_gigabytes_per_s" not in rest:
            usual = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S)
            inside = units.to_gigabytes(self.nvlink_Bps(form.gpu_tbps, nic_gbps, usual))
            rest = {"nvswitch_gigabytes_per_s": inside} | rest
        if tree is not None and tree.oversubscription != 1 and form.leaf_servers is not None and not self.rails:
            tree = replace(tree, leaf_hosts=form.leaf_servers * on_tree or None)
        return Cluster(
            self.name,
            servers,
            nic_gbps,
            gpus_per_server=gpus,
            tree=replace(tree, hosts=servers * on_tree) if tree is not None and on_tree else None,
            rails=self.rails,
            pxn=self.pxn or form.pxn,
            nic_use=use,
            regions=form.regions,
            mesh=mesh and mesh.present,
            phases=self.phases,
            **rest,
        )

    def check_ratio(self, oversubscription: float | None) -> None:
        """`Misfit` for an oversubscribed tree where there is no tree."""
        if self.tree is no_tree and oversubscription not in (None, 1):
            raise Misfit(
                f"network.oversubscription must be auto or 1 on {self.name}, which has no switch tree, got "
                f"{oversubscription:g}."
            )

    def routing_of(self, settings: Asked) -> str | None:
        return self.routing(settings) if callable(self.routing) else self.routing

    def gpus_of(self, server: Gpu) -> int:
        if self.domain_gpus is None:
            return server.gpus_per_server
        return server.scale_up_gpus or self.domain_gpus

    def used_of(self, server: Gpu, group: int, stage: int, attention: int) -> int:
        """GPUs of a server, or of a part of a domain, on which a job runs.

        Domains that leave spares: the most that are whole expert-parallel groups (or divide one), fill the stage and
        hold whole tensor-parallel groups of `attention`. `Misfit` where these do not fit in a domain.
        """
        size = self.gpus_of(server)
        if self.domain is None:
            return size
        fits = [
            n for n in range(attention, size + 1, attention) if stage % n == 0 and (group % n == 0 or n % group == 0)
        ]
        if not fits:
            raise Misfit(f"{self.name} needs domains of at least the {attention} GPUs of tp, got {size}.")
        return fits[-1]

    def built_of(self, server: Gpu) -> int:
        """GPUs of a server or domain, with those that never work."""
        return self.gpus_of(server) if server.scale_up_gpus or not self.built_gpus else self.built_gpus

    def share_of(self, server: Gpu, part: int) -> float:
        """What `part` GPUs pay of the server or domain in which they work: all of it over the parts that fit.

        Parts of one size share a server or domain equally. So 4 GPUs of a server of 8 pay a half, and 32 GPUs of a
        domain of 72 a half too, with half of the 8 GPUs that stay idle.
        """
        return 1 / (self.gpus_of(server) // part)

    def paid_gpus(self, server: Gpu, job: ClusterShape) -> float:
        """GPUs that a job pays for: those in use, and the idle ones that it causes."""
        return job.servers * self.built_of(server) * self.share_of(server, job.gpus_per_server)


def nics_of(settings: Asked, job: ClusterShape) -> int:
    """NICs of a server: one per GPU unless the user or the GPU sets another number."""
    return settings.server_nics or job.gpus_per_server


def check_own(nic_use: str, nics: int, gpus_per_server: int) -> None:
    """Raise `InputError` if "own" is used with fewer NICs than GPUs."""
    if nic_use == "own" and nics != gpus_per_server:
        raise InputError(
            f"nic_use 'own' gives each GPU its own NIC, but a server has {gpus_per_server} GPUs and "
            f"{nics} NICs; use nic_use 'pooled' or {gpus_per_server} NICs."
        )


def group_numbers(group: EpGroup, dtype: str) -> EpGroup:
    """The group with its numbers as arrays of NumPy, so that other values reuse the compiled program."""
    import jax

    return jax.tree.map(lambda x: np.asarray(x, np.int32 if np.asarray(x).dtype.kind in "iu" else dtype), group)


def as_data(tree: Any, dtype: Any) -> Any:
    """Real numbers of a tree as arrays, so that other values reuse the compiled program."""
    import jax
    import jax.numpy as jnp

    return jax.tree.map(lambda x: jnp.asarray(x, dtype) if isinstance(x, float | np.floating) else x, tree)
