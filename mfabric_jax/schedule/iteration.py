"""A training iteration: blocks into passes, passes into the pipeline, gradients all-reduced at the end."""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import whole
from mfabric_jax.schedule.exchange import Exchanges, Fabric, NVSWITCH_Bps, places
from mfabric_jax.schedule.order import BACKWARD, order_of
from mfabric_jax.schedule.timeline import Blocks, Compute, Rules, Slots, run
from mfabric_jax.workload import BlockSeconds, Workload, gradient_bytes, pp_bytes
from mfabric_jax.workload.volume import tp_bytes_per_gpu


class Rates(NamedTuple):
    """What the timeline needs to know of a fabric: bytes/s of a NIC, bytes/s of a server for gradients and to the next
    stage (one number, or [P] of the slowest server of every stage), reconfiguration delay [s], propagation along a path
    between servers [s]. Every fabric has them."""

    nic_Bps: Float[Array, ""] | float
    eps_Bps: Float[Array, ""] | Float[Array, "P"] | float
    send_Bps: Float[Array, ""] | Float[Array, "P"] | float
    delay_s: Float[Array, ""] | float
    latency_s: Float[Array, ""] | float


class Iteration(NamedTuple):
    """Seconds of one iteration, broken down for the busiest stage: the parts add up to `iteration_s`."""

    iteration_s: Float[Array, ""]
    compute_s: Float[Array, ""]
    tp_comm_s: Float[Array, ""]
    ep_comm_s: Float[Array, ""]
    dp_comm_s: Float[Array, ""]
    reconfig_s: Float[Array, ""]
    bubble_s: Float[Array, ""]
    stage: Int[Array, ""]

    @property
    def exposed_comm_s(self):
        """Communication that nothing hides: tensor, expert and data parallel."""
        return self.tp_comm_s + self.ep_comm_s + self.dp_comm_s


@eqx.filter_jit
def iterate(
    workload: Workload,
    fabric: Fabric | Rates,
    exchanges: Exchanges,
    seconds: BlockSeconds,
    nvswitch_Bps: Float[Array, ""] | float = NVSWITCH_Bps,
    *,
    eps_waits: bool = False,
    overlap_parts: int = 1,
    dp_overlap: bool = False,
    tp_Bps: Float[Array, "P"] | None = None,
) -> Iteration:
    """Time one iteration on a fabric, given its all-to-alls and the compute seconds of a block.

    - `tp_Bps`: bytes/s of a GPU in tensor-parallel all-reduces of every stage; None: its NVSwitch.
    - `eps_waits`: traffic on packet switches waits for a reconfiguration too, not only that on circuits.
    - `overlap_parts`: dispatch, experts and combine of a block overlap in so many parts (1: one after the other).
    - `dp_overlap`: gradients of a block are all-reduced as soon as its last backward pass is over, beside everything
      else (which they do not slow down); otherwise when the stage is through.

    Point-to-point sends between stages and the all-reduce use what a server has on the electrical fabric. The busiest
    stage is the one with most work of its own; the rest of the iteration is its bubble.
    """
    tp_rate = nvswitch_Bps if tp_Bps is None else tp_Bps
    whole("overlap_parts", overlap_parts)
    rules = Rules(eps_waits, overlap_parts, workload.recompute)
    slots = timeline(workload, fabric, exchanges, seconds, tp_rate, rules)
    through = slots.end.max(axis=(1, 2))  # [P]
    reduce_s = reduced_behind(workload, fabric, slots, nvswitch_Bps, dp_overlap=dp_overlap)
    total = (through + reduce_s).max()
    spent = (slots.compute_s, slots.tp_s, slots.exchange_s, slots.paid_s)
    compute, tp, exchange, paid = (part.sum(axis=(1, 2)) for part in spent)
    parts = jnp.stack([compute, tp, exchange, reduce_s, paid])
    busiest = jnp.argmax(parts.sum(axis=0))
    compute, tp, ep, dp, reconfig = parts[:, busiest]
    return Iteration(total, compute, tp, ep, dp, reconfig, total - parts[:, busiest].sum(), busiest)


def timeline(
    workload: Workload, fabric: Fabric | Rates, exchanges: Exchanges, seconds: BlockSeconds, tp_Bps, rules: Rules
) -> Slots:
    """When every block of every pass runs [P Q L], before gradients are all-reduced."""
    dtype = exchanges.load.dtype
    delay_s = jnp.asarray(fabric.delay_s, dtype)
    blocks = running_blocks(workload, fabric, exchanges)
    compute = compute_of(workload, seconds, tp_Bps, dtype)
    return run(order_of(workload), blocks, compute, send_seconds(workload, fabric, dtype), delay_s, rules)


def send_seconds(workload: Workload, fabric: Fabric | Rates, dtype) -> Float[Array, "P"]:
    """Activations, or their gradients, between stage p and p + 1; the last entry: between the last and the first."""
    senders = workload.gpus_per_server // workload.tp  # EP ranks on a server
    send_Bps = jnp.broadcast_to(jnp.asarray(fabric.send_Bps, dtype), workload.pp)
    slower = jnp.minimum(send_Bps, jnp.roll(send_Bps, -1))
    return float(pp_bytes(workload) * senders) / slower + jnp.asarray(fabric.latency_s, dtype)


