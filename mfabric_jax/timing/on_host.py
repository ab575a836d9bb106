"""A region's policy and routing on the host: NumPy, compiled loops and few XLA programs.

A program is keyed by what decides its code (servers, policy, routing), never by model, fabric or bandwidth; equal
demands run once, in padded chunks. Seconds of `unsplit` are computed in float64; circuits, and seconds of routings that
share bytes, in the arithmetic of the case.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from mfabric_jax import policies, programs
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.platforms import OLDER_FUSIONS
from mfabric_jax.policies.sample_average import Search, first_of_each, further_of_each
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing.region import unsplit_times_now
from mfabric_jax.timing.exchange import acknowledged
from mfabric_jax.timing.switching import Solver, routed

LANES = 64  # demands that run through a program together
QUICKLY_COMPILED = {"xla_cpu_use_fusion_emitters": False} if OLDER_FUSIONS else {}
QUICKLY_COMPILED |= {"xla_backend_optimization_level": 1}


class Choice(NamedTuple):
    """A policy of the registry by name, with its settings; `mean` [S S]: the demand that replaces every other."""

    name: str
    settings: tuple[tuple[str, Any], ...] = ()
    mean: np.ndarray | None = None


def solver_now(unit: Region, choice: Choice, routing: str, acks: float, dtype: str) -> Solver:
    """The solver of a region at unit bandwidth, for a policy without memory; NumPy arrays in and out."""
    region = jax.tree.map(lambda x: np.asarray(x, np.int32 if np.asarray(x).dtype.kind in "iu" else dtype), unit)

    others = 1.0 - np.eye(region.servers)  # what stays on a server takes part in nothing

    def choose(demand: np.ndarray) -> np.ndarray:
        demand = demand * others
        given = demand if choice.mean is None else np.broadcast_to(choice.mean, demand.shape)
        return once_each_row(lambda each: _chosen(each, region, choice), given.astype(dtype))

    def seconds(count: np.ndarray, demand: np.ndarray) -> tuple[np.ndarray, ...]:
        demand = acknowledged(demand * others, acks)
        if routing == "unsplit":
            return once_each_row(lambda *both: unsplit_times_now(unit, *both), count, demand)
        routes = lambda *both: in_chunks(seconds_of, both, region, routing, options=QUICKLY_COMPILED)  # noqa: E731
        return tuple(x.astype(float) for x in once_each_row(routes, count, demand.astype(dtype)))

    return Solver(choose, seconds)


def degrees_of(region: Region) -> np.ndarray:
    """`Region.degrees` as a NumPy array."""
    return np.broadcast_to(np.asarray(region.optical_degree, np.int32), region.servers)


def _chosen(demand: np.ndarray, region: Region, choice: Choice) -> np.ndarray:
    if choice.name == "uniform" or region.servers == 1:  # a server has no circuit to itself
        return np.broadcast_to(uniform_circuits(degrees_of(region)), demand.shape)
    if choice.name in policies.SETTLE_TIES:
        return _searched(demand, region, choice)
    return in_chunks(circuits_of, (demand,), region, choice.name, choice.settings, options=QUICKLY_COMPILED)


def _searched(demand: np.ndarray, region: Region, choice: Choice) -> np.ndarray:
    """The search of `sample_average` in two programs: the second is for demands that the first has not settled."""
    search = Search.of(choice.name, dict(choice.settings))
    found, done = in_chunks(first_of_each, (demand,), region, search, options=QUICKLY_COMPILED)
    left = np.flatnonzero(~done)
    if not len(left):
        return found.count
    some = jax.tree.map(lambda x: x[left], found)
    given = some, demand[left]
    then = in_chunks(further_of_each, given, region, search, lanes=search.at_once, options=QUICKLY_COMPILED)
    count = found.count.copy()
    count[left] = then
    return count


def circuits_of(demand: Any, region: Region, name: str, settings: tuple) -> Any:
    """Circuits [B S S] that a policy without memory chooses for each demand."""
    policy = policies.get(name, **dict(settings))
    return jax.vmap(lambda one: policy(one, region).circuits.count)(demand)


def seconds_of(count: Any, demand: Any, region: Region, routing: str) -> Any:
    """Seconds of circuits and of packet switches [B] under a routing."""
    return jax.vmap(lambda count, one: routed(routing)(region, Circuits(count), one))(count, demand)


# ------------------------------------------------------------------------------------------------------------- batches
def in_chunks(function: Callable, members: tuple, *shared: Any, lanes: int = LANES, options: Any = None) -> Any:
    """A program's results for members along the first axis of arrays, `lanes` at a time, the last padded by zeros."""
    many = len(jax.tree.leaves(members)[0])
    parts = []
    for start in range(0, many, lanes):
        chunk = jax.tree.map(lambda x, start=start: _padded(x[start : start + lanes], lanes), members)
        parts.append(programs.run(function, *chunk, *shared, options=options))
    return jax.tree.map(lambda *x: np.concatenate(x)[:many], *parts)


def _padded(some: np.ndarray, lanes: int) -> np.ndarray:
    nothing = np.zeros((lanes - len(some), *some.shape[1:]), some.dtype)
    return np.concatenate([some, nothing]) if len(nothing) else some


def once_each_row(function: Callable, *arrays: np.ndarray) -> Any:
    """`function` of arrays along their first axis, asked once for rows that are equal in all of them."""
    seen: dict[tuple[bytes, ...], int] = {}
    at = [seen.setdefault(tuple(x.tobytes() for x in row), len(seen)) for row in zip(*arrays, strict=True)]
    if len(seen) == len(at):
        return function(*arrays)
    _, first = np.unique(at, return_index=True)
    found = function(*(array[first] for array in arrays))
    return jax.tree.map(lambda x: x[np.asarray(at)], found)
