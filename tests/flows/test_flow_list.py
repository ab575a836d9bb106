"""The flat hop list gives the padded table's answers, and packing large tables changes none."""

import re

import jax
import jax.numpy as jnp
import numpy as np
from scipy.optimize import linprog

from mfabric_jax.flows import FlowList, FlowProblem, Outcome, completion_times, max_min_rates
from tests.flows.instances import draw, padded
from tests.mistakes import refused
from tests.oracles.dense import matrix


def as_list(problem: FlowProblem) -> FlowList:
    """The hops of a table as a list of one length, padding kept in places and put at the end."""
    hops = np.asarray(problem.hops)
    flow = np.repeat(np.arange(hops.shape[0]), hops.shape[1])
    keep = (hops.reshape(-1) >= 0) | (np.arange(hops.size) % 3 == 0)
    behind = 0, np.count_nonzero(~keep)
    share = np.pad(np.asarray(problem.share).reshape(-1)[keep], behind, constant_values=1)
    link = np.pad(hops.reshape(-1)[keep], behind, constant_values=-1)
    flow = np.pad(flow[keep], behind, mode="edge")
    return FlowList(problem.capacity, link, flow, hops.shape[0], share, problem.weight, problem.cap)


def test_equals_the_table():
    for seed in range(12):
        arrays = padded(draw(seed, 14, 9, 4), 16, 10, 4, seed=seed)
        table = arrays.problem()
        flat = as_list(table)
        want, got = max_min_rates(table), max_min_rates(flat)
        np.testing.assert_allclose(got.rate, want.rate, rtol=1e-12)
        np.testing.assert_array_equal(got.bottleneck, want.bottleneck)
        ends, same = (completion_times(p, arrays.size, arrays.start) for p in (table, flat))
        np.testing.assert_allclose(same.finish, ends.finish, rtol=1e-12)
        assert same.outcome == ends.outcome


def test_slopes_equal_the_tables():
    arrays = padded(draw(3, 10, 6, 4, edges=False), 10, 6, 4)
    flat = as_list(arrays.problem())

    def of_table(capacity):
        return completion_times(arrays.problem(capacity=capacity), arrays.size, arrays.start).finish.sum()

    def of_list(capacity):
        listed = FlowList(capacity, flat.link, flat.flow, 10, flat.share, flat.weight, flat.cap)
        return completion_times(listed, arrays.size, arrays.start).finish.sum()

    want = jax.jit(jax.grad(of_table))(jnp.asarray(arrays.capacity))
    np.testing.assert_allclose(jax.jit(jax.grad(of_list))(jnp.asarray(arrays.capacity)), want, rtol=1e-9)


def test_packing_changes_nothing(monkeypatch):
    rng = np.random.default_rng(0)
    hops = np.stack([rng.permutation(40)[:2] for _ in range(300)]).astype(np.int32)
    problem = FlowProblem(rng.uniform(1, 2, 40), hops, weight=rng.uniform(0.5, 2, 300))
    size, start = rng.lognormal(0, 1, 300), np.where(rng.random(300) < 0.3, rng.uniform(0, 5, 300), 0)
    want = completion_times(problem, size, start).finish, max_min_rates(problem).rate
    for module in ("max_min", "completion"):
        monkeypatch.setattr(f"mfabric_jax.flows.{module}.SMALL", 64)
    jax.clear_caches()
    got = completion_times(problem, size, start).finish, max_min_rates(problem).rate
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11)


def test_smallest_level_is_the_linear_programs():
    # The first max-min level is an LP of its own: maximise t with weight * t <= capacity everywhere and under caps.
    for seed in range(10):
        arrays = padded(draw(seed, 12, 6, 3, edges=False), 12, 6, 3)
        got = max_min_rates(arrays.problem())
        assert got.outcome == Outcome.solved
        load = matrix(arrays.hops, arrays.share, 6) @ arrays.weight
        rows = np.concatenate([load, arrays.weight])[:, None]
        best = linprog([-1.0], A_ub=rows, b_ub=np.concatenate([arrays.capacity, np.minimum(arrays.cap, 1e9)]))
        np.testing.assert_allclose(np.min(np.asarray(got.rate) / arrays.weight), best.x[0], rtol=1e-9)


def test_mistakes_are_sentences():
    for link, flow, sentence in (
        ([0, 5], [0, 1], "link must lie in -1..1"),
        ([0, 1], [0, 2], "flow must lie in 0..1"),
        ([0, 0], [1, 1], "twice"),
        ([0, 1], [0], "lists of one length"),
    ):
        assert re.search(sentence, refused(FlowList, [1.0, 2.0], link, flow, 2))


def test_a_million_hops_stay_within_memory_of_hops():
    # Temporary memory of the compiled solve, from the compiler: linear in the hops, not in flows x links.
    flows, links = 200_000, 50_000
    rng = np.random.default_rng(0)
    hops = rng.integers(0, links // 4, (flows, 4)).astype(np.int32) * 4 + np.arange(4, dtype=np.int32)
    problem = FlowProblem(np.ones(links, np.float32), hops)
    used = jax.jit(max_min_rates).lower(problem).compile().memory_analysis().temp_size_in_bytes
    assert used < 400 * hops.size
