"""Choice of circuits for every all-to-all of a region, and its time with them.

`First` is the rule for the first all-to-all of a forward pass, whose demand is known only after the gate. `Span` is how
long circuits stay set. Source: arXiv 2501.03905 (block, reuse, random, predict); the rule "pays" is ours.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import partial_eval
from jaxtyping import Bool, Float, Int

from mfabric_jax.array_module import Array, array_module
from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, random_circuits, takes_many, uniform
from mfabric_jax.routing import Plan, degree_bound, relay_shares
from mfabric_jax.routing.region import part_times, parts_that_wait, relay_part_bounds
from mfabric_jax.timing.blocks import BACK, BASES, SECONDS, factors
from mfabric_jax.timing.passes import Exchanges, Places
from mfabric_jax.workload import Workload
from mfabric_jax.workload.compute import BlockSeconds, completed
from mfabric_jax.workload.volume import tp_bytes_per_gpu

# --------------------------------------------------------------------------------------- what a turn is weighed against
Seconds = tuple[Array, ...]  # until circuits and packet switches finish, at unit bandwidth
RELAY_TOLERANCE = 1e-3  # relative gap of relay shares to the optimum
PAIRS_A_SLOT = 16  # with more pairs of demands per slot, all-to-alls are timed in sequence


class Solver(NamedTuple):
    """A region's policy and routing, for batches of demands [B S S] at unit bandwidth.

    - `choose`: circuits [B S S] for each demand alone.
    - `seconds`: of circuits and of packet switches [B], given circuits and demands.
    """

    choose: Callable[[Any], Any]
    seconds: Callable[[Any, Any], Seconds]


class TradeOff(NamedTuple):
    """Costs and gains that the rule "pays" compares.

    - `size` [2]: bytes of the two forward all-to-alls over dispatch; `busy`: `expert_load` of blocks.
    - `inner_s` [3]: expert computation between the two, by `Places.kind`; `expert_s` [3]: part that grows with load.
    - `behind_s` [3]: computation after the last all-to-all of a block.
    - `tolerance`: fresh circuits must save more than this part of the block's all-to-all time.
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
    reduces = 2 if workload.tp_reduces == "all" else 1
    reduce_s = reduces * tp_bytes_per_gpu(workload) / rates.nvlink_Bps
    xp, seconds = array_module(rates, seconds), completed(workload, seconds)
    dtype = xp.result_type(seconds.attention_s * reduce_s)
    size = xp.asarray((1.0, workload.combine_bytes / workload.dispatch_bytes), dtype)
    inner, behind = (factors(workload.recompute)[:3, SECONDS["run", run, False]] for run in ("inner", "behind"))

    def taken(by: np.ndarray, **parts: Any) -> Any:
        return sum(xp.asarray(by[:, BASES.index(name)], dtype) * part for name, part in parts.items())

    def with_back(name: str, forward: Any, back: Any) -> dict[str, Any]:
        return {name: forward} | {f"{name} {which}": part for which, part in zip(BACK, back, strict=True)}

    back: Any = seconds.backward
    behind_s = taken(behind, **with_back("attention", seconds.attention_s, back.attention), tp=reduce_s)
    inner_s = taken(inner, **with_back("inner", seconds.moe_s, back.moe))
    expert_s = taken(inner, **with_back("inner", seconds.expert_s, back.expert))
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
    """For each of a block's two all-to-alls [2]: whether fresh circuits make the block's all-to-alls end earlier.

    - `kept`, `fresh`: seconds with the circuits in place and with fresh ones, at unit bandwidth; `anew`: new circuits.
    - `kind`, `behind`: `Places.kind` of this block's pass and of the previous block (0: it has no all-to-alls).
    """
    # The forecast hides a turn behind its block's computation and packets that take longer than circuits. It ignores
    # idle time of the pipeline, passes of weight gradients, propagation, overlap in parts, decisions, partial turns,
    # recomputed all-to-alls, the output head, and waits for context rings and gathered parameters.
    xp, dtype = array_module(kept, trade_off), kept[0].dtype
    delay_s, each_s, nic_Bps = (xp.asarray(x, dtype) for x in (trade_off.delay_s, trade_off.each_s, trade_off.nic_Bps))
    delay_s = delay_s + each_s * anew
    old, optical, new = xp.maximum(*kept) / nic_Bps, fresh[0] / nic_Bps, xp.maximum(*fresh) / nic_Bps
    backward = kind > 0
    one, two = (xp.where(backward, trade_off.size[1 - at], trade_off.size[at]) for at in (0, 1))
    ready = xp.where(backward, trade_off.behind_s[behind], 0)  # known before, and time to turn
    computed = trade_off.inner_s[kind] + (busy - 1) * xp.broadcast_to(trade_off.expert_s, (3,))[kind]

    def paid(hidden, size):
        return xp.where(optical > 0, xp.maximum(delay_s - hidden - size * (new - optical), 0), 0)

    now = one * new + paid(ready, one) + two * new  # summed alike: ties stay ties
    later = one * old + paid(computed, two) + two * new
    never = (one * old + two * old) * (1 - trade_off.tolerance)
    first = now < xp.minimum(later, never)
    return xp.stack([first, first | (later < never)])


