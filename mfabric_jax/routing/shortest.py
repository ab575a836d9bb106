"""Routes by hop count on any network: equal-cost multipath, packet spraying, weighted splits, least-loaded paths.

They are computed by NumPy on the host. Links of capacity 0 are ignored; parallel links are separate choices. The *next*
links of a node are those on a shortest path to the destination. Letters: F flows, N nodes, L links, D distinct
destinations, R distinct pairs of nodes.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import InputError, not_negative, one_of, whole
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.support.loops import at_first_call

ROUTINGS = ("spray", "ecmp", "weighted", "least-loaded")
_hops_to = at_first_call("mfabric_jax.routing.shortest_loops:hops_to")
_spread = at_first_call("mfabric_jax.routing.shortest_loops:spread")
AT_ONCE = 1 << 26  # nodes x destinations whose distances are held at a time
GOLDEN, FIRST, SECOND = (np.uint64(x) for x in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


class Routes(NamedTuple):
    """Links of each flow: `hops` [F H] (-1 pads), and `share` [F H], the fraction of the flow's rate on each hop."""

    hops: np.ndarray
    share: np.ndarray


def compact(hops: np.ndarray, share: np.ndarray) -> Routes:
    """Merge repeated links of a row and drop shares of 0; links are in falling order, padding last."""
    hops = np.where(share > 0, hops, -1)
    order = np.argsort(-hops, axis=1, kind="stable")
    hops, share = np.take_along_axis(hops, order, 1), np.take_along_axis(share, order, 1)
    first = np.ones(hops.shape, bool)
    first[:, 1:] = hops[:, 1:] != hops[:, :-1]
    slot = np.cumsum(first, axis=1) - 1  # equal links share a slot
    width = max(1, int(np.where(hops >= 0, slot + 1, 0).max(initial=0)))
    row, column = np.nonzero(hops >= 0)
    index = row, slot[row, column]
    merged, total = np.full((len(hops), width), -1, np.int32), np.zeros((len(hops), width))
    merged[index] = hops[row, column]
    np.add.at(total, index, share[row, column])
    return Routes(merged, total)


def stack_routes(parts: list[tuple[np.ndarray, Routes]], flows: int) -> Routes:
    """Join (flow numbers, routes) parts into one table; flows in no part have no hops."""
    width = max([1, *(routes.hops.shape[1] for _, routes in parts)])
    hops, share = np.full((flows, width), -1, np.int32), np.zeros((flows, width))
    for flow, routes in parts:
        hops[flow, : routes.hops.shape[1]] = routes.hops
        share[flow, : routes.share.shape[1]] = routes.share
    return Routes(hops, share)


