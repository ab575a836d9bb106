"""Build the tasks of the ends (servers, ranks or GPUs) of one expert-parallel group."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.tasks.graph import Op, TaskColumns, TaskKind
from mfabric_jax.flows.flows import Flows

Ready = np.ndarray  # [K N]: the K tasks that each of N ends waits for
TRAFFIC = ("none", "EP", "PP", "DP")  # values of the column "traffic" of tasks
NO_TRAFFIC, EP, PP, DP = range(len(TRAFFIC))
PACKETS, CIRCUITS = 0, 1  # `task` of an all-to-all's flows; no other pair shares a flow's circuits
BARRIERS = {
    "collective": "all ends of a group wait until an all-to-all has ended for all of them, by a BARRIER of the group",
    "marker": "the same, by a task without a rank",
    "none": "an end continues once its own messages are sent and received",
}


class Reduced(NamedTuple):
    """An all-reduce of `bytes` in the group of each end, `group` [N]."""

    group: np.ndarray
    bytes: float


class EndTasks(TaskColumns):
    """Tasks of ends, with the further columns "traffic" (of `TRAFFIC`), "cap" [bytes/s] and "private" (on circuits).

    `barriers`: one of `BARRIERS`. `receives`: receiving a message is a separate task.
    """

    def __init__(self, ends: int, groups: tuple[tuple[int, ...], ...], barriers: str, *, receives: bool):
        super().__init__(ends, groups, traffic=NO_TRAFFIC, cap=np.inf, private=False)
        self.barriers, self.receives = barriers, receives

    def gather(self, ends: np.ndarray, waits: list, group: int, name: str, *, all_wait: bool = False) -> np.ndarray:
        """Add and return, for each end [N], a task that waits for all ends; callers may add waits.

        Without barriers an end waits only for its own tasks, unless `all_wait`.
        """
        if self.barriers == "marker":
            marker = self.add(TaskKind.MARKER, -1, name)
            self.wait(marker, *(np.reshape(each, (-1, 1)) for each in waits))
            return np.broadcast_to(marker, ends.shape)
        if self.barriers == "collective" or all_wait:
            match = self.add_matches(1)
            return self.add(TaskKind.COLLECTIVE, ends, name, waits, op=Op.BARRIER, group=group, match=match)
        return self.add(TaskKind.MARKER, ends, name, waits)

    def send(
        self, ends: np.ndarray, waits: list, sent: Flows, name: str, traffic: int, lag: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add messages between `ends` that wait for tasks [F] or [K F]; return the sending and the receiving tasks.

        Both are the same unless `receives`.
        """
        src, dst = ends[sent.src], ends[sent.dst]
        match = self.add_matches(len(src)) if self.receives else -1
        values = {"cap": sent.cap, "private": sent.task == CIRCUITS, "traffic": traffic, "lag": lag}
        sending = self.add(TaskKind.SEND, src, name, waits, peer=dst, match=match, bytes=sent.size, **values)
        if not self.receives:
            return sending, sending
        return sending, self.add(TaskKind.RECV, dst, name, peer=src, match=match, bytes=sent.size)

    def all_reduce(self, ends: np.ndarray, waits: list, reduction: Reduced, name: str, traffic: int) -> np.ndarray:
        """Add an all-reduce in each group of ends, and return its tasks [N]."""
        _, index = np.unique(reduction.group, return_inverse=True)
        match = self.add_matches(index.max() + 1)[index]
        values = {
            "op": Op.ALL_REDUCE,
            "group": reduction.group,
            "match": match,
            "bytes": reduction.bytes,
            "traffic": traffic,
        }
        return self.add(TaskKind.COLLECTIVE, ends, name, waits, **values)


class StageGroup:
    """One expert-parallel group in one pipeline stage.

    - `reduced`: the collective of tensor-parallel all-reduces; None: they take fixed seconds.
    - `quiet`, `turned` [N]: tasks that end with the last all-to-all and the last reconfiguration; None: none yet.
    """

    def __init__(self, tasks: EndTasks, ends: np.ndarray, group: int, reduced: Reduced | None):
        self.tasks = tasks
        self.ends = ends
        self.group = group
        self.reduced = reduced
        self.quiet: np.ndarray | None = None
        self.turned: np.ndarray | None = None

    @property
    def nothing(self) -> Ready:
        return np.zeros((0, len(self.ends)), np.int64)

    def compute(self, ready: Ready, seconds: float, name: str, lane: int = 0) -> Ready:
        """Add seconds of computation on every end; 0 adds no task."""
        if seconds <= 0:
            return ready
        return self.tasks.add(TaskKind.COMPUTE, self.ends, name, ready, seconds=seconds, lane=lane)[None]

    def tensor_parallel(self, ready: Ready, seconds: float, name: str) -> Ready:
        if self.reduced is None or seconds <= 0:
            return self.compute(ready, seconds, name, lane=-1)
        return self.tasks.all_reduce(self.ends, [ready], self.reduced, name, NO_TRAFFIC)[None]

    def after_all(self, waits: list[np.ndarray], seconds: float, name: str) -> np.ndarray:
        """Add tasks of all ends [N] that end `seconds` after all of `waits`."""
        over = self.tasks.gather(self.ends, waits, self.group, name, all_wait=True)
        if self.tasks.barriers != "marker":
            return self.compute(over[None], seconds, name, lane=-1)[0]
        later = self.tasks.add(TaskKind.MARKER, -1, name, [over[:1]], lag=seconds)
        return np.broadcast_to(later, self.ends.shape)

    def reconfigure(self, waits: list, delay_s: float) -> None:
        """Reconfigure the switch once all given tasks have ended."""
        waits = [wait for wait in waits if wait is not None]
        self.turned = self.after_all(waits, delay_s, "the switch reconfigures") if waits else None

    def all_to_all(
        self, ready: Ready, sent: Flows, inside_s: float, name: str, *, lag: float, packets_wait: bool
    ) -> Ready:
        """Add one all-to-all after `lag` [s]; `inside_s` is its time on the NVSwitches, which runs in parallel."""
        tasks, parts, here = self.tasks, [], [ready]
        behind = [ready] if self.turned is None else [ready, self.turned]
        for private in (False, True):
            flows = sent.only((sent.task == CIRCUITS) == private)
            if len(flows.src):
                waits = [each[..., flows.src] for each in (behind if private or packets_wait else [ready])]
                begun, ended = tasks.send(self.ends, waits, flows, name, EP, lag)
                parts += [(begun, flows.src)]
                parts += [(ended, flows.dst)] if tasks.receives or tasks.barriers == "none" else []
        if inside_s > 0:
            waits = behind if packets_wait else [ready]
            name_inside = f"{name} inside servers"
            here = [tasks.add(TaskKind.COMPUTE, self.ends, name_inside, waits, seconds=inside_s)]
        self.quiet = tasks.gather(self.ends, here, self.group, f"{name} has ended")
        for part, end in parts:
            tasks.wait(self.quiet[end], part)
        return self.quiet[None]
