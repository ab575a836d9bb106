"""Which circuits every all-to-all of a region finds, and how long it takes with them.

- `First`: what the first all-to-all of a forward pass finds, whose demand is only known when the gate has run. Backward
  (but for "reuse") and for the second all-to-all forward, demand is known and circuits are chosen for it. Source: arXiv
  2501.03905, which blocks in simulations and names reuse, random circuits and prediction; "pays" is ours.
- `Span`: for how long circuits stay set. One set for longer than an all-to-all is chosen for all that is sent in its
  span: a policy that takes many demands gets them, each weighted by its degree bound in seconds; any other their mean.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import partial_eval
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, random_circuits, takes_many, uniform
from mfabric_jax.routing import Plan, degree_bound, relay_shares
from mfabric_jax.routing.region import part_times, parts_that_wait, relay_part_bounds
from mfabric_jax.timing.blocks import BASES, SECONDS, factors
from mfabric_jax.timing.passes import Exchanges, Places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds, scores_over_attention
from mfabric_jax.workload.volume import tp_bytes_per_gpu

# --------------------------------------------------------------------------------------- what a turn is weighed against
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


# -------------------------------------------------------------------------------------------------- the first of a pass
FIRST = {
    "block": "wait for the gate, then for the switch",
    "reuse": "keep the circuits of whatever ran before, backward, too; switch while the experts run",
    "random": "random circuits, set while attention runs; switch again while the experts run",
    "predict": "circuits for the predicted demand, set while attention runs; switch again while the experts run",
    "pays": "before either all-to-all of a block and pass, or not at all: whatever ends the two first",
}
AHEAD = ("random", "predict")


class First(eqx.Module):
    """What the first all-to-all of a forward pass finds: `rule` (static) of `FIRST`.

    - `predicted` [layer M R E]: selections, for "predict".   - `trade_off`: for "pays".
    - `scenarios` (static): so many demands that may be true are drawn of every predicted one, for a policy that takes
      many; 0: none.   - `sigma`: of the prediction's errors (`traffic.likely_demands`), for these.
    - `cold` (static): circuits are uniform when the iteration begins, not as an iteration before left them.
    """

    rule: str = eqx.field(static=True, default="block")
    predicted: Any = None
    trade_off: TradeOff | None = None
    cold: bool = eqx.field(static=True, default=False)
    scenarios: int = eqx.field(static=True, default=0)
    sigma: Any = None

    def __check_init__(self):
        one_of("first", self.rule, FIRST)
        if self.rule == "predict" and self.predicted is None:
            raise InputError("first 'predict' needs the predicted tokens [layer M R E], got none.")
        if self.scenarios and self.sigma is None:
            raise InputError("scenarios of a prediction need sigma, the size of its errors, got none.")
        if self.rule == "pays" and self.trade_off is None:
            raise InputError("first 'pays' needs the trade_off (delay, bandwidth, computation), got none.")


BLOCK = First()


class SlotsToServe(NamedTuple):
    """Every block of every pass [P Q L], in the order in which each stage runs them, its demand, its `Places.kind` and
    its `expert_load`."""

    demand: Float[Array, "P Q L S S"]
    guess: Float[Array, "P Q L S S"] | Float[Array, "P Q L K S S"]
    moe: Bool[Array, "P Q L"]
    kind: Int[Array, "P Q L"]
    busy: Float[Array, "P Q L"]


def choose(region: Region, policy: Policy, slots: SlotsToServe, parts: Callable, first: First, key, *, both=False):
    """Circuits of every all-to-all, and those before it, [P Q L 2 S S]; `both`: one set for the two of a block.

    Before its first block the region has the circuits that an iteration like this one leaves, which itself began with
    the uniform topology; under `first.cold` that topology.
    """
    shape = slots.moe.shape
    if first.rule == "random" and key is None:
        raise InputError("first 'random' needs a key, got none.")
    steps = jax.tree.map(lambda x: x.reshape(shape[0], -1, *x.shape[3:]), slots)
    keys = None if key is None else jax.random.split(key, steps.moe.shape)
    start = uniform(None, region).circuits.count

    def one_stage(steps: SlotsToServe, keys):
        def pair_of(slot, before, behind):
            pair = _pair(region, policy, slot[0], parts, first, slot[1], before, behind)
            return jnp.stack((pair[0], pair[0]) if both else pair).astype(before.dtype)

        return _chain(pair_of, start, (steps, keys), steps.moe, steps.kind, first.cold)

    count, before = jax.vmap(one_stage)(steps, keys)
    return count.reshape(*shape, 2, *start.shape), before.reshape(*shape, 2, *start.shape)


def _chain(pair_of: Callable, start: Array, slots: Any, moe: Bool[Array, "B"], kind: Int[Array, "B"], cold: bool):
    """Circuits (or their numbers) of the two all-to-alls of every block of a stage, and those before each, [B 2 ..].

    - `pair_of(slot, before, behind)`: those of a block's two; `behind`: `kind` of the block before, 0 without these.
    Circuits stay where there are no all-to-alls. Unless `cold`, the iteration begins as one like it leaves them.
    """

    def serve(state, step):
        (before, behind), (slot, moe, kind) = state, step
        pair = jnp.where(moe, pair_of(slot, before, behind), before)
        return (pair[1], jnp.where(moe, kind, 0)), (pair, jnp.stack([before, pair[0]]))

    def iteration(before, _):
        (after, _), served = lax.scan(serve, (before, jnp.zeros((), kind.dtype)), (slots, moe, kind))
        return after, served

    return jax.tree.map(lambda x: x[-1], lax.scan(iteration, start, None, length=1 if cold else 2)[1])


def _pair(region, policy, slot: SlotsToServe, parts, first: First, key, before, behind):
    """Circuits of the two all-to-alls of one block; `behind`: the kind of the block before, 0 without these."""

    def ask(demand):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count.astype(before.dtype)

    fresh = ask(slot.demand)
    if first.rule == "block":
        return fresh, fresh
    if first.rule == "pays" and first.trade_off is not None:
        kept, anew = (parts(region, Circuits(count), slot.demand) for count in (before, fresh))
        new = circuits_anew(before, fresh)
        turned = what_pays(first.trade_off, kept, anew, new, slot.kind, behind, slot.busy)
        return tuple(jnp.where(turn, fresh, before) for turn in turned)
    if first.rule == "reuse":
        return before, fresh
    random = first.rule == "random"
    found = random_circuits(slot.demand, region, key=key).circuits.count if random else ask(slot.guess)
    return jnp.where(slot.kind > 0, fresh, found.astype(fresh.dtype)), fresh


# --------------------------------------------------------------------------------------------------------- longer spans
SPANS = {
    "all-to-all": "as `first` says",
    "block": "both all-to-alls of a block in one pass",
    "stage": "one pass of a micro-batch through a pipeline stage",
    "iteration": "all passes of an iteration through a stage",
    "run": "all iterations",
}
LONG = ("stage", "iteration", "run")  # known before a pass begins: the switch turns while other things run


class Span(eqx.Module):
    """For how long circuits stay set: `name` (static) of `SPANS`.

    - `seen` [I layer M R E]: selections that long spans are chosen for. "stage": forward passes, for those of the same
      pass in iteration 0 (backward passes know their own demand); "iteration" and "run": for all of them.
    - `key`: of the policy, where all iterations have the same circuits; None: that of the iteration.
    """

    name: str = eqx.field(static=True, default="all-to-all")
    seen: Any = None
    key: Any = None

    def __check_init__(self):
        one_of("circuits_for", self.name, SPANS)
        if self.long and self.seen is None:
            raise InputError(f"circuits_for {self.name!r} needs the tokens seen [I layer M R E], got none.")

    @property
    def long(self) -> bool:
        """Whether circuits are chosen before a pass begins."""
        return self.name in LONG


ALL_TO_ALL = Span()


def set_for(
    span: Span, where: Places, region: Region, policy: Policy, demand, seen: Float[Array, "I layer M S S"], key, cold
):
    """Circuits of every all-to-all, and those before it, [P Q L 2 S S], for a long span.

    - `demand` [layer M S S]: of the iteration.   - `cold`: circuits are uniform before it, not as it leaves them.
    """
    of = _of_passes if span.name == "stage" else _of_stages
    samples, weight = of(where, demand, seen)
    count, before = _chosen(region, policy, samples, weight, key if span.key is None else span.key, cold)
    moe = where.layer >= 0
    passes, blocks = moe.shape[1:]
    spans = weight.shape[1]
    of_slots = np.broadcast_to(np.arange(spans)[:, None], (spans, passes * blocks // spans)).reshape(passes, blocks)
    in_span = moe.reshape(len(moe), spans, -1)
    begins = (in_span & (np.cumsum(in_span, axis=-1) == 1)).reshape(moe.shape)  # where the switch is told
    count, before = count[:, of_slots], before[:, of_slots]
    before = jnp.where(begins[..., None, None], before, count)
    return jnp.stack([count, count], axis=3), jnp.stack([before, count], axis=3)


def _of_passes(where: Places, demand, seen):
    """Samples [P Q L S S] of every pass and their weights [P Q L], 0 for a block without experts."""
    known = jnp.asarray(where.backward)[..., None, None]
    own, past = demand[where.pick(*demand.shape[:2])], seen[0][where.pick(*seen.shape[1:3])]
    return jnp.where(known, own, past), jnp.asarray(where.layer >= 0, demand.dtype)


def _of_stages(where: Places, demand, seen):
    """Samples [P 1 K S S] of every stage and their weights [P 1 K]: how often they are sent, 0 pads."""
    iterations, layers, micro_batches = seen.shape[:3]
    layer, micro_batch = where.pick(layers, micro_batches)
    moe, names = where.layer >= 0, layer * micro_batches + micro_batch
    sent = [np.unique(names[stage][moe[stage]], return_counts=True) for stage in range(len(moe))]
    most = max(1, *(len(which) for which, _ in sent))
    which, times = (np.stack([np.pad(one[part], (0, most - len(one[part]))) for one in sent]) for part in (0, 1))
    flat = seen.reshape(iterations, layers * micro_batches, *seen.shape[3:])
    samples = jnp.moveaxis(flat[:, which], 0, 1)  # [P I K S S]
    samples = samples.reshape(len(moe), 1, iterations * most, *seen.shape[3:])
    return samples, jnp.asarray(np.tile(times, iterations)[:, None], demand.dtype)


def _chosen(region: Region, policy: Policy, samples, weight, key, cold: bool):
    """Circuits for every span, and those before it, [P N S S]: spans one after the other, stages side by side."""
    start = uniform(None, region).circuits.count
    keys = None if key is None else jax.random.split(key, weight.shape[:2])

    def one_stage(samples, weight, keys):
        def serve(before, span):
            some, times, key = span
            count = asked(region, policy, some, times, Plan(Circuits(before)), key).astype(before.dtype)
            count = jnp.where(times.sum() > 0, count, before)
            return count, (count, before)

        def iteration(before):
            return lax.scan(serve, before, (samples, weight, keys))

        after, (count, before) = iteration(start)
        if cold:
            return count, before
        return iteration(after)[1] if len(weight) > 1 else (count, count)

    return jax.vmap(one_stage)(samples, weight, keys)


def asked(region: Region, policy: Policy, samples: Float[Array, "K S S"], times: Float[Array, "K"], previous, key):
    """The circuits [S S] that a policy chooses for many demands, each of which is sent so many `times`."""
    if takes_many(policy):
        weights = times * jax.vmap(lambda one: degree_bound(region, one))(samples)
        return policy(samples, region, previous=previous, key=key, weights=weights).circuits.count
    total = jnp.maximum(times.sum(), jnp.ones((), times.dtype))
    mean = (times[:, None, None] * samples).sum(0) / total
    return policy(mean, region, previous=previous, key=key).circuits.count


# ------------------------------------------------------------------------------------------ all-to-alls of an iteration
RELAY_STEPS = 100  # 0.1 % from the best shares on average


def routed(routing: str) -> Callable:
    """When circuits and packet switches are through, by a routing model.

    Relay: shares near the best for the circuits and the demand at hand, flows paced, as those of split routing are.
    """
    if routing == "relay":
        return _relayed
    return lambda region, circuits, demand: part_times(region, circuits, demand, routing=routing)


def _relayed(region: Region, circuits: Circuits, demand: Float[Array, "S S"]):
    shares = relay_shares(region, circuits, demand, steps=RELAY_STEPS)
    return relay_part_bounds(region, Plan(circuits, shares), demand)


def routed_in_parts(routing: str) -> Callable:
    """(region, circuits, demand, turning) -> when circuits and packet switches are through, by a routing model, and
    what of the circuits' part waits where those of the pairs `turning` [S S] are set up anew."""

    def parts(region: Region, circuits: Circuits, demand: Float[Array, "S S"], turning):
        shares = relay_shares(region, circuits, demand, steps=RELAY_STEPS) if routing == "relay" else None
        return parts_that_wait(region, Plan(circuits, shares), demand, turning, routing=routing)

    return parts


