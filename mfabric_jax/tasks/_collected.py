"""The flows of a graph as they are collected: first one for each task, then what collectives are made of."""

from collections.abc import Callable

import numpy as np

from mfabric_jax.tasks._lanes import held_up
from mfabric_jax.tasks._members import Collectives
from mfabric_jax.tasks.collectives.template import Template
from mfabric_jax.tasks.flow_graph import FlowGraph
from mfabric_jax.tasks.graph import TaskGraph, TaskKind

Latency = Callable[[np.ndarray, np.ndarray], np.ndarray]


class CollectedFlows:
    """The flows so far; `lane` [D 2]: tasks behind tasks on lanes; `latency` [s] of messages from `src`, `dst` [F].

    Flow t ends with task t. A collective's tasks have one more flow each, which lets the rank begin. So have tasks with
    a lag that wait for a lane: theirs ends with the lag, which runs whether or not the lane is free.
    """

    def __init__(self, graph: TaskGraph, found: Collectives, message, lane: np.ndarray, latency: Latency):
        self.graph, self.found, self.latency = graph, found, latency
        own = np.flatnonzero(graph.of(TaskKind.COLLECTIVE))
        held = held_up(graph, lane)
        self.enter = np.arange(graph.tasks)
        self.enter[own] = graph.tasks + np.arange(len(own))
        ready = self.enter.copy()
        ready[held] = graph.tasks + len(own) + np.arange(len(held))
        self.count = graph.tasks + len(own) + len(held)
        self.parts: list[dict[str, np.ndarray]] = [self._of_tasks(message[1]), self._markers(own), self._markers(held)]
        self._delay(own, held)
        self.after = [np.stack([self.enter[own], own], axis=1), np.stack([message[0], ready[message[1]]], axis=1)]
        self.after += [np.stack([graph.after[:, 0], ready[graph.after[:, 1]]], axis=1)]
        self.after += [np.stack([lane[:, 0], self.enter[lane[:, 1]]], axis=1)]
        self.after += [np.stack([ready[held], self.enter[held]], axis=1)]
        self.enters, self.leaves = self._of_members()

    def _of_tasks(self, received: np.ndarray) -> dict[str, np.ndarray]:
        graph = self.graph
        compute, send = graph.of(TaskKind.COMPUTE), graph.of(TaskKind.SEND)
        assumed = graph.of(TaskKind.RECV)
        assumed[received] = False
        moved = (send | assumed) & (graph.peer != graph.rank)
        src = np.where(compute | moved, np.where(assumed, graph.peer, graph.rank), -1)
        dst = np.where(moved, np.where(assumed, graph.rank, graph.peer), -1)
        return {
            "src": src,
            "dst": dst,
            "bytes": np.where(moved, graph.bytes, 0),
            "seconds": np.where(compute, graph.seconds, 0),
            "start": graph.start.copy(),
            "lag": graph.lag.copy(),
            "latency": np.zeros(graph.tasks),
            "task": np.arange(graph.tasks),
        }

    def _markers(self, task: np.ndarray) -> dict[str, np.ndarray]:
        none, nothing = np.full(len(task), -1), np.zeros(len(task))
        zeros = {name: nothing.copy() for name in ("bytes", "seconds", "start", "lag", "latency")}
        return {"src": none, "dst": none, "task": task} | zeros

    def _delay(self, own: np.ndarray, held: np.ndarray) -> None:
        """What a task waits for in time is in front of the first of its flows, the latency of a message of its last."""
        tasks, begins, ready = self.parts
        for name in ("start", "lag"):
            given = getattr(self.graph, name)
            begins[name][:], ready[name][:] = given[own], given[held]
            begins[name][np.isin(own, held)] = 0
            tasks[name][own] = tasks[name][held] = 0
        moved = tasks["dst"] >= 0
        tasks["latency"][moved] = self.latency(tasks["src"][moved], tasks["dst"][moved])
        tasks["lag"] += tasks["latency"]

    def _of_members(self) -> tuple[np.ndarray, np.ndarray]:
        """[M] the flow that lets a member begin, and the flow that waits for what it does.

        Missing members begin with the last of the others and end with the first.
        """
        found = self.found
        there = found.task >= 0
        collective = np.repeat(np.arange(len(found.op)), found.size)
        lead = np.full(len(found.op), -1)
        lead[collective[there][::-1]] = found.task[there][::-1]
        enters = np.where(there, self.enter[found.task] if there.size else -1, -1)
        missing = np.unique(collective[~there])
        joins = np.full(len(found.op), -1)
        joins[missing] = self.count + np.arange(len(missing))
        self.parts.append(self._markers(lead[missing]))
        self.count += len(missing)
        waiting = there & (joins[collective] >= 0)
        self.after.append(np.stack([enters[waiting], joins[collective[waiting]]], axis=1))
        return np.where(there, enters, joins[collective]), np.where(there, found.task, lead[collective])

    def copy(self, template: Template, first: np.ndarray, members: int) -> None:
        """For the collectives of so many members whose first ones are at `first` [I]."""
        flows = len(template.src)
        member = first[:, None] + np.arange(members)
        base = self.count + flows * np.arange(len(first))[:, None]
        rank = self.found.rank[member]

        def ranks(place: np.ndarray) -> np.ndarray:
            return np.where(place >= 0, rank[:, place], -1).ravel()

        src, dst = ranks(template.src), ranks(template.dst)
        task = self.leaves[member][:, template.whose].ravel()
        part = self._markers(task) | {"src": src, "dst": dst}
        part["bytes"] = (self.found.bytes[member][:, template.whose] * template.part).ravel()
        of, to = (ranks(place) for place in template.link.T)
        part["latency"][of >= 0] = self.latency(of[of >= 0], to[of >= 0])
        part["lag"] = part["latency"]
        self.parts.append(part)
        self.count += flows * len(first)

        enters, leaves = self.enters[member], self.leaves[member]
        pairs = [
            (base + template.after[:, 0], base + template.after[:, 1]),
            (enters[:, template.enters[:, 0]], base + template.enters[:, 1]),
            (base + template.leaves[:, 0], leaves[:, template.leaves[:, 1]]),
        ]
        self.after += [np.stack([before.ravel(), then.ravel()], axis=1) for before, then in pairs]

    def flows(self) -> FlowGraph:
        """All of them."""
        names = self.parts[0]
        columns = {name: np.concatenate([part[name] for part in self.parts]) for name in names}
        return FlowGraph(**columns, after=np.concatenate(self.after), weight=np.ones(self.count))
