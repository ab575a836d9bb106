"""Tasks in columns: many at a time, where one after the other (`Tasks`) would take too long."""

from collections.abc import Iterable

import numpy as np

from mfabric_jax.checks import one_of
from mfabric_jax.tasks.graph import FIELDS, USUAL, TaskGraph, TaskKind


class TaskColumns:
    """Collects tasks in arrays: `add` gives the numbers of some, `wait` says what they wait for.

    - `more`: further columns, name -> what a task has unless `add` says otherwise; `column` gives them.
    """

    def __init__(self, ranks: int, groups: tuple[tuple[int, ...], ...] = (), **more: float):
        self.ranks, self.groups, self.tasks, self.matches = ranks, list(groups), 0, 0
        self._usual = USUAL | {"lane": -1} | more
        self._columns: dict[str, list[np.ndarray]] = {name: [] for name in ("kind", "rank", *self._usual)}
        self._after: list[np.ndarray] = []
        self._names: list[tuple[str, int]] = []

    def add(self, kind: TaskKind, rank, name: str = "", after: Iterable = (), **values) -> np.ndarray:
        """Numbers [N] of N tasks of one kind and name on `rank` [N]; `values` [N] or one for all; `after`: as `wait`'s
        others."""
        rank = np.atleast_1d(np.asarray(rank, np.int64))
        for field in values:
            one_of("field of a task", field, self._usual)
        for field, value in (self._usual | {"kind": kind, "rank": rank} | values).items():
            self._columns[field].append(np.broadcast_to(np.asarray(value), rank.shape))
        numbers = np.arange(self.tasks, self.tasks + len(rank))
        self.tasks += len(rank)
        self._names.append((name, len(rank)))
        self.wait(numbers, *after)
        return numbers

    def grouped(self, members: np.ndarray) -> np.ndarray:
        """Numbers [G] of new groups of ranks [G n]."""
        self.groups += [tuple(row) for row in members.tolist()]
        return np.arange(len(self.groups) - len(members), len(self.groups))

    def matched(self, count: int) -> np.ndarray:
        """So many new numbers for messages, or for collectives."""
        self.matches += count
        return np.arange(self.matches - count, self.matches)

    def wait(self, tasks: np.ndarray, *others) -> None:
        """Each of `tasks` [N] waits for those at its place in every one of `others` [N] or [K N]; a number: for it."""
        for other in others:
            first = np.asarray(other, np.int64)
            first = np.broadcast_to(first, np.broadcast_shapes(first.shape, tasks.shape))
            self._after.append(np.stack([first.ravel(), np.broadcast_to(tasks, first.shape).ravel()], axis=1))

    def column(self, name: str) -> np.ndarray:
        """What all tasks have in a column [T]."""
        return np.concatenate([np.zeros(0), *self._columns[name]])

    def graph(self) -> TaskGraph:
        """All of them; a pair in `after` counts once."""
        pairs = np.concatenate([np.zeros((0, 2), np.int64), *self._after])
        every = max(self.tasks, 1)
        after = np.stack(np.divmod(np.unique(pairs[:, 0] * every + pairs[:, 1]), every), axis=1)
        arrays = {field: self.column(field).astype(kind) for field, kind in FIELDS.items() if field != "after"}
        names = tuple(name for name, count in self._names for _ in range(count))
        return TaskGraph(self.ranks, after=after, groups=tuple(self.groups), name=names, **arrays)
