"""Circuits and seconds of a region for batches on the host, by compiled loops and by XLA programs that cases share.

The cache key of a program holds what decides its code (servers, policy, routing), never the model, fabric or bandwidth.
A program takes a batch in padded chunks. Unsplit all-to-alls are timed in float64. Circuits are chosen in the dtype of
the case; routings that divide bytes are timed in it, too.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from mfabric_jax import policies
from mfabric_jax.case.policies import name_of
from mfabric_jax.evaluate.links import timer_of_routing, with_acks
from mfabric_jax.evaluate.rules import Seconds
from mfabric_jax.evaluate.sharded import evaluate
from mfabric_jax.evaluate.solver import Question, RegionFunctions, ask, recall
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import REGISTRY, SETTLE_TIES, Policy, policy_of, random_circuits
from mfabric_jax.policies.reads import Reads, Remembering
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.routing.region import unsplit_times_now
from mfabric_jax.support import programs
from mfabric_jax.support.arrays import group_numbers
from mfabric_jax.support.platforms import QUICKLY_COMPILED, platform

LANES, WITH_MEMORY = 64, 8  # questions per chunk on a CPU: for policies that read the demand alone, and for others


def region_functions(
    unit: Region, policy: Policy, reads: Reads, carried: str | Callable[..., Any], acks: float, dtype: str
) -> RegionFunctions:
    """Return functions that choose circuits and compute seconds of a region at unit bandwidth, on NumPy arrays.

    `carried`: the name of a routing, or a function (region, circuits, demand) -> seconds.
    """
    region: Any = group_numbers(unit, dtype)

    def choose(question: Question) -> np.ndarray:
        question = question._replace(demand=question.demand.astype(dtype))
        return _choose(question, region, policy, reads)

    def draw(keys: np.ndarray) -> np.ndarray:
        return in_chunks(draw_circuits, (keys,), region)

    def seconds(count: np.ndarray, demand: np.ndarray) -> Seconds:
        demand = with_acks(demand, acks)
        if carried == "unsplit" and platform() == "cpu":
            return unsplit_times_now(unit, count, demand)
        parts = in_chunks(seconds_of, (count, demand.astype(dtype)), region, carried, options=QUICKLY_COMPILED)
        return tuple(part.astype(float) for part in parts)

    def waiting(count: np.ndarray, before: np.ndarray, demand: np.ndarray) -> Seconds:
        members = count, with_acks(demand, acks).astype(dtype), count > before
        parts = in_chunks(waiting_of, members, region, carried, options=QUICKLY_COMPILED)
        return tuple(part.astype(float) for part in parts)

    def remember(question: Question, history: np.ndarray, state: Any, position: Any) -> tuple[np.ndarray, Any]:
        question = question._replace(demand=question.demand.astype(dtype))
        members = question, history.astype(dtype), state, position
        assert isinstance(policy, Remembering)
        with policies.wrap_errors(f"policy {name_of(policy.policy)}, called for many demands at once (jax.vmap),"):
            return in_chunks(circuits_and_states, members, region, policy, options=QUICKLY_COMPILED)

    return RegionFunctions(choose, draw, seconds, waiting, remember)


def degrees_of(region: Region) -> np.ndarray:
    """Return `Region.degrees` as a NumPy array."""
    return np.broadcast_to(np.asarray(region.optical_degree, np.int32), region.servers)


def _choose(question: Question, region: Region, policy: Policy, reads: Reads) -> np.ndarray:
    plain = policy_of(policy)
    if plain is REGISTRY["uniform"] or region.servers == 1:  # a single server needs no circuits
        uniform = uniform_circuits(degrees_of(region))
        return np.broadcast_to(uniform, (len(question.demand), *uniform.shape))
    if reads.demand_alone and question.rates is None and question.demand.ndim == 3:
        if (search := _search_of(policy)) is not None:
            return _search_circuits(question.demand, region, search)
        return in_chunks(circuits_of, (question.demand,), region, policy, options=QUICKLY_COMPILED)
    lanes = LANES if len(question.demand) > LANES else WITH_MEMORY
    return in_chunks(circuits_after, tuple(question), region, policy, lanes=lanes, options=QUICKLY_COMPILED)


def _search_of(policy: Any) -> "policies.Search | None":
    """The search of a policy in `SETTLE_TIES` that starts by itself and reads the demand alone; None for others."""
    settings: dict[str, Any] = {}
    while hasattr(policy, "func"):
        alone = policy.args[0] if policy.args else None
        settings |= policy.keywords
        policy = alone if alone is not None else policy.func
    name = REGISTRY.name_of(policy)
    return policies.Search.of(name, settings) if name in SETTLE_TIES and settings.get("start") is None else None


def _search_circuits(demand: np.ndarray, region: Region, search: "policies.Search") -> np.ndarray:
    """Search as `sample_average` does, in two programs; the second takes the demands that the first left unsettled."""
    first, done = in_chunks(policies.first_of_each, (demand,), region, search, options=QUICKLY_COMPILED)
    left = np.flatnonzero(~done)
    if not len(left):
        return first.count
    unsettled = jax.tree.map(lambda x: x[left], first), demand[left]
    count = first.count.copy()
    count[left] = in_chunks(
        policies.further_of_each, unsettled, region, search, lanes=search.at_once, options=QUICKLY_COMPILED
    )
    return count


# ------------------------------------------------------------------------------------------------------------ programs
def circuits_of(demand: Any, region: Region, policy: Policy) -> Any:
    """Return the circuits [B S S] that a policy chooses from the demand alone."""
    return jax.vmap(lambda matrix: policy(matrix, region).circuits.count)(demand)


def circuits_after(demand: Any, before: Any, times: Any, key: Any, rates: Any, region: Region, policy: Policy) -> Any:
    """Return the circuits [B S S] that a policy chooses, given the circuits in place."""

    def choose(question: Question) -> Any:
        key = None if question.key is None else jax.random.wrap_key_data(question.key)
        return ask(policy, region, question._replace(key=key))

    return jax.vmap(choose)(Question(demand, before, times, key, rates))


def circuits_and_states(
    question: Question, history: Any, state: Any, position: Any, region: Region, policy: Remembering
) -> Any:
    """Return the circuits [B S S] and the states of a policy that remembers."""

    def choose(question: Question, history: Any, state: Any, position: Any) -> Any:
        key = None if question.key is None else jax.random.wrap_key_data(question.key)
        return recall(policy, region, question._replace(key=key), history, state, position)

    return jax.vmap(choose)(question, history, state, position)


def draw_circuits(key: Any, region: Region) -> Any:
    """Return random circuits [B S S]."""
    draw = lambda data: random_circuits(None, region, key=jax.random.wrap_key_data(data)).circuits.count  # noqa: E731
    return jax.vmap(draw)(key)


def seconds_of(count: Any, demand: Any, region: Region, carried: str | Callable[..., Any]) -> Any:
    """Return the seconds [B] until circuits finish and until packet switches finish."""
    parts = carried if callable(carried) else timer_of_routing(carried)
    return jax.vmap(lambda count, matrix: parts(region, Circuits(count), matrix))(count, demand)


def waiting_of(count: Any, demand: Any, reconfiguring: Any, region: Region, routing: str) -> Any:
    """Return `seconds_of`, and the seconds of traffic that waits for new circuits."""
    parts = timer_of_routing(routing)
    return jax.vmap(lambda count, matrix, reconfiguring: parts(region, Circuits(count), matrix, reconfiguring))(
        count, demand, reconfiguring
    )


# ------------------------------------------------------------------------------------------------------------- batches
def in_chunks(
    function: Callable[..., Any], members: tuple[Any, ...], *shared: Any, lanes: int = LANES, options: Any = None
) -> Any:
    """Run a program on all members along the first axis of arrays, in chunks.

    A CPU takes `lanes` members per chunk and pads the last chunk with zeros; accelerators take as many as fit in
    memory.
    """
    if platform() != "cpu":
        return evaluate(jax.tree_util.Partial(_of_members, function, shared), members, batched=True).arrays
    many = len(jax.tree.leaves(members)[0])
    parts = []
    for start in range(0, many, lanes):
        chunk = jax.tree.map(lambda x, start=start: _pad(x[start : start + lanes], lanes), members)
        parts.append(programs.run(function, *chunk, *shared, options=options))
    return jax.tree.map(lambda *x: np.concatenate(x)[:many], *parts)


def _pad(some: np.ndarray, lanes: int) -> np.ndarray:
    nothing = np.zeros((lanes - len(some), *some.shape[1:]), some.dtype)
    return np.concatenate([some, nothing]) if len(nothing) else some


def _of_members(function: Callable[..., Any], shared: tuple[Any, ...], members: tuple[Any, ...]) -> Any:
    return function(*members, *shared)
