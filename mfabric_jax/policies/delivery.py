"""How demands are routed while circuits are searched: shares for each demand, one set for all, or no shares."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mfabric_jax.fabric import Circuits
from mfabric_jax.platforms import mapped
from mfabric_jax.policies.circuit_search import ENOUGH, Delivery, Worth, circuit_worth
from mfabric_jax.policies.samples import NEVER, Samples, counting, risk_of
from mfabric_jax.routing import fluid_lower_bound
from mfabric_jax.routing.potentials import DIRECT, HOT, RATE, descended
from mfabric_jax.routing.relay import is_path, link_seconds

COLD_STEPS, WARM_STEPS = 60, 40  # towards shares: from the start, and after a swap
WARM, WARM_RATE = 0.2, 0.1  # softness and step at which a descent goes on
LANES = 8  # demands in step on a CPU: those that are done wait for the others
FROM_COLD, FROM_WARM = (COLD_STEPS, HOT, RATE), (WARM_STEPS, WARM, WARM_RATE)


@functools.cache
def adaptive() -> Delivery:
    """Shares near the best for each demand, known when it is there."""

    def settle(samples: Samples, count, state, warm: bool):
        steps, hot, rate = FROM_WARM if warm else FROM_COLD

        def one(pairs, limit, potentials):
            links, late = samples.links(pairs, count)
            enough = limit * (1 + ENOUGH / 2)
            found, seconds = descended(links.softened, potentials, steps, enough=enough, hot=hot, rate=rate)
            return found, seconds + late

        each = samples.pairs, samples.limit, state
        return mapped(lambda given: one(*given), each, LANES)

    def worth(samples: Samples, count, state) -> Worth:
        def one(pairs, potentials):
            links, _ = samples.links(pairs, count)
            return circuit_worth(links, links.seconds(potentials))

        return jax.vmap(one)(samples.pairs, state)

    return Delivery(lambda samples: samples.cold, settle, worth, lambda state, some: state[some])


@functools.cache
def fixed(tail: float) -> Delivery:
    """One set of shares for all demands, planned with the circuits."""

    def cold(samples: Samples):
        servers = samples.pairs.shape[-1]
        return jnp.zeros((servers, servers, servers + 2), samples.pairs.dtype)

    def seconds_of(samples: Samples, count, logits):
        shares = shares_of(samples, count, logits)
        circuit = count.astype(shares.dtype)
        served = shares.sum(2) > 0

        def one(pairs):
            seconds = link_seconds(jnp.where(served, pairs, 0), circuit, samples.ports, shares, samples.efficiency)
            return seconds, NEVER * jnp.where(served, 0, pairs).sum()

        return jax.vmap(one)(samples.pairs)

    def settle(samples: Samples, count, state, warm: bool):
        def times(logits):
            seconds, late = seconds_of(samples, count, logits)
            return seconds.max(1) + late

        def softened(logits, temperature):
            def soft(logits):
                seconds, late = seconds_of(samples, count, logits)
                each = temperature * jax.nn.logsumexp(seconds / temperature, axis=1) + late
                hard = seconds.max(1) + late
                counts = jax.lax.stop_gradient(counting(hard, samples.weight, tail))
                return jnp.where(counts > 0, counts * each, 0).sum(), risk_of(hard, samples.weight, tail)

            (_, late), slope = jax.value_and_grad(soft, has_aux=True)(logits)
            return late, slope

        enough = risk_of(samples.limit * (1 + ENOUGH / 2), samples.weight, tail)
        steps, hot, rate = FROM_WARM if warm else FROM_COLD
        found, _ = descended(softened, state, steps, enough=enough, hot=hot, rate=rate)
        return found, times(found)

    def worth(samples: Samples, count, state) -> Worth:
        servers = samples.pairs.shape[-1]
        seconds, _ = seconds_of(samples, count, state)

        def one(pairs, seconds):
            links, _ = samples.links(pairs, count)
            return circuit_worth(links, seconds.reshape(servers + 2, servers))

        return jax.vmap(one)(samples.pairs, seconds)

    return Delivery(cold, settle, worth, lambda state, some: state)


def shares_of(samples: Samples, count, logits: Float[Array, "S S S+2"]) -> Float[Array, "S S S+2"]:
    """Of paths that there are, as wide as they are where logits are 0; 0 where a pair has none."""
    circuit, port = count.astype(logits.dtype), samples.ports
    via = jnp.minimum(circuit[:, None, :], circuit.T[None])
    own = jnp.asarray(DIRECT, circuit.dtype) * circuit[..., None]
    eps = jnp.sqrt(port[:, None] * port[None])[..., None]
    wide = jnp.concatenate([via, own, eps], axis=2)
    ways = jnp.where(is_path(len(port)), wide * jnp.exp(logits), 0)
    total = ways.sum(2, keepdims=True)
    return jnp.where(total > 0, ways / jnp.where(total > 0, total, 1), 0)


UNIT_GBPS = 8e-9  # 1 byte/s: what a NIC carries of demand counted in NICs


@functools.cache
def paced(routing: str) -> Delivery:
    """No shares: unsplit or split routing, flows paced; what a circuit is worth is found by trying."""

    def late(samples: Samples, count):
        where = samples.region(UNIT_GBPS)
        times = jax.vmap(lambda pairs: fluid_lower_bound(where, Circuits(count), pairs, routing=routing))(samples.pairs)
        return jnp.minimum(times, jnp.asarray(NEVER, times.dtype))

    def cold(samples: Samples):
        return jnp.zeros(())

    def settle(samples: Samples, count, state, warm: bool):
        return state, late(samples, count)

    def worth(samples: Samples, count, state) -> Worth:
        now = late(samples, count)
        a, b = np.triu_indices(len(samples.ports), 1)

        def change(by: int):
            def one(a, b):
                return late(samples, count.at[a, b].add(by).at[b, a].add(by))

            found = jnp.abs(jax.vmap(one)(jnp.asarray(a), jnp.asarray(b)) - now[None])  # [pairs K]
            table = jnp.zeros((*count.shape, len(now)), now.dtype).at[a, b].set(found).at[b, a].set(found)
            return jnp.moveaxis(table, 2, 0)

        return Worth(jnp.where(count[None] > 0, change(-1), jnp.inf), change(1))

    return Delivery(cold, settle, worth, lambda state, some: state)
