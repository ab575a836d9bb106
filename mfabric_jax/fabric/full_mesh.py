"""A full mesh of several dimensions: servers that differ in one dimension alone are joined (HyperX, UB-Mesh).

A server's NICs are split over its peers, as many for each or `split` for each dimension; a link may be a fraction of a
NIC, which is then split into lanes. Ways: `shortest`, all orders of the dimensions in equal shares; `dimension-order`,
the first dimension first; `detour`, in that order, and in every dimension in equal shares over the direct link and over
each third server of the line. Sources: Ahn et al., HyperX, SC 2009; Liao et al., UB-Mesh, arXiv 2503.20377 (figures
second hand). Deviation: a node is a server, unless servers have one GPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from mfabric_jax.checks import Misfit
from mfabric_jax.fabric.cost import DIRECT_LINK, PartGroup
from mfabric_jax.fabric.design import SERVER_GPUS, Asked, ClusterShape, Fabric, Form, nics_of
from mfabric_jax.fabric.grids import Shape, coordinates, lines, near_equal, number, sizes, written
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks, Mesh

NAME = "full-mesh"
DIMENSIONS, WAYS = 2, "shortest"  # unless the settings say otherwise


def widths(shape: Shape, nics: float, split: Sequence[float] | None = None) -> list[float]:
    """NICs of a link of each dimension; `split`: those of a server for each dimension, None: as many for each peer."""
    peers = [size - 1 for size in shape]
    if split is None:
        return [nics / max(1, sum(peers))] * len(shape)
    if (
        len(split) != len(shape)
        or sum(split) != nics
        or any((n > 0) != (p > 0) for n, p in zip(split, peers, strict=True))
    ):
        raise Misfit(
            f"network.full-mesh.split must share the {nics:g} NICs of a server over the dimensions of {written(shape)} "
            f"that have peers, got {'x'.join(f'{one:g}' for one in split)}."
        )
    return [each / max(1, count) for each, count in zip(split, peers, strict=True)]


def dimension_order(shape: Shape) -> np.ndarray:
    """The server after s on the way to t [S S]: the first dimension in which they differ is set right."""
    servers = math.prod(shape)
    s, t = (x.ravel() for x in np.mgrid[:servers, :servers])
    here, there = coordinates(shape, s), coordinates(shape, t)
    first = (here != there).argmax(axis=0)
    pair = np.arange(len(s))
    here[first, pair] = there[first, pair]
    return number(here, shape).reshape(servers, servers)


def full_mesh(shape: Shape, nics: float, split: Sequence[float] | None = None, ways: str = WAYS) -> Mesh:
    """The links of a full mesh and their rule; `nics`: of a server."""
    every = widths(shape, nics, split)
    none = np.zeros(0, np.int64)
    runs = [(none, none, none), *((a, b, np.full(len(a), every[axis])) for axis, a, b in lines(shape))]
    tail, head, width = (np.concatenate(column) for column in zip(*runs, strict=True))
    following = None if ways == "shortest" else dimension_order(shape)
    from mfabric_jax.fabric.direct_links import mesh_of_links

    rest = {"following": following, "detours": ways == "detour", "places": _places(shape)}
    return mesh_of_links(math.prod(shape), tail, head, width, **rest)


def _places(shape: Shape) -> np.ndarray:
    """[S 2] the first dimension on a circle, the second on a circle of circles, and so on."""
    at, radius = np.zeros(math.prod(shape), complex), 1.0
    for size, place in zip(shape, coordinates(shape), strict=True):
        at = at + radius * np.exp(2j * np.pi * place / size)
        radius *= 3.0
    return np.stack([np.real(at), np.imag(at)], axis=1)


def shape_of(servers: int, own) -> Shape:
    """The shape that settings `own` ask for; `Misfit` for one of another number of servers."""
    if own.shape is None:
        return near_equal(servers, own.dimensions)
    shape = sizes("network.full-mesh.shape", own.shape)
    if math.prod(shape) != servers:
        raise Misfit(f"network.full-mesh.shape must have {servers} servers, got {written(shape)}.")
    return shape


def ways_of(shape: Shape, group: int) -> str:
    """The usual ways: detours for groups that fill a part of a line, over the idle servers of it; else shortest."""
    return "detour" if group > 1 and group % shape[0] else WAYS


def _fills(servers: int, group: int, own) -> dict[str, str]:
    shape = shape_of(servers, own)
    return {"shape": written(shape), "ways": ways_of(shape, group)}


def split_of(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else tuple(map(float, sizes("network.full-mesh.split", text)))


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses: Sequence[str]) -> list[DirectLinks]:
    form = _form(settings, job)
    from mfabric_jax.fabric.direct_links import DirectLinks

    return [DirectLinks.of_cluster(_mesh(job.servers, form), job, nic_gbps, _nics(form))]


def _form(settings: Asked, job: ClusterShape) -> Form:
    own = settings.own(NAME)
    rest = {"shape": shape_of(job.servers, own), "split": split_of(own.split), "ways": own.ways}
    return Form(nics=nics_of(settings, job), servers=job.servers, **rest)


def _nics(form: Form) -> int:
    return SERVER_GPUS if form.nics is None else form.nics


def _mesh(servers: int, form: Form) -> Mesh:
    shape = form.shape or near_equal(servers, DIMENSIONS)
    return full_mesh(shape, _nics(form), form.split, form.ways or WAYS)


def _parts(form: Form) -> tuple[PartGroup, ...]:
    """A NIC that is split into lanes counts as one, and so do its transceiver and its half of a fibre."""
    return (PartGroup(_nics(form), "direct link", DIRECT_LINK),)


def _longest(settings: Asked) -> int:
    """Links of a way that differs in every dimension."""
    own = settings.own(NAME)
    dimensions = own.dimensions if own.shape is None else len(sizes("network.full-mesh.shape", own.shape))
    return dimensions * (2 if own.ways == "detour" else 1)


FULL_MESH = Fabric(
    name=NAME,
    summary="servers that differ in one of several dimensions alone are joined (HyperX, UB-Mesh)",
    look=("Full mesh", "#66A61E", "8"),
    groups=_groups,
    mesh=_mesh,
    parts=_parts,
    form=_form,
    fills=_fills,
    path_links=_longest,
    routing=lambda settings: settings.own(NAME).ways,
    single_paths=lambda settings: False,
    uses="pooled",
)
