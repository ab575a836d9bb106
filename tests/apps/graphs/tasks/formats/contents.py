"""What a graph of tasks holds, in numbers: for tables and for comparing files."""

from collections import defaultdict

import numpy as np

from mfabric_jax.apps.graphs.tasks.graph import Op, TaskGraph, TaskKind
from mfabric_jax.flows.dependencies import run_order


def depth(graph: TaskGraph) -> int:
    """Tasks on the longest chain of what waits for what; a RECV waits for its SEND, markers of nobody do not count."""
    matched = graph.match >= 0
    sends, receives = (np.flatnonzero((graph.kind == kind) & matched) for kind in (TaskKind.SEND, TaskKind.RECV))
    sent = dict(zip(graph.match[sends].tolist(), sends.tolist(), strict=True))
    messages = [
        (sent[match], task) for task, match in zip(receives, graph.match[receives], strict=True) if match in sent
    ]
    after = np.concatenate([graph.after, np.array(messages, np.int64).reshape(-1, 2)])
    before: list[list[int]] = [[] for _ in range(graph.tasks)]
    for first, then in after.tolist():
        before[then].append(first)
    level = [0] * graph.tasks
    for task in run_order(after, graph.tasks).tolist():
        level[task] = (graph.rank[task] >= 0) + max((level[first] for first in before[task]), default=0)
    return int(max(level, default=0))


def bytes_by_kind(graph: TaskGraph) -> dict[str, float]:
    """Bytes of all messages, and of all members of every kind of collective, by name; without those of no bytes."""
    held: dict[str, float] = defaultdict(float)
    held["SEND"] = float(graph.bytes[graph.of(TaskKind.SEND)].sum())
    for op in Op:
        held[op.name] = float(graph.bytes[graph.of(TaskKind.COLLECTIVE, op)].sum())
    return {name: size for name, size in held.items() if size}


def tasks_by_kind(graph: TaskGraph) -> dict[str, int]:
    """How many of each kind, by name; without those that there are none of."""
    count = {kind.name: int(graph.of(kind).sum()) for kind in TaskKind}
    return {name: number for name, number in count.items() if number}
