"""A learned index rule of five numbers that gives circuits one at a time."""

import dataclasses
import functools
import importlib.resources
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer
from jaxtyping import Float, Int

from mfabric_jax.checks import InputError, not_negative, positive
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import policy_file
from mfabric_jax.policies.arguments import demand_of, unless_nan
from mfabric_jax.policies.samples import NormalisedDemand, normalise
from mfabric_jax.routing import Plan
from mfabric_jax.support.array_module import Array

DATA = importlib.resources.files("mfabric_jax.policies") / "data"


class Index(eqx.Module):
    """Score of one more circuit for a pair: y (1 + relief r) / (count + offset)^power.

    - y: circuits that the pair needs (`NormalisedDemand`): `larger` times the larger direction plus 1 - `larger` times
      the mean of both. A fraction `spread` of y assumes instead that each server sends to all others in proportion to
      the bytes that they receive.
    - r: load of both servers' EPS ports (the busier direction), relative to what the ports carry within the degree
      bound.

    The rule is greedy's "next" with offset 1, power 1 and zeros. `spread` above 0 hedges against wrong forecasts. It
    also gives spare NICs to pairs without bytes, where relays may use them.
    """

    offset: float | Float[Array, ""] = 1.0
    power: float | Float[Array, ""] = 1.0
    larger: float | Float[Array, ""] = 0.0
    spread: float | Float[Array, ""] = 0.0
    relief: float | Float[Array, ""] = 0.0

    def __check_init__(self):
        positive("offset", self.offset)
        for field in ("power", "larger", "spread", "relief"):
            not_negative(field, getattr(self, field))
        for field in ("larger", "spread"):
            value = getattr(self, field)
            if not isinstance(value, Tracer) and np.any(np.asarray(value) > 1):
                raise InputError(f"{field} must be at most 1, got {value}.")

    def settings(self) -> dict[str, float]:
        return {field.name: float(getattr(self, field.name)) for field in dataclasses.fields(self)}

    def __call__(
        self, demand: Array, region: Region, *, previous: Plan | None = None, key: Array | None = None
    ) -> Plan:
        demand = demand_of(demand, region)
        need = normalise(demand, region)
        return Plan(Circuits(unless_nan(allocate_by_index(self, need, pair_worth(self, need), region.degrees), demand)))


class _Allocation(NamedTuple):
    count: Int[Array, "S S"]  # pyright: ignore[reportIncompatibleMethodOverride]
    free: Int[Array, "S"]


def index(
    demand: Float[Array, "S S"],
    region: Region,
    *,
    previous: Plan | None = None,
    key: Array | None = None,
    parameters: Index | None = None,
) -> Plan:
    """Give circuits one at a time to the pair with the largest `Index` score and a free NIC at both ends.

    - `demand` [S S]: bytes from server i to server j, exact or a forecast; the diagonal is ignored.
    - `parameters`: None takes the parameters of the package, trained by `mfabric train --kind index`.

    Ties go to the lower (i, j). At most S * degree / 2 rounds. `previous` and `key` are not used.
    """
    return (shipped_index() if parameters is None else parameters)(demand, region, previous=previous, key=key)


@functools.cache
def shipped_index() -> Index:
    return Index(**policy_file.read(DATA / "index.policy").header["settings"])


@jax.jit
def allocate_by_index(
    rule: Index, need: NormalisedDemand, worth: Float[Array, "S S"], degree: Int[Array, "S"]
) -> Int[Array, "S S"]:
    """Return the circuits of the rule; `worth` is y of `Index` (upper triangle)."""
    rule = _cast_rule(rule, need)
    servers = len(need.pairs)
    worth = jnp.triu(worth, 1)

    def scores(state: _Allocation):
        spare = state.free > 0
        count = state.count.astype(worth.dtype)
        busy = _port_load(need, count)
        score = worth * (1 + rule.relief * (busy[:, None] + busy[None, :])) / (count + rule.offset) ** rule.power
        return jnp.where(spare[:, None] & spare[None, :], score, 0)

    def deal(state: tuple[_Allocation, Float[Array, "S S"]]):
        (count, free), score = state
        i, j = jnp.divmod(jnp.argmax(score), servers)
        after = _Allocation(count.at[i, j].add(1).at[j, i].add(1), free.at[i].add(-1).at[j].add(-1))
        return after, scores(after)

    start = _Allocation(jnp.zeros((servers, servers), jnp.int32), degree)
    (count, _), _ = lax.while_loop(lambda state: (state[1] > 0).any(), deal, (start, scores(start)))
    return count  # the loop ends when no NIC is free


@jax.jit
def pair_worth(rule: Index, need: NormalisedDemand) -> Float[Array, "S S"]:
    """Return y of `Index`, symmetric."""
    rule = _cast_rule(rule, need)
    out, into, total = need.pairs.sum(1), need.pairs.sum(0), need.pairs.sum()
    even = out[:, None] * into[None, :] / jnp.where(total > 0, total, 1)
    one_way = (1 - rule.spread) * need.pairs + rule.spread * even
    return rule.larger * jnp.maximum(one_way, one_way.T) + (1 - rule.larger) * (one_way + one_way.T) / 2


def _cast_rule(rule: Index, need: NormalisedDemand) -> Index:
    return jax.tree.map(lambda x: jnp.asarray(x, need.pairs.dtype), rule)


def _port_load(need: NormalisedDemand, count: Float[Array, "S S"]) -> Float[Array, "S"]:
    """Return every server's EPS load over what its ports carry within the degree bound."""
    left, some = jnp.maximum(need.pairs - count, 0), need.ports > 0
    return jnp.where(some, jnp.maximum(left.sum(0), left.sum(1)) / jnp.where(some, need.ports, 1), 0)