def circuits_anew(
    before: Int[Array, "... S S"], after: Int[Array, "... S S"], dtype: Any = None
) -> Float[Array, "..."]:
    found = array_module(before, after).maximum(after - before, 0).sum((-2, -1)) / 2
    return found if dtype is None else found.astype(dtype)


# -------------------------------------------------------------------------------------------------- the first of a pass
FIRST = {
    "block": "wait for the gate, then for the switch",
    "reuse": "keep the circuits of whatever ran before, backward, too; switch while the experts run",
    "random": "random circuits, set while attention runs; switch again while the experts run",
    "predict": "circuits for the predicted demand, set while attention runs; switch again while the experts run",
    "bound": "no circuits: every all-to-all takes its degree bound",
    "pays": "before either all-to-all of a block and pass, or not at all: whatever ends the two first",
}
AHEAD = ("random", "predict")


class First(eqx.Module):
    """Rule for the circuits of the first all-to-all of a forward pass, one of `FIRST`.

    - `predicted` [layer M R E]: predicted selections, for "predict".
    - `trade_off`: costs and gains, for "pays".
    - `scenarios`: number of demands drawn around each prediction for policies that take many demands (0: none).
    - `sigma`: prediction error for these draws, as in `traffic.likely_demands`.
    - `cold`: the iteration starts with uniform circuits instead of those that the previous iteration left.
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
    """Demand, `Places.kind` and `expert_load` of every block [P Q L], in running order."""

    demand: Float[Array, "P Q L S S"]
    guess: Float[Array, "P Q L S S"] | Float[Array, "P Q L K S S"]
    moe: Bool[Array, "P Q L"]
    kind: Int[Array, "P Q L"]
    busy: Float[Array, "P Q L"]


def choose(region: Region, policy: Policy, slots: SlotsToServe, parts: Callable, first: First, key, *, both=False):
    """Circuits of every all-to-all and before it, [P Q L 2 S S]; `both`: a block's two all-to-alls share circuits.

    An iteration starts with the circuits that an identical iteration leaves, or with uniform ones (`first.cold`).
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


def _chain(pair_of: Callable, start: Array, slots: tuple, moe: Bool[Array, "B ..."], kind: Int[Array, "B ..."], cold):
    """Circuits (or their numbers) of both all-to-alls of every block, and those before each, [B 2 ..]."""
    xp = array_module(start, moe)
    scan = lax.scan if xp is jnp else _scanned

    def serve(state, step):
        (before, behind), (slot, moe, kind) = state, step
        pair = xp.where(moe, pair_of(slot, before, behind), before)
        return (pair[1], xp.where(moe, kind, 0)), (pair, xp.stack([before, pair[0]]))

    def iteration(before, _):
        (after, _), served = scan(serve, (before, xp.zeros_like(kind[0])), (slots, moe, kind))
        return after, served

    return jax.tree.map(lambda x: x[-1], scan(iteration, start, np.arange(1 if cold else 2))[1])


