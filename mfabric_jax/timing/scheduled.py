"""All-to-alls during which circuits change: each demand has its own schedule of circuits.

On circuits that stay, an all-to-all takes time in proportion to bytes over bandwidth. Under a schedule it does not,
because a reconfiguration takes as long for few bytes as for many. So each all-to-all is planned for its own bytes, at
the bandwidth and delay of the case.

Only the dispatch of a forward pass waits for the gate before its circuits are known. The first reconfiguration of every
other all-to-all overlaps with computation (`first_free`), as `evaluate.circuits` does for circuits that stay.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.fabric import Region
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.policies import Policy, of_package
from mfabric_jax.routing.schedule import schedule_part_times
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.timing.passes import Exchanges, places
from mfabric_jax.workload import Workload


class Planned(NamedTuple):
    """Schedules of N all-to-alls.

    - `circuits_s`, `packets_s` [N]: when circuits and packet NICs carry their last byte.
    - `first`, `last` [N S S]: the first and the last circuits of all switches.
    - `reconfigurations`, `new_circuits` [N]: reconfigurations of the busiest switch during the all-to-all, and new
      circuits of all switches.
    - `first_free` [N]: whether `reconfigurations` and `new_circuits` leave out the first reconfiguration, which ends
      before the all-to-all begins.
    """

    circuits_s: Float[Array, "N"]
    packets_s: Float[Array, "N"]
    first: Array
    last: Array
    reconfigurations: Array
    new_circuits: Array
    first_free: Array


Planner = Callable[[Any, bool], Planned]  # arguments: demand [N S S] in bytes, whether it is known ahead


def region_at(region: Any, nic_Bps: Any, delay_s: Any) -> Region:
    """Return the region with circuits of `nic_Bps` and a switch that reconfigures in `delay_s`."""
    return eqx.tree_at(lambda tree: (tree.nic_gbps, tree.delay_s), region, (units.to_gbps(nic_Bps), delay_s))


def schedule_exchanges(
    workload: Workload,
    demand: Float[Array, "layer M S S"],
    even: Float[Array, "S S"],
    planner: Planner,
    nic_Bps: Any,
    *,
    cold: bool = False,
) -> Exchanges:
    """Return the all-to-alls between servers, each with its own schedule, on circuits of `nic_Bps`.

    `even`: the demand of balanced experts; `cold`: the previous iteration left no circuits in place.
    """
    xp, where = array_module(demand, nic_Bps), places(workload)
    every = demand.reshape(-1, *even.shape)
    ratio = workload.combine_bytes / workload.dispatch_bytes
    sizes, known = (1.0, ratio, 1.0), (False, True, True)  # sizes: relative to the dispatch
    each = [planner(every * size, ahead) for size, ahead in zip(sizes, known, strict=True)]
    which = np.where(where.backward[..., None], [1, 2], [0, 1])  # the combine gradient goes first
    layer, micro_batch = where.pick(*demand.shape[:2])
    index = which * len(every) + (layer * demand.shape[1] + micro_batch)[..., None]
    sent = np.broadcast_to((where.layer >= 0)[..., None], index.shape)

    def of_slots(values: list) -> Any:
        rows = xp.concatenate(values)[index]
        return xp.where(sent, rows, xp.zeros((), rows.dtype))

    optical = of_slots([plan.circuits_s * (nic_Bps / by) for plan, by in zip(each, sizes, strict=True)])
    electrical = of_slots([plan.packets_s * (nic_Bps / by) for plan, by in zip(each, sizes, strict=True)])
    new_circuits = _set_up_before(index, sent, each, cold)
    first_free = of_slots([plan.first_free for plan in each])
    calm = planner(even[None], False)
    return Exchanges(
        optical,
        electrical,
        xp.zeros_like(optical[..., 0]),
        first_free & (new_circuits > 0),
        xp.asarray(where.backward),
        None,
        xp.maximum(calm.circuits_s, calm.packets_s)[0] * nic_Bps,
        new_circuits=xp.where(first_free, new_circuits, 0) + of_slots([plan.new_circuits for plan in each]),
        reconfigurations_during=of_slots([plan.reconfigurations for plan in each]),
    )


def _set_up_before(index: np.ndarray, sent: np.ndarray, each: list[Planned], cold: bool) -> Array:
    """Return the number of circuits set up between each all-to-all [P Q L 2] and the one before.

    Unless `cold`, the first of an iteration follows the last of the previous iteration.
    """
    xp, before = array_module(each), np.full_like(index, -1)
    for own, stage, some in zip(before, index, sent, strict=True):
        latest = np.roll(stage[some], 1)
        latest[:1] = -1 if cold else latest[:1]
        own[some] = latest
    pairs, of_slot = np.unique(np.stack([before.ravel(), index.ravel()]), axis=1, return_inverse=True)
    first, last = (xp.concatenate(x) for x in ([plan.first for plan in each], [plan.last for plan in each]))
    there = (pairs[0] >= 0)[:, None, None]
    counts = xp.maximum(first[pairs[1]] - xp.where(there, last[pairs[0]], 0), 0).sum((1, 2)) / 2
    return xp.where(sent, counts[of_slot.reshape(index.shape)], 0)


# --------------------------------------------------------------------------------------------- plans of policies in JAX
def carries_schedule(policy: Policy, region: Any, demand: Float[Array, "S S"], key: Any) -> bool:
    """Return whether a policy's plans hold a schedule, from its traced program."""
    if of_package(policy):
        return False
    plan = jax.eval_shape(lambda matrix: policy(matrix, region, previous=None, key=key), demand)
    return getattr(plan, "schedule", None) is not None


