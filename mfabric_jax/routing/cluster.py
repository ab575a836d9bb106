"""The links that flows between the GPUs of a cluster cross.

Flows inside a server cross the NVSwitch. Between servers, a flow takes the first of these that exists: paths over fixed
links; a direct circuit of the pair; the NICs on the tree; circuits through other servers, which forward. Data of a GPU
that does not own the NIC in use crosses the NVSwitch to (or from) a delegate GPU that does; the data is spread over the
pair's delegates by their shares. Source: arXiv 2501.03905, topology-aware routing.
"""

from typing import Any

import numpy as np

from mfabric_jax.checks import InputError, of_type, one_of
from mfabric_jax.fabric.cluster import Cluster
from mfabric_jax.fabric.network import FabricGraph
from mfabric_jax.fabric.tree import UP, Tree
from mfabric_jax.routing.mesh import mesh_routes
from mfabric_jax.routing.shortest import GOLDEN, Routes, compact, splitmix64, stack_routes
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_floats, host_indices

PATHS = ("spray", "ecmp", "least-loaded")
AT_ONCE = 1 << 16  # flows routed per batch
ROUNDED = 1e-12  # tolerance on the sum of a flow's shares
Heirs = tuple[tuple[int, tuple[int, ...]], ...]


def links_of(cluster: Cluster, routing: str = "spray") -> FabricGraph:
    """Return the network whose link numbers the routes use: parallel links are pooled for "spray", else separate."""
    return cluster.pooled_network if one_of("routing", routing, PATHS) == "spray" else cluster.network


def cluster_routes(
    cluster: Cluster, src: Any, dst: Any, *, routing: str = "spray", seed: int = 0, size: Any = None
) -> Routes:
    """Return the links of `links_of(cluster, routing)` that each flow from GPU `src` to GPU `dst` [F] crosses.

    - `routing` on the tree: "spray" divides evenly over all shortest paths; "ecmp" picks one path per flow by a hash
      with `seed`; "least-loaded" picks one path per flow, in falling order of `size` [F bytes]. If servers forward,
      "spray" divides over all shortest paths and the others pick one by hash.

    A flow from a GPU to itself crosses no link. Raise `InputError` if two servers have no path to each other.
    """
    one_of("routing", routing, PATHS)
    of_type("cluster", cluster, Cluster)
    src, dst = _gpus("src", src, cluster), _gpus("dst", dst, cluster)
    if src.shape != dst.shape:
        raise InputError(f"src and dst must have the same length, got {len(src)} and {len(dst)}.")
    size = None if size is None else host_floats("size", size, NOT_NEGATIVE)
    if size is not None and size.shape != src.shape:
        raise InputError(f"size must have the shape [{len(src)}], got {list(size.shape)}.")
    here, there = src // cluster.gpus_per_server, dst // cluster.gpus_per_server
    row = cluster.circuits.find(here, there) if cluster.mesh is None else np.full(len(src), -1)
    away = here != there
    parts = [(flow, _inside(cluster, src[flow], dst[flow])) for flow in _chunks(~away & (src != dst))]
    first = len(links_of(cluster, routing).tail) - len(cluster.circuits.src)
    for flow in _chunks(away & (row >= 0)):
        whole = np.ones((len(flow), 1))
        parts.append((flow, _over_circuits(cluster, src[flow], dst[flow], row[flow, None], whole, first)))
    others = away & (row < 0)
    flow = np.flatnonzero(others)
    if cluster.tree is None and len(flow):
        onward, share = _forwarding(cluster, here[flow], there[flow], routing, seed)
        for some in _chunks(np.ones(len(flow), bool)):
            batch = flow[some]
            parts.append((batch, _over_circuits(cluster, src[batch], dst[batch], onward[some], share[some], first)))
    elif cluster.tree is not None and len(flow):
        ends = _Ends(cluster, src[flow], dst[flow], routing, seed)
        path = None  # aggregation switch and core [F] of every flow; None: sprayed over all of them
        if routing == "ecmp":
            path = ecmp(cluster.tree, ends.out[0], ends.into[0], seed)
        elif routing == "least-loaded":
            own = None if size is None else np.asarray(size)[flow]
            path = least_loaded(cluster.tree, ends.out[0], ends.into[0], own, seed)
        for some in _chunks(np.ones(len(flow), bool)):
            parts.append((flow[some], _over_tree(cluster, ends, path, some)))
    return stack_routes(parts, len(src))


