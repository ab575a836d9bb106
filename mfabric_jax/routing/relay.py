"""Relay routing with fixed shares: bytes may also take two circuits, forwarded by a third server.

A pair sends all its parts together, at rates proportional to its shares, and pairs share links max-min fairly. The
links are the circuits of every ordered pair of servers and every server's EPS ports, up and down.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from mfabric_jax import flows
from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits
from mfabric_jax.fabric.circuit_schedule import CircuitSchedule
from mfabric_jax.support.array_module import Array
from mfabric_jax.support.arrays import floats, known_values, mark_forbidden
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY

TOLERANCE = 1e-4  # on the sum of a pair's shares


class Plan(eqx.Module):
    """The decision of a policy: circuits and, for relay routing, the shares of every pair's paths.

    - `circuits`: number of circuits between each pair of servers.
    - `shares` [S S S+2]: fraction of each pair's bytes (via server k, direct circuits, EPS); None for other routings.
    - `schedule`: what the switches show during the all-to-all, instead of `circuits`. `circuits` are then those that
      are up when it has ended.
    """

    circuits: Circuits
    shares: Float[Array, "... S S S+2"] | None = None
    schedule: CircuitSchedule | None = None

    def __repr__(self) -> str:
        parts = [] if self.schedule is not None else [repr(self.circuits)[1:-1]]
        parts += [repr(self.schedule)[1:-1]] if self.schedule is not None else []
        parts += ["shares of relayed paths"] if self.shares is not None else []
        return f"<Plan: {', '.join(parts)}>"

    @staticmethod
    def of_schedule(schedule: CircuitSchedule) -> "Plan":
        """Return a plan of the schedule. No circuits are up after it, so the next plan must reconfigure."""
        nothing = jnp.zeros(schedule.configurations.shape[1:], jnp.int32)
        return Plan(Circuits(nothing), schedule=schedule)


@jax.jit
def relay_finish(
    demand: Float[Array, "S S"],
    circuit: Float[Array, "S S"],
    port: Float[Array, ""] | Float[Array, "S"],
    shares: Float[Array, "S S S+2"],
    efficiency: Array,
) -> Float[Array, "S S"]:
    """Return the finish time of each pair [s]: 0 without bytes, infinity if a share uses a missing circuit.

    All times are NaN if the shares of a pair with bytes do not sum to 1 within 1e-4. A relayed byte counts
    1 / `efficiency` on its second hop. Differentiable in demand, capacities, shares.
    """
    shares = on_paths(shares.astype(demand.dtype))
    problem = relay_problem(circuit, port, shares, efficiency)
    finish = flows.completion_times(problem, demand.reshape(-1)).finish.reshape(demand.shape)
    lost = ~(jnp.abs(jnp.maximum(shares, 0).sum(2) - 1) <= TOLERANCE) & (demand > 0)
    return jnp.where(lost.any(), jnp.nan, finish)


def relay_problem(
    circuit: Array, port: Array, shares: Float[Array, "S S S+2"], efficiency: Array
) -> "flows.FlowProblem":
    """Return S*S flows (row-major) over S*S circuits (row-major), S ports up and S ports down."""
    servers = circuit.shape[0]
    i, j, k = np.ogrid[:servers, :servers, :servers]
    ones, links = np.ones_like(i + j + k), servers * servers
    ends = np.stack(np.broadcast_arrays(i * servers + j, links + i, links + servers + j), axis=-1)[:, :, 0]
    link = np.concatenate([(i * servers + k) * ones, (k * servers + j) * ones, ends], axis=2)  # [S S 2S+3]
    via, direct, eps = shares[..., :servers], shares[..., servers:-1], shares[..., -1:]
    share = jnp.concatenate([via, via / jnp.asarray(efficiency, shares.dtype), direct, eps, eps], axis=2)
    taken = share > 0
    hops = jnp.where(taken, jnp.asarray(link, jnp.int32), -1)
    pairs = servers * servers
    return flows.FlowProblem(
        _capacities(circuit, port),
        hops.reshape(pairs, -1),
        jnp.where(taken, share, 1).reshape(pairs, -1),
    )


def link_seconds(
    demand: Array, circuit: Array, port: Array, shares: Float[Array, "S S S+2"], efficiency: Array
) -> Float[Array, "L"]:
    """Return load over capacity [s] of the links of `relay_problem` [S*S + 2S]; no time is below the largest."""
    load = on_paths(shares.astype(demand.dtype)) * demand[:, :, None]
    via, direct, eps = load[..., :-2], load[..., -2], load[..., -1]
    onward = jnp.swapaxes(via.sum(0), 0, 1) / jnp.asarray(efficiency, demand.dtype)  # [k j]
    loads = jnp.concatenate([(via.sum(1) + onward + direct).reshape(-1), eps.sum(1), eps.sum(0)])
    capacity = _capacities(circuit, port)
    some = capacity > 0
    return jnp.where(loads == 0, 0, jnp.where(some, loads / jnp.where(some, capacity, 1), jnp.inf))


def _capacities(circuit: Float[Array, "S S"], port: Array) -> Float[Array, "L"]:
    return jnp.concatenate([circuit.reshape(-1), jnp.broadcast_to(port, (2, circuit.shape[0])).reshape(-1)])


def on_paths(shares: Float[Array, "S S S+2"]) -> Float[Array, "S S S+2"]:
    """Return the shares with 0 where no path exists: inside a server, or via either end."""
    return jnp.where(is_path(shares.shape[0]), shares, 0)


def is_path(servers: int) -> np.ndarray:
    i, j, k = np.ogrid[:servers, :servers, : servers + 2]
    return (i != j) & (k != i) & (k != j) | (i != j) & (k >= servers)


def check_shares(shares: Array, servers: int):
    """Return the shares. Raise `InputError` for a wrong shape, or for wrong values known before tracing."""
    shares, shape = floats("shares", shares), (servers, servers, servers + 2)
    if shares.shape != shape:
        raise InputError(f"shares must be [S S S+2] = {list(shape)}, got {list(shares.shape)}.")
    values, path, pair = known_values(shares, wait=True), is_path(servers), ~np.eye(servers, dtype=bool)
    if values is None:
        return mark_forbidden(shares, FROM_0_TO_INFINITY)
    for broken, rule in (
        (pair[..., None] & ~(values >= 0), "must be numbers of 0 or more"),
        (pair[..., None] & ~path & (values > 0), "must not relay through an end of the pair"),
        (pair & (np.abs(values.sum(2) - 1) > TOLERANCE), "must sum to 1 over the paths of a pair"),
    ):
        if broken.any():
            i, j = np.argwhere(broken)[0][:2]
            raise InputError(f"shares {rule}; for {i} -> {j} they are {values[i, j].tolist()}.")
    return shares
