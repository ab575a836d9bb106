"""The ends of all flows of one all-to-all, and its busiest link, on the host in float64.

A flow is the bytes of a pair of GPUs or ranks, or of a pair of servers that pool NICs or use circuits. The busiest link
is the one whose own bytes would take longest at its full capacity.
"""

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.flows.host.star import flow_ends
from mfabric_jax.flows.host_times import finish_times_now
from mfabric_jax.routing.fixed import SinglePaths, StarLoads, away_from_server, spray_ports
from mfabric_jax.traffic.dispatch import summed_by_server

if TYPE_CHECKING:
    from mfabric_jax.routing.graph_paths import GraphPaths

DIRECTIONS = "out", "in"
KEPT = 1 + 1e-6  # best-path keeps a pair on its circuits up to this multiple of the circuits' end


class FlowEnds(NamedTuple):
    """Ends of flows.

    - `seconds` [F]: when each flow with bytes ends.
    - `busiest`: the busiest link, whose bytes alone take `busiest_s`; None if all paths are paced to end together.
    """

    seconds: np.ndarray
    busiest: str | None
    busiest_s: float

    @classmethod
    def of(
        cls, seconds: Float[np.ndarray, "F"], alone: Float[np.ndarray, "L"], name: Callable[[int], str]
    ) -> "FlowEnds":
        """Return the ends with the busiest link.

        `alone`: seconds that each link's bytes take at its full capacity; `name` maps a link's number to its name.
        """
        link = int(alone.argmax()) if len(alone) else 0
        return cls(seconds, name(link) if len(seconds) else None, float(alone.max(initial=0)))

    def quantile(self, part: float) -> float | None:
        """Return when this fraction of the flows has ended; None without flows."""
        return float(np.quantile(self.seconds, part, method="inverted_cdf")) if len(self.seconds) else None

    @property
    def busiest_use(self) -> float | None:
        """Time that the busiest link needs for its bytes, as a fraction of the time until the last flow ends."""
        last = self.seconds.max(initial=0)
        return None if self.busiest is None or not np.isfinite(last) or last == 0 else float(self.busiest_s / last)


QUANTILES = {"flow_p50_s": 0.5, "flow_p99_s": 0.99}


def columns_of_ends(result: FlowEnds | None, rate: float = 1.0) -> dict[str, Any]:
    """Return the columns of a row, all None if `result` is None (unknown); `rate`: factor by which links are faster."""
    if result is None:
        return dict.fromkeys((*QUANTILES, "busiest_link", "busiest_link_use"))
    seconds = {name: result.quantile(part) for name, part in QUANTILES.items()}
    columns: dict[str, Any] = {name: None if s is None else s / rate for name, s in seconds.items()}
    return columns | {"busiest_link": result.busiest, "busiest_link_use": result.busiest_use}


@functools.singledispatch
def ends(group: Any, demand: Float[np.ndarray, "R R"], ranks_per_server: int) -> FlowEnds:
    """Return when the flows of an all-to-all of `demand` bytes end on links that do not change, by the group's rule."""
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


