"""The fused star kernel, interpreted on the CPU, against `star_completion`; and that it lowers for CUDA."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax.flows import star_completion
from mfabric_jax.flows.star_pallas import star_completion_pallas
from tests.flows.stars import instances
from tests.mistakes import refused

solve = jax.jit(lambda *star: star_completion_pallas(*star, interpret=True))
expected = jax.jit(jax.vmap(star_completion))
compiled = jax.jit(lambda *star: star_completion_pallas(*star, interpret=False))


def test_agrees_with_the_plain_kernel():
    # The plain kernel sees the same inputs, rounded, in float64. Up to 64 events round bytes left at 6e-8.
    for n in (3, 8):
        for dtype, rtol in ((np.float64, 1e-9), (np.float32, 1e-4)):
            stars = [x.astype(dtype) for x in instances(n)]
            got = solve(*stars)
            assert got.dtype == dtype
            np.testing.assert_allclose(got, expected(*(x.astype(np.float64) for x in stars)), rtol=rtol)


def test_by_hand():
    got = solve(np.array([[[6.0]], [[0.0]], [[1.0]]]), np.array([[3.0], [1.0], [0.0]]), np.full((3, 1), 2.0))
    np.testing.assert_array_equal(got, [[[3]], [[0]], [[math.inf]]])
    got = solve(np.array([[[2, 2], [0, 4]]]), np.full((1, 2), 2), np.full((1, 2), 2))  # as in test_star, whole numbers
    np.testing.assert_array_equal(got, [[[2, 2], [0, 3]]])
    assert solve(np.ones((0, 3, 3)), np.ones((0, 3)), np.ones((0, 3))).shape == (0, 3, 3)


def test_every_scale_of_bytes():
    size, up, down = instances(3)
    want = solve(size, up, down)
    for scale in (1e3, 1e12):
        np.testing.assert_allclose(solve(size * scale, up * scale, down * scale), want, rtol=1e-9)
        np.testing.assert_allclose(solve(size * scale, up, down), want * scale, rtol=1e-9)


def test_nan_stays_in_its_instance():
    want = solve(*instances(3))
    for position in range(3):
        stars = instances(3)
        stars[position][0].flat[0] = math.nan
        got = solve(*stars)
        assert np.isnan(got[0]).all()
        np.testing.assert_array_equal(got[1:], want[1:])


def test_wrong_shapes_are_named():
    for shapes in ([(2, 2), (2,), (2,)], [(1, 2, 3), (1, 2), (1, 2)], [(2, 3, 3), (3,), (2, 3)]):
        assert "size, up, down" in refused(star_completion_pallas, *(jnp.ones(shape) for shape in shapes))


def test_lowers_for_cuda():
    for n, dtype in ((1, np.float64), (12, np.float32), (64, np.float32), (64, np.float64)):
        shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in [(5, n, n), (5, n), (5, n)]]
        try:
            lowered = compiled.trace(*shapes).lower(lowering_platforms=("cuda",))
        except (ImportError, AttributeError, RuntimeError) as error:  # a jaxlib that needs the CUDA plugin to lower
            pytest.skip(f"this jaxlib cannot lower Triton kernels without a GPU: {error}")
        assert "triton" in lowered.as_text()
