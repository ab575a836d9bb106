"""Completion times and rates of stars and two-level trees: a NumPy simulation, the general engine, and by hand."""

import functools
import math
import types

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.flows import FlowProblem, completion_times, max_min_rates, star_completion, star_rates
from mfabric_jax.flows.kernels import usual
from mfabric_jax.flows.star import as_problem
from mfabric_jax.support import platforms
from tests.batches import assert_batch_is_its_loop
from tests.flows.derivatives import Derivatives
from tests.flows.stars import DEMANDS, PORTS, instances
from tests.lowering import text_for
from tests.mistakes import refused
from tests.oracles.tree import tree

solve = jax.jit(star_completion)

batched = jax.jit(jax.vmap(star_completion))


def assert_agree(stacked, rtol=1e-9, dtype=np.float64):
    got = batched(*(jnp.asarray(x, dtype) for x in stacked))
    assert got.dtype == dtype
    for index, finish in enumerate(np.asarray(got)):
        np.testing.assert_allclose(finish, tree(*(x[index] for x in stacked)), rtol=rtol, err_msg=str(index))


def test_agrees_with_a_plain_simulation():
    for n, groups in ((1, None), (8, None), (4, 4), (8, 2)):
        assert_agree(instances(n, groups))


def test_float32():
    # Each of the up to 64 events rounds the bytes left at 6e-8 of the largest flow; 1e-4 of a finish time is what that
    # can do to small flows that end late. "Twelve decades" is left to float64. The oracle sees the same rounded inputs.
    keep = np.array([kind != "twelve decades" for kind in DEMANDS for _ in PORTS])
    assert_agree([x[keep].astype(np.float32) for x in instances(8, 2)], 1e-4, np.float32)
    # A port's room is what up to 16 subtractions left of it; a port that is nearly full loses digits with them.
    stars = [x.astype(np.float32) for x in instances(6)]
    exact = special(*(x.astype(float) for x in stars))[1]
    np.testing.assert_allclose(special(*stars)[1], exact, rtol=1e-4)


# ------------------------------------------------------------------------------------------------ the general engine
@jax.jit
@jax.vmap
def general(size, up, down, group_up, group_down):
    problem = as_problem(jnp.stack([up, down]), jnp.stack([group_up, group_down]))
    running = eqx.tree_at(lambda p: p.weight, problem, (size > 0).astype(size.dtype).reshape(-1))
    finish = completion_times(problem, size.reshape(-1)).finish
    return finish.reshape(size.shape), max_min_rates(running).rate.reshape(size.shape)


special = jax.jit(jax.vmap(lambda *star: (star_completion(*star), star_rates(*star))))


def test_equals_the_general_engine():
    for n, groups in ((6, None), (6, 2)):
        stars = instances(n, groups)
        racks = [] if groups else [np.zeros((len(stars[0]), 0))] * 2
        for got, want in zip(special(*stars), general(*stars, *racks), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-9)


def test_more_endpoints_than_bits_of_a_word():
    rng = np.random.default_rng(33)
    size = rng.uniform(0.1, 1, (33, 33)) * (rng.random((33, 33)) < 3 / 33)
    size[-1], size[:, -1] = rng.uniform(0.1, 1, (2, 33))
    star = [size, *rng.uniform(1, 2, (2, 33)), *(rng.uniform(0.3, 1, (2, 3)) * 11)]
    np.testing.assert_allclose(solve(*star), tree(*star), rtol=1e-9)


def test_nan_spreads_and_rates_of_dead_ports():
    for position in range(3):
        star = [np.ones((3, 3)), np.ones(3), np.ones(3)]
        star[position].flat[0] = math.nan
        assert np.isnan(solve(*star)).all()
    size = jnp.asarray([[0.0, 1.0], [1.0, 0.0]])
    rates = jax.jit(star_rates)
    np.testing.assert_array_equal(rates(size, jnp.asarray([0.0, 2.0]), jnp.ones(2)), [[0, 0], [1, 0]])
    assert np.isnan(rates(size, jnp.asarray([jnp.nan, 2.0]), jnp.ones(2))).all()


