"""All-to-all between the servers of an optical region: which pairs use circuits, which the electrical ports.

A circuit is private to its pair; all other traffic shares the electrical star, where each server has one port up and
one down. Routing models: unsplit, best-path, split, relay.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.flows import FlowProblem, completion_times, star_completion
from mfabric_jax.flows.approximations import port_bound
from mfabric_jax.routing.relay import Plan, checked_shares, link_seconds, relay_finish
from mfabric_jax.routing.split import joined, split_seconds

ROUTINGS = ("unsplit", "best-path", "split", "relay")


def all_to_all_time(
    region: Region, plan: Plan | Circuits, demand: Float[Array, "S S"], *, routing: str = "unsplit"
) -> Float[Array, ""]:
    """Exact fluid completion time of one all-to-all between servers [s]: the later of `part_times`.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored (it stays on the NVSwitch).
    - `routing`: "unsplit": a pair with circuits uses only them, the others only the EPS; "best-path": a pair stays
      on its circuits or goes over the EPS, whichever lets the whole end first (`kept_on_circuits`); "split": a pair
      divides its bytes between both so that both end together (`split_seconds`); "relay": bytes follow `plan.shares`
      over the EPS, direct circuits and circuits through a third server (`relay_finish`).

    Flows on the EPS share its ports max-min fairly, except under split, where each is paced to end at the common time
    (left to max-min sharing, the same bytes end later by what `flows.port_bound` states). Infinity where some
    bytes have no way. Batched by `vmap`; differentiable in demand, bandwidth, real-valued circuits and shares.
    """
    return jnp.maximum(*part_times(region, plan, demand, routing=routing))


def part_times(
    region: Region, plan: Plan | Circuits, demand: Float[Array, "S S"], *, routing: str = "unsplit"
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """When the circuits and when the EPS are through with their parts of one all-to-all [s].

    Split: the EPS ends at the common time; so do the circuits, unless every pair that has some is done before. Relay:
    the parts of one pair end together, so these are the last pairs that use any circuit and that use the EPS.
    """
    one_of("routing", routing, ROUTINGS)
    circuits = plan.circuits if isinstance(plan, Plan) else plan
    demand = between_servers(region, demand)
    servers = region.servers
    if circuits.count.shape != demand.shape:
        raise InputError(f"circuits must be [S S] with S = {servers} servers, got {list(circuits.count.shape)}.")
    shares = _shares(region, plan) if routing == "relay" else None
    return _part_times(region, circuits, shares, demand, routing)


@functools.partial(jax.jit, static_argnames="routing")
def _part_times(region: Region, circuits: Circuits, shares, demand: Float[Array, "S S"], routing: str):
    if routing == "relay":
        rate, port = circuit_rates(region, circuits, demand), _port(region, demand)
        finish = relay_finish(demand, rate, port, shares, region.relay_efficiency)
        active, on_eps = (shares[..., :-1] > 0).any(2), shares[..., -1] > 0
        optical, electrical = (jnp.where(uses & (demand != 0), finish, 0).max(initial=0) for uses in (active, on_eps))
        return optical, electrical
    pairs, electrical = _without_relay(region, circuits, demand, routing)
    return pairs.max(initial=0), electrical


def _without_relay(region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: str):
    """When every pair's circuits are through [S S], and when the EPS is."""
    servers, port = region.servers, _port(region, demand)
    direct = direct_seconds(region, circuits, demand)
    optical = circuits.count > 0
    if routing == "split":
        seconds = split_seconds(demand, circuit_rates(region, circuits, demand), port)
        alone = jnp.where(direct < seconds, direct, seconds)
        on_eps = (joined(jnp.broadcast_to(port, servers)) & ~jnp.eye(servers, dtype=bool)).any()
        pairs = jnp.where(optical & (demand != 0), alone, 0)
        return pairs, jnp.where(on_eps | ~jnp.isfinite(seconds), seconds, 0)
    if routing == "best-path":
        optical = kept_on_circuits(direct, demand, port)
    pairs = jnp.where(optical & (demand != 0), direct, 0)
    return pairs, electrical_seconds(region, jnp.where(optical, 0, demand))


