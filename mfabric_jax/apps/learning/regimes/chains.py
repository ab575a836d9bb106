"""Chains of demands of a regime, and what is known before each of them."""

import dataclasses
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.apps.learning.regimes.cells import NIC_GBPS, PREVIOUS, RECORDED, Regime
from mfabric_jax.apps.learning.sources import BYTES_PER_SERVER, Drift
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.policies.reads import SEEN
from mfabric_jax.traffic.demand_families import fold_to_servers, gate_trace
from mfabric_jax.traffic.samplers import split_records

ERRORS = 7919  # folded into the seed's key for the errors of forecasts


@dataclasses.dataclass(frozen=True, eq=False)
class Chains:
    """B chains of T demands [bytes] on one region; the first `SEEN` are history. `seed` [B]: each chain's own.

    `forecast` [B T S S]: what is forecast of a demand before it comes; `noisy`: the demand itself, with errors.
    """

    region: Region
    demand: Float[Array, "B T S S"]
    forecast: Float[Array, "B T S S"]
    seed: Int[np.ndarray, "B"]
    noisy: bool = False


def region_of(regime: Regime) -> Region:
    """Return the regime's region, with numbers that programs take as arguments."""
    degree, nics = jnp.asarray(regime.optical, jnp.int32), jnp.asarray(regime.electrical, jnp.float32)
    zero = jnp.zeros((), jnp.float32)
    return Region(regime.servers, jnp.asarray(NIC_GBPS, jnp.float32), degree, nics, delay_s=zero)


def draw_chains(
    regime: Regime, seeds: Sequence[int], per_seed: int, decisions: int, trace: str | None = None
) -> Chains:
    """Return `per_seed` chains for each seed, of `SEEN` demands and as many `decisions`: what `compare_regimes` draws.

    In drifting demand every server sends equally many bytes, three times as many in 5 % of the all-to-alls (`Drift`).
    """
    steps = SEEN + decisions
    if regime.demand == RECORDED:
        demand = _read_recording(regime, len(seeds) * per_seed, steps, trace)
    else:
        keys = jnp.concatenate([jax.random.split(jax.random.key(seed), per_seed) for seed in seeds])
        values = (regime.skew, regime.pairs, regime.memory)
        demand = _draw_drift(keys, *(jnp.asarray(value, jnp.float32) for value in values), regime.servers, steps)
    forecast = _forecast(demand, regime.sigma)
    noisy = regime.sigma not in (PREVIOUS, 0.0)
    return Chains(region_of(regime), demand, forecast, np.repeat(np.asarray(seeds), per_seed), noisy)


def _forecast(demand: Float[Array, "B T S S"], sigma: str | float) -> Float[Array, "B T S S"]:
    if isinstance(sigma, str):
        return jnp.concatenate([demand[:, :1], demand[:, :-1]], axis=1)
    if not sigma:
        return demand
    noise = jax.random.normal(jax.random.key(ERRORS), demand.shape, demand.dtype)
    return demand * jnp.exp(sigma * noise)


@functools.partial(jax.jit, static_argnames=("servers", "steps"))
def _draw_drift(keys: Array, skew: Array, pairs: Array, memory: Array, servers: int, steps: int) -> Array:
    source = Drift(skew=skew, pairs=pairs, memory=memory)

    def draw(key: Array):
        first, then = jax.random.split(key)
        state = source.first(first, servers, jnp.float32)[0]
        return lax.scan(lambda state, key: source.next(key, state), state, jax.random.split(then, steps))[1]

    return jax.vmap(draw)(keys)


def _read_recording(regime: Regime, chains: int, steps: int, trace: str | None) -> Array:
    """Return stretches of the test split, each of one layer, with the bytes of drifting demand.

    The micro-batches of a record follow each other, then come those of the next record.
    """
    count = _read_test_split(trace, chains, steps)
    servers = regime.servers
    demand = fold_to_servers(count, servers).reshape(len(count), -1, servers, servers)  # [layer all-to-all S S]
    many = demand.shape[1] // steps
    demand = demand[:, : many * steps].reshape(-1, steps, servers, servers)
    demand = jnp.asarray(demand[np.linspace(0, len(demand) - 1, chains).astype(int)], jnp.float32)
    demand = jnp.where(jnp.eye(servers, dtype=bool), 0, demand)
    return demand * (BYTES_PER_SERVER * servers / demand.sum((2, 3)).mean())


def check_recording(trace: str, chains: int, decisions: int) -> None:
    """Raise `InputError` if the recording is too short for this number of chains."""
    _read_test_split(trace, chains, SEEN + decisions)


def _read_test_split(trace: str | None, chains: int, steps: int) -> np.ndarray:
    """Return the counts [layer record micro-batch source expert] of the test split, which hold `chains` stretches."""
    if trace is None:
        raise InputError("regimes of recordings need trace, the recording.")
    every = gate_trace(trace, None).count  # [record layer micro-batch source expert]
    records, layers, micro_batches = every.shape[:3]
    test = split_records(records, "test")
    if _stretches(test, steps, layers, micro_batches) < chains:
        least = _least_records(chains, steps, layers, micro_batches)
        raise InputError(
            f"trace needs {least:,} records for {chains} stretches of {steps} all-to-alls of a layer (the test split "
            f"is the last tenth), got {records:,}: record more iterations, or lower decisions, seeds or chains."
        )
    return np.moveaxis(every[test], 1, 0)


def _least_records(chains: int, steps: int, layers: int, micro_batches: int) -> int:
    tests = ((records, split_records(records, "test")) for records in itertools.count(1))
    return next(records for records, test in tests if _stretches(test, steps, layers, micro_batches) >= chains)


def _stretches(part: slice, steps: int, layers: int, micro_batches: int) -> int:
    """Return how many stretches of `steps` all-to-alls of one layer these records hold."""
    return layers * ((part.stop - part.start) * micro_batches // steps)
