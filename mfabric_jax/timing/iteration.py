"""A training iteration: blocks into passes, passes into the pipeline, gradients all-reduced at the end."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import whole
from mfabric_jax.fabric.design import NVSWITCH_GIGABYTES_PER_S, EpGroup, as_data
from mfabric_jax.timing._beside import COLUMNS, Beside, beside_of
from mfabric_jax.timing._order import FORWARD, order_of
from mfabric_jax.timing.all_to_alls import Exchanges, places
from mfabric_jax.timing.blocks import Blocks, Compute, Rules, Slots
from mfabric_jax.timing.timeline import run
from mfabric_jax.timing.uneven import Early, ends_earlier
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import (
    BACKWARD_OVER_FORWARD,
    WEIGHTS_OVER_FORWARD,
    BlockSeconds,
    scores_over_attention,
)
from mfabric_jax.workload.memory import step_bytes
from mfabric_jax.workload.volume import pp_bytes, replica_bytes, replica_ring, tp_bytes_per_gpu


class FabricRates(NamedTuple):
    """What the timeline needs to know of a fabric.

    - `nic_Bps`: bytes/s of a NIC.   - `eps_Bps`, `send_Bps`: bytes/s of a server for gradients, and to the next stage
      (one number, or [P] of the slowest server of every stage).   - `nvlink_Bps`: bytes/s of a GPU inside its server.
    - `delay_s`: reconfiguration.   - `latency_s`: propagation along a path between servers.   - `each_s`: further delay
      for every circuit set up anew.   - `decision_s`: a region's circuits are known so long after its demand.
    - `memory_Bps`: bytes/s that a GPU reads and writes of its HBM, in a counted optimizer step.
    """

    nic_Bps: Float[Array, ""] | float
    eps_Bps: Float[Array, ""] | Float[Array, "P"] | float
    send_Bps: Float[Array, ""] | Float[Array, "P"] | float
    nvlink_Bps: Float[Array, ""] | float = units.gigabytes_per_s(NVSWITCH_GIGABYTES_PER_S)
    delay_s: Float[Array, ""] | float = 0.0
    latency_s: Float[Array, ""] | float = 0.0
    each_s: Float[Array, ""] | float = 0.0
    decision_s: Float[Array, ""] | float = 0.0
    memory_Bps: Float[Array, ""] | float = float("inf")


def rates_of(group: EpGroup, *, goodput: Any = 1.0, acks: float = 0.0, **rest: Any) -> FabricRates:
    """The rates of a group at its bandwidth, of which `goodput` is payload; `rest`: other fields of `FabricRates`.

    - `acks`: what comes back of the data. Every server of a ring receives as much as it sends, so acknowledgements take
      their part of it; a send between stages has its direction to itself; in all-to-alls they are counted before.
    """
    nic, eps, send = (bytes_per_s * goodput for bytes_per_s in (group.nic_Bps, group.eps_Bps, group.send_Bps))
    return FabricRates(nic, eps / (1 + acks), send, **{"delay_s": group.delay_s} | rest)


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
    placement_s: Float[Array, ""] | float = 0.0

    @property
    def exposed_comm_s(self):
        """Communication that nothing hides: tensor (and context), expert and data parallel, and experts that move."""
        return self.tp_comm_s + self.ep_comm_s + self.dp_comm_s + self.placement_s


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
    total, spent = walked.ends.max(), walked.spent
    parts = jnp.stack([*spent.values()])
    busiest = jnp.argmax(parts.sum(axis=0))
    bubble = jnp.maximum(total - parts[:, busiest].sum(), 0)  # rounding may say less
    found = {column: seconds[busiest] for column, seconds in spent.items()}
    moved_s = walked.moved_s
    return Iteration(total + moved_s, bubble_s=bubble, stage=busiest, placement_s=moved_s, **found)


class Walked(NamedTuple):
    """Everything that happens in one iteration: blocks and what is known of them; `reduce_s` [P], for which every
    stage's gradients are still all-reduced when its passes are through; what blocks take `beside`; `step_s` [P] of the
    optimizer behind all (None: it is left out); `moved_s`: for which experts then move."""

    slots: Slots
    blocks: Blocks
    compute: Compute
    reduce_s: Float[Array, "P"]
    beside: Beside
    step_s: Float[Array, "P"] | None
    moved_s: Float[Array, ""]

    @property
    def ends(self) -> Float[Array, "P"]:
        """When every stage is through with everything but experts that move."""
        ends = self.slots.end.max(axis=(1, 2)) + self.reduce_s
        return ends if self.step_s is None else ends + self.step_s

    @property
    def spent(self) -> dict[str, Float[Array, "P"]]:
        """Seconds of every stage's own work and waiting for its switch, by column of rows."""
        slots = self.slots
        each = {"compute_s": slots.compute_s, "tp_comm_s": slots.tp_s, "ep_comm_s": slots.exchange_s}
        found = {column: seconds.sum(axis=(1, 2)) for column, seconds in each.items()}
        found |= {"dp_comm_s": self.reduce_s, "reconfig_s": slots.paid_s.sum(axis=(1, 2))}
        for kind, seconds in self.beside.items():
            found[COLUMNS[kind]] = found[COLUMNS[kind]] + seconds.sum(axis=(1, 2, 3))
        return found if self.step_s is None else found | {"compute_s": found["compute_s"] + self.step_s}


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
    compute = compute_of(workload, seconds, rates.nvlink_Bps if tp_Bps is None else tp_Bps, dtype)
    blocks = running_blocks(workload, rates, exchanges, compute.expert_s)
    more = beside_of(workload, rates, compute, dtype)
    if more:
        blocks = blocks._replace(beside_s=sum(more.values()))
    send_s = send_seconds(workload, rates, dtype)
    slots = run(order_of(workload), blocks, compute, send_s, delay_s, rules, decision_s)
    reduce_s = reduced_behind(workload, rates, slots, dp_overlap=rules.dp_overlap)
    step_s = step_seconds(workload, rates, dtype) if workload.optimizer_step != "left-out" else None
    return Walked(slots, blocks, compute, reduce_s, more, step_s, moving_seconds(rates, exchanges))


