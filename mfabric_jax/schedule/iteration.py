"""A training iteration: blocks into passes, passes into the pipeline, gradients all-reduced at the end."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import whole
from mfabric_jax.fabric.design import NVSWITCH_GIGABYTES_PER_S, EpGroup, as_data
from mfabric_jax.schedule._order import BACKWARD, order_of
from mfabric_jax.schedule.all_to_alls import Exchanges, places
from mfabric_jax.schedule.timeline import Blocks, Compute, Rules, Slots, run
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds
from mfabric_jax.workload.volume import gradient_bytes, pp_bytes, ring_bytes, tp_bytes_per_gpu


class FabricRates(NamedTuple):
    """What the timeline needs to know of a fabric.

    - `nic_Bps`: bytes/s of a NIC.   - `eps_Bps`, `send_Bps`: bytes/s of a server for gradients, and to the next stage
      (one number, or [P] of the slowest server of every stage).   - `nvlink_Bps`: bytes/s of a GPU inside its server.
    - `delay_s`: reconfiguration.   - `latency_s`: propagation along a path between servers.   - `each_s`: further delay
      for every circuit set up anew.   - `decision_s`: a region's circuits are known so long after its demand.
    """

    nic_Bps: Float[Array, ""] | float
    eps_Bps: Float[Array, ""] | Float[Array, "P"] | float
    send_Bps: Float[Array, ""] | Float[Array, "P"] | float
    nvlink_Bps: Float[Array, ""] | float = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S)
    delay_s: Float[Array, ""] | float = 0.0
    latency_s: Float[Array, ""] | float = 0.0
    each_s: Float[Array, ""] | float = 0.0
    decision_s: Float[Array, ""] | float = 0.0


def rates_of(group: EpGroup, *, goodput: Any = 1.0, **rest: Any) -> FabricRates:
    """The rates of a group at its bandwidth, of which `goodput` is payload; `rest`: other fields of `FabricRates`."""
    bandwidths = (bytes_per_s * goodput for bytes_per_s in (group.nic_Bps, group.eps_Bps, group.send_Bps))
    return FabricRates(*bandwidths, **{"delay_s": group.delay_s} | rest)


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


def iterate(
    workload: Workload,
    rates: FabricRates,
    exchanges: Exchanges,
    seconds: BlockSeconds,
    *,
    rules: Rules | None = None,
    tp_Bps: Float[Array, "P"] | None = None,
) -> Iteration:
    """Time one iteration on a fabric, given its all-to-alls and the compute seconds of a block.

    - `tp_Bps`: bytes/s of a GPU in tensor-parallel all-reduces of every stage; None: its NVLink.

    Point-to-point sends between stages and the all-reduce use what a server has on the electrical fabric. The busiest
    stage is the one with most work of its own; the rest of the iteration is its bubble. Compiled at the first call;
    other rates and seconds run in the same program.
    """
    rates, seconds = as_data((rates, seconds), exchanges.load.dtype)
    return _iterate(workload, rates, exchanges, seconds, rules, tp_Bps)


@eqx.filter_jit
def _iterate(workload: Workload, rates: FabricRates, exchanges: Exchanges, seconds: BlockSeconds, rules, tp_Bps):
    walked = walk(workload, rates, exchanges, seconds, rules=rules, tp_Bps=tp_Bps)
    slots, reduce_s = walked.slots, walked.reduce_s
    total = (slots.end.max(axis=(1, 2)) + reduce_s).max()  # [P] before
    spent = (slots.compute_s, slots.tp_s, slots.exchange_s, slots.paid_s)
    compute, tp, exchange, paid = (part.sum(axis=(1, 2)) for part in spent)
    parts = jnp.stack([compute, tp, exchange, reduce_s, paid])
    busiest = jnp.argmax(parts.sum(axis=0))
    compute, tp, ep, dp, reconfig = parts[:, busiest]
    bubble = jnp.maximum(total - parts[:, busiest].sum(), 0)  # rounding may say less
    return Iteration(total, compute, tp, ep, dp, reconfig, bubble, busiest)


class Walked(NamedTuple):
    """Everything that happens in one iteration: blocks and what is known of them, and `reduce_s` [P], for which every
    stage's gradients are still all-reduced when its passes are through."""

    slots: Slots
    blocks: Blocks
    compute: Compute
    reduce_s: Float[Array, "P"]


@eqx.filter_jit
def walk(
    workload: Workload,
    rates: FabricRates,
    exchanges: Exchanges,
    seconds: BlockSeconds,
    *,
    rules: Rules | None = None,
    tp_Bps: Float[Array, "P"] | None = None,
) -> Walked:
    """When every block of every pass runs [P Q L], and how long gradients take behind them; arguments of `iterate`."""
    rules = (rules or Rules())._replace(recompute=workload.recompute)
    whole("overlap_parts", rules.parts)
    dtype = exchanges.load.dtype
    delay_s, each_s, decision_s = (jnp.asarray(part, dtype) for part in (rates.delay_s, rates.each_s, rates.decision_s))
    if exchanges.anew is not None:
        delay_s = delay_s + each_s * exchanges.anew
    blocks = running_blocks(workload, rates, exchanges)
    compute = compute_of(workload, seconds, rates.nvlink_Bps if tp_Bps is None else tp_Bps, dtype)
    send_s = send_seconds(workload, rates, dtype)
    slots = run(order_of(workload), blocks, compute, send_s, delay_s, rules, decision_s)
    return Walked(slots, blocks, compute, reduced_behind(workload, rates, slots, dp_overlap=rules.dp_overlap))


