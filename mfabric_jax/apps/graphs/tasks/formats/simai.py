"""Read text workloads of SimAI (AICB) and of ASTRA-sim 1.0: the layers of one rank, which are the same on every rank.

`HYBRID_TRANSFORMER[_FWD_IN_BCKWD]` sets the order. Forward, each row runs its computation and then its collective.
Backward, from the last row on, each row runs the gradient of its inputs and its collective, then the gradient of its
weights, whose collective only the end of the iteration waits for. A layer that starts a checkpoint first runs forward
again from the last checkpoint. `DATA` and `MICRO` have collectives of weights only; `MICRO` runs them one after
another, without computation (SimAI runs only the first row). The update time follows every collective. A rank runs
collectives of weights one at a time, in order.

The graph has the ranks of one pipeline stage. A tensor-parallel group has consecutive ranks. A data-parallel group has
the ranks at one position of all tensor-parallel groups. An expert-parallel group (_EP) has the ranks at one position of
`ep` consecutive tensor-parallel groups; these groups form a block. A _DP_EP group has the ranks at one position of all
blocks. The bytes of an all-gather are what every rank has at the end, and the bytes of an all-to-all are what a rank
sends, as in SimAI (its issue 74). Sources: Workload.cc, Layer.cc, MockNcclGroup.cc of github.com/aliyun/SimAI.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.apps.graphs.tasks.formats.files import Reading, Spot, Supplied
from mfabric_jax.apps.graphs.tasks.graph import Op, TaskKind, Tasks
from mfabric_jax.checks import COUNTS

TRANSFORMERS = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
OTHERS = ("MODEL", "HYBRID_DLRM", "HYBRID_DLRM_ENHANCED", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", "HYBRID_CUSTOMIZED")
DEGREES = {"model_parallel_NPU_group": "tp", "ep": "ep", "pp": "pp", "vpp": "vpp", "ga": "ga", "all_gpus": "all_gpus"}
LISTS = ("checkpoints", "checkpoint_initiates")
WORDS = {
    "ALLREDUCE": Op.ALL_REDUCE,
    "ALLGATHER": Op.ALL_GATHER,
    "REDUCESCATTER": Op.REDUCE_SCATTER,
    "ALLTOALL": Op.ALL_TO_ALL,
    "BROADCAST": Op.BROADCAST,
}
GROUPS = {"": None, "_EP": "ep", "_DP_EP": "dp_ep"}  # by the suffix of a word; without a suffix the phase decides
COMPUTE, WEIGHTS = 0, 1  # lanes
AT_ONCE = 1 << 20  # tasks; a stage with more is cut to one block of tp x ep ranks, unless ranks is given


class _Phase(NamedTuple):
    name: str
    seconds: float
    op: Op | None
    kind: str
    size: int
    update: float


class _Row(NamedTuple):
    forward: _Phase
    inputs: _Phase
    weights: _Phase


class _Head(NamedTuple):
    policy: str
    degree: dict[str, int]
    checkpoints: frozenset[int]
    initiates: frozenset[int]
    pipeline_bytes: int


class _Step(NamedTuple):
    phase: _Phase
    waited: bool


def tells(head: bytes) -> bool:
    first = head.split(maxsplit=1)
    return bool(first) and first[0].decode("utf-8", "replace") in (*TRANSFORMERS, *OTHERS, "DATA", "MICRO")


def read(path: Path, supplied: Supplied) -> Reading:
    """Return the tasks of `supplied.ranks` ranks of a stage.

    The default is all ranks, or one block of tp x ep ranks if all need too many tasks.
    """
    lines = [(files.line(path, number), text.split()) for number, text in enumerate(files.lines_of(path), start=1)]
    lines = [(spot, words) for spot, words in lines if words]
    if len(lines) < 2:
        Spot(repr(str(path))).refuse("must have a policy, a number of rows, and the rows themselves")
    head = _head(*lines[0])
    spot, words = lines[1]
    if spot.whole("the number of rows", " ".join(words)) != len(lines) - 2:
        spot.refuse(f"declares {words[0]} rows, got {len(lines) - 2}")
    rows = [_row(spot, words) for spot, words in lines[2:]]
    for index in head.checkpoints | head.initiates:
        lines[0][0].whole("a checkpoint", index, 0, max(len(rows) - 1, 0))
    steps = _POLICIES[head.policy](rows, head)
    ranks, remarks = _ranks(lines[0][0], head, supplied, len(steps))
    files.few_enough(path, 2 * ranks * len(steps))
    return Reading(_unroll_steps(steps, head, ranks).graph(), "SimAI workload", remarks)


def _head(spot: Spot, words: list[str]) -> _Head:
    policy, remaining = words[0], [word.rstrip(":") for word in words[1:]]
    if policy not in _POLICIES:
        spot.refuse(f"must have a policy of {', '.join(_POLICIES)}, got {policy[:40]!r}")
    degree, lists, pipeline = dict.fromkeys(DEGREES.values(), 0), dict.fromkeys(LISTS, frozenset()), 0
    while remaining:
        key, *remaining = remaining
        if key in LISTS:
            count = spot.whole(key, remaining[0] if remaining else "")
            indices, remaining = remaining[1 : 1 + count], remaining[1 + count :]
            if len(indices) < count:
                spot.refuse(f"declares {count} numbers of {key}, got {len(indices)}")
            lists[key] = frozenset(spot.whole(key, index) for index in indices)
        elif key in DEGREES or key == "pp_comm":
            value, remaining = spot.whole(key, remaining[0] if remaining else "", int(key != "pp_comm")), remaining[1:]
            if key in DEGREES:
                degree[DEGREES[key]] = spot.whole(key, value, 1, COUNTS["gpus"])
            else:
                pipeline = value
        else:
            spot.refuse(f"must have {', '.join([*DEGREES, *LISTS, 'pp_comm'])} and numbers, got {key[:40]!r}")
    return _Head(policy, degree, lists["checkpoints"], lists["checkpoint_initiates"], pipeline)


def _row(spot: Spot, words: list[str]) -> _Row:
    """Read name, dependency (not used), nanoseconds, collective and bytes of each phase, and the update time."""
    if len(words) != 12:
        spot.refuse(f"must have 12 fields, got {len(words)}")
    spot.whole("the dependency", words[1], -1)
    update = units.ns(spot.number("the update", words[11]))
    phases = []
    for order, (what, usual) in enumerate((("forward", "tp"), ("input gradient", "tp"), ("weight gradient", "dp"))):
        seconds, word, size = words[2 + 3 * order : 5 + 3 * order]
        op, kind = _collective(spot, word, usual)
        time, size = units.ns(spot.number(what, seconds)), spot.whole("bytes", size)
        phases.append(_Phase(f"{words[0]} {what}", time, op, kind, size, update))
    return _Row(*phases)


def _collective(spot: Spot, word: str, usual: str) -> tuple[Op | None, str]:
    if word == "NONE":
        return None, usual
    for ending in sorted(GROUPS, key=len, reverse=True):
        name = word.removesuffix(ending) if ending else word
        if word.endswith(ending) and name in WORDS:
            return WORDS[name], GROUPS[ending] or usual
    spot.refuse(f"must have NONE or {', '.join(WORDS)}, optionally with _EP or _DP_EP at its end, got {word[:40]!r}")


def _transformer(rows: list[_Row], head: _Head) -> list[_Step]:
    """Forward; then, for each row from the last on, recomputation of a checkpoint, inputs, weights."""
    steps = [_Step(row.forward, True) for row in rows]
    for index in range(len(rows) - 1, -1, -1):
        if index in head.initiates:
            first = max((point for point in head.checkpoints if point < index), default=0)
            steps += [_Step(row.forward, True) for row in rows[first:index]]
        steps += [_Step(rows[index].inputs, True), _Step(rows[index].weights, False)]
    return steps


def _data(rows: list[_Row], head: _Head) -> list[_Step]:
    """Computations forward; then, from the last row on, weights and inputs, but no inputs of the first row."""
    steps = [_Step(row.forward._replace(op=None), True) for row in rows]
    for index in range(len(rows) - 1, -1, -1):
        steps.append(_Step(rows[index].weights, False))
        steps += [_Step(rows[index].inputs._replace(op=None), True)] * (index > 0)
    return steps


def _micro(rows: list[_Row], head: _Head) -> list[_Step]:
    return [_Step(row.weights._replace(seconds=0.0), True) for row in rows]


_POLICIES: dict[str, Callable[[list[_Row], _Head], list[_Step]]] = {
    **dict.fromkeys(TRANSFORMERS, _transformer),
    "DATA": _data,
    "MICRO": _micro,
}


def _ranks(spot: Spot, head: _Head, supplied: Supplied, steps: int) -> tuple[int, tuple[str, ...]]:
    tp, ep, pp = (max(head.degree[name], 1) for name in ("tp", "ep", "pp"))
    block, stage = tp * ep, head.degree["all_gpus"] // pp
    if head.degree["all_gpus"] and (head.degree["all_gpus"] % pp or stage % block):
        spot.refuse(f"must have a multiple of pp x tp x ep for all_gpus, got {head.degree['all_gpus']}")
    ranks = supplied.ranks or (block if 2 * steps * stage > AT_ONCE else stage) or block
    if ranks % block or (stage and ranks > stage):
        limit = f", at most the {files.count_phrase(stage, 'rank')} of a stage" if stage else ""
        spot.refuse(f"needs ranks to be a multiple of tp x ep ({block}){limit}, got {ranks}")
    remarks = []
    if not stage:
        remarks.append(f"all_gpus is missing: {ranks} {'ranks are' if ranks > 1 else 'rank is'} assumed (ranks).")
    elif ranks < stage:
        remarks.append(
            f"{ranks} of the {stage} ranks of a stage: data-parallel groups are cut from {stage // tp} to "
            f"{ranks // tp} ranks (ranks)."
        )
    if pp > 1:
        remarks.append(
            f"only one of {pp} pipeline stages, without the {head.pipeline_bytes:,} bytes between stages (pp_comm)."
        )
    return ranks, tuple(remarks)


def _members(ranks: int, tp: int, ep: int) -> dict[str, Callable[[int], tuple[int, ...]]]:
    def of_tp(rank: int) -> tuple[int, ...]:
        first = rank - rank % tp
        return tuple(range(first, first + tp))

    def of_ep(rank: int) -> tuple[int, ...]:
        first = rank - rank % (tp * ep) + rank % tp
        return tuple(range(first, first + tp * ep, tp))

    def of_dp(rank: int) -> tuple[int, ...]:
        return tuple(range(rank % tp, ranks, tp))

    def of_dp_ep(rank: int) -> tuple[int, ...]:
        return tuple(range(rank % (tp * ep), ranks, tp * ep))

    return {"tp": of_tp, "ep": of_ep, "dp": of_dp, "dp_ep": of_dp_ep}


def _unroll_steps(steps: list[_Step], head: _Head, ranks: int) -> Tasks:
    members = _members(ranks, max(head.degree["tp"], 1), max(head.degree["ep"], 1))
    tasks, groups, labels = Tasks(ranks), {}, {}
    for rank in range(ranks):
        numbers = {kind: groups.setdefault(of(rank), len(groups)) for kind, of in members.items()}
        before: list[int] = []
        loose: list[int] = []
        lag, updated = 0.0, ""
        for order, (phase, waited) in enumerate(steps):
            if phase.seconds:
                values = {"seconds": phase.seconds, "lag": lag}
                before, lag = [tasks.add(TaskKind.COMPUTE, rank, phase.name, before, COMPUTE, **values)], 0.0
            if phase.op is None:
                continue
            group = numbers[phase.kind]
            values = {"op": phase.op, "bytes": phase.size, "group": group, "lag": lag}
            values |= {"peer": min(members[phase.kind](rank))} if phase.op == Op.BROADCAST else {}
            values["match"] = labels.setdefault((order, group), len(labels))
            collective = tasks.add(TaskKind.COLLECTIVE, rank, phase.name, before, -1 if waited else WEIGHTS, **values)
            if waited:
                before, lag, updated = [collective], phase.update, f"{phase.name} update"
            else:
                loose.append(tasks.add(TaskKind.MARKER, rank, f"{phase.name} update", collective, lag=phase.update))
        if lag:
            before = [tasks.add(TaskKind.MARKER, rank, updated, before, lag=lag)]
        tasks.add(TaskKind.MARKER, rank, "end", [*before, *loose])
    tasks.groups = tuple(groups)
    return tasks
