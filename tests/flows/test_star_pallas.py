"""The fused star kernel, interpreted on the CPU, against `star_completion`; and that it lowers for CUDA."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.checks import InputError
from mfabric_jax.flows import star_completion
from mfabric_jax.flows.star_pallas import star_completion_pallas
from tests.flows.test_star import DEMANDS, PORTS, instances

solve = jax.jit(lambda *star: star_completion_pallas(*star, interpret=True))
expected = jax.jit(jax.vmap(star_completion))
compiled = jax.jit(lambda *star: star_completion_pallas(*star, interpret=False))


@pytest.mark.parametrize("n", [2, 3, 8, 12, 16])
def test_agrees_with_the_plain_kernel(n):
    stars = instances(n)
    np.testing.assert_allclose(solve(*stars), expected(*stars), rtol=1e-9)


@pytest.mark.parametrize("n", [2, 3, 8, 12, 16])
def test_float32(n):
    # The plain kernel sees the same rounded inputs, in float64. Up to 256 events round the bytes left at 6e-8 each.
    stars = [x.astype(np.float32) for x in instances(n)]
    got = solve(*stars)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected(*(x.astype(np.float64) for x in stars)), rtol=1e-4)


def test_one_endpoint():
    got = solve(np.array([[[6.0]], [[0.0]], [[1.0]]]), np.array([[3.0], [1.0], [0.0]]), np.full((3, 1), 2.0))
    np.testing.assert_array_equal(got, [[[3]], [[0]], [[math.inf]]])


def test_two_endpoints_by_hand():
    # Ports of 2 B/s. Endpoint 0 sends 2 bytes to itself and 2 to 1; endpoint 1 sends 4 to 1. Down-port 1 has two flows
    # and so has up-port 0: all three get 1 B/s; at t = 2 both of 0's are done, 1 -> 1 has 2 bytes left at 2 B/s: 3.
    got = solve(np.array([[[2.0, 2], [0, 4]]]), np.full((1, 2), 2.0), np.full((1, 2), 2.0))
    np.testing.assert_array_equal(got, [[[2, 2], [0, 3]]])


@pytest.mark.parametrize("scale", [1e3, 1e12])
def test_every_scale_of_bytes(scale):
    size, up, down = instances(3)
    np.testing.assert_allclose(solve(size * scale, up * scale, down * scale), solve(size, up, down), rtol=1e-9)
    np.testing.assert_allclose(solve(size * scale, up, down), solve(size, up, down) * scale, rtol=1e-9)


@pytest.mark.parametrize("position", [0, 1, 2])
def test_nan_stays_in_its_instance(position):
    stars = instances(3)
    before = solve(*stars)
    stars[position][0].flat[0] = math.nan
    got = solve(*stars)
    assert np.isnan(got[0]).all()
    np.testing.assert_array_equal(got[1:], before[1:])


def test_whole_numbers_and_an_empty_batch():
    got = solve(np.array([[[2, 2], [0, 4]]]), np.full((1, 2), 2), np.full((1, 2), 2))
    np.testing.assert_array_equal(got, [[[2, 2], [0, 3]]])
    assert solve(np.ones((0, 3, 3)), np.ones((0, 3)), np.ones((0, 3))).shape == (0, 3, 3)


@pytest.mark.parametrize("shapes", [[(2, 2), (2,), (2,)], [(1, 2, 3), (1, 2), (1, 2)], [(2, 3, 3), (3,), (2, 3)]])
def test_wrong_shapes_are_named(shapes):
    with pytest.raises(InputError, match="size, up, down"):
        star_completion_pallas(*(jnp.ones(shape) for shape in shapes))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [1, 2, 12, 64])
def test_lowers_for_cuda(n, dtype):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in [(5, n, n), (5, n), (5, n)]]
    try:
        lowered = compiled.trace(*shapes).lower(lowering_platforms=("cuda",))
    except (ImportError, AttributeError, RuntimeError) as error:  # a jaxlib that needs the CUDA plugin to lower
        pytest.skip(f"this jaxlib cannot lower Triton kernels without a GPU: {error}")
    assert "triton" in lowered.as_text()


def test_every_kind_of_instance_is_there():
    assert len(instances(2)[0]) == len(DEMANDS) * len(PORTS)
    assert {"skewed", "hot column", "sparse", "one pair", "empty", "all equal"} <= set(DEMANDS)
    assert {"unequal", "one dead"} <= set(PORTS)
