"""Near-optimal shares for relay routing, by gradient steps on the busiest link's time (`relay_bound`).

Paced flows, whose rates are proportional to bytes, reach the bound. Plain max-min sharing (`all_to_all_time`) ends
later with the same shares, since a pair waits for its slowest part: on average at 1.4 times the bound, at worst at 1.9
times.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Bool, Float

from mfabric_jax.checks import InputError, of_type, whole
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.routing.demand import between_servers
from mfabric_jax.routing.potentials import Potentials, RelayLinks, level, minimise
from mfabric_jax.routing.region import circuit_rates, degree_bound, eps_pairs, split_seconds
from mfabric_jax.routing.relay import is_path, link_seconds
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import known_values
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY

DROPPED = 1e-4  # shares below this are dropped
NEAR = 1e-5  # steps stop within this relative distance of the degree bound


def relay_shares(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], *, steps: int = 200
) -> Float[Array, "S S S+2"]:
    """Return near-optimal shares, found by at most `steps` Adam steps on the links' `potentials`.

    - `demand` [S S]: bytes from server i to server j; the diagonal is ignored.

    The shares are never worse than under split routing. A pair's shares sum to 1, or are 0 from a server to itself; a
    pair without bytes uses its circuits, or else the EPS. The objective is a log-sum-exp of link times with falling
    temperature; the best step is returned, and steps stop within 1e-5 of the degree bound. Shares below 1e-4 are
    dropped. Works under `vmap`. No derivatives flow through the shares: at the optimum, the time changes with the
    inputs as if the shares were fixed.
    """
    whole("steps", steps, at_least=0)
    of_type("circuits", circuits, Circuits, hint="Circuits(count) makes them from an array")
    demand = between_servers(of_type("region", region, Region), demand, rule=FROM_0_TO_INFINITY)
    return _unless_nan(_descend_shares(*lax.stop_gradient((region, circuits, demand)), steps), demand)


def settled_shares(
    region: Region, circuits: Circuits, demand: Float[Array, "S S"], potentials: Potentials
) -> Float[Array, "S S S+2"]:
    """Return the shares of potentials that have been descended before; what else holds of `relay_shares` holds."""
    demand = between_servers(region, demand, rule=FROM_0_TO_INFINITY)
    return _unless_nan(_shares_of(*lax.stop_gradient((region, circuits, demand, potentials))), demand)


def _unless_nan(shares: Float[Array, "S S S+2"], demand: Float[Array, "S S"]) -> Float[Array, "S S S+2"]:
    if known_values(demand) is not None:
        return shares
    return jnp.where(jnp.isnan(lax.stop_gradient(demand))[..., None], jnp.nan, shares)


class _Sent(NamedTuple):
    links: RelayLinks
    path: Bool[Array, "S S S+2"]

    def seconds(self, shares: Float[Array, "S S S+2"]) -> Float[Array, ""]:
        demand, circuit, port, efficiency = self.links
        return link_seconds(demand, circuit, port, shares, efficiency).max()


@functools.partial(jax.jit, static_argnames="steps")
def _descend_shares(region: Region, circuits: Circuits, demand: Array, steps: int) -> Float[Array, "S S S+2"]:
    start = _start(region, circuits, demand)
    served, unit = start.sent.links.demand, start.unit
    enough = degree_bound(region, served) * jnp.asarray(1 + NEAR, unit.dtype) / jnp.where(unit > 0, unit, 1)
    first = level(region.servers, start.first.dtype)
    return start.shares_of(minimise(start.links.soft_time, first, steps, enough=enough)[0])


@jax.jit
def _shares_of(region: Region, circuits: Circuits, demand: Array, potentials: Potentials) -> Float[Array, "S S S+2"]:
    return _start(region, circuits, demand).shares_of(potentials)


class _Start(NamedTuple):
    """Shares of split routing, their time `unit` [s], and the links of demand in that unit."""

    sent: _Sent
    first: Float[Array, "S S S+2"]
    unit: Float[Array, ""]

    @property
    def links(self) -> RelayLinks:
        links = self.sent.links
        return links._replace(demand=links.demand / jnp.where(self.unit > 0, self.unit, 1))

    def shares_of(self, potentials: Potentials) -> Float[Array, "S S S+2"]:
        """Return the shares of the potentials, or the first ones if those are faster."""
        shares = self.links.shares(potentials)
        shares = _normal(jnp.where(shares < jnp.asarray(DROPPED, shares.dtype), 0, shares), self.sent.path)
        shares = jnp.where(self.sent.links.demand[..., None] > 0, shares, self.first)
        return jnp.where(self.sent.seconds(shares) < self.unit, shares, self.first)


def _start(region: Region, circuits: Circuits, demand: Array) -> _Start:
    sent = _links_and_paths(region, circuits, demand)
    first = _first_shares(sent)
    served = jnp.where(sent.path.any(2), sent.links.demand, 0)
    sent = sent._replace(links=sent.links._replace(demand=served))
    return _Start(sent, first, sent.seconds(first))


def _links_and_paths(region: Region, circuits: Circuits, demand: Array) -> _Sent:
    demand = between_servers(region, demand)
    if circuits.count.shape != demand.shape:
        raise InputError(f"circuits must be [S S] with S = {region.servers} servers, got {list(circuits.count.shape)}.")
    circuit = jnp.maximum(circuit_rates(region, circuits, demand), 0)
    port = jnp.broadcast_to(jnp.asarray(region.eps_Bps, demand.dtype), region.servers)
    active = circuit > 0
    allowed = jnp.concatenate(
        [active[:, None, :] & active.T[None], active[..., None], eps_pairs(port)[..., None]], axis=2
    )
    links = RelayLinks(demand, circuit, port, jnp.asarray(region.relay_efficiency, demand.dtype))
    return _Sent(links, allowed & is_path(len(port)))


def _first_shares(sent: _Sent) -> Float[Array, "S S S+2"]:
    (demand, circuit, port, _), path = sent
    apart = jnp.where(path[..., -2:].any(2), demand, 0)
    seconds = split_seconds(apart, circuit, port)
    some = (circuit > 0) & (demand > 0)
    within = jnp.where(some, circuit * seconds / jnp.where(some, demand, 1), 1)
    direct = jnp.where(circuit > 0, jnp.minimum(within, 1), 0)
    split = jnp.where(path[..., -2:], jnp.stack([direct, 1 - direct], axis=2), 0)
    split = jnp.concatenate([jnp.zeros_like(path[..., :-2], split.dtype), split], axis=2)
    via, ends = jnp.minimum(circuit[:, None, :], circuit.T[None]), jnp.minimum(port[:, None], port[None, :])
    wide = jnp.concatenate([via, circuit[..., None], ends[..., None]], axis=2)  # capacity of each path alone
    return _normal(jnp.where(split.any(2, keepdims=True), split, wide), path)


def _normal(parts: Float[Array, "S S S+2"], path: Array) -> Float[Array, "S S S+2"]:
    parts = jnp.where(path, parts, 0)
    total = parts.sum(2, keepdims=True)
    eps = np.zeros(parts.shape, bool)
    eps[..., -1] = ~np.eye(parts.shape[0], dtype=bool)
    return jnp.where(total > 0, parts / jnp.where(total > 0, total, 1), jnp.asarray(eps, parts.dtype))
