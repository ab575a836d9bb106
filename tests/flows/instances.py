"""Drawn max-min instances in exact numbers, and the same padded to one fixed shape, so that each test compiles once."""

import dataclasses
import math
from fractions import Fraction

import numpy as np

from mfabric_jax.flows import FlowProblem

SMALL = [Fraction(n, 2) for n in (1, 2, 2, 3, 4, 6, 8)]  # few values: many ties


@dataclasses.dataclass
class Instance:
    """`paths[f]` lists (link, share); all numbers are dyadic fractions, so floats hold them exactly."""

    capacity: list
    paths: list
    weight: list
    cap: list
    size: list
    start: list

    def flow_terms(self):
        return self.capacity, self.paths, self.weight, self.cap


def dice(rng, tied):
    """Functions that draw a number up to `high`, of few values if `tied`, and one of two values by chance."""

    def number(high=8):
        if tied:
            return SMALL[rng.integers(len(SMALL))] * (high // 8)
        return Fraction(int(rng.integers(2**15, 2**20)) * high, 2**20)

    def sometimes(chance, value, otherwise):
        return value if rng.random() < chance else otherwise

    return number, sometimes


def draw(seed, flows, links, hops, edges=True):
    """An instance with up to `hops` hops a flow. `edges`: with ties, zero capacities, absent and empty flows; else
    numbers in general position: no two alike, so the answer is smooth around them."""
    rng = np.random.default_rng(seed)
    tied = edges and rng.random() < 0.5
    zeros = edges and rng.random() < 0.5

    number, sometimes = dice(rng, tied)
    capacity = [sometimes(0.1 * zeros, Fraction(0), number(64)) for _ in range(links)]
    paths = []
    for _ in range(flows):
        length = rng.integers(0 if edges else 1, min(hops, links) + 1)
        crossed = rng.permutation(links)[:length]
        paths.append([(int(link), sometimes(0.5 * edges, Fraction(1), number() / 8)) for link in crossed])
    plain_weight = edges and rng.random() < 0.3
    return Instance(
        capacity=capacity,
        paths=paths,
        weight=[Fraction(1) if plain_weight else sometimes(0.1 * zeros, Fraction(0), number()) for _ in range(flows)],
        cap=[sometimes(0.7, math.inf, sometimes(0.1 * zeros, Fraction(0), number(16))) for _ in range(flows)],
        size=[sometimes(0.1 * edges, Fraction(0), number(64)) for _ in range(flows)],
        start=[sometimes(0.5 * edges, Fraction(0), number(8) - Fraction(1, 4)) for _ in range(flows)],
    )


@dataclasses.dataclass
class Arrays:
    """An instance as NumPy arrays of one shape. Padding: links that nobody crosses, flows of weight 0 and no bytes."""

    capacity: np.ndarray
    hops: np.ndarray
    share: np.ndarray
    weight: np.ndarray
    cap: np.ndarray
    size: np.ndarray
    start: np.ndarray

    def problem(self, **changed):
        terms = {name: getattr(self, name) for name in ("capacity", "share", "weight", "cap")} | changed
        return FlowProblem(terms["capacity"], self.hops, terms["share"], terms["weight"], terms["cap"])


def padded(instance, flows, links, hops, dtype=np.float64, scale=1.0, seed=0):
    """The arrays of one instance; the -1 of its hop table stand at drawn places."""
    rng = np.random.default_rng(seed)
    count = len(instance.paths)
    table, share = np.full((flows, hops), -1, np.int32), np.ones((flows, hops))
    for f, path in enumerate(instance.paths):
        for slot, (link, part) in zip(rng.permutation(hops), path, strict=False):
            table[f, slot], share[f, slot] = link, part

    def column(values, length, fill, factor=1.0):
        floats = [float(v) * factor for v in values]
        return np.array(floats + [fill] * (length - len(floats)), dtype)

    return Arrays(
        capacity=column(instance.capacity, links, 1.0, scale),
        hops=table,
        share=share.astype(dtype),
        weight=column(instance.weight[:count], flows, 0.0),
        cap=column(instance.cap, flows, math.inf, scale),
        size=column(instance.size, flows, 0.0, scale),
        start=column(instance.start, flows, 0.0),
    )