def _scanned(step: Callable, state: Any, over: Any) -> tuple[Any, Any]:
    """`lax.scan` of NumPy arrays."""
    leaves, structure = jax.tree.flatten(over)
    rows = []
    for row in zip(*leaves, strict=True):
        state, found = step(state, structure.unflatten(row))
        rows.append(found)
    return state, jax.tree.map(lambda *x: np.stack(x), *rows)


def _pair(region, policy, slot: SlotsToServe, parts, first: First, key, before, behind):
    def ask(demand):
        return policy(demand, region, previous=Plan(Circuits(before)), key=key).circuits.count.astype(before.dtype)

    fresh = ask(slot.demand)
    if first.rule == "block":
        return fresh, fresh
    if first.rule == "pays" and first.trade_off is not None:
        kept, anew = (parts(region, Circuits(count), slot.demand) for count in (before, fresh))
        new = circuits_anew(before, fresh, anew[0].dtype)
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
    """How long circuits stay set, one of `SPANS`.

    For a span longer than one all-to-all, policies that take many demands get all demands of the span, each weighted by
    its degree bound in seconds; other policies get the mean.

    - `seen` [I layer M R E]: selections on which long spans are planned. "stage" uses the same pass of iteration 0 for
      forward passes (the demand of backward passes is known); "iteration" and "run" use all of them.
    - `key`: random key of the policy where all iterations share circuits; None: the key of the iteration.
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
        return self.name in LONG


ALL_TO_ALL = Span()


def set_for(
    span: Span, where: Places, region: Region, policy: Policy, demand, seen: Float[Array, "I layer M S S"], key, cold
):
    """Circuits of every all-to-all and those before it, [P Q L 2 S S], for a long span; `demand` [layer M S S]."""
    of = _of_passes if span.name == "stage" else _of_stages
    samples, weight = of(where, demand, seen)
    count, before = _chosen(region, policy, samples, weight, key if span.key is None else span.key, cold)
    return _in_slots(where, count, before)


def _in_slots(where: Places, count: Array, before: Array) -> tuple[Array, Array]:
    """Circuits of every all-to-all and those before it [P Q L 2 S S], from those of spans [P span S S]."""
    xp, moe, spans = array_module(count), where.layer >= 0, count.shape[1]
    passes, blocks = moe.shape[1:]
    of_slots = np.broadcast_to(np.arange(spans)[:, None], (spans, passes * blocks // spans)).reshape(passes, blocks)
    in_span = moe.reshape(len(moe), spans, -1)
    begins = (in_span & (np.cumsum(in_span, axis=-1) == 1)).reshape(moe.shape)  # where the switch is told
    count, before = count[:, of_slots], before[:, of_slots]
    before = xp.where(begins[..., None, None], before, count)
    return xp.stack([count, count], axis=3), xp.stack([before, count], axis=3)


def set_once(
    where: Places,
    start: np.ndarray,
    demand: Float[np.ndarray, "layer M S S"],
    even,
    seen,
    solver: Solver,
    *,
    cold: bool,
) -> Exchanges:
    """The all-to-alls of an iteration whose circuits every stage sets once, for the mean of the demands `seen`.

    NumPy arrays; for policies of one demand.
    """
    samples, times = _of_stages(where, demand, seen)
    samples, times = samples[:, 0], times[:, 0]
    total = times.sum(axis=1)
    mean = (times[..., None, None] * samples).sum(axis=1) / np.maximum(total, 1)[:, None, None]
    count = np.where((total > 0)[:, None, None], solver.choose(mean).astype(start.dtype), start)
    calm = solver.choose(even[None]).astype(start.dtype)
    moe, (layer, micro_batch) = where.layer >= 0, where.pick(*demand.shape[:2])
    stage, number = np.arange(len(moe))[:, None, None], layer * demand.shape[1] + micro_batch
    pairs, of_slot = np.unique(stage * demand.shape[0] * demand.shape[1] + number, return_inverse=True)
    stages, numbers = np.divmod(pairs, demand.shape[0] * demand.shape[1])
    every = np.concatenate([demand.reshape(-1, *even.shape)[numbers], even[None]])
    found = solver.seconds(np.concatenate([count[stages], calm]), every)
    parts_s = [np.where(moe, part[:-1][of_slot.reshape(moe.shape)], 0)[..., None] * np.ones(2) for part in found]
    begin = count if not cold else np.broadcast_to(start, count.shape)
    counts, before = _in_slots(where, count[:, None], begin[:, None])
    return _exchanges(parts_s, found, counts, before, np.ones_like(where.backward))


def _of_passes(where: Places, demand, seen):
    known = jnp.asarray(where.backward)[..., None, None]
    own, past = demand[where.pick(*demand.shape[:2])], seen[0][where.pick(*seen.shape[1:3])]
    return jnp.where(known, own, past), jnp.asarray(where.layer >= 0, demand.dtype)


def _of_stages(where: Places, demand, seen):
    xp = array_module(seen)
    iterations, layers, micro_batches = seen.shape[:3]
    layer, micro_batch = where.pick(layers, micro_batches)
    moe, names = where.layer >= 0, layer * micro_batches + micro_batch
    sent = [np.unique(names[stage][moe[stage]], return_counts=True) for stage in range(len(moe))]
    most = max(1, *(len(which) for which, _ in sent))
    which, times = (np.stack([np.pad(one[part], (0, most - len(one[part]))) for one in sent]) for part in (0, 1))
    flat = seen.reshape(iterations, layers * micro_batches, *seen.shape[3:])
    samples = xp.moveaxis(flat[:, which], 0, 1)  # [P I K S S]
    samples = samples.reshape(len(moe), 1, iterations * most, *seen.shape[3:])
    return samples, xp.asarray(np.tile(times, iterations)[:, None], demand.dtype)


def _chosen(region: Region, policy: Policy, samples, weight, key, cold: bool):
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
    """Circuits [S S] that a policy chooses for K demands, each sent `times` [K] times."""
    if takes_many(policy):
        weights = times * jax.vmap(lambda one: degree_bound(region, one))(samples)
        return policy(samples, region, previous=previous, key=key, weights=weights).circuits.count
    total = jnp.maximum(times.sum(), jnp.ones((), times.dtype))
    mean = (times[:, None, None] * samples).sum(0) / total
    return policy(mean, region, previous=previous, key=key).circuits.count


# ------------------------------------------------------------------------------------------ all-to-alls of an iteration
RELAY_STEPS = 100  # 0.1 % from the best shares on average


def routed(routing: str) -> Callable:
    """Function (region, circuits, demand) -> seconds until circuits and packet switches finish, for a routing model.

    "relay" uses near-optimal shares with paced flows, as split routing does; "bound" is what no routing beats.
    """
    if routing == "relay":
        return _relayed
    if routing == "bound":
        return lambda region, circuits, demand: (jnp.zeros((), demand.dtype), degree_bound(region, demand))
    return lambda region, circuits, demand: part_times(region, circuits, demand, routing=routing)


def _relayed(region: Region, circuits: Circuits, demand: Float[Array, "S S"]):
    shares = relay_shares(region, circuits, demand, steps=RELAY_STEPS)
    return relay_part_bounds(region, Plan(circuits, shares), demand)


def routed_in_parts(routing: str) -> Callable:
    """Like `routed`, with the pairs that turn [S S]; also returns the time of traffic that waits for them."""

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
    """All-to-alls between servers of a region at unit bandwidth, with circuits chosen block by block.

    - `parts`: function from `routed`; `partly`: function from `routed_in_parts`, if unchanged circuits carry in a turn.
    - `guess`: predicted demand, [S S] or [K S S] for each layer and micro-batch; `seen`: demand of `span.seen`.
    """
    if where.lane is not None:
        check_lane(first.rule, span.name, partial=partly is not None)
    start = uniform(None, unit).circuits.count
    plain = first.rule in ("block", "pays") and not span.long and partly is None
    if plain and not remembers(policy, unit, even, start, key):
        solver = solver_of(unit, policy, key, parts)
        own = demands_of_stages(where, *demand.shape[:2])
        if first.rule == "block":
            return once_each(where, start, demand, even, solver, cold=first.cold)
        if first.trade_off is not None and few_pairs(own):
            given = where, start, demand, even, solver, first.trade_off, own
            return where_it_pays(*given, cold=first.cold, both=span.name == "block")
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
    """`InputError` for a rule or span that is not defined where two passes take turns."""
    for field, value, allowed in (
        ("first", first, ("block",)),
        ("circuits_for", span, ("all-to-all", "iteration", "run")),
        ("partial", str(partial).lower(), ("false",)),
    ):
        if value not in allowed:
            raise InputError(f"overlap_passes needs {field} {' or '.join(allowed)}, got {value!r}.")


def turning(count: Array, before: Array) -> Bool[Array, "P Q L 2 S S"]:
    """Pairs whose circuits changed at the latest turn of the switch, for every all-to-all in running order."""
    shape, stages, servers = count.shape, len(count), count.shape[-1]
    count, before = (x.reshape(stages, -1, servers, servers) for x in (count, before))
    place = jnp.where(jnp.any(count != before, axis=(-2, -1)), jnp.arange(count.shape[1]), -1)
    last = lax.cummax(place, axis=1)[..., None, None]
    pairs = jnp.take_along_axis(count > before, jnp.maximum(last, 0), axis=1)
    return (pairs & (last >= 0)).reshape(shape)


def remembers(policy: Policy, region: Region, demand, start, key) -> bool:
    """Whether a policy's circuits depend on the plan in place or on the key, judged from its traced program."""
    _, _, _, *used = _used(policy, region, demand, start, key)
    return any(used)


