"""MLCommons Chakra's execution traces as protobuf: the messages and their files.

A file has one GlobalMetadata and then Nodes, each preceded by its length as a varint. Only fields
that we read or write are described here; protobuf skips the others. The descriptors are made on
first use, because generated code would be tied to the protobuf version that generated it.

In earlier versions, GlobalMetadata had only attributes. The first versions had no GlobalMetadata
and used different nodes.

Source: https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from byteprophet.errors import UserError

OURS = "byteprophet."
"""The prefix of our attributes' names."""


class NodeType(IntEnum):
    """What a node does."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7
    STORAGE_NODE = 8
    BATCH_NODE = 9
    CHECKPOINT_NODE = 10


_MESSAGES: dict[str, tuple[tuple[int, str, str], ...]] = {
    "AttributeProto": (
        (1, "name", "string"),
        (3, "double_val", "double"),
        (5, "float_val", "float"),
        (7, "int32_val", "int32"),
        (9, "int64_val", "int64"),
        (11, "uint32_val", "uint32"),
        (13, "uint64_val", "uint64"),
        (15, "sint32_val", "sint32"),
        (17, "sint64_val", "sint64"),
        (19, "fixed32_val", "fixed32"),
        (21, "fixed64_val", "fixed64"),
        (23, "sfixed32_val", "sfixed32"),
        (25, "sfixed64_val", "sfixed64"),
        (27, "bool_val", "bool"),
        (29, "string_val", "string"),
    ),
    "GlobalMetadata": (
        (1, "version", "string"),
        (2, "attr", "repeated AttributeProto"),
    ),
    "OldMetadata": ((1, "attr", "repeated AttributeProto"),),
    "Node": (
        (1, "id", "uint64"),
        (2, "name", "string"),
        (3, "type", "NodeType"),
        (4, "ctrl_deps", "repeated uint64"),
        (5, "data_deps", "repeated uint64"),
        (6, "start_time_micros", "uint64"),
        (7, "duration_micros", "uint64"),
        (10, "attr", "repeated AttributeProto"),
    ),
}
_PACKAGE = "ChakraProtoMsg"


class Schema(NamedTuple):
    """The message classes."""

    metadata: Any
    old_metadata: Any
    node: Any
    attribute: Any


@cache
def schema() -> Schema:
    """The message classes, in a pool of their own: another package may describe them, too."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="byteprophet/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    numbers = file.enum_type.add(name="NodeType")
    for kind in NodeType:
        numbers.value.add(name=kind.name, number=kind)
    types = descriptor_pb2.FieldDescriptorProto
    for message_name, fields in _MESSAGES.items():
        message = file.message_type.add(name=message_name)
        for number, name, stated in fields:
            kind_name = stated.removeprefix("repeated ")
            repeated = stated != kind_name
            field = message.field.add(
                name=name,
                number=number,
                label=types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL,
            )
            if kind_name == "NodeType" or kind_name in _MESSAGES:
                field.type = types.TYPE_ENUM if kind_name == "NodeType" else types.TYPE_MESSAGE
                field.type_name = f".{_PACKAGE}.{kind_name}"
            else:
                field.type = getattr(types, f"TYPE_{kind_name.upper()}")
            if name.endswith("_val"):  # a oneof, so that a value of 0 is also known to be set
                field.oneof_index = 0
        if message_name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return Schema(
        *(
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            for name in ("GlobalMetadata", "OldMetadata", "Node", "AttributeProto")
        )
    )


def attribute(name: str, value: str | int | bool) -> Any:
    """An attribute with ``value``; integers become ``int64_val``, as in Chakra's own tools."""
    field = {str: "string_val", bool: "bool_val", int: "int64_val"}[type(value)]
    return schema().attribute(name=name, **{field: value})


def attributes(message: Any) -> dict[str, Any]:
    """Attribute values by name. Values of types that we do not describe are left out."""
    found = {}
    for one in message.attr:
        which = one.WhichOneof("value")
        if which is not None:
            found[one.name] = getattr(one, which)
    return found


def write_message(file: BinaryIO, message: Any) -> None:
    """Appends ``message`` to a file, preceded by its length."""
    from google.protobuf import proto

    proto.serialize_length_prefixed(message, file)


def parse_messages(path: Path, content: bytes) -> Iterator[Any]:
    """Yields the metadata and then the nodes.

    Raises ``UserError`` if a message is cut off or is not a Chakra message.
    """
    from google.protobuf import message, proto

    stream, number = BytesIO(content), 0
    try:
        while True:
            expected = schema().node if number else _first_expected(path, content)
            found = proto.parse_length_prefixed(expected, stream)
            if found is None:
                return
            yield found
            number += 1
    except (message.DecodeError, ValueError, EOFError, TypeError, OverflowError):
        raise UserError(
            f"{path}: is cut off or not a Chakra trace: message {number}, at byte "
            f"{stream.tell()} of {len(content)}"
        ) from None


def begins_with_metadata(content: bytes) -> bool:
    """Whether ``content`` begins with a GlobalMetadata that states Chakra's version."""
    try:
        metadata = next(parse_messages(Path(), content), None)
    except UserError:
        return False
    if metadata is None:
        return False
    is_new = re.fullmatch(r"\d+(\.\d+)+", getattr(metadata, "version", "")) is not None
    return is_new or "schema" in attributes(metadata)


def _first_expected(path: Path, content: bytes) -> Any:
    """The class of the first message, known by its first field, which differs between kinds."""
    begin = 1
    while begin < 10 and content[begin - 1 : begin] > b"\x7f":  # skip the length
        begin += 1
    first = b"" if content.startswith(b"\0") else content[begin : begin + 3]
    if first[:1] == b"\x08":
        raise UserError(
            f"{path}: begins with a node, as in Chakra's first versions, whose nodes are "
            "different: convert it again with a later version"
        )
    # Attributes begin with the field of their name; a version is text without control characters.
    return schema().old_metadata if first[:1] == first[2:] == b"\n" else schema().metadata
