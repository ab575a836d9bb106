"""All-to-alls of a region whose circuits change: which circuits each finds, and how long it takes with them."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.interpreters import partial_eval
from jaxtyping import Array, Bool, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, uniform
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.region import part_times, parts_that_wait, relay_part_bounds
from mfabric_jax.timing.all_to_alls import Exchanges, Places
from mfabric_jax.timing.first import AHEAD, BLOCK, First, SlotsToServe, choose
from mfabric_jax.timing.pays import circuits_anew, demands_of_stages, few_pairs, where_it_pays
from mfabric_jax.timing.spans import ALL_TO_ALL, Span, set_for

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
    optical, electrical, *waiting = (
        nothing + jnp.where(moe[..., None], part[:-1].reshape(*moe.shape, -1), 0) for part in found
    )
    ahead = jnp.asarray(where.backward | span.long | (first.rule in AHEAD))
    switch, anew = jnp.any(count != before, axis=(-2, -1)), circuits_anew(before, count, nothing.dtype)
    calm_s = jnp.maximum(found[0][-1], found[1][-1])
    rest = {"waiting": waiting[0] if waiting else None, "anew": anew}
    return Exchanges(optical, electrical, nothing[..., 0], switch, ahead, count, calm_s, **rest)


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
    serving, before = _served(at, cold) if where.lane is None else _served_in_turn(at, where.lane, cold)
    chosen = jnp.concatenate([counts[:-1].astype(start.dtype), start[None]])  # the last: where nothing ran before
    served, found = chosen[serving], chosen[before]
    nothing = jnp.zeros((*moe.shape, 2), both[0].dtype)
    optical, electrical = (nothing + jnp.where(moe, part[:-1][at], 0)[..., None] for part in both)
    switch, anew = jnp.any(served != found, axis=(-2, -1)), circuits_anew(found, served, nothing.dtype)
    if where.lane is None:  # the two all-to-alls of a block follow each other
        served = jnp.broadcast_to(served[..., None, :, :], (*moe.shape, 2, *even.shape))
        switch, anew = (jnp.stack([one, jnp.zeros_like(one)], axis=-1) for one in (switch, anew))
    calm_s = jnp.maximum(both[0][-1], both[1][-1])
    ahead = jnp.asarray(where.backward)
    return Exchanges(optical, electrical, nothing[..., 0], switch, ahead, served, calm_s, anew=anew)


def _served(at: np.ndarray, cold: bool) -> tuple[np.ndarray, np.ndarray]:
    """Which demand the circuits are for in every slot, and which they were for before it; -1: none."""
    serving = _last(at.reshape(len(at), -1))
    begin = np.full((len(at), 1), -1) if cold else serving[:, -1:]  # as the iteration before left them
    return serving.reshape(at.shape), np.concatenate([begin, serving[:, :-1]], axis=1).reshape(at.shape)


def _served_in_turn(at: np.ndarray, lane: np.ndarray, cold: bool) -> tuple[np.ndarray, np.ndarray]:
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
