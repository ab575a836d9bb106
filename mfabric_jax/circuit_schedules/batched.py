"""Batches of schedules: shared arrays that are timed under `vmap`."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.checks import InputError, not_negative, of_type
from mfabric_jax.circuit_schedules.placing import problem_of
from mfabric_jax.circuit_schedules.quick import plan_batch
from mfabric_jax.circuit_schedules.registry import facts_of
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_floats, refuse


def schedules(
    demands: Any,
    region: Region,
    switches: int = 1,
    delay_s: float | None = None,
    all_stop: bool = True,
    first_free: bool = False,
) -> CircuitSchedule:
    """Return the `get("quick")` schedules of all demands: one `CircuitSchedule` with arrays [B K S S] and [B K].

    `demands` [B S S]: bytes from server i to server j, known and not traced. Circuits are directed. K is the largest
    number of configurations; shorter schedules are padded as in `stack_schedules`.
    """
    demands, servers = host_floats("demands", demands), of_type("region", region, Region).servers
    if demands.ndim != 3 or demands.shape[1:] != (servers, servers):
        wanted = f"[B S S] with S = {servers} servers"
        raise InputError(f"demands must be {wanted}, got {list(demands.shape)}.")
    demands[:, np.arange(servers), np.arange(servers)] = 0
    refuse("demands", demands, NOT_NEGATIVE)
    facts = facts_of(region, switches)
    how = {"switches": switches, "all_stop": all_stop, "directed": True, "first_free": first_free}
    delay = float(region.delay_s) if delay_s is None else float(not_negative("delay_s", delay_s))
    common = problem_of(np.zeros((region.servers, region.servers)), **facts, **how, delay_s=delay)
    batch = plan_batch(demands / facts["circuit_Bps"], common)
    arrays = batch.configurations(), batch.seconds, batch.switch
    own = None if delay_s is None else jnp.full(len(demands), delay_s, arrays[1].dtype)
    return jax.vmap(lambda *values, delay=None: CircuitSchedule(*values, delay_s=delay, **how))(*arrays, delay=own)


def stack_schedules(many: Sequence[CircuitSchedule]) -> CircuitSchedule:
    """Stack schedules that differ only in numbers into one `CircuitSchedule` with arrays [B K S S] and [B K], for
    `jax.vmap`.

    K is the largest number of configurations. Shorter schedules are padded with empty configurations of 0 s on switch
    0, because anything after the last byte costs nothing. Raise `InputError` if servers, switches or rules differ, or
    if only some have their own delay_s.
    """
    if not many:
        raise InputError("stack_schedules needs at least one schedule, got none.")
    for number, schedule in enumerate(many):
        of_type(f"[{number}] of the schedules", schedule, CircuitSchedule)
    names = ("switches", "all_stop", "directed", "first_free")
    rules = {name: getattr(many[0], name) for name in names}
    own = many[0].delay_s is not None
    for number, schedule in enumerate(many):
        for name, value in (*rules.items(), ("servers", many[0].configurations.shape[-1])):
            got = schedule.configurations.shape[-1] if name == "servers" else getattr(schedule, name)
            if got != value:
                raise InputError(f"schedules to stack must have the same {name}: {value} and, in [{number}], {got}.")
        if (schedule.delay_s is not None) != own:
            raise InputError(f"schedules to stack must all have a delay_s, or none; [{number}] differs from [0].")
    most = max(len(schedule.seconds) for schedule in many)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *(_pad_schedule(schedule, most, rules) for schedule in many))


def _pad_schedule(schedule: CircuitSchedule, most: int, rules: dict[str, Any]) -> CircuitSchedule:
    more = most - len(schedule.seconds)
    arrays = schedule.configurations, schedule.seconds, schedule.switch
    filled = (jnp.pad(array, [(0, more), *[(0, 0)] * (array.ndim - 1)]) for array in arrays)
    delay = None if schedule.delay_s is None else jnp.asarray(schedule.delay_s, schedule.seconds.dtype)
    return CircuitSchedule(*filled, delay_s=delay, **rules)
