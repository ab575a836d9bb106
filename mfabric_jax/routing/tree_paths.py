"""Which shortest path of a tree each flow takes when it takes only one: hashed (ECMP), or the least loaded."""

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.tree import UP, Tree
from mfabric_jax.routing.shortest import GOLDEN, splitmix64


def hashed(*keys) -> np.ndarray:
    """A 64-bit hash of some whole numbers, element by element."""
    value = np.uint64(0)
    with np.errstate(over="ignore"):
        for key in keys:
            value = splitmix64(np.asarray(key).astype(np.uint64) + value * GOLDEN)
    return np.asarray(value)


def ecmp(tree: Tree, src: np.ndarray, dst: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Aggregation switch and core of every flow, by a hash of its number, its hosts and the seed."""
    draw = hashed(seed, np.arange(len(src)), src, dst) % np.uint64(tree.paths)
    return _split(tree, draw.astype(np.int64))


def least_loaded(tree: Tree, src, dst, size, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Aggregation switch and core of every flow: flows in falling order of size, each on the path whose fullest link
    is emptiest (then the one with least on all its links, then by a hash)."""
    if size is None:
        raise InputError("routing 'least-loaded' needs size, the bytes of every flow.")
    up, climb = tree.edge_ports[UP], tree.pod_ports[UP]
    edges, pods = tree.parts * tree.edges_per_part, tree.parts * tree.pods_per_part
    out, into = np.zeros((2, edges, up, 1))
    rise, fall = np.zeros((2, pods, up, climb))
    chosen = hashed(seed, np.arange(len(src)), src, dst)
    (e0, e1), (leaves, beyond) = (tree.edge_of(src), tree.edge_of(dst)), tree.climbs(src, dst)
    p0, p1 = tree.pod_of(e0), tree.pod_of(e1)
    place = np.zeros(len(src), np.int64)
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
        place[flow] = pick if beyond[flow] else pick * climb
        a, c = divmod(int(place[flow]), climb)
        out[e0[flow], a] += size[flow]
        into[e1[flow], a] += size[flow]
        if beyond[flow]:
            rise[p0[flow], a, c] += size[flow]
            fall[p1[flow], a, c] += size[flow]
    return _split(tree, place)


def _split(tree: Tree, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.divmod(place, tree.pod_ports[UP])
