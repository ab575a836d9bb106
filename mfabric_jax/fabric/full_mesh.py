"""A full mesh of several dimensions: servers that differ in exactly one dimension are linked (HyperX, UB-Mesh).

A server's NICs are divided equally over its peers, or by `split` over the dimensions; a link may be a fraction of a
NIC, which is then split into lanes. `paths` chooses the paths. `shortest`: all orders of the dimensions, in equal
shares. `dimension-order`: the first dimension first. `detour`: in that order, and in every dimension in equal shares
over the direct link and over each third server of the line. Sources: Ahn et al., HyperX, SC 2009; Liao et al., UB-Mesh,
arXiv 2503.20377 (figures second hand). Deviation: a node is a server, unless servers have one GPU.

If the user leaves shape or paths open, `fastest` takes those that carry an even all-to-all of an expert-parallel group
fastest.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import combinations, product
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.design import OnMesh
from mfabric_jax.fabric.grids import Shape, coordinates, lines, near_equal, number, shape_text, sizes
from mfabric_jax.fabric.site import About, FabricPaths, FabricSite

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh

NAME = "full-mesh"
OPEN_DIMENSIONS, OPEN_PATHS = (1, 2, 3), ("shortest", "detour")  # tried if left open
LANES = 8  # of a NIC: a 400 Gbps module (OSFP, QSFP-DD) has eight electrical lanes; assumed at other bandwidths
DIGITS = 9  # digits to which times are compared


def widths(shape: Shape, nics: float, split: Sequence[float] | None = None) -> list[float]:
    """Return the NICs of a link in each dimension; `split`: a server's NICs per dimension; None: all peers equal."""
    peers = [size - 1 for size in shape]
    if split is None:
        return [nics / max(1, sum(peers))] * len(shape)
    if (
        len(split) != len(shape)
        or sum(split) != nics
        or any((n > 0) != (p > 0) for n, p in zip(split, peers, strict=True))
    ):
        raise Misfit(
            f"network.full-mesh.split must share the {nics:g} NICs of a server over the dimensions of "
            f"{shape_text(shape)} "
            f"that have peers, got {'x'.join(f'{part:g}' for part in split)}."
        )
    return [each / max(1, count) for each, count in zip(split, peers, strict=True)]


def dimension_order(shape: Shape) -> np.ndarray:
    """Return the server after s on the path to t [S S]: a step corrects the first dimension in which they differ."""
    servers = math.prod(shape)
    s, t = (x.ravel() for x in np.mgrid[:servers, :servers])
    here, there = coordinates(shape, s), coordinates(shape, t)
    first = (here != there).argmax(axis=0)
    pair = np.arange(len(s))
    here[first, pair] = there[first, pair]
    return number(here, shape).reshape(servers, servers)


def full_mesh(shape: Shape, nics: float, split: Sequence[float] | None = None, paths: str = "shortest") -> Mesh:
    """Return the links of a full mesh with their routing rule; `nics`: NICs of a server."""
    every = widths(shape, nics, split)
    none = np.zeros(0, np.int64)
    runs = [(none, none, none), *((a, b, np.full(len(a), every[axis])) for axis, a, b in lines(shape))]
    tail, head, width = (np.concatenate(column) for column in zip(*runs, strict=True))
    following = None if paths == "shortest" else dimension_order(shape)
    rule = {"following": following, "detours": paths == "detour", "places": _places(shape)}
    return views.mesh_of_links(math.prod(shape), tail, head, width, **rule)


def _places(shape: Shape) -> np.ndarray:
    """Positions [S 2]: the first dimension on a circle, the second on a circle of circles, and so on."""
    centre, radius = np.zeros(math.prod(shape), complex), 1.0
    for size, coordinate in zip(shape, coordinates(shape), strict=True):
        centre = centre + radius * np.exp(2j * np.pi * coordinate / size)
        radius *= 3.0
    return np.stack([np.real(centre), np.imag(centre)], axis=1)


# ------------------------------------------------------------------------------------------------- what is left open
@lru_cache(maxsize=1024)
def fastest(
    servers: int,
    group: int,
    nics: float,
    shape: Shape | None = None,
    dimensions: int | None = None,
    split: tuple[float, ...] | None = None,
    paths: str | None = None,
) -> tuple[Shape, str]:
    """Return the shape and paths that carry an even all-to-all of the first `group` servers fastest.

    `shape`, `paths`: the user's choice; None: open. Ties go to fewer dimensions, then to the shortest paths. A group of
    one server counts as two: it sends gradients and activations to one other server at a time.
    """
    shapes = [shape] if shape else _open_shapes(servers, nics, dimensions, split)
    choices = list(product(shapes, OPEN_PATHS if paths is None else (paths,)))
    sending = min(max(group, 2), servers)
    return min(choices, key=lambda choice: round(even_time(*choice, sending, widths(choice[0], nics, split)), DIGITS))