class _Fan(NamedTuple):
    """Usable links grouped by the node at one end: node n has link[first[n] : first[n + 1]]."""

    first: np.ndarray
    link: np.ndarray

    def of(self, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the links of all listed nodes: (index of the node in the list, link)."""
        count = self.first[node + 1] - self.first[node]
        owner = np.repeat(np.arange(len(node)), count)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
        return owner, self.link[self.first[node][owner] + within]


class _Dag(NamedTuple):
    """Shortest paths to every destination: links `out` of each node, `distance` [D N] in hops (-1: no path).
    `relay` [N]: nodes that forward."""

    network: FabricGraph
    out: _Fan
    distance: np.ndarray
    relay: np.ndarray

    def next(self, to: np.ndarray, node: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the next links from each node to destination number `to`: (index of the node in the list, link)."""
        owner, link = self.out.of(node)
        left = self.distance[to, node]
        head = self.network.head[link]
        hops = self.distance[to[owner], head]
        closer = (hops == left[owner] - 1) & (self.relay[head] | (hops == 0))
        return owner[closer], link[closer]


def shortest_routes(
    network: FabricGraph,
    src: ArrayLike,
    dst: ArrayLike,
    *,
    routing: str = "spray",
    seed: int = 0,
    size: ArrayLike | None = None,
    relay: np.ndarray | None = None,
) -> Routes:
    """Return the links that flows between nodes `src`, `dst` [F] cross, in the order in which they cross them.

    - `spray`: an equal share on each next link at every node.
    - `weighted`: shares proportional to the capacity of the next links (Zhou et al., WCMP, EuroSys 2014).
    - `ecmp`: one path, each next link drawn by a hash of (`seed`, flow number, src, dst, node).
    - `least-loaded`: in decreasing order of `size` [F] (bytes), each flow takes the one path with the smallest maximum
      of (load so far + size) / capacity; ties go to the smallest sum, then by hash.
    - `relay` [N]: nodes that forward for others; None: all.

    A flow to its own node crosses no link. Raise `InputError` if a flow has no path.
    """
    one_of("routing", routing, ROUTINGS)
    seed = whole("seed", seed, at_least=0)
    src, dst = _ends(network, src, dst)
    key, weight = _hash_numbers(seed, np.arange(len(src)), src, dst), _weights(network, routing)
    targets, to = np.unique(dst, return_inverse=True)
    if routing == "least-loaded":
        dag = _dag(network, targets, relay)
        _check_reached(dag, src, dst, to, np.arange(len(src)))
        return _balance_flows(dag, src, dst, to, _sizes(size, len(src)), key)
    step, parts = max(1, AT_ONCE // max(1, network.size)), []
    for first in range(0, len(targets), step):
        mine = np.flatnonzero((first <= to) & (to < first + step))
        dag = _dag(network, targets[first : first + step], relay)
        _check_reached(dag, src, dst, to - first, mine)
        if routing == "ecmp":
            parts.append((mine, _draw_paths(dag, src[mine], to[mine] - first, key[mine])))
        else:
            parts.append((mine, _split(dag, src[mine], to[mine] - first, weight)))
    return parts[0][1] if len(parts) == 1 else stack_routes(parts, len(src))


def shortest_loads(
    network: FabricGraph,
    src: ArrayLike,
    dst: ArrayLike,
    amount: np.ndarray,
    *,
    routing: str = "spray",
    seed: int = 0,
    relay: np.ndarray | None = None,
) -> np.ndarray:
    """Return the load of every link [L] if flows carry `amount` [F] on `shortest_routes`, without a table of routes."""
    one_of("routing", routing, ("spray", "ecmp", "weighted"))
    src, dst = _ends(network, src, dst)
    load = np.zeros(len(network.tail))
    if routing == "ecmp":
        routes = shortest_routes(network, src, dst, routing=routing, seed=seed, relay=relay)
        there = routes.hops >= 0
        return load + np.bincount(routes.hops[there], (routes.share * amount[:, None])[there], minlength=len(load))
    order = np.argsort(dst, kind="stable")
    targets, first = np.unique(dst[order], return_index=True)
    flows, fans = np.append(first, len(dst)), (*_fan(network, network.head), *_fan(network, network.tail))
    ends, forwards = tuple(x.astype(np.int64) for x in (network.tail, network.head)), _relays(network, relay)
    lost = _spread(
        targets, flows, src[order], amount[order].astype(float), *fans, ends, forwards, _weights(network, routing), load
    )
    if lost >= 0:
        raise _no_path(network, src, dst, int(order[lost]))
    return load


def distances(network: FabricGraph, targets: np.ndarray, relay: np.ndarray | None = None) -> np.ndarray:
    """Return the hops [D N] from every node to each node of `targets` [D]; -1 without a path."""
    hops = np.empty((len(targets), network.size), np.int32)
    fan = _fan(network, network.head)
    tail = network.tail.astype(np.int64)
    _hops_to(np.asarray(targets, np.int64), *fan, tail, _relays(network, relay), hops)
    return hops


def _dag(network: FabricGraph, targets: np.ndarray, relay: np.ndarray | None) -> _Dag:
    return _Dag(network, _fan(network, network.tail), distances(network, targets, relay), _relays(network, relay))


def _relays(network: FabricGraph, relay: np.ndarray | None) -> np.ndarray:
    return np.ones(network.size, bool) if relay is None else np.ascontiguousarray(relay, bool)


def _ends(network: FabricGraph, src: ArrayLike, dst: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    src, dst = (_as_nodes(field, value, network) for field, value in (("src", src), ("dst", dst)))
    if src.shape != dst.shape:
        raise InputError(f"src and dst must have the same length, got {len(src)} and {len(dst)}.")
    return src, dst


def _weights(network: FabricGraph, routing: str) -> np.ndarray:
    """Return the weights [L] by which flows split."""
    weight = network.capacity if routing == "weighted" else np.ones(len(network.tail))
    if not np.all(np.isfinite(weight)):
        raise InputError("routing 'weighted' needs links of finite capacity.")
    return weight


def _fan(network: FabricGraph, end: np.ndarray) -> _Fan:
    usable = np.flatnonzero(network.capacity > 0)
    count = np.bincount(end[usable], minlength=network.size)
    return _Fan(np.concatenate([[0], np.cumsum(count)]), usable[np.argsort(end[usable], kind="stable")])


def _as_nodes(field: str, value: ArrayLike, network: FabricGraph) -> np.ndarray:
    node = np.asarray(value)
    node = node if node.size else node.astype(np.int64)
    if node.ndim != 1 or node.dtype.kind not in "iu":
        raise InputError(f"{field} must be a list of node numbers, got {node.dtype} {list(node.shape)}.")
    if node.size and (node.min() < 0 or node.max() >= network.size):
        raise InputError(f"{field} must lie in 0..{network.size - 1}, got {node.min()}..{node.max()}.")
    return node.astype(np.int64)


def _sizes(size: ArrayLike | None, flows: int) -> np.ndarray:
    if size is None:
        raise InputError("routing 'least-loaded' needs the size of every flow, got none.")
    size = np.asarray(not_negative("size", size), float)
    if size.shape != (flows,):
        raise InputError(f"size must have the shape [{flows}], got {list(size.shape)}.")
    return size


def _check_reached(dag: _Dag, src: np.ndarray, dst: np.ndarray, to: np.ndarray, flows: np.ndarray) -> None:
    lost = flows[dag.distance[to[flows], src[flows]] < 0]
    if lost.size:
        raise _no_path(dag.network, src, dst, int(lost[0]))


def _no_path(network: FabricGraph, src: np.ndarray, dst: np.ndarray, flow: int) -> InputError:
    start, end = (network.node_name(int(node[flow])) for node in (src, dst))
    return InputError(
        f"no path leads from {start} to {end} (flow {flow}): a link leads from its source to its target (in both "
        "directions if the graph is undirected), and a link of capacity 0 is broken."
    )


def splitmix64(x: np.ndarray) -> np.ndarray:
    """Return splitmix64 of uint64 numbers (Steele et al., OOPSLA 2014; constants of Vigna's splitmix64.c)."""
    x = x + GOLDEN
    x = (x ^ (x >> np.uint64(30))) * FIRST
    x = (x ^ (x >> np.uint64(27))) * SECOND
    return x ^ (x >> np.uint64(31))


def _hash_numbers(seed: int, *numbers: np.ndarray) -> np.ndarray:
    value = splitmix64(np.full(len(numbers[0]), seed % (1 << 64), np.uint64))
    for number in numbers:
        value = splitmix64(value ^ number.astype(np.uint64))
    return value


def _choice(key: np.ndarray, node: np.ndarray, count: np.ndarray) -> np.ndarray:
    return (splitmix64(key ^ node.astype(np.uint64)) % count.astype(np.uint64)).astype(np.int64)


def _draw_paths(dag: _Dag, src: np.ndarray, to: np.ndarray, key: np.ndarray) -> Routes:
    node, columns = src.copy(), [np.full(len(src), -1, np.int32)]
    flow = np.flatnonzero(dag.distance[to, node] > 0)
    while flow.size:
        owner, link = dag.next(to[flow], node[flow])
        count = np.bincount(owner, minlength=len(flow))
        taken = link[np.cumsum(count) - count + _choice(key[flow], node[flow], count)]
        columns.append(np.full(len(src), -1, np.int32))
        columns[-1][flow] = taken
        node[flow] = dag.network.head[taken]
        flow = flow[dag.distance[to[flow], node[flow]] > 0]
    hops = np.stack(columns[1:] or columns, axis=1)
    return Routes(hops, (hops >= 0).astype(float))


def _split(dag: _Dag, src: np.ndarray, to: np.ndarray, weight: np.ndarray) -> Routes:
    many = len(dag.distance)
    pair, flow = np.unique(src * many + to, return_inverse=True)
    row, link, share = _parts(dag, pair // many, pair % many, weight)
    routes = _table(row, link, share, len(pair))
    return Routes(routes.hops[flow], routes.share[flow])


def _parts(dag: _Dag, src: np.ndarray, to: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, ...]:
    """Split by `weight` [L] at every node; return (row, link, share) of every hop, nearest to the source first."""
    row = np.flatnonzero(dag.distance[to, src] > 0)
    node, share, crossed = src[row], np.ones(len(row)), [(row[:0], row[:0], np.zeros(0))]
    while row.size:
        owner, link = dag.next(to[row], node)
        part = share[owner] * weight[link] / np.bincount(owner, weight[link])[owner]
        crossed.append((row[owner], link, part))
        arrived, index = np.unique(row[owner] * dag.network.size + dag.network.head[link], return_inverse=True)
        (row, node), share = np.divmod(arrived, dag.network.size), np.bincount(index, part)
        going = dag.distance[to[row], node] > 0
        row, node, share = row[going], node[going], share[going]
    return tuple(np.concatenate(column) for column in zip(*crossed, strict=True))


def _table(row: np.ndarray, link: np.ndarray, share: np.ndarray, rows: int) -> Routes:
    order = np.argsort(row, kind="stable")
    order = order[share[order] > 0]
    row = row[order]
    count = np.bincount(row, minlength=rows)
    column = np.arange(len(row)) - (np.cumsum(count) - count)[row]
    shape = (rows, max(1, int(count.max(initial=0))))
    hops, table = np.full(shape, -1, np.int32), np.zeros(shape)
    hops[row, column], table[row, column] = link[order], share[order]
    return Routes(hops, table)


def _balance_flows(
    dag: _Dag, src: np.ndarray, dst: np.ndarray, to: np.ndarray, size: np.ndarray, key: np.ndarray
) -> Routes:
    pair, row = np.unique(src * len(dag.distance) + to, return_inverse=True)
    levels = _levels(dag, pair // len(dag.distance), pair % len(dag.distance))
    hops = np.full((len(src), max([1, *map(len, levels)])), -1, np.int32)
    load = np.zeros(len(dag.network.tail))
    order = np.argsort(-size, kind="stable")
    for flow in order[src[order] != dst[order]]:
        path = _lightest(dag.network, levels[row[flow]], int(dst[flow]), load, float(size[flow]), key[[flow]])
        hops[flow, : len(path)] = path
        load[path] += size[flow]
    return Routes(hops, (hops >= 0).astype(float))


def _levels(dag: _Dag, src: np.ndarray, to: np.ndarray) -> list[list[np.ndarray]]:
    row, link, _ = _parts(dag, src, to, np.ones(len(dag.network.tail)))
    order = np.argsort(row, kind="stable")
    row, link = row[order], link[order]
    left = dag.distance[to[row], dag.network.tail[link]]
    cuts = 1 + np.flatnonzero((np.diff(row) != 0) | (np.diff(left) != 0))
    levels: list[list[np.ndarray]] = [[] for _ in src]
    if len(row):
        for first, links in zip([0, *cuts], np.split(link, cuts), strict=True):
            levels[row[first]].append(links)
    return levels


def _lightest(
    network: FabricGraph, levels: list[np.ndarray], dst: int, load: np.ndarray, size: float, key: np.ndarray
) -> list[int]:
    ends = [(network.tail[links], network.head[links]) for links in levels]
    costs = [(load[links] + size) / network.capacity[links] for links in levels]
    worst = _best(ends, costs, dst, np.maximum)[0].min()
    sums = _best(ends, [np.where(cost <= worst, cost, np.inf) for cost in costs], dst, np.add)
    path, node = [], ends[0][0][0]
    for links, (tail, head), total in zip(levels, ends, sums, strict=True):
        here = np.flatnonzero(tail == node)
        best = here[total[here] == total[here].min()]
        taken = best[_choice(key, np.array([node]), np.array([len(best)]))[0]]
        path.append(int(links[taken]))
        node = head[taken]
    return path


def _best(
    ends: list[tuple[np.ndarray, np.ndarray]],
    costs: list[np.ndarray],
    dst: int,
    joined: Callable[[np.ndarray, list[float]], np.ndarray],
) -> list[np.ndarray]:
    totals: list[np.ndarray] = []
    behind = {dst: 0.0}
    for (tail, head), cost in zip(reversed(ends), reversed(costs), strict=True):
        totals.append(joined(cost, [behind[node] for node in head.tolist()]))
        behind = {}
        for node, total in zip(tail.tolist(), totals[-1].tolist(), strict=True):
            behind[node] = min(behind.get(node, total), total)
    return totals[::-1]