def send_seconds(workload: Workload, rates: FabricRates, dtype) -> Float[Array, "P"]:
    """Activations, or their gradients, between stage p and p + 1; the last entry: between the last and the first."""
    senders = workload.gpus_per_server // workload.tp  # EP ranks on a server
    send_Bps = jnp.broadcast_to(jnp.asarray(rates.send_Bps, dtype), workload.pp)
    slower = jnp.minimum(send_Bps, jnp.roll(send_Bps, -1))
    return float(pp_bytes(workload) * senders) / slower + jnp.asarray(rates.latency_s, dtype)


def compute_of(workload: Workload, seconds: BlockSeconds, tp_Bps, dtype) -> Compute:
    """Forward seconds of a block's parts, the tensor-parallel all-reduce among them, that [P]."""
    tp_s = jnp.broadcast_to(jnp.asarray(tp_bytes_per_gpu(workload) / tp_Bps, dtype), workload.pp)
    attention_s, moe_s, dense_s, expert_s = (jnp.asarray(part, dtype) for part in seconds)
    return Compute(attention_s, moe_s, dense_s, tp_s, expert_s)


def running_blocks(workload: Workload, rates: FabricRates, exchanges: Exchanges) -> Blocks:
    """The blocks of all passes with their two all-to-alls [P Q L 2].

    Forward: dispatch, combine. Backward: combine-gradient, dispatch-gradient. A combine moves elements of its own
    size. Between and inside servers run at the same time.
    """
    where, dtype = places(workload), exchanges.load.dtype
    ratio = workload.combine_bytes / workload.dispatch_bytes
    size = jnp.asarray(np.where(where.backward[..., None], [ratio, 1.0], [1.0, ratio]), dtype)
    nic_Bps = jnp.asarray(rates.nic_Bps, dtype)
    latency_s = jnp.where(exchanges.load > 0, jnp.asarray(rates.latency_s, dtype), 0)
    inside_s = exchanges.inside[..., None] / jnp.asarray(rates.nvlink_Bps, dtype) * size + latency_s

    def seconds_of(carried):
        return jnp.where(carried > 0, carried / nic_Bps * size + latency_s, 0)

    waiting_s = None if exchanges.waiting is None else seconds_of(exchanges.waiting)
    optical_s, packet_s = seconds_of(exchanges.optical), seconds_of(exchanges.electrical)
    present, moe = jnp.asarray(where.present), jnp.asarray(where.layer >= 0)
    rest = exchanges.switch, exchanges.ahead, inside_s, waiting_s, exchanges.busy
    return Blocks(present, moe, optical_s, packet_s, *rest)


def reduced_behind(workload: Workload, rates: FabricRates, slots: Slots, *, dp_overlap=False) -> Float[Array, "P"]:
    """Seconds for which every stage's gradients are still all-reduced when its passes are through."""
    reduce_s = all_reduce_seconds(workload, rates, slots.end.dtype)
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


def all_reduce_seconds(workload: Workload, rates: FabricRates, dtype=None) -> Float[Array, "P"]:
    """Gradient all-reduce of every stage at the end of the iteration [s].

    Hierarchical: reduced inside each server, a ring between servers over all NICs that reach the electrical fabric,
    broadcast inside. Dense gradients over all servers of the stage, those of experts over their DP replicas. Every step
    around a ring takes its propagation, too.
    """
    servers = workload.servers // workload.pp
    per_server = workload.gpus_per_server
    between, inside, steps = [], [], []
    for stage in range(workload.pp):
        gradients = gradient_bytes(workload, stage)
        spread = min(workload.dp, servers)  # servers with a replica of one expert
        copies = workload.dp // spread  # replicas inside one server
        held = gradients.expert * per_server / (workload.tp * copies)
        local = per_server // workload.tp
        between.append(ring_bytes(gradients.dense, servers) + ring_bytes(held, spread))
        steps.append(2 * (servers - 1) + 2 * (spread - 1))
        dense, expert = gradients.dense / workload.tp, gradients.expert / workload.tp
        inside.append(ring_bytes(dense, local) + ring_bytes(expert, copies))
    eps_Bps = jnp.asarray(rates.eps_Bps)
    eps_Bps = eps_Bps.astype(dtype or eps_Bps.dtype)
    latency_s = jnp.asarray(steps, eps_Bps.dtype) * jnp.asarray(rates.latency_s, eps_Bps.dtype)
    between, inside = jnp.asarray(between, eps_Bps.dtype), jnp.asarray(inside, eps_Bps.dtype)
    return between / eps_Bps + inside / rates.nvlink_Bps + latency_s
