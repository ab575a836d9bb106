"""Positions of the nodes of a network, by networkx; `networks` loads this module for nodes without positions."""

from collections.abc import Sequence

import networkx as nx
import numpy as np

from mfabric_jax.report.figures.pairs import ENDPOINTS

BELOW = {"nvswitch": -1, "optics": -2}  # kinds of nodes that are always drawn below the endpoints
_SWEEPS = 12
_FLAT = 0.25  # largest fraction of the links that may lie within a layer


def _graph(nodes: int, pairs: Sequence[tuple[int, int]]) -> nx.Graph:
    graph = nx.Graph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(pairs)
    return graph


def near_joined(nodes: int, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
    """Return positions [N 2] that put linked nodes near each other."""
    graph = _graph(nodes, pairs)
    far = dict(nx.all_pairs_shortest_path_length(graph))
    most = 0.75 * max(max(of.values()) for of in far.values())
    apart = {i: {j: far[i].get(j, max(1.5, most)) for j in graph} for i in graph}  # also between unconnected parts
    drawn = nx.kamada_kawai_layout(graph, dist=apart) if len(graph) > 1 else {0: np.zeros(2)}
    return np.array([drawn[node] for node in graph])


def layers(kinds: Sequence[str], pairs: Sequence[tuple[int, int]]) -> list[list[int]] | None:
    """Return the nodes of each layer, lowest first, ordered so that few links cross.

    None if the graph of the linked pairs is not a hierarchy.
    """
    graph = _graph(len(kinds), pairs)
    ends = [node for node in graph if kinds[node] in ENDPOINTS]
    if not 0 < len(ends) < len(graph):
        return None
    height = nx.multi_source_dijkstra_path_length(graph, set(ends))
    height |= {node: BELOW[kind] for node, kind in enumerate(kinds) if kind in BELOW}
    inside = sum(height.get(a) == height.get(b) and height.get(a, -1) >= 0 for a, b in graph.edges)
    if len(height) < len(graph) or inside > _FLAT * graph.number_of_edges():
        return None
    rows = [[node for node in graph if height[node] == level] for level in sorted(set(height.values()))]
    for sweep in range(_SWEEPS):
        x = {node: (index + 0.5) / len(row) for row in rows for index, node in enumerate(row)}
        for row in rows[:: 1 if sweep % 2 else -1]:
            near = {
                node: [x[neighbour] for neighbour in graph[node] if height[neighbour] != height[node]] for node in row
            }
            mean = {node: round(sum(own) / len(own), 9) if own else x[node] for node, own in near.items()}
            row.sort(key=lambda node, mean=mean: (mean[node], node))
            x |= {node: (index + 0.5) / len(row) for index, node in enumerate(row)}
    return rows
