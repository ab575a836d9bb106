"""A graph of tasks on fabrics: when everything begins and ends."""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from mfabric_jax.case import Case, Cases
from mfabric_jax.case import cases as several
from mfabric_jax.checks import InputError
from mfabric_jax.flows import Outcome
from mfabric_jax.replay.replay_paths import DTYPE, Prepared, prepare
from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.simulation.scenario import check_dtype
from mfabric_jax.tasks.graph import TaskGraph


class Replayed(NamedTuple):
    """- `begin`, `finish` [F] s.   - `holder` [F]: the link that held a flow as it ended, -1: its cap, or nothing.
    - `events`.   - `build_s`, `solve_s`: what it took, compilation included.
    """

    prepared: Prepared
    begin: np.ndarray
    finish: np.ndarray
    holder: np.ndarray
    events: int
    build_s: float
    solve_s: float

    @property
    def makespan_s(self) -> float:
        """When the last flow ends."""
        return float(self.finish.max(initial=0))


def replay(
    graph: TaskGraph,
    case: Case | Cases | None = None,
    config: Replay | None = None,
    *,
    progress: Callable[[str], None] = lambda words: None,
) -> Iterator[Replayed]:
    """Run a graph of tasks on the GPUs and the network of every case, one after the other as they are ready.

    - `case`: its gpu, network, circuits.policy, circuits.delay_s and run.seed are read; of a graph of one's own
      (`config.graph`) the first one's network.payload, network.paths and run.seed.
    - `progress` is told in words what begins.

    Everything is computed in float64: `jax_enable_x64` must be on.
    """
    config = Replay() if config is None else config
    each = list(several(Case() if case is None else case))
    check_dtype(DTYPE)
    if not graph.tasks:
        raise InputError("a graph must have a task or more, got none: there is nothing to run.")
    for one in each if config.graph is None else each[:1]:
        network = one.network
        where = f"{network.fabric} at {network.nic_gbps:g} Gbps" if config.graph is None else "the graph"
        progress(f"{where}: paths")
        began = time.perf_counter()
        prepared = prepare(graph, one, config)
        ready = time.perf_counter()
        progress(f"{where}: {prepared.flows.flows:,} flows")
        end = prepared.completion(prepared.problem())
        begin, finish = (np.asarray(x, float) for x in (end.begin, end.finish))
        if end.outcome != Outcome.solved:
            stuck = prepared.flows.task[np.argmax(np.isfinite(begin) & ~np.isfinite(finish))]
            raise InputError(f"{graph.named(int(stuck))} never ends on {prepared.fabric}: {Outcome[end.outcome]}")
        took = ready - began, time.perf_counter() - ready
        yield Replayed(prepared, begin, finish, np.asarray(end.holder), int(end.events), *took)
