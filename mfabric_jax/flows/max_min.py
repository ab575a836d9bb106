"""Max-min fair rates of flows on fixed paths, by progressive filling with local bottlenecks.

All unfrozen flows rise together. A link is a bottleneck once no other link holds any of its flows lower; its flows
then freeze at its fair share. Fair shares never fall, so all bottlenecks may freeze in one round. F rounds suffice;
usually a few do. Source: Bertsekas & Gallager, Data Networks, 2nd ed., 6.5.2. Solves one instance; use `jax.vmap` for
batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from mfabric_jax.checks import of_type
from mfabric_jax.flows.problem import FlowPaths, FlowProblem, SolveOutcome, is_ill_posed, once, paths_of

SMALL = 512  # tables of up to this many flows are not packed


class MaxMinRates(eqx.Module):
    """Rates of flows and the link that limits each: the result of `max_min_rates`.

    - `rate` [F] bytes/s.
    - `bottleneck` [F]: the full link that limits the flow (lowest index on a tie); -1: its cap, or nothing.
    - `rounds`: rounds of filling; `outcome`: how the solve ended.
    """

    rate: Float[Array, "F"]
    bottleneck: Int[Array, "F"]
    rounds: Int[Array, ""]
    outcome: SolveOutcome


class Filling(NamedTuple):
    """Loop state. A frozen flow's `level` is rate / weight; `bottleneck` is the link that limits the flow, or -1."""

    level: Float[Array, "F"]
    frozen: Bool[Array, "F"]
    bottleneck: Int[Array, "F"]
    rounds: Int[Array, ""]

    def rate(self, weight: Float[Array, "F"]) -> Float[Array, "F"]:
        return jnp.where(weight > 0, weight * self.level, 0)


def max_min_rates(problem: FlowProblem) -> MaxMinRates:
    """Return max-min fair rates: no flow can go faster without slowing one whose rate / weight is not higher.

    A flow over a zero-capacity link has rate 0 (`SolveOutcome.starved`). A flow without hops runs at its cap; without a
    cap its rate is infinite. A flow of weight 0 has rate 0. Differentiable once, forward and reverse, in capacity,
    share, weight and cap; a second derivative raises `InputError`. At a tie the derivative follows the reported
    bottleneck. Memory is linear in the number of hops, also in the reverse pass.
    """
    return _max_min_rates(of_type("problem", problem, FlowProblem))


@jax.jit
def _max_min_rates(problem: FlowProblem) -> MaxMinRates:
    nonfinite, start = is_ill_posed(problem), nothing_frozen(problem)
    filled = fill(problem, start._replace(frozen=start.frozen | nonfinite))
    rate = _with_tangents(filled.rate(lax.stop_gradient(problem.weight)), filled.bottleneck, problem)
    outcome = SolveOutcome.where(jnp.any((rate == 0) & (problem.weight > 0)), SolveOutcome.starved, SolveOutcome.solved)
    outcome = SolveOutcome.where(filled.frozen.all(), outcome, SolveOutcome.unfinished)
    outcome = SolveOutcome.where(nonfinite, SolveOutcome.nonfinite, outcome)
    return MaxMinRates(jnp.where(nonfinite, jnp.nan, rate), filled.bottleneck, filled.rounds, outcome)


def nothing_frozen(problem: FlowProblem) -> Filling:
    """Return the start of filling: all flows at level 0, absent ones frozen."""
    weight = problem.weight
    return Filling(jnp.zeros_like(weight), weight == 0, jnp.full(weight.size, -1, jnp.int32), jnp.zeros((), jnp.int32))


def fill(problem: FlowProblem, start: Filling, floor: Array | float = 0.0) -> Filling:
    """Fill until all flows are frozen, without derivatives; those frozen in `start` stay so; levels are >= `floor`."""
    problem = lax.stop_gradient(problem)
    if problem.weight.size <= SMALL:
        return _rounds(problem, start, floor, 0)
    few = problem.weight.size // 4
    filled = _rounds(problem, start, floor, few)
    (row,) = jnp.nonzero(~filled.frozen, size=few, fill_value=start.level.size)
    room = room_left(paths_of(problem), problem.capacity, filled.rate(problem.weight))
    unfrozen = eqx.tree_at(lambda p: p.capacity, pack(problem, row), room)
    some = fill(unfrozen, nothing_frozen(unfrozen)._replace(rounds=filled.rounds), floor)
    level, frozen, bottleneck = (
        whole.at[row].set(part, mode="drop") for whole, part in zip(filled[:3], some[:3], strict=True)
    )
    return Filling(level, frozen, bottleneck, some.rounds)


def pack(problem: FlowProblem, row: Int[Array, "R"]) -> FlowProblem:
    """Return the problem reduced to the flows `row`; a row beyond the table becomes an absent flow."""

    def take(x: Array, fill: Any):
        return jnp.take(x, row, axis=0, mode="fill", fill_value=fill)

    chosen = take(problem.hops, -1), take(problem.share, 1), take(problem.weight, 0), take(problem.cap, jnp.inf)
    return eqx.tree_at(lambda p: (p.hops, p.share, p.weight, p.cap), problem, chosen)


def room_left(paths: FlowPaths, capacity: Float[Array, "L"], rate: Float[Array, "F"]) -> Float[Array, "L"]:
    """Return the capacity that flows at these rates leave on every link, summed anew to avoid drift."""
    return jnp.where(jnp.isinf(capacity), jnp.inf, jnp.maximum(capacity - paths.link_sum(rate), 0))


