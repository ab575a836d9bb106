"""The graph of several jobs, run exactly by the engine, one variant or many."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mfabric_jax.flows import FlowProblem, completion_times
from mfabric_jax.jobs.iterations import SharedFlows
from mfabric_jax.platforms import platform

DATA = ("start", "lag", "size", "weight")
FEW = 20_000  # flows, of which a run takes less than compiling a program for all of them


class JobTimes(NamedTuple):
    """- `begin`, `finish` [F] s of every flow; with variants [B F]."""

    begin: np.ndarray
    finish: np.ndarray


def solve_jobs(flows: SharedFlows, capacity: np.ndarray, **variants: np.ndarray) -> JobTimes:
    """When every flow begins and ends.

    - `capacity` [L] bytes/s.   - `variants`: `start`, `lag`, `size`, `weight` in the place of those of `flows`, [F], or
      some of them [B F]: so many runs of one graph at once.
    """
    given = {name: np.asarray(variants.get(name, getattr(flows, name)), float) for name in DATA}
    share = np.where(flows.routes.hops < 0, 1, flows.routes.share)

    hops, links, share = jnp.asarray(flows.routes.hops), jnp.asarray(capacity, float), jnp.asarray(share, float)

    def run(start, lag, size, weight):
        problem = FlowProblem(links, hops, share, weight)
        done = completion_times(problem, size, start, after=flows.after, lag=lag)
        return done.begin, done.finish

    known = len(flows.size) <= FEW and platform() == "cpu"
    return JobTimes(*(np.asarray(x, np.float64) for x in (_one_by_one if known else _at_once)(run, given)))


def _one_by_one(run, given: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """Each run by itself: on known arrays nothing is traced or compiled."""
    runs = {len(one) for one in given.values() if one.ndim == 2}
    if not runs:
        return run(*given.values())
    found = [run(*(one[number] if one.ndim == 2 else one for one in given.values())) for number in range(max(runs))]
    return [np.stack(part) for part in zip(*found, strict=True)]


def _at_once(run, given: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
    """All runs in one program."""
    batched = tuple(0 if one.ndim == 2 else None for one in given.values())
    return (jax.vmap(run, in_axes=batched) if 0 in batched else run)(*(jnp.asarray(one) for one in given.values()))
