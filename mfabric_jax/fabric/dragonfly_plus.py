"""A dragonfly+: groups of leaves and spines, with links from every leaf to every spine and between all groups.

Routers have r = `network.radix` ports. A leaf has r/2 for NICs and r/2 for the spines of its group; a spine has r/2 for
leaves and r/2 for other groups. A group has at most r/2 leaves and there are at most (r/2)^2 + 1 groups, so at most
(r/2)^4 + (r/2)^2 NICs. Minimal paths go from leaf to spine, over all links between two groups in equal shares, and from
spine to leaf. Valiant paths first go through all third groups in equal shares; they enter and leave at spines.
Source: Shpiner et al., Dragonfly+, HiPINEB 2017 (from memory, unverified).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.dragonfly import DragonflyFabric, between_groups, router_parts
from mfabric_jax.fabric.site import About, FabricSite

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import Mesh


class DragonflyPlusShape(NamedTuple):
    """The size of a dragonfly+.

    - `per_leaf`: servers per leaf; `leaves`, `spines`: per group; `between`: links between two groups.

    A spine has one port for other groups per leaf, so a group has as many links to other groups as from leaves to
    spines.
    """

    per_leaf: int
    groups: int
    leaves: int
    spines: int
    between: int

    @property
    def links(self) -> int:
        return self.groups * self.leaves * self.spines + self.groups * (self.groups - 1) // 2 * self.between


def most_hosts(radix: int) -> int:
    """Return the NICs of the largest dragonfly+ of routers with `radix` ports."""
    half = radix // 2
    return half**4 + half**2


def plus_shape(servers: int, nics: int, radix: int) -> DragonflyPlusShape:
    """Return the size with the fewest groups, filled evenly; leftover ports double the links between groups.

    Raise `Misfit` if a leaf has no room for a server, or if even the largest number of groups has no room for all
    servers.
    """
    half = radix // 2
    per_leaf = half // nics
    if not per_leaf:
        raise Misfit(
            f"network.radix must be at least {2 * nics} on dragonfly-plus, twice the NICs of a server, got {radix}."
        )
    needed = -(-servers // per_leaf)
    groups = -(-needed // half)
    if groups > half**2 + 1:
        raise Misfit(
            f"network.radix {radix} gives a dragonfly-plus room for {(half**2 + 1) * half * per_leaf:,} servers of "
            f"{nics} NICs, got {servers:,}; choose a larger radix."
        )
    leaves = -(-needed // groups)
    return DragonflyPlusShape(
        per_leaf,
        groups,
        leaves,
        half,
        leaves * half // max(groups - 1, 1),
    )


def plus_mesh(servers: int, nics: int, radix: int, valiant: bool = False) -> Mesh:
    """Return the links of a dragonfly+, in both directions: server to leaf, leaf to spine, between groups."""
    shape = plus_shape(servers, nics, radix)
    groups, leaves, spines = shape.groups, shape.leaves, shape.spines
    server, leaf_of = np.arange(servers), servers + np.arange(servers) // shape.per_leaf
    group, leaf, spine = (x.ravel() for x in np.mgrid[:groups, :leaves, :spines])
    first = servers + groups * leaves  # spines follow the leaves
    leaf, spine = servers + group * leaves + leaf, first + group * spines + spine
    here, there, out, into = between_groups(groups, shape.between, leaves)
    ends = first + np.stack([here * spines + out, there * spines + into])
    globals_, width = np.unique(ends, axis=1, return_counts=True)  # parallel links are one
    runs = [
        ("nic up", server, leaf_of, nics),
        ("nic down", leaf_of, server, nics),
        ("leaf up", leaf, spine, 1),
        ("leaf down", spine, leaf, 1),
        ("global", *globals_, width),
    ]
    runs = [run for run in runs if len(run[1])]
    areas = [(leaf_of - servers) // leaves, np.repeat(np.arange(groups), leaves), np.repeat(np.arange(groups), spines)]
    return views.Mesh(
        np.concatenate([tail for _, tail, _, _ in runs]),
        np.concatenate([head for _, _, head, _ in runs]),
        np.concatenate([np.broadcast_to(nics, len(tail)) for _, tail, _, nics in runs]),
        nodes=(("server", servers), ("leaf", groups * leaves), ("spine", groups * spines)),
        links=tuple((kind, len(tail)) for kind, tail, _, _ in runs),
        areas=np.concatenate(areas),
        thirds=valiant,
        places=_places(shape, server),
    )


def _places(shape: DragonflyPlusShape, server: np.ndarray) -> np.ndarray:
    """Return positions in a picture: groups side by side, spines above leaves above servers."""

    def row(count: int, height: float) -> np.ndarray:
        group, slot = np.divmod(np.arange(shape.groups * count), count)
        return np.stack([group + 0.9 * (slot + 0.5) / count, np.full(len(slot), height)], axis=1)

    return np.concatenate(
        [row(shape.leaves * shape.per_leaf, 0.0)[: len(server)], row(shape.leaves, 0.6), row(shape.spines, 1.4)]
    )


class DragonflyPlusFabric(DragonflyFabric):
    def mesh(self, site: FabricSite) -> Mesh:
        return plus_mesh(site.servers, site.server_nics, site.network.radix, self.valiant)

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        nics = site.server_nics
        return router_parts(nics, site.servers, plus_shape(site.servers, nics, site.network.radix).links)


MINIMAL = DragonflyPlusFabric(
    About(
        name="dragonfly-plus",
        summary="groups of leaves and spines with links between the spines of all groups, minimal paths",
        look=("Dragonfly+", "#B15928", "1"),
    ),
    links=5,
    valiant=False,
)
VALIANT = DragonflyPlusFabric(
    About(
        name="dragonfly-plus-valiant",
        summary="a dragonfly+ whose bytes for other groups go through third groups",
        look=("Dragonfly+, Valiant", "#6A3D9A", "2"),
    ),
    links=8,
    valiant=True,
)
