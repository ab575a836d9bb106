"""RailX: nodes of m x m servers in a grid; rails through optical switches link all nodes of a row, and of a column.

A server has a quarter of its NICs in each direction. Inside a node they link neighbours of the mesh. NICs that point
out of the node are on rails; optical switches, set once, close the rails of a row of n nodes to rings. Any two nodes
are neighbours in one of these rings (Hamilton cycles), so rows and columns are fully meshed (n odd: (n - 1) / 2 rings,
with half of their lanes in each direction). The border servers of a side share the rings equally: m links, each 1 / (n
- 1) of a direction's NICs wide, lead from the east side of every node to the west side of every other in its row, in
the same line (columns: from south to north). Bytes take all shortest paths, in equal shares at every server; they cross
a third node if that saves mesh links. Source: arXiv 2507.18889 (second hand). Deviations: how border servers share
rails is our choice, and so is an even n (with the same widths); a node's chips are servers, unless servers have one
GPU.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import DIRECT_LINK, THROUGH_OCS, PartGroup
from mfabric_jax.fabric.design import EpGroup, OnMesh
from mfabric_jax.fabric.grids import near_equal, shape_text, sizes
from mfabric_jax.fabric.site import About, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh

NAME = "railx"
DIRECTIONS = 4


def most_servers(side: int, ports: int) -> int:
    """Return the servers of the largest cluster whose rails fit on switches of `ports` ports.

    A rail has two ports at every node.
    """
    return (side * (ports // 2)) ** 2


def railx_mesh(shape: tuple[int, int], side: int, each: float) -> Mesh:
    """Return the links of RailX.

    `shape`: nodes in a row and in a column; `side`: servers along a node; `each`: NICs of a server per direction.
    """
    # servers [row, column, y, x]: those of a node have consecutive numbers, x first
    server = np.arange(math.prod(shape) * side**2).reshape(shape[1], shape[0], side, side)
    ends: list[tuple[np.ndarray, np.ndarray, float]] = [
        (server[..., :-1], server[..., 1:], each),
        (server[..., :-1, :], server[..., 1:, :], each),
    ]
    ends += [
        (server[:, u, :, -1], server[:, v, :, 0], each / (shape[0] - 1))
        for u, v in itertools.permutations(range(shape[0]), 2)
    ]
    ends += [
        (server[u, :, -1, :], server[v, :, 0, :], each / (shape[1] - 1))
        for u, v in itertools.permutations(range(shape[1]), 2)
    ]
    start = np.concatenate([first.ravel() for first, _, _ in ends])
    other = np.concatenate([second.ravel() for _, second, _ in ends])
    width = np.concatenate([np.full(first.size, nics) for first, _, nics in ends])
    row, column, y, x = np.unravel_index(np.arange(server.size), server.shape)
    places = np.stack([column * (side + 1) + x, row * (side + 1) + y], axis=1)
    tail, head = np.concatenate([start, other]), np.concatenate([other, start])
    return views.mesh_of_links(server.size, tail, head, np.tile(width, 2), places=places)


def side_of(servers: int, side: int | None, group: int = 1) -> int:
    """Return the servers along a node: `side`, else the least of 2 or more whose nodes hold a group, else 2, else 1."""
    holding = (least for least in range(2, math.isqrt(servers) + 1) if least**2 >= group and servers % least**2 == 0)
    return side or next(holding, 2 if servers % 4 == 0 else 1)


def shape_of(servers: int, side: int, text: str | None = None) -> tuple[int, int]:
    """Return the nodes in a row and in a column. Raise `Misfit` if the servers do not fill them."""
    nodes, remainder = divmod(servers, side**2)
    if remainder:
        raise Misfit(f"network.railx.side {side} needs a multiple of {side**2} servers, got {servers}.")
    shape = near_equal(nodes, 2) if text is None else sizes("network.railx.shape", text)
    if len(shape) != 2 or math.prod(shape) != nodes:
        raise Misfit(
            f"network.railx.shape must be two sizes with the product {nodes} (nodes), got {shape_text(shape)}."
        )
    return shape[0], shape[1]


class Layout(NamedTuple):
    """`shape`: nodes in a row and in a column; `side`: servers along a node; `each`: NICs of a server per direction."""

    shape: tuple[int, int]
    side: int
    each: float


def _layout(site: FabricSite) -> Layout:
    side = side_of(site.servers, site.own.side)
    return Layout(shape_of(site.servers, side, site.own.shape), side, site.server_nics / DIRECTIONS)


class RailXFabric(OnMesh):
    def mesh(self, site: FabricSite) -> Mesh:
        return railx_mesh(*_layout(site))

    def group(self, site: FabricSite, nic_gbps: Any) -> EpGroup:
        _check_ports(site, _layout(site))
        return super().group(site, nic_gbps)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        """Return the mean over the servers of a node; a NIC that is split over several rails counts as one."""
        shape, side, each = _layout(site)
        inside, through = 4 * each * (side - 1) / side, 2 * each * sum(size > 1 for size in shape) / side
        return PartGroup(inside, "direct link", DIRECT_LINK), PartGroup(through, "rail", THROUGH_OCS)

    def fills(self, site: FabricSite) -> dict[str, Any]:
        side = side_of(site.servers, site.own.side, site.group_servers)
        return {"side": side, "shape": shape_text(shape_of(site.servers, side, site.own.shape))}


def _check_ports(site: FabricSite, layout: Layout) -> None:
    switch, needed = site.ocs, 2 * max(layout.shape)
    if switch is not None and needed > switch.ports:
        raise Misfit(
            f"circuits.ocs {switch.name} has {switch.ports} ports, but rails over the "
            f"{shape_text(layout.shape)} nodes of "
            f"railx need {needed}; it joins at most {most_servers(layout.side, switch.ports):,} servers of "
            f"network.railx.side {layout.side}."
        )


def _rails(site: FabricSite) -> tuple[int, float]:
    """Optical ports of a rail, two at every node of the longer side, and number of such rails."""
    _, through = RAILX.parts(site)
    ports = 2 * max(_layout(site).shape)
    return ports, site.servers * through.nics / ports


RAILX = RailXFabric(
    About(
        name=NAME,
        summary="nodes of m x m servers; rails through optical switches set once link the nodes of rows and of columns",
        look=("RailX", "#E7298A", "x"),
        optics=Optics(switches=_rails),
    )
)
