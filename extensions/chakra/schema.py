"""The messages of Chakra execution traces, as far as we read and write them.

Names, numbers and types are the schema's (MLCommons Chakra 1.0). What is not
named here, a parser passes over.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "ChakraProtoMsg"

#: The one value of an attribute: field, number, type.
_VALUES = (
    ("double_val", 3, "double"),
    ("float_val", 5, "float"),
    ("int32_val", 7, "int32"),
    ("int64_val", 9, "int64"),
    ("int64_list", 10, "Int64List"),
    ("uint32_val", 11, "uint32"),
    ("uint64_val", 13, "uint64"),
    ("sint32_val", 15, "sint32"),
    ("sint64_val", 17, "sint64"),
    ("fixed32_val", 19, "fixed32"),
    ("fixed64_val", 21, "fixed64"),
    ("sfixed32_val", 23, "sfixed32"),
    ("sfixed64_val", 25, "sfixed64"),
    ("bool_val", 27, "bool"),
    ("bool_list", 28, "BoolList"),
    ("string_val", 29, "string"),
)
#: Message -> its fields: name, number, type; ``*`` before the type: repeated.
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "BoolList": (("values", 1, "*bool"),),
    "Int64List": (("values", 1, "*int64"),),
    "IOInfo": (("values", 1, "string"),),
    "AttributeProto": (("name", 1, "string"),),
    "GlobalMetadata": (("version", 1, "string"), ("attr", 2, "*AttributeProto")),
    # The type is an enumeration; an int32 has the same encoding and takes a number that has no name, too.
    # Attributes are messages, which are encoded as bytes are: millions of them are few different ones, and
    # the same bytes need to be looked into only once.
    "Node": (
        ("id", 1, "uint64"),
        ("name", 2, "string"),
        ("type", 3, "int32"),
        ("ctrl_deps", 4, "*uint64"),
        ("data_deps", 5, "*uint64"),
        ("duration_micros", 7, "uint64"),
        ("inputs", 8, "IOInfo"),
        ("attr", 10, "*bytes"),
    ),
}


class NodeType(IntEnum):
    """Type of a node."""

    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommType(IntEnum):
    """Type of a collective."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


#: As the graph calls them.
KINDS = {
    CommType.ALL_REDUCE: "all-reduce",
    CommType.REDUCE: "reduce",
    CommType.ALL_GATHER: "all-gather",
    CommType.BROADCAST: "broadcast",
    CommType.ALL_TO_ALL: "all-to-all",
    CommType.REDUCE_SCATTER: "reduce-scatter",
    CommType.REDUCE_SCATTER_BLOCK: "reduce-scatter",
}
TYPES = {kind: number for number, kind in reversed(KINDS.items())} | {
    "all-to-all-v": CommType.ALL_TO_ALL
}
#: Seconds of the unit of durations.
MICRO = 1e-6


def _field(message: Any, name: str, number: int, kind: str) -> Any:
    types = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number)
    field.label = types.LABEL_REPEATED if kind.startswith("*") else types.LABEL_OPTIONAL
    kind = kind.removeprefix("*")
    if kind in _MESSAGES:
        field.type, field.type_name = types.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
    else:
        field.type = getattr(types, f"TYPE_{kind.upper()}")
    return field


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="ringlight/chakra.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field in fields:
            _field(message, *field)
        if name == "AttributeProto":
            message.oneof_decl.add(name="value")
            for field in _VALUES:
                _field(message, *field).oneof_index = 0
    pool = (
        descriptor_pool.DescriptorPool()
    )  # ours alone: another library's Chakra messages may be in the default one
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{_PACKAGE}.{name}")
        )
        for name in _MESSAGES
    }


_CLASSES = _classes()
Attribute: Any = _CLASSES["AttributeProto"]
Metadata: Any = _CLASSES["GlobalMetadata"]
Node: Any = _CLASSES["Node"]
