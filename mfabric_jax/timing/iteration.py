"""Time of a training iteration: blocks form passes, passes form the pipeline, gradients are all-reduced at the end.

A ring of n context-parallel ranks has n - 1 transfers, each hidden by a part of the attention scores (arXiv
2310.01889). Sharded parameters of the next block are gathered while a block computes. Neither slows all-to-alls down.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Bool, Float, Int

from mfabric_jax import units
from mfabric_jax.checks import of_type, one_of, whole
from mfabric_jax.fabric.design import EpGroup
from mfabric_jax.fabric.site import NVSWITCH_GIGABYTES_PER_S
from mfabric_jax.routing.fixed import away_from_server
from mfabric_jax.support.array_module import Array, align_rank, array_module
from mfabric_jax.support.arrays import floats_or_nan
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY
from mfabric_jax.timing.blocks import BlockCompute, Blocks, ClockTable, Rules, Slots, in_float64, table_of
from mfabric_jax.timing.passes import Exchanges, gradient_slots, order_of, places
from mfabric_jax.timing.timeline import run
from mfabric_jax.traffic.dispatch import between_ranks
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds, backward_of, complete_seconds
from mfabric_jax.workload.memory import step_bytes
from mfabric_jax.workload.recompute import recomputed_of
from mfabric_jax.workload.schedules import FORWARD, WEIGHT
from mfabric_jax.workload.training_code import IssueSeconds
from mfabric_jax.workload.volume import (
    block_params,
    context_bytes,
    context_rounds,
    ffn_all_reduces,
    pp_bytes,
    replica_bytes,
    replica_ring,
    tp_bytes_per_gpu,
)

SecondsByKind = dict[str, Float[Array, "*C P Q L 2"]]  # seconds before a block and after its all-to-alls, by kind
OTHER_KINDS = {  # column of rows, track and label of a picture
    "head": ("compute_s", "compute", "output head"),
    "tp": ("tp_comm_s", "NVSwitch", "TP"),
    "cp": ("tp_comm_s", "EPS", "keys and values"),
    "dp": ("dp_comm_s", "EPS", "parameters"),
    "host": ("compute_s", "compute", "waits for the host"),
}


class FabricRates(NamedTuple):
    """Rates [bytes/s] and delays of a fabric that the timeline needs.

    - `nic_Bps`: a NIC, in all-to-alls; `nvlink_Bps`: a GPU inside its server, `inside_Bps`: the same in all-to-alls
      (None: `nvlink_Bps`); `memory_Bps`: HBM of a GPU, for a counted optimizer step.
    - `alpha_s`: latency of every all-to-all, send and ring step, on top of bytes and propagation; `step_s`: this plus
      propagation.
    - `counts_s`: before the dispatch of a forward pass, ranks tell each other how much they send; early ranks wait for
      the last. Where two passes run together, the last rank computes longer by `counts_s`, which nothing hides.
    - `tp_over`: bandwidth of tensor-parallel collectives over `nvlink_Bps`.
    - `beside`: seconds of transfers beside computation over those alone, where two passes run together.
    - `ring_cores`: part of a GPU's cores that gathers and scatters sharded parameters beside computation.
    - `fixed_s`: of an iteration, which nothing hides.
    - `eps_Bps`, `send_Bps`: a server, for gradients and for sends to the next stage; () or [P].
    - `delay_s`: reconfiguration; `each_s`: further delay for each new circuit; `latency_s`: propagation.
    - `decision_s`: time from a known demand to the choice of circuits.
    - `phase_s`: reconfiguration before sends, and before and after gradients; None: links serve all at the same time.
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
    inside_Bps: Float[Array, ""] | float | None = None
    counts_s: Float[Array, ""] | float = 0.0
    alpha_s: Float[Array, ""] | float = 0.0
    phase_s: Float[Array, ""] | float | None = None
    tp_over: Float[Array, ""] | float = 1.0
    beside: Float[Array, ""] | float = 1.0
    fixed_s: Float[Array, ""] | float = 0.0
    ring_cores: Float[Array, ""] | float = 0.0

    @property
    def step_s(self) -> Float[Array, "..."] | float:
        return self.latency_s + self.alpha_s


