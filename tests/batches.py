"""Many cases at once against the same cases one by one."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.support.platforms import OLDER_FUSIONS


def stacked(cases):
    """The arguments of many cases, each with the cases along its first axis."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *cases)


def assert_batch_is_its_loop(function, cases, alone=None, rtol=0.0, atol=0.0):
    """`function` of the stacked cases gives what it, or `alone`, gives for each; exactly unless told otherwise."""
    together = jax.jit(jax.vmap(function))(*stacked(cases))
    for at, case in enumerate(cases):
        one = (alone or function)(*case)
        for got, want in zip(jax.tree.leaves(together), jax.tree.leaves(one), strict=True):
            np.testing.assert_allclose(got[at], want, rtol=rtol, atol=atol)


# -------------------------------------------------------------------------- programs that run longer than they compile
optimised = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
        **({"xla_cpu_use_fusion_emitters": True} if OLDER_FUSIONS else {}),
    },
)
