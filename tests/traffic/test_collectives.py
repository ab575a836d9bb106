"""Collectives as flows, against loops over members and closed forms."""

import collections
import math
import re

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.traffic.collectives import (
    Flows,
    all_to_all,
    hierarchical_all_reduce,
    point_to_point,
    ring_all_reduce,
    together,
)
from tests.mistakes import refused

endpoints = st.integers(0, 2**40)
groups_of = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.lists(endpoints, min_size=n, max_size=n, unique=True), min_size=1, max_size=4)
)
amounts = st.sampled_from([0.0, 1.0, 3.5, 1e9])


def rows(flows: Flows):
    """(src, dst, size, start, label) of every flow, sorted; checks the types on the way."""
    for column, dtype in zip(flows[:5], (np.int64, np.int64, np.float64, np.float64, np.int16), strict=True):
        assert (column.dtype, column.shape) == (dtype, flows.src.shape)
    assert (flows.size > 0).all()
    assert (flows.src != flows.dst).all()
    columns = (flows.src.tolist(), flows.dst.tolist(), flows.size.tolist(), flows.start.tolist(), flows.kind.tolist())
    return sorted((s, d, b, t, flows.labels[k]) for s, d, b, t, k in zip(*columns, strict=True))


def coprimes(n):
    return [p for p in range(1, n) if math.gcd(p, n) == 1]


@given(groups_of, st.data())
def test_an_all_to_all_is_a_loop_over_pairs(groups, data):
    n, count = len(groups[0]), len(groups)
    matrix = st.lists(st.lists(amounts, min_size=n, max_size=n), min_size=n, max_size=n)
    size = data.draw(st.lists(matrix, min_size=count, max_size=count))
    start = data.draw(st.lists(amounts, min_size=count, max_size=count))
    want = [
        (group[i], group[j], size[g][i][j], start[g], "a2a")
        for g, group in enumerate(groups)
        for i, j in np.ndindex(n, n)
        if i != j and size[g][i][j] > 0
    ]
    assert rows(all_to_all(groups, size, label="a2a", start=start)) == sorted(want)


def test_sizes_of_an_all_to_all_broadcast_and_the_diagonal_is_ignored():
    groups, matrix = np.array([[3, 1, 2], [7, 3, 1]]), np.arange(9.0).reshape(3, 3)
    assert rows(all_to_all(groups, 5)) == rows(all_to_all(groups, np.full((3, 3), 5)))
    assert rows(all_to_all(groups, matrix)) == rows(all_to_all(groups, np.stack([matrix, matrix])))
    assert rows(all_to_all(groups[0], matrix)) == rows(all_to_all(groups[:1], matrix[None]))
    assert all_to_all(groups, 5).size.sum() == 2 * 3 * 2 * 5
    # Any kind of number; twice 3e9 bytes are beyond 32 bits.
    small = groups.astype(np.uint8)
    assert rows(all_to_all(jnp.asarray(groups), jnp.asarray(matrix, jnp.float32))) == rows(all_to_all(small, matrix))
    assert all_to_all([0, 1], np.uint32(3_000_000_000)).size.sum() == 2 * 3_000_000_000
    for kept in (7, np.nan, np.inf, -1):
        other = np.where(np.eye(3, dtype=bool), kept, matrix)
        assert rows(all_to_all(groups, other)) == rows(all_to_all(groups, matrix))


@given(groups=groups_of, data=st.data())
def test_every_ring_is_one_cycle_through_its_group(groups, data):
    n = len(groups[0])
    rings = data.draw(st.integers(1, max(len(coprimes(n)), 1)))
    size = data.draw(st.lists(st.sampled_from([1.0, 3.5, 1e9]), min_size=len(groups), max_size=len(groups)))
    assert len(ring_all_reduce(groups, size, rings=rings).src) == len(groups) * (rings * n if n > 1 else 0)
    for group, each in zip(groups, size, strict=True):
        place = {endpoint: i for i, endpoint in enumerate(group)}
        successor = collections.defaultdict(dict)  # stride -> member -> next member
        into = collections.Counter()
        for src, dst, sent, start, _ in rows(ring_all_reduce(group, each, rings=rings)):
            stride = (place[dst] - place[src]) % n
            assert place[src] not in successor[stride]
            successor[stride][place[src]] = place[dst]
            into[dst] += sent
            assert sent == pytest.approx(2 * each * (n - 1) / n / rings, rel=1e-12)
            assert start == 0
        assert len(successor) == (rings if n > 1 else 0)  # distinct strides
        for ring in successor.values():
            seen = [0]
            for _ in range(n):
                seen.append(ring[seen[-1]])
            assert sorted(seen[1:]) == list(range(n))  # everyone once,
            assert seen[-1] == 0  # and home
        for endpoint in group:
            assert into[endpoint] == pytest.approx(2 * each * (n - 1) / n, rel=1e-12)


