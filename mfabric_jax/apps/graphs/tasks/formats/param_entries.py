"""One entry of a PARAM comms trace: a collective, a message, a wait, or a computation of a rank.

An entry is an object of a JSON list. Sizes are numbers of elements of `dtype`, and `startTime_ns` counts from a start
that every rank chooses by itself. Sources: train/comms/pt/commsTraceParser.py (the "basic" trace), commsTraceReplay.py
(what its replay writes: the same fields and latencies) and comms_utils.py (names, dtypes) of
github.com/facebookresearch/param; et_replay/comm there has the same fields.
"""

import re
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any, NamedTuple

from mfabric_jax import units
from mfabric_jax.apps.graphs.tasks.formats.files import ANY, Spot
from mfabric_jax.apps.graphs.tasks.graph import Op
from mfabric_jax.checks import COUNTS


class Action(Enum):
    """What a rank does."""

    COLLECTIVE = "collective"
    SEND = "send"
    RECV = "recv"
    BATCH = "batch"  # starts the sends and receives with use_batch before it
    WAIT = "wait"
    INIT = "init"  # names the ranks of a process group
    COMPUTE = "compute"


# By the letters of a name, as PARAM compares them: its own names, and those that PyTorch records.
OPS = {
    **dict.fromkeys(("allreduce", "allreducecoalesced"), Op.ALL_REDUCE),
    **dict.fromkeys(("reduce", "reduceoop"), Op.REDUCE),
    **dict.fromkeys(("broadcast", "broadcastoop", "broadcastobjectlist"), Op.BROADCAST),
    **dict.fromkeys(("allgather", "allgatherbase", "allgatherv", "allgatherobject"), Op.ALL_GATHER),
    **dict.fromkeys(("allgatherintotensorcoalesced",), Op.ALL_GATHER),
    **dict.fromkeys(("reducescatter", "reducescatterbase", "reducescatterv"), Op.REDUCE_SCATTER),
    **dict.fromkeys(("reducescattertensorcoalesced",), Op.REDUCE_SCATTER),
    **dict.fromkeys(("alltoall", "alltoallv", "alltoallbase", "alltoallsingle"), Op.ALL_TO_ALL),
    **{"gather": Op.GATHER, "scatter": Op.SCATTER, "barrier": Op.BARRIER},
}
ACTIONS = {
    **dict.fromkeys(OPS, Action.COLLECTIVE),
    **dict.fromkeys(("send", "isend"), Action.SEND),
    **dict.fromkeys(("recv", "irecv", "recvanysource"), Action.RECV),
    **{"batchisendirecv": Action.BATCH, "wait": Action.WAIT, "init": Action.INIT},
}
SIZELESS = ("barrier", "batchisendirecv", "wait", "init")
OF_LISTS = ("allgather", "allgatherobject")  # PARAM makes their output of a copy of the input from each rank
UNEVEN = ("allgatherv", "reducescatterv")  # parts of ranks may differ
ELEMENT_BYTES = {
    **dict.fromkeys(("bool", "byte", "uint8", "int8", "char", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("half", "float16", "bfloat16", "short", "int16", "uint16"), 2),
    **dict.fromkeys(("float", "float32", "int", "int32", "uint32", "complexhalf"), 4),
    **dict.fromkeys(("double", "float64", "long", "long int", "int64", "uint64", "complexfloat"), 8),
    "complexdouble": 16,
}
EMBEDDING_BYTES = 4  # of an element of an embedding table: FBGEMM's tables are FP32 by default
GEMM_DIMS = ("mm0_dim0", "mm0_dim1", "mm1_dim0", "mm1_dim1")
LOOKUP = ("batch_size", "num_emb_tables", "bag_size", "emb_dim")
DIRECTIONS = {"forward": 1, "backward": 2}  # how often a lookup moves its rows: read; read and written
READ = ("comms", "compute", "req", "startTime_ns", "in_msg_size", "out_msg_size", "dtype", "in_split", "out_split")
READ += ("world_size", "pg_id", "global_ranks", "root", "src_rank", "dst_rank", "use_batch", "latency_us")
READ += ("count", "mm_dim", "direction", *GEMM_DIMS, *LOOKUP)
HARMLESS = re.compile(  # fields that change neither bytes nor order; times of which latency_us is a part
    r"id|markers|marker_stack|pg_desc|num_embs|dtype_size|global_latency_us|quant_us|dequant_us"
    r"|embDim|numEmbs|numEmbTables|numEmbTablesBatched|bagSize"
)
LARGEST = 1 << 63  # of a time
MOST_ELEMENTS = 1 << 50

Req = tuple[Any, ...] | None


class Entry(NamedTuple):
    """An entry.

    - `word`: the letters of its name. `req`: what a wait names; None if nothing does.
    - `start_ns`, `latency_s`: when it was posted, and what it took; None if the trace does not say.
    - `world_size`: ranks of its group; `pg_id`: name of the group; `members`: its global ranks. None: not stated.
    - `sent`, `received`: bytes of the input and the output; `sent_to`, `received_from`: bytes by member of the group,
      empty if all are equal.
    - `peer`: the root of a collective, the other end of a message; None: not stated, `ANY`: any source.
    - `own`: the rank that sends or receives a message. `batched`: whether a BATCH starts it.
    - `asynchronous`: whether the call returned before its end, where the trace says so.
    - `operations`, `moved`: operations and bytes of memory of a computation; None: not stated.
    """

    spot: Spot
    action: Action
    name: str
    word: str = ""
    req: Req = None
    start_ns: int | float | None = None
    latency_s: float | None = None
    world_size: int | None = None
    pg_id: str | None = None
    members: tuple[int, ...] | None = None
    sent: int = 0
    received: int = 0
    sent_to: tuple[int, ...] = ()
    received_from: tuple[int, ...] = ()
    peer: int | None = None
    own: int = -1
    batched: bool = False
    asynchronous: bool = False
    operations: float | None = None
    moved: float = 0.0

    @property
    def op(self) -> Op:
        return OPS[self.word]

    def bytes(self, members: int) -> int:
        """Return `TaskGraph.bytes` of this collective in a group of `members`."""
        if self.word in OF_LISTS:
            return self.sent * members
        if self.op in (Op.ALL_GATHER, Op.BROADCAST):
            return self.received or self.sent * (members if self.op == Op.ALL_GATHER else 1)
        if self.op == Op.SCATTER:
            return self.received * members
        return self.sent * (members if self.op == Op.GATHER else 1)

    def is_even(self) -> bool:
        """Return whether this rank sends equal bytes to all members."""
        return len(set(self.sent_to)) < 2

    def fits(self, members: int) -> bool:
        """Return whether the sizes of input and output are those of a group of `members`."""
        if self.op == Op.ALL_REDUCE:
            return self.received == self.sent
        if self.word in UNEVEN or self.op not in (Op.ALL_GATHER, Op.REDUCE_SCATTER):
            return True
        small, large = (self.sent, self.received) if self.op == Op.ALL_GATHER else (self.received, self.sent)
        return large == small * members


class RecordedTrace(NamedTuple):
    """What a file of a trace holds.

    - `by_rank`: the entries of each rank; None: a rank that the file does not state.
    - `ranks`: ranks of the job, as far as the file says. `remarks`: what it lacks, and what is not read.
    """

    by_rank: dict[int | None, list[Entry]]
    ranks: int = 0
    remarks: tuple[str, ...] = ()


class TraceKind(NamedTuple):
    """A kind of trace of what ranks posted.

    - `tells`: whether the first bytes of a file are those of one.
    - `read`: the trace in a file, by its path and the rank that its name states.
    - `no_times`: the remark on a trace without times.
    """

    format: str
    tells: Callable[[bytes], bool]
    read: Callable[[Path, int | None], RecordedTrace]
    no_times: str = "no entry has startTime_ns: ranks compute nothing between entries."


def entry_of(fields: Any, spot: Spot) -> Entry:
    """Return an entry of its JSON object. Raise `InputError` that names the field, its value and what is allowed."""
    if not isinstance(fields, dict) or ("comms" in fields) == ("compute" in fields):
        spot.refuse(f"must be an object with either comms or compute, got {str(fields)[:60]}")
    shared = {
        "req": _req(spot, fields.get("req")),
        "start_ns": _number(spot, fields, "startTime_ns"),
        "latency_s": None if (latency := _number(spot, fields, "latency_us")) is None else units.us(float(latency)),
    }
    name = _text(spot, fields, "comms" if "comms" in fields else "compute")
    if "compute" in fields:
        return _computation(spot, name, fields)._replace(**shared)
    word = "".join(letter for letter in name.lower() if letter.isalpha())
    if word not in ACTIONS:
        spot.refuse(f"must have comms of {', '.join(sorted(ACTIONS))} (letters count), got {name[:40]!r}")
    entry = Entry(spot, ACTIONS[word], name, word, **shared, **_group(spot, fields))
    entry = entry if word in SIZELESS else _with_sizes(entry, fields)
    if entry.action in (Action.SEND, Action.RECV):
        return _message(entry, fields)
    root = _whole(spot, fields, "root", 0, COUNTS["gpus"] - 1)
    return entry._replace(peer=root)


def _group(spot: Spot, fields: dict) -> dict[str, Any]:
    ranks, pg_id = fields.get("global_ranks"), fields.get("pg_id")
    if pg_id is not None and (isinstance(pg_id, bool) or not isinstance(pg_id, int | str)):
        spot.refuse(f"must have a number or a name for pg_id, got {str(pg_id)[:40]!r}")
    members = None
    if ranks is not None:
        members = _wholes(spot, fields, "global_ranks")
        if len(set(members)) < len(members) or max(members, default=0) >= COUNTS["gpus"]:
            spot.refuse(f"must have ranks below {COUNTS['gpus']}, each once, for global_ranks, got {str(ranks)[:40]}")
    world_size = _whole(spot, fields, "world_size", 1, COUNTS["gpus"])
    if members and world_size not in (None, len(members)):
        spot.refuse(f"must have a world_size of {len(members)}, the number of its global_ranks, got {world_size}")
    return {
        "world_size": world_size,
        "pg_id": None if pg_id is None else str(pg_id),
        "members": members,
    }


def _with_sizes(entry: Entry, fields: dict) -> Entry:
    spot = entry.spot
    dtype = _text(spot, fields, "dtype").lower()
    if dtype not in ELEMENT_BYTES:
        spot.refuse(f"must have a dtype of {', '.join(ELEMENT_BYTES)}, got {dtype[:40]!r}")
    sent, received = (_whole(spot, fields, name) for name in ("in_msg_size", "out_msg_size"))
    if sent is None or received is None:
        spot.refuse("must have in_msg_size and out_msg_size, its numbers of elements")
    each = ELEMENT_BYTES[dtype]
    splits: dict[str, tuple[int, ...]] = {"sent_to": (), "received_from": ()}
    if entry.action == Action.COLLECTIVE and entry.op == Op.ALL_TO_ALL:
        splits["sent_to"] = _split(spot, fields, "in_split", sent, each)
        splits["received_from"] = _split(spot, fields, "out_split", received, each)
    return entry._replace(sent=sent * each, received=received * each, **splits)


def _split(spot: Spot, fields: dict, name: str, elements: int, each: int) -> tuple[int, ...]:
    """Return the bytes by member. PyTorch splits rows, which may have several elements; all have equally many."""
    rows = _wholes(spot, fields, name) if fields.get(name) is not None else ()
    total = sum(rows)
    if rows and (elements % total if total else elements):
        size = "in_msg_size" if name == "in_split" else "out_msg_size"
        spot.refuse(f"must have a {name} that adds up to its {size}, {elements}, or to a divisor of it, got {total}")
    row = elements // total * each if total else 0
    return tuple(count * row for count in rows)


def _message(entry: Entry, fields: dict) -> Entry:
    spot, batched = entry.spot, fields.get("use_batch", False)
    if batched not in (None, True, False):
        spot.refuse(f"must have true or false for use_batch, got {str(batched)[:40]!r}")
    source = _whole(spot, fields, "src_rank", ANY if entry.action == Action.RECV else 0)
    target = _whole(spot, fields, "dst_rank")
    if source is None and entry.word == "recvanysource":
        source = ANY
    if source is None or target is None:
        spot.refuse("must have src_rank and dst_rank, the ends of its message")
    own, peer = (source, target) if entry.action == Action.SEND else (target, source)
    return entry._replace(own=own, peer=peer, batched=bool(batched))


def _computation(spot: Spot, name: str, fields: dict) -> Entry:
    """Return a gemm or an embedding lookup with its operations and bytes of memory, if all its sizes are stated."""
    entry = Entry(spot, Action.COMPUTE, name)
    count = _whole(spot, fields, "count")
    count = 1 if count is None else count
    if name.lower() == "gemm":
        same = _whole(spot, fields, "mm_dim")
        sizes = [_whole(spot, fields, field) if same is None else same for field in GEMM_DIMS]
        dtype = str(fields.get("dtype", "")).lower()
        if None in sizes:
            return entry
        if dtype not in ELEMENT_BYTES:
            spot.refuse(f"must have a dtype of {', '.join(ELEMENT_BYTES)}, got {dtype[:40]!r}")
        m, k, inner, n = (size or 0 for size in sizes)
        if k != inner:
            spot.refuse(f"must multiply matrices of equal inner sizes mm0_dim1 and mm1_dim0, got {k} and {inner}")
        moved = ELEMENT_BYTES[dtype] * (m * k + k * n + m * n)
        return entry._replace(operations=2.0 * count * m * k * n, moved=float(count * moved))
    if name.lower() != "emb_lookup":
        spot.refuse(f"must have gemm or emb_lookup for compute, got {name[:40]!r}")
    direction = fields.get("direction", "forward")
    if not isinstance(direction, str) or direction not in DIRECTIONS:
        spot.refuse(f"must have forward or backward for direction, got {str(direction)[:40]!r}")
    sizes = [_whole(spot, fields, field) for field in LOOKUP]
    if None in sizes:
        return entry
    batch, tables, bag, width = (float(size or 0) for size in sizes)
    moved = count * DIRECTIONS[direction] * EMBEDDING_BYTES * batch * tables * bag * width
    return entry._replace(operations=0.0, moved=moved)


# -- values of fields


def _text(spot: Spot, fields: dict, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        spot.refuse(f"must have text for {name}, got {str(value)[:40]!r}")
    return value


def _whole(spot: Spot, fields: dict, name: str, least: int = 0, most: int = MOST_ELEMENTS) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    return spot.whole(name, value if type(value) is int else repr(value), least, most)


def _wholes(spot: Spot, fields: dict, name: str) -> tuple[int, ...]:
    listed = fields[name]
    if not isinstance(listed, list):
        spot.refuse(f"must have a list of whole numbers for {name}, got {str(listed)[:40]!r}")
    return tuple(spot.whole(name, value if type(value) is int else repr(value)) for value in listed)


def _number(spot: Spot, fields: dict, name: str) -> int | float | None:
    """Return a number as it is: nanoseconds since 1970 are whole numbers that float64 does not hold."""
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= LARGEST:
        spot.refuse(f"must have a number from 0 to {LARGEST:.3g} for {name}, got {str(value)[:40]!r}")
    return value


def _req(spot: Spot, value: Any) -> Req:
    """Return what a wait names: PARAM writes a number, PyTorch [number, whether it is a message]."""
    parts = value if isinstance(value, list) else [value]
    if value is None or value == -1:
        return None
    if not parts or not all(isinstance(part, bool | int | str) for part in parts):
        spot.refuse(f"must have a number, or a list of one and true or false, for req, got {str(value)[:40]!r}")
    return (*parts[:1], bool(parts[1])) if len(parts) > 1 else (parts[0], False)
