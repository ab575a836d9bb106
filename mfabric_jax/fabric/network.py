"""A fabric as a graph: nodes and directed links with capacity and delay."""

from dataclasses import dataclass, replace

import numpy as np

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY, floats_alike, host_indices, real_numbers, store_arrays


@dataclass(frozen=True)
class FabricGraph:
    """Directed links between numbered nodes. Both are listed in runs of one kind: `(("gpu", 16), ("nvswitch", 2))`.

    - `tail`, `head` [L]: link l leads from node `tail[l]` to node `head[l]`.
    - `capacity` [L] bytes/s, 0 where the link has failed; `delay_s` [L] propagation delay.
    - `nodes`, `links`: runs of (kind, number), in order of their indices.
    - `names`: names of the nodes; None: "kind number".
    """

    tail: np.ndarray
    head: np.ndarray
    capacity: np.ndarray
    delay_s: np.ndarray
    nodes: tuple[tuple[str, int], ...]
    links: tuple[tuple[str, int], ...]
    names: tuple[str, ...] | None = None

    def __post_init__(self):
        counted = sum(count for _, count in self.links)
        ends = {field: host_indices(field, getattr(self, field), 0, self.size - 1) for field in ("tail", "head")}
        rates = {
            field: floats_alike(field, getattr(self, field), FROM_0_TO_INFINITY) for field in ("capacity", "delay_s")
        }
        store_arrays(self, **ends, **rates)
        for field in ("tail", "head", "capacity", "delay_s"):
            if getattr(self, field).shape != (counted,):
                raise InputError(f"{field} must have the shape [{counted}], got {list(getattr(self, field).shape)}.")

    @property
    def size(self) -> int:
        return sum(count for _, count in self.nodes)

    def run(self, kind: str, of: str = "links") -> slice:
        """Return the index range of the links (with `of="nodes"`: the nodes) of one kind."""
        runs = getattr(self, of)
        one_of(f"kind of {of}", kind, [name for name, _ in runs])
        first = 0
        for name, count in runs:
            if name == kind:
                return slice(first, first + count)
            first += count
        raise AssertionError("unreachable: the kind is in the list")

    def kind_of_links(self) -> np.ndarray:
        """Return the kind of every link [L], as an index into `links`."""
        return np.repeat(np.arange(len(self.links)), [count for _, count in self.links])

    def node_name(self, node: int) -> str:
        """Return the name of a node, such as "gpu 3"."""
        if self.names is not None:
            return self.names[node]
        for kind, count in self.nodes:
            if node < count:
                return f"{kind} {node}"
            node -= count
        raise InputError(f"node must be below {self.size}, got {node + self.size}.")

    def link_name(self, link: int) -> str:
        return f"{self.node_name(int(self.tail[link]))} -> {self.node_name(int(self.head[link]))}"

    def without(self, failed: np.ndarray) -> "FabricGraph":
        """Return the network with capacity 0 on failed links (indices, or a mask)."""
        capacity, failed = self.capacity.copy(), np.asarray(real_numbers("failed", failed))
        if failed.dtype != bool or failed.shape != capacity.shape:
            failed = host_indices("failed", failed, 0, len(capacity) - 1)
        capacity[failed] = 0
        return replace(self, capacity=capacity)

    def merge_links(self, pool: np.ndarray, node: np.ndarray, nodes, links) -> "FabricGraph":
        """Return the network with links and nodes merged; `pool` [L], `node` [N]: the merged index of each."""
        count = sum(n for _, n in links)
        pool = host_indices("pool", pool, 0, count - 1)
        node = host_indices("node", node, 0, sum(n for _, n in nodes) - 1)
        ends = np.zeros((2, count), self.tail.dtype)
        ends[:, pool] = node[np.stack([self.tail, self.head])]
        capacity = np.bincount(pool, self.capacity, minlength=count)
        delay_s = np.zeros(count)
        np.maximum.at(delay_s, pool, self.delay_s)
        return FabricGraph(ends[0], ends[1], capacity, delay_s, nodes, links)


def find_links(tail: np.ndarray, head: np.ndarray, src: np.ndarray, dst: np.ndarray) -> np.ndarray:
    """Return the first link from each node `src` to `dst`; -1 if there is none."""
    if not len(tail):
        return np.full(np.shape(src), -1)
    most = int(max(head.max(), np.max(dst, initial=0))) + 1
    keys, wanted = tail.astype(np.int64) * most + head, np.asarray(src) * most + dst
    order = np.argsort(keys, kind="stable")
    link = order[np.minimum(np.searchsorted(keys, wanted, sorter=order), len(keys) - 1)]
    return np.where(keys[link] == wanted, link, -1)


def network_of(parts: list[tuple[str, np.ndarray, np.ndarray, np.ndarray]], nodes, delay_s: float) -> FabricGraph:
    """Return the network of runs of links (kind, tail, head, capacity); empty runs are left out."""
    parts = [part for part in parts if len(part[1])]
    tail, head, capacity = (
        np.concatenate([np.asarray(part[column]) for part in parts] or [np.zeros(0)]) for column in (1, 2, 3)
    )
    return FabricGraph(
        tail.astype(np.int64),
        head.astype(np.int64),
        capacity.astype(float),
        np.full(len(tail), float(delay_s)),
        tuple((kind, count) for kind, count in nodes if count),
        tuple((part[0], len(part[1])) for part in parts),
    )
