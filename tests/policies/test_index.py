"""The index rule against plain loops, worked examples."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.policies.learned import Index, index, shipped
from tests.oracles.greedy import greedy as plain_greedy
from tests.policies import drawn

SERVERS = 5


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


def region(degree=6, electrical=2.0):
    return drawn.region(SERVERS, degree, electrical)


def test_agrees_with_plain_loops_and_is_greedy_by_the_next_circuit_where_nothing_is_given():
    np.testing.assert_array_equal(
        index(draw(3), region()).circuits.count, allocated(shipped(), draw(3), region())
    )  # the default
    for seed in range(30):
        rng, demand = np.random.default_rng(seed), draw(seed)
        numbers = {"offset": rng.uniform(0.3, 2), "power": rng.uniform(0.5, 2), "larger": rng.uniform(0, 1)}
        numbers |= {"spread": rng.uniform(0, 1), "relief": rng.uniform(0, 3)}
        degree, electrical = int(rng.integers(1, 9)), int(rng.integers(1, 4))
        got = allocated(traced(**numbers), demand, region(degree, float(electrical)))
        np.testing.assert_array_equal(got, plain(numbers, demand, degree, electrical), err_msg=str(seed))
        np.testing.assert_array_equal(allocated(traced(), demand, region(4)), plain_greedy(demand, 4, "next"))