def switched(
    where: Places,
    unit: Region,
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    policy: Policy,
    key,
    parts: Callable,
    first: First = BLOCK,
    guess: Float[Array, "layer M ..."] | None = None,
    span: Span = ALL_TO_ALL,
    seen: Float[Array, "I layer M S S"] | None = None,
    partly: Callable | None = None,
) -> Exchanges:
    """The all-to-alls between the servers of a region at unit bandwidth, circuits chosen block after block.

    - `parts`: (region, circuits, demand) -> when circuits and when packet switches are through.
    - `guess`: the demand as predicted, [S S] or many [K S S].   - `seen`: demand of `span.seen`.
    - `partly`: circuits that stay carry while others turn, as this function of `routed_in_parts` says.
    """
    if where.lane is not None:
        check_lane(first.rule, span.name, partial=partly is not None)
    plain = first.rule in ("block", "pays") and not span.long and partly is None
    if plain and not remembers(policy, unit, even, uniform(None, unit).circuits.count, key):
        given = where, unit, demand, even, policy, key, parts
        own = demands_of_stages(where, *demand.shape[:2])
        if first.rule == "block":
            return _once_each(*given, first.cold)
        if first.trade_off is not None and few_pairs(own):
            return where_it_pays(*given, first.trade_off, own, cold=first.cold, both=span.name == "block")
    if where.lane is not None and span.name not in ("iteration", "run"):
        raise InputError(
            "overlap_passes needs a policy of the demand alone, got one that knows circuits in place or a key."
        )
    alike = first.rule == "block" or span.name == "block"  # both of a block
    moe = where.layer >= 0
    between = demand[where.pick(*demand.shape[:2])]  # [P Q L S S]
    if seen is not None:
        count, before = set_for(span, where, unit, policy, demand, seen, key, first.cold)
    else:
        guess = between if guess is None else guess[where.pick(*guess.shape[:2])]
        busy = 1.0 if first.trade_off is None else first.trade_off.busy
        busy = jnp.broadcast_to(jnp.asarray(busy, demand.dtype), moe.shape)
        slots = SlotsToServe(between, guess, jnp.asarray(moe), jnp.asarray(where.kind), busy)
        count, before = choose(unit, policy, slots, parts, first, key, both=span.name == "block")
    calm = policy(even, unit, previous=None, key=key).circuits.count.astype(count.dtype)
    served = count[..., :1, :, :] if alike else count
    counts = jnp.concatenate([served.reshape(-1, *even.shape), calm[None]])
    asked = jnp.broadcast_to(between[..., None, :, :], served.shape)
    every = jnp.concatenate([asked.reshape(-1, *even.shape), even[None]])
    if partly is None:
        found = jax.vmap(lambda c, d: parts(unit, Circuits(c), d))(counts, every)
    else:
        turns = turning(count, before)[..., : served.shape[3], :, :].reshape(-1, *even.shape)
        turns = jnp.concatenate([turns, jnp.zeros_like(turns[:1])])
        found = jax.vmap(lambda c, d, t: partly(unit, Circuits(c), d, t))(counts, every, turns)
    nothing = jnp.zeros((*moe.shape, 2), found[0].dtype)
    parts_s = [nothing + jnp.where(moe[..., None], part[:-1].reshape(*moe.shape, -1), 0) for part in found]
    return _exchanges(parts_s, found, count, before, where.backward | span.long | (first.rule in AHEAD))


