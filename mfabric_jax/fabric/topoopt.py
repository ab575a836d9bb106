"""TopoOpt: all NICs on patch panels, circuits chosen once for expected demand, servers forward for each other.

Rings over the servers of a stage carry gradients, matchings inside expert-parallel groups the all-to-alls, one circuit
joins each server with its peer in either neighbouring stage. `policies.wirings` says how NICs are shared among them.
Gradients use rings in both directions, at twice a NIC's rate per ring. Source: Wang et al., NSDI 2023.
"""

from __future__ import annotations

import dataclasses
import math
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.cost import THROUGH_PANEL, PartGroup
from mfabric_jax.fabric.design import SERVER_GPUS, Asked, ClusterShape, Fabric, Form, nics_of
from mfabric_jax.fabric.fat_tree import tree_form
from mfabric_jax.workload import Workload

if TYPE_CHECKING:
    from mfabric_jax.fabric.direct_links import DirectLinks


def _stage_nics(job: ClusterShape) -> int:
    return min(2, job.pp - 1)


def _groups(settings: Asked, job: Workload, nic_gbps: float, nic_uses) -> list[DirectLinks]:
    nics = nics_of(settings, job)
    least = RING_NICS + _stage_nics(job)
    if nics < least:
        raise InputError(f"topoopt needs {least} NICs for its ring and pipeline neighbours, got nics {nics}.")
    from mfabric_jax.fabric.direct_links import DirectLinks

    return [DirectLinks(job.servers_per_region, nic_gbps, nics - _stage_nics(job), RING_NICS, 1, panels=True)]


def _circuits(job: ClusterShape, form: Form, nic_gbps: float, choose) -> np.ndarray:
    stage, nics = job.servers // job.pp, (form.nics or job.gpus_per_server) - _stage_nics(job)
    count, server = np.zeros((job.servers, job.servers), np.int64), np.arange(job.servers)
    if form.wiring == "demand":
        _place(count, choose(nics, "topoopt"))
        size, follow = job.servers_per_region, server // stage * stage + (server + 1) % stage
        inside = (follow // size == server // size) & (follow == server + 1)  # regions have this part of the ring
        _join(count, *(ends[(follow != server) & ~inside] for ends in (server, follow)))
    else:
        _place(count, choose(nics, form.wiring))
    ahead = server[: job.servers - stage]
    _join(count, ahead, ahead + stage)
    return count[None]


def _place(count: np.ndarray, parts: np.ndarray) -> None:
    """Add the circuits of parts [N S S] of the cluster, in order."""
    size = parts.shape[-1]
    for number, circuits in enumerate(parts):
        own = slice(number * size, (number + 1) * size)
        count[own, own] += circuits


def _join(count: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    np.add.at(count, (a, b), 1)
    np.add.at(count, (b, a), 1)


def _nics(form: Form) -> Any:
    return SERVER_GPUS if form.nics is None else form.nics


def _form(settings: Asked, job: ClusterShape) -> Form:
    return dataclasses.replace(tree_form(settings, job), wiring=settings.own("topoopt").wiring)


TOPOOPT = Fabric(
    name="topoopt",
    summary="circuits alone, chosen before training; servers forward where two have none",
    look=("TopoOpt", "#CC79A7", "P"),
    groups=_groups,
    circuits=_circuits,
    parts=lambda form: (PartGroup(_nics(form), "patch panel", THROUGH_PANEL),),
    form=_form,
    path_links=lambda settings: 1,
    policy="topoopt",
    routing="forwarding",
    uses="pooled",
    single_paths=lambda settings: settings.own("topoopt").wiring != "demand",
)


# --------------------------------------------------------------------------------------------------------------- rings
RING_NICS = 2  # NICs of a server per ring: one to each neighbour


def _coprime(servers: int, most: int) -> list[int]:
    return [step for step in range(1, most + 1) if math.gcd(step, servers) == 1]


def ascending_steps(servers: int, rings: int) -> list[int]:
    """1 and the next steps that form rings (1, 3, 5 for 16 servers), repeating from 1 when there are no more."""
    return list(islice(cycle(_coprime(servers, max(servers - 1, 1))), rings))


def totient_steps(servers: int, rings: int) -> list[int]:
    """TopoOpt's choice of rings: step 1, then the step nearest to n^(1/`rings`) times the one before (ties: the
    smaller), so that few hops reach all servers; repeats from 1 when all are used.

    Source: Wang et al., NSDI 2023, TotientPerms and SelectPermutations. Deviation: circuits join both directions, so
    only the smaller of p and n - p is used.
    """
    left, steps = _coprime(servers, max(servers // 2, 1)), []
    while left and len(steps) < rings:
        wanted = steps[-1] * servers ** (1 / rings) if steps else 1
        steps.append(min(left, key=lambda step: abs(step - wanted)))
        left.remove(steps[-1])
    return list(islice(cycle(steps), rings))


def ring_circuits(servers: int, steps: list[int]) -> np.ndarray:
    """Circuits [n n] of rings with these steps; two servers have two circuits per ring, one server none."""
    count, here = np.zeros((servers, servers), np.int64), np.arange(servers)
    for step in steps if servers > 1 else []:
        there = (here + step) % servers
        np.add.at(count, (here, there), 1)
        np.add.at(count, (there, here), 1)
    return count
