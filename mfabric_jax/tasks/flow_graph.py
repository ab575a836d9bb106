"""A job as flows alone, with collectives made of point-to-point flows: what the engine runs once paths are known."""

from dataclasses import dataclass, fields

import numpy as np

from mfabric_jax.checks import InputError
from mfabric_jax.flows.dependencies import checked_after


@dataclass(frozen=True, eq=False)
class FlowGraph:
    """F flows: transfers between ranks, computations and markers, and what each waits for.

    - `src`, `dst` [F]: ranks; a computation has `dst` = -1, a marker (nothing to do) has both -1.
    - `bytes` [F] of a transfer; `seconds` [F] of a computation.
    - `start` [F]: not before [s].   - `lag` [F] [s] behind that and the last end waited for: latency goes here.
    - `latency` [F] [s]: the part of `lag` that a message is on its way; of a marker, the message that it waits for.
    - `after` [D 2]: flow `after[d, 1]` waits for the end of flow `after[d, 0]`.
    - `task` [F]: the task of the `TaskGraph` that the flow is a part of. A task ends with its last flow.
    - `weight` [F]: in max-min sharing.
    """

    src: np.ndarray
    dst: np.ndarray
    bytes: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    lag: np.ndarray
    latency: np.ndarray
    after: np.ndarray
    task: np.ndarray
    weight: np.ndarray

    def __post_init__(self):
        count = len(self.src)
        for one in fields(self):
            if one.name != "after" and np.shape(getattr(self, one.name)) != (count,):
                raise InputError(f"{one.name} must have the shape [{count}], got {np.shape(getattr(self, one.name))}.")
        checked_after(self.after, count)

    @property
    def flows(self) -> int:
        """How many."""
        return len(self.src)

    @property
    def arrivals(self) -> np.ndarray:
        """[A 2] messages of which latency lies behind the end, and the markers that stand for it."""
        first, then = self.after.T
        return self.after[self.transfers[first] & ~self.transfers[then] & (self.latency[then] > 0)]

    @property
    def transfers(self) -> np.ndarray:
        """[F] mask: what crosses links."""
        return self.dst >= 0
