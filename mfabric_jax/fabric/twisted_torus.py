"""A twisted torus: a torus of sizes n and 2n whose rings of n close with a shift by n along every ring of 2n.

Servers are nodes, with a sixth of their NICs in each direction. Bytes take all shortest paths, in equal shares at every
server. Links that close a ring go through optical switches that are set once, as on the torus. Source: Jouppi et al.,
TPU v4, ISCA 2023 (slices of 4x4x8 and 4x8x8 chips). Deviation: a node is a server, unless servers have one GPU.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import OnMesh
from mfabric_jax.fabric.grids import Shape, coordinates, rings, shape_text, sizes
from mfabric_jax.fabric.site import About, FabricSite, Optics
from mfabric_jax.fabric.torus import DIRECTIONS, near_cube, per_direction, ring_parts

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh

NAME = "twisted-torus"


def short_side(shape: Shape) -> int:
    """Return the n of a shape. Raise `InputError` unless its sizes are n and 2n only."""
    if set(shape) != {min(shape), 2 * min(shape)}:
        raise InputError(
            f"shape of a twisted torus must have only sizes n and 2n, such as 4x4x8, got {shape_text(shape)}."
        )
    return min(shape)


def usual_shape(servers: int) -> Shape:
    """Return n x n x 2n or n x 2n x 2n, n at least 2. Raise `Misfit` if the servers have no such shape."""
    if (shape := _fitting(servers)) is None:
        raise Misfit(
            "network.fabric twisted-torus needs n x n x 2n or n x 2n x 2n servers, n at least 2 (16, 32, 54, 108, 128, "
            f"256 and so on), got {servers}."
        )
    return shape


def _fitting(servers: int) -> Shape | None:
    sides = range(2, round((servers / 2) ** (1 / 3)) + 1)
    shapes = [shape for n in sides for shape in ((n, n, 2 * n), (n, 2 * n, 2 * n))]
    return next((shape for shape in shapes if math.prod(shape) == servers), None)


def shape_of(servers: int, text: str | None = None) -> Shape:
    """Return the shape of the setting `text`, or the usual one. Raise `InputError` or `Misfit` if it does not fit."""
    if text is None:
        return usual_shape(servers)
    shape = sizes("network.twisted-torus.shape", text)
    short_side(shape)
    if len(shape) != 3 or math.prod(shape) != servers:
        raise Misfit(
            f"network.twisted-torus.shape must be three sizes with the product {servers} (servers), got "
            f"{shape_text(shape)}."
        )
    return shape


def twisted_mesh(shape: Shape, each: int) -> Mesh:
    """Return the links of a twisted torus: `each` NICs to the next server, in both directions of every ring."""
    ends = [(here, there) for _, here, there in rings(shape, short_side(shape))]
    tail, head = (np.concatenate([pair[side] for pair in ends] + [pair[1 - side] for pair in ends]) for side in (0, 1))
    return views.mesh_of_links(math.prod(shape), tail, head, each, places=coordinates(shape).T)


class TwistedTorusFabric(OnMesh):
    def mesh(self, site: FabricSite) -> Mesh:
        return twisted_mesh(shape_of(site.servers, site.own.shape), per_direction(site.server_nics, NAME))

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        """Return the parts for any number of servers; those that form no twisted torus are priced as a torus."""
        stated = site.own.shape and shape_of(site.servers, site.own.shape)
        return ring_parts(
            stated or _fitting(site.servers) or near_cube(site.servers), per_direction(site.server_nics, NAME)
        )

    def fills(self, site: FabricSite) -> dict[str, str]:
        return {"shape": shape_text(shape_of(site.servers, site.own.shape))}


def _rings(site: FabricSite) -> tuple[int, float]:
    """Ports of an optical switch (four: the twist joins two rings, of n or of 2n), and number of switches."""
    _, through = TWISTED_TORUS.parts(site)
    return 4, site.servers * through.nics / 4


TWISTED_TORUS = TwistedTorusFabric(
    About(
        name=NAME,
        summary="a torus of sizes n and 2n whose short rings close with a shift along the long ones",
        look=("Twisted torus", "#999933", "4"),
        nics=DIRECTIONS,
        optics=Optics(switches=_rings),
    )
)
