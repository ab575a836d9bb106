"""Evaluate cases: resolve them, time their all-to-alls and iterations, and return rows or one JAX function."""

from typing import TYPE_CHECKING

from mfabric_jax.support.lazily import at_first_use

if TYPE_CHECKING:
    from mfabric_jax.evaluate.composed import iteration_of
    from mfabric_jax.evaluate.forecasts import guess_of as guess_of
    from mfabric_jax.evaluate.forecasts import planning_selections as planning_selections
    from mfabric_jax.evaluate.forecasts import sigma_of as sigma_of
    from mfabric_jax.evaluate.on_schedules import OnSchedules as OnSchedules
    from mfabric_jax.evaluate.problem import Problem
    from mfabric_jax.evaluate.resolving.resolve import Resolved, resolve
    from mfabric_jax.evaluate.rows.points import rows_of
    from mfabric_jax.evaluate.rows.results import Results, simulate
    from mfabric_jax.evaluate.rows.timeline import example_timeline
    from mfabric_jax.evaluate.sharded import evaluate, grid
    from mfabric_jax.evaluate.whole_cluster import cluster_rows, solve_cluster

__all__ = [
    "Problem",
    "Resolved",
    "Results",
    "cluster_rows",
    "evaluate",
    "example_timeline",
    "grid",
    "iteration_of",
    "resolve",
    "rows_of",
    "simulate",
    "solve_cluster",
]
__getattr__ = at_first_use(
    __name__,
    {
        "forecasts": ("guess_of", "planning_selections", "sigma_of"),
        "composed": ("iteration_of",),
        "on_schedules": ("OnSchedules",),
        "problem": ("Problem",),
        "resolving.resolve": ("Resolved", "resolve"),
        "rows.points": ("rows_of",),
        "rows.results": ("Results", "simulate"),
        "rows.timeline": ("example_timeline",),
        "sharded": ("evaluate", "grid"),
        "whole_cluster": ("cluster_rows", "solve_cluster"),
    },
)
