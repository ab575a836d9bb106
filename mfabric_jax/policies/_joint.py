"""Circuits and relay routing chosen together.

Candidates are the circuits in place, rounded relaxations of circuits and shares (`joint_relaxation`), greedy, uniform
and random circuits. The one on which gradient steps find the shares that end first is bettered by the swaps of circuits
that link prices favour (`relay_swaps`), until it is within 0.1 % of a bound (`relay_limit`) or the rounds are over. How
good that is: `experiments.joint_on_traces`; on drawn demand at most 1.1 % above the bound on average.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from mfabric_jax.checks import whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies._greedy import greedy
from mfabric_jax.policies._soft_circuits import first_logits, rounded
from mfabric_jax.policies._static import random_circuits, uniform
from mfabric_jax.policies.joint_relaxation import relaxed_jointly, relay_limit
from mfabric_jax.policies.relay_swaps import circuit_worth, swaps
from mfabric_jax.routing import Plan, relay_shares
from mfabric_jax.routing.region import between_servers, relay_bound

SWAPS = 6  # tried in a round
ENOUGH = 1e-3  # above the bound: no more rounds; above the best: circuits in place stay
RANKING_STEPS, LAST_STEPS = 100, 200  # of gradient towards shares: to compare circuits, and for the plan

_Found = tuple[Int[Array, "S S"], Float[Array, "S S S+2"], Float[Array, ""]]  # circuits, shares, seconds


def joint(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: PRNGKeyArray | None = None,
    steps: int = 300,
    samples: int = 2,
    rounds: int = 12,
) -> Plan:
    """Circuits and relay shares with which one all-to-all ends early when its flows are paced (`relay_bound`).

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.
    - `previous`: its circuits stay where they are as good as the best to 0.1 %.
    - `key`: of noise; None: always the same.
    - `steps`, `samples`: of the relaxation, which starts from the demand and, in all samples but the first, noise.
    - `rounds`: of six swaps each, at most. `samples=1, rounds=0` is a faster setting.

    Never later (by more than 0.1 %, with `previous`) than greedy circuits by the rule "next" with `relay_shares`, to
    which it falls back, also where some bytes have no way on any candidate. Shares are [S S S+2] of (via server k,
    direct circuits, EPS). Legal for any demand. Compiled once per shape; batched by `vmap`, at about
    16 S^3 (samples + 6) floats each.
    """
    demand = between_servers(region, demand)
    whole("steps", steps, at_least=0)
    whole("samples", samples)
    whole("rounds", rounds, at_least=0)
    before = None if previous is None else previous.circuits.count
    key = jax.random.key(0) if key is None else key
    count, shares = _chosen(demand, region, before, key, steps, samples, rounds)
    return Plan(Circuits(count), shares)


@functools.partial(jax.jit, static_argnames=("steps", "samples", "rounds"))
def _chosen(demand, region: Region, before, key, steps: int, samples: int, rounds: int):
    start, place, move = jax.random.split(key, 3)
    logits = first_logits(demand, start, samples)
    soft = jax.vmap(lambda logits: relaxed_jointly(demand, region, logits, steps))(logits)
    relaxed = jax.vmap(lambda count: rounded(count, region.degrees))(soft)
    plain = greedy(demand, region, rule="next"), uniform(demand, region), random_circuits(demand, region, key=place)
    first = [plain[0].circuits.count]
    if before is not None:
        legal = (before.sum(1, dtype=region.degrees.dtype) <= region.degrees).all()
        first.insert(0, jnp.where(legal, before.astype(first[0].dtype), first[0]))
    candidates = jnp.concatenate([jnp.stack([*first, *(plan.circuits.count for plan in plain[1:])]), relaxed])
    found = _best(region, demand, candidates, RANKING_STEPS, before is not None)
    count = _swapped(demand, region, found, move, rounds) if rounds else found[0]
    return _best(region, demand, jnp.stack([*first, count]), LAST_STEPS, before is not None)[:2]


def _best(region: Region, demand, counts: Int[Array, "K S S"], steps: int, stay: bool = False) -> _Found:
    """Of the circuits, those on which relayed bytes end first; on ties the first. `stay`: the first if nearly so."""

    def routed(count):
        shares = relay_shares(region, Circuits(count), demand, steps=steps)
        return shares, relay_bound(region, Plan(Circuits(count), shares), demand)

    shares, seconds = jax.vmap(routed)(counts)
    best = jnp.argmin(seconds.at[0].divide(1 + ENOUGH) if stay else seconds)
    return counts[best], shares[best], seconds[best]


def _swapped(demand, region: Region, found: _Found, key, rounds: int) -> Int[Array, "S S"]:
    """The circuits after rounds of the swaps that link prices favour, each keeping the best if it is earlier."""
    enough = relay_limit(region, demand) * jnp.asarray(1 + ENOUGH, demand.dtype)

    def searching(state):
        turn, (_, _, seconds) = state
        return (turn < rounds) & (seconds > enough)

    def step(state):
        turn, (count, shares, seconds) = state
        worth = circuit_worth(region, Circuits(count), shares, demand)
        tried = swaps(count, region.degrees, worth, jax.random.fold_in(key, turn), SWAPS)
        then = _best(region, demand, tried, RANKING_STEPS)
        better = then[2] < seconds
        return turn + 1, jax.tree.map(lambda new, old: jnp.where(better, new, old), then, (count, shares, seconds))

    return lax.while_loop(searching, step, (jnp.zeros((), jnp.int32), found))[1][0]