def nic_routes(cluster: Cluster, src: np.ndarray, dst: np.ndarray, heirs: Heirs = ()) -> Routes:
    """Return the links of `links_of(cluster)`, from NIC to NIC, that sprayed flows between servers cross.

    `src`, `dst` [F]: GPUs of different servers. `heirs`: lost tree ports, each with the ports that carry its bytes in
    equal parts; each lost port has the same number of them. Where rails are separate trees, the other end uses its NIC
    on the heir's rail.
    """
    ends = _Ends(cluster, src, dst, "spray", 0)
    if heirs:
        tree = cluster.nic_tree
        instead = np.tile(np.arange(tree.hosts), (len(heirs[0][1]), 1))
        for lost, others in heirs:
            instead[:, lost] = others
        out, into = (np.concatenate(instead[:, ports]) for ports in (ends.out, ends.into))
        leaves_by_heir = out != np.tile(ends.out, (len(instead), 1))
        rail = tree.part_of(np.where(leaves_by_heir, out, into))
        ends.out, ends.into = tree.host_in(rail, out), tree.host_in(rail, into)
        ends.weight = np.ones(len(ends.out))
    every = _chunks(np.ones(len(src), bool))
    return stack_routes([(flow, _row(*_between_nics(cluster, ends, None, flow))) for flow in every], len(src))


def _gpus(name: str, gpu: Any, cluster: Cluster) -> np.ndarray:
    gpu = host_indices(name, gpu, 0, cluster.gpus - 1)
    if gpu.ndim != 1:
        raise InputError(f"{name} must be GPUs [F], got {list(gpu.shape)}.")
    return gpu


def _chunks(mask: np.ndarray):
    flows = np.flatnonzero(mask)
    return (flows[first : first + AT_ONCE] for first in range(0, len(flows), AT_ONCE))


def _row(*blocks: tuple[np.ndarray, np.ndarray]) -> Routes:
    hops, share = (np.hstack([block[column] for block in blocks]) for column in (0, 1))
    return compact(hops, share)


def _at(cluster: Cluster, gpu: np.ndarray) -> np.ndarray:
    return (np.arange(cluster.gpus_per_server) == (gpu % cluster.gpus_per_server)[:, None]).astype(float)


def _across(cluster: Cluster, server: np.ndarray, have: np.ndarray, need: np.ndarray):
    gpu = server[:, None] * cluster.gpus_per_server + np.arange(cluster.gpus_per_server)
    moved = have - need
    moved = np.where(np.abs(moved) < ROUNDED, 0, moved)
    return np.hstack([gpu, cluster.gpus + gpu]), np.hstack([np.maximum(moved, 0), np.maximum(-moved, 0)])


