"""When to reconfigure: along a sequence of all-to-alls, keep the circuits, change a few of them, or change them all.

A step takes its all-to-all, plus what the computation before it does not hide of the switch's delay if circuits change
(until the switch is done the all-to-all waits). Where the delay grows with the circuits set up anew, changing a few may
pay where changing all does not.
Sources: ski rental, Karlin, Manasse, Rudolph, Sleator, Competitive snoopy caching, Algorithmica 3, 1988; many states:
Borodin, Linial, Saks, Metrical task systems, J. ACM 39(4), 1992.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.checks import InputError, one_of, positive, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy
from mfabric_jax.routing import Plan
from mfabric_jax.routing.region import as_demand
from mfabric_jax.timing.trajectory import ReconfigurationCost, Routing, Trajectory, checked_demands, started, timed

WHEN = {
    "always": "at every step",
    "never": "keep the circuits of the start",
    "every": "at every n-th step, the first included",
    "threshold": "once the gain over the horizon exceeds the delay that is exposed",
    "rent-or-buy": "once the regret since the last change exceeds the delay that is exposed",
}


def follow(
    demands: Float[Array, "T S S"],
    region: Region,
    policy: Policy | tuple[Policy, ...],
    *,
    rule: str = "rent-or-buy",
    routing: Routing = "split",
    forecast: Float[Array, "T S S"] | None = None,
    hidden_s: Any = 0.0,
    each_s: Any = 0.0,
    every: Any = 1,
    pool: int = 8,
    start: Plan | None = None,
    key: Array | None = None,
) -> Trajectory:
    """Walk through `demands` [bytes] under a rule of `WHEN`; the switch takes `region.delay_s`.

    - `policy`: offers circuits; or several do, of which "threshold" and "rent-or-buy" choose and the others take the
      first. Each is called with `previous` (what is in place), so that one may change only a few.
    - `routing`: "unsplit", "best-path", "split", timed by `fluid_lower_bound`; or a function (region, circuits, demand)
      -> seconds, as for relay routing, whose shares belong to one demand.
    - `forecast`: what circuits are chosen for and judged by before a step; None: its very demand. Where it has no bytes
      nothing changes. See `last` and `moving_average`.
    - `hidden_s` () or [T]: of the delay, behind the computation before a step.
    - `each_s`: further delay for every circuit set up anew: robotic patch panels move one fibre at a time.
    - `every`: n of "every".   - `pool` (static): how many earlier offers "rent-or-buy" keeps in mind.
    - `start`: the circuits before the first step; None: `uniform`.   - `key`: for policies that need one.

    "threshold" expects a gain g now to come to g / (1 - p) in all: p is the part of all gains so far, of offers taken
    or not, that was left one step later; it looks no further ahead than back. "rent-or-buy" adds up how much longer
    steps took than they would have with each earlier offer, and takes one in the step that brings its sum above the
    exposed delay. Where demand changes once, what it loses is at most twice the least possible (ski rental); where it
    drifts no online rule promises less than 2N - 1 times among N topologies.
    Measured as total over the optimum's, 8 servers, unsplit. `Drift` of pairs (2, skew 0.5, memory 0.9 to 0.999), 200
    steps of 2 to 5 ms, delays of 10 us to 100 ms: "rent-or-buy" 1.00 to 1.40 (mean of 6 traces; worst 1.53),
    "threshold" 1.01 to 1.45 (1.66), "always" 1.01 to 33, "never" 1.09 to 2.45. Recorded MoE traffic: both at most 1.02.
    Costs T calls of every policy; one compiled program per shape, rule and policy. Batched by `vmap` over demands and
    regions, and so over delays. `InputError` for shapes, names and values that are not allowed.

    Example: `follow(demands, Region(8, 400.0, delay_s=0.01), greedy, rule="threshold").total_s`.
    """
    demands = checked_demands("demands", demands, region)
    foreseen = None if forecast is None else checked_demands("forecast", forecast, region).astype(demands.dtype)
    if foreseen is not None and foreseen.shape != demands.shape:
        raise InputError(f"forecast must have the demands' shape {list(demands.shape)}, got {list(foreseen.shape)}.")
    if not isinstance(every, jax.Array):
        whole("every", every)
    options = policy if isinstance(policy, tuple) else (policy,)
    if not options:
        raise InputError("policy must be a policy or a tuple of at least one, got an empty tuple.")
    keys = None if key is None else jax.random.split(key, len(demands))
    cost = ReconfigurationCost.of(region, hidden_s, each_s, demands)
    choice = options, one_of("when", rule, WHEN), timed(routing)
    start_at, turns = started(region, start), jnp.asarray(every, jnp.int32)
    return _followed(demands, foreseen, keys, region, cost, turns, start_at, *choice, whole("pool", pool))


class _Gains(NamedTuple):
    """For "threshold": circuits [S S] and offers [O S S] of the step before, what these gained there [O], and sums of
    such gains at once and one step later [O]."""

    before: Int[Array, "S S"]
    offers: Int[Array, "O S S"]
    gain: Float[Array, "O"]
    gained: Float[Array, "O"]
    stayed: Float[Array, "O"]

    def later(self, gain: Float[Array, "O"]) -> "_Gains":
        """Knowing what the last offers would have gained one step later."""
        some = self.gain > 0
        gained = self.gained + jnp.where(some, self.gain, 0)
        return self._replace(gained=gained, stayed=self.stayed + jnp.where(some, gain, 0))

    def horizon(self, steps) -> Float[Array, "O"]:
        """Steps' worth of gain that a gain now is expected to be in all, `steps` after the start."""
        some = self.gained > 0
        stays = jnp.where(some, self.stayed / jnp.where(some, self.gained, 1), 0)
        return 1 / (1 - jnp.clip(stays, 0, 1 - 1 / (steps + 1).astype(stays.dtype)))


