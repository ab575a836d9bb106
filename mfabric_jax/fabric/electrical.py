"""The servers of one expert-parallel group on packet switches, as a star of ports."""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax import units
from mfabric_jax.checks import InputError, one_of, positive, whole
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.failures import CUT_OFF, NO_OPTICS, ONE_NETWORK, ONE_PLANE, ONE_SPINE, PLANES, Degraded, Failure
from mfabric_jax.fabric.nic_use import NIC_USES, Handover
from mfabric_jax.fabric.tree import UP
from mfabric_jax.support.array_module import array_module
from mfabric_jax.support.arrays import FloatScalar


class Damage(NamedTuple):
    """What a failure takes from the links of a tree (`routing.cluster.links_of`).

    - `part`: fraction left of every link; `links`: (link, fraction left of it).
    - `heirs`: (failed tree port, ports that carry its bytes instead, in equal parts); all have equally many heirs.
    - `moved`: a GPU whose work moves to the first GPU of a spare server; the spare's GPUs are numbered after all
      others.
    """

    part: float = 1.0
    links: tuple[tuple[int, float], ...] = ()
    heirs: tuple[tuple[int, tuple[int, ...]], ...] = ()
    moved: int | None = None


class Electrical(eqx.Module):
    """Packet switches under ideal spraying, as the servers of one expert-parallel group see them.

    - `nic_gbps`: bandwidth of every NIC, per direction; `nics`: NICs of a server, one per GPU.
    - `oversubscription`: bandwidth of a server over the bandwidth of its edge switch's uplinks, if no other server uses
      the switch; None: edge switches do not limit, or `leaves` says how they do.
    - `leaves`: the whole cluster on an oversubscribed tree whose edge switches hold several servers
      (`routing.graphs`); `damage`: what a failure takes from it.
    - `speeds`: bandwidth of each NIC of a server over `nic_gbps`, in order; empty: all are equal. GPUs that use their
      own NICs send equal parts of gradients and activations, so the slowest decides; pooled NICs carry parts by speed.
    - `ring_nics`, `stage_nics`: NICs with which a server on `leaves` sends gradients, and activations to the next
      stage, if all servers do so at the same time; None until `routing.graphs.add_rates` computes them.
    - `nic_use`: "own": each GPU uses its own NIC; "pooled": all NICs of the server carry any of its data.
    - `pxn` (own only): data crosses the NVSwitch to the NIC of the destination's rank; on rails it then stays below the
      spine.
    - `planes`: planes that every NIC is split over; `own_plane`: each pair of ranks uses one plane, else all of them.

    Ideal spraying pools all links between two tiers, so only ports of NICs and edge switches can limit. A
    rail-optimised fabric therefore carries an all-to-all as fast as a fat-tree. Defaults: arXiv 2501.03905.
    """

    nic_gbps: FloatScalar
    nics: int = eqx.field(static=True, default=8)
    oversubscription: Float[Array, ""] | float | None = None
    nic_use: str = eqx.field(static=True, default="own")
    pxn: bool = eqx.field(static=True, default=False)
    planes: int = eqx.field(static=True, default=1)
    own_plane: bool = eqx.field(static=True, default=False)
    leaves: Cluster | None = eqx.field(static=True, default=None)
    damage: Damage = eqx.field(static=True, default=Damage())
    ring_nics: Any = None
    stage_nics: Any = None
    speeds: tuple[float, ...] = eqx.field(static=True, default=())

    reconfigures = phases = own_ports = forwards = over_graph = False
    delay_s = 0.0
    latency_s = 0.0

    def __check_init__(self):
        positive("nic_gbps", self.nic_gbps)
        whole("nics", self.nics)
        if self.oversubscription is not None:
            positive("oversubscription", self.oversubscription)
        one_of("nic_use", self.nic_use, NIC_USES)
        if self.speeds and len(positive("speeds", self.speeds)) != self.nics:
            raise InputError(f"speeds must be {self.nics} numbers, one per NIC of a server, got {list(self.speeds)}.")
        if self.pxn and self.nic_use != "own":
            raise InputError(f"pxn uses the NIC of the destination's rank; nic_use must be own, got {self.nic_use!r}.")

    def with_bandwidth(self, nic_gbps: Any, gpu_tbps: Any = None) -> "Electrical":
        """Return the group at another bandwidth, which may be traced."""
        return eqx.tree_at(lambda group: group.nic_gbps, self, nic_gbps)

    @property
    def shares_links(self) -> bool:
        return self.leaves is not None

    @property
    def has_paths(self) -> bool:
        """Whether the rates on shared links are known."""
        return self.leaves is None or self.ring_nics is not None

    @property
    def nic_Bps(self):
        """Bytes per second of one NIC."""
        return units.gbps(self.nic_gbps)

    @property
    def send_Bps(self):
        """Bandwidth from a server to its peer in the next pipeline stage [bytes/s]."""
        return self.eps_Bps if self.stage_nics is None else self.stage_nics * self.nic_Bps

    @property
    def eps_Bps(self):
        """Bandwidth of a server on the ring of its stage, per direction [bytes/s]."""
        if self.ring_nics is not None:
            return self.ring_nics * self.nic_Bps
        if not self.speeds or self.nic_use == "pooled":
            return self.together_Bps
        slowest = self.nics * min(self.speeds) * self.nic_Bps
        return array_module(slowest, self.together_Bps).minimum(slowest, self.together_Bps)

    @property
    def together_Bps(self):
        """Bandwidth of all NICs of a server together, through its edge switch [bytes/s]."""
        everything = (sum(self.speeds) or self.nics) * self.nic_Bps
        return everything if self.oversubscription is None else everything / self.oversubscription

    @property
    def handover(self) -> tuple[Handover, Handover]:
        """How bytes reach the sending NICs, and how they leave the receiving NICs."""
        if self.nic_use == "own":
            return ("to the rail" if self.pxn else "none"), "none"
        return "levelled", "levelled"

    def lacks(self, routing: str) -> dict[str, str]:
        """Return the failures that cannot happen here: {kind: reason}."""
        reasons: dict[str, str] = dict.fromkeys(("optical-nic", "optical-switch", "controller"), NO_OPTICS)
        reasons |= dict.fromkeys(PLANES, ONE_PLANE) if self.planes == 1 else {}
        return reasons | {"electrical-nics": ONE_NETWORK}

    def after_failure(self, hit: Failure) -> Degraded:
        """Return the group after a failure; a spare replaces a failed server.

        Raise `InputError` if NICs differ in bandwidth.
        """
        if self.speeds:
            raise InputError(f"a failure needs NICs of equal bandwidth; speeds must be empty, got {list(self.speeds)}.")
        if self.leaves is not None:
            return self._tree_after_failure(self.leaves, hit)
        kind, nics, spare = hit.kind, self.nics, hit.kind == "gpu"
        over = 1.0 if self.oversubscription is None else float(self.oversubscription)
        per_server = hit.gpus_per_rank * hit.ranks_per_server
        gpus, servers, own = hit.servers * per_server, hit.servers + spare, self.nic_use == "own"
        sits, edge = np.eye(gpus, servers * per_server), np.full(servers, nics / over)
        carries = np.eye(servers * per_server) if own else np.repeat(np.eye(servers), per_server, axis=0)
        port = np.full(carries.shape[1], 1.0 if own else float(nics))
        effects: dict[str, Any] = {}
        lost = hit.server * per_server
        part = 1 - 1 / self.planes
        up = hit.links_left(over, self.planes) if kind in ("link", "spine") else 1.0
        kind = "switch" if kind == "link" and not up else kind  # this was the only uplink: servers below are cut off
        if (settled := self._outcome_on_same_paths(kind, hit, up, (per_server if own else nics) < 2)) is not None:
            return settled
        if kind in ("link", "spine"):
            edge, effects = edge * up, {"eps_left": up, "everywhere": kind == "spine"}
        if kind == "plane" or (kind == "switch" and self.planes > 1):  # the group is below one switch of each plane
            port, edge, effects = port * part, edge * part, {"eps_left": part}
        elif kind == "plane-link":
            port[lost if own else hit.server] -= 1 / self.planes
            effects = {"eps_left": 1 - 1 / (self.planes * nics)}
        elif kind in ("electrical-nic", "switch"):
            for server in range(hit.servers) if kind == "switch" else (hit.server,):
                _without_nic(carries, port, server, per_server if own else None, hit.gpus_per_rank)
            effects = {"eps_left": (nics - 1) / nics}
        elif spare:
            sits[lost, [lost, gpus]] = 0, 1
            part = min(1.0, over / nics) if own else 1.0
            effects = {
                "tp_on_eps": part if hit.attention_gpus > 1 else 0.0,
                "moved": 1 / hit.gpus_per_rank,
                "spare": True,
            }
        star = DegradedStar(sits, carries, port, edge, hit.gpus_per_rank, per_server, self.pxn)
        return Degraded(hit.kind, star, hit.server, **effects)

    def _outcome_on_same_paths(self, kind: str, hit: Failure, links_left: float, alone: bool) -> Degraded | None:
        """The result of a failure that changes no path; None: paths change. `alone`: no other NIC carries the bytes."""
        cut_off = kind == "switch" and self.planes == 1 and (alone or not hit.rails)
        if cut_off or (kind == "link" and not links_left):
            return Degraded(hit.kind, self, hit.server, waits=CUT_OFF)
        if kind == "spine" and not links_left:
            return Degraded(hit.kind, self, hit.server, waits=ONE_SPINE)
        if kind == "server" or (kind == "electrical-nic" and alone):
            return Degraded(hit.kind, self, hit.server, spare=True)
        return Degraded(hit.kind, self, hit.server) if kind == "spine-link" else None

    def _tree_after_failure(self, leaves: Cluster, hit: Failure) -> Degraded:
        """The group after a failure if edge switches hold several servers; a spare server follows the job's servers."""
        kind = hit.kind
        if hit.uplinks is None:
            hit = hit._replace(uplinks=float(leaves.nic_tree.edge_ports[UP] * self.planes))
        if (settled := self._outcome_on_same_paths(kind, hit, hit.links_left(), self.nics < 2)) is not None:
            return settled
        left = dataclasses.replace(self, damage=self._damage(leaves, hit), ring_nics=None, stage_nics=None)
        if kind != "gpu":
            return Degraded(kind, left, hit.server, everywhere=kind == "spine")
        part = 1 / max(1.0, float(self.ring_nics or 1)) if self.nic_use == "own" else 1.0
        on_eps = part if hit.attention_gpus > 1 else 0.0
        moved = 1 / hit.gpus_per_rank
        return Degraded(kind, left, hit.server, tp_on_eps=on_eps, moved=moved, spare=True)

    def _damage(self, leaves: Cluster, hit: Failure) -> Damage:
        tree, server = leaves.nic_tree, hit.gpu // leaves.gpus_per_server
        port = int(leaves.host(np.array(server), np.array(0)))
        if hit.kind == "gpu":
            return Damage(moved=hit.gpu)
        if hit.kind == "plane" or (hit.kind == "switch" and self.planes > 1):
            return Damage(part=1 - 1 / self.planes)
        nic_up, nic_down = 2 * leaves.gpus + port, 2 * leaves.gpus + tree.hosts + port
        if hit.kind == "plane-link":
            return Damage(links=tuple((link, 1 - 1 / self.planes) for link in (nic_up, nic_down)))
        if hit.kind in ("link", "spine"):
            (_, edges), first = tree.switches[0], 2 * (leaves.gpus + tree.hosts)
            edge = int(tree.edge_of(np.array(port)))
            hit_edges = range(edges) if hit.kind == "spine" else (edge,)
            part = hit.links_left()
            return Damage(links=tuple((first + each + end, part) for each in hit_edges for end in (0, edges)))
        own = self.nic_use == "own"
        last = max(2, hit.gpus_per_rank) if own else self.nics
        first = server - hit.server
        hit_servers = np.arange(first, first + hit.servers) if hit.kind == "switch" else np.array([server])
        ports = leaves.host(hit_servers[:, None], np.arange(last)).tolist()
        return Damage(heirs=tuple((lost, tuple(others)) for lost, *others in ports))


