"""Decode the attributes and the inputs of a node."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from ringlight.extensions.chakra.schema import KINDS, MICRO, Attribute, CommType
from ringlight.workloads.formats.files import TEXT_LIMIT, printable
from ringlight.workloads.graph import Collective, Kind, Split
from ringlight.workloads.packed import split_of

Ranks = tuple[int, ...]

#: Attributes that name the group of a collective, as text or as a number; the first that does holds.
GROUP_NAMES = ("pg_name", "comm_group")
_READ = (
    *("is_cpu_op", "stream", "num_ops", "flops", "seconds", "tensor_size"),
    *("comm_type", "comm_size", "comm_src", "comm_dst", "comm_tag", "involved_dim"),
    *GROUP_NAMES,
    *("size", "algorithm", "root", "kind", "split", "sizes", "communicator"),
)
#: An attribute as bytes begins with its name: this, the name's length, the name.
NAME_FIRST = b"\n"
WANTED = tuple(NAME_FIRST + bytes([len(name)]) + name.encode() for name in _READ)
_TAG = NAME_FIRST + b"\x08comm_tag"
#: A barrier is an all-reduce of one element, as in NCCL.
_BARRIER_BYTES = 4


def tagged(attributes: list[bytes]) -> tuple[list[bytes], int]:
    """Return the other attributes of a message, and its tag, 0 if there is none.

    The tag may differ from message to message. Raises ValueError, and OverflowError for a tag that no column
    holds.
    """
    tags = [raw for raw in attributes if raw.startswith(_TAG)]
    if not tags:
        return attributes, 0
    tag = whole(dict([_decoded(tags[-1])]), "comm_tag")
    if tag >= 1 << 63:
        raise OverflowError
    return [raw for raw in attributes if not raw.startswith(_TAG)], tag


def _decoded(raw: bytes) -> tuple[str, Any]:
    """Return name and value of an attribute. Raises ValueError."""
    try:
        if not raw.startswith(NAME_FIRST):
            raise ValueError("one of its attributes does not begin with its name")
        attribute = Attribute.FromString(raw)
    except DecodeError:
        raise ValueError("one of its attributes is damaged") from None
    which = attribute.WhichOneof("value") or ""
    value: Any = getattr(attribute, which, None)
    return attribute.name, list(value.values) if which.endswith("_list") else value


attribute_of = lru_cache(1 << 12)(_decoded)


def message_of(sends: bool, values: Mapping[str, Any], ranks: int) -> dict[str, Any]:
    """Return the fields of a message.

    ``comm_src`` of a sender and ``comm_dst`` of a receiver may be left out. Raises ValueError for another
    attribute that is missing, or a rank that is none of the ``ranks``.
    """
    ends = ("comm_src", "comm_dst") if sends else ("comm_dst", "comm_src")
    own, peer = whole(values, ends[0], -1), whole(values, ends[1])
    for name, rank in zip(ends, (own, peer), strict=True):
        if rank >= ranks:
            raise ValueError(f"{name} {rank} is none of the {ranks} ranks")
    return {
        "kind": Kind.SEND if sends else Kind.RECEIVE,
        "bytes": whole(values, "comm_size"),
        "own": own,
        "peer": peer,
    }


def whole(values: Mapping[str, Any], name: str, default: int | None = None) -> int:
    """Return an attribute that is a number of something.

    Raises ValueError for one that is missing without a default, negative or no whole number.
    """
    value = values.get(name, default)
    if type(value) is not int or (value < 0 and value != default):
        raise ValueError(
            f"it has no {name}" if value is None else f"{name} is {value!r:.40}"
        )
    return value


def number_of(values: Mapping[str, Any], name: str) -> float:
    value = values[name]
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r:.40}")
    return float(value)


def group_of(values: Mapping[str, Any]) -> tuple[str, str]:
    """Return which attribute names the group of a collective, and the name; both empty if none does."""
    for attribute in GROUP_NAMES:
        value = values.get(attribute, "")
        if type(value) not in (str, int):
            raise ValueError(f"{attribute} is {value!r:.40}")
        if value != "":
            return attribute, str(value)
    return "", ""


def work_of(micros: int, values: Mapping[str, Any]) -> tuple[float, float]:
    """Return the seconds and FLOPs of a computation; NaN seconds if only FLOPs are known."""
    counted = next((name for name in ("flops", "num_ops") if name in values), None)
    flops = None if counted is None else number_of(values, counted)
    if "seconds" in values:
        return number_of(values, "seconds"), flops or 0.0
    if micros or flops is None:
        return micros * MICRO, flops or 0.0
    return math.nan, flops


def collective_of(values: Mapping[str, Any], ranks: int) -> tuple[Collective, int]:
    """Return a collective over a group of ``ranks``, and its size in bytes as the graph has it.

    Raises ValueError for another type of collective, and for attributes that do not fit.
    """
    number = whole(values, "comm_type")
    if number == CommType.BARRIER:
        return Collective("all-reduce"), _BARRIER_BYTES
    if number not in KINDS:
        names = {member.value: member.name for member in CommType}
        raise ValueError(
            f"comm_type {number} ({names.get(number, 'unknown')}) is none that we have"
        )
    kind = KINDS[CommType(number)]
    size = whole(values, "comm_size")
    if kind == "all-gather":
        size *= ranks  # the trace has what each rank puts in
    if "size" in values:
        size = whole(values, "size")
    split = _split(values["split"]) if "split" in values else None
    root = whole(values, "root", 0)
    if root >= ranks:
        raise ValueError(f"root {root} is none of the {ranks} ranks of its group")
    algorithm, kind = values.get("algorithm", ""), values.get("kind", kind)
    if not isinstance(algorithm, str) or not isinstance(kind, str):
        raise ValueError("kind and algorithm must be text")
    return Collective(
        kind, algorithm, root, split, _matrix(values.get("sizes"), ranks)
    ), size


def _split(text: object) -> Split:
    if not isinstance(text, str):
        raise ValueError("split is no text")
    try:
        return split_of(json.loads(text))
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("split is no JSON") from None


def _matrix(sizes: Any, ranks: int) -> tuple[tuple[int, ...], ...] | None:
    if sizes is None:
        return None
    if not isinstance(sizes, list) or len(sizes) != ranks * ranks or min(sizes) < 0:
        raise ValueError(f"sizes are not those of {ranks} ranks")
    return tuple(
        tuple(map(int, sizes[k : k + ranks])) for k in range(0, len(sizes), ranks)
    )


def process_groups(text: str, ranks: int) -> dict[str, Ranks]:
    """Return the process groups that PyTorch lists in a metadata node: a list with a JSON list as text in it.

    Return {} if there is no such list. Raises ValueError for a list that is too long or damaged.
    """
    begin, end = text.find("[{"), text.rfind("}]")
    if begin < 0 or end < begin:
        return {}
    if len(text) > TEXT_LIMIT:
        raise ValueError(
            f"its process groups have {len(text)} bytes, {TEXT_LIMIT} are allowed"
        )
    try:
        listed = json.loads(text[begin : end + 2])
        return {
            str(group["pg_name"]): members_of(
                f"process group {printable(str(group['pg_name']))}",
                group["ranks"],
                ranks,
            )
            for group in listed
        }
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError):
        raise ValueError("its process groups are damaged") from None


def members_of(where: str, members: object, ranks: int) -> Ranks:
    """Return the ranks of a group; an empty list is all of them.

    Raises ValueError for other values, and ranks given twice.
    """
    if not isinstance(members, list) or not all(
        type(rank) is int and 0 <= rank < ranks for rank in members
    ):
        raise ValueError(f"{where}: it must be a list of ranks 0 to {ranks - 1}")
    if len(set(members)) != len(members):
        raise ValueError(f"{where}: it has a rank twice")
    return tuple(members) or tuple(range(ranks))
