"""The graph of a file as a fabric: `network.fabric = graph`, `network.graph = FILE` (see `graph_file`).

Bytes that stay in a server cross the GPU's own NVLink (`gpu.nvlink_gigabytes_per_s`); all others take shortest paths
over the links of the graph. `network.on-graph.relay` says whether GPUs forward (`relays`). If the file gives delays,
every message takes the delay of the slowest path instead of `network.link_delay_s`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfabric_jax import units
from mfabric_jax.case.network import Network
from mfabric_jax.checks import Misfit
from mfabric_jax.fabric import views
from mfabric_jax.fabric.cost import PartGroup
from mfabric_jax.fabric.design import Fabric
from mfabric_jax.fabric.graph_file import FileGraph, GraphFile, check_rate, load_graph
from mfabric_jax.fabric.site import About, FabricLinks, FabricPaths, FabricSite

if TYPE_CHECKING:
    from mfabric_jax.fabric.graph_links import GraphLinks

CLOSE = 1e-6  # relative difference of bandwidths that is not reported


def _graph(site: FabricSite) -> FileGraph:
    return load_graph(GraphFile.of(site.network))


class GraphFileFabric(Fabric):
    def group(self, site: FabricSite, nic_gbps: Any) -> GraphLinks:
        options = GraphFile.of(site.network)
        graph = load_graph(options)
        if len(graph.nodes) != site.gpus:
            raise Misfit(f"job.parallel.gpus must be the {len(graph.nodes)} GPUs of {options.file!r}, got {site.gpus}.")
        if graph.per_server != site.gpus_per_server:
            where = "at each nvswitch of" if graph.per_server > 1 else "of a server, as there is no nvswitch in"
            raise Misfit(
                f"gpu.gpus_per_server must be {graph.per_server}, the GPUs {where} {options.file!r}, got "
                f"{site.gpus_per_server}."
            )
        check_rate(options, nic_gbps)
        return views.GraphLinks(options, site.group_servers, nic_gbps, graph.nics)

    def links(self, site: FabricSite) -> FabricLinks:
        return FabricLinks(nic_use="own")

    def parts(self, site: FabricSite) -> tuple[PartGroup, ...]:
        graph = _graph(site)
        return (PartGroup(graph.nics, "graph", graph.attachment),)

    def paths(self, site: FabricSite) -> FabricPaths:
        graph = _graph(site)
        return FabricPaths("shortest paths", graph.longest, single=True, delay_s=graph.link_delay_s)


def describe_graph(network: Network, own_Bps: float) -> list[str]:
    """Return sentences on a graph: its NICs, the GPUs of its ranks, whether GPUs forward, and which NVLinks count.

    `own_Bps`: bandwidth of a GPU inside its server by its data sheet.
    """
    options = GraphFile.of(network)
    graph = load_graph(options)
    placed = "in the order of its GPUs" if options.ranks is None else f"placed by {options.ranks}"
    nics = f"{graph.nics:g} NICs of {units.to_gbps(graph.nic_Bps):g} Gbps per server"
    sentences = [f"{graph.file}: {nics}, ranks {placed}.", f"{graph.file}: {graph.relays.words}."]
    inside = graph.inside_Bps
    if inside is not None and not np.isclose(inside, own_Bps, rtol=CLOSE):
        each = [f"{units.to_gigabytes(rate):g} GB/s" for rate in (own_Bps, inside)]
        sentences.append(
            f"{graph.file}: inside a server a GPU has {each[0]} (gpu.nvlink_gigabytes_per_s); only bytes between "
            f"servers cross the NVLinks of the file, {each[1]} per GPU."
        )
    return sentences


GRAPH = GraphFileFabric(About(name="graph", summary="the graph of a file", look=("Graph", "#666666", "p")))
