"""All-to-alls between the servers of an optical region, under unsplit, best-path, split or relay routing.

A circuit serves its pair alone; all other traffic shares the electrical star (EPS): one port up and one down per
server.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float, Num

from mfabric_jax import flows
from mfabric_jax.case.policies import ROUTINGS
from mfabric_jax.checks import InputError, of_type, one_of
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.region import legality
from mfabric_jax.flows.host.star import latest_ends
from mfabric_jax.routing.demand import between_servers, over
from mfabric_jax.routing.relay import Plan, check_shares, link_seconds, relay_finish
from mfabric_jax.routing.schedule import schedule_time
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.arrays import mark_forbidden
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY

Numbers = Float[Array, "S S"] | Sequence[Any]  # lists too, which NumPy reads


def all_to_all_time(
    region: Region, plan: Plan | Circuits, demand: Numbers, *, routing: str = "unsplit"
) -> Float[Array, ""]:
    """Return the exact fluid completion time of one all-to-all between servers [s]: the later of `part_times`.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored (it stays on the NVSwitch).
    - `routing`: "unsplit": pairs with circuits use only circuits, others only the EPS; "best-path": each pair uses
      either its circuits or the EPS, so that the all-to-all ends first (`kept_on_circuits`); "split": each pair divides
      its bytes so that both end together (`split_seconds`); "relay": bytes follow `plan.shares` over the EPS, direct
      circuits and circuits through a third server (`relay_finish`).

    Raise `InputError` for circuits that are not legal in this region. If they are traced, a CPU raises a runtime error
    that names the rule (`Circuits.check_legal`); other platforms return NaN. `part_times` does not check circuits: use
    it in loops whose circuits are known to be legal.

    Flows on the EPS share ports max-min fairly, except under split, where each is paced to end at the common time
    (max-min sharing would end later, see `port_bound`). The time is infinite if bytes have no path. Works under `vmap`;
    differentiable in demand, bandwidth, real-valued circuits and shares. The latest pair alone decides the time, so the
    derivative is 0 for nearly every other pair under "unsplit" and "best-path"; under "split" and "relay" it reaches
    all pairs of the busiest ports and links. A plan with a schedule takes its `schedule_time`, whatever the routing.
    The result has the widest dtype of demand and the region's arrays, at least float32.
    """
    one_of("routing", routing, ROUTINGS)
    circuits = _circuits(region, plan)
    if (seconds := _time_of_schedule(region, plan, demand)) is not None:
        return seconds
    demand = _widen_demand(region, between_servers(region, demand))
    seconds = jnp.maximum(*part_times(region, plan, demand, routing=routing))
    return seconds * legality(circuits, region.optical_degree).astype(seconds.dtype)


def _time_of_schedule(region: Region, plan: Plan | Circuits, demand: Numbers) -> Float[Array, ""] | None:
    schedule = plan.schedule if isinstance(plan, Plan) else None
    return None if schedule is None else schedule_time(region, schedule, demand)


def part_times(
    region: Region, plan: Plan | Circuits, demand: Numbers, *, routing: str = "unsplit"
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the completion times of circuits and EPS for their parts of one all-to-all [s].

    Under relay, these are the times of the last pair that uses any circuit, and of the last pair that uses the EPS.
    """
    one_of("routing", routing, ROUTINGS)
    circuits, demand = _circuits(region, plan), between_servers(region, demand)
    shares = _shares(region, plan) if routing == "relay" else None
    return _part_times(region, circuits, shares, demand, routing)


@functools.partial(jax.jit, static_argnames="routing")
def _part_times(region: Region, circuits: Circuits, shares: Array, demand: Float[Array, "S S"], routing: str):
    if routing == "relay":
        rate, port = circuit_rates(region, circuits, demand), _port(region, demand)
        finish = relay_finish(demand, rate, port, shares, region.relay_efficiency)
        active, on_eps = ~(shares[..., :-1] <= 0).all(2), ~(shares[..., -1] <= 0)  # NaN counts
        optical, electrical = (jnp.where(uses & (demand != 0), finish, 0).max(initial=0) for uses in (active, on_eps))
        return optical, electrical
    pairs, electrical = _without_relay(region, circuits, demand, routing)
    return pairs.max(initial=0), electrical


