"""Drawn graphs of flows in exact numbers: chains, diamonds, pipelines, rounds of all-to-alls, anything without a cycle.

All numbers are dyadic fractions, so floats hold them exactly.
"""

import dataclasses
import math
from fractions import Fraction

import numpy as np

from tests.flows.instances import Arrays, Instance, dice, padded
from tests.oracles.graph import run
from tests.oracles.timeline import stage_order

FLOWS, LINKS, HOPS, PAIRS = 42, 12, 4, 130  # the shape that all graphs are padded to; a graph has at most 40 flows


@dataclasses.dataclass
class Graph(Instance):
    """Beside the flows: `after` lists (before, then), `lag` is one of each flow."""

    after: list
    lag: list


@dataclasses.dataclass
class Shape:
    """What waits for what, before any number is drawn: `what` is compute, transfer or marker."""

    what: list
    after: list

    def add(self, what, *befores):
        self.what.append(what)
        self.after += [(before, len(self.what) - 1) for before in befores]
        return len(self.what) - 1


def chain(rng):
    shape = Shape([], [])
    for _ in range(rng.integers(1, 6)):
        last = []
        for _ in range(rng.integers(2, 9)):
            last = [shape.add(rng.choice(["compute", "transfer"]), *last)]
    return shape


def diamonds(rng):
    shape = Shape([], [])
    last = [shape.add("compute")]
    for _ in range(rng.integers(1, 5)):
        middle = [shape.add(rng.choice(["compute", "transfer"]), *last) for _ in range(rng.integers(2, 9))]
        last = [shape.add(rng.choice(["compute", "marker"]), *middle)]
    return shape


def pipeline(rng):
    """One forward, one backward: computations of a stage one by one, activations and gradients sent on."""
    stages, batches = int(rng.integers(2, 4)), int(rng.integers(1, 4))
    orders = [stage_order("1f1b", stage, stages, batches) for stage in range(stages)]
    shape, sent, at = Shape([], []), {}, [0] * stages
    last: list[list[int]] = [[] for _ in range(stages)]
    while any(at[stage] < 2 * batches for stage in range(stages)):
        for stage in range(stages):
            if at[stage] == 2 * batches:
                continue
            way, batch, _ = orders[stage][at[stage]]
            first = stage == 0 if way == "F" else stage == stages - 1
            if not first and (way, stage, batch) not in sent:
                continue
            task = shape.add("compute", *last[stage], *([] if first else [sent[way, stage, batch]]))
            last[stage], at[stage] = [task], at[stage] + 1
            onward = stage + 1 if way == "F" else stage - 1
            if 0 <= onward < stages:
                sent[way, onward, batch] = shape.add("transfer", task)
    return shape


def rounds(rng):
    """Every rank computes, then sends to every other; a marker ends the round."""
    shape, last = Shape([], []), []
    ranks = int(rng.integers(2, 5))
    for _ in range(rng.integers(1, 3)):
        own = [shape.add("compute", *last) for _ in range(ranks)]
        last = [shape.add("marker", *[shape.add("transfer", a) for a in own for b in own if a != b])]
    return shape


def anything(rng):
    shape = Shape([], [])
    for number in range(rng.integers(1, 41)):
        befores = set(rng.integers(0, number, rng.integers(0, 4)).tolist()) if number else set()
        shape.add(rng.choice(["compute", "transfer", "transfer", "marker"]), *sorted(befores))
    return shape


SHAPES = [chain, diamonds, pipeline, rounds, anything]


def draw(seed, edges=True):
    """A graph. `edges`: with ties, nothing to send, dead links, links without limit, absent flows; else numbers in
    general position: no two alike, so the answer is smooth around them."""
    rng = np.random.default_rng(seed)
    shape = SHAPES[seed % len(SHAPES)](rng)
    tied, odd = (edges and rng.random() < 0.5 for _ in range(2))
    number, sometimes = dice(rng, tied)

    def path(what):
        if what != "transfer":
            return []
        crossed = rng.permutation(links)[: rng.integers(1, min(HOPS, links) + 1)]
        return [(int(link), sometimes(0.6 * edges, Fraction(1), number() / 8)) for link in crossed]

    links = int(rng.choice([1, 2, 3, 5, 8, LINKS]))
    transfer = [what == "transfer" for what in shape.what]
    return Graph(
        capacity=[sometimes(0.04 * odd, 0, sometimes(0.1 * odd, math.inf, number(16))) for _ in range(links)],
        paths=[path(what) for what in shape.what],
        weight=[sometimes(0.6 * edges, 1, sometimes(0.03 * odd, 0, number())) if moves else 1 for moves in transfer],
        cap=[
            sometimes(0.3, sometimes(0.05 * odd, 0, number()), math.inf) if moves else sometimes(0.8, 1, number())
            for moves in transfer
        ],
        size=[0 if what == "marker" else sometimes(0.1 * edges, 0, number(16)) for what in shape.what],
        start=[sometimes(0.2, number(16), 0) for _ in shape.what],
        after=shape.after,
        lag=[sometimes(0.3, number() / 4, 0) for _ in shape.what],
    )


@dataclasses.dataclass
class GraphArrays(Arrays):
    """A graph as NumPy arrays of one shape. Padding flows have no bytes; they wait for each other."""

    after: np.ndarray
    lag: np.ndarray


def padded_graph(graph, dtype=np.float64, scale=1.0, seed=0):
    """The arrays of one graph; of a transfer's bytes and bytes per second `scale` times as many."""
    arrays = padded(graph, FLOWS, LINKS, HOPS, dtype, 1.0, seed)
    factor = np.ones(FLOWS, dtype)
    factor[: len(graph.paths)] = [scale if path else 1 for path in graph.paths]
    arrays = dataclasses.replace(
        arrays, capacity=arrays.capacity * dtype(scale), size=arrays.size * factor, cap=arrays.cap * factor
    )
    after = np.full((PAIRS, 2), [FLOWS - 2, FLOWS - 1])
    after[: len(graph.after)] = np.array(graph.after).reshape(-1, 2)
    lag = np.zeros(FLOWS, dtype)
    lag[: len(graph.lag)] = [float(seconds) for seconds in graph.lag]
    return GraphArrays(**vars(arrays), after=after, lag=lag)


def exact(graph):
    """Begin and finish [F 2] as floats, by the oracle."""
    terms = (graph.start, graph.lag, graph.weight, graph.cap)
    return np.array(run(graph.capacity, graph.paths, graph.size, graph.after, *terms), float).T
