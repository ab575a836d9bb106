"""Collectives as flows, against loops over members, closed forms and the engine on a star of ports."""

import collections
import math

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mfabric_jax.checks import InputError
from mfabric_jax.flows import FlowProblem, Outcome, completion_times
from mfabric_jax.traffic import (
    Flows,
    all_to_all,
    hierarchical_all_reduce,
    later,
    point_to_point,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    together,
)

RINGS = {ring_all_reduce: 2, ring_all_gather: 1, ring_reduce_scatter: 1}  # passes around the ring
endpoints = st.integers(0, 2**40)
groups_of = st.integers(1, 9).flatmap(
    lambda n: st.lists(st.lists(endpoints, min_size=n, max_size=n, unique=True), min_size=1, max_size=4)
)
amounts = st.sampled_from([0.0, 1.0, 3.5, 1e9])


def rows(flows: Flows):
    """(src, dst, size, start, label) of every flow, sorted; checks the types on the way."""
    shape = flows.src.shape
    for column, dtype in zip(flows[:5], (np.int64, np.int64, np.float64, np.float64, np.int16), strict=True):
        assert column.dtype == dtype
        assert column.shape == shape
    assert (flows.size > 0).all()
    assert (flows.src != flows.dst).all()
    columns = (flows.src.tolist(), flows.dst.tolist(), flows.size.tolist(), flows.start.tolist(), flows.kind.tolist())
    return sorted((s, d, b, t, flows.labels[k]) for s, d, b, t, k in zip(*columns, strict=True))


def sent_and_received(flows: Flows):
    out, into = collections.Counter(), collections.Counter()
    for src, dst, size, *_ in rows(flows):
        out[src] += size
        into[dst] += size
    return out, into


def coprimes(n):
    return [p for p in range(1, n) if math.gcd(p, n) == 1]


@given(groups_of, st.data())
def test_an_all_to_all_is_a_loop_over_pairs(groups, data):
    n = len(groups[0])
    row = st.lists(amounts, min_size=n, max_size=n)
    matrix = st.lists(row, min_size=n, max_size=n)
    size = data.draw(st.lists(matrix, min_size=len(groups), max_size=len(groups)))
    start = data.draw(st.lists(amounts, min_size=len(groups), max_size=len(groups)))
    want = [
        (group[i], group[j], size[g][i][j], start[g], "a2a")
        for g, group in enumerate(groups)
        for i in range(n)
        for j in range(n)
        if i != j and size[g][i][j] > 0
    ]
    assert rows(all_to_all(groups, size, label="a2a", start=start)) == sorted(want)


def test_sizes_of_an_all_to_all_broadcast():
    groups = np.array([[3, 1, 2], [7, 3, 1]])
    matrix = np.arange(9.0).reshape(3, 3)
    assert rows(all_to_all(groups, 5)) == rows(all_to_all(groups, np.full((3, 3), 5)))
    assert rows(all_to_all(groups, matrix)) == rows(all_to_all(groups, np.stack([matrix, matrix])))
    assert rows(all_to_all(groups[0], matrix)) == rows(all_to_all(groups[:1], matrix[None]))
    assert all_to_all(groups, 5).size.sum() == 2 * 3 * 2 * 5


def test_the_diagonal_is_ignored():
    size = np.ones((3, 3))
    plain = rows(all_to_all([4, 5, 6], size))
    for kept in (0, 7, np.nan, np.inf, -1):
        np.fill_diagonal(size, kept)
        assert rows(all_to_all([4, 5, 6], size)) == plain


@pytest.mark.parametrize(("collective", "passes"), RINGS.items())
@given(groups=groups_of, data=st.data())
def test_every_ring_is_one_cycle_through_its_group(collective, passes, groups, data):
    n = len(groups[0])
    rings = data.draw(st.integers(1, max(len(coprimes(n)), 1)))
    size = data.draw(st.lists(st.sampled_from([1.0, 3.5, 1e9]), min_size=len(groups), max_size=len(groups)))
    got = collective(groups, size, rings=rings)
    assert len(got.src) == len(groups) * (rings * n if n > 1 else 0)
    for g, group in enumerate(groups):
        alone = collective(group, size[g], rings=rings)
        place = {endpoint: i for i, endpoint in enumerate(group)}
        successor = collections.defaultdict(dict)  # stride -> member -> next member
        for src, dst, sent, start, _ in rows(alone):
            stride = (place[dst] - place[src]) % n
            assert place[src] not in successor[stride]
            successor[stride][place[src]] = place[dst]
            assert sent == pytest.approx(passes * size[g] * (n - 1) / n / rings, rel=1e-12)
            assert start == 0
        assert len(successor) == (rings if n > 1 else 0)  # distinct strides
        for ring in successor.values():
            at, seen = 0, []
            for _ in range(n):
                at = ring[at]
                seen.append(at)
            assert sorted(seen) == list(range(n))  # everyone once,
            assert at == 0  # and home
        out, into = sent_and_received(alone)
        for endpoint in group:
            assert out[endpoint] == pytest.approx(passes * size[g] * (n - 1) / n, rel=1e-12)
            assert into[endpoint] == pytest.approx(out[endpoint], rel=1e-12)


