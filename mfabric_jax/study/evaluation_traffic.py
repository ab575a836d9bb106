"""Demand to judge policies by: other draws of what policies are trained on, and recorded iterations."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax import traffic
from mfabric_jax.checks import InputError
from mfabric_jax.policies import is_file, load
from mfabric_jax.study.training_traffic import FAMILIES, OTHER_SEEDS, drawn_each, folded, measured_jobs, recorded
from mfabric_jax.traffic.predictor import WINDOW

MEAN_OF = 256  # draws that the mean demand of a drawn workload is taken of
DRIFT, ITERATIONS = 0.1, 8  # of the measured tables: popularity walks, so that prediction can err


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """Demands that belong together.

    - `demand` [N S S] bytes; `predicted` [N S S] what `traffic.predicted` expected of them, None without a past.
    - `mean` [S S]: what is typical of it, of other demand than `demand`, for policies that look once.
    """

    name: str
    demand: np.ndarray
    predicted: np.ndarray | None
    mean: np.ndarray


def workloads(
    servers: int, samples: int, seed: int, trace: str | None, records: tuple[int, int] | None
) -> list[Workload]:
    """ "drawn" (all families of `training_traffic` in turn), "tables" (measured expert shares, allocated and drawn
    anew, that walk, where ranks divide into so many servers) and, if given, "trace"."""
    found = [_drawn(servers, samples, seed)]
    jobs = measured_jobs(servers)
    if jobs:
        count = traffic.measured(jobs[-1], ITERATIONS, 2, DRIFT, seed + OTHER_SEEDS).count
        found.append(_with_past("tables", traffic.Tokens(count, "tables"), 1, servers, samples, seed))
    if trace is not None:
        found.append(_with_past("trace", recorded(trace, records), WINDOW, servers, samples, seed))
    return found


def _drawn(servers: int, samples: int, seed: int) -> Workload:
    keys = jax.random.split(jax.random.key(seed + OTHER_SEEDS), samples + MEAN_OF)
    family = jnp.arange(len(keys)) % len(FAMILIES)
    demand = np.asarray(drawn_each(keys, family, servers))
    total = demand.sum(axis=(1, 2), keepdims=True)  # 0 where a sparse one has no pair at all
    share = np.divide(demand, total, out=np.zeros_like(demand), where=total > 0)
    return Workload("drawn", demand[:samples], None, share[samples:].mean(axis=0))


def check_unseen(names: Sequence[str], trace: str, records: tuple[int, int] | None) -> None:
    """`InputError` where a policy was trained on records of this trace that it would be judged by."""
    for name in filter(is_file, names):
        learned = load(name).configuration
        if learned.get("trace") is None or Path(learned["trace"]).resolve() != Path(trace).resolve():
            continue
        seen = learned.get("records")
        if seen is None or records is None or (records[0] <= seen[1] and seen[0] <= records[1]):
            which = "those chosen by default" if seen is None else f"{seen[0]}-{seen[1]}"
            raise InputError(f"records must be none of those that {name!r} was trained on: {which}.")


def _with_past(name: str, tokens: traffic.Tokens, skipped: int, servers: int, samples: int, seed: int) -> Workload:
    """Drawn from the iterations behind the first `skipped`, where there are so many."""
    count = tokens.count
    skipped = min(skipped, len(count) - 1)
    true, guess = (folded(x[skipped:], servers) for x in (count, traffic.predicted(tokens)))
    chosen = np.random.default_rng(seed).permutation(len(true))[:samples]
    return Workload(name, true[chosen], guess[chosen], folded(count[: max(skipped, 1)], servers).mean(axis=0))
