"""Demands in units of circuits, relative to their degree bound, and risks (mean, worst, CVaR) of samples."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Region
from mfabric_jax.routing import degree_bound
from mfabric_jax.routing.demand import between_servers
from mfabric_jax.routing.potentials import RelayLinks, level
from mfabric_jax.routing.region import eps_pairs
from mfabric_jax.support.array_module import Array

NEVER = 1e4  # time of bytes without a path, in degree bounds: finite, to compare circuits


class NormalisedDemand(NamedTuple):
    """One demand of one region; the busiest row or column of `pairs` sums to that server's NICs."""

    pairs: Float[Array, "S S"]  # circuits that carry i -> j within the degree bound
    ports: Float[Array, "S"]  # NICs on the EPS
    efficiency: Float[Array, ""]  # of relaying

    def single(self) -> "NormalisedDemand":
        pairs, ports, efficiency = (x.astype(jnp.float32) for x in self)
        return NormalisedDemand(pairs, ports, efficiency)


def normalise(demand: Float[Array, "S S"], region: Region) -> NormalisedDemand:
    """Return the demand [bytes] in circuits; servers without NICs send and receive nothing."""
    return _normalise(between_servers(region, demand), region)


@jax.jit
def _normalise(demand: Float[Array, "S S"], region: Region) -> NormalisedDemand:
    dtype = demand.dtype
    ports = jnp.broadcast_to(jnp.asarray(region.electrical_nics, dtype), region.servers)
    nics = ports + region.degrees.astype(dtype)
    some = nics > 0
    demand = jnp.where(some[:, None] & some[None, :], demand, 0)
    largest = demand.max(initial=0)
    demand = demand / jnp.where(largest > 0, largest, 1)
    busiest = jnp.maximum(demand.sum(0), demand.sum(1)) / jnp.where(some, nics, 1)
    bound = busiest.max(initial=0)
    pairs = demand / jnp.where(bound > 0, bound, 1)
    return NormalisedDemand(pairs, ports, jnp.asarray(region.relay_efficiency, dtype))


class Samples(NamedTuple):
    pairs: Float[Array, "K S S"]  # as in `NormalisedDemand`
    weight: Float[Array, "K"]  # sums to 1
    limit: Float[Array, "K"]  # `relay_limit` over the degree bound
    degrees: Int[Array, "S"]
    ports: Float[Array, "S"]
    efficiency: Float[Array, ""]

    @property
    def mean(self) -> Float[Array, "S S"]:
        return (self.weight[:, None, None] * self.pairs).sum(0)

    @property
    def cold(self) -> Float[Array, "K links S"]:
        servers = len(self.ports)
        return jnp.broadcast_to(level(servers, self.pairs.dtype), (len(self.pairs), 3 * servers + 2, servers))

    def some(self, which: Int[Array, "R"]) -> "Samples":
        weight = _summing_to_one(self.weight[which])
        return self._replace(pairs=self.pairs[which], weight=weight, limit=self.limit[which])

    def region(self, nic_gbps: float) -> Region:
        return Region(len(self.ports), nic_gbps, self.degrees, self.ports, relay_efficiency=self.efficiency)

    def links(self, pairs: Float[Array, "S S"], count: Array) -> tuple[RelayLinks, Float[Array, ""]]:
        """Return the links of one demand over real or whole circuits, and the extra time of bytes without a path."""
        circuit = count.astype(pairs.dtype)
        active = (circuit > 0).astype(pairs.dtype)
        served = (active @ active + active > 0) | eps_pairs(self.ports)
        lost = jnp.where(served, 0, pairs).sum()
        return RelayLinks(jnp.where(served, pairs, 0), circuit, self.ports, self.efficiency), NEVER * lost