def test_strides_are_all_coprimes_in_their_order():
    def strides(n, rings):
        flows = ring_all_reduce(np.arange(n), 1.0, rings=rings)
        return [int(stride) for stride in dict.fromkeys(((flows.dst - flows.src) % n).tolist())]

    by_hand = {2: [1], 3: [1, 2], 5: [1, 4, 2, 3], 8: [1, 7, 3, 5], 12: [1, 11, 5, 7], 9: [1, 8, 2, 7, 4, 5]}
    for n, want in by_hand.items():
        for rings in range(1, len(want) + 1):
            assert strides(n, rings) == want[:rings]
    for n in range(2, 40):
        assert sorted(strides(n, len(coprimes(n)))) == coprimes(n)
        said = refused(ring_all_reduce, np.arange(n), 1.0, rings=len(coprimes(n)) + 1)
        assert said.startswith(f"rings must be at most {len(coprimes(n))} for {n} members")


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.data())
def test_a_hierarchical_all_reduce_is_three_loops(groups, servers, local, data):
    inner = servers * local
    drawn = st.lists(endpoints, min_size=inner, max_size=inner, unique=True)
    members = np.array([data.draw(drawn) for _ in range(groups)]).reshape(groups, servers, local)
    size, start = (data.draw(st.lists(amounts, min_size=groups, max_size=groups)) for _ in range(2))
    inside, between = collections.Counter(), collections.Counter()
    for g, s, i in np.ndindex(groups, servers, local):
        for j in range(local):
            for _ in ("reduce-scatter", "all-gather"):
                inside[g, members[g, s, i], members[g, s, j]] += size[g] / local * (i != j)
        if servers > 1:
            after = members[g, (s + 1) % servers, i]
            between[g, members[g, s, i], after] += 2 * size[g] / local * (servers - 1) / servers
    got = hierarchical_all_reduce(members, size, label="grad", start=start)
    for label, want in (("grad inside", inside), ("grad between", between)):
        expected = sorted((int(src), int(dst), b, start[g]) for (g, src, dst), b in want.items() if b)
        found = [row[:4] for row in rows(Flows(*(column[got.of(label)] for column in got[:5]), got.labels))]
        assert [(s, d, t) for s, d, _, t in found] == [(s, d, t) for s, d, _, t in expected]
        np.testing.assert_allclose([row[2] for row in found], [row[2] for row in expected], rtol=1e-12)


def _as_servers(members):
    members = np.asarray(members)
    return members.reshape(*members.shape[:-1], 2, 3)


def test_a_batch_of_groups_is_its_groups():
    # The groups overlap, and the last is the first again: its flows stay separate.
    rng = np.random.default_rng(0)
    members = np.stack([rng.permutation(9)[:6] for _ in range(4)])
    members = np.concatenate([members, members[:1]])
    size, start = rng.integers(0, 5, 5).astype(float), rng.integers(0, 3, 5).astype(float)
    for build, sizes in (
        (all_to_all, rng.integers(0, 3, (5, 6, 6))),
        (lambda members, size, **more: ring_all_reduce(members, size, rings=2, **more), size),
        (lambda members, size, **more: hierarchical_all_reduce(_as_servers(members), size, **more), size),
    ):
        batch = build(members, sizes, start=start)
        alone = [build(m, b, start=t) for m, b, t in zip(members, sizes, start, strict=True)]
        assert rows(batch) == rows(together(*alone))
        assert batch.labels == alone[0].labels


def test_point_to_point_broadcasts_and_drops():
    got = point_to_point([0, 1, 2], 2, [[5], [0]], start=[1, 2, 3])
    assert rows(got) == [(0, 2, 5, 1, "point-to-point"), (1, 2, 5, 2, "point-to-point")]
    assert rows(point_to_point(1, 0, 3, label="p")) == [(1, 0, 3, 0, "p")]