def rates_of(group: EpGroup, *, goodput: Any = 1.0, acks: float = 0.0, **fields: Any) -> FabricRates:
    """Return the rates of a group at its bandwidth, of which the fraction `goodput` is payload.

    `acks`: bytes of acknowledgement per byte of data; they slow gradient rings but not sends between stages. Other
    keywords are fields of `FabricRates`.
    """
    nic, eps, send = (bytes_per_s * goodput for bytes_per_s in (group.nic_Bps, group.eps_Bps, group.send_Bps))
    delay_s = fields.pop("delay_s", group.delay_s)
    fields |= {"delay_s": delay_s, "phase_s": delay_s if group.phases else None}
    return FabricRates(nic, eps / (1 + acks), send, **fields)


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
        """Seconds of communication that computation does not hide."""
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

    - `tp_Bps` [P]: bytes/s of a GPU in the tensor-parallel all-reduces of every stage; None: its NVLink.

    Sends between stages and gradients use the electrical fabric. The busiest stage is the one with the most work; the
    rest of the iteration is its bubble. Compiled once; other rates and seconds reuse the program.
    """
    of_type("rates", rates, FabricRates, hint="rates_of(group) makes them")
    dtype = of_type("exchanges", exchanges, Exchanges, hint="timing.exchanges makes them").load.dtype

    def check(field: str, value: Any) -> Any:
        return None if value is None else floats_or_nan(field, value, FROM_0_TO_INFINITY, dtype)

    rates = FabricRates(**{field: check(field, value) for field, value in rates._asdict().items()})
    seconds = jax.tree.map(lambda value: check("seconds", value), seconds)
    tp_Bps = check("tp_Bps", tp_Bps)
    return iterate_compiled(workload, rates, exchanges, seconds, rules, tp_Bps)


@eqx.filter_jit
def iterate_compiled(
    workload: Workload, rates: FabricRates, exchanges: Exchanges, seconds: BlockSeconds, rules, tp_Bps
):
    alone = jax.tree.map(lambda x: jax.numpy.asarray(x)[None], (rates, exchanges, seconds, tp_Bps))
    rates, exchanges, seconds, tp_Bps = alone
    walked = walk(workload, rates, exchanges, seconds, rules=rules, tp_Bps=tp_Bps, every=False)
    return jax.tree.map(lambda x: x[0], iterations_of(walked))


def iterations_of(walked: "Walked") -> Iteration:
    """Return the seconds of iterations [C] by kind, for the busiest stage of each."""
    xp = array_module(walked.reduce_s)
    total = walked.ends.max(-1)
    spent = walked.stage_seconds
    every = xp.stack([*spent.values()]).sum(0)  # [C P]
    busiest = xp.argmax(every, -1)

    def of_busiest(seconds: Any) -> Any:
        return xp.take_along_axis(seconds, busiest[:, None], -1)[:, 0]

    bubble = xp.maximum(total - of_busiest(every), 0)  # not below 0 despite rounding
    parts = {column: of_busiest(seconds) for column, seconds in spent.items()}
    moved_s = walked.moved_s
    return Iteration(total + moved_s, bubble_s=bubble, stage=busiest, placement_s=moved_s, **parts)


class Walked(NamedTuple):
    """All events of iterations [C ..], and seconds after their passes: `reduce_s`, `step_s` [C P], `moved_s` [C]."""

    slots: Slots
    table: ClockTable
    blocks: Blocks
    compute: BlockCompute
    reduce_s: Float[Array, "*C P"]
    others: SecondsByKind
    step_s: Float[Array, "*C P"]
    moved_s: Float[Array, "*C"]

    @property
    def ends(self) -> Float[Array, "*C P"]:
        return self.slots.end.max(axis=(-2, -1)) + self.reduce_s + self.step_s

    @property
    def stage_seconds(self) -> dict[str, Float[Array, "*C P"]]:
        """Seconds of every stage's own work and of its wait for the switch, by column of rows."""
        slots = self.slots
        each = {"compute_s": slots.compute_s, "tp_comm_s": slots.tp_s, "ep_comm_s": slots.exchange_s}
        columns = {column: seconds.sum((-2, -1)) for column, seconds in each.items()}
        columns |= {"dp_comm_s": self.reduce_s, "reconfig_s": slots.paid_s.sum((-2, -1))}
        for kind, seconds in self.others.items():
            column, *_ = OTHER_KINDS[kind]
            columns[column] = columns[column] + seconds.sum((-3, -2, -1))
        return columns | {"compute_s": columns["compute_s"] + self.step_s}


