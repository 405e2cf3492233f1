"""Chakra execution traces: those of others load, ours come back the same, damage is told in one line."""

from __future__ import annotations

import json
import random
import shutil
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.chakra.names import files_of
from ringlight.extensions.chakra.reader import read
from ringlight.extensions.chakra.schema import CommType, Metadata, Node, NodeType
from ringlight.extensions.chakra.writer import delimited, encoded, write
from ringlight.fabric.kinds import collective_steps
from ringlight.fabric.steps import WrittenSteps
from ringlight.workloads.graph import Collective, Kind, Workload
from ringlight.workloads.graph_writer import Book, Writer
from ringlight.workloads.packed import unpack
from ringlight.workloads.traffic import traffic
from tests.unit.workloads import canonical, many_kinds, outcome

DATA = ROOT / "tests/extensions/chakra/data"

Attributes = dict[str, Any]


def node(
    number: int, what: int, after: tuple[int, ...] = (), name: str = "", **said: Any
) -> Node:
    """A node; ``micros`` and ``inputs`` are fields, the rest attributes."""
    made = Node(id=number, name=name or f"node {number}", type=what, data_deps=after)
    made.duration_micros = said.pop("micros", 0)
    made.inputs.values = said.pop("inputs", "")
    fields = {
        int: "int64_val",
        bool: "bool_val",
        str: "string_val",
        float: "double_val",
        list: "bool_list",
    }
    for key, value in said.items():
        unsigned = type(value) is int and value >= 1 << 63
        made.attr.append(
            encoded(key, "uint64_val" if unsigned else fields[type(value)], value)
        )
    return made


def trace(folder: Path, *ranks: list[Node]) -> Path:
    """Files of one trace."""
    for rank, nodes in enumerate(ranks):
        data = [delimited(Metadata(version="0.0.4")), *map(delimited, nodes)]
        (folder / f"t.{rank}.et").write_bytes(b"".join(data))
    return folder / "t"


def reduction(number: int = 1, **said: Any) -> Node:
    said = {"comm_type": int(CommType.ALL_REDUCE), "comm_size": 4096} | said
    return node(number, NodeType.COMM_COLL, **said)


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(ValueError) as caught:
        read(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("all-reduce", 1 << 20),
        ("all-gather", 4 << 20),
        ("all-to-all", 1 << 20),
        ("reduce-scatter", 1 << 20),
    ],
)
def test_the_microbenchmarks_of_astra_sim_load(name: str, size: int) -> None:
    """An all-gather's size is what each rank puts in there, and what each has in the end here."""
    workload = read(DATA / name.replace("-", "_"))
    (program,) = workload.programs
    assert workload.ranks == 4
    assert [workload.collectives[k].kind for k in program.collective.tolist()] == [name]
    assert program.bytes.tolist() == [size]
    assert [group.tolist() for group in workload.groups] == [[0, 1, 2, 3]]


def test_a_custom_collective_of_astra_sim_loads_as_messages_round_a_ring() -> None:
    workload = read(DATA / "custom_allreduce.5.et")
    (program,) = workload.programs
    assert workload.ranks == 8
    sends = program.kind == Kind.SEND
    assert sends.sum() == (program.kind == Kind.RECEIVE).sum() == 14
    assert set(program.bytes[sends].tolist()) == {1 << 17}
    assert workload.peers.tolist() == [
        [(rank + 1) % 8, (rank - 1) % 8] for rank in range(8)
    ]


def test_what_was_written_is_read_the_same(tmp_path: Path) -> None:
    workload = many_kinds()
    files = write(workload, tmp_path / workload.name)
    assert [file.name for file in files][-1] == "many kinds.comm_group.json"
    again = read(tmp_path)
    assert canonical(again) == canonical(workload)
    assert len(again.programs) == 1


