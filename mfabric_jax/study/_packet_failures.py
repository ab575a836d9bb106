"""What fails on a fabric whose links do not change, and how its all-to-alls are carried by what is left."""

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.failures import KINDS
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.tree import UP, Tree
from mfabric_jax.flows import star_completion
from mfabric_jax.routing.electrical import by_rail
from mfabric_jax.routing.fixed import fixed_time, wired
from mfabric_jax.workload import Workload


class Hit(NamedTuple):
    """- `server`: of its group.   - `radix`: of switches.   - `rails`: NICs of equal rank share an edge switch."""

    kind: str
    server: int
    radix: int
    nvswitches: int
    rails: bool = False


class StarLeft(eqx.Module):
    """Ports that are left [NICs of 1 byte/s]: `carries` [R E] is the part of every rank that each carries, `port` [E],
    `edge` [S] of the switch above (infinity: no limit)."""

    carries: Float[Array, "R E"]
    port: Float[Array, "E"]
    edge: Float[Array, "S"]
    per_server: int = eqx.field(static=True)
    pxn: bool = eqx.field(static=True)

    def seconds(self, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Completion of one all-to-all at 1 byte/s a NIC."""
        server = jnp.arange(len(self.port)) // (len(self.port) // len(self.edge))
        demand = demand * (1 - jnp.eye(len(demand), dtype=demand.dtype))
        if self.pxn:
            rank = jnp.arange(len(demand)) // self.per_server
            demand = by_rail(jnp.where(rank[:, None] == rank[None], 0, demand), self.per_server)
        carried = self.carries.T @ demand @ self.carries
        between = jnp.where(server[:, None] == server[None], 0, carried)
        return star_completion(between, self.port, self.port, self.edge, self.edge).max(initial=0)


class LinksLeft(eqx.Module):
    """Direct links that are left, at 1 byte/s a NIC."""

    group: DirectLinks
    per_server: int = eqx.field(static=True)

    def seconds(self, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Completion of one all-to-all."""
        return fixed_time(self.group, demand, self.per_server)


class PacketsLeft(NamedTuple):
    """- `carrier`: of all-to-alls.   - the rest: as in `Degraded`."""

    carrier: StarLeft | LinksLeft
    eps_left: float = 1.0
    tp_on_eps: bool = False
    nvlink_left: float = 1.0


@functools.singledispatch
def kinds_on(group: Any) -> tuple[str, ...]:
    """What can fail on a fabric, by what a group sees of it."""
    raise TypeError(f"group must be Region, Electrical or DirectLinks, got {type(group).__name__}.")


@kinds_on.register
def _(group: Region):
    return tuple(kind for kind in KINDS if kind != "switch")


@kinds_on.register
def _(group: Electrical):
    return "electrical-nic", "link", "gpu", "server", "nvswitch", "switch"


@kinds_on.register
def _(group: DirectLinks):
    return "link", "nvswitch"


@functools.singledispatch
def packets_left(group: Any, job: Workload, hit: Hit) -> PacketsLeft:
    """What is left of a group at 1 byte/s a NIC."""
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


@packets_left.register
def _(group: DirectLinks, job: Workload, hit: Hit):
    if hit.kind == "nvswitch":
        return PacketsLeft(LinksLeft(group, job.ranks_per_server), nvlink_left=1 - 1 / hit.nvswitches)
    count = np.array(group.count)
    peer = int(count[hit.server].argmax())
    if not count[hit.server, peer]:
        raise InputError("failure 'link' needs a link between servers of a group; there is none.")
    count[[hit.server, peer], [peer, hit.server]] -= 1
    return PacketsLeft(LinksLeft(wired(group, count), job.ranks_per_server))


@packets_left.register
def _(group: Electrical, job: Workload, hit: Hit):
    servers, nics = job.servers_per_region, group.nics
    each = 1 if group.nic_use == "pooled" else job.ranks_per_server  # ports of a server
    over = 1.0 if group.oversubscription is None else float(group.oversubscription)
    rank = np.arange(job.ep)
    carries = np.eye(servers * each)[rank if each > 1 else rank // job.ranks_per_server]
    port, edge = np.full(servers * each, nics / each), np.full(servers, nics / over)
    first, rest = hit.server * each, dict[str, Any]()
    if hit.kind == "electrical-nic" or (hit.kind == "switch" and hit.rails):
        for lost in range(0, servers * each, each) if hit.kind == "switch" else (first,):
            if port[lost] > 1:
                port[lost] -= 1
            elif each > 1:
                carries[:, lost + 1] += carries[:, lost]
                carries[:, lost] = 0
            else:
                raise InputError(f"failure {hit.kind!r} needs another NIC of the server; it has {nics}.")
        rest = {"eps_left": (nics - 1) / nics}
    if hit.kind == "link":
        up = Tree(1, hit.radix).edge_ports[UP]
        if up < 2:
            raise InputError(f"radix must be 4 or more for failure 'link' (another link stays up), got {hit.radix}.")
        edge, rest = edge * (up - 1) / up, {"eps_left": (up - 1) / up}
    if hit.kind == "gpu":
        carries = np.pad(carries, ((0, 0), (0, each)))
        port, edge = np.append(port, np.full(each, nics / each)), np.append(edge, nics / over)
        slice_ = carries[hit.server * job.ranks_per_server] / job.tp
        carries[hit.server * job.ranks_per_server] -= slice_
        carries[hit.server * job.ranks_per_server, servers * each] += slice_.sum()
        rest = {"tp_on_eps": job.tp > 1}
    if hit.kind == "nvswitch":
        rest = {"nvlink_left": 1 - 1 / hit.nvswitches}
    numbers = jnp.asarray(carries), jnp.asarray(port), jnp.asarray(edge)
    star = StarLeft(*numbers, job.ranks_per_server, group.pxn)
    return PacketsLeft(star)._replace(**rest)
