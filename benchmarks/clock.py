"""The clock of iterations: how many a CPU second plays, on the host and as a program of JAX.

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
from mfabric_jax.timing.blocks import BlockCompute, Blocks, Rules, table_of
from mfabric_jax.timing.passes import order_of, places
from mfabric_jax.timing.timeline import run

MODELS = ("llama-moe", "qwen-moe", "mixtral-8x7b", "mixtral-8x22b", "deepseek-v3")
PLACES = 1 << 17  # blocks in passes that are played side by side


def cpu_seconds_of(call, times: int = 5) -> float:
    """The least of several calls, of all cores."""
    took = []
    for _ in range(times):
        began = time.process_time()
        jax.block_until_ready(call())
        took.append(time.process_time() - began)
    return min(took)


def measured(model: str, *, overlap: bool) -> str:
    """One line of the table."""
    job = resolve(Case().with_({"model.name": model, "network.fabric": "mfabric", "network.nic_gbps": 400})).job
    job = dataclasses.replace(job, overlap_passes=True) if overlap else job
    order, where, rng = order_of(job), places(job), np.random.default_rng(0)
    many = max(1, PLACES // where.present.size)
    shape = (many, *where.present.shape, 2)
    optical, packet = (rng.uniform(0, 2e-3, shape).astype(np.float32) for _ in range(2))
    here, moe, ahead = (flags[None] for flags in (where.present, where.layer >= 0, where.backward))
    blocks = Blocks(here, moe, optical, packet, rng.random(shape) < 0.9, ahead, packet)
    compute = BlockCompute(*(np.full((many, 1), x, np.float32) for x in (1e-3, 2e-3, 2e-3, 3e-4, 1e-3, 1e-4)))
    given = blocks, compute, np.full((many, job.pp), 1e-4, np.float32), np.full(shape, 1e-2, np.float32)
    rules = Rules(recompute=job.recompute)

    def played(blocks, compute, send_s, delay_s):
        return run(order, table_of(order, blocks, compute, delay_s, rules), send_s, rules, every=False)

    host_s = cpu_seconds_of(lambda: played(*given), times=2)
    began = time.perf_counter()
    lowered = jax.jit(lambda *given: played(*given).end.max((1, 2, 3))).lower(*given)
    traced = time.perf_counter()
    program = lowered.compile()
    compiled = time.perf_counter()
    program_s = cpu_seconds_of(lambda: program(*given))
    return (
        f"| {model} | {' x '.join(map(str, where.present.shape))} | {job.recompute} | {many} | {many / host_s:,.0f} | "
        f"{many / program_s:,.0f} | {traced - began:.2f} | {compiled - traced:.2f} |"
    )


if __name__ == "__main__":
    heads = ("model", "stages x passes x blocks", "recomputed", "iterations", "host", "JAX", "trace s", "compile s")
    print(f"| {' | '.join(heads)} |", "host, JAX: iterations a CPU second")
    measured(MODELS[0], overlap=False)  # what JAX itself does once
    for name in MODELS:
        print(measured(name, overlap="overlap" in sys.argv))