def strides_of(n, rings):
    flows = ring_all_gather(np.arange(n), 1.0, rings=rings)
    return [int(stride) for stride in dict.fromkeys(((flows.dst - flows.src) % n).tolist())]


@pytest.mark.parametrize(
    ("n", "want"),
    [(2, [1]), (3, [1, 2]), (5, [1, 4, 2, 3]), (8, [1, 7, 3, 5]), (12, [1, 11, 5, 7]), (9, [1, 8, 2, 7, 4, 5])],
)
def test_strides_by_hand(n, want):
    for rings in range(1, len(want) + 1):
        assert strides_of(n, rings) == want[:rings]


@pytest.mark.parametrize("n", range(2, 40))
def test_all_coprime_strides_serve_and_no_more(n):
    every = coprimes(n)
    assert sorted(strides_of(n, len(every))) == every
    with pytest.raises(InputError, match=rf"rings must be at most {len(every)} for {n} members"):
        ring_all_reduce(np.arange(n), 1.0, rings=len(every) + 1)


def test_reduce_scatter_and_all_gather_make_an_all_reduce():
    members = np.arange(10).reshape(2, 5)
    both = together(ring_reduce_scatter(members, 8, rings=2), ring_all_gather(members, 8, rings=2))
    assert both.labels == ("reduce-scatter", "all-gather")
    assert sent_and_received(both) == sent_and_received(ring_all_reduce(members, 8, rings=2))


def test_two_members_send_to_each_other():
    assert rows(ring_all_reduce([4, 9], 6)) == [(4, 9, 6, 0, "all-reduce"), (9, 4, 6, 0, "all-reduce")]
    assert rows(ring_all_gather([4, 9], 6)) == [(4, 9, 3, 0, "all-gather"), (9, 4, 3, 0, "all-gather")]


@given(st.integers(1, 3), st.integers(1, 4), st.integers(1, 5), st.data())
def test_a_hierarchical_all_reduce_is_three_loops(groups, servers, local, data):
    inner = servers * local
    drawn = st.lists(endpoints, min_size=inner, max_size=inner, unique=True)
    members = np.array([data.draw(drawn) for _ in range(groups)]).reshape(groups, servers, local)
    size = data.draw(st.lists(amounts, min_size=groups, max_size=groups))
    start = data.draw(st.lists(amounts, min_size=groups, max_size=groups))
    inside, between = collections.Counter(), collections.Counter()
    for g in range(groups):
        for s in range(servers):
            for i in range(local):
                for j in range(local):
                    for _ in ("reduce-scatter", "all-gather"):
                        inside[g, members[g, s, i], members[g, s, j]] += size[g] / local * (i != j)
                if servers > 1:
                    after = members[g, (s + 1) % servers, i]
                    between[g, members[g, s, i], after] += 2 * size[g] / local * (servers - 1) / servers
    got = hierarchical_all_reduce(members, size, label="grad", start=start)
    for label, want in (("grad inside", inside), ("grad between", between)):
        expected = sorted((int(src), int(dst), b, start[g]) for (g, src, dst), b in want.items() if b)
        some = Flows(*(column[got.of(label)] for column in got[:5]), got.labels)
        found = [row[:4] for row in rows(some)]
        assert [(s, d, t) for s, d, _, t in found] == [(s, d, t) for s, d, _, t in expected]
        np.testing.assert_allclose([row[2] for row in found], [row[2] for row in expected], rtol=1e-12)
    total = sum(size)
    assert got.size[got.of("grad inside")].sum() == pytest.approx(2 * total * servers * (local - 1), rel=1e-12)
    assert got.size[got.of("grad between")].sum() == pytest.approx(2 * total * (servers - 1), rel=1e-12)


def test_a_hierarchical_all_reduce_degenerates():
    column = [[3], [8], [5]]  # one GPU per server: a plain ring
    assert [r[:4] for r in rows(hierarchical_all_reduce(column, 6))] == [
        r[:4] for r in rows(ring_all_reduce([3, 8, 5], 6))
    ]
    one_server = hierarchical_all_reduce([[3, 8, 5]], 6)
    assert rows(one_server) == rows(all_to_all([3, 8, 5], 4, label="all-reduce inside"))
    assert one_server.labels == ("all-reduce inside", "all-reduce between")
    assert not one_server.of("all-reduce between").any()


