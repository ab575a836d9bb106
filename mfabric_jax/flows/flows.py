"""Flows between endpoints: the common form of traffic and task graphs for the engine."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.flows.dependencies import check_after
from mfabric_jax.support.host_arrays import FROM_0_TO_INFINITY, NO_NAN, host_indices, real_numbers, refuse, store_arrays

MOST = np.iinfo(np.int64).max
USUAL = {"start": 0.0, "lag": 0.0, "latency": 0.0, "message": -1, "weight": 1.0, "task": 0}  # defaults
COLUMNS = ("src", "dst", "size", *USUAL, "cap")
Latency = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (src, dst) [F] -> seconds [F]


@dataclass(frozen=True, eq=False)
class Flows:
    """F flows and what each waits for: transfers between endpoints, computations and markers.

    - `src`, `dst` [F]: endpoints (GPUs, ranks); a computation has `dst` = -1, a marker (no work) has both -1.
    - `size` [F]: bytes of a transfer, seconds of a computation.
    - `start` [F] s: earliest begin. `lag` [F] s: delay after the later of `start` and the last end waited for.
    - `latency` [F] s: the part of `lag` that is message latency. `message` [F]: the message with that latency (a
      transfer itself; for a marker, one that it waits for); -1: none.
    - `weight` [F]: max-min weight. `cap` [F]: highest rate [bytes/s]; 1 for a computation.
    - `after` [D 2]: flow `after[d, 1]` waits for the end of flow `after[d, 0]`.
    - `task` [F]: the task of a graph, or the index in `labels`, to which the flow belongs.
    """

    src: np.ndarray
    dst: np.ndarray
    size: np.ndarray
    start: np.ndarray
    lag: np.ndarray
    latency: np.ndarray
    message: np.ndarray
    weight: np.ndarray
    cap: np.ndarray
    task: np.ndarray
    after: np.ndarray
    labels: tuple[str, ...] = ()

    def __post_init__(self):
        store_arrays(self, **{name: np.asarray(real_numbers(name, getattr(self, name))) for name in COLUMNS})
        for name, shape in {column.name: np.shape(getattr(self, column.name)) for column in fields(self)[:-2]}.items():
            if shape != (self.flows,):
                raise InputError(f"{name} must have the shape [{self.flows}], got {shape}.")
        for name in ("src", "dst", "message", "task"):
            least = -1 if name in ("src", "dst") else -MOST
            host_indices(name, getattr(self, name), least, MOST)
        for name in ("size", "start", "lag", "latency", "weight", "cap"):
            rule = NO_NAN if name == "start" else FROM_0_TO_INFINITY
            refuse(name, getattr(self, name), rule)
        check_after(self.after, self.flows)

    @property
    def flows(self) -> int:
        return len(self.src)

    @property
    def transfers(self) -> np.ndarray:
        """[F] mask of flows that cross links."""
        return self.dst >= 0

    @property
    def bytes(self) -> np.ndarray:
        """Bytes of transfers [F], 0 for other flows."""
        return np.where(self.transfers, self.size, 0)

    @property
    def seconds(self) -> np.ndarray:
        """Seconds of computations [F], 0 for other flows."""
        return np.where(self.transfers, 0, self.size)

    @property
    def arrivals(self) -> np.ndarray:
        """[A 2] messages whose latency follows their end, and the markers that stand for their arrival."""
        markers = np.flatnonzero((self.latency > 0) & ~self.transfers)
        return np.stack([self.message[markers], markers], axis=1)

    def add_latency(self, latency: "Latency") -> "Flows":
        """Return the flows with the latency of every message added; `latency` maps (src, dst) to seconds."""
        late, seconds = self.message >= 0, np.zeros(self.flows)
        seconds[late] = latency(*(end[self.message[late]] for end in (self.src, self.dst)))
        return replace(self, lag=self.lag + seconds, latency=seconds)

    def back(self) -> "Flows":
        return replace(self, src=self.dst, dst=self.src)

    def only(self, which: np.ndarray) -> "Flows":
        """Return the flows under a mask [F], without dependencies."""
        columns = {name: getattr(self, name)[which] for name in COLUMNS}
        return flows_of(**columns, labels=self.labels)

    def of(self, label: str) -> np.ndarray:
        """Return the mask [F] of the flows with a label. Raise `InputError` for an unknown label."""
        return self.task == self.labels.index(one_of("label", label, self.labels))


def flows_of(
    src: np.ndarray, dst: np.ndarray, size: np.ndarray, *, after: ArrayLike = (), labels: Any = (), **columns: Any
) -> Flows:
    """Return flows with these columns; a single number applies to all flows."""
    usual = USUAL | {"cap": np.where(np.asarray(dst) >= 0, np.inf, 1.0)}
    every: dict[str, Any] = {
        name: x if np.ndim(x) else np.broadcast_to(x, np.shape(src)) for name, x in (usual | columns).items()
    }
    return Flows(src, dst, size, **every, after=check_after(after, len(src)), labels=labels)