def _without_relay(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: str
) -> tuple[jax.Array, jax.Array]:
    servers, port = region.servers, _port(region, demand)
    direct = direct_seconds(region, circuits, demand)
    optical = circuits.count > 0
    if routing == "split":
        seconds = split_seconds(demand, circuit_rates(region, circuits, demand), port)
        alone = jnp.where(direct < seconds, direct, seconds)
        on_eps = (eps_pairs(jnp.broadcast_to(port, servers)) & ~jnp.eye(servers, dtype=bool)).any()
        pairs = jnp.where(optical & (demand != 0), alone, 0)
        return pairs, jnp.where(on_eps | ~jnp.isfinite(seconds), seconds, 0)
    optical = _on_circuits(optical, direct, demand, port, routing)
    pairs = jnp.where(optical & (demand != 0), direct, 0)
    port = jnp.broadcast_to(port, servers)
    return pairs, flows.star_completion(jnp.where(optical, 0, demand), port, port).max(initial=0)


def _on_circuits(
    joined: Bool[Array, "S S"], direct: Float[Array, "S S"], demand: Float[Array, "S S"], port: Any, routing: str
) -> Bool[Array, "S S"]:
    """Return which of the pairs `joined` by circuits send all bytes over them; the others use the EPS."""
    if routing == "best-path":
        return kept_on_circuits(direct, demand, port)
    if routing == "unsplit":
        return joined
    raise InputError(f"routing {routing!r} has no rule for which pairs use their circuits.")


def unsplit_times_now(
    region: Region, count: Num[np.ndarray, "B S S"], demand: Float[np.ndarray, "B S S"]
) -> tuple[Float[np.ndarray, "B"], Float[np.ndarray, "B"]]:
    """Return `part_times` for many unsplit all-to-alls, by compiled loops on the host in float64."""
    demand, optical = np.where(np.eye(region.servers, dtype=bool), 0, demand), count > 0
    direct = np.where(optical & (demand != 0), _over_circuits(count, demand, region.nic_Bps), 0)
    port = np.broadcast_to(np.asarray(region.eps_Bps, float), region.servers)
    return direct.max((1, 2), initial=0), latest_ends(np.where(optical, 0, demand), np.stack([port, port]))


@functools.partial(jax.jit, static_argnames="routing")
def parts_that_wait(
    region: Region,
    plan: Plan,
    demand: Float[Array, "S S"],
    reconfigured: Bool[Array, "S S"],
    *,
    routing: str = "unsplit",
) -> tuple[Float[Array, ""], Float[Array, ""], Float[Array, ""]]:
    """Return `part_times` (relay: `relay_part_bounds`), and the time that waiting circuit traffic takes [s].

    The traffic of pairs that are `reconfigured` [S S] waits for their circuits; a relayed path waits if either of its
    circuits reconfigures.
    """
    demand = between_servers(region, demand)
    if routing != "relay":
        pairs, electrical = _without_relay(region, plan.circuits, demand, one_of("routing", routing, ROUTINGS))
        return pairs.max(initial=0), electrical, jnp.where(reconfigured, pairs, 0).max(initial=0)
    through = jnp.concatenate(
        [jnp.logical_or(reconfigured[:, None, :], reconfigured.T[None]), reconfigured[..., None]], axis=2
    )
    waits = jnp.concatenate([through, jnp.zeros_like(reconfigured)[..., None]], axis=2)
    shares = _shares(region, plan)
    late = _relay_seconds(region, plan.circuits, demand, jnp.where(waits, shares, 0))
    optical, electrical = _relay_seconds(region, plan.circuits, demand, shares)
    return optical.max(initial=0), electrical.max(initial=0), late[0].max(initial=0)


# ------------------------------------------------------------------------------------------------------- lower bounds
def port_bound(size: Float[Array, "N N"], up: Float[Array, "N"], down: Float[Array, "N"]) -> Float[Array, ""]:
    """Return the busiest port's bytes over its capacity [s]: a lower bound on `star_completion`, equal if paced."""
    size = jnp.asarray(size)
    out, into = (over(size.sum(axis), jnp.asarray(port, size.dtype)) for axis, port in ((1, up), (0, down)))
    return jnp.maximum(out.max(initial=0), into.max(initial=0))