BATCHED = {
    "all-to-all": all_to_all,
    "all-reduce": lambda members, size, **more: ring_all_reduce(members, size, rings=2, **more),
    "all-gather": ring_all_gather,
    "reduce-scatter": ring_reduce_scatter,
    "hierarchical": lambda members, size, **more: hierarchical_all_reduce(_as_servers(members), size, **more),
}


def _as_servers(members):
    members = np.asarray(members)
    return members.reshape(*members.shape[:-1], 2, 3)


@pytest.mark.parametrize("name", BATCHED)
def test_a_batch_of_groups_is_its_groups(name):
    # The groups overlap, and the last is the first again: its flows stay separate.
    rng = np.random.default_rng(0)
    members = np.stack([rng.permutation(9)[:6] for _ in range(4)])
    members = np.concatenate([members, members[:1]])
    size, start = rng.integers(0, 5, 5).astype(float), rng.integers(0, 3, 5).astype(float)
    sizes = size if name != "all-to-all" else rng.integers(0, 3, (5, 6, 6))
    batch = BATCHED[name](members, sizes, start=start)
    alone = [BATCHED[name](m, b, start=t) for m, b, t in zip(members, sizes, start, strict=True)]
    assert rows(batch) == rows(together(*alone))
    assert batch.labels == alone[0].labels


def test_point_to_point_broadcasts_and_drops():
    got = point_to_point([0, 1, 2], 2, [[5], [0]], start=[1, 2, 3])
    assert rows(got) == [(0, 2, 5, 1, "point-to-point"), (1, 2, 5, 2, "point-to-point")]
    assert rows(point_to_point(1, 0, 3, label="p")) == [(1, 0, 3, 0, "p")]
    assert rows(point_to_point([], [], [])) == []


def test_together_keeps_the_order_and_merges_labels():
    one, two = point_to_point(0, 1, 5, label="a"), point_to_point([1, 2], 0, 7, label="b")
    three = together(point_to_point(3, 4, 9, label="c"), point_to_point(4, 3, 2, label="a"))
    got = together(one, two, three)
    assert got.labels == ("a", "b", "c")
    np.testing.assert_array_equal(got.src, [0, 1, 2, 3, 4])
    np.testing.assert_array_equal(got.dst, [1, 0, 0, 4, 3])
    np.testing.assert_array_equal(got.size, [5, 7, 7, 9, 2])
    np.testing.assert_array_equal(got.kind, [0, 1, 1, 2, 0])
    np.testing.assert_array_equal(got.of("a"), [True, False, False, False, True])
    assert rows(got) == sorted(rows(one) + rows(two) + rows(three))
    assert rows(together()) == []
    assert together().labels == ()


def test_later_shifts_starts_only():
    flows = point_to_point([0, 1], 2, 5, start=[1, 4])
    np.testing.assert_array_equal(later(flows, 2.5).start, [3.5, 6.5])
    np.testing.assert_array_equal(later(flows, [0, 10]).start, [1, 14])
    np.testing.assert_array_equal(flows.start, [1, 4])
    for column in ("src", "dst", "size", "kind", "labels"):
        assert getattr(later(flows, 1), column) is getattr(flows, column)


@pytest.mark.parametrize(
    "build",
    [
        lambda: all_to_all([7], 5),
        lambda: all_to_all([7], [[5]]),
        lambda: all_to_all([1, 2], 0),
        lambda: all_to_all(np.zeros((0, 4), int), 5),
        lambda: ring_all_reduce([7], 5),
        lambda: ring_all_reduce([[7], [8]], 5, rings=4),
        lambda: ring_all_reduce([1, 2, 3], 0, rings=2),
        lambda: ring_all_gather(np.zeros((0, 4), int), 5),
        lambda: hierarchical_all_reduce([[7]], 5),
        lambda: hierarchical_all_reduce([[1, 2], [3, 4]], 0),
        lambda: hierarchical_all_reduce(np.zeros((0, 2, 2), int), 5),
        lambda: point_to_point([1, 2], [1, 2], 5),
    ],
)
def test_nothing_to_send_is_no_flows(build):
    flows = build()
    assert rows(flows) == []
    assert flows.labels
    for label in flows.labels:
        assert flows.of(label).shape == (0,)


