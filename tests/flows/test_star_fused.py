"""The fused star kernel, interpreted on a CPU, against the plain one; and which of them a program is compiled with."""

import functools
import math
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mfabric_jax import platforms
from mfabric_jax.flows import star_completion, star_rates
from mfabric_jax.flows.kernels import usual
from tests.flows.stars import instances
from tests.mistakes import refused

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
        (8, 2, np.float64, 1e-9),
        (6, 2, np.float64, 1e-9),
        (33, None, np.float64, 1e-9),
        (8, None, np.float32, 1e-4),
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
        return jax.grad(lambda up: star_completion(size, up, down, kernel=kernel).max())(up)

    np.testing.assert_allclose(slope(FUSED), slope("xla:1"), rtol=1e-9)
    assert np.any(np.asarray(slope(FUSED)) != 0)


def lowered(n, batch, platform, dtype=np.float32, **kernel):
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in [(batch, n, n), (batch, n), (batch, n)]]
    solve = jax.jit(jax.vmap(functools.partial(star_completion, **kernel)))
    try:
        return solve.trace(*shapes).lower(lowering_platforms=(platform,)).as_text()
    except ImportError as error:  # a jaxlib that needs the CUDA plugin to lower
        pytest.skip(f"this jaxlib cannot lower Triton kernels without a GPU: {error}")


def test_a_platform_has_its_kernel():
    # A GPU has one program for each instance, whatever their number; a CPU has chunks, 4 of 256 here.
    for n, dtype in ((1, np.float64), (12, np.float32), (64, np.float32), (64, np.float64)):
        text = lowered(n, 5, "cuda", dtype)
        assert "triton" in text
        assert "stablehlo.while" not in text
    assert "triton" not in lowered(8, 1024, "cpu")
    assert "tensor<4x8x8x256xf32>" in lowered(8, 1024, "cpu")
    # 128 endpoints are too many for its registers: the whole batch runs in step.
    text = lowered(128, 300, "cuda")
    assert "triton" not in text
    assert "tensor<1x128x128x300xf32>" in text
    assert str(usual("cpu", 8)) == "xla:256"
    assert [str(usual("tpu", n)) for n in (8, 64)] == ["xla:256", "xla:64"]  # no GPU, so no Triton
    assert "triton" not in lowered(8, 5, "tpu")
    assert [str(usual("cuda", n)) for n in (8, 32, 64, 128)] == ["fused:1", "fused:1", "fused:4", "xla:0"]


def test_an_unknown_kernel_is_refused():
    stars = [x[0] for x in instances(3)]
    for kernel in ("pallas", "fused", "fused:3", "xla", "xla:-1", "xla:1.5"):
        assert f"got {kernel!r}" in refused(star_completion, *stars, kernel=kernel)
    big = np.ones((65, 65)), np.ones(65), np.ones(65)
    assert refused(star_rates, *big, kernel="fused:8") == "kernel fused:8 is for at most 64 endpoints, got 65."


def test_a_gpu_that_triton_does_not_know_has_the_plain_kernel(monkeypatch):
    for capability, kernel in (("7.0", "xla:0"), ("7.5", "xla:0"), ("8.0", "fused:1"), ("10.0", "fused:1")):
        device = types.SimpleNamespace(compute_capability=capability, platform="gpu")
        monkeypatch.setattr(platforms, "device", lambda device=device: device)
        assert str(usual("cuda", 16)) == kernel


def test_no_instances():
    none = np.ones((0, 3, 3)), np.ones((0, 3)), np.ones((0, 3))
    for kernel in ("auto", "xla:1", FUSED):
        assert both(kernel, *none)[0].shape == (0, 3, 3)