def check_lane(first: str, span: str, *, partial: bool) -> None:
    """`InputError` for what is not defined where all-to-alls of two passes take turns."""
    for field, value, allowed in (
        ("first", first, ("block",)),
        ("circuits_for", span, ("all-to-all", "iteration", "run")),
        ("partial", str(partial).lower(), ("false",)),
    ):
        if value not in allowed:
            raise InputError(f"overlap_passes needs {field} {' or '.join(allowed)}, got {value!r}.")


def turning(count: Array, before: Array) -> Bool[Array, "P Q L 2 S S"]:
    """The pairs that got circuits when the switch last turned in this iteration, for this all-to-all or before it.

    - `count`, `before` [P Q L 2 S S]: circuits of every all-to-all in running order, and those in place before it.
    """
    shape, stages, servers = count.shape, len(count), count.shape[-1]
    count, before = (x.reshape(stages, -1, servers, servers) for x in (count, before))
    place = jnp.where(jnp.any(count != before, axis=(-2, -1)), jnp.arange(count.shape[1]), -1)
    last = lax.cummax(place, axis=1)[..., None, None]
    pairs = jnp.take_along_axis(count > before, jnp.maximum(last, 0), axis=1)
    return (pairs & (last >= 0)).reshape(shape)


def remembers(policy: Policy, region: Region, demand, start, key) -> bool:
    """Whether a policy's circuits can depend on the plan in place or on the key, as far as its program shows.

    - `demand` [S S], `start` [S S]: of the shapes and types that it is called with.
    """

    def circuits(demand, before, key):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count

    program = jax.make_jaxpr(circuits)(demand, jnp.zeros_like(start), key).jaxpr
    _, used = partial_eval.dce_jaxpr(program, [True])
    return any(used[1:])


