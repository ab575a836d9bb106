"""Chains of all-to-alls: circuits stay until the policy changes them, and each change costs the delay.

A chain's forecasts are either the true demand with log-normal errors, or they repeat the previous step: its demand, or
only the popularity of its receivers. Training minimises `chain_time` over the whole chain. `serve_chain` times a policy
with whole circuits.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Key

from mfabric_jax.apps.learning.judging import over_bound
from mfabric_jax.apps.learning.step_costs import change_s
from mfabric_jax.apps.learning.trajectories import Trajectory
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Policy, settings_of
from mfabric_jax.policies.circuit_search import ENOUGH
from mfabric_jax.policies.network import PolicyNetwork
from mfabric_jax.policies.relaxed import INACTIVE, draw_to_whole, soft_circuits, softened_circuit_time
from mfabric_jax.policies.samples import Samples, normalise, samples_of
from mfabric_jax.policies.static import uniform_circuits
from mfabric_jax.policies.weighing import relative_delay
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.routing.potentials import minimise
from mfabric_jax.traffic.demand_families import noisy_forecast
from mfabric_jax.traffic.log_errors import log_errors
from mfabric_jax.traffic.samplers import drifting
from mfabric_jax.traffic.scenarios import expected_demand

TEMPERATURE = 0.03  # softness of the largest link time, in degree bounds
UNDECIDED = 0.05  # softness of the choice to keep or change circuits, in degree bounds
LEAST_DELAY, MOST_DELAY = 0.01, 30.0  # range of training delays, in degree bounds; a quarter of the chains have none
FREE_PART = 0.25  # fraction of chains without a delay
ONLY_POPULAR = 0.5  # fraction of predictions that know only the popularity of receivers


class Chain(NamedTuple):
    """A chain of T all-to-alls. `sigma` measures the errors of `forecast`; computation hides `hidden_s` of the region's
    delay."""

    region: Region
    demand: Float[Array, "T S S"]
    forecast: Float[Array, "T S S"]
    sigma: Float[Array, ""]
    hidden_s: Float[Array, ""]


# --------------------------------------------------------------------------------------------------- random chains
def popularity(demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Return the demand that follows from the total bytes of senders and receivers alone."""
    total = demand.sum()
    outer = demand.sum(1)[:, None] * demand.sum(0)[None] / jnp.where(total > 0, total, 1)
    return jnp.where(jnp.eye(len(demand), dtype=bool), 0, outer)


def error_spread(forecast: Float[Array, "T S S"], demand: Float[Array, "T S S"]) -> Float[Array, ""]:
    """Return the standard deviation of the `log_errors` of all pairs."""
    error, both = log_errors(forecast, demand)
    return jnp.sqrt((error**2).sum() / jnp.maximum(both.sum().astype(demand.dtype), 1))


def predict_from_previous(
    key: Key[Array, ""], demands: Float[Array, "records S S"]
) -> tuple[Float[Array, "T S S"], Float[Array, ""]]:
    """Predict every demand except the first from the previous one; return the forecasts [T = records - 1] and the size
    of their errors."""
    popular = jax.random.uniform(key, (), jnp.float32) < ONLY_POPULAR
    before = demands[:-1]
    guess = jnp.where(popular, jax.vmap(popularity)(before), before)
    return guess, error_spread(guess, demands[1:])


def draw_chain(
    key: Key[Array, ""],
    region: Region,
    base: Float[Array, "S S"],
    recorded: Float[Array, "records S S"] | None,
    steps: int,
    sigma: Float[Array, ""],
    noisy_share: float,
) -> Chain:
    """Draw a chain of `steps` that drifts around `base`, or take the `recorded` one, of `steps` + 1 records.

    A fraction `noisy_share` of the chains has forecasts with errors `sigma`. The others predict each demand from the
    previous one.
    """
    keys = jax.random.split(key, 9)
    part = [jax.random.uniform(entry, (), jnp.float32) for entry in keys[:6]]
    demands = base[None]
    if steps > 1 or noisy_share < 1:
        demands = drifting(keys[6], base, steps + 1, skew=part[0], pairs=part[1], memory=0.5 + part[2] / 2)
        demands = demands if recorded is None else recorded
        demands, (guess, error) = demands[1:], predict_from_previous(keys[7], demands)
    noisy = jax.vmap(lambda key, entry: noisy_forecast(key, entry, sigma))(jax.random.split(keys[8], steps), demands)
    forecast = noisy
    if noisy_share < 1:
        is_noisy = part[3] < noisy_share
        forecast, sigma = jnp.where(is_noisy, noisy, guess), jnp.where(is_noisy, sigma, error)
    bound = degree_bound(region, demands.mean(0))
    ratio = LEAST_DELAY * (MOST_DELAY / LEAST_DELAY) ** ((part[4] - FREE_PART) / (1 - FREE_PART))
    delay_s = jnp.where(part[4] < FREE_PART, 0, ratio) * bound if steps > 1 else jnp.zeros((), jnp.float32)
    region = _with_delay(region, delay_s)
    hidden = jnp.maximum(2 * part[5] - 1, 0) * delay_s  # half of the chains hide nothing
    return Chain(region, demands, forecast, sigma, hidden.astype(jnp.float32))


