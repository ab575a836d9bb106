"""How circuits that are set before training are wired, by name: what `wiring` of a run means.

- demand: one ring for gradients, and matchings of demand inside every expert-parallel group (NSDI 2023, simplified).
- rings: all NICs in rings over the stage (steps 1, 3, 5, ...), no circuits for a group of its own; a reading of TopoOpt
  in arXiv 2501.03905, the program of which is not public.
- totient-perms: rings and matchings share the NICs in proportion to the bytes of gradients and of all-to-alls, steps of
  rings as in NSDI 2023.
"""

import dataclasses
import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.fabric import Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.topoopt import RING_NICS, ascending_steps, ring_circuits, totient_steps
from mfabric_jax.policies import topoopt
from mfabric_jax.policies.static import matchings
from mfabric_jax.routing.fixed import wired
from mfabric_jax.workload import Workload
from mfabric_jax.workload.volume import PASSES, replica_bytes, replica_ring


def for_demand(group: DirectLinks, job: Workload, demand: Float[Array, "S S"]) -> DirectLinks:
    """Of one group alone."""
    region = Region(group.servers, group.nic_gbps, group.nics)
    return wired(group, topoopt(demand, region).circuits.count)


def all_rings(group: DirectLinks, job: Workload, demand: Float[Array, "S S"]) -> DirectLinks:
    """Of the stage; `demand` does not matter."""
    servers, rings = job.servers // job.pp, group.nics // RING_NICS
    return _over_stage(group, ring_circuits(servers, ascending_steps(servers, rings)), rings)


def totient_rings(group: DirectLinks, job: Workload, demand: Float[Array, "S S"]) -> DirectLinks:
    """Of the stage, the groups of which have the same `demand`, the mean all-to-all."""
    servers, size = job.servers // job.pp, group.servers
    rings = rings_of(group.nics, gradient_sent(job), all_to_all_sent(job, demand))
    free = jnp.full(size, group.nics - RING_NICS * rings, jnp.int32)
    inside = np.asarray(matchings(jnp.asarray(demand), free))
    between = ring_circuits(servers, totient_steps(servers, rings))
    return _over_stage(group, between + np.kron(np.eye(servers // size, dtype=np.int64), inside), rings)


def _over_stage(group: DirectLinks, count: np.ndarray, rings: int) -> DirectLinks:
    """Gradients go around all rings, in both directions."""
    return dataclasses.replace(wired(group, count), ring_nics=float(RING_NICS * rings))


def rings_of(nics: int, gradients: float, all_to_alls: float) -> int:
    """Rings that share a server's NICs with matchings, by bytes sent; at least one, which joins the stage."""
    part = gradients / (gradients + all_to_alls) if gradients else 0.0
    return min(nics // RING_NICS, max(1, math.ceil(part * nics / RING_NICS)))


def gradient_sent(job: Workload) -> float:
    """Bytes that a server sends to others for the replicas of an iteration, mean over stages: gradients that are
    all-reduced or scattered, weights that are gathered, of every micro-batch where they share these out."""
    sizes = [replica_bytes(job, stage) for stage in range(job.pp)]
    return float(np.mean([replica_ring(job, size.dense, size.expert).between for size in sizes]))


def all_to_all_sent(job: Workload, demand: Float[Array, "S S"]) -> float:
    """Bytes that a server sends to others in the all-to-alls of an iteration, whose mean dispatch is `demand`."""
    away = np.asarray(demand, float) * (1 - np.eye(len(demand)))
    both = 1 + job.combine_bytes_per_selection / job.dispatch_bytes_per_selection
    passes = (PASSES + (job.recompute == "block")) * job.micro_batches * job.moe_layers / job.pp
    return float(away.sum() / len(away) * both * passes)


WIRINGS: dict[str, Callable[..., DirectLinks]] = {
    "demand": for_demand,
    "rings": all_rings,
    "totient-perms": totient_rings,
}
