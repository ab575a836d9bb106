"""Completion times of stars and two-level trees against a NumPy simulation, the general engine and by hand."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.flows import FlowProblem, completion_times, star_completion
from tests.flows.derivatives import Derivatives
from tests.oracles.tree import tree

solve = jax.jit(star_completion)
batched = jax.jit(jax.vmap(star_completion))


def skewed(rng, n):
    """Zipf weights for sources and sinks, times noise: the load of hot experts."""
    heat = 1 / (1 + np.arange(n)) ** 1.2
    return np.outer(rng.permutation(heat), rng.permutation(heat)) * rng.uniform(0.5, 2, (n, n))


def hot_column(rng, n):
    size = rng.uniform(0, 0.1, (n, n))
    size[:, rng.integers(n)] += 10
    return size


def one_pair(rng, n):
    size = np.zeros((n, n))
    size[rng.integers(n), rng.integers(n)] = 3
    return size


DEMANDS = {
    "uniform": lambda rng, n: rng.uniform(0, 1, (n, n)),
    "skewed": skewed,
    "sparse": lambda rng, n: rng.uniform(1, 2, (n, n)) * (rng.random((n, n)) < 1.5 / n),
    "hot column": hot_column,
    "one pair": one_pair,
    "empty": lambda rng, n: np.zeros((n, n)),
    "all equal": lambda rng, n: np.ones((n, n)),
    "all equal, no diagonal": lambda rng, n: 1 - np.eye(n),
    "few values": lambda rng, n: rng.integers(0, 3, (n, n)).astype(float),
    "a permutation": lambda rng, n: np.eye(n)[rng.permutation(n)] * 2,
    "twelve decades": lambda rng, n: 10.0 ** rng.uniform(-6, 6, (n, n)),
}
PORTS = {
    "equal": lambda rng, n: np.ones(n),
    "unequal": lambda rng, n: rng.uniform(0.2, 3, n),
    "two speeds": lambda rng, n: rng.choice([1.0, 2.0], n),
    "one dead": lambda rng, n: np.where(np.arange(n) == rng.integers(n), 0.0, rng.uniform(1, 2, n)),
}


def instances(n, groups=None, ports=tuple(PORTS)):
    """Every kind of demand on every kind of port, stacked: size [B N N], up [B N], down [B N], and groups [B G]."""
    drawn = []
    for kind, demand in enumerate(DEMANDS.values()):
        for index, port in enumerate(ports):
            rng = np.random.default_rng([n, groups or 0, kind, index])
            one = [demand(rng, n), PORTS[port](rng, n), PORTS[port](rng, n)]
            if groups:
                one += [rng.uniform(0.3, 1.5, groups) * n / groups, rng.choice([0.5, 1, math.inf], groups) * n / groups]
            drawn.append(one)
    return [np.stack(column) for column in zip(*drawn, strict=True)]


def assert_agree(stacked, rtol=1e-9, dtype=np.float64):
    got = batched(*(jnp.asarray(x, dtype) for x in stacked))
    assert got.dtype == dtype
    for index, finish in enumerate(np.asarray(got)):
        np.testing.assert_allclose(finish, tree(*(x[index] for x in stacked)), rtol=rtol, err_msg=str(index))


@pytest.mark.parametrize("n", [1, 2, 5, 8, 16])
def test_star_agrees_with_a_plain_simulation(n):
    assert_agree(instances(n))


@pytest.mark.parametrize(("n", "groups"), [(2, 1), (4, 4), (8, 2), (12, 3)])
def test_tree_agrees_with_a_plain_simulation(n, groups):
    assert_agree(instances(n, groups))


@pytest.mark.parametrize("scale", [1e3, 1e9, 1e12])
def test_every_scale_of_bytes(scale):
    size, up, down = instances(8)
    assert_agree([size * scale, up * scale, down * scale])


@pytest.mark.parametrize("groups", [None, 2])
def test_float32(groups):
    # Each of the up to 64 events rounds the bytes left at 6e-8 of the largest flow; 1e-4 of a finish time is what that
    # can do to small flows that end late. "Twelve decades" is left to float64.
    stacked = instances(8, groups)
    keep = np.array([kind != "twelve decades" for kind in DEMANDS for _ in PORTS])
    # The oracle sees the same rounded inputs.
    assert_agree([x[keep].astype(np.float32) for x in stacked], 1e-4, np.float32)


def general(size, up, down, group_up=None, group_down=None):
    """The same through `completion_times`, only over the pairs that send."""
    n = len(up)
    source, sink = np.nonzero(size)
    hops, capacity = [source, n + sink], [up, down]
    if group_up is not None:
        rack, groups = n // len(group_up), len(group_up)
        hops += [2 * n + source // rack, 2 * n + groups + sink // rack]
        capacity += [group_up, group_down]
    problem = FlowProblem(np.concatenate(capacity), np.stack(hops, axis=1))
    finish = np.zeros((n, n))
    finish[source, sink] = eqx.filter_jit(completion_times)(problem, size[source, sink]).finish
    return finish


@pytest.mark.parametrize("groups", [None, 2])
def test_agrees_with_the_general_engine(groups):
    stacked = instances(8, groups, ports=("unequal",))
    for kind in (1, 2):
        one = [x[kind] for x in stacked]
        np.testing.assert_allclose(solve(*one), general(*one), rtol=1e-9)


@pytest.mark.parametrize(("n", "groups"), [(33, 3), (65, None)])  # 32: test_region_engine
def test_more_endpoints_than_bits_of_a_word(n, groups):
    rng = np.random.default_rng(n)
    size = rng.uniform(0.1, 1, (n, n)) * (rng.random((n, n)) < 3 / n)
    size[-1], size[:, -1] = rng.uniform(0.1, 1, (2, n))
    one = [size, rng.uniform(1, 2, n), rng.uniform(1, 2, n)]
    if groups:
        one += list(rng.uniform(0.3, 1, (2, groups)) * n / groups)
    got = solve(*one)
    np.testing.assert_allclose(got, tree(*one), rtol=1e-9)
    if n == 33:
        np.testing.assert_allclose(got, general(*one), rtol=1e-9)


def test_two_endpoints_by_hand():
    # Ports of 2 B/s. Endpoint 0 sends 2 bytes to itself and 2 to 1; endpoint 1 sends 4 to 1. Down-port 1 has two flows
    # and so has up-port 0: all three get 1 B/s; at t = 2 both of 0's are done, 1 -> 1 has 2 bytes left at 2 B/s: 3.
    got = solve(np.array([[2.0, 2], [0, 4]]), np.full(2, 2.0), np.full(2, 2.0))
    np.testing.assert_array_equal(got, [[2, 2], [0, 3]])


def test_a_dead_port_stops_only_its_own_flows():
    got = solve(np.ones((3, 3)), np.array([0.0, 3, 3]), np.array([3.0, 3, 3]))
    # Two live sources of 3 B/s send to three sinks: 1 B/s each (up-ports hold).
    np.testing.assert_array_equal(got, [[math.inf] * 3, [1] * 3, [1] * 3])


def test_a_group_holds_its_members():
    # Four endpoints, two racks whose up-links carry 1 B/s, the rest unlimited or ample. Each endpoint of rack 0 sends 1
    # byte to rack 1: four flows of 1/4 B/s, done at 4. Traffic inside rack 1 crosses its up-link too: 1 flow, 1 B/s.
    size = np.zeros((4, 4))
    size[:2, 2:] = 1
    size[2, 3] = 1
    ample = np.full(4, 10.0)
    got = solve(size, ample, ample, np.array([1.0, 1.0]), np.array([math.inf, math.inf]))
    np.testing.assert_allclose(got[:2, 2:], 4, rtol=1e-15)
    assert got[2, 3] == 1


@pytest.mark.parametrize("position", [0, 1, 2])
def test_nan_spreads(position):
    one = [np.ones((3, 3)), np.ones(3), np.ones(3)]
    one[position].flat[0] = math.nan
    assert np.isnan(solve(*one)).all()


def test_wrong_shapes_are_named():
    with pytest.raises(InputError, match="size, up, down"):
        star_completion(jnp.ones((3, 3)), jnp.ones(2), jnp.ones(3))
    with pytest.raises(InputError, match="groups"):
        star_completion(jnp.ones((3, 3)), jnp.ones(3), jnp.ones(3), jnp.ones(2), jnp.ones(2))


@pytest.mark.parametrize("groups", [None, 2])
def test_a_batch_equals_its_loop(groups):
    stacked = instances(8, groups)
    together = batched(*stacked)
    for index, finish in enumerate(together):
        np.testing.assert_allclose(finish, solve(*(x[index] for x in stacked)), rtol=1e-12)


def test_a_batch_larger_than_one_chunk_and_not_a_multiple_of_it():
    rng = np.random.default_rng(0)
    size = rng.uniform(0, 1, (131, 4, 4))
    got = jax.jit(jax.vmap(star_completion, in_axes=(0, None, None)))(size, np.ones(4), np.ones(4))
    for index in (0, 63, 64, 127, 128, 130):
        np.testing.assert_allclose(got[index], tree(size[index], np.ones(4), np.ones(4)), rtol=1e-9)


def test_nested_batches_and_shared_arguments():
    rng = np.random.default_rng(0)
    size, up = rng.uniform(0, 1, (5, 4, 4)), rng.uniform(1, 2, (3, 4))
    over_sizes = jax.vmap(star_completion, in_axes=(0, None, None))
    got = jax.jit(jax.vmap(over_sizes, in_axes=(None, 0, None)))(size, up, np.ones(4))
    assert got.shape == (3, 5, 4, 4)
    for p in range(3):
        for s in range(5):
            np.testing.assert_allclose(got[p, s], tree(size[s], up[p], np.ones(4)), rtol=1e-9)


def test_a_new_instance_does_not_retrace():
    once = jax.jit(eqx.debug.assert_max_traces(star_completion, max_traces=1))
    for one in zip(*instances(4, ports=("unequal",)), strict=True):
        once(*one)


slopes_of_star = Derivatives(lambda fixed, at: star_completion(**at))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("shape", ["star", "tree"])
def test_derivatives_against_differences(shape, seed):
    rng = np.random.default_rng(seed)
    at = {"size": rng.uniform(0.2, 2, (4, 4)), "up": rng.uniform(1, 2, 4), "down": rng.uniform(1, 2, 4)}
    at["size"][0, 1] = 0
    if shape == "tree":
        at |= {"group_up": rng.uniform(0.7, 3, 2), "group_down": rng.uniform(0.7, 3, 2)}
    slopes_of_star.check({}, at, seed)


def test_derivatives_stay_finite_beside_a_dead_port():
    rng = np.random.default_rng(0)
    at = {"size": rng.uniform(0.2, 2, (4, 4)), "up": np.array([0.0, 1, 1.5, 2]), "down": rng.uniform(1, 2, 4)}
    slopes_of_star.check({}, at, 0)


def test_derivatives_of_a_batch_equal_its_loop():
    rng = np.random.default_rng(0)
    size, up = rng.uniform(0.2, 2, (3, 4, 4)), rng.uniform(1, 2, (3, 4))
    slope = jax.grad(lambda s, u: star_completion(s, u, jnp.ones(4)).max(), argnums=(0, 1))
    together = jax.jit(jax.vmap(slope))(size, up)
    for index in range(3):
        for many, one in zip(together, jax.jit(slope)(size[index], up[index]), strict=True):
            np.testing.assert_allclose(many[index], one, rtol=1e-10, atol=1e-12)
