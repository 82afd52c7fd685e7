"""MLCommons Chakra's execution traces as protobuf: the messages, and a file of them.

A file is one GlobalMetadata and then Nodes, each behind its length as a varint. Only the fields
that we read or write are described; protobuf skips the others. The descriptors are made when they
are first needed: generated code would be tied to the version of protobuf that generated it.

Source: https://github.com/mlcommons/chakra, schema/protobuf/et_def.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from byteprophet.errors import UserError


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
        (27, "bool_val", "bool"),
        (29, "string_val", "string"),
    ),
    "GlobalMetadata": (
        (1, "version", "string"),
        (2, "attr", "repeated AttributeProto"),
    ),
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
    node: Any
    attribute: Any


@cache
def schema() -> Schema:
    """The classes of the messages, in a pool of their own: another package may have its own."""
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
            if name.endswith("_val"):  # only one of them, and it is known which, even if it is 0
                field.oneof_index = 0
        if message_name == "AttributeProto":
            message.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return Schema(
        *(
            message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            for name in ("GlobalMetadata", "Node", "AttributeProto")
        )
    )


def attribute(name: str, value: str | int | bool) -> Any:
    """An attribute with ``value``; integers are ``int64_val``, as Chakra's own tools have them."""
    field = {str: "string_val", bool: "bool_val", int: "int64_val"}[type(value)]
    return schema().attribute(name=name, **{field: value})


def attributes(message: Any) -> dict[str, Any]:
    """The values by name; those of types that we do not describe are left out."""
    found = {}
    for one in message.attr:
        which = one.WhichOneof("value")
        if which is not None:
            found[one.name] = getattr(one, which)
    return found


def write_message(file: BinaryIO, message: Any) -> None:
    """Append ``message`` to a file."""
    from google.protobuf import proto

    proto.serialize_length_prefixed(message, file)


def parse_messages(path: Path, content: bytes) -> Iterator[Any]:
    """The metadata, then the nodes; ``UserError`` where a message is cut off or something else."""
    from google.protobuf import message, proto

    stream, expected, number = BytesIO(content), schema().metadata, 0
    while True:
        try:
            found = proto.parse_length_prefixed(expected, stream)
        except (message.DecodeError, ValueError, EOFError, TypeError):
            raise UserError(
                f"{path}: is cut off or not a Chakra trace: message {number}, at byte "
                f"{stream.tell()} of {len(content)}"
            ) from None
        if found is None:
            return
        yield found
        expected, number = schema().node, number + 1
