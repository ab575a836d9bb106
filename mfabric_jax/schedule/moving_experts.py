"""Experts that move between ranks: how long their weights and optimizer state take over the fabric.

An all-to-all of its own after an iteration, all blocks of a stage together, on packet switches and on circuits as they
stand by default (uniform); what stays in a server crosses its NVSwitch at the same time.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from mfabric_jax.fabric.design import EpGroup
from mfabric_jax.policies import uniform
from mfabric_jax.routing.electrical import delegated, inside_time
from mfabric_jax.routing.fixed import fixed_time
from mfabric_jax.schedule.exchange import at_unit_bandwidth
from mfabric_jax.schedule.switching import routed
from mfabric_jax.traffic import server_bytes
from mfabric_jax.traffic.demand import inside_bytes
from mfabric_jax.workload import Workload


def moving(workload: Workload, group: EpGroup, moves: Float[Array, "P R R"], routing: str) -> Float[Array, "P 2"]:
    """`Exchanges.moved`: seconds of NICs and of NVSwitches in every stage, at 1 byte/s.

    - `moves`: bytes from rank to rank, the tensor-parallel slices of a rank together.
    """
    unit, per_server = at_unit_bandwidth(group, moves.dtype), workload.ranks_per_server

    def between(demand):
        if not unit.reconfigures:
            return fixed_time(unit, demand, per_server)
        servers = server_bytes(demand, per_server)
        return jnp.maximum(*routed(routing)(unit, uniform(servers, unit).circuits, servers))

    def one(demand):
        crossing = inside_bytes(demand, per_server) + delegated(unit, demand, per_server)
        return jnp.stack([between(demand), inside_time(crossing, 1.0 * workload.tp)])

    return jax.vmap(one)(moves)