def fluid_lower_bound(
    region: Region, plan: Plan | Circuits, demand: Numbers, *, routing: str = "unsplit"
) -> Float[Array, ""]:
    """Return when one all-to-all ends if its flows are paced to end together [s]: with the busiest circuit or port.

    It is a cheap lower bound on `all_to_all_time` (equal under split and for a schedule), with the same arguments; use
    it to optimise circuits.
    """
    one_of("routing", routing, ROUTINGS)
    circuits = _circuits(region, plan)
    if (seconds := _time_of_schedule(region, plan, demand)) is not None:
        return seconds
    demand = between_servers(region, demand)
    if routing == "split":
        return jnp.maximum(*part_times(region, circuits, demand, routing="split"))
    if routing == "relay":
        return relay_bound(region, Plan(circuits, _shares(region, plan)), demand)
    return _paced_time(region, circuits, demand, routing)


@functools.partial(jax.jit, static_argnames="routing")
def _paced_time(region: Region, circuits: Circuits, demand: Float[Array, "S S"], routing: str) -> Float[Array, ""]:
    direct, port = direct_seconds(region, circuits, demand), _port(region, demand)
    kept = _on_circuits(circuits.count > 0, direct, demand, port, routing)
    ports = jnp.broadcast_to(port, region.servers)
    slowest = jnp.where(kept & (demand != 0), direct, 0).max(initial=0)
    return jnp.maximum(slowest, port_bound(jnp.where(kept, 0, demand), ports, ports))


def degree_bound(region: Region, demand: Numbers) -> Float[Array, ""]:
    """Return the lower bound for any circuits and routing [s]: the busiest server's bytes, out or in, over its NICs.

    It is infinite if a server without NICs has bytes.
    """
    demand = between_servers(of_type("region", region, Region), demand)
    every = (jnp.asarray(nics, demand.dtype) for nics in (region.optical_degree, region.electrical_nics))
    nics = sum(mark_forbidden(nics, FROM_0_TO_INFINITY) for nics in every)
    speed = jnp.broadcast_to(nics * jnp.asarray(region.nic_Bps, demand.dtype), region.servers)
    return port_bound(demand, speed, speed)