def walk(
    workload: Workload,
    rates: FabricRates,
    exchanges: Exchanges,
    seconds: BlockSeconds,
    *,
    rules: Rules | None = None,
    tp_Bps: Float[Array, "*C P"] | None = None,
    every: bool = True,
) -> Walked:
    """Return when every block of every pass of C iterations runs [C P Q L], and what follows; NumPy or JAX.

    - `exchanges` [C ..]; `rates`, `seconds` () or [C], for servers also [C P]; the rest as in `iterate`.
    - `every`: record all times of `Slots`, for pictures; else only those that the seconds need.
    """
    rules = rules_of(workload, rules)
    xp = array_module(exchanges, rates, seconds, tp_Bps)
    dtype = exchanges.load.dtype
    many = len(exchanges.switch)

    def of_cases(x: Any) -> Any:
        x = xp.asarray(x, dtype)
        x = xp.broadcast_to(x, (many, *x.shape[1:]))
        return x if x.ndim > 1 else x[:, None]

    rates, seconds = jax.tree.map(of_cases, (rates, seconds))  # [C 1] or [C P]
    of_tp: Any = rates.nvlink_Bps if tp_Bps is None else of_cases(tp_Bps)
    compute = compute_of(workload, seconds, of_tp * rates.tp_over)
    blocks = running_blocks(workload, rates, exchanges, compute)
    others = other_seconds_of(workload, rates, compute)
    if others:
        blocks = blocks._replace(others_s=sum(others.values()))
    order, send_s = order_of(workload), send_seconds(workload, rates)
    decision_s: Any = rates.decision_s
    delay_s = _delays(rates, exchanges, send_s)
    table = table_of(order, blocks, compute, delay_s, rules)
    if compute.issued is not None:
        others["host"] = host_seconds(workload, compute.issued, table, blocks.others_s)
        blocks = blocks._replace(others_s=sum(others.values()))
        table = table_of(order, blocks, compute, delay_s, rules)
    slots = run(order, table, send_s, rules, decision_s[:, 0], every=every)
    reduce_s = exposed_reduce_seconds(workload, rates, slots.end, rules)
    ends = reduce_s, others, step_seconds(workload, rates), moving_seconds(rates, exchanges)
    return Walked(slots, table, blocks, compute, *ends)


def walk_alone(
    workload: Workload, rates: FabricRates, exchanges: Exchanges, seconds: BlockSeconds, rules: Rules | None = None
) -> Walked:
    """Return `walk` of one iteration, in float64 on the host, without the axis of iterations."""
    batch = jax.tree.map(lambda x: x[None], in_float64((rates, exchanges, seconds)))
    return jax.tree.map(lambda x: x[0], walk(workload, *batch, rules=rules))


def _delays(rates: FabricRates, exchanges: Exchanges, send_s: Any) -> Any:
    """Return the seconds of reconfigurations, for every all-to-all or for every case."""
    delay_s, each_s = (_wide(x) for x in (rates.delay_s, rates.each_s))
    if exchanges.new_circuits is not None:
        delay_s = delay_s + each_s * exchanges.new_circuits
    return delay_s if rates.phase_s is None else delay_s + _wide(send_s)  # reconfigure, send, reconfigure back


def _wide(x: Any) -> Any:
    """Return [C 1] or [C P] as [C 1 1 1 1] or [C P 1 1 1], to combine with all-to-alls."""
    return x[..., None, None, None]


def rules_of(workload: Workload, rules: Rules | None) -> Rules:
    rules = (rules or Rules())._replace(recompute=workload.recompute)
    whole("overlap_parts", rules.parts)
    return rules


def step_seconds(workload: Workload, rates: FabricRates) -> Float[Array, "*C P"]:
    """Return the seconds of the optimizer step on every stage, limited by GPU memory bandwidth (0 if it is left out),
    and of whatever else occurs once an iteration."""
    memory_Bps: Any = rates.memory_Bps
    counts = workload.optimizer_step != "left-out"
    moved = [step_bytes(workload, stage) if counts else 0.0 for stage in range(workload.pp)]
    return array_module(rates).asarray(moved, memory_Bps.dtype)[None] / memory_Bps + rates.fixed_s


def moving_seconds(rates: FabricRates, exchanges: Exchanges) -> Float[Array, "*C"]:
    """Return the seconds of moving experts between ranks after an iteration, on the slowest stage."""
    if exchanges.moved is None:
        return array_module(rates, exchanges).zeros(len(exchanges.switch), exchanges.load.dtype)
    between = exchanges.moved[..., 0] / rates.nic_Bps
    inside = exchanges.moved[..., 1] / rates.nvlink_Bps
    return array_module(between, inside).maximum(between, inside).max(-1)