def reads_rates(policy: Policy, region: Region, demand, start, key) -> bool:
    """Whether a policy's circuits depend on the bandwidth or the delay of a turn, judged from its traced program."""
    return any(_used(policy, region, demand, start, key)[:2])


def _used(policy: Policy, region: Region, demand, start, key) -> list[bool]:
    """Whether circuits depend on bandwidth, delay, demand, the circuits in place, and the key (as many as it has)."""

    def circuits(rates, demand, before, key):
        there = eqx.tree_at(_rates, region, rates)
        return policy(demand, there, previous=Plan(Circuits(before)), key=key).circuits.count

    rates = tuple(map(jnp.asarray, _rates(region)))
    program = jax.make_jaxpr(circuits)(rates, demand, jnp.zeros_like(start), key).jaxpr
    return partial_eval.dce_jaxpr(program, [True])[1]


def _rates(region: Any) -> tuple[Any, Any]:
    return region.nic_gbps, region.delay_s


def in_region(policy: Policy, region: Region) -> Policy:
    """The policy, asked with this region instead of the one at unit bandwidth."""
    return jax.tree_util.Partial(_many_there if takes_many(policy) else _there, policy, region)


def _there(policy, there, demand, region, *, previous=None, key=None):
    return policy(demand, there, previous=previous, key=key)


