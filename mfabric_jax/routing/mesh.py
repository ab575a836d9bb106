"""The links that flows between the servers of a mesh cross: by a table of next servers, shortest paths, or areas."""

from typing import Any

import numpy as np

from mfabric_jax.fabric.direct_links import Mesh
from mfabric_jax.fabric.network import FabricGraph, find_links
from mfabric_jax.routing.shortest import Routes, compact, shortest_routes, stack_routes

AT_ONCE = 1 << 17  # pairs x links between areas routed per batch
PAIRS_AT_ONCE = 1 << 16


def mesh_routes(mesh: Mesh, src: np.ndarray, dst: np.ndarray, *, routing: str = "spray", seed: int = 0) -> Routes:
    """Return the links of `mesh.network` that flows from server `src` to `dst` [F] cross, by the mesh's routing rule.

    If the rule is shortest paths, "spray" uses all of them and any other `routing` picks one by hash.
    """
    if mesh.following is not None:
        return _follow_table(mesh, src, dst)
    if mesh.areas is None:
        return shortest_routes(mesh.network, src, dst, routing=routing, seed=seed)
    areas = _Areas(mesh)
    pairs, flow = np.unique(np.stack([src, dst]), axis=1, return_inverse=True)
    step = max(1, AT_ONCE // areas.most_rows)
    parts = [np.arange(first, min(first + step, pairs.shape[1])) for first in range(0, pairs.shape[1], step)]
    routes = stack_routes([(some, areas.routes(*pairs[:, some])) for some in parts], pairs.shape[1])
    return Routes(routes.hops[flow.ravel()], routes.share[flow.ravel()])


def most_at_once(mesh: Mesh, src: np.ndarray, dst: np.ndarray, part: float = 1.0) -> float:
    """Return the NICs of a server at which the busiest link is full if all pairs send `part` of their rate at once."""
    network = mesh.network
    load = np.zeros(len(network.tail))
    for first in range(0, len(src), PAIRS_AT_ONCE):
        some = slice(first, first + PAIRS_AT_ONCE)
        routes = mesh_routes(mesh, src[some], dst[some])
        there = routes.hops >= 0
        load += np.bincount(routes.hops[there], part * routes.share[there], minlength=len(load))
    used = load > 0
    return float((network.capacity[used] / load[used]).min())


def _follow_table(mesh: Mesh, src: np.ndarray, dst: np.ndarray) -> Routes:
    following, tail, head = (np.asarray(x) for x in (mesh.following, mesh.tail, mesh.head))
    columns, node = [], src
    while (node != dst).any():
        then = following[node, dst]
        columns.append(np.where(node != dst, find_links(tail, head, node, then), -1))
        node = then
    hops = np.stack(columns, axis=1) if columns else np.full((len(src), 1), -1)
    steps = Routes(hops, (hops >= 0).astype(float))
    return _with_detours(mesh, steps) if mesh.detours and (hops >= 0).any() else steps


def _with_detours(mesh: Mesh, steps: Routes) -> Routes:
    """Spread every step, in equal shares, over its link and each server that is connected to both ends."""
    used, index = np.unique(steps.hops[steps.hops >= 0], return_inverse=True)
    detour_paths = _detour_paths(mesh, used)
    row = np.full(steps.hops.shape, -1)
    row[steps.hops >= 0] = index
    hops = np.where((row >= 0)[..., None], detour_paths.hops[row], -1).reshape(len(row), -1)
    share = np.where((row >= 0)[..., None], detour_paths.share[row], 0).reshape(len(row), -1)
    return compact(hops, share)


def _detour_paths(mesh: Mesh, link: np.ndarray) -> Routes:
    """Return the direct path of some links, and the two-link paths through a server that is connected to both ends."""
    network, size = mesh.network, sum(count for _, count in mesh.nodes)
    number = np.full((size, size), -1)
    there = network.capacity > 0
    number[network.tail[there], network.head[there]] = np.flatnonzero(there)
    out, into = number[network.tail[link]], number[:, network.head[link]].T  # [links, third]
    both = (out >= 0) & (into >= 0)
    part = 1 / (1 + both.sum(axis=1, keepdims=True))
    hops = np.hstack([link[:, None], np.where(both, out, -1), np.where(both, into, -1)])
    return compact(hops, np.where(hops >= 0, part, 0))


class _Areas:
    """Routes from area to area: over all links between two areas, by their capacities; shortest paths inside areas."""

    def __init__(self, mesh: Mesh):
        self.network, self.area, self.thirds = mesh.network, np.asarray(mesh.areas), mesh.thirds
        self.count = int(self.area.max()) + 1
        ends = self.area[self.network.tail], self.area[self.network.head]
        across = (ends[0] != ends[1]) & (self.network.capacity > 0)
        self.inside: FabricGraph = self.network.without(ends[0] != ends[1])
        key = np.where(across, ends[0] * self.count + ends[1], self.count**2)
        self.order = np.argsort(key, kind="stable")
        self.first = np.searchsorted(key[self.order], np.arange(self.count**2 + 1))

    @property
    def most_rows(self) -> int:
        return max(1, int(np.diff(self.first).max(initial=0)) * (self.count if self.thirds else 1))

    def links(self, source: np.ndarray, target: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the links between K pairs of areas: pair [N] and number [N] of each link, NICs of every pair [K]."""
        key = source * self.count + target
        count = self.first[key + 1] - self.first[key]
        pair = np.repeat(np.arange(len(key)), count)
        nth = np.arange(len(pair)) - np.repeat(np.cumsum(count) - count, count)
        link = self.order[self.first[key][pair] + nth]
        return pair, link, np.bincount(pair, self.network.capacity[link], minlength=len(key))

    def routes(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        if not self.thirds:
            return self.direct(src, dst)
        source, target = self.area[src], self.area[dst]
        every = np.arange(self.count)
        _, _, out = self.links(np.repeat(source, self.count), np.tile(every, len(src)))
        third = (out.reshape(-1, self.count) > 0) & (source != target)[:, None]
        third &= (every != source[:, None]) & (every != target[:, None])
        flow, via = np.nonzero(third)
        pair, link, nics = self.links(source[flow], via)
        part = (1 / third.sum(axis=1)[flow] / nics)[pair] * self.network.capacity[link]
        flow = flow[pair]
        first = shortest_routes(self.inside, src[flow], self.network.tail[link])
        ends = np.stack([self.network.head[link], dst[flow]])
        pairs, which = np.unique(ends, axis=1, return_inverse=True)
        onward, which = self.direct(*pairs), which.ravel()
        plain = np.flatnonzero(~third.any(axis=1))
        plain_routes = self.direct(src[plain], dst[plain])
        legs: list[Any] = [(flow, *_scale_shares(first, part)), (flow, link[:, None], part[:, None])]
        legs.append((flow, *_scale_shares(Routes(onward.hops[which], onward.share[which]), part)))
        return _sum_legs([*legs, (plain, *plain_routes)], len(src))

    def direct(self, src: np.ndarray, dst: np.ndarray) -> Routes:
        """Return routes without a third area; all shortest paths if every link between the two areas is broken."""
        flow, link, nics = self.links(self.area[src], self.area[dst])
        part = 1 / nics[flow] * self.network.capacity[link]
        first = shortest_routes(self.inside, src[flow], self.network.tail[link])
        last = shortest_routes(self.inside, self.network.head[link], dst[flow])
        legs: list[Any] = [
            (flow, *_scale_shares(first, part)),
            (flow, link[:, None], part[:, None]),
            (flow, *_scale_shares(last, part)),
        ]
        same = self.area[src] == self.area[dst]
        for some, network in ((same, self.inside), (~same & (nics == 0), self.network)):
            flows = np.flatnonzero(some)
            legs.append((flows, *shortest_routes(network, src[flows], dst[flows])))
        return _sum_legs(legs, len(src))


def _scale_shares(routes: Routes, part: np.ndarray) -> Routes:
    return Routes(routes.hops, routes.share * part[:, None])


def _sum_legs(parts: list[Any], flows: int) -> Routes:
    """Join legs (flow [N], hops, share [N H]) to one row per flow; the shares of a link in several legs add up."""
    triples = []
    for flow, hops, share in parts:
        row, column = np.nonzero(hops >= 0)
        triples.append((flow[row], hops[row, column], share[row, column]))
    flow, link, share = (np.concatenate(column) for column in zip(*triples, strict=True))
    links = int(link.max(initial=0)) + 1
    key, index = np.unique(flow.astype(np.int64) * links + link, return_inverse=True)
    (flow, link), share = np.divmod(key, links), np.bincount(index, share, minlength=len(key))
    column = np.arange(len(flow)) - np.searchsorted(flow, flow)
    hops = np.full((flows, int(column.max(initial=0)) + 1), -1)
    table = np.zeros(hops.shape)
    hops[flow, column], table[flow, column] = link, share
    return Routes(hops, table)