def send_seconds(workload: Workload, rates: FabricRates) -> Float[Array, "*C P"]:
    """Return the seconds of activations between stages p and p + 1; last entry: from the last stage to the first."""
    senders = workload.gpus_per_server // workload.tp  # EP ranks on a server
    xp = array_module(rates)
    turn_s = 0.0 if rates.phase_s is None else rates.phase_s
    send_Bps: Any = rates.send_Bps
    send_Bps = xp.broadcast_to(send_Bps, (len(send_Bps), workload.pp))
    slower = xp.minimum(send_Bps, xp.roll(send_Bps, -1, -1))
    return float(pp_bytes(workload) * senders) / slower + rates.step_s + turn_s


def compute_of(workload: Workload, seconds: BlockSeconds, tp_Bps: Float[Array, "*C P"]) -> BlockCompute:
    """Return the seconds of a block's parts, with the tensor-parallel all-reduce."""
    whole = complete_seconds(workload, seconds)
    tp_s = tp_bytes_per_gpu(workload) / tp_Bps
    parts = whole.attention_s, whole.moe_s, whole.dense_s, tp_s, whole.expert_s, whole.scores_s, whole.head_s
    return BlockCompute(*parts, whole.backward, whole.issued)


def running_blocks(workload: Workload, rates: FabricRates, exchanges: Exchanges, compute: BlockCompute) -> Blocks:
    """Return the blocks of all passes with both all-to-alls [C P Q L 2]; backward passes reverse dispatch and combine.

    `compute`: read only if ranks send as soon as their own experts are done.
    """
    xp = array_module(rates, exchanges, compute)
    where, dtype = places(workload), exchanges.load.dtype
    ratio = workload.combine_bytes / workload.dispatch_bytes
    size = xp.asarray(np.where(where.backward[..., None], [ratio, 1.0], [1.0, ratio]), dtype)[None]
    rates = jax.tree.map(_wide, rates)
    if (order := order_of(workload)).paired is not None:
        size = size * xp.where(order.in_pairs[None, ..., None, None], rates.beside, 1)
    sends = (exchanges.load > 0) | (exchanges.inside[..., None] > 0)
    counts_s = xp.where(sends & (~where.backward[None, ..., None] & [True, False]), rates.counts_s, 0)
    latency_s = xp.where(exchanges.load > 0, rates.latency_s, 0) + xp.where(sends, rates.alpha_s, 0) + counts_s
    reconfigures = exchanges.switch[..., 1]
    early = None if exchanges.early is None else Early(*xp.moveaxis(exchanges.early, -2, 0))
    experts_s = 0.0 if early is None else _of_experts(workload, jax.tree.map(_wide, compute))

    def second_earlier(seconds, left, held: Any = False):
        if early is None:
            return seconds
        sooner = ends_earlier(seconds[..., 1], left, early.ahead * experts_s)
        return xp.stack([seconds[..., 0], xp.where(held, seconds[..., 1], sooner)], -1)

    def seconds_of(carried, held: Any = False):
        seconds = second_earlier(carried / rates.nic_Bps * size, early and early.between, held)
        return xp.where(carried > 0, seconds + latency_s, 0)

    inside_Bps = rates.nvlink_Bps if rates.inside_Bps is None else rates.inside_Bps
    inside_s = exchanges.inside[..., None] / inside_Bps * size
    inside_s = second_earlier(inside_s, early and early.inside) + latency_s
    waiting_s = None if exchanges.waiting is None else seconds_of(exchanges.waiting, reconfigures)
    optical_s = seconds_of(exchanges.optical, reconfigures)
    packet_s = seconds_of(exchanges.electrical)
    exchanging, holding = (where.layer >= 0) & (workload.ep > 1), where.experts >= 0
    present, moe = (xp.asarray(flags)[None] for flags in (where.present, exchanging))
    fields = exchanges.switch, exchanges.ahead, inside_s, waiting_s, exchanges.busy
    experts = xp.asarray(holding)[None] if (holding != exchanging).any() else None
    return Blocks(present, moe, optical_s, packet_s, *fields, experts=experts, counts_s=counts_s[..., 0])


