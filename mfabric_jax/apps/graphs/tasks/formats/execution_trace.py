"""Read PyTorch execution traces: the calls of torch.distributed that each rank made, without times.

A file of torch.profiler's ExecutionTraceObserver is the trace of a rank. Nodes called record_param_comms are calls,
nodes process_group:init list the groups. Schemas 1.0.1 to 1.1.1: since 1.1.0 attributes hold the values of a call,
before its inputs do, and sizes are those of its tensors.

Sources: torch/csrc/profiler/standalone/execution_trace_observer.cpp of github.com/pytorch/pytorch;
et_replay/execution_trace.py and et_replay/comm/commsTraceParser.py of github.com/facebookresearch/param.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mfabric_jax.apps.graphs.tasks.formats import files, pytorch_calls
from mfabric_jax.apps.graphs.tasks.formats.files import Spot
from mfabric_jax.apps.graphs.tasks.formats.param_entries import RecordedTrace, TraceKind
from mfabric_jax.apps.graphs.tasks.formats.pytorch_calls import NAMES, RECORDED, Call, Groups
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import mapping_in
from mfabric_jax.support.unread import name_unread, say_unread

BEGINS = re.compile(rb'\s*\{(\s*"schema"\s*:\s*"[^"]*"|.*"(nodes|schema)"\s*:.*"(ctrl_deps|fw_parent)"\s*:)', re.S)
SCHEMAS = re.compile(r"1\.0\.[1-4](-chakra\.0\.0\.4)?|1\.1\.[01]-chakra\.0\.0\.4")
TOP = ("schema", "pid", "time", "start_ts", "finish_ts", "nodes")
OF_ATTRIBUTES = ("name", "type", "value")
PARTS = ("values", "shapes", "types", "strides")
FIELDS = ("id", "name", "ctrl_deps", "inputs", "outputs", "attrs", "rf_id", "parent", "fw_parent", "seq_id", "scope")
FIELDS += ("tid", "fw_tid", "op_schema", *(f"{side}_{part}" for side in ("input", "output") for part in PARTS))
HARMLESS = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema", "kernel_backend", "kernel_file")
HARMLESS += ("tensor_range", "pg_desc")
INIT = "process_group:init"
BEHIND = ("seq", "pg_name", "rank", "collective_name", "in_split_size", "out_split_size")  # inputs behind the tensors
TENSOR = 6  # values of a tensor: id, storage, offset, elements, bytes of each, device
DTYPE = re.compile(r"Tensor\((?:c10::)?([^)]*)\)")


def tells(head: bytes) -> bool:
    return bool(BEGINS.match(head))


def read(path: Path, rank: int | None) -> RecordedTrace:
    """Return the entries of a file. `rank`: the rank that its name states."""
    top = mapping_in(files.read_unpacked(path), repr(str(path)), "nodes")
    nodes = _nodes(top, path)
    _name_left_out(top, path)
    noted: Counter[str] = Counter()
    groups: Groups = {}
    for number, node in nodes:
        if INIT in node["name"]:
            groups |= _groups_in(node, Spot(f"node {number} of {str(path)!r}"), noted)
    recorded = [(number, node) for number, node in nodes if node["name"] == RECORDED]
    calls = [_call(node, Spot(f"node {number} of {str(path)!r}", tuple(NAMES.items()))) for number, node in recorded]
    _name_unread_parts(path, [node for _, node in nodes if node["name"] == RECORDED or INIT in node["name"]])
    entries = pytorch_calls.entries_of(calls, groups, rank, noted)
    largest = max((max(members) for members in groups.values()), default=-1)
    others = len(nodes) - len(recorded)
    remarks = (f"{files.count_phrase(others, 'node')} without communication not read: these traces have no times.",)
    if noted["cut off"]:
        remarks += ("the list of groups is cut off: ranks of groups come from the calls.",)
    return RecordedTrace({None: entries}, largest + 1, (*remarks, *pytorch_calls.remarks_on(noted)))


def _nodes(top: dict[str, Any], path: Path) -> list[tuple[int, dict[str, Any]]]:
    """Return the nodes by id, in order."""
    listed = top.get("nodes")
    if not isinstance(listed, list):
        raise InputError(f"{str(path)!r} must have a list of nodes, got {str(listed)[:40]!r}.")
    nodes: dict[int, dict[str, Any]] = {}
    for order, node in enumerate(listed):
        spot = Spot(f"node at position {order} (counted from 0) of {str(path)!r}")
        if not isinstance(node, dict) or not isinstance(node.get("name"), str):
            spot.refuse(f"must be an object with id and name, got {str(node)[:60]}")
        number = spot.whole("id", repr(node.get("id")))
        if number in nodes:
            spot.refuse(f"must have an id that no other node has, got {number}")
        nodes[number] = node
    return sorted(nodes.items())


def _name_left_out(top: dict[str, Any], path: Path) -> None:
    name_unread(repr(str(path)), "fields", [name for name in top if name not in TOP])
    if not isinstance(schema := top.get("schema"), str) or not SCHEMAS.fullmatch(schema):
        say_unread(f"{str(path)!r}: schema {str(schema)[:40]!r} is not known; it is read as 1.1.1-chakra.0.0.4.")


def _name_unread_parts(path: Path, nodes: Iterable[dict[str, Any]]) -> None:
    """Name fields and attributes of calls and lists of groups that are neither read nor harmless."""
    known = {*pytorch_calls.READ, *HARMLESS}
    left: dict[str, None] = {}
    for node in nodes:
        left |= dict.fromkeys(name for name in node if name not in FIELDS)
        for side in ("inputs", "outputs"):
            if isinstance(node.get(side), dict):
                left |= dict.fromkeys(name for name in node[side] if name not in PARTS)
        attributes = _attributes(node, Spot(repr(str(path))))
        left |= dict.fromkeys(name for name in attributes if name not in known)
        left |= dict.fromkeys(name for row in node.get("attrs", []) for name in row if name not in OF_ATTRIBUTES)
    name_unread(repr(str(path)), f"fields of {RECORDED}", left)


def _groups_in(node: dict[str, Any], spot: Spot, noted: Counter) -> Groups:
    values = _values(node, "inputs", spot)
    if not values or not isinstance(values[0], str):
        spot.refuse(f"must have a text that lists groups as its first input, got {str(values)[:40]}")
    try:
        rows = pytorch_calls.parse_list(spot, "inputs", values[0])
    except InputError:
        noted["cut off"] += 1
        return {}
    return pytorch_calls.groups_of(spot, rows)


def _call(node: dict[str, Any], spot: Spot) -> Call:
    inputs = _values(node, "inputs", spot)
    first = 0 if inputs and _is_request(inputs[0]) else 1
    behind: dict[str, Any] = dict(zip(BEHIND, inputs[first:], strict=False))
    if len(behind) < len(BEHIND):
        spot.refuse(f"must have inputs of {', '.join(BEHIND)}, behind tensors if it has any, got {str(inputs)[:60]}")
    if not _is_request(behind["seq"]):
        spot.refuse(f"must have a number, or a list of one and true or false, for seq, got {str(behind['seq'])[:40]!r}")
    values: dict[str, Any] = {name: behind[name] for name in BEHIND[3:]} | {"pg_name": _group_name(behind, spot)}
    size = inputs[first + len(BEHIND) :]
    if len(size) > 2:
        values |= dict(zip(("global_rank_start", "global_rank_stride", "pg_size"), size, strict=False))
    elif size:
        values["pg_size"] = size[0]
    if first:
        values |= _sizes(node, inputs[0], spot)
    rank = spot.whole("rank", repr(behind["rank"]), files.ANY)
    attributes = _attributes(node, spot)
    values |= {name: value for name, value in attributes.items() if name in pytorch_calls.READ}
    return Call(spot, values, behind["seq"], rank)


def _is_request(value: Any) -> bool:
    """Return whether a value is the number of a call, or [number, whether it is a message]."""
    if isinstance(value, list):
        return len(value) == 2 and type(value[0]) is int and isinstance(value[1], bool)
    return type(value) is int


def _group_name(behind: dict[str, Any], spot: Spot) -> str:
    """Return the name of a group: a text, [name, description], or before schema 1.0.3 the number of a backend."""
    name = behind["pg_name"]
    name = name[0] if isinstance(name, list) and name else name
    if not isinstance(name, str) and type(name) is not int:
        spot.refuse(f"must have a number or a name for pg_name, got {str(name)[:40]!r}")
    return str(name or "")


def _sizes(node: dict[str, Any], tensors: Any, spot: Spot) -> dict[str, Any]:
    """Return the sizes of a call by its tensors, and its splits where it sends a list of different ones."""
    sent = _elements(tensors, spot)
    outputs = _values(node, "outputs", spot)
    received = _elements(outputs[:1], spot)
    types = node.get("input_types") or (node["inputs"].get("types") if isinstance(node["inputs"], dict) else None)
    dtype = DTYPE.search(str(types))
    sizes: dict[str, Any] = {"in_msg_nelems": sum(sent), "out_msg_nelems": sum(received)}
    if len(set(sent)) > 1:
        sizes["in_split_size"] = sent
    if len(set(received)) > 1:
        sizes["out_split_size"] = received
    return sizes | {"dtype": dtype[1] if dtype else None}


def _elements(value: Any, spot: Spot) -> list[int]:
    """Return the elements of each tensor in nested lists."""
    if not isinstance(value, list):
        spot.refuse(f"must have tensors of {TENSOR} values in its inputs and outputs, got {str(value)[:40]!r}")
    if value and not isinstance(value[0], list):
        if len(value) != TENSOR:
            spot.refuse(f"must have tensors of {TENSOR} values in its inputs and outputs, got {str(value)[:40]!r}")
        return [spot.whole("elements of a tensor", repr(value[3]))]
    return [count for inner in value for count in _elements(inner, spot)]


def _values(node: dict[str, Any], side: str, spot: Spot) -> list[Any]:
    values = node.get(side)
    values = values.get("values") if isinstance(values, dict) else values
    if not isinstance(values, list):
        spot.refuse(f"must have a list of {side}, got {str(values)[:40]!r}")
    return values


def _attributes(node: dict[str, Any], spot: Spot) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    listed = node.get("attrs", [])
    if not isinstance(listed, list):
        spot.refuse(f"must have a list of attrs, got {str(listed)[:40]}")
    for row in listed:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str) or "value" not in row:
            spot.refuse(f"must have attrs with name and value, got {str(row)[:60]}")
        if row["name"] in attributes:
            spot.refuse(f"must have each attribute once, got {row['name']!r} twice")
        attributes[row["name"]] = row["value"]
    return attributes


KIND = TraceKind("PyTorch execution trace", tells, read, "an execution trace has no times: ranks compute nothing.")
