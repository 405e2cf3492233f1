"""Traffic matrices in and out."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from ringlight.workloads.formats.matrix import read, write
from ringlight.workloads.formats.reading import read_any
from ringlight.workloads.graph import Collective, Split, Workload
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import pack, unpack
from ringlight.workloads.splits import split_bytes
from ringlight.workloads.traffic import traffic
from tests.unit.workloads import canonical, many_kinds, outcome

ROWS = "# bytes\n0, 4096,12\n\n8,0,1099511627776\n0,4,0\n"


def one(what: Collective, ranks: int, size: int, calls: int = 1) -> Workload:
    book = Book()
    writer = Writer(book)
    group = book.group(range(ranks))
    for _ in range(calls):
        writer.collective("c", what, size, 0)
    return book.workload(
        "one", [writer.done()], [0] * ranks, [[group]] * ranks, [[]] * ranks
    )


def test_a_matrix_is_one_all_to_all_and_comes_out_the_same(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text(ROWS)
    workload = read(tmp_path / "m.csv")
    expected = ((0, 4096, 12), (8, 0, 1 << 40), (0, 4, 0))
    assert workload.name == "m"
    assert workload.collectives == (Collective("all-to-all-v", sizes=expected),)
    assert traffic(workload).tolist() == [list(row) for row in expected]
    write(workload, tmp_path / "again.csv")
    assert (
        tmp_path / "again.csv"
    ).read_text() == "0,4096,12\n8,0,1099511627776\n0,4,0\n"


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_diagonal_is_what_a_rank_keeps_and_a_byte_order_mark_is_none_of_the_numbers(
    mark: str, tmp_path: Path
) -> None:
    (tmp_path / "m").write_text(mark + "7,4096\r\n8,9\r\n")
    workload = read_any([tmp_path / "m"])
    assert workload.collectives == (
        Collective("all-to-all-v", sizes=((0, 4096), (8, 0))),
    )
    assert traffic(workload).tolist() == [[0, 4096], [8, 0]]


@pytest.mark.parametrize(
    ("what", "total"),
    [
        (Collective("all-reduce", "ring"), 2 * 5 * 6000),
        (Collective("all-reduce"), 2 * 5 * 6000),
        (Collective("reduce-scatter"), 5 * 6000),
        (Collective("all-gather"), 5 * 6000),
        (Collective("broadcast", root=3), 5 * 6000),
        (Collective("all-to-all"), 5 * 6000),
    ],
)
def test_what_ranks_send_is_by_the_schedule(what: Collective, total: int) -> None:
    found = traffic(one(what, 6, 6000))
    assert found.sum() == total
    assert not found.diagonal().any()
    assert (traffic(one(what, 6, 6000, calls=3)) == 3 * found).all()


def test_a_ring_sends_to_its_neighbours_only() -> None:
    found = traffic(one(Collective("all-reduce", "ring"), 4, 4096))
    assert found.tolist() == [
        [0, 6144, 0, 0],
        [0, 0, 6144, 0],
        [0, 0, 0, 6144],
        [6144, 0, 0, 0],
    ]


def test_messages_and_collectives_of_groups_add_up() -> None:
    found = traffic(many_kinds())
    away = [split_bytes(Split(3, 1.2), 2, 1 << 16, (group, 0, 0)) for group in (1, 2)]
    reduced = 2 * 3 * (1 << 22)
    sent = (
        4 * 4096
        + sum(int(parts[0, 1] + parts[1, 0]) for parts in away)
        + reduced
        + 3 * 1024
    )
    assert abs(int(found.sum()) - sent) <= 16


def test_skewed_all_to_alls_are_those_of_the_first_iteration() -> None:
    split = Split(seed=7, skew=1.0)
    found = traffic(one(Collective("all-to-all-v", split=split), 5, 4000, calls=2))
    expected = sum(split_bytes(split, 5, 4000, (0, call, 0)) for call in (0, 1))
    np.fill_diagonal(expected, 0)
    assert (found == expected).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "m.csv: it has no rows"),
        ("0,1\n", "m.csv, line 1: it has 2 columns, there are 1 rows"),
        ("0,1\n1,0,3\n", "m.csv, line 2: it has 3 columns, there are 2 rows"),
        ("0,1\n-4,0\n", "m.csv, line 2, column 1: '-4' is no number of bytes"),
        ("0,1\n1,x\n", "m.csv, line 2, column 2: 'x' is no number of bytes"),
        ("0,1\n1,nan\n", "'nan' is no number of bytes"),
        (
            "0,9999999999999999999\n1,0\n",
            "line 1, column 2: '9999999999999999999' is no number of bytes",
        ),
        ("0," * 3000, "line 1: a matrix may have 2048 ranks"),
        ("0\n" * 3000, "line 2049: a matrix may have 2048 ranks"),
    ],
)
def test_mistakes_are_named_by_line_and_column(
    tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "m.csv").write_text(content)
    with pytest.raises(ValueError, match=r"m\.csv") as caught:
        read(tmp_path / "m.csv")
    assert message in str(caught.value)


def test_a_matrix_of_too_many_ranks_is_not_written() -> None:
    with pytest.raises(ValueError, match="a matrix may have 4096 ranks, not 5000"):
        traffic(one(Collective("all-reduce"), 5000, 4))


@pytest.mark.parametrize("seed", range(200))
def test_a_changed_matrix_is_read_or_refused_in_one_line(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    data = bytearray(ROWS.encode())
    for _ in range(draw.choice((1, 1, 4))):
        way, at = draw.randrange(4), draw.randrange(len(data))
        if way == 0:
            data[at] = draw.randrange(256)
        elif way == 1:
            data[at:at] = draw.choice(
                (b",", b"\n", b"0", b"#", b"-", b"9" * 5000, b'"', b"1e3", b"\0")
            )
        else:
            del data[at : at + draw.choice((1, 5, len(data)))]
            data = data or bytearray(b"x")
    path = tmp_path / "m.csv"
    path.write_bytes(data)
    found = outcome(lambda: read(path))
    if found is not None:
        assert canonical(unpack(pack(found))) == canonical(found)
        assert traffic(found).shape == (found.ranks, found.ranks)
