"""The comparisons with oracles can fail: one line of the engine is broken at a time, and a drawn case must show it.

Oracles of the layers above are shown to see every input and option that they judge by.
"""

import contextlib
import functools
import importlib
import inspect
import itertools
import math
import sys
import types
from fractions import Fraction
from unittest.mock import patch

import jax
import numpy as np
import pytest
from numba.core import config

from mfabric_jax.flows import completion_times, max_min_rates, star_kernel
from tests.flows import graphs
from tests.flows.instances import draw, padded
from tests.flows.stars import instances
from tests.oracles import circuits, dense, graph, max_min
from tests.oracles.graph import completion
from tests.oracles.greedy import greedy
from tests.oracles.moves import moves_around
from tests.oracles.threshold import bisected
from tests.oracles.timeline import Stage, timeline
from tests.oracles.transition import kkt_residual, objective, slsqp
from tests.oracles.tree import tree

F, L, H = 6, 4, 3


def broken(name, line, instead):
    """A module of the engine with one line replaced: a copy, so that nobody else sees it."""
    module = importlib.import_module(f"mfabric_jax.flows.{name}")
    source = inspect.getsource(module)
    assert not line or source.count(line) == 1, f"{name}.py no longer has this line once; break another: {line}"
    copy = types.ModuleType(module.__name__)
    exec(compile(source.replace(line, instead), f"broken {name}.py", "exec"), copy.__dict__)
    return copy


def drawn(seed):
    instance = draw(seed, F, L, H)
    return instance, padded(instance, F, L, H, seed=seed)


def shows(cases):
    """Whether any case differs from its oracle."""
    return any(not np.allclose(got, np.asarray(want, float), rtol=1e-9, atol=1e-9) for got, want in cases)


def rates(solve):
    for seed in range(30):
        instance, arrays = drawn(seed)
        yield solve(arrays.problem()).rate, max_min.max_min(*instance.flow_terms())


def test_rates():
    assert not shows(rates(max_min_rates))
    for line, instead in (
        ("problem.cap / jnp.where(weight > 0, weight, 1), jnp.inf)", "problem.cap, jnp.inf)"),
        ("full = fair <= paths.link_min(level)", "full = fair < jnp.inf"),
        ("jnp.maximum(capacity - paths.link_sum(rate), 0))", "capacity)"),
    ):
        assert shows(rates(broken("max_min", line, instead).max_min_rates)), line


def finish_times(solve):
    for seed in range(30):
        instance, arrays = drawn(seed)
        got = solve(arrays.problem(), arrays.size, arrays.start).finish
        yield got, graph.completion(*instance.flow_terms(), instance.size, instance.start)


def plain_finish_times(solve):
    for seed in range(30):
        _, arrays = drawn(seed)
        got = solve(arrays.problem(weight=1.0, cap=np.inf), arrays.size, arrays.start).finish
        table = dense.matrix(arrays.hops, arrays.share, L)
        yield got, dense.completion(arrays.capacity, table, arrays.size, arrays.start)


def test_completion_times():
    assert not shows(finish_times(completion_times))
    assert not shows(plain_finish_times(completion_times))
    for line, instead in (
        ("waiting = (clock.begin > now) & (left > 0)", "waiting = jnp.zeros_like(left, bool)"),
        ("changed = jnp.where(begins, 0, ", "changed = jnp.where(begins, jnp.inf, "),
        ("-jnp.where(step > 0, rate * step, 0))", "jnp.zeros_like(rate))"),
    ):
        copy = broken("completion", "", "")
        copy.device_events = broken("device_events", line, instead)
        assert shows(finish_times(copy.completion_times)), line
        assert shows(plain_finish_times(copy.completion_times)), line


@contextlib.contextmanager
def plain_loops(name="", line="", instead=""):
    """The host engine's loops as plain Python, one line of them replaced: nothing to compile."""
    with patch.dict(sys.modules), patch.object(config, "DISABLE_JIT", True):
        for part in ("heap", "tape", "refilling", "events", "instance"):
            copy = broken(f"host.{part}", *((line, instead) if part == name else ("", "")))
            sys.modules[f"mfabric_jax.flows.host.{part}"] = copy
        new_heap, nothing_shared = copy.new_heap, copy.nothing_shared  # records, whose fields plain Python sees
        copy._programs = lambda: (copy.run, copy.push_forward, copy.pull_back)
        copy.new_heap = lambda things: new_heap(things)._replace(entries=new_heap(things).entries.view(np.recarray))
        copy.nothing_shared = lambda *terms: as_records(nothing_shared(*terms))
        yield


def as_records(sharing):
    return sharing._replace(**{name: getattr(sharing, name).view(np.recarray) for name in ("flows", "links", "hops")})