def step_seconds(workload: Workload, rates: FabricRates, dtype) -> Float[Array, "P"]:
    """The optimizer's step on every stage: what it moves of a GPU's memory, at full speed."""
    moved = jnp.asarray([step_bytes(workload, stage) for stage in range(workload.pp)], dtype)
    return moved / jnp.asarray(rates.memory_Bps, dtype)


def moving_seconds(rates: FabricRates, exchanges: Exchanges) -> Float[Array, ""]:
    """How long experts move between ranks after an iteration [s]: until the slowest stage is through."""
    if exchanges.moved is None:
        return jnp.zeros((), exchanges.load.dtype)
    between, inside = jnp.moveaxis(exchanges.moved, -1, 0)
    dtype = exchanges.moved.dtype
    return jnp.maximum(between / jnp.asarray(rates.nic_Bps, dtype), inside / jnp.asarray(rates.nvlink_Bps, dtype)).max()


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
    apart = workload.order.splits or workload.overlap_passes  # gradients of weights come apart from those of inputs
    scores_s = scores_over_attention(workload) * attention_s if apart else 0.0
    return Compute(attention_s, moe_s, dense_s, tp_s, expert_s, scores_s)


def running_blocks(workload: Workload, rates: FabricRates, exchanges: Exchanges, expert_s: Any = 0.0) -> Blocks:
    """The blocks of all passes with their two all-to-alls [P Q L 2].

    Forward: dispatch, combine. Backward: combine-gradient, dispatch-gradient. A combine moves elements of its own
    size. Between and inside servers run at the same time. `expert_s`: of `BlockSeconds`, for ranks that start early;
    circuits that turn in between carry nothing early.
    """
    where, dtype = places(workload), exchanges.load.dtype
    ratio = workload.combine_bytes / workload.dispatch_bytes
    size = jnp.asarray(np.where(where.backward[..., None], [ratio, 1.0], [1.0, ratio]), dtype)
    nic_Bps = jnp.asarray(rates.nic_Bps, dtype)
    latency_s = jnp.where(exchanges.load > 0, jnp.asarray(rates.latency_s, dtype), 0)
    turns = exchanges.switch[..., 1]
    early = None if exchanges.early is None else Early(*jnp.moveaxis(exchanges.early, -2, 0))

    def second_earlier(seconds, left, held: Any = False):
        if early is None:
            return seconds
        factor = np.where(where.backward, BACKWARD_OVER_FORWARD, 1.0)[..., None]
        if (later := order_of(workload).later) is not None:
            factor = factor - WEIGHTS_OVER_FORWARD * later[..., None, None]
        ahead_s = early.ahead * jnp.asarray(factor, dtype) * jnp.broadcast_to(jnp.asarray(expert_s, dtype), ())
        sooner = ends_earlier(seconds[..., 1], left, ahead_s)
        return seconds.at[..., 1].set(jnp.where(held, seconds[..., 1], sooner))

    def seconds_of(carried, held: Any = False):
        seconds = second_earlier(carried / nic_Bps * size, early and early.between, held)
        return jnp.where(carried > 0, seconds + latency_s, 0)

    inside_s = exchanges.inside[..., None] / jnp.asarray(rates.nvlink_Bps, dtype) * size
    inside_s = second_earlier(inside_s, early and early.inside) + latency_s
    waiting_s = None if exchanges.waiting is None else seconds_of(exchanges.waiting, turns)
    optical_s, packet_s = seconds_of(exchanges.optical, turns), seconds_of(exchanges.electrical)
    present, moe = jnp.asarray(where.present), jnp.asarray(where.layer >= 0)
    rest = exchanges.switch, exchanges.ahead, inside_s, waiting_s, exchanges.busy
    experts = jnp.asarray(where.experts >= 0) if (where.experts != where.layer).any() else None
    return Blocks(present, moe, optical_s, packet_s, *rest, experts=experts)


