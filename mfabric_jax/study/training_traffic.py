"""Pools of demand to train policies on: from knobs, measured tables and recordings; families are drawn elsewhere.

Only proportions matter: policies see demand over what the region can carry.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from mfabric_jax import traffic, workload
from mfabric_jax.checks import InputError
from mfabric_jax.traffic.demand_families import FAMILIES as FAMILIES
from mfabric_jax.traffic.demand_families import drawn as drawn
from mfabric_jax.traffic.demand_families import drawn_each as drawn_each
from mfabric_jax.traffic.demand_families import folded as folded
from mfabric_jax.traffic.demand_families import misjudged as misjudged
from mfabric_jax.traffic.demand_families import misjudged_each as misjudged_each
from mfabric_jax.traffic.generator import Shape, draw

POOL = 192  # matrices of a pool at most
SEEN = 0.8  # of a trace's iterations, the first, are learned from
OTHER_SEEDS = 1_000_003  # added to the seed: no run of training comes so far
FOLDED = ("deepseek-r1", "qwen-moe-ep16")  # models of the measured tables, by their ranks: folded to servers
TRACED = "qwen-moe-ep16"  # 16 ranks and 32 experts, as the SmartMoE gate trace has them


def pool(
    servers: int,
    seed: int,
    trace: str | None = None,
    records: tuple[int, int] | None = None,
    *,
    held_out: bool = False,
) -> np.ndarray:
    """[N S S] float32 demands from the named workloads of `traffic.WORKLOADS`, the measured tables (where their ranks
    divide into so many servers) and, if given, a recorded trace; N is at most 192 from each.

    - `held_out`: other draws of the knobs and tables; the last fifth of the trace, which training does not see.
    """
    seed += OTHER_SEEDS * held_out
    random = np.random.default_rng(seed)
    parts = [_from_knobs(servers, seed)]
    parts += [folded(traffic.measured(job, 1, 2, seed=seed).count, servers) for job in measured_jobs(servers)]
    if trace is not None:
        count = recorded(trace, records).count
        last = max(round(SEEN * len(count)), 1)
        parts.append(folded(count[last:] if held_out and last < len(count) else count[:last], servers))
    return np.concatenate([_some(part, random) for part in parts])


def recorded(trace: str, records: tuple[int, int] | None) -> traffic.Tokens:
    """The recorded selections."""
    return traffic.recorded(trace, workload.get(TRACED), records)


def check_folds(field: str, sizes: Sequence[int]) -> None:
    """`InputError` where the ranks of a trace cannot be folded to so many servers."""
    for servers in sizes:
        if workload.get(TRACED).ep % servers:
            raise InputError(f"{field} must divide the {workload.get(TRACED).ep} ranks of a trace, got {servers}.")


def measured_jobs(servers: int) -> list[workload.Workload]:
    """The models whose ranks can be folded to so many servers."""
    jobs = [workload.get(name) for name in FOLDED]
    return [job for job in jobs if job.ep % servers == 0]


def _from_knobs(servers: int, seed: int) -> np.ndarray:
    shape = Shape(layers=4, micro_batches=1, ranks=servers, experts=4 * servers, selections=4096)
    runs = [dataclasses.replace(knobs, row_noise=0.3) for knobs in traffic.WORKLOADS.values()]
    return np.concatenate([folded(draw(shape, knobs, seed, np.arange(4)), servers) for knobs in runs])


def _some(demand: np.ndarray, random: np.random.Generator) -> np.ndarray:
    return demand[random.permutation(len(demand))[:POOL]]
