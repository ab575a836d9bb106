"""The clock of an iteration: trace, compile and run of `timeline.run`.

    python benchmarks/clock.py [overlap]

Jobs are those of the demo's models as `Case` has them; `overlap`: forward and backward passes run together. Seconds of
all-to-alls are drawn, as only their shape matters.
"""

import dataclasses
import sys
import time

import jax
import numpy as np

from mfabric_jax import Case, resolve
from mfabric_jax.timing.blocks import Blocks, Compute, Rules
from mfabric_jax.timing.passes import order_of, places
from mfabric_jax.timing.timeline import run

MODELS = ("llama-moe", "qwen-moe", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3")


def seconds_of(call, times: int = 5) -> float:
    """The best of several calls."""
    took = []
    for _ in range(times):
        began = time.perf_counter()
        jax.block_until_ready(call())
        took.append(time.perf_counter() - began)
    return min(took)


def measured(model: str, *, overlap: bool) -> str:
    """One line of the table."""
    job = resolve(Case().with_({"model.name": model, "network.fabric": "mfabric", "network.nic_gbps": 400})).job
    job = dataclasses.replace(job, overlap_passes=True) if overlap else job
    order, where, rng = order_of(job), places(job), np.random.default_rng(0)
    shape = (*where.present.shape, 2)
    optical, packet = (rng.uniform(0, 2e-3, shape).astype(np.float32) for _ in range(2))
    blocks = Blocks(where.present, where.layer >= 0, optical, packet, rng.random(shape) < 0.9, where.backward, packet)
    compute = Compute(*map(np.float32, (1e-3, 2e-3, 2e-3, 3e-4, 1e-3, 1e-4)))  # type: ignore[arg-type]
    rest = np.full(job.pp, 1e-4, np.float32), np.full(shape, 1e-2, np.float32)
    rules = Rules(recompute=job.recompute)
    began = time.perf_counter()
    lowered = jax.jit(lambda *given: run(order, *given, rules).end.max()).lower(blocks, compute, *rest)
    traced = time.perf_counter()
    program = lowered.compile()
    compiled = time.perf_counter()
    ran = seconds_of(lambda: program(blocks, compute, *rest))
    lines = len(lowered.as_text().splitlines())
    return (
        f"| {model} | {' x '.join(map(str, shape[:3]))} | {job.recompute} | {lines} | {traced - began:.2f} | "
        f"{compiled - traced:.2f} | {1e3 * ran:.2f} |"
    )


if __name__ == "__main__":
    print("| model | stages x passes x blocks | recomputed | lines of HLO | trace s | compile s | run ms |")
    measured(MODELS[0], overlap=False)  # what JAX itself does once
    for name in MODELS:
        print(measured(name, overlap="overlap" in sys.argv))