# ------------------------------------------------------------------------------------------------ batches
def test_batches_of_batches_in_several_chunks_equal_their_loop():
    # 5 x 53 instances of 4 endpoints: a chunk takes 256, so the second one is padded.
    rng = np.random.default_rng(0)
    size, up = rng.uniform(0, 1, (53, 4, 4)), rng.uniform(1, 2, (5, 4))
    over_sizes = jax.vmap(star_completion, in_axes=(0, None, None))
    got = jax.jit(jax.vmap(over_sizes, in_axes=(None, 0, None)))(size, up, np.ones(4))
    assert got.shape == (5, 53, 4, 4)
    for p in range(5):
        for s in range(0, 53, 4):
            np.testing.assert_allclose(got[p, s], solve(size[s], up[p], np.ones(4)), rtol=1e-12)


def test_the_order_of_instances_in_chunks_changes_no_bit():
    # Whoever sorts instances by their flows, so that those of a chunk wait less, gets the same times.
    random = np.random.default_rng(0)
    size = random.pareto(1.2, (600, 8, 8)) * (random.random((600, 8, 8)) < random.random((600, 1, 1)))
    order = np.argsort((size > 0).sum(axis=(1, 2)))
    port = jnp.ones((600, 8), jnp.float32)
    drawn, ordered = (np.asarray(batched(jnp.asarray(some, jnp.float32), port, port)) for some in (size, size[order]))
    np.testing.assert_array_equal(drawn[order], ordered)


# ------------------------------------------------------------------------------------------------ derivatives
slopes_of_star = Derivatives(lambda fixed, at: star_completion(**at))


def drawn_point(seed):
    rng = np.random.default_rng(seed)
    at = {"size": rng.uniform(0.2, 2, (4, 4)), "up": rng.uniform(1, 2, 4), "down": rng.uniform(1, 2, 4)}
    at["size"][0, 1] = 0
    return at, {"group_up": rng.uniform(0.7, 3, 2), "group_down": rng.uniform(0.7, 3, 2)}


def test_derivatives_against_differences():
    for seed in range(8):
        star, groups = drawn_point(seed)
        slopes_of_star.check({}, star, seed)
        slopes_of_star.check({}, star | groups, seed)
    star["up"][0] = 0  # beside a dead port they stay finite
    slopes_of_star.check({}, star, 0)


def test_derivatives_of_a_batch_equal_its_loop():
    slope = jax.grad(lambda at: star_completion(**at).max())
    cases = [drawn_point(seed)[:1] for seed in range(3)]
    assert_batch_is_its_loop(slope, cases, jax.jit(slope), rtol=1e-10, atol=1e-12)


def test_slope_of_rates():
    # One source (port 3) to two destinations (ports 1 and 5): 1 and 2. More at destination 0 takes from the other.
    size = jnp.zeros((3, 3)).at[0, 1].set(1).at[0, 2].set(1)
    up, down = jnp.asarray([3.0, 1.0, 1.0]), jnp.asarray([1.0, 1.0, 5.0])
    slope = jax.jit(jax.jacrev(lambda port: star_rates(size, up, port)))(down)
    np.testing.assert_allclose(slope[0, 1], [0, 1, 0])
    np.testing.assert_allclose(slope[0, 2], [0, -1, 0])
    np.testing.assert_allclose(jax.jit(jax.jacfwd(lambda port: star_rates(size, port, down)))(up)[0, 2], [1, 0, 0])


FUSED = "fused:1"


@functools.partial(jax.jit, static_argnums=0)
def both(kernel, *stars):
    finish = jax.vmap(functools.partial(star_completion, kernel=kernel))(*stars)
    return finish, jax.vmap(functools.partial(star_rates, kernel=kernel))(*stars)


def test_agrees_with_the_plain_kernel():
    # The plain kernel sees the same inputs, rounded, in float64. Up to 64 events round bytes left at 6e-8; "twelve
    # decades" is left to float64. 33 ports have two words of bits each; groups are of 4 and of 3 ports.
    for n, groups, dtype, rtol in (
        (3, None, np.float64, 1e-9),
        (6, 2, np.float64, 1e-9),
        (33, None, np.float64, 1e-9),
        (8, 2, np.float32, 1e-4),
    ):
        stars = [x[:8] if n > 8 else x for x in instances(n, groups)]
        stars = [x[: -4 if dtype == np.float32 else None].astype(dtype) for x in stars]
        got = both(FUSED, *stars)
        assert got[0].dtype == dtype
        for one, expected in zip(got, both("xla:0", *(x.astype(np.float64) for x in stars)), strict=True):
            np.testing.assert_allclose(one, expected, rtol=rtol, err_msg=f"{n} {groups}")


