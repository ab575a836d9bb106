"""The all-to-alls of an iteration while optical switches turn: circuits follow a schedule for each demand.

Circuits that stay take a time in proportion to bytes over bandwidth. A schedule does not, because turns take
as long for few bytes as for many: each all-to-all is planned for its own bytes, at the bandwidth and the delay of the
case.

Only the dispatch of a forward pass waits for the gate before its circuits are known. The first turn of every other
all-to-all goes beside computation (`first_free`), as `evaluate.circuits` has it for circuits that stay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from mfabric_jax import units
from mfabric_jax.array_module import Array, array_module
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.schedule import Schedule
from mfabric_jax.policies import Policy, of_package
from mfabric_jax.routing.schedule import schedule_part_times
from mfabric_jax.timing.passes import Exchanges, Places


class Pace(NamedTuple):
    """What schedules depend on beside demand: `delay_s` of a turn, `nic_Bps` of a circuit, and `size` [2], bytes of the
    two forward all-to-alls of a block over those of its dispatch."""

    delay_s: Any
    nic_Bps: Any
    size: Any

    @staticmethod
    def of(trade_off: Any) -> "Pace":
        """What a case's rates say."""
        return Pace(trade_off.delay_s, trade_off.nic_Bps, trade_off.size)


class Planned(NamedTuple):
    """Schedules of N all-to-alls.

    - `circuits_s`, `packets_s` [N]: when circuits and packet NICs carry their last byte.
    - `first`, `last` [N S S]: circuits that all switches show first and last.
    - `turns`, `anew` [N]: turns of the busiest switch while it runs, and circuits that all of them set up.
    - `free` [N]: the first turn is not among them: it goes before the all-to-all begins.
    """

    circuits_s: Float[Array, "N"]
    packets_s: Float[Array, "N"]
    first: Array
    last: Array
    turns: Array
    anew: Array
    free: Array


Planner = Callable[[Any, bool], Planned]  # demand [N S S] bytes, known before it begins


def region_at(region: Any, pace: Pace) -> Region:
    """The region whose circuits run at `pace.nic_Bps` and whose switch turns in `pace.delay_s`."""
    numbers = units.to_gbps(pace.nic_Bps), pace.delay_s
    return eqx.tree_at(lambda one: (one.nic_gbps, one.delay_s), region, numbers)


def scheduled(
    where: Places,
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    planner: Planner,
    pace: Pace,
    *,
    cold: bool = False,
) -> Exchanges:
    """The all-to-alls between servers, each with a schedule of its own.

    `even`: the demand of balanced experts; `cold`: no circuits of the iteration before are in place.
    """
    xp = array_module(demand, pace)
    every = demand.reshape(-1, *even.shape)
    sizes, known = (pace.size[0], pace.size[1], pace.size[0]), (False, True, True)
    each = [planner(every * size, ahead) for size, ahead in zip(sizes, known, strict=True)]
    which = np.where(where.backward[..., None], [1, 2], [0, 1])  # gradients of combine go first
    layer, micro_batch = where.pick(*demand.shape[:2])
    at = which * len(every) + (layer * demand.shape[1] + micro_batch)[..., None]
    sent = np.broadcast_to((where.layer >= 0)[..., None], at.shape)

    def of_slots(values: list) -> Any:
        found = xp.concatenate(values)[at]
        return xp.where(sent, found, xp.zeros((), found.dtype))

    scale = [pace.nic_Bps / size for size in sizes]
    optical = of_slots([one.circuits_s * by for one, by in zip(each, scale, strict=True)])
    electrical = of_slots([one.packets_s * by for one, by in zip(each, scale, strict=True)])
    anew = _set_up_before(at, sent, each, cold)
    free = of_slots([one.free for one in each])
    switch = free & (anew > 0)
    calm = planner(even[None] * sizes[0], False)
    return Exchanges(
        optical,
        electrical,
        xp.zeros_like(optical[..., 0]),
        switch,
        xp.asarray(where.backward),
        None,
        xp.maximum(calm.circuits_s, calm.packets_s)[0] * scale[0],
        anew=xp.where(free, anew, 0) + of_slots([one.anew for one in each]),
        turns=of_slots([one.turns for one in each]),
    )


