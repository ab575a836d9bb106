"""A dragonfly: routers behind servers, fully meshed in groups, with links between every two groups.

It is balanced as published (`a` = 2 `p` = 2 `h`): a group has `a` routers; a router has `p` ports for NICs, `a` - 1 in
the group and `h` to other groups. `p` is the least that fits all servers into `a` `h` + 1 groups; leftover ports double
links. Minimal routing divides bytes equally over all links between two groups. Valiant routing first sends them through
all third groups, in equal shares. Source: Kim, Dally, Scott, Abts, Technology-Driven, Highly-Scalable Dragonfly
Topology, ISCA 2008.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import Attachment, PartGroup
from mfabric_jax.fabric.design import OnMesh
from mfabric_jax.fabric.site import About, FabricPaths, FabricSite

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh


class DragonflyShape(NamedTuple):
    """The size of a dragonfly.

    - `per_router`: servers per router; `routers`: routers per group; `ports`: ports of a router for other groups.
    - `local`: links between two routers of a group; `between`: links between two groups.
    """

    per_router: int
    groups: int
    routers: int
    local: int
    between: int
    ports: int

    @property
    def links(self) -> int:
        inside = self.routers * (self.routers - 1) // 2 * self.local
        return self.groups * inside + self.groups * (self.groups - 1) // 2 * self.between


def dragonfly_shape(servers: int, nics: int) -> DragonflyShape:
    per_router = 1
    while per_router * 2 * (p := per_router * nics) * (2 * p**2 + 1) < servers:
        per_router += 1
    needed = -(-servers // per_router)
    groups = -(-needed // (2 * p))
    routers = -(-needed // groups)
    local, between = (2 * p - 1) // max(routers - 1, 1), routers * p // max(groups - 1, 1)
    return DragonflyShape(per_router, groups, routers, local, between, p)


def dragonfly_mesh(servers: int, nics: int, valiant: bool) -> Mesh:
    """Return the links of a dragonfly, in both directions: server to router, inside groups, between groups."""
    shape = dragonfly_shape(servers, nics)
    groups, routers = shape.groups, shape.routers
    server, router = np.arange(servers), np.arange(groups * routers)
    behind = servers + server // shape.per_router
    group, first, other = (x.ravel() for x in np.mgrid[:groups, :routers, :routers])
    inside = first != other
    first, other = (servers + (group * routers + x)[inside] for x in (first, other))
    here, there, out, into = between_groups(groups, shape.between, shape.ports)
    runs = [
        ("nic up", server, behind, nics),
        ("nic down", behind, server, nics),
        ("local", first, other, shape.local),
        ("global", servers + here * routers + out, servers + there * routers + into, 1),
    ]
    runs = [run for run in runs if len(run[1])]
    area = np.concatenate([server // shape.per_router, router]) // np.repeat([routers, routers], [servers, len(router)])
    return views.Mesh(
        np.concatenate([tail for _, tail, _, _ in runs]),
        np.concatenate([head for _, _, head, _ in runs]),
        np.concatenate([np.full(len(tail), width) for _, tail, _, width in runs]),
        nodes=(("server", servers), ("router", len(router))),
        links=tuple((kind, len(tail)) for kind, tail, _, _ in runs),
        areas=area,
        thirds=valiant,
        places=_places(shape, server),
    )


def between_groups(groups: int, links: int, ports: int) -> tuple[np.ndarray, ...]:
    """Return the links [L] between groups, in both directions: groups and routers (within their groups) at both ends.

    A group assigns its ports to the other groups in turn; `ports`: ports of a router for other groups.
    """
    here, there, copy = (x.ravel() for x in np.mgrid[:groups, :groups, :links])
    apart = here != there
    here, there, copy = here[apart], there[apart], copy[apart]
    out, into = (
        (copy * (groups - 1) + (to - start - 1) % groups) // ports for start, to in ((here, there), (there, here))
    )
    return here, there, out, into


def router_parts(nics: int, servers: int, links: int) -> tuple[PartGroup, ...]:
    """Return the parts of NICs at router ports and of `links` between routers (port and transceiver at each end)."""
    ends = 2 * links / (servers * nics)
    behind = {"switch_ports": 1 + ends, "transceivers": 2 + ends, "fibres": 1 + ends / 2}
    return (PartGroup(nics, "router", Attachment(**behind, links=(("nic-link", 1), ("link", ends / 2)))),)


def _places(shape: DragonflyShape, server: np.ndarray) -> np.ndarray:
    router = np.arange(shape.groups * shape.routers)
    group, slot = np.divmod(router, shape.routers)
    centre = np.exp(2j * np.pi * group / shape.groups) * (3.0 if shape.groups > 1 else 0.0)
    out = np.exp(2j * np.pi * slot / shape.routers + 2j * np.pi * group / shape.groups)
    behind, nth = np.divmod(server, shape.per_router)
    spread = np.exp(0.25j * (nth - (shape.per_router - 1) / 2))
    every = np.concatenate([centre[behind] + 1.8 * out[behind] * spread, centre + out])
    return np.stack([every.real, every.imag], axis=1)


class DragonflyFabric(OnMesh):
    """A dragonfly. `links`: links on the longest path; `valiant`: bytes for another group go through third groups."""

    joins_groups = True

    def __init__(self, about: About, links: int, valiant: bool):
        super().__init__(about)
        self.longest, self.valiant = links, valiant

    def mesh(self, site: FabricSite) -> Mesh:
        return dragonfly_mesh(site.servers, site.server_nics, self.valiant)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        nics = site.server_nics
        return router_parts(nics, site.servers, dragonfly_shape(site.servers, nics).links)

    def paths(self, site: FabricSite) -> FabricPaths:
        return FabricPaths("Valiant" if self.valiant else "minimal", self.longest)


MINIMAL = DragonflyFabric(
    About(
        name="dragonfly",
        summary="routers in meshed groups with links between all groups, minimal paths",
        look=("Dragonfly", "#B5852B", ">"),
    ),
    links=5,
    valiant=False,
)
VALIANT = DragonflyFabric(
    About(
        name="dragonfly-valiant",
        summary="a dragonfly whose bytes for other groups go through third groups",
        look=("Dragonfly, Valiant", "#1B9E77", "d"),
    ),
    links=7,
    valiant=True,
)
