"""All-to-alls on links that never change, all-to-alls inside servers, and moves of experts."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import units
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.fabric.design import EpGroup
from mfabric_jax.policies import uniform
from mfabric_jax.routing import Plan, degree_bound
from mfabric_jax.routing.fixed import delegated_bytes, fixed_time, inside_time
from mfabric_jax.routing.region import part_times, parts_that_wait, relay_part_bounds
from mfabric_jax.support.array_module import Array, array_module
from mfabric_jax.support.lazily import LazyModule
from mfabric_jax.timing.passes import Exchanges, Places, behind_sends, places
from mfabric_jax.traffic.dispatch import inside_bytes, summed_by_server
from mfabric_jax.workload import Workload

relay_steps = LazyModule("mfabric_jax.routing.relay_steps")  # only routing "relay" needs it
RELAY_STEPS = 100  # on average 0.1 % from the best shares


# ------------------------------------------------------------------------------------------- seconds of one all-to-all
def timer_of_routing(routing: str) -> Callable[..., Any]:
    """Return a routing's function (region, circuits, demand) -> seconds until circuits and packet switches finish.

    If a fourth argument gives the pairs that reconfigure [S S], the function also returns the seconds of traffic that
    waits for them. "relay" uses near-optimal shares with paced flows, as split routing does; "bound" gives the time
    that no routing beats.
    """

    def parts(region: Region, circuits: Circuits, demand: Float[Array, "S S"], reconfiguring: Any = None) -> Any:
        if routing == "bound":
            return jnp.zeros((), demand.dtype), degree_bound(region, demand)
        relay = routing == "relay"
        shares = relay_steps.relay_shares(region, circuits, demand, steps=RELAY_STEPS) if relay else None
        plan = Plan(circuits, shares)
        if reconfiguring is not None:
            return parts_that_wait(region, plan, demand, reconfiguring, routing=routing)
        if relay:
            return relay_part_bounds(region, plan, demand)
        return part_times(region, plan, demand, routing=routing)

    return parts


def at_unit_bandwidth(group: Any, dtype: Any) -> Any:
    """Return the group with NICs of 1 byte/s; its delay is scaled so that its ratio to the time of all-to-alls stays
    the same."""
    xp = array_module(group)
    unit = eqx.tree_at(lambda g: g.nic_gbps, group, xp.asarray(units.to_gbps(1.0), dtype))
    if not group.reconfigures:
        return unit
    return eqx.tree_at(lambda g: g.delay_s, unit, xp.asarray(group.delay_s * group.nic_Bps, dtype))


def unit_on_host(group: Any) -> Any:
    """Return `at_unit_bandwidth` in NumPy arrays of float64."""
    return at_unit_bandwidth(jax.tree.map(np.asarray, group), np.dtype(float))


def with_acks(demand: Float[Array, "... N N"], acks: float) -> Float[Array, "... N N"]:
    """Return the bytes in each direction, plus acknowledgements for the other direction."""
    return demand + acks * demand.swapaxes(-1, -2) if acks else demand


# --------------------------------------------------------------------------------------------- links that do not change
def each_and_even(
    demand: Float[Array, "C layer M N N"], even: Float[Array, "N N"], seconds: Callable[..., Any]
) -> tuple[Float[Array, "C layer M"], Any]:
    """Return the seconds of demands and of the demand of balanced experts (`even`).

    `seconds`: function of demands [B N N], at 1 byte/s per NIC.
    """
    xp = array_module(demand)
    every = seconds(xp.concatenate([demand.reshape(-1, *even.shape), even[None]]))  # one batch, one kernel
    return every[:-1].reshape(demand.shape[:3]), every[-1]


def steady(where: Places, load: Float[Array, "C layer M"], balanced: Any) -> Exchanges:
    """Return the all-to-alls of C iterations on links that never change, from their seconds (`each_and_even`)."""
    xp, moe = array_module(load), where.layer >= 0
    by_layer = load[:, *where.pick(*load.shape[1:])]
    shape = (*by_layer.shape, 2)
    nothing, calm = xp.zeros(shape, load.dtype), xp.zeros(shape, bool)
    twice = xp.where(moe, by_layer, 0)[..., None] + nothing
    return Exchanges(nothing, twice, nothing[..., 0], calm, calm[..., 0], None, xp.broadcast_to(balanced, len(load)))


def switch_every_block(workload: Workload, exchanges: Exchanges) -> Exchanges:
    """Reconfigure the switch for every block, even if its circuits stay."""
    moe = places(workload).layer >= 0
    return exchanges._replace(switch=exchanges.switch | np.stack([moe, np.zeros_like(moe)], axis=-1))


def seconds_on_links(demand: Float[Array, "B R R"], group: Any, carry: Any, per_server: int) -> Float[Array, "B"]:
    """Return the seconds of demands between ranks; `carry`: drawn paths, or paths of a graph."""
    seconds = carry.time if carry else lambda group, matrix: fixed_time(group, matrix, per_server)
    return jax.vmap(lambda matrix: seconds(group, matrix))(demand)


def degree_bounds(demand: Float[Array, "B S S"], region: Region) -> Float[Array, "B"]:
    """Return the seconds [B] that no circuits beat."""
    return jax.vmap(lambda matrix: degree_bound(region, matrix))(demand)


def in_phases(workload: Workload, group: Any, exchanges: Exchanges) -> Exchanges:
    """Return `steady` all-to-alls. The switch restores their circuits before the next pass if sends use the
    circuits."""
    if not group.phases:
        return exchanges
    switch = np.broadcast_to(behind_sends(workload), exchanges.electrical.shape)
    return exchanges._replace(
        optical=exchanges.electrical, electrical=exchanges.optical, switch=switch, ahead=switch.any(-1)
    )


# ------------------------------------------------------------------------------------------------------- inside servers
def crossing(workload: Workload, group: EpGroup, demand: Float[Array, "... R R"]) -> Float[Array, "... S g g"]:
    """Return the part of a demand between ranks that crosses each server's NVSwitch, in bytes from rank to rank."""
    per_server = workload.ranks_per_server
    return inside_bytes(demand, per_server) + delegated_bytes(group, demand, per_server)


def inside_in_order(workload: Workload, inside: Float[Array, "C layer M"]) -> Float[Array, "C P Q L"]:
    """Return the parts inside servers in running order."""
    where = places(workload)
    return array_module(inside).where(where.layer >= 0, inside[:, *where.pick(*inside.shape[1:])], 0)


# --------------------------------------------------------------------------------------------------- experts that move
def moving(
    workload: Workload, group: EpGroup, moves: Float[Array, "N R R"], routing: str, carry: Any = None
) -> Float[Array, "N 2"]:
    """Return `Exchanges.moved` of moves [N R R] in bytes between ranks: seconds of NICs and NVSwitches at 1 byte/s."""
    unit, per_server = at_unit_bandwidth(group, moves.dtype), workload.ranks_per_server
    inside = jax.vmap(lambda demand: inside_time(crossing(workload, unit, demand), 1.0 * workload.tp))(moves)
    if not unit.reconfigures:
        paths = carry if unit.shares_links else None
        return jnp.stack([seconds_on_links(moves, unit, paths, per_server), inside], axis=-1)

    def between(demand: Array):
        servers = summed_by_server(demand, per_server)
        return jnp.maximum(*timer_of_routing(routing)(unit, uniform(servers, unit).circuits, servers))

    return jnp.stack([jax.vmap(between)(moves), inside], axis=-1)