def _set_up_before(at: np.ndarray, sent: np.ndarray, each: list[Planned], cold: bool) -> Array:
    """Circuits set up between the end of the all-to-all before and the beginning of each [P Q L 2]."""
    xp = array_module(each)
    before = latest_before(np.where(sent, at, -1), cold)
    pairs, of_slot = np.unique(np.stack([before.ravel(), at.ravel()]), axis=1, return_inverse=True)
    first, last = (xp.concatenate(x) for x in ([one.first for one in each], [one.last for one in each]))
    there = (pairs[0] >= 0)[:, None, None]
    found = xp.maximum(first[pairs[1]] - xp.where(there, last[pairs[0]], 0), 0).sum((1, 2)) / 2
    return xp.where(sent, found[of_slot.reshape(at.shape)], 0)


def latest_before(at: np.ndarray, cold: bool) -> np.ndarray:
    """The latest index [P ..] before each slot in running order; -1: none. Up to the first of an iteration: the last of
    the iteration before, if not `cold`."""
    flat = at.reshape(len(at), -1)
    place = np.maximum.accumulate(np.where(flat >= 0, np.arange(flat.shape[-1]), -1), axis=-1)
    latest = np.where(place >= 0, np.take_along_axis(flat, np.maximum(place, 0), axis=-1), -1)
    if not cold:
        latest = np.where(latest < 0, latest[:, -1:], latest)
    begin = np.full((len(at), 1), -1) if cold else latest[:, -1:]
    return np.concatenate([begin, latest[:, :-1]], axis=1).reshape(at.shape)


# --------------------------------------------------------------------------------------------- plans of policies in JAX
def carries_schedule(policy: Policy, region: Any, demand: Float[Array, "S S"], key: Any) -> bool:
    """Whether a policy's plans hold a schedule, judged from its traced program."""
    if of_package(policy):
        return False
    plan = jax.eval_shape(lambda one: policy(one, region, previous=None, key=key), demand)
    return getattr(plan, "schedule", None) is not None


def planner_of(policy: Policy, region: Region, key: Any) -> Planner:
    """The schedules that a policy plans without knowing of the circuits in place; traced by JAX."""

    def planned(demand: Float[Array, "N S S"], known: bool) -> Planned:
        return plan_each(policy, region, demand, None if key is None else jnp.broadcast_to(key, len(demand)))

    return planned


def plan_each(policy: Policy, region: Region, demand: Float[Array, "N S S"], key: Any) -> Planned:
    """The schedules of demands, each with a key [N] of its own."""
    plans: Any = jax.vmap(lambda one, key: policy(one, region, previous=None, key=key).schedule)(demand, key)
    times = jax.vmap(lambda plan, one: schedule_part_times(region, plan, one))(plans, demand)
    ends = jax.vmap(ends_of_switches)(plans)
    return Planned(*times, *ends, jnp.full(len(demand), plans.first_free))


def planned_by(demand: Any, key: Any, region: Region, policy: Policy) -> Planned:
    """`plan_each` as a program, with key data [N 2]."""
    return plan_each(policy, region, demand, jax.random.wrap_key_data(key))


def ends_of_switches(schedule: Schedule) -> tuple[Array, Array, Array, Array]:
    """`Planned.first`, `last`, `turns` and `anew` of one schedule; configurations of 0 s are not shown."""
    xp = array_module(schedule.configurations, schedule.seconds)
    used, lanes = schedule.seconds > 0, np.arange(schedule.switches, dtype=schedule.switch.dtype)
    here = used[:, None] & (schedule.switch[:, None] == lanes[None])
    number = xp.where(here, xp.cumsum(here, axis=0), 0)  # among those of the switch, from 1
    begins, ends = ((here & (number == which)).any(1) for which in (1, number.max(0, initial=0)[None]))
    shown = xp.where(used[:, None, None], schedule.configurations, 0)
    first, last = (xp.where(mask[:, None, None], shown, 0).sum(0) for mask in (begins, ends))
    turned = used & ~begins if schedule.first_free else used
    new = xp.maximum(shown - _shown_before(shown, here, number), 0).sum((1, 2)) / 2
    turns = (here & turned[:, None]).sum(0).max(initial=0)
    return first, last, turns.astype(new.dtype), xp.where(turned, new, 0).sum()


def _shown_before(shown: Array, here: Array, number: Int[Array, "K W"]) -> Array:
    """What the switch of each configuration showed before it [K S S]; nothing before its first."""
    xp = array_module(shown)
    same, order = (here[:, None] & here[None]).any(2), number.sum(1)
    before = same & (order[:, None] == order[None] + 1)
    return xp.einsum("kl,lij->kij", before.astype(shown.dtype), shown)