def reduced_behind(workload: Workload, rates: FabricRates, slots: Slots, *, dp_overlap=False) -> Float[Array, "P"]:
    """Seconds for which every stage's gradients are still all-reduced when its passes are through."""
    reduce_s = all_reduce_seconds(workload, rates, slots.end.dtype)
    if dp_overlap and workload.sharding in ("none", "optimizer"):
        return reduced_by(workload, slots.end, reduce_s) - slots.end.max(axis=(1, 2))
    return reduce_s


def reduced_by(workload: Workload, end: Float[Array, "P Q L"], reduce_s: Float[Array, "P"]) -> Float[Array, "P"]:
    """When every stage's gradients are reduced if each block's, an equal part of all, queue up as they are ready."""
    where, order = places(workload), order_of(workload)
    done = []
    for stage in range(workload.pp):
        last = [
            np.flatnonzero((order.kind[stage] != FORWARD) & (order.chunk[stage] == chunk))[-1]
            for chunk in range(len(workload.held_places(stage)))
        ]
        slots = [(q, block) for q in sorted(last) for block in np.flatnonzero(where.present[stage, q])]
        ready = end[stage][tuple(np.transpose(slots))]  # in running order
        behind = np.arange(len(slots), 0, -1) / len(slots)
        done.append((ready + jnp.asarray(behind, end.dtype) * reduce_s[stage]).max())
    return jnp.stack(done)


def all_reduce_seconds(workload: Workload, rates: FabricRates, dtype=None) -> Float[Array, "P"]:
    """Gradient all-reduce of every stage at the end of the iteration [s].

    `replica_ring`, over all NICs that reach the electrical fabric. Dense gradients over all servers of the stage, those
    of experts over their DP replicas and their copies. Every step around a ring takes its propagation, too. Where
    replicas share out optimizer states: a reduce-scatter of gradients, then an all-gather of updated weights. What they
    do for every micro-batch where they share out more is `beside`.
    """
    sizes = [replica_bytes(workload, stage, last=True) for stage in range(workload.pp)]
    rings = [replica_ring(workload, size.dense, size.expert) for size in sizes]
    between, inside, steps = zip(*rings, strict=True)
    eps_Bps = jnp.asarray(rates.eps_Bps)
    eps_Bps = eps_Bps.astype(dtype or eps_Bps.dtype)
    latency_s = jnp.asarray(steps, eps_Bps.dtype) * jnp.asarray(rates.latency_s, eps_Bps.dtype)
    between, inside = jnp.asarray(between, eps_Bps.dtype), jnp.asarray(inside, eps_Bps.dtype)
    return between / eps_Bps + inside / rates.nvlink_Bps + latency_s