def _many_there(policy, there, demand, region, *, previous=None, key=None, weights=None):
    return policy(demand, there, previous=previous, key=key, **({} if weights is None else {"weights": weights}))


def solver_of(unit: Region, policy: Policy, key: Any, parts: Callable) -> Solver:
    """The solver that JAX traces, for a policy without memory."""
    previous = uniform(None, unit)
    return Solver(
        jax.vmap(lambda one: policy(one, unit, previous=previous, key=key).circuits.count),
        jax.vmap(lambda count, one: parts(unit, Circuits(count), one)),
    )


def once_each(
    where: Places, start: Int[Array, "S S"], demand: Float[Array, "layer M S S"], even, solver: Solver, *, cold: bool
) -> Exchanges:
    """The all-to-alls of an iteration where every demand has circuits of its own; `start`: before the first."""
    xp, moe = array_module(demand), where.layer >= 0
    every = xp.concatenate([demand.reshape(-1, *even.shape), even[None]])
    counts = solver.choose(every)
    both = solver.seconds(counts, every)
    layer, micro_batch = where.pick(*demand.shape[:2])
    at = np.where(moe, layer * demand.shape[1] + micro_batch, -1)
    serving, before = _served(at, cold) if where.lane is None else served_in_turn(at, where.lane, cold)
    chosen = xp.concatenate([counts[:-1].astype(start.dtype), start[None]])  # the last: where nothing ran before
    count, before = chosen[serving], chosen[before]
    if where.lane is None:  # the two all-to-alls of a block follow each other
        count, before = xp.stack([count, count], axis=3), xp.stack([before, count], axis=3)
    nothing = xp.zeros((*moe.shape, 2), both[0].dtype)
    parts_s = [nothing + xp.where(moe, part[:-1][at], 0)[..., None] for part in both]
    return _exchanges(parts_s, both, count, before, where.backward)


