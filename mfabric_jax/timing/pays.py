"""When a reconfiguration pays: before the first all-to-all of a block and pass, before the second, or not at all.

Where circuits depend on the demand alone a region only ever has those of its own demands: how long every demand takes
with the circuits of every other is one batch, and a pass through the blocks looks them up.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.timing.all_to_alls import Exchanges, Places
from mfabric_jax.timing.block_table import BASES, SECONDS, factors
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds, scores_over_attention
from mfabric_jax.workload.volume import tp_bytes_per_gpu

Seconds = tuple[Array, Array]  # when circuits and when packet switches are through, at unit bandwidth
RELAY_TOLERANCE = 1e-3  # what relay shares are from the best
PAIRS_A_SLOT = 16  # more pairs of demands than so many for each slot: all-to-alls are timed one after the other


class TradeOff(NamedTuple):
    """What a reconfiguration is weighed against under "pays".

    - `delay_s`: of the switch.   - `each_s`: further delay for every circuit set up anew.   - `nic_Bps`: of a NIC.
    - `size` [2]: of the two forward all-to-alls, over dispatch.
    - `inner_s` [3]: what experts compute between them, by `Places.kind`: forward, backward, gradients of inputs alone.
    - `behind_s` [3]: what a block computes behind its last all-to-all; forward nothing.
    - `tolerance`: what gains at most that part of the two all-to-alls gains nothing.
    - `expert_s` [3]: of `inner_s`, what grows with `busy`, the `expert_load` of every block (1: balanced).
    """

    delay_s: Float[Array, ""] | float
    nic_Bps: Float[Array, ""] | float
    size: Float[Array, "2"]
    inner_s: Float[Array, "3"]
    behind_s: Float[Array, "3"]
    each_s: Float[Array, ""] | float = 0.0
    tolerance: Float[Array, ""] | float = 0.0
    expert_s: Float[Array, "3"] | float = 0.0
    busy: Float[Array, "P Q L"] | float = 1.0


def trade_off_of(workload: Workload, rates: Any, seconds: BlockSeconds, routing: str = "unsplit") -> TradeOff:
    """What a job at these `FabricRates` and seconds of a block weighs it against."""
    reduces = 2 if workload.tp_reduces == "all" else 1
    reduce_s = reduces * tp_bytes_per_gpu(workload) / rates.nvlink_Bps
    dtype = jnp.result_type(seconds.attention_s * reduce_s)
    size = jnp.asarray((1.0, workload.combine_bytes / workload.dispatch_bytes), dtype)
    inner, behind = (factors(workload.recompute)[:3, SECONDS["run", run, False]] for run in ("inner", "behind"))
    of_attention = behind[:, BASES.index("attention")] + behind[:, BASES.index("scores")] * scores_over_attention(
        workload
    )
    behind_s = jnp.asarray(of_attention, dtype) * seconds.attention_s
    behind_s = behind_s + jnp.asarray(behind[:, BASES.index("tp")], dtype) * reduce_s
    times = jnp.asarray(inner[:, BASES.index("inner")], dtype)
    inner_s, expert_s = (times * jnp.asarray(part, dtype) for part in (seconds.moe_s, seconds.expert_s))
    tolerance = RELAY_TOLERANCE if routing == "relay" else 0.0
    return TradeOff(rates.delay_s, rates.nic_Bps, size, inner_s, behind_s, rates.each_s, tolerance, expert_s)


def what_pays(
    trade_off: TradeOff,
    kept: Seconds,
    fresh: Seconds,
    anew: Float[Array, ""],
    kind: Int[Array, ""],
    behind: Int[Array, ""],
    busy: Float[Array, ""],
) -> Bool[Array, "2"]:
    """Whether each of the two all-to-alls of a block has fresh circuits: what takes least until the second is over.

    - `kept`, `fresh`: with the circuits in place, and with those of the demand.   - `anew`: circuits that these set up.
    - `kind`, `behind`: `Places.kind` of the pass, and of the block before (0: one without all-to-alls).
    - `busy`: its `expert_load`.
    """
    # Hidden is what this block's own computation covers, and packets that take longer than circuits. Idle time of the
    # pipeline, passes of gradients of weights, propagation, overlap in parts, the time of a decision, circuits that
    # carry while others turn, all-to-alls computed again, the output head, waits for a ring of context and for
    # gathered parameters are not foreseen.
    dtype = kept[0].dtype
    delay_s, each_s, nic_Bps = (jnp.asarray(x, dtype) for x in (trade_off.delay_s, trade_off.each_s, trade_off.nic_Bps))
    delay_s = delay_s + each_s * anew
    old, optical, new = jnp.maximum(*kept) / nic_Bps, fresh[0] / nic_Bps, jnp.maximum(*fresh) / nic_Bps
    backward = kind > 0
    one, two = jnp.where(backward, trade_off.size[::-1], trade_off.size)
    ready = jnp.where(backward, trade_off.behind_s[behind], 0)  # known before, and time to turn
    computed = (trade_off.inner_s + (busy - 1) * trade_off.expert_s)[kind]

    def paid(hidden, size):
        return jnp.where(optical > 0, jnp.maximum(delay_s - hidden - size * (new - optical), 0), 0)

    now = one * new + paid(ready, one) + two * new  # summed alike: ties stay ties
    later = one * old + paid(computed, two) + two * new
    never = (one * old + two * old) * (1 - trade_off.tolerance)
    first = now < jnp.minimum(later, never)
    return jnp.stack([first, first | (later < never)])


def circuits_anew(before: Int[Array, "S S"], after: Int[Array, "S S"], dtype: Any = None) -> Float[Array, ""]:
    """Circuits that are set up anew."""
    found = jnp.maximum(after - before, 0).sum((-2, -1)) / 2
    return found if dtype is None else found.astype(dtype)


class Own(NamedTuple):
    """Static: the demands of every stage, [P N] as layer times micro-batches plus micro-batch, the last again where a
    stage has fewer; and which of them each slot has, [P Q L]."""

    demands: np.ndarray
    slots: np.ndarray


def demands_of_stages(where: Places, layers: int, micro_batches: int) -> Own:
    """Which demands the slots of every stage ask for."""
    layer, micro_batch = where.pick(layers, micro_batches)
    names, moe = layer * micro_batches + micro_batch, where.layer >= 0
    each = [np.unique(names[stage][moe[stage]]) for stage in range(len(names))]
    each = [own if len(own) else np.zeros(1, int) for own in each]  # a stage without experts
    most = max(map(len, each))
    slots = [np.searchsorted(own, np.where(moe[stage], names[stage], own[0])) for stage, own in enumerate(each)]
    return Own(np.stack([np.pad(own, (0, most - len(own)), "edge") for own in each]), np.stack(slots))


def few_pairs(own: Own) -> bool:
    """Whether it is less work to time all pairs of a stage's demands at once than all-to-alls one after the other."""
    return own.demands.shape[1] ** 2 <= PAIRS_A_SLOT * own.slots[0].size


