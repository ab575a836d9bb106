"""One iteration of one job as segments, and what every stage spends it on."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.schedule import (
    Exchanges,
    Rates,
    Rules,
    compute_of,
    reduced_behind,
    running_blocks,
    segments,
    timeline,
)
from mfabric_jax.study.compare import Job, check_dtype, computation, effective, inside, jobs, joined, solve, weighs
from mfabric_jax.study.config import Compare
from mfabric_jax.workload import BlockSeconds, Workload

Segments = list[dict[str, Any]]


def example_timeline(config: Compare) -> tuple[Segments, list[dict[str, Any]], dict[str, Any]]:
    """(segments, a row for every stage, the effective configuration) of the first model on the first fabric at the
    first bandwidth; of several iterations the last. Segments are those of `schedule.segments`."""
    check_dtype(config.dtype)
    one = _first(config)
    job = jobs(one)[0]
    return *job_timeline(one, job), effective(one)


def _first(config: Compare) -> Compare:
    first = {field: getattr(config, field)[:1] for field in ("models", "fabrics", "nic_gbps", "nic_use")}
    return dataclasses.replace(config, **first)


def job_timeline(config: Compare, job: Job) -> tuple[Segments, list[dict[str, Any]]]:
    """The last iteration of one model on one fabric at the first bandwidth: segments, and a row for every stage.

    A row has the seconds of its own work, `reconfig_s` that it waits for the switch, and what is left: `bubble_s`.
    """
    gbps = config.bandwidths(job.fabric)[0]
    solved = joined(solve(config, job), inside(config, job))
    last = jax.tree.map(lambda x: x[0, -1] if weighs(config, job) else x[-1], solved)
    rates, nvswitch_Bps = config.rates(job.fabric, gbps), config.nvswitch_Bps(job.fabric.name, gbps)
    numbers = rates, computation(config, job), nvswitch_Bps
    rates, seconds, nvswitch_Bps = jax.tree.map(lambda x: jnp.asarray(x, config.dtype), numbers)
    rules = Rules(config.eps_waits, config.overlap_parts, job.workload.recompute)
    walked = _walked(job.workload, last, rates, seconds, nvswitch_Bps, rules, config.dp_overlap)
    slots, blocks, compute, reduce_s = walked
    return segments(job.workload, slots, blocks, compute, rules, reduce_s), _rows(slots, reduce_s)


@eqx.filter_jit
def _walked(
    workload: Workload,
    solved: Exchanges,
    rates: Rates,
    seconds: BlockSeconds,
    nvswitch_Bps,
    rules: Rules,
    dp_overlap: bool,
):
    """Slots, blocks, computation and the rest of the gradients' all-reduce [P]."""
    solved = solved._replace(inside_s=solved.inside_s / nvswitch_Bps)
    slots = timeline(workload, rates, solved, seconds, nvswitch_Bps, rules)
    compute = compute_of(workload, seconds, nvswitch_Bps, slots.end.dtype)
    reduce_s = reduced_behind(workload, rates, slots, nvswitch_Bps, dp_overlap=dp_overlap)
    return slots, running_blocks(workload, rates, solved), compute, reduce_s


def _rows(slots, reduce_s) -> list[dict[str, Any]]:
    """What every stage spends the iteration on [s]; a row adds up to `iteration_s`."""
    slots, dp = jax.tree.map(lambda x: np.asarray(x, np.float64), (slots, reduce_s))
    total = float((slots.end.max(axis=(1, 2)) + dp).max())
    parts = {"compute_s": slots.compute_s, "tp_comm_s": slots.tp_s, "ep_comm_s": slots.exchange_s}
    parts = {name: part.sum(axis=(1, 2)) for name, part in parts.items()}
    parts |= {"dp_comm_s": dp, "reconfig_s": slots.paid_s.sum(axis=(1, 2))}
    rows = [{"stage": stage} | {name: float(x[stage]) for name, x in parts.items()} for stage in range(len(dp))]
    return [row | {"bubble_s": total - sum(row[name] for name in parts), "iteration_s": total} for row in rows]