def _served(at: np.ndarray, cold: bool) -> tuple[np.ndarray, np.ndarray]:
    """Index of the demand [P ...] that the circuits in place serve at every slot in running order, and those before it;
    -1: none. Up to the first of an iteration: the last of the iteration before, if not `cold`."""
    serving = _last(at.reshape(len(at), -1))
    if not cold:
        serving = np.where(serving < 0, serving[:, -1:], serving)
    begin = np.full((len(at), 1), -1) if cold else serving[:, -1:]
    before = np.concatenate([begin, serving[:, :-1]], axis=1)
    return serving.reshape(at.shape), before.reshape(at.shape)


def latest_before(at: np.ndarray, cold: bool) -> np.ndarray:
    """The latest index [P ...] before each slot in running order, as `_served` says."""
    return _served(at, cold)[1]


def served_in_turn(at: np.ndarray, lane: np.ndarray, cold: bool) -> tuple[np.ndarray, np.ndarray]:
    """`_served` for both all-to-alls of a slot, in the order of the lane."""
    each = np.repeat(at.reshape(len(at), -1), 2, axis=1)
    found = _served(np.take_along_axis(each, lane, axis=1), cold)
    back = np.argsort(lane, axis=1)
    serving, before = (np.take_along_axis(one, back, axis=1).reshape(*at.shape, 2) for one in found)
    return serving, before


def _last(at: np.ndarray) -> np.ndarray:
    place = np.maximum.accumulate(np.where(at >= 0, np.arange(at.shape[-1]), -1), axis=-1)
    return np.where(place >= 0, np.take_along_axis(at, np.maximum(place, 0), axis=-1), -1)


class Own(NamedTuple):
    """Static: demand indices (layer times micro-batches plus micro-batch) of every stage [P N] and slot [P Q L]."""

    demands: np.ndarray
    slots: np.ndarray


def demands_of_stages(where: Places, layers: int, micro_batches: int) -> Own:
    layer, micro_batch = where.pick(layers, micro_batches)
    names, moe = layer * micro_batches + micro_batch, where.layer >= 0
    each = [np.unique(names[stage][moe[stage]]) for stage in range(len(names))]
    each = [own if len(own) else np.zeros(1, int) for own in each]  # a stage without experts
    most = max(map(len, each))
    slots = [np.searchsorted(own, np.where(moe[stage], names[stage], own[0])) for stage, own in enumerate(each)]
    return Own(np.stack([np.pad(own, (0, most - len(own)), "edge") for own in each]), np.stack(slots))


def few_pairs(own: Own) -> bool:
    """Whether timing all pairs of demands at once is less work than timing all-to-alls in sequence."""
    return own.demands.shape[1] ** 2 <= PAIRS_A_SLOT * own.slots[0].size


def where_it_pays(
    where: Places,
    start: Int[Array, "S S"],
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    solver: Solver,
    trade_off: TradeOff,
    own: Own,
    *,
    cold: bool = False,
    both: bool = False,
) -> Exchanges:
    """The all-to-alls of an iteration under "pays", for a policy without memory; see `choose` for `cold` and `both`."""
    table = Table.of(start, demand, even, solver, own)
    return turned_where_it_pays(where, table, trade_off, cold=cold, both=both)


