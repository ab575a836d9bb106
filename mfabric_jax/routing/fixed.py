"""All-to-alls on links that do not change: one function for every kind of data that a fabric may give."""

import functools

from jaxtyping import Array, Float

from mfabric_jax.fabric.direct_links import DirectLinks
from mfabric_jax.fabric.electrical import Electrical
from mfabric_jax.routing.electrical import spray_time
from mfabric_jax.routing.forward import forward_time
from mfabric_jax.traffic import server_bytes


@functools.singledispatch
def fixed_time(group, demand: Float[Array, "R R"], ranks_per_server: int) -> Float[Array, ""]:
    """Exact fluid completion of one all-to-all between ranks of different servers [s].

    - `group`: `Electrical` ports, under spraying; or `DirectLinks`, whose servers forward.
    """
    raise TypeError(f"group must be Electrical or DirectLinks, got {type(group).__name__}.")


@fixed_time.register
def _(group: Electrical, demand, ranks_per_server: int):
    return spray_time(group, demand, ranks_per_server)


@fixed_time.register
def _(group: DirectLinks, demand, ranks_per_server: int):
    return forward_time(group, server_bytes(demand, ranks_per_server))