def where_it_pays(
    where: Places,
    unit: Region,
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    policy: Policy,
    key: Any,
    parts: Callable[[Region, Circuits, Array], Seconds],
    trade_off: TradeOff,
    own: Own,
    *,
    cold: bool = False,
    both: bool = False,
) -> Exchanges:
    """The all-to-alls of an iteration whose circuits turn where that pays; `switched` for a policy without a memory.

    - `cold`: circuits are uniform before it, not as an iteration like this leaves them.
    - `both`: the two all-to-alls of a block have one set of circuits.
    """
    start = uniform(None, unit).circuits.count
    every = jnp.concatenate([demand.reshape(-1, *even.shape), even[None]])
    counts = jax.vmap(lambda one: policy(one, unit, previous=None, key=key).circuits.count)(every).astype(start.dtype)
    counts = jnp.concatenate([counts, start[None]])  # the last: where nothing ran before
    stages, number = own.demands.shape
    has = np.concatenate([own.demands, np.full((stages, 1), len(counts) - 1)], axis=1)  # [P N+1]
    sent = np.broadcast_to(own.demands[:, None], (stages, number + 1, number)).reshape(-1)
    carries = np.broadcast_to(has[..., None], (stages, number + 1, number)).reshape(-1)
    sent, carries = np.append(sent, len(every) - 1), np.append(carries, len(counts) - 2)  # the balanced one
    found = jax.vmap(lambda c, d: parts(unit, Circuits(c), d))(counts[carries], every[sent])
    table = tuple(part[:-1].reshape(stages, number + 1, number) for part in found)  # circuits, demand
    moe, kinds = where.layer >= 0, jnp.asarray(where.kind)

    def one_stage(table, counts, *slots):
        def serve(state, slot):
            before, behind = state
            own, moe, kind, busy = slot
            kept, fresh = (tuple(part[at, own] for part in table) for at in (before, own))
            anew = circuits_anew(counts[before], counts[own], found[0].dtype)
            turned = what_pays(trade_off, kept, fresh, anew, kind, behind, busy)
            turned = jnp.where(both, turned[0], turned) & moe
            has = jnp.where(turned, own, before)
            return (has[1], jnp.where(moe, kind, 0)), (has, jnp.stack([before, has[0]]))

        def iteration(before, _):
            (after, _), served = lax.scan(serve, (before, jnp.zeros((), kinds.dtype)), slots)
            return after, served

        begin = jnp.asarray(number, slots[0].dtype)
        return jax.tree.map(lambda x: x[-1], lax.scan(iteration, begin, None, length=1 if cold else 2)[1])

    busy = jnp.broadcast_to(jnp.asarray(trade_off.busy, found[0].dtype), moe.shape)
    slots = (jnp.asarray(x).reshape(stages, -1) for x in (own.slots, moe, kinds, busy))
    served, before = jax.vmap(one_stage)(table, counts[has], *slots)
    served, before = (x.reshape(*moe.shape, 2) for x in (served, before))
    stage = np.arange(stages)[:, None, None, None]
    optical, electrical = (jnp.where(moe[..., None], part[stage, served, own.slots[..., None]], 0) for part in table)
    count, before = (counts[jnp.asarray(has)[stage, x]] for x in (served, before))
    switch, anew = jnp.any(count != before, axis=(-2, -1)), circuits_anew(before, count, optical.dtype)
    calm_s = jnp.maximum(found[0][-1], found[1][-1])
    nothing = jnp.zeros_like(optical[..., 0])
    return Exchanges(optical, electrical, nothing, switch, jnp.asarray(where.backward), count, calm_s, anew=anew)