def _once_each(where: Places, unit: Region, demand, even, policy, key, parts, cold: bool) -> Exchanges:
    """`switched` for circuits that depend on the demand alone: chosen and timed once for each demand."""
    moe, start = where.layer >= 0, uniform(None, unit).circuits.count
    every = jnp.concatenate([demand.reshape(-1, *even.shape), even[None]])
    previous = Plan(Circuits(start))
    counts = jax.vmap(lambda one: policy(one, unit, previous=previous, key=key).circuits.count)(every)
    both = jax.vmap(lambda count, one: parts(unit, Circuits(count), one))(counts, every)
    layer, micro_batch = where.pick(*demand.shape[:2])
    at = np.where(moe, layer * demand.shape[1] + micro_batch, -1)
    serving, before = _served(at, cold) if where.lane is None else served_in_turn(at, where.lane, cold)
    chosen = jnp.concatenate([counts[:-1].astype(start.dtype), start[None]])  # the last: where nothing ran before
    count, before = chosen[serving], chosen[before]
    if where.lane is None:  # the two all-to-alls of a block follow each other
        count, before = jnp.stack([count, count], axis=3), jnp.stack([before, count], axis=3)
    nothing = jnp.zeros((*moe.shape, 2), both[0].dtype)
    parts_s = [nothing + jnp.where(moe, part[:-1][at], 0)[..., None] for part in both]
    return _exchanges(parts_s, both, count, before, where.backward)


