"""What a block takes beside attention, experts, their all-to-alls and attention's all-reduce, where a job has it: the
output head, all-reduces behind experts, keys and values around a context-parallel ring, parameters gathered.

Rings are hidden by the scores of attention: a ring of n ranks has n - 1 transfers, each beside a part of the scores
(arXiv 2310.01889). What replicas gather and scatter of a block is hidden by the computation of a block: the next one is
fetched ahead, so that what takes longer than the block computes is waited for. Neither slows all-to-alls down.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.timing._order import BACKWARD, FORWARD, WEIGHT, order_of
from mfabric_jax.timing.all_to_alls import places
from mfabric_jax.timing.blocks import Compute
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import (
    BACKWARD_OVER_FORWARD,
    BackwardTimes,
    backward_times,
    head_over_attention,
    scores_over_attention,
)
from mfabric_jax.workload.volume import (
    WEIGHT_BYTES,
    block_params,
    context_bytes,
    context_rounds,
    replica_ring,
)

Beside = dict[str, Float[Array, "P Q L 2"]]  # seconds before a block and behind its all-to-alls, by kind
COLUMNS = {"head": "compute_s", "tp": "tp_comm_s", "cp": "tp_comm_s", "dp": "dp_comm_s"}  # where a kind counts


def beside_of(workload: Workload, rates, compute: Compute, dtype) -> Beside:
    """Everything that a job has of it; nothing by default.   - `rates`: `FabricRates`.   - `compute`: () or [P]."""
    rates, compute = jax.tree.map(lambda x: jnp.asarray(x, dtype), (rates, compute))
    found = {}
    if workload.head_counted:
        found["head"] = _head(workload, compute)
    if workload.tp_reduces == "all" and workload.tp > 1:
        found["tp"] = _each_block(workload, behind=(_column(compute.tp_s),) * 2)
    if workload.cp > 1:
        found["cp"] = _rings(workload, rates, compute)
    if workload.sharding in ("gradients", "parameters"):
        found["dp"] = _parameters(workload, rates, compute)
    return found


def _column(seconds):
    """() or [P] beside [P Q L]."""
    return seconds[..., None, None]


def _each_block(workload: Workload, before=(0.0, 0.0), behind=(0.0, 0.0)) -> Array:
    """Seconds of every block [P Q L 2]; both: (forward, backward)."""
    where = places(workload)
    runs = where.present & (order_of(workload).kind != WEIGHT)[..., None]
    pairs = [jnp.where(where.backward, back, forth) for forth, back in (before, behind)]
    here = [jnp.where(runs, seconds, 0) for seconds in pairs]
    return jnp.stack(jnp.broadcast_arrays(*here), axis=-1)


def _head(workload: Workload, compute: Compute) -> Array:
    """Behind the last block of the model forward, before it backward."""
    last = last_blocks(workload)
    head_s = _column(head_over_attention(workload) * compute.attention_s)
    every = _each_block(workload, before=(0.0, BACKWARD_OVER_FORWARD * head_s), behind=(head_s, 0.0))
    return jnp.where(last[..., None], every, 0)


def last_blocks(workload: Workload) -> np.ndarray:
    """Which running blocks are the last of the model [P Q L]."""
    order, blocks = order_of(workload), workload.place_blocks
    found, (*_, count), most = np.zeros_like(places(workload).present), blocks, max(blocks)
    for stage in range(workload.pp):
        for chunk, place in enumerate(workload.held_places(stage)):
            if place == len(blocks) - 1:
                here, kind = order.chunk[stage] == chunk, order.kind[stage]
                found[stage, here & (kind == FORWARD), count - 1] = True
                found[stage, here & (kind == BACKWARD), most - count] = True
    return found


def _rings(workload: Workload, rates, compute: Compute) -> Array:
    """What scores do not hide of them; over NVLink in a server, else over a rank's part of its server's NICs."""
    if workload.ranks_per_server % workload.cp == 0:
        once_s = context_bytes(workload) / (workload.tp * rates.nvlink_Bps)
    else:
        of_rank = rates.send_Bps * (workload.tp / workload.gpus_per_server)
        once_s = context_bytes(workload) / of_rank + (workload.cp - 1) * rates.latency_s
    hidden_s = scores_over_attention(workload) * (workload.cp - 1) / workload.cp * compute.attention_s
    shown_s = _column(jnp.maximum(once_s - hidden_s, 0))
    again = float(workload.recompute == "block")  # before the block's own
    rest = context_rounds(workload) - 1 - again
    return _each_block(workload, before=(shown_s, again * shown_s), behind=(0.0, rest * shown_s))


def _parameters(workload: Workload, rates, compute: Compute) -> Array:
    """What the computation of a block does not hide of gathering its parameters and scattering its gradients."""
    fetched = WEIGHT_BYTES if workload.sharding == "parameters" else 0
    passes = (fetched, BackwardTimes(1.0, 1.0)), (fetched + workload.grad_bytes, backward_times(workload.recompute))
    moe, before = places(workload).layer >= 0, []
    for bytes_each, times in passes:
        attention_s = times.attention * compute.attention_s
        waits = [
            jnp.maximum(_half(workload, rates, kind, bytes_each) - attention_s - times.inner * inner_s, 0)
            for kind, inner_s in ((True, compute.moe_s), (False, compute.dense_s))
        ]
        before.append(jnp.where(moe, *map(_column, waits)) * float(bytes_each > 0))
    return _each_block(workload, before=tuple(before))


def _half(workload: Workload, rates, moe: bool, bytes_each: float):
    """Seconds of a reduce-scatter or all-gather of a block's parameters, so many bytes each, () or [P]."""
    dense, expert = (bytes_each * part for part in block_params(workload, moe))
    ring = replica_ring(workload, dense, expert)
    return (ring.between / rates.eps_Bps + ring.inside / rates.nvlink_Bps + ring.steps * rates.latency_s) / 2