def _inside(cluster: Cluster, src: np.ndarray, dst: np.ndarray) -> Routes:
    return _row(_across(cluster, src // cluster.gpus_per_server, _at(cluster, src), _at(cluster, dst)))


class _Ends:
    """NICs on the tree by which each flow leaves (`out`) and enters (`into`), as tree hosts [U F]."""

    def __init__(self, cluster: Cluster, src: np.ndarray, dst: np.ndarray, routing: str, seed: int):
        per_server = cluster.gpus_per_server
        self.src, self.dst = src, dst
        if cluster.nic_use == "own":
            into = (dst % per_server)[None]
            out = into if cluster.pxn else (src % per_server)[None]
        elif routing == "spray":
            out = into = np.broadcast_to(np.arange(cluster.nics)[:, None], (cluster.nics, len(src)))
        else:
            draw = hash_keys(seed + 1, np.arange(len(src)), src, dst) % np.uint64(cluster.nics)
            out = into = draw.astype(np.int64)[None]
        self.out, self.into = cluster.host(src // per_server, out), cluster.host(dst // per_server, into)
        spread = cluster.speeds and len(self.out) > 1
        self.weight = np.array(cluster.speeds) if spread else np.ones(len(self.out))  # of each NIC of a flow
        tree = cluster.nic_tree
        if tree.parts > 1 and np.any(tree.part_of(self.out) != tree.part_of(self.into)):
            raise InputError(f"{cluster.name}: GPUs of different rails have no path to each other without pxn.")


def _over_tree(cluster: Cluster, ends: _Ends, path: tuple[np.ndarray, np.ndarray] | None, some: np.ndarray) -> Routes:
    per_server = cluster.gpus_per_server
    out, into, src, dst = ends.out[:, some], ends.into[:, some], ends.src[some], ends.dst[some]
    part, weight = 1 / ends.weight.sum(), ends.weight[:, None, None]
    leave, enter = (
        part * np.sum(weight * [_at(cluster, cluster.host_gpu[nic]) for nic in nics], 0) for nics in (out, into)
    )
    blocks = [
        _across(cluster, src // per_server, _at(cluster, src), leave),
        _across(cluster, dst // per_server, enter, _at(cluster, dst)),
    ]
    return _row(*blocks, *_between_nics(cluster, ends, path, some))


def _between_nics(
    cluster: Cluster, ends: _Ends, path: tuple[np.ndarray, np.ndarray] | None, some: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return hops and shares from NIC to NIC, for each NIC over which a flow is spread."""
    tree, ports, blocks = cluster.nic_tree, 2 * cluster.gpus, []
    out, into = ends.out[:, some], ends.into[:, some]
    for up, down, part in zip(out, into, ends.weight / ends.weight.sum(), strict=True):
        if path is None:
            inner = tree.sprayed_hops(up, down)
        else:
            inner = tree.hops(up, down, path[0][some], path[1][some])
        inner = np.where(inner >= 0, inner + ports + 2 * tree.hosts, -1)
        hops = np.column_stack([ports + up, inner, ports + tree.hosts + down])
        blocks.append((hops, np.full(hops.shape, part)))
    return blocks


def _over_circuits(
    cluster: Cluster, src: np.ndarray, dst: np.ndarray, row: np.ndarray, share: np.ndarray, first: int
) -> Routes:
    table, per_server = cluster.circuits, cluster.gpus_per_server
    here, there = src // per_server, dst // per_server
    held, far = _gpu_shares(cluster, table.gpu, table.part), _gpu_shares(cluster, *cluster.far_nics)
    leave, enter = np.zeros((2, len(src), per_server))
    blocks = [(np.where(row >= 0, first + row, -1), share)]
    for column in range(row.shape[1]):
        entry, part = np.maximum(row[:, column], 0), share[:, column, None]
        begins, ends = (table.src[entry] == here)[:, None], (table.dst[entry] == there)[:, None]
        leave += np.where(begins, part * held[entry], 0)
        enter += np.where(ends, part * far[entry], 0)
        nothing = np.zeros_like(leave)
        blocks.append(_across(cluster, table.src[entry], nothing, np.where(begins, 0, part * held[entry])))
        blocks.append(_across(cluster, table.dst[entry], np.where(ends, 0, part * far[entry]), nothing))
    blocks.append(_across(cluster, here, _at(cluster, src), leave))
    blocks.append(_across(cluster, there, enter, _at(cluster, dst)))
    return _row(*blocks)


def _gpu_shares(cluster: Cluster, gpu: np.ndarray, part: np.ndarray) -> np.ndarray:
    held = np.zeros((len(gpu), cluster.gpus_per_server))
    row, copy = np.nonzero(gpu >= 0)
    np.add.at(held, (row, gpu[row, copy]), part[row, copy])
    total = held.sum(axis=1, keepdims=True)
    return held / np.where(total > 0, total, 1)


def _forwarding(
    cluster: Cluster, here: np.ndarray, there: np.ndarray, routing: str, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    routes = mesh_routes(cluster.forwarding, here, there, routing="spray" if routing == "spray" else "ecmp", seed=seed)
    return routes.hops.astype(np.int64), np.where(routes.hops >= 0, routes.share, 0)


# -------------------------------------------------------------------------------------------- single paths over a tree
def hash_keys(*keys: Any) -> np.ndarray:
    """Return a 64-bit hash of integers, element by element."""
    value = np.uint64(0)
    with np.errstate(over="ignore"):
        for key in keys:
            value = splitmix64(np.asarray(key).astype(np.uint64) + value * GOLDEN)
    return np.asarray(value)


def ecmp(tree: Tree, src: np.ndarray, dst: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the aggregation switch and core of every flow, by a hash of flow number, hosts and seed."""
    draw = hash_keys(seed, np.arange(len(src)), src, dst) % np.uint64(tree.paths)
    return np.divmod(draw.astype(np.int64), tree.pod_ports[UP])


def least_loaded(tree: Tree, src: np.ndarray, dst: np.ndarray, size: Any, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the aggregation switch and core of each flow: in falling order of size, each flow takes the path whose
    busiest link has the least load."""
    if size is None:
        raise InputError("routing 'least-loaded' needs size, the bytes of every flow.")
    up, climb = tree.edge_ports[UP], tree.pod_ports[UP]
    pods = tree.parts * tree.pods_per_part
    unused = np.arange(up)[:, None] >= tree.used_uplinks[:, None, None]
    out, into = np.where(unused, np.inf, np.zeros((2, *unused.shape)))
    rise, fall = np.zeros((2, pods, up, climb))
    chosen = hash_keys(seed, np.arange(len(src)), src, dst)
    (e0, e1), (leaves, beyond) = (tree.edge_of(src), tree.edge_of(dst)), tree.climbs(src, dst)
    p0, p1 = tree.pod_of(e0), tree.pod_of(e1)
    path = np.zeros(len(src), np.int64)
    for flow in np.argsort(-np.asarray(size, float), kind="stable"):
        if not leaves[flow]:
            continue
        links = [out[e0[flow]], into[e1[flow]]]
        if beyond[flow]:
            links += [rise[p0[flow]], fall[p1[flow]]]
        links = np.broadcast_arrays(*links)
        fullest, total = np.maximum.reduce(links).ravel(), np.sum(links, axis=0).ravel()
        least = np.flatnonzero(fullest == fullest.min())
        least = least[total[least] == total[least].min()]
        pick = least[int(chosen[flow] % np.uint64(len(least)))]
        path[flow] = pick if beyond[flow] else pick * climb
        a, c = divmod(int(path[flow]), climb)
        out[e0[flow], a] += size[flow]
        into[e1[flow], a] += size[flow]
        if beyond[flow]:
            rise[p0[flow], a, c] += size[flow]
            fall[p1[flow], a, c] += size[flow]
    return np.divmod(path, climb)