def _served(at: np.ndarray, cold: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which demand the circuits are for in every slot, and which they were for before it; -1: none."""
    serving = _last(at.reshape(len(at), -1))
    begin = np.full((len(at), 1), -1) if cold else serving[:, -1:]  # as the iteration before left them
    return serving.reshape(at.shape), np.concatenate([begin, serving[:, :-1]], axis=1).reshape(at.shape)


def served_in_turn(at: np.ndarray, lane: np.ndarray, cold: bool) -> tuple[np.ndarray, np.ndarray]:
    """`_served` for each of the two all-to-alls of a slot, which follow each other as the lane says."""
    each = np.repeat(at.reshape(len(at), -1), 2, axis=1)
    found = _served(np.take_along_axis(each, lane, axis=1), cold)
    back = np.argsort(lane, axis=1)
    serving, before = (np.take_along_axis(one, back, axis=1).reshape(*at.shape, 2) for one in found)
    return serving, before


def _last(at: np.ndarray) -> np.ndarray:
    """Along the last axis, the value at a place or, where it is -1, the last one before it."""
    place = np.maximum.accumulate(np.where(at >= 0, np.arange(at.shape[-1]), -1), axis=-1)
    return np.where(place >= 0, np.take_along_axis(at, np.maximum(place, 0), axis=-1), -1)


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

    def one_stage(table, counts, moe, kinds, *slots):
        def pair_of(slot, before, behind):
            own, kind, busy = slot
            kept, fresh = (tuple(part[at, own] for part in table) for at in (before, own))
            anew = circuits_anew(counts[before], counts[own], found[0].dtype)
            turned = what_pays(trade_off, kept, fresh, anew, kind, behind, busy)
            return jnp.where(jnp.where(both, turned[0], turned), own, before)

        begin = jnp.asarray(number, slots[0].dtype)
        return _chain(pair_of, begin, (slots[0], kinds, slots[1]), moe, kinds, cold)

    busy = jnp.broadcast_to(jnp.asarray(trade_off.busy, found[0].dtype), moe.shape)
    slots = (jnp.asarray(x).reshape(stages, -1) for x in (moe, kinds, own.slots, busy))
    served, before = jax.vmap(one_stage)(table, counts[has], *slots)
    served, before = (x.reshape(*moe.shape, 2) for x in (served, before))
    stage = np.arange(stages)[:, None, None, None]
    parts_s = [jnp.where(moe[..., None], part[stage, served, own.slots[..., None]], 0) for part in table]
    count, before = (counts[jnp.asarray(has)[stage, x]] for x in (served, before))
    return _exchanges(parts_s, found, count, before, where.backward)


def _exchanges(parts_s: list, found: Seconds, count: Array, before: Array, ahead: Any) -> Exchanges:
    """Of all-to-alls whose circuits are known.

    - `parts_s` [P Q L 2]: seconds on circuits and on packet switches, maybe what of the first waits for the switch.
    - `found`: seconds, the last those of the balanced all-to-all.   - `count`, `before` [P Q L 2 S S]: circuits.
    """
    optical, electrical, *waiting = parts_s
    switch, anew = jnp.any(count != before, axis=(-2, -1)), circuits_anew(before, count, optical.dtype)
    calm_s = jnp.maximum(found[0][-1], found[1][-1])
    rest = {"waiting": waiting[0] if waiting else None, "anew": anew}
    nothing = jnp.zeros_like(optical[..., 0])
    return Exchanges(optical, electrical, nothing, switch, jnp.asarray(ahead), count, calm_s, **rest)