def fair_shares(
    paths: FlowPaths, capacity: Array, rate: Float[Array, "F"], rising: Float[Array, "F"]
) -> Float[Array, "L"]:
    """Return the level at which each link would be full: its room over the weights `rising` on it, or infinity."""
    load = paths.link_sum(rising)
    return jnp.where(load > 0, room_left(paths, capacity, rate) / jnp.where(load > 0, load, 1), jnp.inf)


def _rounds(problem: FlowProblem, start: Filling, floor: Array | float, few: int) -> Filling:
    paths, weight = paths_of(problem), problem.weight
    ceiling = jnp.where(weight > 0, problem.cap / jnp.where(weight > 0, weight, 1), jnp.inf)  # [F]
    bound = start.rounds + weight.size  # each round freezes a flow

    def filling(state: Filling) -> Bool[Array, ""]:
        left = (~state.frozen).sum(dtype=jnp.int32) > few if few else ~state.frozen.all()
        return left & (state.rounds < bound)

    def freeze_bottlenecks(state: Filling) -> Filling:
        rising = jnp.where(state.frozen, 0, weight)
        fair = jnp.maximum(fair_shares(paths, problem.capacity, state.rate(weight), rising), floor)  # [L]
        level = jnp.minimum(paths.at_hops(fair, jnp.inf).min(axis=1, initial=jnp.inf), ceiling)  # [F]
        level = jnp.where(state.frozen, jnp.inf, level)
        full = fair <= paths.link_min(level)  # exact: both sides are copies of one number
        tight = (paths.at_hops(jnp.where(full, fair, jnp.inf), jnp.inf) <= paths.spread(level)) & paths.present
        capped = ceiling <= level
        freeze = ~state.frozen & (tight.any(axis=1) | capped)
        holder = jnp.where(tight, paths.slot, paths.links).min(axis=1, initial=paths.links)
        holder = jnp.where((holder < paths.links) & ~capped, holder, -1)
        return Filling(
            jnp.where(freeze, level, state.level),
            state.frozen | freeze,
            jnp.where(freeze, holder, state.bottleneck),
            state.rounds + 1,
        )

    return lax.while_loop(filling, freeze_bottlenecks, start)


@jax.custom_jvp
def _with_tangents(rate: Array, bottleneck: Array, problem: FlowProblem) -> Float[Array, "F"]:
    return rate


@_with_tangents.defjvp
def _rate_tangents(primals: tuple[Any, ...], tangents: tuple[Any, ...]):
    """Differentiate the linear system of the known bottlenecks: on each, the shares * rates sum to the capacity, and a
    rate is the flow's cap, or weight * level of its bottleneck."""
    (rate, bottleneck, problem), d = once(primals), tangents[2]
    paths = paths_of(problem)
    held = bottleneck >= 0
    capped = ~held & (problem.weight > 0) & jnp.isfinite(rate)
    level = jnp.where(held, rate / jnp.where(held, problem.weight, 1), 0)
    known = jnp.where(capped, d.cap, d.weight * level)  # [F]
    finite = jnp.where(jnp.isfinite(rate), rate, 0)
    moved = paths.hop_sum(jnp.where(paths.present, d.share * paths.spread(finite), 0)) + paths.link_sum(known)
    d_level = _solve_levels(paths, bottleneck, problem.weight, d.capacity - moved)  # [L]
    d_rate = known + jnp.where(held, problem.weight * d_level[jnp.maximum(bottleneck, 0)], 0)
    return rate, jnp.where(jnp.isfinite(rate), d_rate, 0)


def _solve_levels(paths: FlowPaths, bottleneck: Array, weight: Array, rhs: Float[Array, "L"]) -> Float[Array, "L"]:
    """Solve for levels x: own[l] x[l] + (sum of share * weight * x[there], over flows of l held at other links) = rhs.

    The system is triangular in freezing order, so one fixed-point sweep per round solves it exactly; the transpose
    mirrors the sweep."""
    held, holder = bottleneck >= 0, jnp.maximum(bottleneck, 0)
    own_hop = (paths.slot == paths.spread(bottleneck)) & paths.present
    other_hop = paths.present & ~own_hop
    own = paths.hop_sum(jnp.where(own_hop, paths.share * paths.spread(weight), 0))
    used = own > 0
    safe = jnp.where(used, own, 1)

    def others(x: Array):
        there = paths.spread(jnp.where(held, weight * x[holder], 0))
        return paths.hop_sum(jnp.where(other_hop, paths.share * there, 0))

    def others_transposed(x: Array):
        crossing = jnp.where(other_hop, paths.share * paths.at_hops(x, 0.0), 0).sum(axis=1)
        return jnp.zeros_like(x).at[holder].add(jnp.where(held, weight * crossing, 0))

    def matvec(x: Array):
        return jnp.where(used, own * x + others(x), x)

    def sweep(step: Callable[[Array, Array], Array]):
        def solve(_: Any, b: Array):
            def changing(state: tuple[Any, ...]):
                return state[1] & (state[2] <= paths.links)

            def again(state: tuple[Any, ...]):
                x = step(state[0], b)
                return x, jnp.any(x != state[0]), state[2] + 1

            first = jnp.where(used, b / safe, b)
            return lax.while_loop(changing, again, (first, jnp.asarray(True), jnp.asarray(0)))[0]

        return solve

    forward = sweep(lambda x, b: jnp.where(used, (b - others(x)) / safe, b))
    backward = sweep(lambda x, b: jnp.where(used, (b - others_transposed(jnp.where(used, x, 0))) / safe, b))
    return lax.custom_linear_solve(matvec, jnp.where(used, rhs, 0), forward, backward)  # unused links: change 0
