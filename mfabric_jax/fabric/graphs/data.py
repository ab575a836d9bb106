"""Nodes and directed links that a reader collects into the node-link data that `graph_of` takes."""

from typing import Any

from mfabric_jax.checks import InputError

MOST_NODES = 1 << 20
MOST_LINKS = 1 << 22


class GraphData:
    """Nodes by name and kind, and links between names; capacities in bytes/s, delays in seconds."""

    def __init__(self):
        self._nodes: dict[str, str] = {}
        self._links: list[dict[str, Any]] = []

    def node(self, name: str, kind: str) -> str:
        """Add a node and return its name. Raise `InputError` if the name is taken or there are too many nodes."""
        if name in self._nodes:
            raise InputError(f"two nodes are called {name!r}; every node needs a unique name.")
        check_many("nodes", len(self._nodes) + 1, MOST_NODES)
        self._nodes[name] = kind
        return name

    def nodes(self, kind: str, count: int) -> list[str]:
        """Add nodes "KIND 0", "KIND 1", ... and return their names."""
        return [self.node(f"{kind} {n}", kind) for n in range(count)]

    def has(self, name: str) -> bool:
        return name in self._nodes

    def one_way(self, source: str, target: str, capacity: float, latency_s: float, kind: str) -> None:
        """Add a link from `source` to `target`. Raise `InputError` if there are too many links."""
        check_many("links", len(self._links) + 1, MOST_LINKS)
        link = {"source": source, "target": target, "capacity_bytes_per_s": capacity, "latency_s": latency_s}
        self._links.append(link | {"kind": kind})

    def both_ways(self, first: str, other: str, capacity: float, latency_s: float, kind: str) -> None:
        """Add a link in each direction, each with the whole capacity."""
        self.one_way(first, other, capacity, latency_s, kind)
        self.one_way(other, first, capacity, latency_s, kind)

    @property
    def data(self) -> dict[str, Any]:
        """Node-link data, as `graph_of` reads it."""
        nodes = [{"id": name, "kind": kind} for name, kind in self._nodes.items()]
        return {"directed": True, "multigraph": True, "nodes": nodes, "edges": self._links}


def check_many(what: str, count: int, most: int) -> None:
    """Raise `InputError` if there are more nodes or links than `most`."""
    if count > most:
        raise InputError(f"{what} of a graph must be at most {most:,}, got {count:,} or more.")


def whole_in(label: str, field: str, text: str, least: int, most: int) -> int:
    """Return the whole number in a word of a file. Raise `InputError` with its place, field and what is allowed."""
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else None
    if value is None or not least <= value <= most:
        raise InputError(f"{label}: {field} must be a whole number from {least} to {most:,}, got {text!r:.80}.")
    return value