def relay_bound(region: Region, plan: Plan, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Return the busiest link's bytes over its capacity under relay routing [s]: a piecewise linear lower bound."""
    return jnp.maximum(*relay_part_bounds(region, plan, demand))


def relay_part_bounds(
    region: Region, plan: Plan, demand: Float[Array, "S S"]
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return the times of circuits and EPS under relay routing with paced flows [s]: the busiest link of each kind."""
    circuits, eps = _relay_seconds(region, plan.circuits, between_servers(region, demand), _shares(region, plan))
    return circuits.max(initial=0), eps.max(initial=0)


def _relay_seconds(region: Region, circuits: Circuits, demand: Array, shares: Array) -> tuple[Array, Array]:
    rate, port = circuit_rates(region, circuits, demand), _port(region, demand)
    seconds = link_seconds(demand, rate, port, shares, region.relay_efficiency)
    return seconds[: demand.size], seconds[demand.size :]


# ------------------------------------------------------------------------------------ circuits, rates, ports, shares
def _widen_demand(region: Region, demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Return the demand in the widest dtype of itself and the region's arrays; Python numbers do not count."""
    with jax.numpy_dtype_promotion("standard"):
        numbers = region.nic_gbps, region.electrical_nics, region.relay_efficiency
        floats = (number for number in numbers if jnp.issubdtype(jnp.result_type(number), jnp.floating))
        return demand.astype(jnp.result_type(demand, *floats))


def _circuits(region: Region, plan: Plan | Circuits) -> Circuits:
    """Return the circuits of a plan, or the circuits themselves. Raise `InputError` unless they fit the region."""
    servers = of_type("region", region, Region).servers
    of_type("plan", plan, Plan, Circuits, hint="Circuits(count) makes circuits from an array")
    circuits = plan.circuits if isinstance(plan, Plan) else plan
    if circuits.count.shape != (servers, servers):
        raise InputError(f"circuits must be [S S] with S = {servers} servers, got {list(circuits.count.shape)}.")
    return circuits


def _shares(region: Region, plan: Plan | Circuits) -> Float[Array, "S S S+2"]:
    if not isinstance(plan, Plan) or plan.shares is None:
        raise InputError(
            'routing "relay" needs a plan with shares [S S S+2] of (via server, direct, EPS), as routing.relay_shares '
            "finds them, got none."
        )
    return check_shares(plan.shares, region.servers)


def circuit_rates(region: Region, circuits: Circuits, demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Return the capacity of every pair's circuits [bytes/s], in the demand's dtype."""
    return circuits.count.astype(demand.dtype) * jnp.asarray(region.nic_Bps, demand.dtype)


def direct_seconds(region: Region, circuits: Circuits, demand: Float[Array, "S S"]) -> Float[Array, "S S"]:
    """Return the time of every pair's bytes on its circuits alone [s]; infinity without a circuit."""
    return _over_circuits(circuits.count, demand, region.nic_Bps)


def _over_circuits(count: Num[Array, "... S S"], demand: Float[Array, "... S S"], nic_Bps: Any) -> Any:
    xp, count = array_module(count, demand, nic_Bps), count.astype(demand.dtype)
    some = count > 0
    rate = xp.where(some, count, 1) * xp.asarray(nic_Bps, demand.dtype)
    return xp.where(some, demand / rate, np.inf)


def _port(region: Region, demand: Array) -> Float[Array, ""] | Float[Array, "S"]:
    return jnp.asarray(region.eps_Bps, demand.dtype)


# ------------------------------------------------------------------------------------------------ best-path and split
def kept_on_circuits(
    direct: Float[Array, "S S"], demand: Float[Array, "S S"], port: Float[Array, ""] | Float[Array, "S"]
) -> Bool[Array, "S S"]:
    """Return the pairs that stay on their circuits under best-path routing: those whose circuit time is at most a
    threshold. Bisection finds where the slowest kept pair takes as long as the EPS (`port_bound`) takes for the others.
    """
    steps = jnp.concatenate([jnp.zeros(1, direct.dtype), jnp.sort(direct.reshape(-1))])
    ports = jnp.broadcast_to(port, demand.shape[0])

    def bound(threshold: Array):
        return port_bound(jnp.where(direct <= threshold, 0, demand), ports, ports)

    def halve(_, window: tuple[Any, ...]):
        low, high = window  # steps[high] >= bound(steps[high]), steps[low] < bound(steps[low])
        middle = (low + high) // 2
        enough = steps[middle] >= bound(steps[middle])
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    last = steps.size - 1
    enough_at_once = steps[0] >= bound(steps[0])
    low, high = lax.fori_loop(0, last.bit_length(), halve, (jnp.asarray(0), jnp.asarray(last)))
    at_low, at_high = bound(steps[low]), steps[high]
    threshold = jnp.where(enough_at_once | (at_low <= at_high), steps[low], steps[high])
    return (direct <= threshold) & (threshold > 0) & jnp.isfinite(direct)


@jax.jit
def split_seconds(
    demand: Float[Array, "S S"], circuit: Float[Array, "S S"], port: Float[Array, ""] | Float[Array, "S"]
) -> Float[Array, ""]:
    """Return the time T [s] at which every pair's circuits and the EPS end together under split routing.

    The EPS carries what circuits leave: sum_j max(D_j - C_j T, 0) <= E T at every server, out and in. So T is the
    maximum, over ports and sets A of a port's pairs, of sum_A D / (E + sum_A C). Dinkelbach's iteration rises to T in
    at most S * S + 1 steps. It adds only positive numbers, so float32 keeps its digits. Derivatives treat the sets as
    fixed.
    """
    circuit = jnp.where(circuit < 0, 0, circuit)
    port = jnp.broadcast_to(port, demand.shape[0])
    before = _before_last_step(*lax.stop_gradient((demand, circuit, port)))
    stranded = (demand > 0) & (circuit == 0) & ~eps_pairs(port)
    seconds = jnp.where(stranded.any(), jnp.inf, _largest_ratio(demand, circuit, port, before))
    return jnp.where(jnp.isnan(demand).any(), jnp.nan, seconds)


def eps_pairs(port: Float[Array, "S"]) -> Bool[Array, "S S"]:
    some = port > 0
    return some[:, None] & some[None, :]


def _largest_ratio(demand: Array, circuit: Array, port: Float[Array, "S"], time: Float[Array, ""]) -> Float[Array, ""]:
    late = demand > circuit * time
    load, speed = jnp.where(late, demand, 0), jnp.where(late, circuit, 0)
    load = jnp.concatenate([load.sum(0), load.sum(1)])
    speed = jnp.concatenate([speed.sum(0) + port, speed.sum(1) + port])
    return jnp.where(speed > 0, load / jnp.where(speed > 0, speed, 1), 0).max(initial=0)


def _before_last_step(demand: Array, circuit: Array, port: Array) -> Float[Array, ""]:
    def rising(state: tuple[Any, ...]):
        now, after, step = state
        return (after > now) & (step <= demand.size)

    def climb(state: tuple[Any, ...]):
        now, after, step = state
        then = _largest_ratio(demand, circuit, port, after)
        better = then > after
        return jnp.where(better, after, now), jnp.where(better, then, now), step + 1

    zero = jnp.zeros((), demand.dtype)
    first = zero, _largest_ratio(demand, circuit, port, zero), jnp.zeros((), jnp.int32)
    return lax.while_loop(rising, climb, first)[0]


# --------------------------------------------------------------------------------------------------------- messages
class RegionMessages(NamedTuple):
    """Bytes of every pair on circuits and on electrical ports [S S], with rate limits [bytes/s] (infinity: max-min
    sharing)."""

    optical: Float[Array, "S S"]
    optical_rate: Float[Array, "S S"]
    electrical: Float[Array, "S S"]
    electrical_rate: Float[Array, "S S"]


def messages_of(region: Region, plan: Plan, demand: Float[Array, "S S"], *, routing: str = "unsplit") -> RegionMessages:
    """Return messages that end at `part_times` (relay: `relay_part_bounds`) on ports shared max-min fairly.

    Under relay, all circuits are paced to end with the busiest; under split and relay, electrical ports are paced to
    end together.
    """
    one_of("routing", routing, ROUTINGS)
    demand = between_servers(region, demand)
    rate, port = circuit_rates(region, plan.circuits, demand), _port(region, demand)
    if routing == "relay":
        optical_s, electrical_s = relay_part_bounds(region, plan, demand)
        electrical = demand * _shares(region, plan)[..., -1]
        optical = demand - electrical
        return RegionMessages(optical, _pace(optical, optical_s), electrical, _pace(electrical, electrical_s))
    if routing == "split":
        seconds = split_seconds(demand, rate, port)
        optical = jnp.minimum(demand, jnp.where(rate > 0, rate * seconds, 0))
        return RegionMessages(optical, rate, demand - optical, _pace(demand - optical, seconds))
    direct = direct_seconds(region, plan.circuits, demand)
    on_circuits = _on_circuits(rate > 0, direct, demand, port, routing)
    optical = jnp.where(on_circuits, demand, 0)
    return RegionMessages(optical, rate, demand - optical, jnp.full_like(demand, jnp.inf))


def _pace(size: Float[Array, "S S"], seconds: Float[Array, ""]) -> Float[Array, "S S"]:
    return jnp.where(seconds > 0, size / jnp.where(seconds > 0, seconds, 1), 0)


@functools.partial(jax.jit, static_argnames="server")
def relayed_part_times(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], *, server: int
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Return unsplit `part_times` after `server` lost its electrical ports: its peer with the most circuits relays.

    Times are infinite if `server` has no circuit.
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
    finish = flows.completion_times(flows.FlowProblem(capacity, hops.astype(jnp.int32)), demand.reshape(-1)).finish
    optical = jnp.where((active | away | back) & (demand.reshape(-1) > 0), finish, 0).max(initial=0)
    return optical, jnp.where(on_eps & (demand.reshape(-1) > 0), finish, 0).max(initial=0)