def test_unequal_splits_come_back_as_they_are_drawn(tmp_path: Path) -> None:
    """They are drawn by the number of their group, which must be the same one."""
    workload = many_kinds()
    write(workload, tmp_path / "t")
    assert (traffic(read(tmp_path / "t")) == traffic(workload)).all()


def test_every_kind_that_there_is_comes_back(tmp_path: Path) -> None:
    book = Book()
    writer = Writer(book)
    group = book.group([2, 0, 1])
    for what in (
        Collective("all-reduce", "halving-doubling-striped"),
        Collective("all-gather"),
        Collective("reduce-scatter"),
        Collective("broadcast", root=2),
        Collective("reduce", root=1),
        Collective("all-to-all", "bruck"),
        Collective("all-to-all-v", sizes=((0, 4, 8), (12, 0, 16), (1 << 40, 1, 0))),
    ):
        writer.collective(what.kind, what, 1001, 0)
    workload = book.workload("kinds", [writer.done()], [0] * 3, [[group]] * 3, [[]] * 3)
    write(workload, tmp_path / "kinds")
    assert canonical(read(tmp_path / "kinds")) == canonical(workload)


def test_times_and_flops_come_back_exactly(tmp_path: Path) -> None:
    book = Book()
    writer = Writer(book)
    for seconds in (0.0, 1e-6, 1.2345e-3, 7e-9, 3.0):
        writer.compute("t", seconds=seconds)
    for flops in (0.0, 1.5, 2e9, 1e30):
        writer.compute("f", flops=flops)
    writer.compute("both", seconds=0.25, flops=3.0)
    workload = book.workload("times", [writer.done()], [0], [[]], [[]])
    write(workload, tmp_path / "times")
    assert canonical(read(tmp_path / "times")) == canonical(workload)


def test_a_workload_of_many_operations_comes_back(tmp_path: Path) -> None:
    """With seconds of the optimiser's memory, and two streams of one group: two communicators of it."""
    workload = unpack((DATA / "sharded.rlw").read_bytes())
    write(workload, tmp_path / "sharded")
    assert canonical(read(tmp_path / "sharded")) == canonical(
        replace(workload, name="sharded")
    )


def test_a_trace_has_no_place_for_an_algorithm(tmp_path: Path) -> None:
    own = WrittenSteps.of(collective_steps("all-reduce", "ring", 2))
    writer = Writer(book := Book())
    writer.collective("c", Collective("all-reduce", own=own), 4096, 0)
    workload = book.workload(
        "own", [writer.done()], [0, 0], [[book.group([0, 1])]] * 2, [[]] * 2
    )
    with pytest.raises(
        ValueError, match="a Chakra trace has no place for the schedule ring"
    ):
        write(workload, tmp_path / "a")


def test_nodes_may_stand_in_any_order(tmp_path: Path) -> None:
    nodes = [
        node(3, NodeType.COMP, (9,), micros=3),
        node(9, NodeType.COMP, micros=9),
        reduction(1, micros=0),
    ]
    workload = read(trace(tmp_path, nodes))
    assert [workload.names[k] for k in workload.programs[0].name.tolist()] == [
        "node 9",
        "node 3",
        "node 1",
    ]


def test_a_circle_of_dependencies_is_told(tmp_path: Path) -> None:
    nodes = [node(k, NodeType.COMP, ((k + 1) % 3,)) for k in range(3)]
    assert "t: " in (said := refused(trace(tmp_path, nodes))) or "t.0.et" in said
    assert "node 0: it waits for itself" in said


