"""The protobuf messages of a Chakra trace, created on first use, and how to read and write streams of them.

`extras.load_extra` loads this module, since protobuf is an extra.
"""

import io
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, proto
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from mfabric_jax.apps.graphs.tasks.formats import files
from mfabric_jax.checks import InputError
from mfabric_jax.support.text_files import parse_json
from mfabric_jax.support.unread import name_unread

SCALARS = ("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64")
SCALARS += ("fixed32", "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes")
SPACE = re.compile(r"\s+")
FIRST_SCALAR = 3  # first field number of values in AttributeProto; scalars and lists of them alternate
MESSAGES = {
    "IOInfo": (("values", 1, "string", 0), ("shapes", 2, "string", 0), ("types", 3, "string", 0)),
    "GlobalMetadata": (("version", 1, "string", 0), ("attr", 2, "AttributeProto", 1)),
    "Node": (
        *(("id", 1, "uint64", 0), ("name", 2, "string", 0), ("type", 3, "int32", 0)),
        *(("ctrl_deps", 4, "uint64", 1), ("data_deps", 5, "uint64", 1)),
        *(("start_time_micros", 6, "uint64", 0), ("duration_micros", 7, "uint64", 0)),
        *(("inputs", 8, "IOInfo", 0), ("outputs", 9, "IOInfo", 0), ("attr", 10, "AttributeProto", 1)),
    ),
}


@cache
def messages() -> SimpleNamespace:
    """Return the protobuf classes GlobalMetadata, Node and AttributeProto."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package="ChakraProtoMsg", syntax="proto3")

    def add(message: Any, name: str, number: int, kind: str, repeated: bool = False, **more: int) -> None:
        known = {"type": getattr(field, f"TYPE_{kind.upper()}")} if kind in SCALARS else {}
        inside = {} if known else {"type": field.TYPE_MESSAGE, "type_name": f".ChakraProtoMsg.{kind}"}
        label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
        message.field.add(name=name, number=number, label=label, **known, **inside, **more)

    attribute = file.message_type.add(name="AttributeProto")
    add(attribute, "name", 1, "string")
    add(attribute, "doc_string", 2, "string")
    attribute.oneof_decl.add(name="value")
    for order, kind in enumerate(SCALARS):
        values = file.message_type.add(name=f"{kind.capitalize()}List")
        add(values, "values", 1, kind, repeated=True)
        add(attribute, f"{kind}_val", FIRST_SCALAR + 2 * order, kind, oneof_index=0)
        add(attribute, f"{kind}_list", FIRST_SCALAR + 2 * order + 1, f"{kind.capitalize()}List", oneof_index=0)
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for part, number, kind, repeated in fields:
            add(message, part, number, kind, bool(repeated))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = ("GlobalMetadata", "Node", "AttributeProto")
    descriptors = {name: pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in names}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(kind) for name, kind in descriptors.items()})


def read_stream(path: Path) -> tuple[Any, list[Any]]:
    """Return the GlobalMetadata and the Nodes of a file. Raise `InputError` with the node's number for wrong bytes."""
    kinds, parts = messages(), []
    stream = io.BytesIO(files.read_unpacked(path))
    try:
        while part := proto.parse_length_prefixed(kinds.Node if parts else kinds.GlobalMetadata, stream):
            parts.append(part)
    except (DecodeError, EOFError, ValueError, OverflowError) as error:
        node = max(len(parts), 1)
        raise InputError(
            f"node {node} (counted from 1) of {str(path)!r} is cut off, or not a Chakra node of schema 1.0.0."
        ) from error
    if not parts:
        raise InputError(f"{str(path)!r} must begin with a Chakra GlobalMetadata, got an empty file.")
    metadata, *nodes = parts
    if not any(node.attr for node in nodes) and any(len(UnknownFieldSet(node)) for node in nodes):
        raise InputError(f"{str(path)!r} is of Chakra's schema 0.0.1, which is not read; convert it to 1.0.0.")
    unknown = sorted({field.field_number for part in parts for field in UnknownFieldSet(part)})
    name_unread(repr(str(path)), "fields of protobuf", map(str, unknown))
    return metadata, nodes


def read_json_stream(path: Path, data: bytes, types: Iterable[str]) -> tuple[Any, list[Any]]:
    """Return the GlobalMetadata and the Nodes of Chakra's jsonizer, which writes one JSON object after another.

    `types`: names of the types of nodes, in order. Raise `InputError` with the node's number for any other object.
    """
    kinds, parts, types = messages(), [], list(types)
    unknown: dict[str, None] = {}
    for fields in _objects(path, data):
        kind, where = (kinds.Node if parts else kinds.GlobalMetadata), f"node {len(parts)} (counted from 1)"
        if fields.get("type") in types:
            fields["type"] = types.index(fields["type"])
        names_of_fields = {name for field in kind.DESCRIPTOR.fields for name in (field.json_name, field.name)}
        unknown |= dict.fromkeys(name for name in fields if name not in names_of_fields)
        try:
            known = {name: value for name, value in fields.items() if name in names_of_fields}
            parts.append(json_format.ParseDict(known, kind()))
        except (json_format.ParseError, ValueError, TypeError, AttributeError, RecursionError) as error:
            what = " ".join(str(error).split())[:120].rstrip(".")
            raise InputError(f"{where} of {str(path)!r} is no node as Chakra's jsonizer writes it ({what}).") from error
    name_unread(repr(str(path)), "fields of nodes", unknown)
    if not parts:
        raise InputError(f"{str(path)!r} must begin with a Chakra GlobalMetadata, got an empty file.")
    return parts[0], parts[1:]


def _objects(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    try:
        text, decoder = data.decode("utf-8-sig").strip(), json.JSONDecoder()
        start = 0
        while start < len(text):
            _, end = decoder.raw_decode(text, start)
            fields = parse_json(text[start:end])
            if not isinstance(fields, dict):
                raise ValueError(f"an object must be at character {start}")
            yield fields
            start = end if (space := SPACE.match(text, end)) is None else space.end()
    except (ValueError, RecursionError) as error:
        raise InputError(f"{str(path)!r} is not JSON of Chakra's jsonizer ({error}).") from error


def stream_of(parts: Iterable[Any]) -> bytes:
    stream = io.BytesIO()
    for message in parts:
        proto.serialize_length_prefixed(message, stream)
    return stream.getvalue()
