"""For programs that run longer than they compile: compiled as a user has them, unlike what other tests compile."""

import functools

import jax

optimised = functools.partial(
    jax.jit,
    compiler_options={
        "xla_backend_optimization_level": 3,
        "xla_llvm_disable_expensive_passes": False,
        "xla_cpu_use_fusion_emitters": True,
    },
)
