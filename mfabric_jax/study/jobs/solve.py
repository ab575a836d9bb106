"""The graph of several jobs, run exactly by the engine, one variant or many."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.study.jobs.iterations import SharedFlows

DATA = ("start", "lag", "size", "weight")


class JobTimes(NamedTuple):
    """- `begin`, `finish` [F] s of every flow; with variants [B F]."""

    begin: np.ndarray
    finish: np.ndarray


def solve_jobs(flows: SharedFlows, capacity: np.ndarray, **variants: np.ndarray) -> JobTimes:
    """When every flow begins and ends.

    - `capacity` [L] bytes/s.   - `variants`: `start`, `lag`, `size`, `weight` in the place of those of `flows`, [F], or
      some of them [B F]: so many runs of one graph at once.
    """
    given = {name: jnp.asarray(variants.get(name, getattr(flows, name)), float) for name in DATA}
    batched = tuple(0 if one.ndim == 2 else None for one in given.values())
    hops, links = jnp.asarray(flows.routes.hops), jnp.asarray(capacity, float)
    share = jnp.asarray(np.where(flows.routes.hops < 0, 1, flows.routes.share), float)

    def run(start, lag, size, weight):
        problem = FlowProblem(links, hops, share, weight)
        done = completion_times(problem, size, start, after=flows.after, lag=lag)
        return done.begin, done.finish

    run = jax.vmap(run, in_axes=batched) if 0 in batched else run
    return JobTimes(*(np.asarray(x, np.float64) for x in run(*given.values())))