def test_nan_stays_in_its_instance():
    want = both(FUSED, *instances(3))[0]
    for position in range(3):
        stars = instances(3)
        stars[position][0].flat[0] = math.nan
        got = both(FUSED, *stars)[0]
        assert np.isnan(got[0]).all()
        np.testing.assert_array_equal(got[1:], want[1:])


def test_derivatives_are_those_of_the_plain_kernel():
    size, up, down = (jnp.asarray(x[0]) for x in instances(3))

    def slope(kernel):
        return jax.jit(jax.grad(lambda up: star_completion(size, up, down, kernel=kernel).max()))(up)

    found = slope(FUSED)
    np.testing.assert_allclose(found, slope("xla:1"), rtol=1e-9)
    assert np.any(np.asarray(found) != 0)


def lowered(n, batch, platform, dtype=np.float32, **kernel):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in [(batch, n, n), (batch, n), (batch, n)]]
    solve = jax.jit(jax.vmap(functools.partial(star_completion, **kernel)))
    return text_for(solve.trace(*shapes), platform)


def test_a_platform_has_its_kernel():
    # A GPU has one program for each instance, whatever their number; a CPU has chunks, 4 of 256 here.
    for n, dtype in ((1, np.float64), (64, np.float32)):
        text = lowered(n, 5, "cuda", dtype)
        assert "triton" in text
        assert "stablehlo.while" not in text
    text = lowered(8, 1024, "cpu")
    assert "triton" not in text
    assert "tensor<4x8x8x256xf32>" in text
    # 128 endpoints are too many for its registers: the whole batch runs in step.
    text = lowered(128, 300, "cuda")
    assert "triton" not in text
    assert "tensor<1x128x128x300xf32>" in text
    assert str(usual("cpu", 8)) == "xla:256"
    assert [str(usual("tpu", n)) for n in (8, 64)] == ["xla:256", "xla:64"]  # no GPU, so no Triton
    assert "triton" not in lowered(8, 5, "tpu")
    assert [str(usual("cuda", n)) for n in (8, 32, 64, 128)] == ["fused:1", "fused:1", "fused:4", "xla:0"]


def test_a_gpu_that_triton_does_not_know_has_the_plain_kernel(monkeypatch):
    for capability, kernel in (("7.0", "xla:0"), ("7.5", "xla:0"), ("8.0", "fused:1"), ("10.0", "fused:1")):
        device = types.SimpleNamespace(compute_capability=capability, platform="gpu")
        monkeypatch.setattr(platforms, "device", lambda device=device: device)
        assert str(usual("cuda", 16)) == kernel


HOPS = jnp.array([[0, 1], [0, 2], [1, 2]])
CAPACITY = jnp.array([1.0, 2.0, 3.3])
ALIKE = jnp.ones((3, 3))


def rates(capacity):
    return max_min_rates(FlowProblem(capacity, HOPS)).rate.sum()


def times(capacity):
    return completion_times(FlowProblem(capacity, HOPS), jnp.array([3.0, 4.0, 5.0])).finish.sum()


def star_times(up):
    return star_completion(ALIKE, up, jnp.ones(3)).sum()


def rates_of_star(up):
    return star_rates(ALIKE, up, 9 * jnp.ones(3)).sum()


@pytest.mark.parametrize("of", [rates, times, star_times, rates_of_star])
def test_a_second_derivative_is_refused_and_a_first_is_not(of):
    assert np.any(jax.jit(jax.grad(of))(CAPACITY))
    for second in (jax.hessian(of), jax.jacrev(jax.grad(of)), jax.jit(jax.jacfwd(jax.jit(jax.grad(of))))):
        assert "have only first derivatives" in refused(second, CAPACITY)
