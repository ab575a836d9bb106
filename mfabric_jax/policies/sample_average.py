"""One set of circuits for many demands (`sample_average`), and for one known demand (`joint`).

The search tries simple starts first. If none is within 0.1 % of the bound, it goes on with relaxed circuits and rounds
of swaps (`circuit_search`); under unsplit and split routing by `round_best`. With `start`, the circuits of a policy
come first, and swaps replace the relaxation.
Source: sample average approximation; Kleywegt, Shapiro, Homem-de-Mello, SIAM J. Optim. 12(2), 2002.
"""

import functools
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Float, Int, Num, PRNGKeyArray

from mfabric_jax import policies
from mfabric_jax.checks import InputError, concrete, format_value, not_negative, of_type, one_of, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies.arguments import circuits_before, demand_of, demands_of, unless_nan
from mfabric_jax.policies.circuit_search import (
    ENOUGH,
    LANES,
    Found,
    adaptive_delivery,
    best,
    fixed_delivery,
    improve_circuits,
    is_enough,
    most_promising,
    settle_each,
    shares_of,
)
from mfabric_jax.policies.greedy import greedy
from mfabric_jax.policies.paced import paced_delivery
from mfabric_jax.policies.relaxed import (
    FLOOR,
    first_logits,
    relax_jointly,
    relax_paced,
    round_best,
    round_circuits,
    soft_circuits,
)
from mfabric_jax.policies.samples import Samples, samples_of, tail_of
from mfabric_jax.policies.static import keep, uniform, uniform_circuits
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.demand import between_servers
from mfabric_jax.routing.relay_steps import settled_shares
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import floats, floats_or_nan
from mfabric_jax.support.host_arrays import NOT_NEGATIVE
from mfabric_jax.support.platforms import QUICKLY_COMPILED, in_step, map_members, platform

if TYPE_CHECKING:
    from mfabric_jax.policies import Policy

ROUTES = ("adaptive", "fixed")
ROUTINGS = ("relay", "unsplit", "split")
POWERS = (1.0, 0.5, 0.25)  # circuits are proportional to these powers of the demand
RELAXED = 8  # most demands in a relaxation
RELAXED_PACED = 4  # most demands in a relaxation without relay; for more, swaps alone end as early
AGAIN = 2  # further descents for the previous circuits
APART = 0.12  # weight of a pair of equally loaded servers, relative to the most unequally loaded pair