def planner_of(policy: Policy, region: Region, key: Any) -> Planner:
    """Return a planner, traced by JAX, that asks a policy for schedules without telling it the circuits in place."""
    data = None if key is None else jax.random.key_data(key)

    def plan(demand: Float[Array, "N S S"], known: bool) -> Planned:
        keys = None if data is None else jnp.broadcast_to(data, (len(demand), *data.shape))
        return plan_each(demand, keys, region, policy)

    return plan


def plan_each(demand: Float[Array, "N S S"], key: Any, region: Region, policy: Policy) -> Planned:
    """Return the schedules of demands; `key` [N 2]: data of a random key for each."""
    key = None if key is None else jax.random.wrap_key_data(key)
    plans: Any = jax.vmap(lambda matrix, key: policy(matrix, region, previous=None, key=key).schedule)(demand, key)
    times = jax.vmap(lambda plan, matrix: schedule_part_times(region, plan, matrix))(plans, demand)
    ends = jax.vmap(ends_of_switches)(plans)
    return Planned(*times, *ends, jnp.full(len(demand), plans.first_free))


def ends_of_switches(schedule: CircuitSchedule) -> tuple[Array, Array, Array, Array]:
    """Return `first`, `last`, `reconfigurations` and `new_circuits` of a plan, without configurations of 0 s."""
    xp = array_module(schedule.configurations, schedule.seconds)
    used = schedule.seconds > 0
    switch = schedule.switch
    position = np.arange(len(used))
    earlier = used[:, None] & used[None] & (switch[:, None] == switch[None]) & (position[:, None] > position[None])
    number = earlier.sum(1)  # on its switch, from 0
    latest = earlier & (number[:, None] == number[None] + 1)
    begins, ends = used & ~earlier.any(1), used & ~earlier.any(0)
    turned = used & ~begins if schedule.first_free else used
    shown = xp.where(used[:, None, None], schedule.configurations, 0)
    first, last = (xp.where(mask[:, None, None], shown, 0).sum(0) for mask in (begins, ends))
    before = xp.einsum("kl,lij->kij", latest.astype(shown.dtype), shown)
    new = xp.maximum(shown - before, 0).sum((1, 2)) / 2
    reconfigurations = xp.where(turned, number + int(not schedule.first_free), 0).max(initial=0)
    return first, last, reconfigurations.astype(new.dtype), xp.where(turned, new, 0).sum()
