"""A 3-D torus of direct links between servers, with wrap-around through optical switches set once, as in TPU pods.

An expert-parallel group is one x-y plane; if groups are single servers, a stage is one plane. Along z follow the
replicas of a stage, then the next stage. A server has `nics` / 6 NICs per direction. Bytes follow the shortest path in
dimension order x, y, z; at equal distance even coordinates go up and odd ones down. Gradients use z in both directions;
sends to the next stage cross the other replicas of their own stage. Source: Jouppi et al., TPU v4, ISCA 2023.
Deviation: a node is a server, not a chip.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import DIRECT_LINK, THROUGH_OCS, PartGroup
from mfabric_jax.fabric.design import OnMesh
from mfabric_jax.fabric.grids import Shape, coordinates, near_equal, number, rings, shape_text, sizes
from mfabric_jax.fabric.site import About, FabricPaths, FabricSite, Optics

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh

NAME, DIRECTIONS, PATHS = "torus", 6, "dimension-order"


def near_square(servers: int) -> Shape:
    return near_equal(servers, 2)


def near_cube(servers: int) -> Shape:
    return near_equal(servers, 3)


def torus_links(shape: Shape, per_direction: int = 1) -> np.ndarray:
    """Return the number of links between servers [S S]; the server at (x, y, z) has the number x + X (y + Y z)."""
    count = np.zeros((math.prod(shape),) * 2, np.int64)
    for _, here, there in rings(shape):
        np.add.at(count, (here, there), per_direction)
        np.add.at(count, (there, here), per_direction)
    return count


def dimension_order(shape: Shape) -> np.ndarray:
    """Return the server after s on the path to t [S S]."""
    servers = math.prod(shape)
    s, t = (x.ravel() for x in np.mgrid[:servers, :servers])
    here, there = coordinates(shape, s), coordinates(shape, t)
    moved = np.zeros(len(s), bool)
    for axis, size in enumerate(shape):
        up = (there[axis] - here[axis]) % size
        tie = np.where(here[axis] % 2 == 0, 1, -1)
        step = np.where(2 * up == size, tie, np.where(2 * up < size, 1, -1))
        goes = (up > 0) & ~moved
        here[axis] = np.where(goes, (here[axis] + step) % size, here[axis])
        moved |= goes
    return number(here, shape).reshape(servers, servers)


def torus_mesh(shape: Shape, per_direction: int, paths: str = PATHS) -> Mesh:
    """Return the torus with `per_direction` links per direction, and its routing rule."""
    following = dimension_order(shape) if paths == PATHS else None
    return views.mesh_of(torus_links(shape, per_direction), following=following, places=coordinates(shape).T)


def per_direction(nics: int, name: str = "torus") -> int:
    if nics % DIRECTIONS:
        raise InputError(f"{name} needs equally many NICs in each of its {DIRECTIONS} directions, got nics {nics}.")
    return nics // DIRECTIONS


def ring_parts(shape: Shape, each: int) -> tuple[PartGroup, PartGroup]:
    """Return the NICs of a server on direct links, and on links that close rings: one of the n links of a ring."""
    through = sum(2 * each / size for size in shape if size > 1)
    direct = sum(2 * each for size in shape if size > 1) - through
    return PartGroup(direct, "direct link", DIRECT_LINK), PartGroup(through, "wrap-around", THROUGH_OCS)


class TorusFabric(OnMesh):
    def group(self, site: FabricSite, nic_gbps: Any) -> DirectLinks:
        each = per_direction(site.server_nics)
        if site.own.paths != PATHS or site.own.shape is not None:
            return views.DirectLinks.of_cluster(
                self.mesh(site), site.group_servers, site.stage_servers, nic_gbps, DIRECTIONS * each
            )
        plane = (*near_square(site.group_servers), 1)
        planes = max(1, site.stage_servers // math.prod(_plane(site)))  # of a stage, along z
        rates: dict[str, Any] = {"ring_nics": 2.0 * each, "stage_nics": each / planes}
        return views.DirectLinks(site.group_servers, nic_gbps, 4 * each, mesh=torus_mesh(plane, each), **rates)

    def mesh(self, site: FabricSite) -> Mesh:
        return torus_mesh(_shape(site), per_direction(site.server_nics), site.own.paths)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        return ring_parts(_shape(site), per_direction(site.server_nics))

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths(site.own.paths, 1)


def _plane(site: FabricSite) -> Shape:
    """The x and y sizes of a group, or of a stage if groups are single servers, which send nothing."""
    return near_square(site.group_servers if site.group_servers > 1 else max(1, site.stage_servers))


def _shape(site: FabricSite) -> Shape:
    if site.own.shape is None:
        if site.servers_per_region is None:
            return near_cube(site.servers)
        plane = _plane(site)
        return (*plane, site.servers // math.prod(plane))
    shape = sizes("network.torus.shape", site.own.shape)
    if len(shape) != 3 or math.prod(shape) != site.servers:
        raise Misfit(
            f"network.torus.shape must be three sizes with the product {site.servers} (servers), got "
            f"{shape_text(shape)}."
        )
    return shape


def _rings(site: FabricSite) -> tuple[int, float]:
    """Ports of an optical switch, and number of switches: the two ports that close a ring are on one."""
    _, through = TORUS.parts(site)
    return 2, site.servers * through.nics / 2


TORUS = TorusFabric(
    About(
        name=NAME,
        summary="a 3-D torus of direct links between servers, wrap-around through optical switches",
        look=("Torus", "#8C564B", "<"),
        nics=DIRECTIONS,
        optics=Optics(switches=_rings),
    )
)
