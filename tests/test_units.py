"""Units at the edge: numbers or arrays in, the same out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import units

FACTOR = {
    "gbps": 1e9 / 8,
    "tbps": 1e12 / 8,
    "gigabytes_per_s": 1e9,
    "gigabytes": 1e9,
    "tflops": 1e12,
    "ms": 1e-3,
    "us": 1e-6,
    "ns": 1e-9,
    "ps": 1e-12,
    "to_us": 1e6,
    "to_ps": 1e12,
    "to_gbps": 8 / 1e9,
    "to_ms": 1e3,
    "to_gigabytes": 1e-9,
}


def test_every_conversion_is_here():
    public = [name for name, value in vars(units).items() if callable(value) and name.islower()]
    assert sorted(public) == sorted(FACTOR)


def test_numbers_and_arrays():
    for name, factor in FACTOR.items():
        convert = getattr(units, name)
        got = convert(3.0)
        assert type(got) is float
        assert got == pytest.approx(3 * factor, rel=1e-15)
        assert convert(0) == 0
        np.testing.assert_allclose(convert(np.asarray([1.0, 2.0])), [factor, 2 * factor], rtol=1e-15)


def test_whole_gigabytes_come_back_whole():
    assert [units.to_gigabytes(units.gigabytes(size)) for size in range(1, 2000)] == [*range(1, 2000)]


def test_traced_arrays():
    for dtype in (jnp.float32, jnp.float64):
        arrays = jax.jit(lambda x: {name: getattr(units, name)(x) for name in FACTOR})(jnp.asarray([1.0, 2.0], dtype))
        for name, array in arrays.items():
            assert array.dtype == dtype
            np.testing.assert_allclose(array, [FACTOR[name], 2 * FACTOR[name]], rtol=1e-6)
    slopes = jax.jit(jax.jacfwd(lambda x: {name: getattr(units, name)(x) for name in FACTOR}))(2.0)
    for name, slope in slopes.items():
        np.testing.assert_allclose(slope, FACTOR[name], rtol=1e-15)
