"""The best circuits there are, with a proof: mixed-integer linear programmes for SciPy's HiGHS (extra `exact`).

A test oracle and a yardstick, on the host: `exact_programmes` says what is solved.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.checks import not_negative, one_of, positive
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._greedy import greedy
from mfabric_jax.policies.exact_programmes import ROUTINGS, Instance, highs, solved
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import between_servers


class _Found(NamedTuple):
    count: np.ndarray  # [S S]
    shares: np.ndarray | None  # [S S S+2] of relay routing
    time: float  # units
    bound: float  # units


def exact(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous=None,
    key=None,
    routing: str = "unsplit",
    seconds: float = 60.0,
) -> Plan:
    """The circuits with which one all-to-all ends first when its flows are paced, or the best found in time.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `routing`: "unsplit", "split", or "relay", which returns the best shares too.
    - `seconds`: of search on the host at most; greedy's circuits where nothing better is found.

    Works in `jit` and `vmap` (one instance after the other). `previous` and `key` are not used.
    Source: module docstring; `exact_circuits` also returns the proof.
    """
    one_of("routing", routing, ROUTINGS)
    positive("seconds", seconds)
    highs("policy 'exact'")
    demand = between_servers(region, demand)
    found = _on_host(demand, region, routing, float(seconds))
    return Plan(Circuits(found[0]), found[1] if routing == "relay" else None)


@functools.partial(jax.jit, static_argnames=("routing", "seconds"))
def _on_host(demand, region: Region, routing: str, seconds: float):
    servers = region.servers
    start = greedy(demand, region, rule="next").circuits.count
    shape = servers, servers, servers + 2 if routing == "relay" else 0
    result = jax.ShapeDtypeStruct((servers, servers), jnp.int32), jax.ShapeDtypeStruct(shape, demand.dtype)

    def search(demand, start, *numbers):
        found = _best(_instance(demand, *numbers), np.asarray(start), routing, seconds)
        shares = np.zeros(shape) if found.shares is None else found.shares
        return found.count.astype(np.int32), shares.astype(demand.dtype)

    numbers = region.degrees, region.electrical_nics, region.nic_Bps, region.relay_efficiency
    return jax.pure_callback(search, result, demand, start, *numbers, vmap_method="sequential")


def exact_circuits(
    region: Region,
    demand,
    *,
    routing: str = "unsplit",
    seconds: float = 60.0,
    start: Circuits | None = None,
) -> tuple[np.ndarray, float, float]:
    """The best circuits [S S], their time and a bound that no circuits are below [s]; equal times are the proof.

    - `start`: legal circuits already known, which are returned if nothing better is found; good ones shorten the
      search (None: greedy's).

    Arguments else as of `exact`. On the host, not for `jit`. Infinite where bytes have no way.
    """
    one_of("routing", routing, ROUTINGS)
    positive("seconds", seconds)
    demand = not_negative("demand", between_servers(region, demand))
    known = greedy(demand, region, rule="next").circuits if start is None else start
    numbers = region.degrees, region.electrical_nics, region.nic_Bps, region.relay_efficiency
    instance = _instance(demand, *numbers)
    found = _best(instance, np.asarray(known.count), routing, seconds)
    return found.count, found.time * instance.unit, found.bound * instance.unit


def _instance(demand, degree, electrical, nic, efficiency) -> Instance:
    demand, degree = np.asarray(demand, np.float64), np.asarray(degree)
    port = np.broadcast_to(np.asarray(electrical, np.float64), degree.shape)
    speed = (degree + port) * float(nic)
    busiest = np.maximum(demand.sum(0), demand.sum(1)) / np.where(speed > 0, speed, np.inf)
    unit = float(busiest.max(initial=0)) or 1.0
    return Instance(demand / (float(nic) * unit), degree, port, float(efficiency), unit)


def _best(instance: Instance, start: np.ndarray, routing: str, seconds: float) -> _Found:
    """The best of `start` and what HiGHS finds below it."""
    shares = _split_shares(instance, start) if routing == "relay" else None
    known = _Found(start, shares, _time(instance, start, shares, routing), 1.0)
    if not instance.demand.any():
        return known._replace(bound=0.0)
    if known.time <= 1 or not np.isfinite(instance.demand).all():
        return known
    count, shares, bound = solved(instance, routing, known.time, seconds)
    if count is None:
        return known._replace(bound=min(bound, known.time))
    found = _Found(count, shares, _time(instance, count, shares, routing), bound)
    best = found if found.time < known.time else known
    return best._replace(bound=min(bound, best.time))


def _time(instance: Instance, count: np.ndarray, shares: np.ndarray | None, routing: str) -> float:
    """Of paced flows, as `routing.fluid_lower_bound` [units]."""
    demand = instance.demand
    if routing == "relay":
        assert shares is not None
        return _relay_time(instance, count, shares)
    if routing == "split":
        return _split_time(instance, count)
    slowest = (demand[count > 0] / count[count > 0]).max(initial=0)
    return max(slowest, _port_time(instance, np.where(count > 0, 0, demand)))


def _port_time(instance: Instance, carried: np.ndarray) -> float:
    return _ratio(np.maximum(carried.sum(0), carried.sum(1)), instance.port)


def _ratio(load: np.ndarray, capacity: np.ndarray) -> float:
    some = capacity > 0
    return float(np.where(load > 0, np.where(some, load / np.where(some, capacity, 1), np.inf), 0).max(initial=0))


def _split_time(instance: Instance, count: np.ndarray) -> float:
    """The largest ratio over ports of what circuits do not finish in time, risen from 0 (`routing.split_seconds`)."""
    demand, port = instance.demand, instance.port
    if ((demand > 0) & (count == 0) & ~instance.joined).any():
        return np.inf
    time, after = -1.0, 0.0
    while after > time:
        time = after
        load, help_ = (np.where(demand > count * time, part, 0) for part in (demand, count))
        after = max(time, *(_ratio(load.sum(axis), help_.sum(axis) + port) for axis in (0, 1)))
    return time


def _split_shares(instance: Instance, count: np.ndarray) -> np.ndarray:
    demand, servers = instance.demand, len(count)
    time = _split_time(instance, count)
    shares = np.zeros((servers, servers, servers + 2))
    some = (demand > 0) & (count > 0)
    within = np.minimum(count * min(time, demand.sum()), demand)
    shares[..., -2] = np.where(some, within / np.where(some, demand, 1), count > 0)
    shares[..., -1] = 1 - shares[..., -2]
    return shares * ~np.eye(servers, dtype=bool)[..., None]


def _relay_time(instance: Instance, count: np.ndarray, shares: np.ndarray) -> float:
    load = shares * instance.demand[..., None]
    via, direct, eps = load[..., :-2], load[..., -2], load[..., -1]
    links = via.sum(1) + via.sum(0).T / instance.efficiency + direct
    return max(_ratio(links, count), _port_time(instance, eps))
