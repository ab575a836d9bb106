"""Seconds of an iteration by part: single passes by kind, pairs of passes, bubble, gradients and optimizer."""

import numpy as np

from mfabric_jax.case import Case
from mfabric_jax.evaluate.rows.timeline import problem_of_case, walk_problem
from mfabric_jax.timing.passes import order_of
from mfabric_jax.workload.schedules import BACKWARD, FORWARD, INPUT, WEIGHT

PARTS = ("forward_s", "backward_s", "weights_s", "overlapped_s", "bubble_s", "gradients_s", "optimizer_s")


def step_parts(case: Case) -> dict[str, float]:
    """Return the seconds of each of `PARTS`, averaged over stages; they add up to the iteration. `layer_s`: median
    seconds of a block in a pair of passes; `exposed`: the fraction of it that no computation hides."""
    scenario = problem_of_case(case, "parts of a step are")
    walked, job = walk_problem(scenario), scenario.workload
    order, slots = order_of(job), walked.slots
    alone = ~order.in_pairs & (order.chunk >= 0)
    begin, end = (np.asarray(side, np.float64) for side in (slots.begin.min(axis=-1), slots.end.max(axis=-1)))
    kinds = {"forward_s": (FORWARD,), "backward_s": (BACKWARD, INPUT), "weights_s": (WEIGHT,)}
    seconds = {
        name: float(np.where(alone & np.isin(order.kind, some), end - begin, 0).sum(axis=1).mean())
        for name, some in kinds.items()
    }
    pairs = _pairs(order, begin, end)
    seconds["overlapped_s"] = float(pairs.sum() / job.pp)
    seconds |= {"gradients_s": float(np.mean(walked.reduce_s)), "optimizer_s": float(np.mean(walked.step_s))}
    seconds["bubble_s"] = float(walked.ends.max()) - sum(seconds.values())
    return {name: seconds[name] for name in PARTS} | _of_layer(job, walked, order, pairs)


def _pairs(order, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the seconds of every pair of passes."""
    if order.paired is None:
        return np.zeros(0)
    first = np.nonzero(order.paired)
    second = first[0], first[1] + 1
    return np.maximum(end[first], end[second]) - np.minimum(begin[first], begin[second])


def _of_layer(job, walked, order, pairs: np.ndarray) -> dict[str, float]:
    if not len(pairs):
        return {}
    first = np.nonzero(order.paired)
    slots = walked.slots
    computed = np.asarray(slots.compute_s + slots.tp_s, np.float64).sum(axis=-1)
    blocks = np.asarray(walked.blocks.present).sum(axis=-1)[first]
    busy = computed[first] + computed[first[0], first[1] + 1]
    full = blocks == blocks.max()
    per_layer = (pairs / blocks)[full]
    return {"layer_s": float(np.median(per_layer)), "exposed": float(np.median((1 - busy / pairs)[full]))}
