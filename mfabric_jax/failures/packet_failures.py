"""What fails on a fabric whose links do not change, and how its all-to-alls are carried by what is left."""

import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.fabric.region import Region
from mfabric_jax.fabric.tree import UP, Tree
from mfabric_jax.flows import star_completion
from mfabric_jax.policies import topoopt
from mfabric_jax.routing.electrical import away_from_server, by_rail
from mfabric_jax.routing.fixed import fixed_time, wired
from mfabric_jax.workload import Workload


class Hit(NamedTuple):
    """- `server`: of its group.   - `radix`: of switches.   - `rails`: NICs of equal rank share an edge switch.
    - `demand` [S S]: the mean of the run, for which circuits that do not change are chosen."""

    kind: str
    server: int
    radix: int
    nvswitches: int
    rails: bool = False
    demand: Any = None


class StarLeft(eqx.Module):
    """Ports that are left [NICs of 1 byte/s], for every GPU of the group and, behind them, those of a spare server.

    - `sits` [G P]: the place at which each GPU of the group works.   - `carries` [P E]: the part of the bytes of every
      place that each port carries.   - `port` [E], `edge` [S]: ports, and those of the switches above.
    - `gpus_per_rank` (static): which have equal parts of their rank's bytes.   - `per_server` (static): places.
    """

    sits: Float[Array, "G P"]
    carries: Float[Array, "P E"]
    port: Float[Array, "E"]
    edge: Float[Array, "S"]
    gpus_per_rank: int = eqx.field(static=True)
    per_server: int = eqx.field(static=True)
    pxn: bool = eqx.field(static=True)

    def seconds(self, demand: Float[Array, "R R"]) -> Float[Array, ""]:
        """Completion of one all-to-all at 1 byte/s a NIC."""
        demand = demand * (1 - jnp.eye(len(demand), dtype=demand.dtype))
        gpus = jnp.kron(demand, jnp.eye(self.gpus_per_rank, dtype=demand.dtype)) / self.gpus_per_rank
        between = away_from_server(self.sits.T @ gpus @ self.sits, self.per_server)
        between = by_rail(between, self.per_server) if self.pxn else between
        carried = self.carries.T @ between @ self.carries
        return star_completion(carried, self.port, self.port, self.edge, self.edge).max(initial=0)


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
    tp_on_eps: float = 0.0
    nvlink_left: float = 1.0
    moved: float = 0.0


@functools.singledispatch
def packets_left(group: Any, job: Workload, hit: Hit) -> PacketsLeft:
    """What is left of a group at 1 byte/s a NIC."""
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


@packets_left.register
def _(group: DirectLinks, job: Workload, hit: Hit):
    if hit.kind == "nvswitch":
        return PacketsLeft(LinksLeft(group, job.ranks_per_server), nvlink_left=1 - 1 / hit.nvswitches)
    if hit.kind in ("gpu", "server"):  # a spare takes all circuits of the server
        return PacketsLeft(LinksLeft(group, job.ranks_per_server))
    if hit.kind == "optical-nic":
        nics = np.full(group.servers, group.nics, np.int32) - (np.arange(group.servers) == hit.server)
        chosen = topoopt(hit.demand, Region(group.servers, group.nic_gbps, nics)).circuits.count
        return PacketsLeft(LinksLeft(wired(group, chosen), job.ranks_per_server))
    assert group.mesh is not None
    count = group.mesh.count
    peer = int(count[hit.server].argmax())
    if not count[hit.server, peer]:
        raise InputError("failure 'link' needs a link between servers of a group; there is none.")
    left = dataclasses.replace(group, mesh=group.mesh.without_one(hit.server, peer))
    return PacketsLeft(LinksLeft(wired(left), job.ranks_per_server))


@packets_left.register
def _(group: Electrical, job: Workload, hit: Hit):
    over = 1.0 if group.oversubscription is None else float(group.oversubscription)
    star, rest, nics = _star(group, job, over, spare=hit.kind == "gpu"), dict[str, Any](), group.nics
    if hit.kind == "electrical-nic" or (hit.kind == "switch" and hit.rails):
        servers = range(job.servers_per_region) if hit.kind == "switch" else (hit.server,)
        star = _without_nics(star, group, servers, hit.kind)
        rest = {"eps_left": (nics - 1) / nics}
    if hit.kind == "link":
        up = Tree(1, hit.radix, oversubscription=over).edge_ports[UP]
        if up < 2:
            raise InputError(f"radix {hit.radix} gives an edge switch one link up; failure 'link' needs another.")
        star = dataclasses.replace(star, edge=star.edge * (up - 1) / up)
        rest = {"eps_left": (up - 1) / up}
    if hit.kind == "gpu":
        lost, spare = hit.server * star.per_server, job.ep * job.tp
        star = dataclasses.replace(star, sits=star.sits.at[lost, lost].set(0).at[lost, spare].set(1))
        own = min(1.0, over / nics) if group.nic_use == "own" else 1.0
        rest = {"tp_on_eps": own if job.tp > 1 else 0.0, "moved": 1 / job.tp}
    if hit.kind == "nvswitch":
        rest = {"nvlink_left": 1 - 1 / hit.nvswitches}
    return PacketsLeft(star)._replace(**rest)


def _star(group: Electrical, job: Workload, over: float, *, spare: bool) -> StarLeft:
    """The ports of a healthy group, those of a spare server behind them."""
    servers, per_server = job.servers_per_region + spare, job.tp * job.ranks_per_server
    gpus, places = job.ep * job.tp, servers * per_server
    own = group.nic_use == "own"
    carries = np.eye(places) if own else np.repeat(np.eye(servers), per_server, axis=0)
    port = np.full(carries.shape[1], 1.0 if own else float(group.nics))
    edge = np.full(servers, group.nics / over)
    sits, carries, port, edge = map(jnp.asarray, (np.eye(gpus, places), carries, port, edge))
    return StarLeft(sits, carries, port, edge, job.tp, per_server, group.pxn)


def _without_nics(star: StarLeft, group: Electrical, servers: Iterable[int], kind: str) -> StarLeft:
    """A NIC less at each of the servers: the other GPUs of its rank carry its bytes, or the next GPU."""
    if (star.per_server if group.nic_use == "own" else group.nics) < 2:
        raise InputError(f"failure {kind!r} needs another NIC of the server; it has {group.nics}.")
    for server in servers:
        lost = server * star.per_server
        if group.nic_use == "own":
            heirs = jnp.arange(lost + 1, lost + max(2, star.gpus_per_rank))
            carries = star.carries.at[lost, lost].set(0).at[lost, heirs].set(1 / len(heirs))
            star = dataclasses.replace(star, carries=carries)
        else:
            star = dataclasses.replace(star, port=star.port.at[server].add(-1))
    return star