def samples_of(demand: Float[Array, "K S S"], region: Region, weights: Float[Array, "K"] | None = None) -> Samples:
    """Return normalised samples of demands [bytes]; None: equal `weights`."""
    demands = jax.vmap(lambda demand: between_servers(region, demand))(demand)
    pairs, ports, efficiency = jax.vmap(lambda demand: normalise(demand, region))(demands)
    weight = jnp.ones(len(demands), demands.dtype) if weights is None else jnp.asarray(weights).astype(demands.dtype)
    bound = jax.vmap(lambda demand: degree_bound(region, demand))(demands)
    limit = jax.vmap(lambda demand: relay_limit(region, demand))(demands)
    limit = jnp.where((bound > 0) & jnp.isfinite(limit), limit / jnp.where(bound > 0, bound, 1), 0)
    return Samples(pairs, _summing_to_one(weight), limit, region.degrees, ports[0], efficiency[0])


def _summing_to_one(weight: Float[Array, "K"]) -> Float[Array, "K"]:
    total = weight.sum()
    return jnp.where(total == 0, 1 / len(weight), weight / jnp.where(total == 0, 1, total))  # NaN stays


def tail_of(risk: str) -> float:
    name, _, part = risk.partition(":")
    if risk in ("mean", "worst"):
        return 1.0 if risk == "mean" else 0.0
    try:
        tail = float(part)
    except ValueError:
        tail = 0.0
    if name != "cvar" or not 0 < tail <= 1:
        raise InputError(f"risk must be mean, worst or cvar:Q with 0 < Q <= 1, got {risk!r}.")
    return tail


def counting(seconds: Float[Array, "K"], weight: Float[Array, "K"], tail: float) -> Float[Array, "K"]:
    """Return the weights, which sum to 1, of the slowest samples that make up the fraction `tail`; ties in order."""
    if tail == 1:
        return weight
    order = jnp.argsort(-jnp.where(weight > 0, seconds, -jnp.inf))
    if tail == 0:
        return jnp.zeros_like(seconds).at[order[0]].set(1)
    sorted_weight = weight[order]
    before = jnp.cumsum(sorted_weight) - sorted_weight
    part = jnp.clip(jnp.asarray(tail, weight.dtype) - before, 0, sorted_weight) / jnp.asarray(tail, weight.dtype)
    return jnp.zeros_like(seconds).at[order].set(part)


def risk_of(seconds: Float[Array, "K"], weight: Float[Array, "K"], tail: float) -> Float[Array, ""]:
    """Return the mean time of the worst fraction `tail` of the samples; 1: the mean of all, 0: the worst."""
    counts = counting(seconds, weight, tail)
    return jnp.where(counts > 0, counts * seconds, 0).sum()


@jax.jit
def relay_limit(region: Region, demand: Float[Array, "S S"]) -> Float[Array, ""]:
    """Return a lower bound on the time T of one all-to-all under relay routing, for any circuits [s].

    It is the degree bound, or more if the efficiency is below 1. A server receives the bytes K of its `degree` largest
    senders directly, E B T over E EPS ports, and the rest by relays: K + (all - K - E B T) / efficiency <= degree B T.
    """
    demand = between_servers(region, demand)
    dtype, servers = demand.dtype, region.servers
    rank = jnp.arange(servers, dtype=jnp.int32)
    senders = jnp.sort(demand, axis=0, descending=True)  # one column per receiver
    near = jnp.where(rank[:, None] < region.degrees[None], senders, 0).sum(0)
    far = jnp.maximum(demand.sum(0) - near, 0)
    efficiency = jnp.asarray(region.relay_efficiency, dtype)
    ports = jnp.broadcast_to(jnp.asarray(region.electrical_nics, dtype), servers)
    speed = (region.degrees.astype(dtype) + ports / efficiency) * jnp.asarray(region.nic_Bps, dtype)
    seconds = jnp.where(speed > 0, (near + far / efficiency) / jnp.where(speed > 0, speed, 1), 0)
    return jnp.maximum(degree_bound(region, demand), seconds.max(initial=0))
