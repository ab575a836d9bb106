"""Split and unsplit routing in the search for circuits: exact and softened times, and the worth of a circuit."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mfabric_jax.fabric import Circuits
from mfabric_jax.policies.circuit_search import SOFTNESS, Delivery, Worth
from mfabric_jax.policies.samples import NEVER, Samples
from mfabric_jax.routing import fluid_lower_bound

FAINT = 1e-3  # EPS NICs assumed for a server without any, to keep times finite
STEPS, WARM = 3, 2  # iterations for a port's time under split routing, and after one circuit changed
MOST = 60.0  # largest exponent of a weight
UNIT_GBPS = 8e-9  # 1 byte/s: the speed of a NIC if demand is counted in NICs
TRIED = 64  # number of demands that compare circuits


@functools.cache
def paced_delivery(routing: str) -> Delivery:
    """Return the delivery by unsplit or split routing, without shares."""

    def settle(samples: Samples, count: Array, state: Any, warm: bool):
        if routing == "split":
            times = split_times(samples, count)
        else:
            region, circuits = samples.region(UNIT_GBPS), Circuits(count)
            times = jax.vmap(lambda pairs: fluid_lower_bound(region, circuits, pairs))(samples.pairs)
        return state, jnp.minimum(times, jnp.asarray(NEVER, times.dtype))

    def worth(samples: Samples, count: Array, state: Any) -> Worth:
        return paced_worth(samples, count, routing)

    return Delivery(lambda samples: jnp.zeros(()), settle, worth, lambda state, some: state, TRIED)


def paced_worth(samples: Samples, count: Int[Array, "S S"], routing: str) -> Worth:
    """Return how much one circuit fewer or more changes each sample's softened time [K S S], in degree bounds.

    The softened time is a log-sum-exp over ports and, under unsplit routing, pairs. A circuit changes only the ports of
    its two servers and its own pair, so only these are timed again. Under unsplit routing both values can be negative:
    a pair's first circuit takes all of its bytes off the EPS.
    """
    demand, circuit, port = port_demand(samples), count.astype(samples.pairs.dtype), port_nics(samples)
    tiny, most = jnp.finfo(demand.dtype).tiny, jnp.asarray(MOST, demand.dtype)

    def port_times(circuit: Array, demand: Array, port: Array, first: Array | None = None):
        if routing == "split":
            return split_ports(demand, circuit, port, first, STEPS if first is None else WARM)
        return jnp.where(circuit > 0, 0, demand).sum(0) / port

    def pair_times(circuit: Array):
        return jnp.where(circuit > 0, demand[:, 0] / jnp.maximum(circuit, 1), 0)[:, None]  # [S 1 S K]

    links = [port_times(circuit[:, None, :, None], demand, port)[None]]  # [1 2 S K]
    if routing == "unsplit":
        links.append(pair_times(circuit[..., None]))
    latest = functools.reduce(jnp.maximum, [seconds.max((0, 1, 2), keepdims=True) for seconds in links])
    softness = jnp.asarray(SOFTNESS, demand.dtype) * jnp.where(latest > 0, latest, 1)

    def weigh(seconds: Array):
        return jnp.exp(jnp.minimum((seconds - latest) / softness, most))

    weights = [weigh(seconds) for seconds in links]
    total = functools.reduce(jnp.add, [weight.sum((0, 1, 2), keepdims=True) for weight in weights])

    def change(by: Array):
        own = jnp.eye(len(count), dtype=demand.dtype)[..., None]
        after = jnp.maximum(circuit[:, None] + by * own, 0)  # [S S S]: of a changed partner and a server
        ports = port_times(after[:, :, None, :, None], demand[:, None], port[None], links[0])  # [S 2 S K]
        more = (weigh(ports) - weights[0]).sum(1)
        if routing == "unsplit":
            more += (weigh(pair_times(jnp.maximum(circuit + by, 0)[..., None])) - weights[1])[:, 0]
        then = jnp.maximum(total[:, 0] + more + jnp.swapaxes(more, 0, 1), tiny)
        return jnp.moveaxis(softness[:, 0] * jnp.log(then / total[:, 0]), 2, 0)

    fewer, more = jax.vmap(change)(jnp.asarray((-1, 1), demand.dtype))
    return Worth(jnp.where((count > 0)[None], fewer, jnp.inf), -more)


# ------------------------------------------------------------------------------- ports; samples are the last axis
def port_demand(samples: Samples) -> Float[Array, "S 2 S K"]:
    """Return what each server sends to its partners (first axis), and what it receives from them."""
    return jnp.stack([samples.pairs.transpose(2, 1, 0), samples.pairs.transpose(1, 2, 0)], axis=1)


def port_nics(samples: Samples) -> Float[Array, "1 S 1"]:
    return jnp.maximum(samples.ports, jnp.asarray(FAINT, samples.ports.dtype))[None, :, None]


def split_ports(
    demand: Float[Array, "S *#B"],
    circuit: Float[Array, "S *#B"],
    port: Float[Array, "*#B"],
    first: Float[Array, "*#B"] | None = None,
    steps: int = STEPS,
) -> Float[Array, "*B"]:
    """Return when each port ends under split routing: the root t of sum_j max(D_j - C_j t, 0) = E t.

    - `demand`, `circuit`: of a port's pairs (first axis), in circuits that carry them within one unit of time.
    - `port`: its EPS NICs, above 0. `first`: where to start; None: from 1.

    `steps` + 1 of Newton's iterations, as in `split_seconds`; it never exceeds the root. Derivatives treat the pairs
    that need the EPS as fixed.
    """

    def ratio(time: Array):
        late = demand > circuit * time[None]
        return jnp.where(late, demand, 0).sum(0) / (port + jnp.where(late, circuit, 0).sum(0))

    shape = jnp.broadcast_shapes(demand.shape[1:], circuit.shape[1:], port.shape)
    time = jnp.ones(shape, demand.dtype) if first is None else jnp.broadcast_to(first, shape)
    return ratio(lax.fori_loop(0, steps, lambda _, time: lax.stop_gradient(ratio(time)), time))


def split_times(samples: Samples, count: Int[Array, "S S"]) -> Float[Array, "K"]:
    """Return split routing's exact times over the degree bound; infinite if bytes have no path (`split_seconds`)."""
    demand, circuit = port_demand(samples), count.astype(samples.pairs.dtype)[:, None, :, None]
    port = samples.ports[None, :, None]

    def climb(state: tuple[Array, Array]):
        _, now = state
        late = demand > circuit * now[None]
        load, speed = jnp.where(late, demand, 0).sum(0), port + jnp.where(late, circuit, 0).sum(0)
        then = jnp.where(load > 0, jnp.where(speed > 0, load / jnp.where(speed > 0, speed, 1), jnp.inf), 0)
        return now, jnp.maximum(now, then)

    zero = jnp.zeros((2, len(count), len(samples.pairs)), demand.dtype)
    return lax.while_loop(lambda state: (state[1] > state[0]).any(), climb, (zero - 1, zero))[1].max((0, 1))