def _of_experts(workload: Workload, compute: BlockCompute) -> Any:
    """Return the seconds that routed experts of a pass compute before they answer [.. P Q 1 1]."""
    order, back = order_of(workload), backward_of(compute)
    xp = array_module(compute)
    backward = places(workload).backward[..., None]
    later = False if order.later is None else order.later[..., None, None]
    weights = xp.where(later, xp.zeros_like(back.expert.weights), back.expert.weights)
    return xp.where(backward, back.expert.inputs + weights, compute.expert_s)


def exposed_reduce_seconds(
    workload: Workload, rates: FabricRates, end: Float[Array, "*C P Q L"], rules: Rules
) -> Float[Array, "*C P"]:
    """Return the seconds of the gradient all-reduce that remain after the passes of every stage.

    Blocks queue for it in equal parts as they finish, if it overlaps with the passes.
    """
    reduce_s = all_reduce_seconds(workload, rates)
    if not rules.dp_overlap or workload.sharding not in ("none", "optimizer"):
        return reduce_s
    xp, done = array_module(end, reduce_s), []
    for stage in range(workload.pp):
        position, block = np.transpose(gradient_slots(workload, stage))  # in running order
        left = xp.asarray(np.arange(len(block), 0, -1) / len(block), end.dtype)[None]
        done.append((end[:, stage, position, block] + left * reduce_s[:, stage, None]).max(-1))
    return xp.stack(done, -1) - end.max(axis=(-2, -1))


def all_reduce_seconds(workload: Workload, rates: FabricRates) -> Float[Array, "*C P"]:
    """Return the seconds of the gradient all-reduce of every stage at the end of the iteration, by `replica_ring`.

    Dense gradients are reduced over all servers of the stage, gradients of experts over replicas and copies. Sharded
    optimizer states take a reduce-scatter, then an all-gather of weights. `other_seconds_of` covers further sharding.
    """
    sizes = [replica_bytes(workload, stage, last=True) for stage in range(workload.pp)]
    rings = [replica_ring(workload, size.dense, size.expert) for size in sizes]
    xp = array_module(rates)
    eps_Bps: Any = rates.eps_Bps
    between, inside, steps = (xp.asarray(each, eps_Bps.dtype)[None] for each in zip(*rings, strict=True))
    latency_s = steps * rates.step_s
    if rates.phase_s is not None:  # there and back
        latency_s = latency_s + xp.where(between > 0, 2 * rates.phase_s, 0)
    return between / eps_Bps + inside / rates.nvlink_Bps + latency_s


# ------------------------------------------------------------------------------------- beside attention and experts
def other_seconds_of(workload: Workload, rates: FabricRates, compute: BlockCompute) -> SecondsByKind:
    """Return the seconds of a block, by kind, besides attention, experts and their communication."""
    by_kind = {}
    if workload.head_counted or workload.predicted:
        by_kind["head"] = _head(workload, compute)
    where, every = places(workload), (ffn_all_reduces(workload, moe=moe) for moe in (True, False))
    times = np.where(where.experts >= 0, *every) * where.present
    if times.any():
        by_kind["tp"] = _each_block(
            workload, behind=(times.astype(compute.tp_s.dtype)[None] * _column(compute.tp_s),) * 2
        )
    if workload.cp > 1:
        by_kind["cp"] = _rings(workload, rates, compute)
    if workload.sharding in ("gradients", "parameters"):
        by_kind["dp"] = _parameters(workload, rates, compute)
    return by_kind


def host_seconds(workload: Workload, issued: IssueSeconds, table: ClockTable, others_s: Any) -> Array:
    """Return the seconds by which a host that issues kernels lengthens blocks (`training_code`). Passes of a pair hide
    their all-to-alls, so only their computation counts.

    `others_s`: other seconds of blocks [C P Q L 2]; None: 0. A pass of weight gradients alone issues half of a backward
    pass, as the pass that left them to it does.
    """
    xp, where, order = array_module(table), places(workload), order_of(workload)
    beside = 0.0 if others_s is None else others_s.sum(-1)
    busy = table.compute + table.tp + table.exchange + beside
    forward, backward = (
        xp.where(xp.asarray(where.experts >= 0)[None], _column(moe), _column(dense))
        for moe, dense in zip(issued.moe, issued.dense, strict=True)
    )
    ahead = (order.kind == FORWARD)[..., None]
    halves = np.where(order.kind == WEIGHT, 0.5, 1.0)
    halves = halves if order.later is None else np.where(order.later, 0.5, halves)
    issue_s = xp.where(ahead, forward, backward) * halves[..., None].astype(busy.dtype)
    longer = xp.where(where.present, xp.hypot(busy, issue_s) - busy, 0)
    return xp.stack([0 * longer, longer], axis=-1)