def sample_average(
    demand: Float[Array, "K S S"] | Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    weights: Float[Array, "K"] | None = None,
    routes: str = "adaptive",
    risk: str = "mean",
    routing: str = "relay",
    rounds: int = 12,
    swaps: int = 6,
    steps: int = 40,
    starts: int = 4,
    share_steps: int = 200,
    start: "str | Policy | None" = None,
    enough: float = ENOUGH,
) -> Plan:
    """Return one set of circuits for several demands; each counts by its time over its own degree bound.

    - `demand` [K S S]: bytes from server i to server j in K samples, or [S S] in one; the diagonal is ignored.
    - `previous`: its circuits are kept if they are within 0.1 % of the best. `key`: random key; None: a fixed one.
    - `weights` [K]: weight of each sample; None: equal weights.
    - `routes`: "adaptive": relay shares per sample, [K S S S+2] ([S S S+2] for one); "fixed": one set [S S S+2].
    - `risk`: what to minimise: the "mean" time, the mean of the worst fraction Q ("cvar:Q"), or the "worst".
    - `routing`: "relay"; or "unsplit" or "split", whose plans have no shares.
    - `rounds`, `swaps`: limits of the search. `steps`, `starts`: of the relaxation, of at most four demands under
      unsplit and split routing; there, `starts` sets of circuits are improved. `share_steps`: gradient steps towards
      the shares.
    - `start`: policy, by name or as a function, whose circuits for the mean demand come first, as in `joint`.
      "previous" starts from the previous circuits. It replaces the relaxation and the `share_steps`.
    - `enough`: relative gap to the lower bound at which the search stops.

    Legal for any demand; works in `vmap`.
    """
    one_of("routes", routes, ROUTES)
    one_of("routing", routing, ROUTINGS)
    tail = tail_of(risk)
    for name, value in (("rounds", rounds), ("steps", steps), ("share_steps", share_steps)):
        whole(name, value, at_least=0)
    whole("swaps", swaps)
    whole("starts", starts)
    enough = float(not_negative("enough", enough))
    demand, servers = floats("demand", demand), of_type("region", region, Region).servers
    if demand.ndim not in (2, 3) or demand.shape[-2:] != (servers, servers) or not len(demand):
        shape = list(demand.shape)
        raise InputError(f"demand must be [S S] or [K S S] with S = {servers} servers, got {shape}.")
    several = demands_of(demand if demand.ndim == 3 else demand[None], region)
    if weights is not None:
        weights = floats_or_nan("weights", weights, NOT_NEGATIVE, demand.dtype)
        if weights.shape != several.shape[:1]:
            raise InputError(f"weights must be [K] = [{len(several)}], got {list(weights.shape)}.")
    first = first_circuits(several, weights, region, start, previous, key)
    at_once = max(LANES // len(several), 1)
    search = Search(
        *(routing, routes, tail, rounds, swaps, steps, starts, previous is not None, at_once),
        enough=enough,
        begins=start is not None,
    )
    inputs = several, weights, region, first, key
    alone = platform() == "cpu" and all(map(concrete, jax.tree.leaves(inputs)))
    return _planning(search, share_steps, demand.ndim == 2, alone)(*inputs)


def first_circuits(
    demands: Float[Array, "K S S"],
    weights: Float[Array, "K"] | None,
    region: Region,
    start: "str | Policy | None",
    previous: Plan | None,
    key: PRNGKeyArray | None,
) -> list[Num[Array, "S S"]]:
    """Return the previous circuits, if any, and those of the policy `start` for the mean demand, if they are others."""
    before = circuits_before(previous, region)
    counts = [] if before is None else [before]
    if start is not None:
        policy = policies.get(start) if isinstance(start, str) else start
        if not callable(policy):
            raise InputError(f"start must be a policy, by name or as a function, got {format_value(start)}.")
        if before is None or policy is not keep:
            weight = samples_of(demands, region, weights).weight
            mean = (weight[:, None, None] * demands).sum(0)
            key = jax.random.key(0) if key is None else key
            counts.append(policy(mean, region, previous=previous, key=key).circuits.count)
    return counts


def _whole(shares: Float[Array, "S S S+2"]) -> Float[Array, "S S S+2"]:
    none = (shares.sum(2) == 0) & ~jnp.eye(len(shares), dtype=bool)
    return shares.at[..., -1].add(none.astype(shares.dtype))


class Search(NamedTuple):
    """Static settings of a search.

    `stay` prefers the first circuits, which were there before; `at_once` members run together. `begins`: the search
    begins with given circuits instead of simple starts and the relaxation.
    """

    routing: str
    routes: str
    tail: float
    rounds: int
    swaps: int
    steps: int
    starts: int
    stay: bool = False
    at_once: int = LANES
    enough: float = ENOUGH
    begins: bool = False

    @staticmethod
    def of(policy: str, settings: dict[str, Any]) -> "Search":
        """Return the search of "joint" or "sample-average" for one demand without a previous plan."""
        values = _defaults(sample_average) | settings
        if policy == "joint":
            own = _defaults(joint) | settings
            values |= {"steps": own["steps"], "starts": own["samples"], "rounds": own["rounds"]}
        return Search(tail=tail_of(values["risk"]), **{name: values[name] for name in Search._fields if name in values})


def _defaults(policy: Callable[..., Any]) -> dict[str, Any]:
    every = inspect.signature(policy).parameters.items()
    return {name: parameter.default for name, parameter in every if parameter.default is not parameter.empty}


def first_of_each(demand: Float[Array, "B S S"], region: Region, search: Search) -> tuple[Found, Array]:
    """Return the first stage of the search for each demand alone, and whether it suffices [B]."""

    def first_stage(demand: Array) -> tuple[Found, Array]:
        samples, before, key = _alone(demand, region)
        return stages(search)[0](samples, before, key)

    return map_members(first_stage, demand, search.at_once)


def further_of_each(
    results: Found, demand: Float[Array, "B S S"], region: Region, search: Search
) -> Int[Array, "B S S"]:
    """Return the circuits after the second stage, for demands whose first stage did not suffice."""

    def further_stage(result: Found, demand: Array) -> Array:
        return stages(search)[1](result, *_alone(demand, region)).count

    return jax.vmap(further_stage)(results, demand)


def _alone(demand: Float[Array, "S S"], region: Region) -> tuple[Samples, Array, PRNGKeyArray]:
    nothing = jnp.zeros((0, region.servers, region.servers), jnp.int32)
    return samples_of(between_servers(region, demand)[None], region, None), nothing, jax.random.key(0)


@functools.cache
def stages(search: Search) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the two stages of the search: starts for all members; all other work for those that are not done."""
    routing, routes, tail, rounds, swaps, steps, starts, stay, _, enough, begins = search
    relayed = routing == "relay"
    delivery = (
        paced_delivery(routing)
        if not relayed
        else fixed_delivery(tail, enough)
        if routes == "fixed"
        else adaptive_delivery(enough)
    )

    def legal(samples: Samples, count: Array, instead: Array) -> Array:
        return jnp.where(Circuits(count).is_legal(samples.degrees), count, instead)

    def first(samples: Samples, before: Array, key: Array):
        if begins:
            even = uniform_circuits(samples.degrees).astype(before.dtype)
            counts = jax.vmap(lambda count: legal(samples, count, even))(before)
            each = settle_each(samples, delivery, counts, delivery.cold(samples), False)
        else:
            counts = _plain(samples, relayed)
            each = settle_each(samples, delivery, counts, delivery.cold(samples), False)
            if stay:  # time the previous circuits more exactly, so that they are not replaced needlessly
                placed, state = legal(samples, before[0], counts[0]), delivery.cold(samples)
                state, seconds = delivery.settle(samples, placed, state, False)
                for _ in range(AGAIN):
                    state, seconds = delivery.settle(samples, placed, state, True)
                first_of_all = Found(placed, state, seconds)
                each = jax.tree.map(lambda leaf, others: jnp.concatenate([leaf[None], others]), first_of_all, each)
        result = best(samples, each, tail, stay)
        return result, is_enough(samples, result, tail, enough)

    def further(result: Found, samples: Samples, before: Array, key: Array):
        if not relayed:
            begin, key = jax.random.split(key)
            then = round_best(
                _begin_paced(samples, begin),
                samples,
                delivery,
                key,
                others=result.count[None],
                tail=tail,
                rounds=rounds,
                swaps=swaps,
                starts=starts,
            )
            return best(samples, _both(result, then), tail, stay) if stay else then
        if begins:
            others = list(_plain(samples, relayed))
        else:
            others = [in_proportion(samples, power) for power in POWERS[1:]]
            others.append(_unlike(samples))
        if steps and not begins:
            begin, key = jax.random.split(key)
            few = samples.some(jnp.arange(min(len(samples.pairs), RELAXED)))
            begun = first_logits(samples.mean, begin, starts)
            soft = map_members(lambda matrix: relax_jointly(few, matrix, steps, tail), begun, 1)
            others += list(jax.vmap(lambda matrix: round_circuits(matrix, samples.degrees))(soft))
        other = most_promising(samples, delivery, jnp.stack(others), delivery.cold(samples), 0, tail, False)
        start = best(samples, _both(result, other), tail, stay)
        then = improve_circuits(samples, delivery, start, key, rounds, swaps, tail, enough)
        return best(samples, _both(result, then), tail, stay) if stay else then

    def _begin_paced(samples: Samples, key: Array) -> Float[Array, "N S S"]:
        logits = jnp.stack([proportional_logits(samples, power) for power in POWERS])
        soft = jax.vmap(lambda matrix: soft_circuits(matrix, samples.degrees))(logits)
        if begins or not steps or len(samples.pairs) > RELAXED_PACED:
            return soft
        begun = first_logits(samples.mean, key, starts)
        return jnp.concatenate([soft, relax_paced(samples, begun, steps, routing, tail)])

    # `jit` traces each once, however often it is batched; `inline` lets XLA fuse it with its neighbours.
    return jax.jit(first, inline=True), jax.jit(further, inline=True)


@functools.cache
def _planning(search: Search, share_steps: int, single: bool, alone: bool) -> Callable[..., Plan]:
    """Return the function (demands, weights, region, first circuits, key) -> plan.

    It is one program, under relay routing one beside small ones: there, other rounding can end in other circuits.
    `single`: adaptive shares are those of the only demand. `alone`: no program surrounds this one, so that it can have
    compiler options.
    """
    relayed = search.routing == "relay"
    decide = batch_stages(*stages(search), search.at_once, not relayed)
    if relayed:
        decide = jax.jit(decide)

    def plan(demands: Array, weights: Array | None, region: Region, first: list[Array], key: Array | None) -> Plan:
        samples, key = samples_of(demands, region, weights), jax.random.key(0) if key is None else key
        nothing = jnp.zeros((0, region.servers, region.servers), jnp.int32)
        before = jnp.stack([count.astype(jnp.int32) for count in first]) if first else nothing
        result = decide(samples, before, key)
        circuits = Circuits(unless_nan(result.count, samples.mean))
        if not relayed:
            return Plan(circuits)
        if search.routes == "fixed":
            return Plan(circuits, _whole(shares_of(samples, result.count, result.state)))
        if search.begins:
            shares = jax.vmap(functools.partial(settled_shares, region, circuits))(demands, result.state)
        else:
            shares = jax.vmap(lambda demand: relay_shares(region, circuits, demand, steps=share_steps))(demands)
        return Plan(circuits, shares[0] if single else shares)

    return plan if relayed else jax.jit(plan, compiler_options=QUICKLY_COMPILED if alone else None)


def _both(first: Found, second: Found) -> Found:
    return jax.tree.map(lambda *x: jnp.stack(x), first, second)


def _plain(samples: Samples, relayed: bool) -> Int[Array, "C S S"]:
    mean, region = samples.mean, samples.region(1.0)
    by_greedy, even = greedy(mean, region, rule="next").circuits.count, uniform(mean, region).circuits.count
    return jnp.stack([by_greedy, in_proportion(samples, 1.0), even] if relayed else [by_greedy, even])


def in_proportion(samples: Samples, power: float) -> Int[Array, "S S"]:
    """Return circuits in proportion to a power of the mean demand, within the degrees."""
    return round_circuits(soft_circuits(proportional_logits(samples, power), samples.degrees), samples.degrees)


def proportional_logits(samples: Samples, power: float) -> Float[Array, "S S"]:
    pairs = jnp.maximum(samples.mean, samples.mean.T)
    floor = jnp.asarray(FLOOR, pairs.dtype) * pairs.mean() + jnp.finfo(pairs.dtype).tiny
    return jnp.asarray(power, pairs.dtype) * jnp.log(pairs + floor)


def _unlike(samples: Samples) -> Int[Array, "S S"]:
    """Return circuits between busy and idle servers, so that idle servers relay."""
    load = jnp.maximum(samples.mean.sum(0), samples.mean.sum(1))
    load = load / jnp.maximum(load.max(), jnp.finfo(load.dtype).tiny)
    apart = jnp.log(jnp.asarray(APART, load.dtype) + (load[:, None] - load[None]) ** 2)
    return round_circuits(soft_circuits(apart, samples.degrees), samples.degrees)


def joint(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    steps: int = 100,
    samples: int = 4,
    rounds: int = 12,
    start: "str | Policy | None" = None,
    enough: float = ENOUGH,
) -> Plan:
    """Return circuits and relay shares [S S S+2] (via server k, direct, EPS) of one all-to-all, by `relay_bound`.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `previous`: its circuits are kept if they are within 0.1 % of the best. `key`: random key; None: a fixed one.
    - `steps`, `samples`: gradient steps and starts of the relaxation. `rounds`: most rounds, each of six swaps.
    - `start`: policy, by name or as a function, whose circuits are timed first; "previous" starts from the previous
      ones. They are the result, with the shares of that timing, if they come within `enough` of the lower bound; else
      they compete with simple starts, and swaps improve the best. Nothing is relaxed: `steps`, `samples` are not read.
    - `enough`: relative gap to the lower bound at which the search stops.

    At most 0.2 % slower than `greedy_next` with `relay_shares`. Legal for any demand; works in `vmap`.
    """
    whole("samples", samples)
    demand = demand_of(demand, region)
    search: dict[str, Any] = {"steps": steps, "starts": samples, "rounds": rounds, "start": start, "enough": enough}
    return sample_average(demand, region, previous=previous, key=key, **search)


def batch_stages(
    first: Callable[..., Any], further: Callable[..., Any], at_once: int, unbatched: bool = False
) -> Callable[..., Any]:
    """Return a function that runs `first(*given) -> (found, done)` on a batch, then `further` on members not done.

    `further(found, *given)` returns `found`. Under `vmap`, members not done form groups of `at_once` on a CPU and one
    group elsewhere. `unbatched`: a batch of one runs without a group, in a smaller program that may round otherwise.
    """

    @custom_vmap
    def batch(inputs: Any):
        many = len(jax.tree.leaves(inputs)[0])
        if many == 1 and unbatched:
            member = jax.tree.map(lambda x: x[0], inputs)
            result, done = first(*member)
            result = lax.cond(done, lambda: result, lambda: further(result, *member))
            return jax.tree.map(lambda x: x[None], result)
        size = in_step(at_once, many)
        results, done = map_members(lambda member: first(*member), inputs, at_once)
        order = jnp.argsort(done, stable=True)
        groups = -(-many // size)
        order = jnp.concatenate([order, jnp.broadcast_to(order[-1:], (groups * size - many,))]).reshape(groups, size)

        def group(members: Any) -> Any:
            taken, own, over = jax.tree.map(lambda x: x[members], (results, inputs, done))

            def go_on():
                then = jax.vmap(lambda results, member: further(results, *member))(taken, own)
                return jax.tree.map(lambda new, old: jnp.where(_like(over, old), old, new), then, taken)

            return lax.cond(over.all(), lambda: taken, go_on)

        then = lax.map(group, order)
        flat = order.reshape(-1)
        return jax.tree.map(lambda old, new: old.at[flat].set(new.reshape(-1, *new.shape[2:])), results, then)

    @batch.def_vmap
    def _(axis_size: int, in_batched: Any, inputs: Any):
        whole = jax.tree.map(
            lambda x, batched: x if batched else jnp.broadcast_to(x, (axis_size, *x.shape)), inputs, in_batched[0]
        )
        many = jax.tree.leaves(whole)[0].shape[1]
        results = batch(jax.tree.map(lambda x: x.reshape(axis_size * many, *x.shape[2:]), whole))
        apart = jax.tree.map(lambda x: x.reshape(axis_size, many, *x.shape[1:]), results)
        return apart, jax.tree.map(lambda _: True, apart)

    def run(*inputs: Any):
        return jax.tree.map(lambda x: x[0], batch(jax.tree.map(lambda x: jnp.asarray(x)[None], inputs)))

    return run


def _like(flags: Array, x: Array):
    return flags.reshape(-1, *[1] * (x.ndim - 1))