def test_groups_come_from_a_file_from_the_trace_or_are_the_world(
    tmp_path: Path,
) -> None:
    pairs = {"7": [0, 1], "8": [2, 3]}
    path = trace(
        tmp_path,
        *(
            [reduction(1, pg_name="7" if r < 2 else "8"), reduction(2)]
            for r in range(4)
        ),
    )
    assert "nothing says which ranks pg_name '7' has" in refused(path)
    (tmp_path / "groups.json").write_text(json.dumps(pairs))
    workload = read(path, groups=tmp_path / "groups.json")
    assert [group.tolist() for group in workload.groups] == [
        [0, 1],
        [2, 3],
        [0, 1, 2, 3],
    ]
    assert len(workload.programs) == 1
    listed = json.dumps(
        [{"pg_name": name, "ranks": ranks} for name, ranks in pairs.items()]
    )
    said = node(0, NodeType.METADATA, inputs=f"['{listed}']")
    nodes = (
        [said, reduction(1, pg_name="7" if r < 2 else "8"), reduction(2)]
        for r in range(4)
    )
    assert [g.tolist() for g in read(trace(tmp_path, *nodes)).groups] == [
        [0, 1],
        [0, 1, 2, 3],
        [2, 3],
    ]


@pytest.mark.parametrize("attribute", ["pg_name", "comm_group"])
@pytest.mark.parametrize("kind", [int, str])
def test_a_group_is_named_by_either_attribute_as_a_number_or_text(
    attribute: str, kind: type, tmp_path: Path
) -> None:
    path = trace(
        tmp_path,
        *(
            [reduction(1, **{attribute: kind(7 + r // 2)}), reduction(2)]
            for r in range(4)
        ),
    )
    assert f"nothing says which ranks {attribute} '7' has; give a file" in refused(path)
    (tmp_path / "t.comm_group.json").write_text(json.dumps({"7": [0, 1], "8": [2, 3]}))
    assert [g.tolist() for g in read(path).groups] == [[0, 1], [2, 3], [0, 1, 2, 3]]
    path = trace(tmp_path, *([reduction(1, **{attribute: kind(0)})] for _ in range(4)))
    assert [g.tolist() for g in read(path).groups] == [[0, 1, 2, 3]]
    (tmp_path / "t.comm_group.json").unlink()
    assert f"{attribute} is True" in refused(
        trace(tmp_path, [reduction(1, **{attribute: True})])
    )


def test_a_file_of_groups_that_no_collective_names_is_reported(tmp_path: Path) -> None:
    path = trace(tmp_path, *([reduction(1)] for _ in range(4)))
    unused = f"groups.json: no collective of {path} names a group of this file (pg_name, comm_group)"
    (tmp_path / "groups.json").write_text(json.dumps({"7": [0, 1]}))
    assert refused(path, groups=tmp_path / "groups.json").endswith(unused)
    (tmp_path / "groups.json").rename(tmp_path / "t.comm_group.json")
    lines: list[str] = []
    assert len(read(path, notice=lines.append).groups) == 1
    assert lines == [f"{tmp_path}/{unused.replace('groups.json', 't.comm_group.json')}"]
    path = trace(tmp_path, *([reduction(1, pg_name="7")] for _ in range(2)))
    (tmp_path / "t.2.et").unlink()
    (tmp_path / "t.3.et").unlink()
    read(path, notice=lines.append)
    assert len(lines) == 1


def test_process_groups_hold_from_where_they_are_listed(tmp_path: Path) -> None:
    def listed(number: int, ranks: list[int]) -> Node:
        said = json.dumps([{"pg_name": "7", "ranks": ranks}])
        return node(number, NodeType.METADATA, inputs=f"['{said}']")

    nodes = [
        listed(0, [0, 1]),
        reduction(1, pg_name="7"),
        listed(2, [1, 0]),
        reduction(3, pg_name="7"),
    ]
    assert [g.tolist() for g in read(trace(tmp_path, nodes, nodes)).groups] == [
        [0, 1],
        [1, 0],
    ]


def test_dimensions_of_a_network_need_its_shape(tmp_path: Path) -> None:
    path = trace(
        tmp_path, *([reduction(1, involved_dim=[True, False])] for _ in range(6))
    )
    assert "give its shape (--shape 4x2" in refused(path)
    assert "not 2 × 2" in refused(path, shape=(2, 2))
    assert [g.tolist() for g in read(path, shape=(2, 3)).groups] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]
    path = trace(
        tmp_path, *([reduction(1, involved_dim=[False, True])] for _ in range(6))
    )
    assert [g.tolist() for g in read(path, shape=(2, 3)).groups] == [
        [0, 2, 4],
        [1, 3, 5],
    ]
    path = trace(tmp_path, *([reduction(1, involved_dim=[True] * 5)] for _ in range(6)))
    assert [g.tolist() for g in read(path).groups] == [[0, 1, 2, 3, 4, 5]]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ([node(5, 9)], "byte 8: node 5: 9 is no type of a node"),
        (
            [node(5, NodeType.COMP), node(5, NodeType.COMP)],
            "node 5: there is another one of this id",
        ),
        (
            [node(5, NodeType.COMP, (4,))],
            "node 5: it depends on node 4, which is not there",
        ),
        ([node(5, NodeType.COMM_COLL)], "node 5: it has no comm_type"),
        (
            [reduction(5, comm_type=3)],
            "node 5: comm_type 3 (GATHER) is none that we have",
        ),
        ([reduction(5, comm_type=42)], "comm_type 42 (unknown)"),
        ([reduction(5, comm_size=-4)], "node 5: comm_size is -4"),
        ([reduction(5, comm_size="many")], "node 5: comm_size is 'many'"),
        ([reduction(5, comm_size=1 << 62)], "node 5: a number of it is too large"),
        ([reduction(5, root=1)], "root 1 is none of the 1 ranks"),
        ([node(5, NodeType.COMM_SEND, comm_size=4)], "node 5: it has no comm_dst"),
        (
            [node(5, NodeType.COMM_SEND, comm_size=4, comm_dst=3)],
            "comm_dst 3 is none of the 1 ranks",
        ),
        (
            [node(5, NodeType.COMM_SEND, comm_size=4, comm_src=1 << 63, comm_dst=0)],
            "comm_src 9223372036854775808 is none of the 1 ranks",
        ),
        (
            [node(5, NodeType.COMM_SEND, comm_size=4, comm_dst=0, comm_tag=1 << 63)],
            "node 5: a number of it is too large",
        ),
        (
            [node(5, NodeType.COMM_SEND, comm_size=4, comm_dst=0)],
            "rank 0: it has no peer for slot 0",
        ),
        ([node(5, NodeType.COMP, num_ops=-1.0)], "node 5: num_ops is -1.0"),
        ([], "it has no nodes"),
    ],
)
def test_mistakes_are_named_with_file_and_node(
    tmp_path: Path, nodes: list[Node], message: str
) -> None:
    said = refused(trace(tmp_path, nodes))
    assert message in said
    assert said.startswith(f"{tmp_path}/t")


@pytest.mark.parametrize(
    "raw", [b"", b"\n", b"\n\x09comm_size", b"\xd8\x01\x00", b"H\x80"]
)
def test_attributes_that_are_cut_off_are_passed_over_or_refused(
    tmp_path: Path, raw: bytes
) -> None:
    cut = node(5, NodeType.COMP, micros=1)
    cut.attr.append(raw)
    path = trace(tmp_path, [cut])
    if outcome(lambda: read(path)) is None:
        assert "node 5: one of its attributes " in refused(path)


def test_tags_are_read_and_must_be_numbers(tmp_path: Path) -> None:
    ends = {"comm_size": 4, "comm_src": 0, "comm_dst": 1}
    ways = (NodeType.COMM_SEND, NodeType.COMM_RECV)
    ranks = [[node(k, way, comm_tag=3 * k, **ends) for k in range(3)] for way in ways]
    assert [one.tag.tolist() for one in read(trace(tmp_path, *ranks)).programs] == [
        [0, 3, 6]
    ] * 2
    ranks[1][2] = node(2, NodeType.COMM_RECV, comm_tag="x", **ends)
    assert "node 2: comm_tag is 'x'" in refused(trace(tmp_path, *ranks))


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    assert "there are no files NAME.RANK.et" in refused(tmp_path / "x.0.et")
    shutil.copy(DATA / "all_reduce.0.et", tmp_path / "x.0.et")
    shutil.copy(DATA / "all_reduce.0.et", tmp_path / "x.2.et")
    assert "x.1.et: it is missing" in refused(tmp_path / "x")
    shutil.copy(DATA / "all_reduce.0.et", tmp_path / "y.0.et")
    assert "it has the traces x, y" in refused(tmp_path)
    assert [file.name for file in files_of(tmp_path / "y")] == ["y.0.et"]


def test_a_claim_of_much_costs_no_memory(tmp_path: Path) -> None:
    """Lengths beyond the file, and a million empty messages."""
    (tmp_path / "t.0.et").write_bytes(b"\xff\xff\xff\xff\x0f")
    assert "byte 0: a message of" in refused(tmp_path / "t")
    (tmp_path / "t.0.et").write_bytes(bytes(1_000_000))
    tracemalloc.start()
    try:
        assert "byte 1: node 0: 0 is no type of a node" in refused(tmp_path / "t")
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(200))
def test_a_changed_trace_is_read_or_refused_in_one_line(
    tmp_path: Path, seed: int
) -> None:
    draw = random.Random(seed)
    source = draw.choice([_written, _of_a_ring, _of_fields])
    files = source(tmp_path, draw)
    victim = draw.choice(files)
    data = bytearray(victim.read_bytes())
    for _ in range(draw.choice((1, 1, 4))):
        at = draw.randrange(len(data))
        way = draw.randrange(3)
        if way == 0:
            data[at] ^= 1 << draw.randrange(8)
        elif way == 1:
            data[at] = draw.randrange(256)
        elif len(data) > 2:
            del data[at : at + draw.choice((1, 7, len(data)))]
            data = data or bytearray(b"x")
    victim.write_bytes(data)
    found = outcome(lambda: read(files[0]))
    if found is not None and not any("\0" in name for name in found.names):
        _same_again(found, tmp_path / "again")


