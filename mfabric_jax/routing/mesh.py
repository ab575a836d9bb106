"""Flows between the servers of a mesh -> the links they cross: named ways, shortest ones, or through third areas."""

import numpy as np

from mfabric_jax.fabric.direct_links import Mesh
from mfabric_jax.fabric.network import Network, find_links, network_of
from mfabric_jax.routing.routes import Routes
from mfabric_jax.routing.shortest import shortest_routes

AT_ONCE = 1 << 18  # pairs x third areas whose ways are worked out together


def mesh_routes(mesh: Mesh, src: np.ndarray, dst: np.ndarray, *, routing: str = "spray", seed: int = 0) -> Routes:
    """Links of `mesh.network` that flows from server `src` to `dst` [F] cross.

    - `routing`: "spray": over all ways that the mesh allows; else, where it allows all shortest ways, one of them by a
      hash.
    """
    if mesh.following is not None:
        return _followed(mesh, src, dst)
    if mesh.areas is None:
        return shortest_routes(mesh.network, src, dst, routing=routing, seed=seed)
    pair, flow = np.unique(np.stack([src, dst]), axis=1, return_inverse=True)
    routes = _through_thirds(mesh, *pair)
    return Routes(routes.hops[flow.ravel()], routes.share[flow.ravel()])


def most_at_once(mesh: Mesh, src: np.ndarray, dst: np.ndarray, part: float = 1.0) -> float:
    """NICs with which servers send when all of these pairs send at once, a `part` of a server's bytes each, and the
    busiest link is full."""
    network, load = mesh.network, np.zeros(len(mesh.nics))
    for first in range(0, len(src), AT_ONCE):
        hops, share = mesh_routes(mesh, src[first : first + AT_ONCE], dst[first : first + AT_ONCE])
        there = hops >= 0
        load += np.bincount(hops[there], part * share[there], minlength=len(load))
    used = load > 0
    return float((network.capacity[used] / load[used]).min())


def _followed(mesh: Mesh, src: np.ndarray, dst: np.ndarray) -> Routes:
    """The one way that the mesh names."""
    following, tail, head = (np.asarray(x) for x in (mesh.following, mesh.tail, mesh.head))
    columns, at = [], src
    while (at != dst).any():
        then = following[at, dst]
        columns.append(np.where(at != dst, find_links(tail, head, at, then), -1))
        at = then
    hops = np.stack(columns, axis=1) if columns else np.full((len(src), 1), -1)
    return Routes(hops, (hops >= 0).astype(float))


def _through_thirds(mesh: Mesh, src: np.ndarray, dst: np.ndarray) -> Routes:
    """Shortest ways inside an area; else to every third area, and on from the nodes where they reach it."""
    areas, network = np.asarray(mesh.areas), mesh.network
    every = np.arange(areas.max() + 1)
    third = (areas[src] != areas[dst])[:, None] & (every != areas[src][:, None]) & (every != areas[dst][:, None])
    if not third.any():
        return shortest_routes(network, src, dst)
    flow, via = np.nonzero(third)
    part = 1 / third.sum(axis=1)[flow]
    there, share = shortest_routes(_with_sinks(network, areas), src[flow], network.size + via)
    links = len(network.tail)
    row, column = np.nonzero(there >= links)  # reached an area: on from this node of it
    onward = shortest_routes(network, there[row, column] - links, dst[flow[row]])
    plain = np.flatnonzero(~third.any(axis=1))
    direct = shortest_routes(network, src[plain], dst[plain])
    parts = [
        (flow, np.where(there < links, there, -1), share * part[:, None]),
        (flow[row], onward.hops, onward.share * (share[row, column] * part[row])[:, None]),
        (plain, direct.hops, direct.share),
    ]
    return _summed(parts, len(src))


def _with_sinks(network: Network, areas: np.ndarray) -> Network:
    """The network with a node for each area, which links lead to from all nodes of it; these come last, in order."""
    node = np.arange(network.size)
    runs = [("link", network.tail, network.head, network.capacity)]
    runs.append(("sink", node, network.size + areas, np.ones(network.size)))
    return network_of(runs, (("node", network.size), ("sink", int(areas.max()) + 1)), 0.0)


def _summed(parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]], flows: int) -> Routes:
    """Rows (flow, hops, shares), several of a flow, as one row for each flow."""
    triples = []
    for flow, hops, share in parts:
        row, column = np.nonzero(hops >= 0)
        triples.append((flow[row], hops[row, column], share[row, column]))
    flow, link, share = (np.concatenate(column) for column in zip(*triples, strict=True))
    key, place = np.unique(flow.astype(np.int64) * (link.max(initial=0) + 1) + link, return_inverse=True)
    flow, link = np.divmod(key, link.max(initial=0) + 1)
    share = np.bincount(place, share, minlength=len(key))
    column = np.arange(len(flow)) - np.searchsorted(flow, flow)
    hops = np.full((flows, int(column.max(initial=0)) + 1), -1)
    table = np.zeros(hops.shape)
    hops[flow, column], table[flow, column] = link, share
    return Routes(hops, table)
