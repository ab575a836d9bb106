"""The oracles against each other and against closed forms."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.flows.instances import draw
from tests.oracles import dense, graph
from tests.oracles.fluid import completion
from tests.oracles.pipeline import one_f_one_b
from tests.oracles.timeline import Region, timeline
from tests.oracles.tree import tree


@pytest.mark.parametrize("groups", [None, 2])
@pytest.mark.parametrize("seed", range(10))
def test_tree_is_the_exact_simulation_of_its_paths(seed, groups):
    rng = np.random.default_rng(seed)
    size, (up, down) = rng.integers(0, 4, (4, 4)), rng.integers(1, 4, (2, 4))
    pairs = np.argwhere(size)
    paths = [[(int(i), Fraction(1)), (4 + int(j), Fraction(1))] for i, j in pairs]
    capacity, racks = [*up, *down], []
    if groups:
        racks = list(rng.integers(1, 4, (2, groups)))
        capacity += [*racks[0], *racks[1]]
        for path, (i, j) in zip(paths, pairs, strict=True):
            path += [(8 + int(i) // 2, Fraction(1)), (10 + int(j) // 2, Fraction(1))]
    capacity, sizes = [Fraction(int(c)) for c in capacity], [Fraction(int(size[i, j])) for i, j in pairs]
    exact = completion(capacity, paths, size=sizes)
    finish = np.zeros((4, 4))
    finish[tuple(pairs.T)] = [float(t) for t in exact]
    np.testing.assert_allclose(tree(size, up, down, *racks), finish, rtol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_flows_that_wait_for_nothing_are_the_exact_simulation(seed):
    one = draw(seed, 10, 5, 3)
    _, finish = graph.run(*one.flow_terms()[:2], one.size, start=one.start, weight=one.weight, cap=one.cap)
    assert finish == completion(*one.flow_terms(), one.size, one.start)


def test_flows_that_wait_by_hand():
    # Computation 0 ends at 2, 1 follows 1/2 s later, alone at 2 B/s. From 3 on 2 shares the link, each
    # has 1 B/s: 1 has 1 left at 3 and ends at 4, 2 has 3 left, at 2 B/s until 5.5. 3 has nothing to send and ends as it
    # begins, after the later of 1 and 2, and 1 s more; 4 starts late and never ends; 5 waits for it in vain.
    begin, finish = graph.run(
        capacity=[2, 0],
        paths=[[], [(0, 1)], [(0, 1)], [(1, 1)], [(1, 1)], []],
        size=[2, 2, 4, 0, 1, 1],
        after=[(0, 1), (1, 3), (2, 3), (4, 5)],
        start=[0, 0, 3, 0, 9, 0],
        lag=[0, Fraction(1, 2), 0, 1, 1, 0],
        cap=[1, math.inf, math.inf, math.inf, math.inf, 1],
    )
    assert begin == [0, Fraction(5, 2), 3, Fraction(13, 2), 10, math.inf]
    assert finish == [2, 4, Fraction(11, 2), Fraction(13, 2), math.inf, math.inf]


def test_one_micro_batch_walks_through_the_pipeline_and_back():
    # f = 1, 2, 3, then b = 6, 5, 4, and four sends of 10.
    end, finish = one_f_one_b([[1], [2], [3]], [[4], [5], [6]], 10)
    assert end == 1 + 2 + 3 + 6 + 5 + 4 + 4 * 10
    assert finish["F", 2, 0] == 1 + 10 + 2 + 10 + 3


@pytest.mark.parametrize("seed", range(20))
def test_dense_is_the_exact_simulation_of_its_shares(seed):
    rng = np.random.default_rng(seed)
    flows, links = 8, 5
    hops = np.array([rng.permutation(links)[:3] for _ in range(flows)])
    hops[rng.random(hops.shape) < 0.3] = -1
    share, size = rng.integers(1, 5, hops.shape), rng.integers(0, 6, flows)
    capacity, start = rng.integers(1, 9, links), rng.integers(0, 3, flows)
    paths = [
        [(int(n), Fraction(int(s), 4)) for n, s in zip(*row, strict=True) if n >= 0]
        for row in zip(hops, share, strict=True)
    ]
    whole, sizes, starts = ([Fraction(int(x)) for x in values] for values in (capacity, size, start))
    exact = completion(whole, paths, size=sizes, start=starts)
    table = dense.matrix(hops, share / 4, links)
    np.testing.assert_allclose(dense.completion(capacity, table, size, start), [float(t) for t in exact], rtol=1e-12)


@pytest.mark.parametrize(("stages", "batches"), [(1, 3), (3, 5), (4, 2), (4, 8)])
def test_a_timeline_without_all_to_alls_is_the_plain_pipeline(stages, batches):
    rng = np.random.default_rng(stages)
    forward, backward = [], []
    blocks = {}
    for p in range(stages):
        attention, inner, tp = rng.integers(0, 5, (batches, 3)).T.tolist()
        forward.append([sum(part) for part in zip(attention, inner, tp, strict=True)])
        backward.append([2 * a + 2 * i + t for a, i, t in zip(attention, inner, tp, strict=True)])
        for m in range(batches):
            one = {"attention": attention[m], "inner": inner[m], "tp": tp[m], "exchange": None}
            blocks["F", p, m, 0] = blocks["B", p, m, 0] = [one]
    _, finish = one_f_one_b(forward, backward, 3)
    _, end = timeline(blocks, "1f1b", stages, batches, 1, [3] * stages, [Region(9) for _ in range(stages)])
    assert {name[:3]: t for name, t in end.items()} == finish


@pytest.mark.parametrize(
    ("schedule", "stages", "batches", "chunks"),
    [("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("interleaved", 4, 8, 2), ("interleaved", 3, 3, 4)],
)
def test_bubbles_are_those_of_the_literature(schedule, stages, batches, chunks):
    # (P - 1) (f + b) of a stage, over V where a stage's work is cut into V chunks; f + b of a chunk is 2 + 4.
    one = {"attention": 2, "inner": 0, "tp": 0, "exchange": None}
    names = [(kind, p, m, c) for kind in "FB" for p in range(stages) for m in range(batches) for c in range(chunks)]
    regions = [Region(0) for _ in range(stages)]
    _, end = timeline({name: [one] for name in names}, schedule, stages, batches, chunks, [0] * stages, regions)
    assert max(end.values()) == 6 * (batches * chunks + stages - 1)


def test_a_timeline_by_hand():
    # Forward: gate at 3, switch until 8, circuits [8, 10], packets [3, 4]; experts until 14; [14, 15]. Backward:
    # inactive again from 15 to 20, circuits [20, 22]; experts until 30, [30, 31], attention until 36.
    one = {"attention": 2, "inner": 4, "tp": 1, "exchange": [(2, 1), (1, 0)], "switch": (True, False), "ahead": False}
    blocks = {("F", 0, 0, 0): [one], ("B", 0, 0, 0): [one | {"ahead": True}]}
    records, end = timeline(blocks, "1f1b", 1, 1, 1, [0], [Region(5)])
    assert end == {("F", 0, 0, 0): 15, ("B", 0, 0, 0): 36}
    assert [row[0]["paid"] for row in records.values()] == [5, 5]
    # In two parts: there at 9 and 10, experts [9, 11], [11, 13], combine from 11 on: [11, 11.5], [13, 13.5].
    assert timeline(blocks, "1f1b", 1, 1, 1, [0], [Region(5, parts=2)])[1]["F", 0, 0, 0] == 13.5
    # All of the forward pass once more before the backward pass: 2 + 1, then 1 + 4 + 2; the switch turns meanwhile.
    again = timeline(blocks, "1f1b", 1, 1, 1, [0], [Region(5, recompute="block")])[1]
    assert again["B", 0, 0, 0] == 15 + 3 + 2 + 7 + 2 + 8 + 1 + 5