def compute_of(workload: Workload, seconds: BlockSeconds, tp_Bps, dtype) -> Compute:
    """Forward seconds of a block's parts, the tensor-parallel all-reduce among them, that [P]."""
    tp_s = jnp.broadcast_to(jnp.asarray(tp_bytes_per_gpu(workload) / tp_Bps, dtype), workload.pp)
    attention_s, moe_s, dense_s = (jnp.asarray(part, dtype) for part in seconds)
    return Compute(attention_s, moe_s, dense_s, tp_s)


def running_blocks(workload: Workload, fabric: Fabric | Rates, exchanges: Exchanges) -> Blocks:
    """The blocks of all passes with their two all-to-alls [P Q L 2].

    Forward: dispatch, combine. Backward: combine-gradient, dispatch-gradient. A combine moves elements of its own
    size. Between and inside servers run at the same time.
    """
    where, dtype = places(workload), exchanges.load.dtype
    ratio = workload.combine_bytes / workload.dispatch_bytes
    size = jnp.asarray(np.where(where.backward[..., None], [ratio, 1.0], [1.0, ratio]), dtype)
    nic_Bps = jnp.asarray(fabric.nic_Bps, dtype)
    latency_s = jnp.where(exchanges.load > 0, jnp.asarray(fabric.latency_s, dtype), 0)
    packet_s = jnp.maximum(exchanges.electrical / nic_Bps, exchanges.inside_s[..., None]) * size + latency_s
    active = exchanges.optical > 0
    optical_s = jnp.where(active, exchanges.optical / nic_Bps * size + latency_s, 0)
    switch, ahead = exchanges.switch, exchanges.ahead
    return Blocks(jnp.asarray(where.present), jnp.asarray(where.layer >= 0), optical_s, packet_s, switch, ahead)


def reduced_behind(workload: Workload, fabric, slots: Slots, nvswitch_Bps, *, dp_overlap=False) -> Float[Array, "P"]:
    """Seconds for which every stage's gradients are still all-reduced when its passes are through."""
    reduce_s = all_reduce_seconds(workload, fabric, nvswitch_Bps, slots.end.dtype)
    if dp_overlap:
        return reduced_by(workload, slots.end, reduce_s) - slots.end.max(axis=(1, 2))
    return reduce_s


def reduced_by(workload: Workload, end: Float[Array, "P Q L"], reduce_s: Float[Array, "P"]) -> Float[Array, "P"]:
    """When every stage's gradients are reduced if each block's, an equal part of all, queue up as they are ready."""
    where, order = places(workload), order_of(workload)
    done = []
    for stage in range(workload.pp):
        last = [
            np.flatnonzero((order.kind[stage] == BACKWARD) & (order.chunk[stage] == chunk))[-1]
            for chunk in range(workload.chunks)
        ]
        slots = [(q, block) for q in sorted(last) for block in np.flatnonzero(where.present[stage, q])]
        ready = end[stage][tuple(np.transpose(slots))]  # in running order
        behind = np.arange(len(slots), 0, -1) / len(slots)
        done.append((ready + jnp.asarray(behind, end.dtype) * reduce_s[stage]).max())
    return jnp.stack(done)


def all_reduce_seconds(workload: Workload, fabric, nvswitch_Bps, dtype=None) -> Float[Array, "P"]:
    """Gradient all-reduce of every stage at the end of the iteration [s].

    Hierarchical: reduced inside each server, a ring between servers over all NICs that reach the electrical fabric,
    broadcast inside. Dense gradients over all servers of the stage, those of experts over their DP replicas. Every step
    around a ring takes its propagation, too.
    """
    servers = workload.servers // workload.pp
    per_server = workload.gpus_per_server

    def ring(size: float, members: int) -> float:
        return 2 * size * (members - 1) / members

    between, inside, steps = [], [], []
    for stage in range(workload.pp):
        gradients = gradient_bytes(workload, stage)
        spread = min(workload.dp, servers)  # servers with a replica of one expert
        copies = workload.dp // spread  # replicas inside one server
        held = gradients.expert * per_server / (workload.tp * copies)
        local = per_server // workload.tp
        between.append(ring(gradients.dense, servers) + ring(held, spread))
        steps.append(2 * (servers - 1) + 2 * (spread - 1))
        inside.append(ring(gradients.dense / workload.tp, local) + ring(gradients.expert / workload.tp, copies))
    eps_Bps = jnp.asarray(fabric.eps_Bps)
    eps_Bps = eps_Bps.astype(dtype or eps_Bps.dtype)
    latency_s = jnp.asarray(steps, eps_Bps.dtype) * jnp.asarray(fabric.latency_s, eps_Bps.dtype)
    between, inside = jnp.asarray(between, eps_Bps.dtype), jnp.asarray(inside, eps_Bps.dtype)
    return between / eps_Bps + inside / nvswitch_Bps + latency_s
