"""A training iteration: blocks into passes, passes into the pipeline, gradients all-reduced at the end."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.schedule.block import Blocks, Compute, Pass, run_pass
from mfabric_jax.schedule.exchange import NVSWITCH_GIGABYTES_PER_S, Exchanges, Fabric, places
from mfabric_jax.schedule.order import BACKWARD, one_f_one_b
from mfabric_jax.schedule.pipeline import Pipeline, run_pipeline
from mfabric_jax.workload import BlockSeconds, Workload, gradient_bytes, pp_bytes, tp_bytes_per_gpu


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


def iterate(
    workload: Workload,
    fabric: Fabric | Rates,
    exchanges: Exchanges,
    seconds: BlockSeconds,
    nvswitch_Bps: float = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S),
    *,
    eps_waits: bool = False,
    tp_Bps: Float[Array, "P"] | None = None,
) -> Iteration:
    """Time one iteration on a fabric, given its all-to-alls and the compute seconds of a block.

    - `tp_Bps`: bytes/s of a GPU in tensor-parallel all-reduces of every stage; None: its NVSwitch.
    - `eps_waits`: traffic on packet switches waits for a reconfiguration too, not only that on circuits.

    1F1B over micro-batches; point-to-point sends and the all-reduce at the end use what a server has on the
    electrical fabric. The busiest stage is the one with most work of its own; the rest of the iteration is its bubble.
    """
    tp_rate = nvswitch_Bps if tp_Bps is None else tp_Bps
    passes, pipeline = timeline(workload, fabric, exchanges, seconds, tp_rate, eps_waits)
    reduce_s = all_reduce_seconds(workload, fabric, nvswitch_Bps, exchanges.load.dtype)        # [P]
    total = (pipeline.end.max(axis=1) + reduce_s).max()
    parts = jnp.stack(
        [
            passes.compute_s.sum(axis=1),
            passes.tp_s.sum(axis=1),
            passes.exchange_s.sum(axis=1),
            reduce_s,
            (passes.paid_s + pipeline.waited).sum(axis=1),
        ]
    )
    busiest = jnp.argmax(parts.sum(axis=0))
    compute, tp, ep, dp, reconfig = parts[:, busiest]
    return Iteration(total, compute, tp, ep, dp, reconfig, total - parts[:, busiest].sum(), busiest)


def timeline(
    workload, fabric, exchanges: Exchanges, seconds: BlockSeconds, tp_Bps, eps_waits: bool = False
) -> tuple[Pass, Pipeline]:
    """Every pass of every stage [P Q], and when it runs."""
    order = one_f_one_b(workload.pp, workload.micro_batches)
    dtype = exchanges.load.dtype
    backward = jnp.asarray(order.kind == BACKWARD)
    delay_s = jnp.asarray(fabric.delay_s, dtype)
    compute = compute_of(workload, seconds, tp_Bps, dtype)
    blocks = running_blocks(workload, fabric, exchanges, eps_waits)

    def stage(compute: Compute, blocks: Blocks, backward):
        return jax.vmap(lambda block, back: run_pass(compute, block, back, delay_s))(blocks, backward)

    by_stage: Any = (None, None, None, 0)
    passes = jax.vmap(stage, (Compute(*by_stage), 0, 0))(compute, blocks, backward)
    senders = workload.gpus_per_server // workload.tp                                          # EP ranks on a server
    send_Bps = jnp.broadcast_to(jnp.asarray(fabric.send_Bps, dtype), workload.pp)
    slower = jnp.minimum(send_Bps, jnp.roll(send_Bps, -1))                                     # of stages p and p + 1
    send_s = float(pp_bytes(workload) * senders) / slower + jnp.asarray(fabric.latency_s, dtype)
    return passes, run_pipeline(order, passes, send_s, delay_s)


def compute_of(workload: Workload, seconds: BlockSeconds, tp_Bps, dtype) -> Compute:
    """Forward seconds of a block's parts, the tensor-parallel all-reduce among them, that [P]."""
    tp_s = jnp.broadcast_to(jnp.asarray(tp_bytes_per_gpu(workload) / tp_Bps, dtype), workload.pp)
    attention_s, moe_s, dense_s = (jnp.asarray(part, dtype) for part in seconds)
    return Compute(attention_s, moe_s, dense_s, tp_s)


def running_blocks(workload: Workload, fabric, exchanges: Exchanges, eps_waits: bool = False) -> Blocks:
    """The blocks of all passes with their two all-to-alls [P Q L 2].

    Forward: dispatch, combine. Backward: combine-gradient, dispatch-gradient. A combine moves elements of its own
    size. Between and inside servers run at the same time.
    """
    where = places(workload)
    order = one_f_one_b(workload.pp, workload.micro_batches)
    ratio = workload.combine_bytes / workload.dispatch_bytes
    size = np.where((order.kind == BACKWARD)[..., None], [ratio, 1.0], [1.0, ratio])[:, :, None, :]   # [P Q 1 2]
    nic_Bps = jnp.asarray(fabric.nic_Bps, exchanges.load.dtype)
    one = jnp.maximum(exchanges.load / nic_Bps, exchanges.inside_s)
    size = jnp.asarray(size, one.dtype)
    latency_s = jnp.where(exchanges.load > 0, jnp.asarray(fabric.latency_s, one.dtype), 0)
    exchange_s = one[..., None] * size + latency_s[..., None]
    behind = jnp.where(exchanges.optical > 0, (one - exchanges.optical / nic_Bps) * size[..., 0], jnp.inf)
    slack_s = jnp.zeros_like(one) if eps_waits else behind                     # no traffic on circuits: nothing waits
    return Blocks(jnp.asarray(where.present), jnp.asarray(where.layer >= 0), exchange_s, slack_s, exchanges.switch)


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
        spread = min(workload.dp, servers)                     # servers with a replica of one expert
        copies = workload.dp // spread                         # replicas inside one server
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