class _Pool(NamedTuple):
    """For "rent-or-buy": earlier offers [K S S], and what was lost for want of each since the last change, or since
    having it would last have lost as much as gained [K] (Page's cumulative sum); -1 where it is there twice."""

    counts: Int[Array, "K S S"]
    regret: Float[Array, "K"]

    def joined(self, offers: Int[Array, "O S S"]) -> "_Pool":
        """With new offers."""
        known = jax.vmap(lambda one: jnp.all(one[None] == self.counts, axis=(1, 2)).any())(offers)
        regret = jnp.where(known, -1, 0).astype(self.regret.dtype)
        return _Pool(jnp.concatenate([self.counts, offers]), jnp.concatenate([self.regret, regret]))

    def grown(self, gain: Float[Array, "K"]) -> Float[Array, "K"]:
        """Regret with one more step's."""
        return jnp.where(self.regret < 0, -1, jnp.maximum(self.regret + gain, 0))

    def kept(self, size: int, gain: Float[Array, "K"], changed) -> "_Pool":
        """The `size` of most regret after a step; a change ends all regret."""
        most, which = lax.top_k(self.grown(gain), size)
        return _Pool(self.counts[which], jnp.where(changed, jnp.minimum(most, 0), most))


@functools.partial(jax.jit, static_argnames=("options", "rule", "seconds", "pool"))
def _followed(
    demands, foreseen, keys, region, cost: ReconfigurationCost, every, start, options, rule, seconds, pool: int
) -> Trajectory:
    """`follow` once everything is checked; a foreseen of None is the very demand."""

    def gains(count, offers, demand):
        offered = jax.vmap(lambda offer: seconds(region, Circuits(offer), demand))(offers)
        kept = seconds(region, Circuits(count), demand)
        most = float(jnp.finfo(kept.dtype).max) ** 0.5  # for infinity: sums stay finite
        return jnp.clip(jnp.where(offered == kept, 0, kept - offered), -most, most)

    def step(state, now):
        (count, memory), (demand, guess, key, hidden, at) = state, now
        guess = demand if guess is None else guess
        place = Plan(Circuits(count))
        made = [one(guess, region, previous=place, key=key).circuits.count for one in options]
        offers = jnp.stack([one.astype(count.dtype) for one in made])
        if rule == "rent-or-buy":
            memory = memory.joined(offers)
            offers = memory.counts
        gain = gains(count, offers, guess)
        if rule == "threshold":
            memory = memory.later(gains(memory.before, memory.offers, guess))
            worth = memory.horizon(at) * gain
        elif rule == "rent-or-buy":
            worth = memory.grown(gain)
        else:
            due = {"always": True, "never": False, "every": at % every == 0}[rule]
            worth = jnp.full_like(gain, -jnp.inf).at[0].set(jnp.where(due, jnp.inf, -jnp.inf))
        net = worth - jax.vmap(lambda offer: cost.exposed_s(count, offer, hidden))(offers)
        best = jnp.argmax(net)
        after = jnp.where((net[best] > 0) & (guess > 0).any(), offers[best], count)
        changed = jnp.any(after != count)
        if rule == "threshold":
            memory = _Gains(count, offers, gain, memory.gained, memory.stayed)
        elif rule == "rent-or-buy":
            memory = memory.kept(pool, gain if foreseen is None else gains(count, offers, demand), changed)
        exchange = seconds(region, Circuits(after), demand)
        return (after, memory), Trajectory(after, changed, exchange, cost.exposed_s(count, after, hidden))

    def copies(times: int):
        return jnp.broadcast_to(start, (times, *start.shape))

    nothing, alone = jnp.zeros(len(options), demands.dtype), jnp.full(pool, -1, demands.dtype).at[0].set(0)
    memory = {
        "threshold": _Gains(start, copies(len(options)), nothing, nothing, nothing),
        "rent-or-buy": _Pool(copies(pool), alone),
    }
    steps = (demands, foreseen, keys, cost.hidden_s, jnp.arange(len(demands), dtype=every.dtype))
    return lax.scan(step, (start, memory.get(rule)), steps)[1]


def last(demands: Float[Array, "T S S"], period: int = 1) -> Float[Array, "T S S"]:
    """A forecast for `follow`: the demand of `period` steps ago (as many as there are blocks in turn); 0 before."""
    demands, period = as_demand(demands), whole("period", period)
    return jnp.concatenate([jnp.zeros_like(demands[:period]), demands[:-period]])


def moving_average(demands: Float[Array, "T S S"], weight: Any, period: int = 1) -> Float[Array, "T S S"]:
    """A forecast for `follow`: what was `period`, 2 `period`, ... steps ago, weighed by 1, 1 - `weight`,
    (1 - `weight`)^2, ... over the sum of these; 0 before. `weight` is above 0; 1 is `last`."""
    before = last(demands, period)
    stays = 1 - jnp.asarray(positive("weight", weight), before.dtype)

    def add(state, now):
        (sums, masses), (demand, at) = state, now
        turn = at % period
        one = jnp.where(at < period, 0, 1).astype(before.dtype)
        sums, masses = sums.at[turn].set(stays * sums[turn] + demand), masses.at[turn].set(stays * masses[turn] + one)
        return (sums, masses), sums[turn] / jnp.maximum(masses[turn], one / 2 + 0.5)

    empty = jnp.zeros((period, *before.shape[1:]), before.dtype), jnp.zeros(period, before.dtype)
    return lax.scan(add, empty, (before, jnp.arange(len(before))))[1]