class Table(NamedTuple):
    """What the circuits of every demand of a stage would take for each of its demands.

    - `counts` [D S S]: circuits of every demand, of the balanced one and, last, those before the first.
    - `has` [P N+1]: which of `counts` a stage has (last: those before the first); `own`: its demands.
    - `seconds` [P N+1 N]: on circuits and on packet switches, by circuits and demand; `calm_s`: of the balanced demand.
    """

    counts: Any
    has: np.ndarray
    own: Own
    seconds: Seconds
    calm: Seconds

    @classmethod
    def of(cls, start, demand, even, solver: Solver, own: Own) -> "Table":
        xp = array_module(demand)
        every = xp.concatenate([demand.reshape(-1, *even.shape), even[None]])
        counts = xp.concatenate([solver.choose(every).astype(start.dtype), start[None]])
        stages, number = own.demands.shape
        has = np.concatenate([own.demands, np.full((stages, 1), len(counts) - 1)], axis=1)
        sent = np.broadcast_to(own.demands[:, None], (stages, number + 1, number)).reshape(-1)
        carries = np.broadcast_to(has[..., None], (stages, number + 1, number)).reshape(-1)
        sent, carries = np.append(sent, len(every) - 1), np.append(carries, len(counts) - 2)  # the balanced one
        found = solver.seconds(counts[carries], every[sent])
        seconds = tuple(part[:-1].reshape(stages, number + 1, number) for part in found)
        return cls(counts, has, own, seconds, tuple(part[-1:] for part in found))  # type: ignore[arg-type]


def turned_where_it_pays(where: Places, table: Table, trade_off: TradeOff, *, cold: bool, both: bool) -> Exchanges:
    """The all-to-alls of an iteration whose switch turns where `what_pays` says so."""
    counts, own, found = table.counts, table.own, table.seconds
    stages, moe = len(table.has), where.layer >= 0
    xp = array_module(counts, trade_off)
    busy = xp.broadcast_to(xp.asarray(trade_off.busy, found[0].dtype), moe.shape)
    moes, kinds, demands, busy = (xp.asarray(x).reshape(stages, -1).T for x in (moe, where.kind, own.slots, busy))
    stage, has = np.arange(stages), xp.asarray(table.has)

    def pair_of(slot, before, behind):
        demand, kind, busy = slot
        kept, fresh = (tuple(part[stage, at, demand] for part in found) for at in (before, demand))
        anew = circuits_anew(counts[has[stage, before]], counts[has[stage, demand]], found[0].dtype)
        turned = what_pays(trade_off, kept, fresh, anew, kind, behind, busy)
        return xp.where(xp.where(both, turned[0], turned), demand, before)

    begin = xp.full(stages, own.demands.shape[1], demands.dtype)
    served, before = _chain(pair_of, begin, (demands, kinds, busy), moes, kinds, cold)  # [B 2 P]
    served, before = (xp.moveaxis(x, -1, 0).reshape(*moe.shape, 2) for x in (served, before))
    stage = stage[:, None, None, None]
    parts_s = [xp.where(moe[..., None], part[stage, served, own.slots[..., None]], 0) for part in found]
    count, before = (counts[has[stage, x]] for x in (served, before))
    return _exchanges(parts_s, table.calm, count, before, where.backward)


def _exchanges(parts_s: list, found: Seconds, count: Array, before: Array, ahead: Any) -> Exchanges:
    xp = array_module(count)
    optical, electrical, *waiting = parts_s
    switch, anew = xp.any(count != before, axis=(-2, -1)), circuits_anew(before, count, optical.dtype)
    calm_s = xp.maximum(found[0][-1], found[1][-1])
    rest = {"waiting": waiting[0] if waiting else None, "anew": anew}
    nothing = xp.zeros_like(optical[..., 0])
    return Exchanges(optical, electrical, nothing, switch, xp.asarray(ahead), count, calm_s, **rest)
