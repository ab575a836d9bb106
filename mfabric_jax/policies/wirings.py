"""Circuits that are set once before training, by the names of `network.topoopt.wiring`.

- demand: one ring for gradients and matchings for the demand of every expert-parallel group (NSDI 2023, simplified).
- rings: all NICs form rings over the stage (steps 1, 3, 5, ...). This is our reading of TopoOpt in arXiv 2501.03905,
  whose program is not public.
- totient-perms: rings and matchings divide the NICs in proportion to the bytes of gradients and of all-to-alls; ring
  steps as in NSDI 2023.
"""

import dataclasses
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.grids import ascending_steps, ring_circuits, totient_steps
from mfabric_jax.fabric.nic_use import RING_NICS
from mfabric_jax.policies.static import matchings, topoopt
from mfabric_jax.routing.fixed import add_paths
from mfabric_jax.support import programs
from mfabric_jax.support.array_module import Array
from mfabric_jax.workload import Workload
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.volume import PASSES, replica_bytes, replica_ring

DEMAND, RINGS, TOTIENT = "demand", "rings", "totient-perms"
OVER_STAGE = RINGS, TOTIENT  # wirings whose rings join all servers of a stage


class Sent(NamedTuple):
    """Bytes that a server sends per iteration, for gradients and in all-to-alls; they decide the NICs of rings."""

    gradients: float
    all_to_alls: float


ALL_TO_ALLS = Sent(0.0, 1.0)  # if no gradients are sent, or if they are not counted apart


def bytes_sent(job: Workload, demand: Float[Array, "S S"]) -> Sent:
    """Return the bytes that a server sends per iteration, for gradients and in all-to-alls.

    Gradients include sharded weights and are the mean over stages. `demand` is the mean dispatch of the all-to-alls.
    """
    sizes = [replica_bytes(job, stage) for stage in range(job.pp)]
    gradients = np.mean([replica_ring(job, size.dense, size.expert).between for size in sizes])
    away = np.asarray(demand, float) * (1 - np.eye(len(demand)))
    both = 1 + job.combine_bytes_per_selection / job.dispatch_bytes_per_selection
    passes = (PASSES + recomputed_of(job.recompute).exchanges) * job.micro_batches * job.moe_layers / job.pp
    return Sent(float(gradients), float(away.sum() / len(away) * both * passes))


def wire_group(wiring: str, group: DirectLinks, servers: int, demand: Float[Array, "S S"], sent: Sent) -> DirectLinks:
    """Return the group with its circuits; the stage has `servers`; `demand` is each group's mean all-to-all."""
    if wiring == DEMAND:
        region = Region(group.servers, jnp.ones(()), jnp.asarray(group.nics, jnp.int32))  # any bandwidth: one program
        return add_paths(group, programs.run(_for_demand, np.asarray(demand), region))
    groups = servers // group.servers
    nics = np.full((groups, group.servers), np.max(group.nics))
    nics[0] = group.nics  # only the simulated group may have lost NICs
    count, rings = stage_circuits(wiring, nics, np.broadcast_to(demand, (groups, *demand.shape)), sent)
    return dataclasses.replace(add_paths(group, count), ring_nics=float(RING_NICS * rings))


def _for_demand(demand: Float[Array, "S S"], region: Region) -> Array:
    return topoopt(demand, region).circuits.count


def stage_circuits(
    wiring: str, nics: Int[np.ndarray, "G S"], demand: Float[Array, "G S S"], sent: Sent
) -> tuple[Int[np.ndarray, "W W"], int]:
    """Return the circuits of a stage of W = G S servers, wired by one of `OVER_STAGE`, and the number of its rings.

    `nics` has the NICs of every server, `demand` the bytes of every group.
    """
    servers, most = nics.size, int(nics.max())
    if wiring == RINGS:
        rings = most // RING_NICS
        return ring_circuits(servers, ascending_steps(servers, rings)), rings
    rings = rings_of(most, sent)
    count = ring_circuits(servers, totient_steps(servers, rings))
    free = (nics - RING_NICS * rings).astype(np.int32)
    known: dict[tuple[bytes, bytes], np.ndarray] = {}
    for group, own in enumerate(zip(np.asarray(demand), free, strict=True)):
        key = own[0].tobytes(), own[1].tobytes()
        if key not in known:
            known[key] = np.asarray(programs.run(matchings, own[0], jnp.asarray(own[1])))
        span = slice(group * len(own[1]), (group + 1) * len(own[1]))
        count[span, span] += known[key]
    return count, rings


def circuits_over_stage(wiring: str, nics: int, demand: Float[Array, "G S S"], sent: Sent) -> Int[np.ndarray, "W W"]:
    """Return `stage_circuits` for servers that have all their NICs."""
    return stage_circuits(wiring, np.full(demand.shape[:2], nics), demand, sent)[0]


def rings_of(nics: int, sent: Sent) -> int:
    """Return the number of rings over a server's NICs, in proportion to bytes; at least 1, to connect the stage."""
    part = sent.gradients / sum(sent) if sent.gradients else 0.0
    return min(nics // RING_NICS, max(1, math.ceil(part * nics / RING_NICS)))
