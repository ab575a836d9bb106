"""Replay a task graph on fabrics."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.replay.replay_paths import DTYPE, Prepared, prepare
from mfabric_jax.apps.graphs.replay.replay_settings import Replay
from mfabric_jax.apps.graphs.tasks.graph import TaskGraph
from mfabric_jax.case import Case, Cases
from mfabric_jax.case import cases as several
from mfabric_jax.checks import InputError
from mfabric_jax.evaluate.problem import check_dtype
from mfabric_jax.fabric import Cluster
from mfabric_jax.flows import SolveOutcome
from mfabric_jax.units import to_us


class Replayed(NamedTuple):
    """The result of a replay.

    - `begin`, `finish` [F]: times of flows in s. `holder` [F]: the link that limited a flow at its end; -1: its cap, or
      nothing.
    - `events`: number of events of the solver. `build_s`, `solve_s`: run time, compilation included.
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
        return float(self.finish.max(initial=0))


def replay(
    graph: TaskGraph,
    case: Case | Cases | None = None,
    config: Replay | None = None,
    *,
    progress: Callable[[str], None] = lambda words: None,
) -> Iterator[Replayed]:
    """Run a task graph on the GPUs and the network of each case; yield results in order, as soon as they are ready.

    - `case`: only gpu, network, circuits.policy, circuits.delay_s and run.seed are used; with a user's network graph
      (`config.graph`), only network.payload, network.paths, network.on-graph.relay and run.seed.
    - `progress`: called with a text at each stage.

    Everything is computed in float64: `jax_enable_x64` must be on. Raise `InputError` for a graph without tasks and for
    a task that never ends.
    """
    config = Replay() if config is None else config
    each = list(several(Case() if case is None else case))
    check_dtype(DTYPE)
    if not graph.tasks:
        raise InputError("a graph must have at least one task, got none.")
    for each_case in each:
        network = each_case.network
        own = config.on(each_case).graph is None
        where = f"{network.fabric} at {network.nic_gbps:g} Gbps" if own else config.on(each_case).graph
        progress(f"{where}: paths")
        began = time.perf_counter()
        prepared = prepare(graph, each_case, config)
        ready = time.perf_counter()
        progress(f"{where}: flows: {prepared.flows.flows:,}")
        end = prepared.completion(prepared.problem())
        begin, finish = (np.asarray(x, float) for x in (end.begin, end.finish))
        if end.outcome != SolveOutcome.solved:
            stuck = prepared.flows.task[np.argmax(np.isfinite(begin) & ~np.isfinite(finish))]
            raise InputError(
                f"{graph.task_label(int(stuck))} never ends on {prepared.fabric}: {SolveOutcome[end.outcome]}"
            )
        took = ready - began, time.perf_counter() - ready
        yield Replayed(prepared, begin, finish, np.asarray(end.holder), int(end.events), *took)


# -- assumptions of a replay as text: servers, NICs and their users, latency, lanes

NICS_ALONE = 'with spraying over switches that never block, only NICs limit messages (the page "Fabrics").'


def replay_assumed(done: Replayed, config: Replay) -> dict[str, Any]:
    """Return the assumptions of one replay as a row for `report.replay_text.assumptions_text`.

    `like`: the reason why all replays with this reason take equally long; None: no reason is known.
    """
    cluster = done.prepared.cluster
    row = {
        "fabric": done.prepared.file or done.prepared.fabric,
        "nic_gbps": done.prepared.nic_gbps,
        "makespan_s": done.makespan_s,
    }
    lanes = "one task of a lane at a time, in an order set in advance" if config.lanes == "ordered" else "lanes ignored"
    tail = f", {config.alpha_s:g} s a message; {lanes}" if config.alpha_s else f"; {lanes}"
    if cluster is None:
        return row | {
            "common": f"latency of the graph's links{tail}",
            "servers": f"as the graph says; {done.prepared.relays}",
            "like": None,
        }
    latency = f"latency {to_us(cluster.link_delay_s):g} us a link"
    return row | {"common": latency + tail, "servers": _servers(cluster, config), "like": _why(cluster, done)}


def _servers(cluster: Cluster, config: Replay) -> str:
    circuits = np.bincount(cluster.circuits.src, cluster.circuits.count, minlength=cluster.servers)
    circuits = circuits[: cluster.servers].max()  # not at routers
    parts = [f"{cluster.nics} on packet switches"] if cluster.nics else []
    if cluster.mesh is not None:
        parts.append(f"{circuits:g} direct links")
    elif circuits:
        parts.append(f"{circuits:g} circuits")
    elif cluster.regions is not None and config.circuits_for == "all-to-all":
        parts.append("circuits for each all-to-all")
    users = "each GPU its own" if cluster.nic_use == "own" else "for all its GPUs"
    gpus = f"{cluster.gpus_per_server} GPU{'' if cluster.gpus_per_server == 1 else 's'} a server"
    inside = f"{gpus}, NVLink {cluster.nvswitch_gigabytes_per_s:g} GB/s a GPU each way"
    return f"{inside}; NICs of a server: {' and '.join(parts) or 'none in use'}, {users}"


def _why(cluster: Cluster, done: Replayed) -> str | None:
    tree = cluster.tree
    if tree is None or tree.parts > 1 or tree.oversubscription != 1 or cluster.nic_use != "own" or cluster.pxn:
        return None
    return NICS_ALONE if done.prepared.paths == "spray" else None