def test_arrays_of_jax_and_of_any_number_type_are_taken():
    want = rows(ring_all_reduce([0, 1, 2], 6.0))
    assert rows(ring_all_reduce(jnp.arange(3, dtype=jnp.int32), jnp.float32(6))) == want
    assert rows(ring_all_reduce(np.arange(3, dtype=np.uint8), np.int16(6))) == want
    # 3e9 bytes and twice that: beyond 32 bits.
    assert ring_all_reduce([0, 1], np.uint32(3_000_000_000)).size.sum() == 2 * 3_000_000_000


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
    "size must be finite and not negative, got nan": lambda: ring_all_gather([0, 1], np.nan),
    "size must be finite and not negative, got inf": lambda: point_to_point(0, 1, np.inf),
    "size must hold numbers": lambda: ring_reduce_scatter([0, 1], "many"),
    r"size must be a number, \[2 2\] or \[1 2 2\], got the shape \[2\]": lambda: all_to_all([0, 1], [1, 2]),
    r"size must be a number or have the shape \[1\]": lambda: ring_all_reduce([0, 1], [1, 2]),
    r"size must be a number or have the shape \[2\]": lambda: hierarchical_all_reduce([[[0, 1]], [[2, 3]]], [1]),
    "start must be finite and not negative, got -2": lambda: all_to_all([0, 1], 1, start=-2),
    r"start must be a number or have the shape \[1\]": lambda: ring_all_reduce([0, 1], 1, start=[0, 1]),
    "rings must be a whole number of at least 1, got 0": lambda: ring_all_reduce([0, 1], 1, rings=0),
    "rings must be a whole number of at least 1, got 1.5": lambda: ring_all_gather([0, 1], 1, rings=1.5),
    "rings must be at most 2 for 6 members .* got 3": lambda: ring_reduce_scatter(np.arange(6), 1, rings=3),
    "src must not be negative": lambda: point_to_point(-1, 0, 1),
    "dst must be whole numbers": lambda: point_to_point(1, 0.5, 1),
    r"must broadcast, got the shapes \[2\], \[3\], \[\], \[\]": lambda: point_to_point([0, 1], [0, 1, 2], 1),
    "seconds must be finite and not negative": lambda: later(all_to_all([0, 1], 1), -1),
    r"seconds must be a number or have the shape \[2\]": lambda: later(all_to_all([0, 1], 1), [1, 2, 3]),
    "label 'all-too-all' is unknown .did you mean 'all-to-all'": lambda: all_to_all([0, 1], 1).of("all-too-all"),
    "at most 32768 different labels together, got 32769": lambda: together(
        all_to_all([0], 1)._replace(labels=tuple(map(str, range(32769))))
    ),
}


@pytest.mark.parametrize("message", ERRORS)
def test_a_mistake_gets_a_sentence(message):
    with pytest.raises(InputError, match=message) as caught:
        ERRORS[message]()
    assert str(caught.value).endswith(".")
    assert len(str(caught.value)) < 160


B, N = 8.0, 5


def finish(flows: Flows, ports: int):
    """Finish times on a star of host ports: up 0..n-1, then down."""
    problem = FlowProblem(np.full(2 * ports, B), np.stack([flows.src, ports + flows.dst], axis=1))
    done = completion_times(problem, flows.size, flows.start)
    assert done.outcome == Outcome.solved
    return np.asarray(done.finish)


def test_a_uniform_all_to_all_fills_the_ports():
    np.testing.assert_allclose(finish(all_to_all([2, 0, 4, 1, 3], 12.0), N), (N - 1) * 12 / B, rtol=1e-12)


@pytest.mark.parametrize("rings", [1, 2, 4])
def test_a_ring_all_reduce_fills_the_ports(rings):
    got = finish(ring_all_reduce([2, 0, 4, 1, 3], 12.0, rings=rings, start=3.0), N)
    np.testing.assert_allclose(got, 3 + 2 * 12 * (N - 1) / N / B, rtol=1e-12)


def test_a_collective_that_starts_later_ends_later():
    first = ring_all_gather(np.arange(N), 10.0)
    flows = together(first, later(all_to_all(np.arange(N), 2.0), 50.0))
    got = finish(flows, N)
    np.testing.assert_allclose(got[flows.of("all-gather")], 10 * (N - 1) / N / B, rtol=1e-12)
    np.testing.assert_allclose(got[flows.of("all-to-all")], 50 + 2 * (N - 1) / B, rtol=1e-12)


def test_a_hierarchical_all_reduce_takes_the_slower_of_its_two_parts():
    servers, local, size = 3, 2, 12.0
    count = servers * local
    flows = hierarchical_all_reduce(np.arange(count).reshape(servers, local), size)
    offset = 2 * count * flows.of("all-reduce between")  # NVSwitch ports first, then NICs
    hops = np.stack([offset + flows.src, offset + count + flows.dst], axis=1)
    done = completion_times(FlowProblem(np.repeat([B, B / 4], 2 * count), hops), flows.size, flows.start)
    got = np.asarray(done.finish)
    inside, between = 2 * size * (local - 1) / local / B, 2 * size / local * (servers - 1) / servers / (B / 4)
    np.testing.assert_allclose(got[flows.of("all-reduce inside")], inside, rtol=1e-12)
    np.testing.assert_allclose(got[flows.of("all-reduce between")], between, rtol=1e-12)