def _column(seconds):
    return seconds[..., None, None]


def _each_block(workload: Workload, before=(0.0, 0.0), behind=(0.0, 0.0)) -> Array:
    xp, where = array_module(before, behind), places(workload)
    runs = where.present & (order_of(workload).kind != WEIGHT)[..., None]
    pairs = [xp.where(where.backward, back, forth) for forth, back in (before, behind)]
    here = [xp.where(runs, seconds, 0) for seconds in pairs]
    return xp.stack(xp.broadcast_arrays(*here), axis=-1)


def _head(workload: Workload, compute: BlockCompute) -> Array:
    last, back = last_blocks(workload), backward_of(compute)
    every = _each_block(workload, before=(0.0, _column(back.head)), behind=(_column(compute.head_s), 0.0))
    return array_module(every).where(last[..., None], every, 0)


def last_blocks(workload: Workload) -> np.ndarray:
    """Return the mask [P Q L] of the model's last block, except in passes of weight gradients alone."""
    last = places(workload).block == sum(workload.place_blocks) - 1
    return last & (order_of(workload).kind != WEIGHT)[..., None]


def _rings(workload: Workload, rates, compute: BlockCompute) -> Array:
    """Return the seconds of context-parallel rings that attention scores do not hide."""
    if workload.ranks_per_server % workload.sequence_ranks == 0:
        once_s = context_bytes(workload) / (workload.tp * rates.nvlink_Bps)
    else:
        of_rank = rates.send_Bps * (workload.tp / workload.gpus_per_server)
        once_s = context_bytes(workload) / of_rank + (workload.cp - 1) * rates.step_s
    hidden_s = (workload.cp - 1) / workload.cp * compute.scores_s
    shown_s = _column(array_module(hidden_s).maximum(once_s - hidden_s, 0))
    again = float(recomputed_of(workload.recompute).whole)  # a recomputed round, before the block's own
    other_rounds = context_rounds(workload) - 1 - again
    return _each_block(workload, before=(shown_s, again * shown_s), behind=(0.0, other_rounds * shown_s))


def _parameters(workload: Workload, rates, compute: BlockCompute) -> Array:
    """Return the seconds by which parameter gathers and gradient scatters lengthen a block: what its computation does
    not hide, or what it takes longer on the cores that are left to it."""
    fetched = workload.gathered_bytes if workload.sharding == "parameters" else 0
    again, back = recomputed_of(workload.recompute), backward_of(compute)
    forward = compute.attention_s, compute.moe_s, compute.dense_s
    parts = back.attention, back.moe, back.dense
    repeats = (float(repeated) for repeated in (again.attention, again.inner, again.inner))
    backward = [part.inputs + part.weights + by * part.again for part, by in zip(parts, repeats, strict=True)]
    xp = array_module(compute)
    moe = places(workload).layer >= 0
    before = []
    passes = (fetched, forward), (fetched + workload.grad_bytes, backward)
    for bytes_each, (attention_s, *inner) in passes:
        waits = []
        for kind, inner_s in zip((True, False), inner, strict=True):
            ring_s = _half(workload, rates, kind, bytes_each)
            waits.append(xp.maximum(ring_s - attention_s - inner_s, rates.ring_cores * ring_s))
        before.append(xp.where(moe, *map(_column, waits)) * float(bytes_each > 0))
    return _each_block(workload, before=tuple(before))


def _half(workload: Workload, rates, moe: bool, bytes_each: float):
    dense, expert = (bytes_each * part for part in block_params(workload, moe))
    ring = replica_ring(workload, dense, expert)
    return (ring.between / rates.eps_Bps + ring.inside / rates.nvlink_Bps + ring.steps * rates.step_s) / 2


# -------------------------------------------------------------------------------------------- unevenly loaded experts
PORTS = ("rank", "server", "pair")
TILE = 128  # rows that a grouped matrix product computes together
ROUNDING = 64  # units in the last place by which a sum of selections may be off


