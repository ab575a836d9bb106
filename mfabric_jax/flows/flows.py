"""Flows between ends, the one shape from traffic and task graphs to the engine: who sends what, what waits for what."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mfabric_jax.checks import InputError, one_of
from mfabric_jax.flows.dependencies import checked_after

USUAL = {"start": 0.0, "lag": 0.0, "latency": 0.0, "message": -1, "weight": 1.0, "task": 0}  # of what is not named
COLUMNS = ("src", "dst", "size", *USUAL, "cap")
Latency = Callable[[np.ndarray, np.ndarray], np.ndarray]  # (src, dst) [F] -> seconds [F]


@dataclass(frozen=True, eq=False)
class Flows:
    """F flows: transfers between ends, computations and markers, and what each waits for.

    - `src`, `dst` [F]: ends (GPUs, ranks); a computation has `dst` = -1, a marker (nothing to do) has both -1.
    - `size` [F]: bytes of a transfer, seconds of a computation.
    - `start` [F]: not before [s].   - `lag` [F] [s] behind that and the last end waited for: latency goes here.
    - `latency` [F] [s]: the part of `lag` that a message is on its way: `message` [F], of a transfer itself, of a
      marker one that it waits for; -1: none.
    - `weight` [F]: in max-min sharing.   - `cap` [F]: no faster than that [bytes/s], of a computation 1.
    - `after` [D 2]: flow `after[d, 1]` waits for the end of flow `after[d, 0]`.
    - `task` [F]: what the flow is a part of: a task of a graph, which ends with its last flow, or one of `labels`.
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
        for name, shape in {one.name: np.shape(getattr(self, one.name)) for one in fields(self)[:-2]}.items():
            if shape != (self.flows,):
                raise InputError(f"{name} must have the shape [{self.flows}], got {shape}.")
        checked_after(self.after, self.flows)

    @property
    def flows(self) -> int:
        """How many."""
        return len(self.src)

    @property
    def transfers(self) -> np.ndarray:
        """[F] mask: what crosses links."""
        return self.dst >= 0

    @property
    def bytes(self) -> np.ndarray:
        """[F] of transfers, 0 elsewhere."""
        return np.where(self.transfers, self.size, 0)

    @property
    def seconds(self) -> np.ndarray:
        """[F] of computations, 0 elsewhere."""
        return np.where(self.transfers, 0, self.size)

    @property
    def arrivals(self) -> np.ndarray:
        """[A 2] messages of which latency lies behind the end, and the markers that stand for it."""
        markers = np.flatnonzero((self.latency > 0) & ~self.transfers)
        return np.stack([self.message[markers], markers], axis=1)

    def delayed(self, latency: "Latency") -> "Flows":
        """With the latency of every message."""
        late, seconds = self.message >= 0, np.zeros(self.flows)
        seconds[late] = latency(*(end[self.message[late]] for end in (self.src, self.dst)))
        return replace(self, lag=self.lag + seconds, latency=seconds)

    def back(self) -> "Flows":
        """The same the other way."""
        return replace(self, src=self.dst, dst=self.src)

    def only(self, which: np.ndarray) -> "Flows":
        """Those under a mask [F]; what waits for what is left out."""
        columns = {name: getattr(self, name)[which] for name in COLUMNS}
        return flows_of(**columns, labels=self.labels)

    def of(self, label: str) -> np.ndarray:
        """[F] mask: the flows of one label. `InputError` for an unknown one."""
        return self.task == self.labels.index(one_of("label", label, self.labels))


def flows_of(
    src: np.ndarray, dst: np.ndarray, size: np.ndarray, *, after: ArrayLike = (), labels=(), **columns: Any
) -> Flows:
    """Flows of these columns; one number stands for all."""
    usual = USUAL | {"cap": np.where(np.asarray(dst) >= 0, np.inf, 1.0)}
    every = {name: x if np.ndim(x) else np.broadcast_to(x, np.shape(src)) for name, x in (usual | columns).items()}
    return Flows(src, dst, size, **every, after=checked_after(after, len(src)), labels=labels)