def graph_times(solve):
    for seed in range(30):
        graph = graphs.draw(seed)
        arrays = graphs.padded_graph(graph, seed=seed)
        got, want = solve(arrays.problem(), arrays.size, arrays.start, arrays.after, arrays.lag), graphs.exact(graph)
        yield np.stack([got.begin, got.finish], 1)[: len(want)], want


def test_compiled_loops():
    solve = functools.partial(completion_times, engine="host")
    with plain_loops():
        assert not shows(finish_times(solve))
        assert not shows(graph_times(solve))
    for name, line, instead in (
        ("heap", "if key <= entries[below].key:", "if True:"),
        ("events", "put(clock, flow, s.now[0] + s.flows", "put(clock, flow, s.flows"),
        ("events", "waiting.waits[then] -= 1", "waiting.waits[then] = 0"),
        ("refilling", "if room <= equal:", "if True:"),
        ("refilling", "if highest > level * (1 + NEAR):", "if False:"),
        ("refilling", "- s.flows[flow].rate * had, 0.0)", ", 0.0)"),
    ):
        with plain_loops(name, line, instead):
            assert shows(graph_times(solve)), line


def star_times(kernel):
    """The kernel alone, on instances of ports about 1 and without dead ones."""
    finish_times = jax.jit(lambda size, leaf, groups: kernel.finish_times(size, kernel.StarPorts(leaf, groups)))
    for size, up, down, *racks in zip(*instances(4, 2, ports=("equal", "unequal")), strict=True):
        size = size / max(size.max(), 1)
        leaf, groups = np.concatenate([up, down]), np.minimum(np.concatenate(racks), kernel.BIG)
        with jax.numpy_rank_promotion("allow"):
            finish = finish_times(size[..., None], leaf[:, None], groups[:, None])[..., 0]
        yield np.where(size > 0, finish, 0), tree(size, up, down, *racks)


def test_stars():
    assert not shows(star_times(star_kernel))
    for line, instead in (
        ("shares = low(shares, ports.of_group(group_room / high(group_count, 1)))", "pass"),
        ("high(levels.room - leaves * level, 0))", "high(levels.room - level, 0))"),
        ("keep = barrier((levels.room < 0) & (level < rate))", "keep = barrier(levels.room < 0)"),
    ):
        assert shows(star_times(broken("star_kernel", line, instead))), line


# ------------------------------------------------------------------------------------------- what oracles see
DEMAND = [[0, 9, 2, 1], [3, 0, 5, 0], [1, 4, 0, 8], [6, 1, 1, 0]]

DEGREE, PORT = [2] * 4, [2.0] * 4

RING = [[0, 1, 0, 1], [1, 0, 1, 0], [0, 1, 0, 1], [1, 0, 1, 0]]


def test_circuits_are_told_apart():
    assert greedy(DEMAND, 2) != greedy(DEMAND, 3)
    assert greedy(DEMAND, 3) != greedy(DEMAND, 3, "next") or greedy(DEMAND, 6) != greedy(DEMAND, 6, "next")
    assert greedy(DEMAND, 6) != greedy(DEMAND, 6, "released")
    for routing in ("unsplit", "split"):
        least = circuits.best(DEGREE, DEMAND, PORT, routing)
        times = {circuits.paced(count, DEMAND, PORT, routing) for count in circuits.topologies(DEGREE)}
        assert least == min(times)
        assert len(times) > 2
        assert circuits.best([1] * 4, DEMAND, PORT, routing) > least
        assert circuits.best(DEGREE, DEMAND, [1.0] * 4, routing) > least
    weight = {(0, 1): 5.0, (0, 2): 4.0, (1, 2): 3.0}
    assert circuits.heaviest(weight, [1, 1, 1]) == 5 < circuits.heaviest(weight, [2, 1, 1]) == 9
    pairs = [[0, 2, 0, 0], [2, 0, 0, 0], [0, 0, 0, 2], [0, 0, 2, 0]]
    assert circuits.differing(RING, pairs) == circuits.differing(pairs, RING) == 2


def test_searches_are_told_apart():
    ends = [bisected(RING, DEMAND, DEGREE, PORT, routing, 8) for routing in ("unsplit", "split")]
    assert ends[0] != RING
    assert ends[0] != bisected(RING, DEMAND, [3] * 4, PORT, "unsplit", 8)
    moves = {
        name: moves_around(0, RING, DEMAND, degree, 2.0, routing, limit)
        for name, degree, routing, limit in (
            ("split", DEGREE, "split", None),
            ("unsplit", DEGREE, "unsplit", None),
            ("more ports", [3] * 4, "split", None),
        )
    }
    assert all(first != second for first, second in itertools.combinations(moves.values(), 2))
    assert all(RING not in ends for ends in moves.values())


