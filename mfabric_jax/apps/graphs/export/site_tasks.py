"""Tasks of the ends (servers, ranks or GPUs) of one expert-parallel group."""

from typing import NamedTuple

import numpy as np

from mfabric_jax.apps.graphs.tasks.graph import Op, TaskColumns, TaskKind
from mfabric_jax.flows.flows import Flows

Ready = np.ndarray  # [K N]: the K tasks that each of N ends waits for
TRAFFIC = ("none", "EP", "PP", "DP")  # by the column "traffic" of the tasks
NO_TRAFFIC, EP, PP, DP = range(len(TRAFFIC))
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


class EndTasks(TaskColumns):
    """Tasks of ends, with columns "traffic" (of `TRAFFIC`), "cap" [bytes/s] and "private" (on circuits).

    `barriers`: one of `BARRIERS`; `receives`: receiving a message is a separate task.
    """

    def __init__(self, ends: int, groups: tuple[tuple[int, ...], ...], barriers: str, *, receives: bool):
        super().__init__(ends, groups, traffic=NO_TRAFFIC, cap=np.inf, private=False)
        self.barriers, self.receives = barriers, receives

    def gather(self, ends: np.ndarray, waits: list, group: int, name: str, *, all_wait: bool = False) -> np.ndarray:
        """For each end [N], a task that waits for all ends (without barriers, for itself, unless `all_wait`); more
        waits may be added."""
        if self.barriers == "marker":
            one = self.add(TaskKind.MARKER, -1, name)
            self.wait(one, *(np.reshape(each, (-1, 1)) for each in waits))
            return np.broadcast_to(one, ends.shape)
        if self.barriers == "collective" or all_wait:
            match = self.matched(1)
            return self.add(TaskKind.COLLECTIVE, ends, name, waits, op=Op.BARRIER, group=group, match=match)
        return self.add(TaskKind.MARKER, ends, name, waits)

    def send(
        self, ends: np.ndarray, waits: list, sent: Flows, name: str, traffic: int, lag: float = 0.0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Messages between `ends` after tasks [F] or [K F]: sending and receiving tasks, the same unless `receives`."""
        src, dst = ends[sent.src], ends[sent.dst]
        match = self.matched(len(src)) if self.receives else -1
        rest = {"cap": sent.cap, "private": sent.task == CIRCUITS, "traffic": traffic, "lag": lag}
        sending = self.add(TaskKind.SEND, src, name, waits, peer=dst, match=match, bytes=sent.size, **rest)
        if not self.receives:
            return sending, sending
        return sending, self.add(TaskKind.RECV, dst, name, peer=src, match=match, bytes=sent.size)

    def all_reduce(self, ends: np.ndarray, waits: list, one: Reduced, name: str, traffic: int) -> np.ndarray:
        """An all-reduce in each group of ends, as a collective [N]."""
        _, place = np.unique(one.group, return_inverse=True)
        match = self.matched(place.max() + 1)[place]
        rest = {"op": Op.ALL_REDUCE, "group": one.group, "match": match, "bytes": one.bytes, "traffic": traffic}
        return self.add(TaskKind.COLLECTIVE, ends, name, waits, **rest)


class Site:
    """One expert-parallel group in one pipeline stage.

    - `reduced`: tensor-parallel all-reduces as collectives; None: as seconds.
    - `quiet` [N], `turned`: tasks of the last all-to-all and of the last turn of the switch; None: none so far.
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
        """Seconds of computation on every end; 0 adds no task."""
        if seconds <= 0:
            return ready
        return self.tasks.add(TaskKind.COMPUTE, self.ends, name, ready, seconds=seconds, lane=lane)[None]

    def tensor_parallel(self, ready: Ready, seconds: float, name: str) -> Ready:
        if self.reduced is None or seconds <= 0:
            return self.compute(ready, seconds, name, lane=-1)
        return self.tasks.all_reduce(self.ends, [ready], self.reduced, name, NO_TRAFFIC)[None]

    def after_all(self, waits: list[np.ndarray], seconds: float, name: str) -> np.ndarray:
        """The tasks of all ends [N] that last `seconds` after all of `waits`."""
        over = self.tasks.gather(self.ends, waits, self.group, name, all_wait=True)
        if self.tasks.barriers != "marker":
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
        tasks, parts, here = self.tasks, [], [ready]
        behind = [ready] if self.turned is None else [ready, self.turned]
        for private in (False, True):
            one = sent.only((sent.task == CIRCUITS) == private)
            if len(one.src):
                waits = [each[..., one.src] for each in (behind if private or packets_wait else [ready])]
                begun, ended = tasks.send(self.ends, waits, one, name, EP, lag)
                parts += [(begun, one.src)]
                parts += [(ended, one.dst)] if tasks.receives or tasks.barriers == "none" else []
        if inside_s > 0:
            waits = behind if packets_wait else [ready]
            name_inside = f"{name} inside servers"
            here = [tasks.add(TaskKind.COMPUTE, self.ends, name_inside, waits, seconds=inside_s)]
        self.quiet = tasks.gather(self.ends, here, self.group, f"{name} is over")
        for part, end in parts:
            tasks.wait(self.quiet[end], part)
        return self.quiet[None]
