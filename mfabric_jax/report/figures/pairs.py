"""Linked pairs of nodes, each a line of a picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mfabric_jax import units
from mfabric_jax.report.numerals import number

ENDPOINTS = ("gpu", "host", "server")


@dataclass
class Pair:
    """Two linked nodes, the lower number first.

    `gbps`: of both directions. `directions`: the directions that have links (True: from the second end). `links`: their
    numbers. `each`: for ends that stand for many nodes, the number of neighbours of each, in words.
    """

    ends: tuple[int, int]
    kind: str
    gbps: list[float] = field(default_factory=lambda: [0.0, 0.0])
    directions: set[bool] = field(default_factory=set)
    links: list[int] = field(default_factory=list)
    each: tuple[str, str] | None = None

    @property
    def label(self) -> str:
        there, back = (number(gbps) for gbps in self.gbps)
        both = len(self.directions) == 2 and there != back
        return f"{there}/{back}" if both else there if self.gbps[0] >= self.gbps[1] else back


def kinds_of_links(network: Any) -> list[str]:
    """Return the kind of each link, without its direction."""
    return [kind.removesuffix(" up").removesuffix(" down") for kind, count in network.links for _ in range(count)]


def pairs_of(network: Any) -> list[Pair]:
    by_ends: dict[tuple[int, int], Pair] = {}
    kinds, gbps = kinds_of_links(network), units.to_gbps(network.capacity.astype(float)).tolist()
    for link, (tail, head) in enumerate(zip(network.tail.tolist(), network.head.tolist(), strict=True)):
        if tail != head:
            ends = min(tail, head), max(tail, head)
            pair = by_ends.setdefault(ends, Pair(ends, kinds[link]))
            pair.gbps[tail > head] += gbps[link]
            pair.directions.add(tail > head)
            pair.links.append(link)
    return [by_ends[ends] for ends in sorted(by_ends)]


def rates_of(pairs: Sequence[Pair]) -> list[float]:
    """Return the different Gbps of the pairs, largest first."""
    return sorted({float(f"{max(pair.gbps):.4g}") for pair in pairs}, reverse=True)