def expert_load(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int = TILE) -> Float[Array, "layer M"]:
    """Return the selections of the busiest rank, relative to a rank under balanced routing [layer M].

    Expert e lives on rank e // (E / R). Selections of each expert are rounded up to a multiple of `tile` (1: none).
    """
    return _rank_load(workload, tokens, tile).max(axis=-1)


def _rank_load(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int) -> Float[Array, "layer M R"]:
    received = tokens.sum(axis=-2)  # [layer M E]
    exactly = 1 - ROUNDING * np.finfo(received.dtype).eps  # a sum of parts that is a whole number of tiles
    rows = array_module(received).ceil(received / tile * exactly) * tile if tile > 1 else received
    return rows.reshape(*rows.shape[:-1], workload.ep, -1).sum(axis=-1) / workload.selections


class Early(NamedTuple):
    """State of a block's second all-to-all once all ranks except the k busiest (k = 1 .. R) have sent their part.

    - `ahead` [... R]: how much earlier the k-th busiest rank is done than the busiest, in units of `expert_load`.
    - `between`, `inside` [... R]: part of the load of the busiest port between and inside servers that is left to send.
    """

    ahead: Float[Array, "... R"]
    between: Float[Array, "... R"]
    inside: Float[Array, "... R"]


def early(workload: Workload, tokens: Float[Array, "layer M R E"], tile: int = TILE, *, ports: str = "rank") -> Early:
    """Return `Early` of every all-to-all; `ports`: a "rank", a "server" or a "pair" of servers limits what is sent."""
    xp = array_module(tokens)
    per_server = workload.ranks_per_server
    others = 1 - np.eye(workload.ep)
    together = 1 if one_of("ports", ports, PORTS) == "rank" else per_server
    load = _rank_load(workload, tokens, tile)
    demand = between_ranks(tokens, 1.0)
    order = xp.argsort(-load, axis=-1, stable=True)
    away = away_from_server(demand, per_server)
    between = (_left_of_pair if ports == "pair" else _left_of_port)(away, order, together)
    inside = _left_of_port((demand - away) * align_rank(others.astype(demand.dtype), demand), order, 1)
    return Early(load.max(axis=-1, keepdims=True) - xp.take_along_axis(load, order, -1), between, inside)


def _left_of_port(demand: Float[Array, "... R R"], order: Int[Array, "... R"], together: int) -> Float[Array, "... R"]:
    """Return the part of the busiest port's load from the first k ranks of `order`; `together`: ranks on one port."""
    xp = array_module(demand)
    (into, out) = _by_port(demand, order, together)
    sent = xp.where(out, into.sum(-2, keepdims=True), 0)
    left = xp.cumsum(xp.concatenate([into, sent], axis=-2), axis=-1).max(axis=-2)
    every = left[..., -1:]
    return xp.where(every > 0, left / xp.where(every > 0, every, 1), 1)


def _left_of_pair(demand: Float[Array, "... R R"], order: Int[Array, "... R"], together: int) -> Float[Array, "... R"]:
    xp = array_module(demand)
    (into, out) = _by_port(demand, order, together)
    left = xp.cumsum(xp.where(out[..., :, None, :], into[..., None, :, :], 0), axis=-1)  # [from to k]
    every = left[..., -1:]
    part = xp.where(every > 0, left / xp.where(every > 0, every, 1), 0).max(axis=(-3, -2))
    return xp.where(part[..., -1:] > 0, part, 1)


def _by_port(
    demand: Float[Array, "... R R"], order: Int[Array, "... R"], together: int
) -> tuple[Array, Bool[Array, "... port R"]]:
    """Return the bytes that a port receives from a rank, and whether the rank sends from it, [... port R]."""
    *more, ranks, _ = demand.shape
    by_rank = array_module(demand).take_along_axis(demand, order[..., None, :], -1)
    into = by_rank.reshape(*more, ranks // together, together, ranks).sum(-2)
    port = np.arange(ranks // together)[:, None]
    sender = (order // together)[..., None, :]
    return into, sender == align_rank(port, sender)


def ends_earlier(seconds: Any, left: Float[Array, "... R"], ahead_s: Float[Array, "... R"]) -> Array:
    """Return the seconds from the busiest rank's end to the end of an all-to-all whose ranks start once they are done.

    It is the maximum over k of the start of the k busiest ranks plus the time of their bytes; `ahead_s`: `ahead` in
    seconds.
    """
    return array_module(seconds, left).maximum(left * seconds[..., None] - ahead_s, 0).max(axis=-1)