def split_latest(samples: Samples, count: Float[Array, "S S"], temperature: Array) -> Float[Array, "K"]:
    """Return split routing's times over the degree bound, softened over ports by a log-sum-exp (`split_ports`)."""
    times = split_ports(port_demand(samples), count[:, None, :, None], port_nics(samples))
    return _softest(times.reshape(-1, times.shape[-1]), temperature)


def unsplit_latest(samples: Samples, count: Float[Array, "S S"], temperature: Array) -> Float[Array, "K"]:
    """Return smooth unsplit times over the degree bound: c < 1 circuits count as one with probability c, else EPS."""
    demand, active, many = port_demand(samples), jnp.minimum(count, 1), len(samples.pairs)
    on_circuits = demand[:, 0] / jnp.maximum(count, 1)[..., None]
    on_eps = (demand * (1 - active)[:, None, :, None]).sum(0) / port_nics(samples)
    times = jnp.concatenate([on_circuits.reshape(-1, many), on_eps.reshape(-1, many)])
    weight = jnp.where(demand[:, 0] > 0, active[..., None], 0).reshape(-1, many)
    return _softest(times, temperature, jnp.concatenate([weight, jnp.ones((2 * len(count), many), weight.dtype)]))


def _softest(times: Float[Array, "N K"], temperature: Array, weight: Array | None = None) -> Float[Array, "K"]:
    return temperature * jax.nn.logsumexp(times / temperature, axis=0, b=weight)