def _with_delay(region: Region, delay_s: Float[Array, ""]) -> Region:
    fields = {name: getattr(region, name) for name in ("optical_degree", "electrical_nics", "relay_efficiency")}
    return Region(region.servers, region.nic_gbps, **fields, delay_s=delay_s.astype(jnp.float32))


# ---------------------------------------------------------------------------------------------------------- training
def chain_time(model: PolicyNetwork, chain: Chain, strength: Float[Array, ""], share_steps: int) -> Float[Array, ""]:
    """Return the softened time of the chain over its degree bounds, with real-valued circuits.

    The choice to keep or change circuits is soft and uses only the forecast. A choice that knew the true demand would
    reward proposals that win by luck. The time is the expectation over both choices. The likelier circuits stay for the
    next step, with the gradient of the mixture. A chain of one step always takes the proposal.
    """
    region, degrees, patience = chain.region, chain.region.degrees, jnp.exp(_patience(model))
    bound = jax.vmap(lambda matrix: degree_bound(region, matrix))(chain.demand)
    safe = jnp.where(bound > 0, bound, 1)
    cost = jnp.maximum(jnp.asarray(region.delay_s, bound.dtype) - chain.hidden_s, 0) / safe

    def step(before, now):
        demand, forecast, cost = now
        seen, spread = expected_demand(forecast, chain.sigma)
        delay = relative_delay(region, seen, chain.hidden_s)
        logits = model.logits(normalise(seen, region), degrees, spread, before, delay)
        fresh = draw_to_whole(soft_circuits(logits, degrees), strength)
        true = samples_of(demand[None], region)
        changed_time = softened_sample_time(true, fresh, share_steps)
        if len(chain.demand) == 1:
            return fresh, changed_time
        kept = softened_sample_time(true, before, share_steps)
        likely = samples_of(seen[None], region)
        saved = softened_sample_time(likely, before, share_steps) - softened_sample_time(likely, fresh, share_steps)
        part = jax.nn.sigmoid((lax.stop_gradient(saved) * patience - cost) / UNDECIDED)
        hard = lax.stop_gradient((part > 0.5).astype(part.dtype) - part) + part
        return hard * fresh + (1 - hard) * before, part * (changed_time + cost) + (1 - part) * kept

    start = uniform_circuits(degrees).astype(chain.demand.dtype)
    _, late = lax.scan(step, start, (chain.demand, chain.forecast, cost))
    return (late * bound).sum() / jnp.where(bound.sum() > 0, bound.sum(), 1)


def softened_sample_time(true: Samples, count: Float[Array, "S S"], steps: int) -> Float[Array, ""]:
    """Return the softened time of one sample; its relay potentials take `steps` and are then held fixed."""
    width = count + jnp.asarray(INACTIVE, count.dtype)
    return softened_circuit_time(true, width, settle_potentials(true, width, steps), TEMPERATURE, 1.0)


def settle_potentials(true: Samples, width: Float[Array, "S S"], steps: int) -> Float[Array, "1 links S"]:
    """Return the relay potentials of one sample after `steps`, without derivatives."""
    links, _ = true.links(true.pairs[0], lax.stop_gradient(width))
    held, _ = minimise(links.soft_time, true.cold[0], steps, enough=true.limit[0] * (1 + ENOUGH / 2))
    return lax.stop_gradient(held)[None]


def _patience(model: PolicyNetwork) -> Float[Array, ""]:
    return jnp.zeros((), jnp.float32) if model.patience is None else model.patience


# ----------------------------------------------------------------------------------------------------------- judging
def serve_chain(policy: Policy, chain: Chain, key: Key[Array, ""], steps: int) -> Trajectory:
    """Return the time of every step of the chain under a policy with whole circuits.

    The policy sees the forecast and the current circuits. The chain starts with uniform circuits. Relay shares take
    `steps` gradient steps for the true demand.
    """
    region = chain.region
    known = settings_of(policy)
    settings = {name: value for name, value in (("sigma", chain.sigma), ("hidden_s", chain.hidden_s)) if name in known}
    delay_s = jnp.asarray(region.delay_s, chain.demand.dtype)

    def step(before, now):
        demand, forecast, key = now
        plan = policy(forecast, region, previous=Plan(Circuits(before)), key=key, **settings)
        count = plan.circuits.count.astype(before.dtype)
        late = over_bound(region, Circuits(count), demand, "relay", steps) * degree_bound(region, demand)
        paid = jnp.maximum(change_s(before, count, delay_s, 0.0) - chain.hidden_s, 0)
        return count, Trajectory(count, jnp.any(count != before), late, paid)

    keys = jax.random.split(key, len(chain.demand))
    return lax.scan(step, uniform_circuits(region.degrees), (chain.demand, chain.forecast, keys))[1]


def chain_time_over_bound(chains: Chain, trajectory: Trajectory) -> Float[Array, "B"]:
    """Return the seconds of every chain, changes included, over the sum of its degree bounds."""
    bound = jax.vmap(lambda chain: jax.vmap(lambda demand: degree_bound(chain.region, demand))(chain.demand).sum())(
        chains
    )
    return trajectory.total_s / jnp.where(bound > 0, bound, 1)