def _same_again(found: Workload, path: Path) -> None:
    write(found, path)
    again = read(path)
    assert canonical(again)["ranks"] == canonical(found)["ranks"]


def _written(folder: Path, draw: random.Random) -> list[Path]:
    return write(many_kinds(), folder / "t")


def _of_a_ring(folder: Path, draw: random.Random) -> list[Path]:
    return [
        Path(shutil.copy(DATA / f"custom_allreduce.{k}.et", folder / f"t.{k}.et"))
        for k in range(8)
    ]


def _of_fields(folder: Path, draw: random.Random) -> list[Path]:
    """Well-formed messages with wrong things in them."""
    wrong: list[Callable[[], Any]] = [
        lambda: -1,
        lambda: 1 << 62,
        lambda: "text",
        lambda: True,
        lambda: float("nan"),
        lambda: [True, False],
        lambda: draw.randrange(12),
    ]
    nodes = []
    for number in range(4):
        said: Attributes = {
            "comm_type": 0,
            "comm_size": 64,
            "pg_name": "0",
            "seconds": 1e-3,
            "root": 0,
        }
        for key in draw.sample(
            [*said, "size", "algorithm", "split", "sizes", "stream", "num_ops", "kind"],
            2,
        ):
            said[key] = draw.choice(wrong)()
        nodes.append(node(number, draw.randrange(9), tuple(range(number)), **said))
    trace(folder, nodes)
    return [folder / "t.0.et"]


def test_a_trace_that_cannot_be_written_leaves_no_file(tmp_path: Path) -> None:
    found = many_kinds()
    (tmp_path / "t.comm_group.json").mkdir()
    with pytest.raises(ValueError, match=r"comm_group\.json"):
        write(found, tmp_path / "t")
    assert [path.name for path in tmp_path.iterdir()] == ["t.comm_group.json"]
