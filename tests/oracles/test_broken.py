"""The comparisons with oracles can fail: one line of the engine is broken at a time, and a drawn case must show it.

Oracles of the layers above are shown to see every input and option that they judge by.
"""

import contextlib
import functools
import importlib
import inspect
import itertools
import sys
import types
from unittest.mock import patch

import jax
import numpy as np
from numba.core import config

from mfabric_jax.flows import completion_times, max_min_rates, star_kernel
from tests.flows import graphs
from tests.flows.instances import draw, padded
from tests.flows.stars import instances
from tests.oracles import circuits, dense, fluid, max_min
from tests.oracles.greedy import greedy
from tests.oracles.moves import moves_around
from tests.oracles.pipeline import one_f_one_b
from tests.oracles.threshold import bisected
from tests.oracles.timeline import Region, stage_order, timeline
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
        yield got, fluid.completion(*instance.flow_terms(), instance.size, instance.start)


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
        copy._programs = lambda: (copy.run_events, copy.push_forward, copy.pull_back)
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
    finish_times = jax.jit(lambda size, leaf, groups: kernel.finish_times(size, kernel.Ports(leaf, groups)))
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


def test_the_pipeline_sees_every_time_and_the_order():
    forward, backward = [[1, 2], [3, 1]], [[2, 4], [6, 2]]
    end, _ = one_f_one_b(forward, backward, 1)
    assert end != one_f_one_b(forward, backward, 2)[0]
    assert end != one_f_one_b([[1, 2], [4, 1]], backward, 1)[0]
    assert end != one_f_one_b(forward, [[2, 5], [6, 2]], 1)[0]
    orders = [stage_order(name, 0, 2, 4, chunks) for name, chunks in (("1f1b", 1), ("gpipe", 1), ("interleaved", 2))]
    assert all(first != second for first, second in itertools.combinations(orders, 2))


def test_the_timeline_sees_every_assumption():
    block = {"attention": 2, "inner": 4, "tp": 1, "exchange": [(2, 3), (3, 2)], "switch": (True, True), "ahead": False}

    def end(send=1, delay=5, settings=(), **changed):
        passes = itertools.product("FB", range(2), range(2), [0])
        blocks = {name: [block | changed] for name in passes}
        regions = [Region(delay, **dict(settings)) for _ in range(2)]
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
