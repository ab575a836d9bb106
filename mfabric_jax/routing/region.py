"""All-to-all between the servers of an optical region: which pairs use circuits, which the electrical ports.

A circuit is private to its pair; all other traffic shares the electrical star, where each server has one port up and
one down. Routing models: unsplit and best-path (ALGORITHMS section 1).
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.flows import star_completion
from mfabric_jax.routing.plan import Plan

ROUTINGS = ("unsplit", "best-path")


def all_to_all_time(
    region: Region, plan: Plan | Circuits, demand: Float[Array, "S S"], *, routing: str = "unsplit"
) -> Float[Array, ""]:
    """Exact fluid completion time of one all-to-all between servers [s].

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored (it stays on the NVSwitch).
    - `routing`: "unsplit": a pair with circuits uses only them, the others only the EPS; "best-path": a pair stays
      on its circuits or goes over the EPS, whichever lets the whole end first (`kept_on_circuits`).

    Flows on the EPS share its ports max-min fairly. Infinity where some bytes have no way. Batched by `vmap`;
    differentiable in demand, bandwidth and real-valued circuits.
    """
    one_of("routing", routing, ROUTINGS)
    circuits = plan.circuits if isinstance(plan, Plan) else plan
    demand = as_demand(demand)
    servers = region.servers
    if demand.shape != (servers, servers) or circuits.count.shape != (servers, servers):
        raise InputError(
            f"demand and circuits must be [S S] with S = {servers} servers, got {demand.shape}, {circuits.count.shape}."
        )
    demand = jnp.where(jnp.eye(servers, dtype=bool), 0, demand)
    direct = direct_seconds(region, circuits, demand)
    optical = circuits.count > 0
    if routing == "best-path":
        optical = kept_on_circuits(direct, demand, _port(region, demand))
    slowest = jnp.where(optical & (demand != 0), direct, 0).max(initial=0)
    return jnp.maximum(slowest, electrical_seconds(region, jnp.where(optical, 0, demand)))


def as_demand(demand) -> Float[Array, "S S"]:
    """Demand as floats: integers would truncate bandwidths."""
    demand = jnp.asarray(demand)
    return demand if jnp.issubdtype(demand.dtype, jnp.floating) else demand.astype(jnp.result_type(float))


def direct_seconds(region: Region, circuits: Circuits, demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Time every pair's bytes take on its circuits alone; infinity where there is none."""
    count = circuits.count.astype(demand.dtype)
    some = count > 0
    rate = jnp.where(some, count, 1) * jnp.asarray(region.nic_Bps, demand.dtype)
    return jnp.where(some, demand / rate, jnp.inf)


def _port(region: Region, demand) -> Float[Array, ""]:
    return jnp.asarray(region.eps_Bps, demand.dtype)


def electrical_seconds(region: Region, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Completion of what the EPS carries: a star of one port up and one down per server."""
    port = jnp.broadcast_to(_port(region, demand), region.servers)
    return star_completion(demand, port, port).max(initial=0)


def kept_on_circuits(
    direct: Float[Array, "S S"], demand: Float[Array, "S S"], port: Float[Array, ""]
) -> Bool[Array, "S S"]:
    """The pairs that stay on their circuits under best-path routing.

    Pairs are kept up to a threshold on their time on circuits. T(threshold) = max(slowest kept, busiest EPS port of
    the rest): the first rises with the threshold, the second falls, so the best is where they cross, found by
    bisection over the sorted times. The EPS is judged by its port bound here; its time is then exact max-min.
    """
    steps = jnp.concatenate([jnp.zeros(1, direct.dtype), jnp.sort(direct.reshape(-1))])
    safe = jnp.where(port > 0, port, 1)

    def bound(threshold):
        rest = jnp.where(direct <= threshold, 0, demand)
        busiest = jnp.maximum(rest.sum(0).max(), rest.sum(1).max())
        return jnp.where(busiest > 0, jnp.where(port > 0, busiest / safe, jnp.inf), 0)

    def halve(_, window):
        low, high = window                                       # steps[high] >= bound there; steps[low] is below it
        middle = (low + high) // 2
        enough = steps[middle] >= bound(steps[middle])
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    last = steps.size - 1
    enough_at_once = steps[0] >= bound(steps[0])
    low, high = lax.fori_loop(0, last.bit_length(), halve, (jnp.asarray(0), jnp.asarray(last)))
    at_low, at_high = bound(steps[low]), steps[high]
    threshold = jnp.where(enough_at_once | (at_low <= at_high), steps[low], steps[high])
    return (direct <= threshold) & (threshold > 0) & jnp.isfinite(direct)
