"""A forward and a backward pass together on a stage: the all-to-alls of one beside the computation of the other.

Two lanes, each one thing after the other: what is computed, and the network. A pair of blocks, in this order:

- computed: attention forward (and its all-reduce), experts backward (gradients of inputs, then of weights), experts
  forward, attention backward (gradients of inputs and their all-reduce, then of weights);
- network: combine gradient, dispatch, dispatch gradient, combine.

What else a block takes is computed with it: before the attention of a forward block and that of a backward one, and, an
output head, behind the combine forward and before its gradient backward.

Each starts when its lane is free and what it needs of its own pass is there; all-to-alls backward need gradients of
inputs alone. Blocks pair up in running order; what a pair lacks (a dense block has no all-to-all) is skipped. Both
passes start when the inputs of both are there, and send what they found when both are over. Of the GPU's cores
`Rules.comm_cores` communicate meanwhile: a pair's computation takes 1 / (1 - comm_cores) times as long. The switch
turns as it does for passes alone, between one all-to-all of the network lane and the next. Source of the order:
arXiv 2412.19437, figure 4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax.schedule._order import Order
from mfabric_jax.schedule.timeline import (
    Blocks,
    Compute,
    Kind,
    Passes,
    Rules,
    Slots,
    _block,
    _Clock,
    _clocks,
    _exchange,
    _parts,
    _turned,
    _waiting,
    merged,
)
from mfabric_jax.workload.compute import BACKWARD_OVER_FORWARD, WEIGHTS_OVER_FORWARD


def run_in_pairs(
    order: Order,
    blocks: Blocks,
    compute: Compute,
    send_s: Float[Array, "P"],
    delay_s,
    rules: Rules,
    decision_s: Any = 0.0,
) -> Slots:
    """`timeline.run` where `order.paired`, which must be static.

    What a pair waits for its all-to-alls and for the switch is in the first slot of its forward pass: `paid_s` is how
    much earlier it were over if all its circuits carried, `exchange_s` the rest that is not computed.
    """
    (stages, passes), dtype = order.kind.shape, blocks.optical_s.dtype
    assert order.paired is not None
    paired = order.paired[order.stage, order.position]
    first = np.flatnonzero(~np.concatenate([[False], paired[:-1]]))
    second, together = first + paired[first], paired[first]
    every = merged(order, blocks, compute, send_s, delay_s)
    decision_s = jnp.asarray(decision_s, dtype)

    def step(state, unit: tuple[Passes, Passes, Array]):
        (end, clocks), (one, two, together) = state, unit
        clock = _Clock(*(x[one.stage] for x in clocks))
        arrived = jnp.maximum(one.arrived(end), jnp.where(together, two.arrived(end), 0))
        clock = clock._replace(now=jnp.maximum(clock.now, arrived))
        given = one.compute, one.kind, decision_s, rules

        def alone(clock):
            clock, slots = lax.scan(lambda c, block: _block(c, block, given), clock, one.blocks)
            return clock, slots, slots

        clock, *slots = lax.cond(together, lambda c: _pair(c, one, two, decision_s, rules), alone, clock)
        clocks = _Clock(*(every.at[one.stage].set(own) for every, own in zip(clocks, clock, strict=True)))
        end = end.at[one.stage, one.position].set(clock.now).at[two.stage, two.position].set(clock.now)
        return (end, clocks), slots

    start = jnp.zeros((stages, passes), dtype), _clocks(stages, dtype)
    units = jax.tree.map(lambda x: x[first], every), jax.tree.map(lambda x: x[second], every), jnp.asarray(together)
    ones, twos = lax.scan(step, start, units)[1]
    at, behind = ((order.stage[some], order.position[some]) for some in (first, second[together]))
    return Slots(
        *(
            jnp.zeros((stages, passes, *x.shape[1:]), x.dtype).at[at].set(x).at[behind].set(y[together])
            for x, y in zip(ones, twos, strict=True)
        )
    )


class _Lanes(NamedTuple):
    """Of a pair: when computation is free, when each of the two passes goes on, and the network with its switch."""

    free: Float[Array, ""]
    forward: Float[Array, ""]
    backward: Float[Array, ""]
    network: _Clock


def _pair(clock: _Clock, one: Passes, two: Passes, decision_s, rules: Rules) -> tuple[_Clock, Slots, Slots]:
    """Both passes, once with the switch and once as if all circuits carried."""
    slower = 1 / (1 - rules.comm_cores)
    compute = jax.tree.map(lambda part: part * slower, one.compute)._replace(tp_s=one.compute.tp_s)

    def both(switches: Bool[Array, ""]):
        network = clock._replace(active=jnp.where(switches, clock.active, -jnp.inf), anew=clock.anew & switches)
        lanes = _Lanes(clock.now, clock.now, clock.now, network)
        given = compute, decision_s, rules, switches
        lanes, slots = lax.scan(lambda c, pair: _round(c, pair, given), lanes, (one.blocks, two.blocks))
        over = jnp.maximum(lanes.free, jnp.maximum(lanes.forward, lanes.backward))
        return lanes.network._replace(now=over), slots

    ways = jax.vmap(both)(jnp.asarray([True, False]))
    (after, (forward, backward)), calm = jax.tree.map(lambda x: x[0], ways), ways[0].now[1]
    paid = after.now - calm
    work = sum(part.sum() for slots in (forward, backward) for part in (slots.compute_s, slots.tp_s))
    exposed = calm - clock.now - work - _beside(one) - _beside(two)
    forward = forward._replace(exchange_s=forward.exchange_s.at[0].set(exposed), paid_s=forward.paid_s.at[0].set(paid))
    return after, forward, backward


def _beside(one: Passes) -> Any:
    """What the blocks of a pass take beside computation, all-reduces of attention and all-to-alls."""
    blocks = one.blocks[0]
    return 0.0 if blocks.beside_s is None else jnp.where(blocks.present[:, None], blocks.beside_s, 0).sum()


def _round(lanes: _Lanes, pair: tuple, given: tuple) -> tuple[_Lanes, tuple[Slots, Slots]]:
    """One forward and one backward block."""
    ((one, delay_one), (two, delay_two)), (compute, decision_s, rules, switches) = pair, given
    no, yes = jnp.asarray(False), jnp.asarray(True)
    ahead_of, behind_of = (_parts(block, compute, Kind(way), no, rules) for block, way in ((one, no), (two, yes)))
    weights_s = behind_of.inner * (WEIGHTS_OVER_FORWARD / BACKWARD_OVER_FORWARD)
    attention_weights_s = jnp.where(two.present, compute.attention_weights_s, 0)

    def send(network, block, which, ready, told, delay_s):
        network = _turned(network, block.switch[which] & block.moe & switches, told, delay_s)
        network = network._replace(now=jnp.maximum(network.quiet, ready))
        record = network.now, told, network.active, _waiting(network, block)[which]
        network, _ = _exchange(network, block, which, block.moe, rules)
        return network, jnp.where(block.moe, network.now, ready), record

    def compute_for(present, free, ready, inputs_s, rest_s: Any = 0.0):
        start = jnp.maximum(free, ready)
        return (
            jnp.where(present, start, ready),
            jnp.where(present, start + inputs_s, ready),
            (jnp.where(present, start + inputs_s + rest_s, free)),
        )

    free, forward, backward, network = lanes
    lead = two.present & (behind_of.lead > 0)  # backward through the output head, where it is counted
    begin_lead, backward, free = compute_for(lead, free, backward, behind_of.lead)
    begin, forward, free = compute_for(one.present, free, forward, ahead_of.lead)
    known = forward + decision_s
    network, backward, first_back = send(network, two, 0, backward, network.quiet, delay_two[0])
    over_back = backward
    begin_back, backward, free = compute_for(two.present, free, backward, behind_of.inner - weights_s, weights_s)
    told = jnp.where(one.ahead, network.quiet, jnp.maximum(network.quiet, known))
    network, forward, first = send(network, one, 0, forward, told, delay_one[0])
    over = forward
    inner, forward, free = compute_for(one.present, free, forward, ahead_of.inner)
    inner_over = forward
    network, backward, second_back = send(network, two, 1, backward, network.quiet, delay_two[1])
    ended_back, rest_s = backward, behind_of.behind - attention_weights_s
    _, backward, free = compute_for(two.present, free, backward, rest_s, attention_weights_s)
    end_of = jnp.where(two.present, free, backward)
    told = jnp.maximum(network.quiet, known)
    network, forward, second = send(network, one, 1, forward, told, delay_one[1])
    sent_over, last = forward, one.present & (ahead_of.behind > 0)
    _, forward, free = compute_for(last, free, forward, ahead_of.behind)

    def slots(begin, end, sent, over, inner, parts):
        start, turn, active, waiting = (jnp.stack(both) for both in zip(*sent, strict=True))
        spent = parts.compute, parts.tp, jnp.zeros_like(begin), jnp.zeros_like(begin)
        return Slots(begin, end, start, jnp.stack(over), jnp.stack(inner), turn, active, waiting, *spent)

    begin_of = jnp.where(lead, begin_lead, jnp.where(two.moe, first_back[0], begin_back))
    inner_of = begin_back, begin_back + behind_of.inner
    ones = slots(begin, forward, (first, second), (over, sent_over), (inner, inner_over), ahead_of)
    twos = slots(begin_of, end_of, (first_back, second_back), (over_back, ended_back), inner_of, behind_of)
    return _Lanes(free, forward, backward, network), (ones, twos)
