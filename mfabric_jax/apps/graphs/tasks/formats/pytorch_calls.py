"""What PyTorch records of each call of torch.distributed, as an entry of a PARAM comms trace.

Execution traces and Kineto traces hold the same values under different names. Names here are those of execution traces.
Sources: torch/csrc/distributed/c10d/ParamCommsUtils.hpp, ProcessGroupNCCL.cpp (which values a call records),
torch/csrc/profiler/util.cpp, saveNcclMeta (their names) and torch/distributed/distributed_c10d.py, pg_config_info, of
github.com/pytorch/pytorch; et_replay/comm/commsTraceParser.py of github.com/facebookresearch/param.
"""

import re
from collections import Counter
from typing import Any, NamedTuple

from mfabric_jax.apps.graphs.tasks.collectives.registry import ROOTED
from mfabric_jax.apps.graphs.tasks.formats.files import ANY, Spot, count_phrase
from mfabric_jax.apps.graphs.tasks.formats.param_entries import ACTIONS, OPS, Action, Entry, entry_of
from mfabric_jax.checks import COUNTS
from mfabric_jax.support.text_files import parse_json

RECORDED = "record_param_comms"  # the operator that records a call
READ = ("collective_name", "dtype", "in_msg_nelems", "out_msg_nelems", "in_split_size", "out_split_size", "pg_name")
READ += ("pg_size", "global_rank_start", "global_rank_stride", "is_asynchronized_op")
NAMES = {  # what fields of an entry are called in the attributes of a call
    "comms": "collective_name",
    "in_msg_size": "in_msg_nelems",
    "out_msg_size": "out_msg_nelems",
    "in_split": "in_split_size",
    "out_split": "out_split_size",
    "world_size": "pg_size",
    "pg_id": "pg_name",
    "global_ranks": "ranks of pg_name",
}
TRUNCATED = re.compile(r"\[.*\.\.\.")  # Kineto shortens lists of more than 30 numbers
MOST_TEXT = 1 << 24  # of a list of groups
Groups = dict[str, tuple[int, ...]]


class Call(NamedTuple):
    """A recorded call.

    - `values`: by name of `READ`. `req`: what a wait names.
    - `rank`: the root or the other end, counted in the group. `source`, `target`: ranks of the job, if the trace has
      them. `members`: ranks of the job in the group. None: not stated.
    - `start_ns`, `latency_us`: when it began, and how long it held the thread.
    """

    spot: Spot
    values: dict[str, Any]
    req: Any = None
    rank: int | None = None
    source: int | None = None
    target: int | None = None
    members: tuple[int, ...] | None = None
    start_ns: float | None = None
    latency_us: float | None = None


def entries_of(calls: list[Call], groups: Groups, rank: int | None, noted: Counter) -> list[Entry]:
    """Return the entries of a rank. `groups`: ranks by name of a group; `rank`: the rank, None: not known.

    Raise `InputError` that names a call and the value. `noted` counts what is assumed.
    """
    entries = [_entry_of(call, groups, rank, noted) for call in calls]
    return [entry for entry in entries if entry.action != Action.INIT]


def _entry_of(call: Call, groups: Groups, rank: int | None, noted: Counter) -> Entry:
    spot, values = call.spot, call.values
    name = values.get("collective_name")
    word = "".join(letter for letter in str(name).lower() if letter.isalpha())
    action = ACTIONS.get(word)
    fields: dict[str, Any] = {"comms": name, "req": call.req}
    fields |= {"startTime_ns": call.start_ns, "latency_us": call.latency_us, "pg_id": values.get("pg_name") or None}
    if action in (Action.INIT, Action.WAIT):
        return entry_of(fields, spot)
    members = _members(call, groups)
    size = values.get("pg_size")
    if members is None and size is None:
        noted["no group"] += 1
        fields["pg_id"] = None
    fields |= {"world_size": size, "global_ranks": None if members is None else list(members)}
    fields |= {"dtype": values.get("dtype"), "in_msg_size": values.get("in_msg_nelems")}
    fields |= {"out_msg_size": values.get("out_msg_nelems")}
    fields |= {short: _split(spot, values, long, noted) for short, long in tuple(NAMES.items())[3:5]}
    if action in (Action.SEND, Action.RECV):
        fields |= _ends(call, members, action, rank)
    elif word in OPS and OPS[word] in ROOTED and call.rank is not None:
        fields["root"] = _member(spot, call.rank, members)
    return entry_of(fields, spot)._replace(asynchronous=_flag(spot, values.get("is_asynchronized_op")))