@functools.partial(jax.jit, static_argnames="routing")
def parts_that_wait(
    region: Region, plan: Plan, demand: Float[Array, "S S"], turning: Bool[Array, "S S"], *, routing: str = "unsplit"
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """`part_times` (of relay: `relay_part_bounds`), and what of the circuits' part waits for those set up anew [s].

    - `turning` [S S]: pairs whose circuits are set up anew, symmetric; the others carry meanwhile.

    Relay: a path waits if one of its circuits does, and the other circuit, too, carries its bytes later.
    """
    demand = between_servers(region, demand)
    if routing != "relay":
        pairs, electrical = _without_relay(region, plan.circuits, demand, one_of("routing", routing, ROUTINGS))
        return pairs.max(initial=0), electrical, jnp.where(turning, pairs, 0).max(initial=0)
    rate, port = circuit_rates(region, plan.circuits, demand), _port(region, demand)
    through = jnp.concatenate([turning[:, None, :] | turning.T[None], turning[..., None]], axis=2)
    waits = jnp.concatenate([through, jnp.zeros_like(turning)[..., None]], axis=2)
    shares = _shares(region, plan)
    late = jnp.where(waits, shares, 0)
    whole, late = (link_seconds(demand, rate, port, some, region.relay_efficiency) for some in (shares, late))
    circuits, eps = whole[: demand.size], whole[demand.size :]
    return circuits.max(initial=0), eps.max(initial=0), late[: demand.size].max(initial=0)


def fluid_lower_bound(
    region: Region, plan: Plan | Circuits, demand: Float[Array, "S S"], *, routing: str = "unsplit"
) -> Float[Array, ""]:
    """When one all-to-all is through if its flows are paced to end together [s]: the busiest circuit or EPS port.

    Arguments as of `all_to_all_time`, of which it is a lower bound (under split they are equal); much cheaper, and
    what circuits are best optimised for. Batched by `vmap`; differentiable as `all_to_all_time` is.
    """
    one_of("routing", routing, ROUTINGS)
    circuits = plan.circuits if isinstance(plan, Plan) else plan
    if routing == "split":
        return jnp.maximum(*part_times(region, circuits, demand, routing="split"))
    if routing == "relay":
        return relay_bound(region, Plan(circuits, _shares(region, plan)), demand)
    return _paced(region, circuits, between_servers(region, demand), routing)


@functools.partial(jax.jit, static_argnames="routing")
def _paced(region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: str) -> Float[Array, ""]:
    direct, port = direct_seconds(region, circuits, demand), _port(region, demand)
    kept = circuits.count > 0
    if routing == "best-path":
        kept = kept_on_circuits(direct, demand, port)
    ports = jnp.broadcast_to(port, region.servers)
    slowest = jnp.where(kept & (demand != 0), direct, 0).max(initial=0)
    return jnp.maximum(slowest, port_bound(jnp.where(kept, 0, demand), ports, ports))


def degree_bound(region: Region, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Degree bound [s]: the busiest server's bytes, out or in, over all of its NICs.

    No circuits and no routing end earlier. Infinity where a server without NICs has bytes.
    """
    demand = between_servers(region, demand)
    nics = jnp.asarray(region.optical_degree, demand.dtype) + jnp.asarray(region.electrical_nics, demand.dtype)
    speed = jnp.broadcast_to(nics * jnp.asarray(region.nic_Bps, demand.dtype), region.servers)
    return port_bound(demand, speed, speed)


def relay_bound(region: Region, plan: Plan, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Busiest link's bytes over its capacity under relay routing [s]: a lower bound on the time, piecewise linear in
    the shares, and what shares are best optimised for."""
    return jnp.maximum(*relay_part_bounds(region, plan, demand))


def relay_part_bounds(
    region: Region, plan: Plan, demand: Float[Array, "S S"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """When circuits and EPS are through under relay routing, flows paced [s]: the busiest link of either kind."""
    demand = between_servers(region, demand)
    rate, port = circuit_rates(region, plan.circuits, demand), _port(region, demand)
    seconds = link_seconds(demand, rate, port, _shares(region, plan), region.relay_efficiency)
    return seconds[: demand.size].max(initial=0), seconds[demand.size :].max(initial=0)


def between_servers(region: Region | DirectLinks, demand) -> Float[Array, "S S"]:
    """The demand as floats, its diagonal 0."""
    demand, servers = as_demand(demand), region.servers
    if demand.shape != (servers, servers):
        raise InputError(f"demand must be [S S] with S = {servers} servers, got {list(demand.shape)}.")
    return jnp.where(jnp.eye(servers, dtype=bool), 0, demand)


def _shares(region: Region, plan: Plan | Circuits) -> Float[Array, "S S S+2"]:
    if not isinstance(plan, Plan) or plan.shares is None:
        raise InputError('routing "relay" needs a plan with shares [S S S+2] of (via server, direct, EPS), got none.')
    return checked_shares(plan.shares, region.servers)


def as_demand(demand) -> Float[Array, "S S"]:
    """Demand as floats: integers would truncate bandwidths."""
    demand = jnp.asarray(demand)
    return demand if jnp.issubdtype(demand.dtype, jnp.floating) else demand.astype(jnp.result_type(float))


def circuit_rates(region: Region, circuits: Circuits, demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """What every pair's circuits carry [bytes/s], in the demand's dtype."""
    return circuits.count.astype(demand.dtype) * jnp.asarray(region.nic_Bps, demand.dtype)


def direct_seconds(region: Region, circuits: Circuits, demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Time every pair's bytes take on its circuits alone; infinity where there is none."""
    count = circuits.count.astype(demand.dtype)
    some = count > 0
    rate = jnp.where(some, count, 1) * jnp.asarray(region.nic_Bps, demand.dtype)
    return jnp.where(some, demand / rate, jnp.inf)


def _port(region: Region, demand) -> Float[Array, ""] | Float[Array, "S"]:
    return jnp.asarray(region.eps_Bps, demand.dtype)


def electrical_seconds(region: Region, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Completion of what the EPS carries: a star of one port up and one down per server."""
    port = jnp.broadcast_to(_port(region, demand), region.servers)
    return star_completion(demand, port, port).max(initial=0)


def kept_on_circuits(
    direct: Float[Array, "S S"], demand: Float[Array, "S S"], port: Float[Array, ""] | Float[Array, "S"]
) -> Bool[Array, "S S"]:
    """The pairs that stay on their circuits under best-path routing.

    Pairs are kept up to a threshold on their time on circuits. T(threshold) = max(slowest kept, busiest EPS port of
    the rest): the first rises with the threshold, the second falls, so the best is where they cross, found by
    bisection over the sorted times. The EPS is judged by its port bound here; its time is then exact max-min.
    """
    steps = jnp.concatenate([jnp.zeros(1, direct.dtype), jnp.sort(direct.reshape(-1))])
    ports = jnp.broadcast_to(port, demand.shape[0])

    def bound(threshold):
        return port_bound(jnp.where(direct <= threshold, 0, demand), ports, ports)

    def halve(_, window):
        low, high = window  # steps[high] >= bound there; steps[low] is below it
        middle = (low + high) // 2
        enough = steps[middle] >= bound(steps[middle])
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    last = steps.size - 1
    enough_at_once = steps[0] >= bound(steps[0])
    low, high = lax.fori_loop(0, last.bit_length(), halve, (jnp.asarray(0), jnp.asarray(last)))
    at_low, at_high = bound(steps[low]), steps[high]
    threshold = jnp.where(enough_at_once | (at_low <= at_high), steps[low], steps[high])
    return (direct <= threshold) & (threshold > 0) & jnp.isfinite(direct)


@functools.partial(jax.jit, static_argnames="server")
def relayed_part_times(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], *, server: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """`part_times` under unsplit routing where `server` has lost its way to the packet switches: a peer relays for it.

    What `server` has for (or gets from) servers to which it has no circuit crosses its circuits to the peer with which
    it has most, and that peer's electrical ports. Infinity where it has no circuit at all.
    """
    demand, servers = between_servers(region, demand), region.servers
    i, j = (x.ravel() for x in np.mgrid[:servers, :servers])
    links = servers * servers
    active = circuits.count.reshape(-1) > 0
    peer = jnp.argmax(circuits.count[server])
    away, back = ~active & (i == server), ~active & (j == server)
    circuit = jnp.where(active, i * servers + j, jnp.where(away, server * servers + peer, peer * servers + server))
    up, down = jnp.where(away, peer, i), jnp.where(back, peer, j)
    on_eps = ~active & (i != j)
    port_up = jnp.where(on_eps & (up != j), links + up, -1)
    port_down = jnp.where(on_eps & (down != i), links + servers + down, -1)
    hops = jnp.stack([jnp.where(active | away | back, circuit, -1), port_up, port_down], axis=1)
    port = jnp.broadcast_to(_port(region, demand), servers)
    capacity = jnp.concatenate([circuit_rates(region, circuits, demand).reshape(-1), port, port])
    finish = completion_times(FlowProblem(capacity, hops.astype(jnp.int32)), demand.reshape(-1)).finish
    optical = jnp.where((active | away | back) & (demand.reshape(-1) > 0), finish, 0).max(initial=0)
    return optical, jnp.where(on_eps & (demand.reshape(-1) > 0), finish, 0).max(initial=0)
