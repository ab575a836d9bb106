"""What links of a mesh carry, and groups of all its servers at 1 byte/s a NIC."""

import numpy as np

from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.routing.fixed import add_paths
from mfabric_jax.routing.mesh import mesh_routes
from mfabric_jax.units import to_gbps


def every_pair(nodes):
    return tuple(x.ravel() for x in np.mgrid[:nodes, :nodes])


def of_all(mesh, stage=None):
    """All servers as one group."""
    return add_paths(DirectLinks(mesh.servers, to_gbps(1.0), 8, None, None, mesh, stage=stage or mesh.servers))


def carried(mesh, demand):
    """Bytes on every link [L] of `demand` [S S]."""
    routes = mesh_routes(mesh, *every_pair(mesh.servers))
    there = routes.hops >= 0
    sent = routes.share * np.asarray(demand).reshape(-1, 1)
    return np.bincount(routes.hops[there], sent[there], len(mesh.tail))


def loads_of(mesh, demand):
    """{(tail, head): bytes} of every link."""
    return dict(zip(zip(mesh.tail.tolist(), mesh.head.tolist(), strict=True), carried(mesh, demand), strict=True))


def mean_hops(mesh):
    servers = mesh.servers
    return carried(mesh, np.ones((servers, servers))).sum() / (servers * (servers - 1))


def oracle(mesh, demand):
    """{(tail, head): bytes} over all shortest paths, in equal shares at every node, by plain loops."""
    nodes = sum(count for _, count in mesh.nodes)
    out = [
        sorted({h for t, h, w in zip(mesh.tail, mesh.head, mesh.nics, strict=True) if t == node and w > 0})
        for node in range(nodes)
    ]
    load = dict.fromkeys(((node, head) for node in range(nodes) for head in out[node]), 0.0)
    for dst in range(mesh.servers):
        left, ring = {dst: 0}, [dst]
        while ring:
            ring = sorted({node for node in range(nodes) if node not in left and set(out[node]) & set(ring)})
            left |= dict.fromkeys(ring, max(left.values()) + 1)
        here = {src: float(demand[src][dst]) for src in range(mesh.servers) if src != dst}
        for node in sorted(left, key=left.__getitem__, reverse=True):
            nearer = [head for head in out[node] if left[head] == left[node] - 1]
            for head in nearer:
                load[node, head] += here.get(node, 0) / len(nearer)
                here[head] = here.get(head, 0) + here.get(node, 0) / len(nearer)
    return load
