"""The index rule against plain loops, worked examples, what is legal, and batches."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mfabric_jax.checks import InputError
from mfabric_jax.fabric import Circuits, Region
from mfabric_jax.policies import Plan
from mfabric_jax.policies._index import Index, index, shipped
from tests.oracles.greedy import greedy as plain_greedy

SERVERS = 5


def region(degree=6, electrical=2.0, servers=SERVERS):
    """All traced: no number compiles anew."""
    degree = jnp.broadcast_to(jnp.asarray(degree, jnp.int32), servers)
    return Region(servers, jnp.asarray(400.0), degree, jnp.asarray(electrical))


@eqx.filter_jit
def allocated(rule, demand, where):
    return index(demand, where, parameters=rule).circuits.count


def traced(**numbers):
    return jax.tree.map(jnp.asarray, Index(**numbers))


def draw(seed, servers=SERVERS):
    """Zeros, a diagonal that must not matter, and no ties."""
    rng = np.random.default_rng(seed)
    return rng.lognormal(0, 1.5, (servers, servers)) * (rng.random((servers, servers)) < 0.8) * 2.0**20


def plain(rule, demand, degree, electrical):
    """Oracle: lists and loops, by the words of the docstring."""
    servers = len(demand)
    size = [[0.0 if i == j else float(demand[i][j]) for j in range(servers)] for i in range(servers)]
    lines = [sum(row) / (degree + electrical) for row in (*size, *zip(*size, strict=True))]
    need = [[x / max(lines) for x in row] for row in size]
    out, into = [sum(row) for row in need], [sum(row) for row in zip(*need, strict=True)]
    even = [[out[i] * into[j] / sum(out) for j in range(servers)] for i in range(servers)]
    one_way = [
        [(1 - rule["spread"]) * need[i][j] + rule["spread"] * even[i][j] for j in range(servers)]
        for i in range(servers)
    ]
    count, free = np.zeros((servers, servers), int), [degree] * servers
    while True:
        left = [[max(need[i][j] - count[i, j], 0) for j in range(servers)] for i in range(servers)]
        busy = [max(sum(left[i]), sum(row[i] for row in left)) / electrical for i in range(servers)]
        best, score = None, 0.0
        for i in range(servers):
            for j in range(i + 1, servers):
                a, b = one_way[i][j], one_way[j][i]
                worth = rule["larger"] * max(a, b) + (1 - rule["larger"]) * (a + b) / 2
                now = worth * (1 + rule["relief"] * (busy[i] + busy[j]))
                now /= (count[i, j] + rule["offset"]) ** rule["power"]
                if free[i] and free[j] and now > score:
                    best, score = (i, j), now
        if best is None:
            return count
        i, j = best
        count[i, j] += 1
        count[j, i] += 1
        free[i], free[j] = free[i] - 1, free[j] - 1


def test_agrees_with_plain_loops():
    for seed in range(30):
        rng, demand = np.random.default_rng(seed), draw(seed)
        numbers = {"offset": rng.uniform(0.3, 2), "power": rng.uniform(0.5, 2), "larger": rng.uniform(0, 1)}
        numbers |= {"spread": rng.uniform(0, 1), "relief": rng.uniform(0, 3)}
        degree, electrical = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        got = allocated(traced(**numbers), demand, region(degree, float(electrical)))
        np.testing.assert_array_equal(got, plain(numbers, demand, degree, electrical), err_msg=str(seed))


def test_its_defaults_are_greedy_by_the_next_circuit():
    for seed in range(20):
        np.testing.assert_array_equal(allocated(traced(), draw(seed), region(4)), plain_greedy(draw(seed), 4, "next"))


def test_spread_joins_pairs_without_bytes():
    # 0 sends to 1 and 2 to 3, equally. Spread 0: each pair takes all its six circuits. Spread 1: 0 and 2 are taken to
    # send as much to 1 as to 3, so four pairs are worth the same and share: three circuits each.
    demand = np.zeros((SERVERS, SERVERS))
    demand[0, 1] = demand[2, 3] = 7.0
    alone, shared = (np.asarray(allocated(traced(spread=spread), demand, region())) for spread in (0.0, 1.0))
    assert (alone[0, 1], alone[2, 3], alone.sum()) == (6, 6, 24)
    assert (shared[0, 1], shared[0, 3], shared[1, 2], shared[2, 3], shared.sum()) == (3, 3, 3, 3, 24)


def test_larger_direction_counts_alone():
    # 01: 4 each way, 02: 6 one way. Mean of both: 4 > 3; larger: 6 > 4. One NIC each.
    demand = np.zeros((SERVERS, SERVERS))
    demand[0, 1] = demand[1, 0] = 4.0
    demand[0, 2] = 6.0
    assert allocated(traced(larger=0.0), demand, region(1))[0, 1] == 1
    assert allocated(traced(larger=1.0), demand, region(1))[0, 2] == 1


@settings(max_examples=60, derandomize=True)
@given(
    st.integers(0, 2**32 - 1),
    st.sampled_from(["zeros", "one pair", "ties", "wide"]),
    st.lists(st.integers(0, 8), min_size=SERVERS, max_size=SERVERS),
    st.sampled_from([jnp.float32, jnp.float64]),
)
def test_is_legal_whatever_the_demand(seed, kind, degree, dtype):
    rng = np.random.default_rng(seed)
    demand = np.zeros((SERVERS, SERVERS))
    if kind == "one pair":
        demand[0, 3] = 1e-3
    elif kind == "ties":
        demand[:] = rng.integers(0, 2, demand.shape)
    elif kind == "wide":
        demand[:] = 10.0 ** rng.uniform(-3, 12, demand.shape) * (rng.random(demand.shape) < 0.7)
    numbers = dict(zip(("offset", "power", "spread"), rng.uniform(0.1, 1, 3), strict=True))
    count = np.asarray(
        allocated(traced(**numbers), jnp.asarray(demand, dtype), region(degree, float(rng.integers(0, 3))))
    )
    assert np.issubdtype(count.dtype, np.integer)
    assert (count == count.T).all()
    Circuits(count).checked(np.asarray(degree))


def test_a_batch_over_demands_and_regions_equals_its_loop_and_new_numbers_do_not_retrace():
    once = eqx.filter_jit(eqx.debug.assert_max_traces(lambda d, w: index(d, w).circuits.count, max_traces=1))
    demands, degrees = np.stack([draw(seed) for seed in range(9)]), np.arange(9)
    together = jax.jit(jax.vmap(lambda demand, degree: index(demand, region(degree)).circuits.count))(demands, degrees)
    for count, demand, degree in zip(together, demands, degrees, strict=True):
        np.testing.assert_array_equal(count, once(demand, region(degree)))


def test_the_shipped_rule_is_the_default():
    rule, demand = shipped(), draw(3)
    plan = index(demand, region())
    assert isinstance(plan, Plan)
    np.testing.assert_array_equal(plan.circuits.count, allocated(rule, demand, region()))
    assert 0 < rule.spread <= 1


@pytest.mark.parametrize(
    ("numbers", "sentence"),
    [
        ({"offset": 0.0}, "offset must be finite and above 0, got 0.0."),
        ({"relief": -1.0}, "relief must be finite and not negative, got -1.0."),
        ({"spread": 1.5}, "spread must be at most 1, got 1.5."),
        ({"larger": 2.0}, "larger must be at most 1, got 2.0."),
    ],
)
def test_parameters_out_of_range_are_refused(numbers, sentence):
    with pytest.raises(InputError) as refused:
        Index(**numbers)
    assert str(refused.value) == sentence
