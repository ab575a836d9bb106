"""Steps of decoding a second: one call of `decoding` for arrays of numbers, by NumPy and by a compiled program of JAX.

    taskset -c 0 python benchmarks/serving.py

DeepSeek-V3 on 72 H800; batch, context and bandwidth drawn; float64. Uneven experts: each of 58 layers has its own load.
"""

import argparse
import time

import jax
import jax.numpy as jnp
import numpy as np
from clock import cpu_seconds_of

from mfabric_jax import Case
from mfabric_jax.apps.serving import Deployment, StepInputs, deployment

LOOPED = 500  # steps of the loop
SERVED = {"model.name": "deepseek-v3", "gpu.name": "H800-SXM", "network.fabric": "fat-tree", "serving.ep": 72}
KINDS = {"even experts": ("balanced", 100_000), "uneven experts": ("measured", 1_000)}


def drawn(count: int) -> StepInputs:
    """Numbers of so many steps."""
    draw = np.random.default_rng(0)
    return StepInputs(draw.uniform(1, 512, count), draw.uniform(100, 65536, count), draw.uniform(100, 800, count))


def measured(served: Deployment, numbers: StepInputs) -> tuple[float, float, float, float]:
    """Steps a second: NumPy, JAX, one at a time; and seconds of compiling."""
    count = len(numbers.batch)
    host = count / cpu_seconds_of(lambda: served.decoding(numbers).tpot_s)
    given = jax.tree.map(jnp.asarray, numbers)
    began = time.perf_counter()
    program = jax.jit(lambda some: served.decoding(some).tpot_s).lower(given).compile()
    compiled = time.perf_counter() - began
    device = count / cpu_seconds_of(lambda: program(given))
    singles = [StepInputs(*(float(value[i]) for value in numbers[:3])) for i in range(LOOPED)]
    alone = LOOPED / cpu_seconds_of(lambda: [served.decoding(one).tpot_s for one in singles], 3)
    return host, device, alone, compiled


def main() -> None:
    """Prints a line for each kind of load."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    jax.config.update("jax_enable_x64", True)
    print("| load | steps at once | NumPy, per s | JAX, per s | one at a time, per s | compile s |")
    print("|---|---|---|---|---|---|")
    for name, (experts, count) in KINDS.items():
        served = deployment(Case().with_(SERVED | {"serving.experts": experts}))
        host, device, alone, compiled = measured(served, drawn(count))
        print(f"| {name} | {count:,} | {host:,.0f} | {device:,.0f} | {alone:,.0f} | {compiled:.1f} |", flush=True)


if __name__ == "__main__":
    main()
