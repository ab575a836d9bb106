"""A graph of GPUs and switches as expert-parallel groups see it."""

from typing import Any, ClassVar

import equinox as eqx
from jaxtyping import Array, Float

from mfabric_jax.checks import InputError
from mfabric_jax.fabric.direct_links import LinkRates
from mfabric_jax.fabric.failures import KINDS, Degraded, Hit
from mfabric_jax.fabric.nic_use import Handover

IN_FILE = "what fails in a graph is a link of capacity 0 in its file"


class GraphLinks(eqx.Module, LinkRates):
    """The links of a graph, which all groups of the cluster share.

    - `of`: the graph; `servers`: of a group; `nic_gbps`: of the links that leave GPUs, per direction; `nics`: such
      links of a server.
    - `ring_nics`, `stage_nics`: NICs with which a server sends gradients to the next of its stage, and activations to
      the next stage, if all servers do so at once; None until `routing.graphs.rated` computes them.
    """

    of: Any = eqx.field(static=True)  # `own_graph.GraphFile`
    servers: int = eqx.field(static=True)
    nic_gbps: Float[Array, ""] | float
    nics: float = eqx.field(static=True)
    ring_nics: Any = None
    stage_nics: Any = None

    nic_use = "own"
    reconfigures = pxn = own_ports = forwards = False
    oversubscription = mesh = None
    delay_s = 0.0
    latency_s = 0.0
    handover: ClassVar[tuple[Handover, Handover]] = ("none", "none")

    @property
    def joined(self) -> bool:
        return self.ring_nics is not None

    def lacks(self, routing: str) -> dict[str, str]:
        """Failures that cannot happen here: all of them, with the reason."""
        return dict.fromkeys(KINDS, IN_FILE)

    def broken(self, hit: Hit) -> Degraded:
        """None: `lacks` names all failures. Raises `InputError`."""
        raise InputError(f"failure {hit.kind!r} is not simulated on a graph: {IN_FILE}.")
