"""A 3-D torus of direct links between servers, with wrap-around through optical switches set once, as in TPU pods.

An expert-parallel group is one x-y plane (a stage, where groups are single servers); planes follow each other along z,
replicas of a stage first, then stages. A server has `nics` / 6 NICs per direction. Bytes follow the shortest path in
dimension order x, y, z; at equal distance even coordinates go up and odd ones down. Gradients use z in both directions;
sends to the next stage cross the replicas of their own. Source: Jouppi et al., TPU v4, ISCA 2023. Deviation: a node is
a server, not a chip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError, Misfit
from mfabric_jax.fabric.cost import DIRECT_LINK, THROUGH_OCS, PartGroup
from mfabric_jax.fabric.design import Asked, ClusterShape, Fabric, Form
from mfabric_jax.fabric.grids import Shape, coordinates, near_equal, number, rings, sizes, written
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh

NAME, DIRECTIONS, WAYS = "torus", 6, "dimension-order"


def near_square(servers: int) -> Shape:
    return near_equal(servers, 2)


def near_cube(servers: int) -> Shape:
    return near_equal(servers, 3)


def torus_links(shape: Shape, per_direction: int = 1) -> np.ndarray:
    """Links between servers [S S], server x + X (y + Y z)."""
    count = np.zeros((math.prod(shape),) * 2, np.int64)
    for _, at, there in rings(shape):
        np.add.at(count, (at, there), per_direction)
        np.add.at(count, (there, at), per_direction)
    return count


def dimension_order(shape: Shape) -> np.ndarray:
    """The server after s on the way to t [S S]."""
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


def torus_mesh(shape: Shape, per_direction: int, ways: str = WAYS) -> Mesh:
    """The torus with `per_direction` links per direction, and its routing rule."""
    from mfabric_jax.fabric.direct_links import mesh_of

    following = dimension_order(shape) if ways == WAYS else None
    return mesh_of(torus_links(shape, per_direction), following=following, places=coordinates(shape).T)


def per_direction(nics: int | None, name: str = "torus") -> int:
    if nics is not None and nics % DIRECTIONS:
        raise InputError(f"{name} needs as many NICs in each of its {DIRECTIONS} directions, got nics {nics}.")
    return 1 if nics is None else nics // DIRECTIONS


def ring_parts(shape: Shape, each: int) -> tuple[PartGroup, PartGroup]:
    """NICs of a server whose links are direct, and whose links close a ring: one link in n of a ring of n."""
    through = sum(2 * each / size for size in shape if size > 1)
    direct = sum(2 * each for size in shape if size > 1) - through
    return PartGroup(direct, "direct link", DIRECT_LINK), PartGroup(through, "wrap-around", THROUGH_OCS)


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]) -> list[DirectLinks]:
    each = per_direction(settings.server_nics)
    plane = (*near_square(job.servers_per_region), 1)
    planes = max(1, job.servers // job.pp // math.prod(_plane(job)))  # of a stage, one after the other
    rates: dict[str, Any] = {"ring_nics": 2.0 * each, "stage_nics": each / planes}
    from mfabric_jax.fabric.direct_links import DirectLinks

    if settings.own(NAME).ways != WAYS or settings.own(NAME).shape is not None:
        form = _form(settings, job)
        return [DirectLinks.of_cluster(_mesh(job.servers, form), job, nic_gbps, DIRECTIONS * each)]
    return [DirectLinks(job.servers_per_region, nic_gbps, 4 * each, mesh=torus_mesh(plane, each), **rates)]


def _plane(job: ClusterShape) -> Shape:
    """x and y: those of a group, or of a stage where a group is one server and sends nothing."""
    return near_square(job.servers_per_region if job.servers_per_region > 1 else max(1, job.servers // job.pp))


def _form(settings: Asked, job: ClusterShape) -> Form:
    own, plane = settings.own(NAME), _plane(job)
    shape = (*plane, job.servers // math.prod(plane))
    if own.shape is not None:
        shape = sizes("network.torus.shape", own.shape)
        if len(shape) != 3 or math.prod(shape) != job.servers:
            raise Misfit(f"network.torus.shape must be three sizes of {job.servers} servers, got {written(shape)}.")
    return Form(nics=settings.server_nics, shape=shape, ways=own.ways)


def _mesh(servers: int, form: Form) -> Mesh:
    return torus_mesh(form.shape or near_cube(servers), per_direction(form.nics), form.ways or WAYS)


def _parts(form: Form) -> tuple[PartGroup, ...]:
    return ring_parts(form.shape or near_cube(form.servers), per_direction(form.nics))


def _rings(form: Form, job: Workload) -> tuple[int, float]:
    """Optical ports and regions: the two ports that close a ring are on one switch."""
    _, through = _parts(form)
    return 2, job.servers * through.nics / 2


TORUS = Fabric(
    name=NAME,
    summary="a 3-D torus of direct links between servers, wrap-around through optical switches",
    look=("Torus", "#8C564B", "<"),
    groups=_groups,
    mesh=_mesh,
    parts=_parts,
    form=_form,
    optical_regions=_rings,
    path_links=lambda settings: 1,
    routing=lambda settings: settings.own(NAME).ways,
    single_paths=lambda settings: False,
    uses="pooled",
    usual_nics=DIRECTIONS,
)
