"""RailX: nodes of m x m servers in a grid, whose rows and columns of nodes rails join through optical switches.

A server has a quarter of its NICs in each direction. Inside a node they join neighbours of the mesh; those that point
out of it are on rails, which optical switches close to rings that are set once. The rings of a row of n nodes are
Hamilton cycles in which every two nodes are neighbours, so rows and columns are fully joined (n odd: (n - 1) / 2 of
them, half of their lanes either way around). All border servers of a side share them alike: m links, each of
1 / (n - 1) of a direction's NICs, lead from the east side of every node to the west side of every other in its row, in
the same line (columns: south, north). Bytes take all shortest paths, in equal shares at every server; they cross a
third node where that spares links of the mesh. Source: arXiv 2507.18889 (second hand). Deviations: how border servers
share rails is ours, as is an even n (the same widths); a node's chips are servers, unless servers have one GPU.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric.cost import DIRECT_LINK, THROUGH_OCS, PartGroup
from mfabric_jax.fabric.design import SERVER_GPUS, Asked, ClusterShape, Fabric, Form, nics_of
from mfabric_jax.fabric.grids import near_equal, sizes, written
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh

NAME = "railx"
DIRECTIONS = 4


def most_servers(side: int, ports: int) -> int:
    """Servers of the largest cluster whose rails fit on switches of so many ports: a rail has two at every node."""
    return (side * (ports // 2)) ** 2


def railx_mesh(shape: tuple[int, int], side: int, each: float) -> Mesh:
    """`shape`: nodes in a row and in a column; `side`: servers along a node; `each`: NICs of a server per direction."""
    # servers [row, column, y, x]: a node's own are next to each other, x first
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
    one = np.concatenate([first.ravel() for first, _, _ in ends])
    other = np.concatenate([second.ravel() for _, second, _ in ends])
    width = np.concatenate([np.full(first.size, nics) for first, _, nics in ends])
    row, column, y, x = np.unravel_index(np.arange(server.size), server.shape)
    places = np.stack([column * (side + 1) + x, row * (side + 1) + y], axis=1)
    from mfabric_jax.fabric.direct_links import mesh_of_links

    tail, head = np.concatenate([one, other]), np.concatenate([other, one])
    return mesh_of_links(server.size, tail, head, np.tile(width, 2), places=places)


def side_of(servers: int, side: int | None, group: int = 1) -> int:
    """Servers along a node, unless said: the least of 2 or more whose nodes hold a group, else 2 or 1."""
    holding = (least for least in range(2, math.isqrt(servers) + 1) if least**2 >= group and servers % least**2 == 0)
    return side or next(holding, 2 if servers % 4 == 0 else 1)


def shape_of(servers: int, side: int, text: str | None = None) -> tuple[int, int]:
    """Nodes in a row and in a column; `Misfit` where servers do not fill them."""
    nodes, rest = divmod(servers, side**2)
    if rest:
        raise Misfit(f"network.railx.side {side} needs a multiple of {side**2} servers, got {servers}.")
    shape = near_equal(nodes, 2) if text is None else sizes("network.railx.shape", text)
    if len(shape) != 2 or math.prod(shape) != nodes:
        raise Misfit(f"network.railx.shape must be two sizes of {nodes} nodes, got {written(shape)}.")
    return shape[0], shape[1]


class Layout(NamedTuple):
    """`shape`: nodes in a row and in a column; `side`: servers along a node; `each`: NICs per direction of a server."""

    shape: tuple[int, int]
    side: int
    each: float


def _layout(form: Form) -> Layout:
    side = side_of(form.servers, form.side)
    shape = shape_of(form.servers, side, None if form.shape is None else written(form.shape))
    return Layout(shape, side, (SERVER_GPUS if form.nics is None else form.nics) / DIRECTIONS)


def _fills(servers: int, group: int, nics: int, own: Any) -> dict[str, Any]:
    side = side_of(servers, own.side, group)
    return {"side": side, "shape": written(shape_of(servers, side, own.shape))}


def _form(settings: Asked, job: ClusterShape) -> Form:
    own = settings.own(NAME)
    side = side_of(job.servers, own.side)
    shape = shape_of(job.servers, side, own.shape)
    return Form(nics=nics_of(settings, job), servers=job.servers, shape=shape, side=side)


def _mesh(servers: int, form: Form) -> Mesh:
    return railx_mesh(*_layout(replace(form, servers=servers)))


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]) -> list[DirectLinks]:
    form = _form(settings, job)
    _check_ports(settings, _layout(form))
    from mfabric_jax.fabric.direct_links import DirectLinks

    return [DirectLinks.of_cluster(_mesh(job.servers, form), job, nic_gbps, nics_of(settings, job))]


def _check_ports(settings: Asked, layout: Layout) -> None:
    switch, needed = settings.parts.ocs, 2 * max(layout.shape)
    if switch is not None and needed > switch.ports:
        raise Misfit(
            f"circuits.ocs {switch.name} has {switch.ports} ports, but rails over the {written(layout.shape)} nodes of "
            f"railx need {needed}; it joins at most {most_servers(layout.side, switch.ports):,} servers of "
            f"network.railx.side {layout.side}."
        )


def _parts(form: Form) -> tuple[PartGroup, ...]:
    """The mean over the servers of a node; a NIC that is split over several rails counts as one."""
    shape, side, each = _layout(form)
    inside, through = 4 * each * (side - 1) / side, 2 * each * sum(size > 1 for size in shape) / side
    return PartGroup(inside, "direct link", DIRECT_LINK), PartGroup(through, "rail", THROUGH_OCS)


def _rails(form: Form, job: Workload) -> tuple[int, float]:
    """Optical ports of a rail, two at every node of the longer side, and rails of so many."""
    _, through = _parts(form)
    ports = 2 * max(_layout(form).shape)
    return ports, job.servers * through.nics / ports


RAILX = Fabric(
    name=NAME,
    summary="nodes of m x m servers, whose rows and columns rails join through optical switches set once",
    look=("RailX", "#E7298A", "x"),
    groups=_groups,
    mesh=_mesh,
    parts=_parts,
    form=_form,
    optical_regions=_rails,
    fills=_fills,
    path_links=lambda settings: 1,
    routing="shortest paths",
    single_paths=lambda settings: False,
    uses="pooled",
)
