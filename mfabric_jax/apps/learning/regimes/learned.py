"""The learned control: `Renewal` over proposals of the policy `ahead` for several horizons, and of rules."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from mfabric_jax.apps.learning.regimes.chains import SEEN, Chains
from mfabric_jax.apps.learning.regimes.controls import (
    AT_ONCE,
    FAMILIES,
    Proposals,
    Served,
    expectations,
    propose_for_expected,
    renew,
    run_timed,
)
from mfabric_jax.fabric import Region
from mfabric_jax.policies.ahead import SCENARIOS, TRIES, AheadNetwork, choose_ahead, shipped_ahead
from mfabric_jax.traffic.log_errors import mean_squared_error

HORIZONS = (1, 4, 12)  # all-to-alls that circuits are proposed for


def learned(
    chains: Chains,
    delays: Float[Array, "D"],
    routing: str,
    *,
    network: AheadNetwork | None = None,
    horizons: tuple[int, ...] = HORIZONS,
    tries: int = TRIES,
    scenarios: int = SCENARIOS,
) -> Served:
    """Follow "renewal" with the learned proposals for each of the horizons as further families."""
    network = shipped_ahead() if network is None else network
    expected = expectations(chains, routing)
    families = [propose_for_expected(name, chains, routing) for name in FAMILIES]
    families += look_ahead(chains, expected, routing, network, horizons, tries, scenarios)
    return renew(chains, expected, families, delays, routing)


def look_ahead(
    chains: Chains,
    expected: Float[Array, "B T S S"],
    routing: str,
    network: AheadNetwork,
    horizons: tuple[int, ...],
    tries: int,
    scenarios: int,
) -> list[Proposals]:
    """Return the circuits of `ahead` before every all-to-all, for each horizon."""
    many, steps, servers = expected.shape[:3]
    history = histories(chains)
    previous = bool(jnp.array_equal(expected[:, 1:], chains.demand[:, :-1]))
    sigma = None if previous else jnp.broadcast_to(errors_so_far(expected, chains.demand), (many, steps)).reshape(-1)
    demand, history = expected.reshape(-1, servers, servers), history.reshape(-1, SEEN, servers, servers)
    proposals = []
    for horizon in horizons:
        each = _in_batches(
            network, demand, history, sigma, chains.region, jnp.asarray(horizon, jnp.float32), routing, tries, scenarios
        )
        proposals.append(each._replace(count=each.count.reshape(many, steps, servers, servers)))
    return proposals


def histories(chains: Chains) -> Float[Array, "B T H S S"]:
    """Return the last `SEEN` demands before each all-to-all, newest last; zeros where there were fewer."""
    many, steps, servers = chains.demand.shape[:3]
    nothing = jnp.zeros((many, SEEN, servers, servers), chains.demand.dtype)
    past = jnp.concatenate([nothing, chains.demand], axis=1)
    return jnp.stack([past[:, back : back + steps] for back in range(SEEN)], axis=2)


def errors_so_far(expected: Float[Array, "B T S S"], demand: Float[Array, "B T S S"]) -> Float[Array, "T"]:
    """Return the root mean squared log error of the expected demands before each all-to-all, over all chains."""
    square = mean_squared_error(expected, demand).mean(0)
    before = jnp.concatenate([jnp.zeros(1, square.dtype), jnp.cumsum(square)[:-1]])
    return jnp.sqrt(before / jnp.maximum(jnp.arange(len(square), dtype=square.dtype), 1))


def _in_batches(network, demand, history, sigma, region, horizon, routing, tries, scenarios) -> Proposals:
    short = -len(demand) % AT_ONCE
    order = np.minimum(np.arange(len(demand) + short), len(demand) - 1).reshape(-1, AT_ONCE)
    counts, seconds = [], []
    for some in order:
        arguments = network, region, demand[some], history[some], None if sigma is None else sigma[some], horizon
        count, took = run_timed(_look_ahead, routing, tries, scenarios, *arguments)
        counts.append(count)
        seconds.append(took)
    return Proposals(jnp.concatenate(counts)[: len(demand)], float(np.median(seconds)) / AT_ONCE)


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _look_ahead(
    routing: str,
    tries: int,
    scenarios: int,
    network: AheadNetwork,
    region: Region,
    demand: Float[Array, "K S S"],
    history: Float[Array, "K H S S"],
    sigma: Float[Array, "K"] | None,
    horizon: Float[Array, ""],
) -> Int[Array, "K S S"]:
    def choose(demand: Array, history: Array, sigma: Array | None):
        key = jax.random.key(0)
        return choose_ahead(network, demand, history, region, key, horizon, sigma, routing, tries, scenarios)

    return jax.vmap(choose)(demand, history, sigma)
