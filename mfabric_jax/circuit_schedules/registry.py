"""Schedulers by name. Each is a function NAME of plain arrays in the module NAME beside this one:

    NAME(demand [S S], *, settings, **network) -> (configurations [K S S], seconds [K], switch [K])

`network` has the fields of `placing.SwitchNetwork`. Schedulers run on the host.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from mfabric_jax.case.policies import SCHEDULERS as NAMES
from mfabric_jax.checks import InputError, Misfit, concrete, not_negative, of_type, one_of, whole
from mfabric_jax.circuit_schedules.placing import SwitchNetwork
from mfabric_jax.fabric.circuit_schedule import UNEQUAL, CircuitSchedule
from mfabric_jax.fabric.region import Region
from mfabric_jax.support.host_arrays import NOT_NEGATIVE, host_floats, refuse

Scheduler = Callable[[Any, Region], CircuitSchedule]
TRACED = "schedulers run on the host: demand and region must be numbers, got traced ones."


def _module(name: str) -> str:
    return f"{__package__}.{name.replace('-', '_')}"


def get(
    name: str,
    switches: int = 1,
    delay_s: float | None = None,
    all_stop: bool = True,
    directed: bool = True,
    first_free: bool = False,
    **settings: Any,
) -> Scheduler:
    """Return a scheduler by name: `get("rotor", switches=2, slot_s=0.001)(demand, region)` returns a `CircuitSchedule`.

    Arguments are those of `CircuitSchedule`; `settings` are the scheduler's own. `demand` [S S] is in bytes, known and
    not traced. Raise `InputError` for an unknown name or setting, or if the switches do not fit the region.
    """
    function = _function(name)
    known = settings_of(name)
    for setting in settings:
        if setting not in known:
            raise InputError(f"scheduler {name!r} has no setting {setting!r}; it has {', '.join(known) or 'none'}.")
    whole("switches", switches)
    if delay_s is not None:
        not_negative("delay_s", delay_s)
    how: Any = {"delay_s": delay_s, "all_stop": all_stop, "directed": directed, "first_free": first_free}

    def scheduler(demand: Any, region: Region) -> CircuitSchedule:
        arrays = function(checked_demand(demand, region), **network_of(region, switches, **how), **settings)
        return CircuitSchedule(*arrays, switches=switches, **how).check_region(region)

    return scheduler


def network_of(
    region: Region,
    switches: int = 1,
    delay_s: float | None = None,
    all_stop: bool = True,
    directed: bool = True,
    first_free: bool = False,
) -> SwitchNetwork:
    """Return what schedulers know of the network, for the arguments of `get`."""
    how = {
        "switches": whole("switches", switches),
        "all_stop": all_stop,
        "directed": directed,
        "first_free": first_free,
    }
    delay = float(region.delay_s) if delay_s is None else float(delay_s)
    return SwitchNetwork(**facts_of(region, switches), delay_s=delay, **how)


def settings_of(name: str) -> list[str]:
    """Return the names of a scheduler's own settings."""
    every = inspect.signature(_function(name)).parameters.values()
    return [
        parameter.name for parameter in every if parameter.kind != parameter.VAR_KEYWORD and parameter.name != "demand"
    ]


def _function(name: str) -> Callable[..., Any]:
    one_of("scheduler", name, NAMES)
    return getattr(importlib.import_module(_module(name)), name.replace("-", "_"))


def checked_demand(demand: Any, region: Region) -> np.ndarray:
    """Return the demand in float64 with a zero diagonal. Raise `InputError` if it is traced or invalid."""
    if not concrete(demand):
        raise InputError(TRACED)
    used, servers = host_floats("demand", demand), of_type("region", region, Region).servers
    if used.shape != (servers, servers):
        raise InputError(f"demand must be [S S] with S = {servers} servers, got {list(used.shape)}.")
    np.fill_diagonal(used, 0)
    refuse("demand", used, NOT_NEGATIVE)
    return used


def facts_of(region: Region, switches: int) -> dict[str, Any]:
    """Return the arguments of a scheduler that depend on the region: rates and ports."""
    if not all(map(concrete, (region.nic_gbps, region.optical_degree, region.electrical_nics))):
        raise InputError(TRACED)
    degree, packet = (_same(field, getattr(region, field)) for field in ("optical_degree", "electrical_nics"))
    if degree % switches:
        raise Misfit(f"{UNEQUAL.format(switches)}, got {degree:g}.")
    nic = float(region.nic_Bps)
    return {"circuit_Bps": nic, "packet_Bps": packet * nic, "ports": int(degree) // switches}


def _same(field: str, value: Any) -> float:
    distinct = np.unique(np.asarray(value, float))
    if len(distinct) > 1:
        raise Misfit(f"{field} must be the same at all servers for a scheduler, got {np.asarray(value).tolist()}.")
    return float(distinct[0])
