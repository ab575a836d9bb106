"""A graph of tasks on fabrics: when everything begins and ends."""

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.flows import Outcome
from mfabric_jax.replay.replay_paths import Prepared, prepare
from mfabric_jax.replay.replay_settings import Replay
from mfabric_jax.simulation._provenance import provenance
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
    graph: TaskGraph, config: Replay | None = None, *, progress: Callable[[str], None] = lambda words: None
) -> Iterator[Replayed]:
    """Run a graph of tasks on every fabric at every bandwidth of `config`, one after the other as they are ready.

    - `progress` is told in words what begins.
    """
    config = Replay() if config is None else config
    check_dtype(config.dtype)
    if not graph.tasks:
        raise InputError("a graph must have a task or more, got none: there is nothing to run.")
    for on, nic_gbps in config.places:
        where = "the graph" if on is None else f"{on} at {nic_gbps:g} Gbps"
        progress(f"{where}: paths")
        began = time.perf_counter()
        prepared = prepare(graph, config, on, nic_gbps)
        ready = time.perf_counter()
        progress(f"{where}: {prepared.flows.flows:,} flows")
        end = prepared.completion(prepared.problem())
        begin, finish = (np.asarray(x, float) for x in (end.begin, end.finish))
        if end.outcome != Outcome.solved:
            stuck = prepared.flows.task[np.argmax(np.isfinite(begin) & ~np.isfinite(finish))]
            raise InputError(f"{graph.named(int(stuck))} never ends on {prepared.fabric}: {Outcome[end.outcome]}")
        took = ready - began, time.perf_counter() - ready
        yield Replayed(prepared, begin, finish, np.asarray(end.holder), int(end.events), *took)


def effective_replay(config: Replay) -> dict[str, Any]:
    """The configuration with every value resolved, and where the result comes from."""
    said = {"server": dataclasses.asdict(config.server), "nvlink_Bps": config.own_nvlink_Bps}
    return dataclasses.asdict(config) | said | provenance(config.dtype)