@ends.register
def _(group: Electrical, demand: np.ndarray, ranks_per_server: int) -> FlowEnds:
    ports = spray_ports(group, demand, ranks_per_server)
    each, edges = len(ports.port), 0 if ports.edge is None else len(ports.edge)
    planes = group.planes if group.own_plane else 1
    owner = "NICs of server {}" if group.nic_use == "pooled" else "NIC of rank {}"
    named = [
        owner.format(number // planes) + (f", plane {number % planes}" if planes > 1 else "") for number in range(each)
    ]
    return _on_ports(ports, [*named, *(f"edge switch of server {number}" for number in range(edges))])


@ends.register
def _(group: DirectLinks, demand: np.ndarray, ranks_per_server: int) -> FlowEnds:
    assert group.mesh is not None
    size = summed_by_server(away_from_server(demand, ranks_per_server), ranks_per_server)
    capacity = np.asarray(group.mesh.nics, float) * np.asarray(group.nic_Bps, float)
    paths = np.asarray(group.hops), np.asarray(group.share, float)
    return _on_paths(capacity, *paths, np.tile(size.ravel(), group.groups), group.mesh.network.link_name)


def ends_on_paths(
    carry: SinglePaths, nic_Bps: float, demand: Float[np.ndarray, "R R"], name: Callable[[int], str]
) -> FlowEnds:
    """Return when the flows of an all-to-all end, each on a single path; `name` maps a link's number to its name."""
    size = demand[np.asarray(carry.source), np.asarray(carry.target)] / carry.slices
    capacity = np.asarray(carry.capacity, float) * float(nic_Bps)
    return _on_paths(capacity, np.asarray(carry.hops), np.asarray(carry.share, float), size, name)


def ends_on_graph(
    paths: "GraphPaths", nic_Bps: float, demand: Float[np.ndarray, "R R"], name: Callable[[int], str]
) -> FlowEnds:
    """Return when the flows of a graph's slowest groups end; `name` maps a link's number to its name."""
    seconds, busiest, demand = [np.zeros(0)], FlowEnds(np.zeros(0), None, 0.0), paths.at_nics(demand)
    for part in paths.parts:
        size = demand[part.source, part.target] / paths.slices
        load = _load(part.hops, part.share, size, part.links) / nic_Bps
        ended = part.finish_now(nic_Bps, size)[size > 0]
        own = FlowEnds.of(ended, load, lambda link, part=part: name(int(part.links_of[link])))
        seconds.append(np.tile(own.seconds, part.many))
        busiest = max(busiest, own, key=lambda candidate: candidate.busiest_s)
    return busiest._replace(seconds=np.concatenate(seconds))


def ends_on_circuits(
    region: Region,
    count: Int[np.ndarray, "S S"],
    demand: Float[np.ndarray, "S S"],
    routing: str,
    optical_s: float,
    electrical_s: float,
) -> FlowEnds:
    """Return when each pair of servers ends on circuits `count` and packet switches.

    Circuits end at `optical_s`, packet switches at `electrical_s` (`routing.region.part_times`).
    """
    demand = np.where(np.eye(len(demand), dtype=bool), 0.0, demand)
    some, last = demand > 0, max(optical_s, electrical_s)
    if routing == "relay":
        return FlowEnds(np.full(some.sum(), last), None, last)
    circuit = count * float(region.nic_Bps)
    direct = np.divide(demand, circuit, out=np.full(demand.shape, np.inf), where=count > 0)
    port = np.broadcast_to(np.asarray(region.eps_Bps, float), len(demand))
    if routing == "split":
        kept, end = np.minimum(demand, circuit * last), np.minimum(direct, last)
    else:
        on = (count > 0) if routing == "unsplit" else direct <= optical_s * KEPT
        kept = np.where(on, demand, 0)
        end = np.where(on, direct, _star_ends(StarLoads(demand - kept, port, None)))
    electrical = demand - kept
    alone = np.concatenate(
        [
            np.divide(kept, circuit, out=np.zeros_like(kept), where=kept > 0).ravel(),
            *(
                np.divide(load, port, out=np.zeros_like(port), where=load > 0)
                for load in (electrical.sum(1), electrical.sum(0))
            ),
        ]
    )
    return FlowEnds.of(end[some], alone, functools.partial(_name_in_region, len(demand)))


def _name_in_region(servers: int, link: int) -> str:
    """Return the name of a link: circuits from server to server come first, then electrical NICs, out and in."""
    if link < servers**2:
        return "circuits of server {} to server {}".format(*divmod(link, servers))
    direction, server = divmod(link - servers**2, servers)
    return f"electrical NICs of server {server}, {DIRECTIONS[direction]}"


def _on_ports(ports: StarLoads, names: Sequence[str]) -> FlowEnds:
    out, into = ports.size.sum(1), ports.size.sum(0)
    capacity = [ports.port, ports.port] if ports.edge is None else [ports.port, ports.edge] * 2
    loads = []
    for load in (out, into):
        loads += [load] if ports.edge is None else [load, load.reshape(len(ports.edge), -1).sum(1)]
    alone = np.concatenate(loads) / np.concatenate(capacity)
    both = [f"{name}, {direction}" for direction in DIRECTIONS for name in names]
    return FlowEnds.of(_star_ends(ports)[ports.size > 0], alone, both.__getitem__)


def _star_ends(ports: StarLoads) -> Float[np.ndarray, "N N"]:
    """Return when every flow of a star of ports ends [s]; 0 without bytes."""
    both = np.stack([ports.port, ports.port])
    return flow_ends(ports.size[None], both, None if ports.edge is None else np.stack([ports.edge, ports.edge]))[0]


def _on_paths(
    capacity: np.ndarray, hops: np.ndarray, share: np.ndarray, size: Float[np.ndarray, "F"], name: Callable[[int], str]
) -> FlowEnds:
    finish = finish_times_now(capacity, hops, share, size[None])[0]
    load = _load(hops, share, size, len(capacity))
    alone = np.divide(load, capacity, out=np.zeros(len(capacity)), where=load > 0)
    return FlowEnds.of(finish[size > 0], alone, name)


def _load(hops: np.ndarray, share: np.ndarray, size: Float[np.ndarray, "F"], links: int) -> Float[np.ndarray, "L"]:
    there = hops >= 0
    return np.bincount(hops[there], (share * size[:, None])[there], minlength=links).astype(float)
