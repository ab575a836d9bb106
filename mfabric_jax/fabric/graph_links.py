"""A graph of GPUs and switches as expert-parallel groups see it."""

import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from mfabric_jax.checks import InputError, concrete
from mfabric_jax.fabric.direct_links import LinkRates
from mfabric_jax.fabric.failures import Degraded, Failure
from mfabric_jax.fabric.graph_failures import absent_parts, broken_links, wait_reason
from mfabric_jax.fabric.graph_file import check_rate
from mfabric_jax.fabric.nic_use import Handover
from mfabric_jax.support.arrays import FloatScalar


class GraphLinks(eqx.Module, LinkRates):
    """The links of a graph, which all groups of the cluster share.

    - `graph_file`: the graph; `servers`: of a group; `nic_gbps`: bandwidth of a NIC, per direction; `nics`: NICs of a
      server.
    - `ring_nics`, `stage_nics`: NICs with which a server sends gradients, and activations to the next stage, if all
      servers do so at the same time; None until `routing.graphs.add_rates` computes them.
    """

    graph_file: Any = eqx.field(static=True)  # `graph_file.GraphFile`
    servers: int = eqx.field(static=True)
    nic_gbps: FloatScalar
    nics: float = eqx.field(static=True)
    ring_nics: Any = None
    stage_nics: Any = None

    nic_use = "own"
    reconfigures = phases = pxn = own_ports = forwards = False
    shares_links = over_graph = True
    oversubscription = mesh = None
    speeds = ()
    delay_s = 0.0
    latency_s = 0.0
    handover: ClassVar[tuple[Handover, Handover]] = ("none", "none")

    def with_bandwidth(self, nic_gbps: Any, gpu_tbps: Any = None) -> "GraphLinks":
        """Return the group itself, whose file sets the bandwidth. Raise `Misfit` for another bandwidth."""
        if concrete(nic_gbps):
            for each in np.unique(nic_gbps).tolist():  # of many cases
                check_rate(self.graph_file, each)
        return self

    @property
    def has_paths(self) -> bool:
        """Whether the rates on shared links are known."""
        return self.ring_nics is not None

    @property
    def planes(self) -> int:
        """Links that a NIC is split over."""
        return self.graph_file.split

    def lacks(self, routing: str) -> dict[str, str]:
        """Return the failures that cannot happen here: {kind: reason}."""
        return absent_parts(self.graph_file)

    def after_failure(self, hit: Failure) -> Degraded:
        """Return the group without the failed links; paths are computed again. If GPUs are cut off, the job waits."""
        if why := absent_parts(self.graph_file, hit.gpu).get(hit.kind):
            raise InputError(f"failure {hit.kind!r} is not simulated at this place of the graph: {why}.")
        if why := wait_reason(self.graph_file, hit.kind, hit.gpu):
            return Degraded(hit.kind, self, hit.server, waits=why)
        graph_file = self.graph_file._replace(failed=broken_links(self.graph_file, hit.kind, hit.gpu))
        left = dataclasses.replace(self, graph_file=graph_file, ring_nics=None, stage_nics=None)
        return Degraded(hit.kind, left, hit.server)