def _members(call: Call, groups: Groups) -> tuple[int, ...] | None:
    """Return the ranks of the job in the group of a call, in its order; None if the trace does not say."""
    if call.members is not None:
        return call.members
    values, spot = call.values, call.spot
    name = values.get("pg_name")
    if isinstance(name, str) and name in groups:
        return groups[name]
    keys = ("global_rank_start", "global_rank_stride", "pg_size")
    start, stride, size = (
        None if values.get(key) in (None, ANY) else spot.whole(key, repr(values[key]), 0, COUNTS["gpus"])
        for key in keys
    )
    if size == 1 and start is not None:
        return (start,)
    if start is None or not stride or not size:
        return None
    if start + stride * (size - 1) >= COUNTS["gpus"]:
        spot.refuse(f"must have ranks below {COUNTS['gpus']}, got {', '.join(keys)} of {start}, {stride}, {size}")
    return tuple(range(start, start + stride * size, stride))


def _member(spot: Spot, number: int, members: tuple[int, ...] | None) -> int:
    """Return the rank of the job that is `number` in its group."""
    if members is None:
        return number
    if number >= len(members):
        spot.refuse(f"must have a rank below {len(members)}, the size of its group, got {number}")
    return members[number]


def _ends(call: Call, members: tuple[int, ...] | None, action: Action, rank: int | None) -> dict[str, int]:
    if rank is None:
        call.spot.refuse("is a message, and the trace does not say of which rank: name the file by it, as RANK.json")
    stated = call.target if action == Action.SEND else call.source
    number = call.rank
    if stated is None and number is None:
        call.spot.refuse("must have the rank of the other end of its message")
    if stated is not None and members is not None and stated not in members:
        call.spot.refuse(f"must have the other end of its message in its group, {str(members)[:40]}, got {stated}")
    peer = stated if stated is not None else ANY if number == ANY else _member(call.spot, number or 0, members)
    source, target = (rank, peer) if action == Action.SEND else (peer, rank)
    return {"src_rank": source, "dst_rank": target}


def _split(spot: Spot, values: dict[str, Any], name: str, noted: Counter) -> Any:
    """Return the list that a text such as "[1,2]" holds. A shortened list is empty: equal parts."""
    text = values.get(name)
    if not isinstance(text, str):
        return text
    if TRUNCATED.match(text):
        noted["truncated"] += name == "in_split_size"
        return []
    return parse_list(spot, name, text)


def parse_list(spot: Spot, name: str, text: str) -> Any:
    """Return the JSON value of a text, which must hold a list."""
    try:
        value = parse_json(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, list):
        spot.refuse(f"must have a list for {name}, got {text[:40]!r}")
    return value


def _flag(spot: Spot, value: Any) -> bool:
    if value not in (None, True, False, "true", "false", "0", "1"):
        spot.refuse(f"must have true or false for is_asynchronized_op, got {str(value)[:40]!r}")
    return value in (True, "true", "1")


def groups_of(spot: Spot, rows: Any) -> Groups:
    """Return the ranks of each group of a list as PyTorch writes it: pg_name, ranks (none: all), and the size."""
    groups: Groups = {}
    if not isinstance(rows, list):
        spot.refuse(f"must have a list of groups, got {str(rows)[:40]!r}")
    for row in rows:
        if not isinstance(row, dict) or not isinstance(row.get("pg_name"), str):
            spot.refuse(f"must list groups, each with pg_name and ranks, got {str(row)[:60]}")
        size = next((row[key] for key in ("group_size", "pg_size") if row.get(key) is not None), None)
        size = None if size is None else spot.whole("group_size", repr(size), 1, COUNTS["gpus"])
        ranks = row.get("ranks")
        if not isinstance(ranks, list):
            spot.refuse(f"must have a list for ranks of group {row['pg_name']!r}, got {str(ranks)[:40]!r}")
        members = tuple(spot.rank("ranks", repr(rank)) for rank in ranks) or tuple(range(size or 0))
        if size not in (None, len(members)) or len(set(members)) < len(members):
            spot.refuse(f"must have {size} ranks, each once, for group {row['pg_name']!r}, got {str(ranks)[:40]}")
        for key in ("pg_name", "backend_id", "uid"):  # before schema 1.0.3 calls name the backend
            if row.get(key) is not None and members:
                groups[str(row[key])] = members
    return groups


REMARKS = {
    "unnumbered": (
        "wait names no call (no Seq): it takes the first call of its thread that no wait has taken",
        "waits name no call (no Seq): each takes the first call of its thread that no wait has taken",
    ),
    "no group": ("call has no ranks of its group: all ranks", "calls have no ranks of their groups: all ranks"),
    "truncated": (
        "all-to-all has shortened splits: equal parts",
        "all-to-alls have shortened splits: equal parts",
    ),
}


def remarks_on(noted: Counter) -> tuple[str, ...]:
    return tuple(f"{count_phrase(noted[key], *words)}." for key, words in REMARKS.items() if noted[key])