def test_the_timeline_sees_every_assumption():
    block = {"attention": 2, "inner": 4, "tp": 1, "exchange": [(2, 3), (3, 2)], "switch": (True, True), "ahead": False}

    def end(send=1, delay=5, settings=(), **changed):
        passes = itertools.product("FB", range(2), range(2), [0])
        blocks = {name: [block | changed] for name in passes}
        regions = [Stage(delay, **dict(settings)) for _ in range(2)]
        return timeline(blocks, "1f1b", 2, 2, 1, [send, 0], regions)

    ends = {"plain": end(), "send": end(send=2), "delay": end(delay=6)}
    for name, value in (("eps_waits", True), ("recompute", "attention"), ("recompute", "block"), ("parts", 2)):
        ends[name, value] = end(settings=[(name, value)])
    ends["stretch"] = end(settings=[("parts", 2), ("stretch", True)])
    for name, value in (("attention", 3), ("inner", 5), ("tp", 2), ("exchange", [(2, 3), (4, 2)]), ("ahead", True)):
        ends[name] = end(**{name: value})
    ends["dense"], ends["one switch"] = end(exchange=None), end(switch=(True, False))
    alike = [names for names in itertools.combinations(ends, 2) if ends[names[0]] == ends[names[1]]]
    assert alike == []


def test_the_conditions_of_a_fit_see_a_worse_one():
    rng = np.random.default_rng(0)
    x, y, weight = rng.dirichlet(np.ones(3), 20), rng.dirichlet(np.ones(3), 20), rng.uniform(1, 2, 20)
    matrix, least = slsqp(x, y, weight)
    assert kkt_residual(matrix, x, y, weight) < 1e-5
    for wrong in (np.full((3, 3), 1 / 3), matrix[::-1], 0.99 * matrix + 0.01 * np.eye(3)):
        assert objective(wrong, x, y, weight) > least * (1 + 1e-6)
        assert kkt_residual(wrong, x, y, weight) > 1e-4
    assert kkt_residual(1.01 * matrix, x, y, weight) > 1e-3  # columns do not sum to 1


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
    given = {"inner": 0, "exchange": None}
    blocks = {("F", p, 0, 0): [given | {"attention": p + 1, "tp": 0}] for p in range(3)}
    blocks |= {("B", p, 0, 0): [given | {"attention": 0, "tp": p + 4}] for p in range(3)}
    _, end = timeline(blocks, "1f1b", 3, 1, 1, [10] * 3, [Stage(9) for _ in range(3)])
    assert max(end.values()) == 1 + 2 + 3 + 6 + 5 + 4 + 4 * 10
    assert end["F", 2, 0, 0] == 1 + 10 + 2 + 10 + 3


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


@pytest.mark.parametrize(
    ("schedule", "stages", "batches", "chunks"),
    [("1f1b", 4, 8, 1), ("gpipe", 4, 8, 1), ("interleaved", 4, 8, 2), ("interleaved", 3, 3, 4)],
)
def test_bubbles_are_those_of_the_literature(schedule, stages, batches, chunks):
    # (P - 1) (f + b) of a stage, over V where a stage's work is cut into V chunks; f + b of a chunk is 2 + 4.
    one = {"attention": 2, "inner": 0, "tp": 0, "exchange": None}
    names = [(kind, p, m, c) for kind in "FB" for p in range(stages) for m in range(batches) for c in range(chunks)]
    regions = [Stage(0) for _ in range(stages)]
    _, end = timeline({name: [one] for name in names}, schedule, stages, batches, chunks, [0] * stages, regions)
    assert max(end.values()) == 6 * (batches * chunks + stages - 1)


def test_a_timeline_by_hand():
    # Forward: gate at 3, switch until 8, circuits [8, 10], packets [3, 4]; experts until 14; [14, 15]. Backward:
    # inactive again from 15 to 20, circuits [20, 22]; experts until 30, [30, 31], attention until 36.
    one = {"attention": 2, "inner": 4, "tp": 1, "exchange": [(2, 1), (1, 0)], "switch": (True, False), "ahead": False}
    blocks = {("F", 0, 0, 0): [one], ("B", 0, 0, 0): [one | {"ahead": True}]}
    records, end = timeline(blocks, "1f1b", 1, 1, 1, [0], [Stage(5)])
    assert end == {("F", 0, 0, 0): 15, ("B", 0, 0, 0): 36}
    assert [row[0]["paid"] for row in records.values()] == [5, 5]
    # In two parts: there at 9 and 10, experts [9, 11], [11, 13], combine from 11 on: [11, 11.5], [13, 13.5].
    assert timeline(blocks, "1f1b", 1, 1, 1, [0], [Stage(5, parts=2)])[1]["F", 0, 0, 0] == 13.5
    # All of the forward pass once more before the backward pass: 2 + 1, then 1 + 4 + 2; the switch turns meanwhile.
    again = timeline(blocks, "1f1b", 1, 1, 1, [0], [Stage(5, recompute="block")])[1]
    assert again["B", 0, 0, 0] == 15 + 3 + 2 + 7 + 2 + 8 + 1 + 5
