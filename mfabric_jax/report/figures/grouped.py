"""Networks too large to draw in full: equivalent nodes become one box, or one node is shown with its neighbourhood.

Nodes are equivalent if they have the same kind, and links of the same kinds and capacities to equivalent nodes (colour
refinement: Weisfeiler and Leman, 1968). Refinement stops when the picture has no room for more boxes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mfabric_jax.report.figures.pairs import Pair, kinds_of_links

MOST_BOXES, MOST_AROUND = 24, 40


@dataclass(frozen=True)
class DrawnNetwork:
    """The drawn part of a network: kind and name of each box, lines, and a sentence on what is left out."""

    kinds: list[str]
    names: list[str]
    pairs: list[Pair]
    note: str = ""


def whole(network: Any, pairs: list[Pair]) -> DrawnNetwork:
    """Return the whole network, a box per node."""
    kinds = [kind for kind, count in network.nodes for _ in range(count)]
    names = [str(i) for _, count in network.nodes for i in range(count)]
    return DrawnNetwork(kinds, names if network.names is None else [str(name) for name in network.names], pairs)


def part_of(network: Any, pairs: list[Pair]) -> DrawnNetwork:
    """Return boxes of equivalent nodes; if all nodes have one kind, the neighbourhood of the first node."""
    return around_first(network, pairs) if len(network.nodes) == 1 else in_classes(network, pairs)


# ------------------------------------------------------------------------------------------------------------- classes
def classes(network: Any, most: int = MOST_BOXES) -> np.ndarray:
    """Return the class [N] of each node, numbered by first node; at most `most` classes, or one per kind."""
    kind = np.repeat(np.arange(len(network.nodes)), [count for _, count in network.nodes])
    of_link = np.unique(kinds_of_links(network), return_inverse=True)[1] if len(network.tail) else np.zeros(0, int)
    _, rate = np.unique(network.capacity, return_inverse=True)
    random, labels = np.random.default_rng(0), kind
    while True:
        marks = labels[:, None]
        for here, there in ((network.tail, network.head), (network.head, network.tail)):
            _, key = np.unique(np.stack([of_link, rate, labels[there]]), axis=1, return_inverse=True)
            draw = random.integers(1, 1 << 62, int(key.max(initial=0)) + 1, np.int64)
            mark = np.zeros(network.size, np.int64)
            np.add.at(mark, here, draw[key.ravel()])  # a hash of all links of a node; sums wrap around
            marks = np.column_stack([marks, mark])
        _, first, finer = np.unique(marks, axis=0, return_index=True, return_inverse=True)
        if len(first) > most or len(first) == labels.max(initial=0) + 1:
            return labels
        labels = np.argsort(np.argsort(first))[finer.ravel()]


def in_classes(network: Any, pairs: list[Pair]) -> DrawnNetwork:
    of = classes(network)
    kind = np.repeat([kind for kind, _ in network.nodes], [count for _, count in network.nodes])
    count, first = np.bincount(of), np.unique(of, return_index=True)[1]
    kinds = [str(kind[node]) for node in first]
    names = [f"{number:,} {name}" for number, name in zip(count.tolist(), kinds, strict=True)]
    some: dict[tuple[int, int, str, str], list[Pair]] = {}
    for pair in pairs:
        lower, other = (int(of[node]) for node in pair.ends)
        if lower > other:
            lower, other, pair = other, lower, _reverse_pair(pair)
        some.setdefault((lower, other, pair.kind, pair.label), []).append(pair)
    between: dict[tuple[int, int], Pair] = {}
    own = []
    for (lower, other, link, label), every in sorted(some.items()):
        each = [_each(of, every, end, int(count[end])) for end in (lower, other)]
        if lower == other:
            own.append(f"the {names[lower]} are linked to {each[0]} others each ({link}, {label} Gbps)")
            continue
        there = between.setdefault((lower, other), Pair((lower, other), link))
        low, high = there.each or ("", "")
        there.each = f"{low}, {each[0]}".lstrip(", "), f"{high}, {each[1]}".lstrip(", ")
        there.gbps = [max(pair) for pair in zip(there.gbps, every[0].gbps, strict=True)]
        there.directions.update(*(pair.directions for pair in every))
        there.links += [number for pair in every for number in pair.links]
    note = "box: nodes with equal links; number on a line: neighbours that each node has in the other box"
    return DrawnNetwork(kinds, names, list(between.values()), "; ".join([note, *own]))


def _reverse_pair(pair: Pair) -> Pair:
    """Return the pair with its ends exchanged."""
    first, other = pair.ends
    return Pair(
        (other, first), pair.kind, pair.gbps[::-1], {not direction for direction in pair.directions}, pair.links
    )


def _each(of: np.ndarray, pairs: Sequence[Pair], end: int, nodes: int) -> str:
    """The number of neighbours of a node of class `end`, such as 8 or 7-8."""
    joined = Counter(node for pair in pairs for node in pair.ends if of[node] == end)
    low, high = min(joined.values()) if len(joined) == nodes else 0, max(joined.values())
    return f"{low}" if low == high else f"{low}-{high}"


# ------------------------------------------------------------------------------------------ neighbourhood of one node
def around_first(network: Any, pairs: list[Pair]) -> DrawnNetwork:
    """Return the first node and its neighbourhood: as many links away as the picture has room for, at least one."""
    near: dict[int, set[int]] = {}
    for pair in pairs:
        for end, other in (pair.ends, pair.ends[::-1]):
            near.setdefault(end, set()).add(other)
    shown, links = {0}, 0
    while True:
        wider = shown.union(*(near.get(node, set()) for node in shown))
        if len(wider) == len(shown) or (links and len(wider) > MOST_AROUND):
            break
        shown, links = wider, links + 1
    kept = sorted(shown)[: 2 * MOST_AROUND]
    indices = {node: number for number, node in enumerate(kept)}
    inside = [pair for pair in pairs if all(node in indices for node in pair.ends)]
    moved = [
        Pair((indices[a], indices[b]), p.kind, p.gbps, p.directions, p.links) for p in inside for a, b in (p.ends,)
    ]
    names = [str(node) if network.names is None else str(network.names[node]) for node in kept]
    reach = "a link" if links == 1 else f"{links} links"
    some = "" if len(kept) == len(shown) else f", the first {len(kept)} of {len(shown)}"
    return DrawnNetwork(
        [network.nodes[0][0]] * len(kept), names, moved, f"only the nodes within {reach} of {names[0]}{some}"
    )