class DegradedStar(eqx.Module):
    """Ports left after a failure, for every GPU of a group and of the spare server that follows the group.

    - `sits` [G P]: the place (GPU) where the work of each GPU of the group is done; `per_server`: places of a server.
    - `carries` [P E]: fraction of a place's bytes that each port carries; `port` [E], `edge` [S]: capacities of ports
      and edge switches, in NICs.
    - `gpus_per_rank`: GPUs of a rank, each with an equal part of its bytes.
    """

    sits: Float[Array | np.ndarray, "G P"]
    carries: Float[Array | np.ndarray, "P E"]
    port: Float[Array | np.ndarray, "E"]
    edge: Float[Array | np.ndarray, "S"]
    gpus_per_rank: int = eqx.field(static=True)
    per_server: int = eqx.field(static=True)
    pxn: bool = eqx.field(static=True)

    has_paths = True


def _without_nic(carries: np.ndarray, port: np.ndarray, server: int, per_server: int | None, together: int) -> None:
    """Remove a NIC: other NICs of its rank, else of the next rank, carry its bytes. `per_server` None: pooled NICs."""
    if per_server is None:
        port[server] -= 1
        return
    lost = server * per_server
    heirs = np.arange(lost + 1, lost + max(2, together))
    carries[lost, lost] = 0
    carries[lost, heirs] = 1 / len(heirs)
