"""A workload as bytes: the same again, or one line."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from dataclasses import asdict

import numpy as np
import pytest

from ringlight.workloads.graph import Collective, Split
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import MAGIC, pack, split_of, unpack
from tests.unit.workloads import canonical, many_kinds, outcome


def packed(header: bytes, rest: bytes = b"") -> bytes:
    return MAGIC + zlib.compress(struct.pack("<I", len(header)) + header + rest)


def test_what_was_packed_comes_out_the_same() -> None:
    workload = many_kinds()
    again = unpack(pack(workload))
    assert canonical(again) == canonical(workload)
    assert again.names == workload.names
    assert again.streams == workload.streams
    for mine, theirs in zip(workload.programs, again.programs, strict=True):
        np.testing.assert_array_equal(mine.seconds, theirs.seconds)
        np.testing.assert_array_equal(mine.after, theirs.after)
        assert theirs.kind.dtype == mine.kind.dtype
    assert pack(again) == pack(workload)


def test_a_workload_of_nothing_but_ranks() -> None:
    book = Book()
    workload = book.workload("idle", [Writer(book).done()], [0, 0], [[], []], [[], []])
    assert canonical(unpack(pack(workload))) == canonical(workload)


def test_an_operation_whose_name_has_a_zero_byte_is_refused() -> None:
    book = Book()
    writer = Writer(book)
    writer.compute("a\0b", seconds=1.0)
    workload = book.workload("one", [writer.done()], [0], [[]], [[]])
    with pytest.raises(ValueError, match="must not contain a zero byte"):
        pack(workload)


def test_it_is_small() -> None:
    book = Book()
    writer = Writer(book)
    for _ in range(10_000):
        writer.compute("layer", seconds=1e-3)
    assert (
        len(
            pack(
                book.workload(
                    "long", [writer.done()], [0] * 1000, [[]] * 1000, [[]] * 1000
                )
            )
        )
        < 5_000
    )


def refused(data: bytes, limit: int = 1 << 20) -> str:
    with pytest.raises(ValueError) as caught:
        unpack(data, limit)
    assert "\n" not in str(caught.value)
    return str(caught.value)


HEADER = (
    b'{"name": "x", "ranks": %d, "programs": 0, "slots": [0, 0], "streams": ["main"], "collectives": [],'
    b' "names": [0, 0], "arrays": [["<i1", %d], ["<i1", 0], ["<i1", 0], ["<i1", 0], ["<i1", 0]]}'
)


def test_damage_is_told_in_one_line() -> None:
    assert refused(b"PK\x03\x04") == "this is no packed workload"
    assert "data are damaged" in refused(MAGIC + b"xyz")
    assert "ends early" in refused(pack(many_kinds())[:-20])
    assert "do not end" in refused(pack(many_kinds()) + b"x")
    assert "no JSON at 0" in refused(packed(b"}"))
    assert "RecursionError" in refused(packed(b"[" * 200_000))
    assert "header is damaged" in refused(packed(b"[]"))
    assert "no number of anything" in refused(packed(HEADER % (-1, 0)))
    assert "its ranks or groups do not fit" in refused(packed(HEADER % (2, 1), b"\0"))
    assert "a rank's program is out of range" in refused(packed(HEADER % (1, 1), b"\0"))


def test_a_file_that_claims_to_be_large_costs_no_memory() -> None:
    bomb = MAGIC + zlib.compress(struct.pack("<I", 1 << 20) + bytes(1 << 28))
    big = packed(HEADER % (1, 1 << 30))
    tracemalloc.start()
    try:
        assert "no JSON" in refused(bomb, 1 << 21)
        assert "bytes of memory" in refused(big)
        assert "it takes more than" in refused(packed(b"0" * (1 << 20)))
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_file_is_the_same_or_refused_in_one_line(seed: int) -> None:
    """Half of them are changed before zlib's check sum is taken, so that they get past it."""
    draw = random.Random(seed)
    data = pack(many_kinds())
    inner = bytearray(zlib.decompress(data[len(MAGIC) :]) if seed % 2 else data)
    for _ in range(draw.choice((1, 1, 3))):
        way = draw.randrange(3)
        at = draw.randrange(len(inner))
        if way == 0:
            inner[at] ^= 1 << draw.randrange(8)
        elif way == 1:
            inner[at] = draw.randrange(256)
        elif len(inner) > 2:
            del inner[at : at + draw.choice((1, 8, len(inner)))]
            inner = inner or bytearray(b"x")
    changed = MAGIC + zlib.compress(bytes(inner)) if seed % 2 else bytes(inner)
    found = outcome(lambda: unpack(changed, 1 << 20))
    if found is not None:
        assert canonical(unpack(pack(found))) == canonical(found)


def test_sizes_of_an_all_to_all_are_kept() -> None:
    book = Book()
    writer = Writer(book)
    group = book.group([0, 1])
    writer.collective(
        "tokens", Collective("all-to-all", sizes=((0, 1 << 40), (4, 0))), 1 << 40, 0
    )
    workload = book.workload("two", [writer.done()], [0, 0], [[group]] * 2, [[]] * 2)
    assert unpack(pack(workload)).collectives == workload.collectives


@pytest.mark.parametrize(
    "fields",
    [
        {"skew": None},
        {"seed": 0.5},
        {"same_order": 1},
        {"draw": True},
        {"back": None},
        {"x": 1},
    ],
)
def test_a_split_has_fields_of_its_types(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the split of an all-to-all"):
        split_of(fields)


def test_a_split_is_read_as_it_was_written() -> None:
    for split in (
        Split(),
        Split(seed=3, skew=1.5, same_order=True, draw=7, back=True),
        Split(skew=2),
    ):
        assert split_of(asdict(split)) == split
