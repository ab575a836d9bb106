"""Small workloads for the tests of this folder, and the iteration as one jitted function."""

import equinox as eqx
import numpy as np

from mfabric_jax.schedule import exchanges, iterate
from mfabric_jax.workload import GroupedQuery, Workload, models


def job(*, tp=4, ep=4, dp=1, pp=1, blocks=2, experts=4, dense_blocks=0, micro_batches=2, **settings):
    """Tokens of 1,000 elements, attention and gate of 1e6 parameters together (with 4 experts), 3e6 an expert."""
    model = models.Architecture(
        name="tiny", blocks=blocks, hidden=1000, attention=GroupedQuery(1, 1, 249), experts=experts, top_k=1,
        expert_hidden=1000, dense_blocks=dense_blocks, dense_hidden=500, source="made up",
    )  # fmt: skip
    settings = {"sequence": 500_000, "micro_batch": 1, "grad_bytes": 1000} | settings
    return Workload(
        "tiny", model, dp, tp, pp, ep, gpus=dp * tp * pp * ep, micro_batches=micro_batches, **settings
    )


@eqx.filter_jit
def run(workload, fabric, tokens, seconds, policy, nvswitch_Bps=900e9, routing="unsplit"):
    """Exchanges and iteration; compiled once per workload, policy and kind of fabric if all numbers are arrays."""
    found = exchanges(workload, fabric, tokens, policy, nvswitch_Bps=nvswitch_Bps, routing=routing)
    return found, iterate(workload, fabric, found, seconds, nvswitch_Bps)


def draw_tokens(seed, workload, micro_batches=None):
    """Selections [layer M R E] as real numbers; every block and micro-batch has its own hot experts."""
    rng = np.random.default_rng(seed)
    shape = (workload.moe_layers, micro_batches or workload.micro_batches, workload.ep, workload.architecture.experts)
    heat = rng.lognormal(0, 1.5, (*shape[:2], 1, shape[3]))
    return rng.uniform(0, 1, shape) ** 2 * heat * workload.selections / workload.architecture.experts