def _open_shapes(servers: int, nics: float, dimensions: int | None, split: Sequence[float] | None) -> list[Shape]:
    """Shapes of nearly equal sizes whose links have at least one lane; if none has, those with the widest links."""
    if dimensions is None and split is not None:
        dimensions = len(split)
    if dimensions is not None:
        return [near_equal(servers, dimensions)]
    shapes = [near_equal(servers, count) for count in OPEN_DIMENSIONS]
    lanes = [LANES * widths(shape, nics)[0] for shape in shapes]
    return [shape for shape, width in zip(shapes, lanes, strict=True) if width >= min(1, max(lanes))]


def even_time(shape: Shape, paths: str, group: int, width: Sequence[float]) -> float:
    """Return the time of the busiest link if each of the first `group` servers sends one unit to each other.

    A link of a dimension carries `width` units per unit of time.
    """
    loads = (load.max() for load in link_loads(shape, paths, group))
    return max((load / each for load, each in zip(loads, width, strict=True) if load), default=0.0)


def link_loads(shape: Shape, paths: str, group: int) -> Iterator[np.ndarray]:
    """Yield, for every dimension, the loads of links from each server along its line in an even all-to-all.

    The shape is [*shape, size]; the first `group` servers take part. Bytes that cross a dimension are at a server with
    the target's coordinates in dimensions already crossed and the source's coordinates in those still to cross. So the
    load of a direct link is a product: the number of sources that agree with its server in the dimensions still to
    cross, times the number of targets that agree with it in those already crossed.
    """
    inside = (np.arange(math.prod(shape)) < group).reshape(shape, order="F").astype(float)
    for axis, size in enumerate(shape):
        others = tuple(other for other in range(len(shape)) if other != axis)
        load = np.zeros((*shape, size))
        for before, share in _dimensions_before(axis, others, paths):
            after = tuple(other for other in others if other not in before)
            sources = inside.sum(axis=before, keepdims=True)[..., None]
            targets = inside.sum(axis=after, keepdims=True)[..., None].swapaxes(axis, -1)
            load += share * sources * targets
        links = np.expand_dims(1 - np.eye(size), others)  # none from a server to itself
        load *= links
        if paths == "detour" and size > 1:
            legs = load.sum(axis=-1, keepdims=True) + load.sum(axis=axis, keepdims=True)  # both legs of a detour
            load = (legs - load) / (size - 1) * links
        yield load


def _dimensions_before(axis: int, others: Sequence[int], paths: str) -> list[tuple[tuple[int, ...], float]]:
    """Sets of the dimensions that paths may cross before `axis`, and the share of the paths that do."""
    if paths != "shortest":
        return [(tuple(range(axis)), 1.0)]
    counts = range(len(others) + 1)
    return [
        (some, 1 / (len(counts) * math.comb(len(others), count)))
        for count in counts
        for some in combinations(others, count)
    ]


def shape_setting(servers: int, own) -> Shape | None:
    """Return the shape in the settings `own`; None: open. Raise `Misfit` if it has another number of servers."""
    if own.shape is None:
        return None
    shape = sizes("network.full-mesh.shape", own.shape)
    if math.prod(shape) != servers:
        raise Misfit(f"network.full-mesh.shape must have {servers} servers, got {shape_text(shape)}.")
    return shape


def split_of(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else tuple(map(float, sizes("network.full-mesh.split", text)))


class FullMeshFabric(OnMesh):
    def mesh(self, site: FabricSite) -> Mesh:
        own, nics, split = site.own, site.server_nics, split_of(site.own.split)
        shape = shape_setting(site.servers, own)
        shape, paths = fastest(site.servers, site.servers, nics, shape, None, split, own.paths)
        return full_mesh(shape, nics, split, paths)

    def paths(self, site: FabricSite) -> FabricPaths:
        """Count the links of a path between servers that differ in every dimension."""
        own = site.own
        dimensions = len(sizes("network.full-mesh.shape", own.shape))
        return FabricPaths(own.paths, dimensions * (2 if own.paths == "detour" else 1))

    def fills(self, site: FabricSite) -> dict[str, str]:
        own = site.own
        stated = shape_setting(site.servers, own), own.dimensions, split_of(own.split), own.paths
        shape, paths = fastest(site.servers, site.group_servers, site.server_nics, *stated)
        return {"shape": shape_text(shape), "paths": paths}


FULL_MESH = FullMeshFabric(
    About(
        name=NAME,
        summary="servers that differ in exactly one of several dimensions are linked (HyperX, UB-Mesh)",
        look=("Full mesh", "#66A61E", "8"),
    )
)
