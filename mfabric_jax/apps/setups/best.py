"""The set-ups that a search found for a case, each evaluated as `mfabric compare` does."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mfabric_jax.case import Case, cases
from mfabric_jax.case.paths import flat
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.resolving.resolve import GLOBAL, TP_REDUCES, resolve, resolve_without_jax
from mfabric_jax.evaluate.resolving.resolved import Resolved
from mfabric_jax.evaluate.rows.results import simulate
from mfabric_jax.evaluate.setups.blocks import statement_of
from mfabric_jax.evaluate.setups.search import SearchResult
from mfabric_jax.workload.compute import backward_of
from mfabric_jax.workload.space import SetUp, usual_reduces

OBJECTIVES = {"seconds": "iteration_s", "dollars": "usd_per_million_tokens"}  # columns, less is better
LIMITS = {  # what limits a set-up, by the column of its seconds
    **{"bubble": "bubble_s", "all-to-alls": "ep_comm_s", "gradients": "dp_comm_s", "TP": "tp_comm_s"},
    "circuits": "reconfig_s",
}
LEAST_LIMIT = 0.1  # parts below this fraction of an iteration limit nothing


@dataclasses.dataclass(frozen=True)
class BestSetUps:
    """The set-ups that a search found for one case, the best first.

    - `resolved`: the case with the fastest of them; `outcome`: the result of the search.
    - `set_ups`, `stated`: the set-ups, and the cases that state them; `rows`: their rows, as of `simulate`, with
      `limit`, what limits a set-up.
    """

    resolved: Resolved
    outcome: SearchResult
    set_ups: tuple[SetUp, ...]
    stated: tuple[Case, ...]
    rows: tuple[Mapping[str, Any], ...]


def best_set_ups(case: Case, objective: str = "seconds", progress: Callable[[], None] = lambda: None) -> BestSetUps:
    """Search the set-up of a case, and return the best ones by an objective, a key of `OBJECTIVES`.

    `progress` is called for every evaluated set-up. Raise `Misfit` if no set-up can be, `InputError` if all is stated.
    """
    resolved = resolve_without_jax(case)
    if resolved.searched is None:
        raise InputError("job.parallel.tp, pp and ep are all stated: nothing is open; leave one of them out.")
    outcome: SearchResult = resolved.searched
    set_ups = [runner.set_up for runner in outcome.runners]
    stated = [state_set_up(resolved, set_up) for set_up in set_ups]
    rows = simulate(cases(stated)).rows(lambda problem: progress())
    rows = [row | {"limit": limit_of(row, resolve(own))} for row, own in zip(rows, stated, strict=True)]
    order = sorted(range(len(rows)), key=lambda number: _worth(rows[number], objective))

    def rank(each: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(each[number] for number in order)

    return BestSetUps(resolved, outcome, rank(set_ups), rank(stated), rank(rows))


def _worth(row: Mapping[str, Any], objective: str) -> tuple[float, float]:
    value = row[OBJECTIVES[objective]]
    return math.inf if value is None else value, row["iteration_s"]


def state_set_up(resolved: Resolved, set_up: SetUp) -> Case:
    """Return a case as it was before its search, with a set-up stated."""
    original, values = resolved.original, flat(resolved.case)
    stated = statement_of(set_up) | {"job.parallel.gpus": resolved.job.gpus, GLOBAL: values[GLOBAL]}
    if flat(original)[TP_REDUCES] is None:
        stated[TP_REDUCES] = usual_reduces(set_up, original.job.frameworks)
    return original.with_(stated | {"job.search": "recipe"})


# --------------------------------------------------------------------------------------------------------------- limits
def limit_of(row: Mapping[str, Any], resolved: Resolved) -> str:
    """Return what limits a set-up: the largest part of its iteration beside computation; computation if all are small.

    Recomputation counts as memory, which it saves.
    """
    parts = {name: row[column] or 0.0 for name, column in LIMITS.items()}
    parts["memory"] = row["compute_s"] * recomputed_share(resolved)
    most = max(parts, key=lambda name: parts[name])
    return most if parts[most] >= LEAST_LIMIT * row["iteration_s"] else "computation"


def recomputed_share(resolved: Resolved) -> float:
    """Return the fraction of the computation of a mean block that is recomputed."""
    job = resolved.job
    seconds = resolved.block_seconds(job, 1.0)
    back, layers = backward_of(seconds), job.moe_layers / job.architecture.blocks

    def mean(parts: Sequence[Any]) -> float:
        attention, moe, dense = parts
        return float(attention + layers * moe + (1 - layers) * dense)

    parts = back.attention, back.moe, back.dense
    again = mean([part.again for part in parts])
    once = mean([seconds.attention_s, seconds.moe_s, seconds.dense_s])
    once += mean([part.inputs + part.weights for part in parts])
    return again / (once + again)