def test_together_keeps_the_order_and_merges_labels():
    one, two = point_to_point(0, 1, 5, label="a"), point_to_point([1, 2], 0, 7, label="b")
    three = together(point_to_point(3, 4, 9, label="c"), point_to_point(4, 3, 2, label="a"))
    got = together(one, two, three)
    assert got.labels == ("a", "b", "c")
    want = ([0, 1, 2, 3, 4], [1, 0, 0, 4, 3], [5, 7, 7, 9, 2], [0] * 5, [0, 1, 1, 2, 0])
    for column, values in zip(got[:5], want, strict=True):
        np.testing.assert_array_equal(column, values)
    np.testing.assert_array_equal(got.of("a"), [True, False, False, False, True])
    assert (rows(together()), together().labels) == ([], ())


def test_nothing_to_send_is_no_flows():
    for flows in (
        all_to_all([7], 5),
        all_to_all([7], [[5]]),
        all_to_all([1, 2], 0),
        all_to_all(np.zeros((0, 4), int), 5),
        ring_all_reduce([[7], [8]], 5, rings=4),
        ring_all_reduce([1, 2, 3], 0, rings=2),
        ring_all_reduce(np.zeros((0, 4), int), 5),
        hierarchical_all_reduce([[7]], 5),
        hierarchical_all_reduce([[1, 2], [3, 4]], 0),
        hierarchical_all_reduce(np.zeros((0, 2, 2), int), 5),
        point_to_point([1, 2], [1, 2], 5),
    ):
        assert rows(flows) == []
        assert flows.labels
        assert all(flows.of(label).shape == (0,) for label in flows.labels)


ERRORS = {
    "members must be whole numbers": lambda: all_to_all([0.0, 1.0], 1),
    "members must hold numbers": lambda: all_to_all([True, False], 1),
    "members must be an array": lambda: all_to_all([[0, 1], [2]], 1),
    "members must not be negative, got -3": lambda: ring_all_reduce([0, -3], 1),
    r"members must have the shape \[n\] or \[G n\] without empty groups, got \[\]": lambda: all_to_all(3, 1),
    r"without empty groups, got \[0\]": lambda: ring_all_reduce([], 1),
    r"members must have the shape \[S m\] or \[G S m\]": lambda: hierarchical_all_reduce([0, 1], 1),
    "but group 1 repeats 5": lambda: all_to_all([[1, 2, 3], [5, 6, 5]], 1),
    "but group 0 repeats 2": lambda: hierarchical_all_reduce([[1, 2], [2, 3]], 1),
    "size must be finite and not negative, got -1.0": lambda: all_to_all([0, 1], [[0, -1], [0, 0]]),
    "size must be finite and not negative, got inf": lambda: point_to_point(0, 1, np.inf),
    "size must hold numbers": lambda: ring_all_reduce([0, 1], "many"),
    r"size must be a number, \[2 2\] or \[1 2 2\], got the shape \[2\]": lambda: all_to_all([0, 1], [1, 2]),
    r"size must be a number or have the shape \[1\]": lambda: ring_all_reduce([0, 1], [1, 2]),
    r"size must be a number or have the shape \[2\]": lambda: hierarchical_all_reduce([[[0, 1]], [[2, 3]]], [1]),
    "start must be finite and not negative, got -2": lambda: all_to_all([0, 1], 1, start=-2),
    r"start must be a number or have the shape \[1\]": lambda: ring_all_reduce([0, 1], 1, start=[0, 1]),
    "rings must be a whole number of at least 1, got 1.5": lambda: ring_all_reduce([0, 1], 1, rings=1.5),  # type: ignore
    "src must not be negative": lambda: point_to_point(-1, 0, 1),
    "dst must be whole numbers": lambda: point_to_point(1, 0.5, 1),
    r"must broadcast, got the shapes \[2\], \[3\], \[\], \[\]": lambda: point_to_point([0, 1], [0, 1, 2], 1),
    "label 'all-too-all' is unknown .did you mean 'all-to-all'": lambda: all_to_all([0, 1], 1).of("all-too-all"),
    "at most 32768 different labels together, got 32769": lambda: together(
        all_to_all([0], 1)._replace(labels=tuple(map(str, range(32769))))
    ),
}


def test_a_mistake_gets_a_sentence():
    for message, call in ERRORS.items():
        said = refused(call)
        assert re.search(message, said)
        assert len(said) < 160
