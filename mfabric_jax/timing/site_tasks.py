"""Tasks of the ends (servers, ranks or GPUs) of one expert-parallel group."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.flows.flows import Flows
from mfabric_jax.tasks.graph import Op, TaskColumns, TaskKind

Ready = np.ndarray  # [K N]: the K tasks that each of N ends waits for
PACKETS, CIRCUITS = 0, 1  # `task` of the flows of an all-to-all between ends of a group; circuits no other pair shares
BARRIERS = {
    "collective": "nobody goes on before an all-to-all of its group is over, which is a BARRIER of all",
    "marker": "the same, by a task that is nobody's",
    "none": "an end goes on once it has sent and received what is its own",
}


class Reduced(NamedTuple):
    """An all-reduce of `bytes` in the `group` [N] of every end."""

    group: np.ndarray
    bytes: float


class Site:
    """One expert-parallel group in one pipeline stage.

    - `reduced`: tensor-parallel all-reduces as collectives; None: as seconds.
    - `quiet` [N], `turned`: tasks of the last all-to-all and of the last turn of the switch; None: none so far.
    """

    def __init__(self, tasks: TaskColumns, ends: np.ndarray, group: int, *, barriers: str, receives: bool):
        self.tasks, self.ends, self.group, self.barriers, self.receives = tasks, ends, group, barriers, receives
        self.reduced: Reduced | None = None
        self.quiet: np.ndarray | None = None
        self.turned: np.ndarray | None = None

    @property
    def nothing(self) -> Ready:
        return np.zeros((0, len(self.ends)), np.int64)

    def compute(self, ready: Ready, seconds: float, name: str, lane: int = 0) -> Ready:
        """Seconds of computation on every end; 0 adds no task."""
        if seconds <= 0:
            return ready
        return self.tasks.add(TaskKind.COMPUTE, self.ends, name, ready, seconds=seconds, lane=lane)[None]

    def tensor_parallel(self, ready: Ready, seconds: float, name: str) -> Ready:
        if self.reduced is None or seconds <= 0:
            return self.compute(ready, seconds, name, lane=-1)
        return all_reduced(self.tasks, self.ends, [ready], self.reduced, name)[None]

    def after_all(self, waits: list[np.ndarray], seconds: float, name: str) -> np.ndarray:
        """The tasks of all ends [N] that last `seconds` after all of `waits`."""
        barriers = "marker" if self.barriers == "marker" else "collective"
        over = gathered(self.tasks, self.ends, waits, self.group, name, barriers)
        if barriers == "collective":
            return self.compute(over[None], seconds, name, lane=-1)[0]
        later = self.tasks.add(TaskKind.MARKER, -1, name, [over[:1]], lag=seconds)
        return np.broadcast_to(later, self.ends.shape)

    def turn(self, told: list, delay_s: float) -> None:
        """The switch turns once all of `told` are over."""
        told = [one for one in told if one is not None]
        self.turned = self.after_all(told, delay_s, "the switch turns") if told else None

    def all_to_all(
        self, ready: Ready, sent: Flows, inside_s: float, name: str, *, lag: float, packets_wait: bool
    ) -> Ready:
        """One all-to-all after `lag` [s], with `inside_s`, which has it, on the NVSwitches at the same time."""
        waits, out, into = [ready], [], []
        behind = [ready] if self.turned is None else [ready, self.turned]
        for private in (False, True):
            some = (sent.task == CIRCUITS) == private
            if some.any():
                waits = behind if private or packets_wait else [ready]
                one = sent.only(some)
                begun, ended = self.messages(waits, one, name, lag=lag)
                out.append((begun, one.src))
                into.append((ended, one.dst))
        here = [] if inside_s <= 0 else [self._inside(behind if packets_wait else [ready], inside_s, name)]
        self.quiet = self._joined(out, into, here or [ready], name)
        return self.quiet[None]

    def messages(
        self, waits: list, sent: Flows, name: str, traffic: int = 1, lag: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Messages between ends: the tasks that send and the tasks that receive them."""
        waits = [one[..., sent.src] for one in waits]
        return send(self.tasks, self.ends, waits, sent, name, traffic, receives=self.receives, lag=lag)

    def _inside(self, waits: list, seconds: float, name: str) -> np.ndarray:
        return self.tasks.add(TaskKind.COMPUTE, self.ends, f"{name} inside servers", waits, seconds=seconds)

    def _joined(self, out: list, into: list, here: list, name: str) -> np.ndarray:
        over = gathered(self.tasks, self.ends, here, self.group, f"{name} is over", self.barriers)
        for sends, src in out:
            self.tasks.wait(over[src], sends)
        for receipts, dst in into if self.receives or self.barriers == "none" else []:
            self.tasks.wait(over[dst], receipts)
        return over


def gathered(tasks: TaskColumns, ends: np.ndarray, waits: list, group: int, name: str, barriers: str) -> np.ndarray:
    """For each end [N], a task that waits for all ends (without barriers, for itself); more waits may be added."""
    if barriers == "marker":
        one = tasks.add(TaskKind.MARKER, -1, name)
        tasks.wait(one, *(np.reshape(each, (-1, 1)) for each in waits))
        return np.broadcast_to(one, ends.shape)
    if barriers == "collective":
        match = tasks.matched(1)
        return tasks.add(TaskKind.COLLECTIVE, ends, name, waits, op=Op.BARRIER, group=group, match=match)
    return tasks.add(TaskKind.MARKER, ends, name, waits)


def send(
    tasks: TaskColumns,
    ends: np.ndarray,
    waits: list,
    sent: Flows,
    name: str,
    traffic: int,
    *,
    receives: bool,
    lag: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Messages between `ends` after tasks [F] or [K F]: sending and receiving tasks, the same unless `receives`."""
    src, dst = ends[sent.src], ends[sent.dst]
    match = tasks.matched(len(src)) if receives else -1
    private = sent.task == CIRCUITS
    rest = {"bytes": sent.size, "cap": sent.cap, "private": private, "traffic": traffic, "lag": lag}
    sending = tasks.add(TaskKind.SEND, src, name, waits, peer=dst, match=match, **rest)
    if not receives:
        return sending, sending
    return sending, tasks.add(TaskKind.RECV, dst, name, peer=src, match=match, bytes=sent.size)


def all_reduced(
    tasks: TaskColumns, ends: np.ndarray, waits: list, one: Reduced, name: str, traffic: int = 0
) -> np.ndarray:
    """An all-reduce in each group of ends, as a collective [N]."""
    _, place = np.unique(one.group, return_inverse=True)
    match = tasks.matched(place.max() + 1)[place]
    rest = {"op": Op.ALL_REDUCE, "group": one.group, "match": match, "bytes": one.bytes, "traffic": traffic}
    return tasks.add(TaskKind.COLLECTIVE, ends, name, waits, **rest)
