"""Traces in ``ringlight workload``, and how their files are found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.chakra import writer
from ringlight.workloads.formats.reading import read_any
from ringlight.workloads.formats.writing import write_any
from ringlight.workloads.packed import pack
from tests.unit.test_cli import ringlight
from tests.unit.workloads import canonical, many_kinds
from tests.workload_command import answer, refused

DATA = ROOT / "tests/extensions/chakra/data"
TRACE = str(DATA / "all_reduce")


def test_a_trace_is_named_by_one_of_its_files_its_name_or_all_files() -> None:
    assert read_any([DATA / "all_reduce.2.et"]).ranks == 4
    assert read_any([DATA / "custom_allreduce"]).ranks == 8
    assert read_any([DATA / f"all_gather.{rank}.et" for rank in range(4)]).ranks == 4


def test_groups_may_stand_among_the_files_of_a_trace(tmp_path: Path) -> None:
    files = writer.write(many_kinds(), tmp_path / "many kinds")
    files[-1].rename(tmp_path / "groups.json")
    found = read_any([*files[:-1], tmp_path / "groups.json"])
    assert canonical(found) == canonical(many_kinds())


def test_files_that_are_no_trace_are_told(tmp_path: Path) -> None:
    assert "there are no files NAME.RANK.et" in refused("show", str(tmp_path))
    (tmp_path / "groups.json").write_text(json.dumps({"1": [0]}))
    assert "a JSON file is one of process groups" in refused(
        "show", str(tmp_path / "groups.json")
    )
    shutil.copy(DATA / "all_reduce.0.et", tmp_path / "t.0.et")
    said = refused("show", str(tmp_path / "t.0.et"), str(DATA / "all_reduce.0.et"))
    assert "it is no file of the trace of" in said


def test_from_one_format_to_the_other_and_back(tmp_path: Path) -> None:
    packed, trace, again = (
        tmp_path / name for name in ("many kinds.rlw", "many kinds.et", "again.bin")
    )
    packed.write_bytes(pack(many_kinds()))
    files = answer("convert", str(packed), str(trace))["files"]
    assert files == [
        *(f"{tmp_path}/many kinds.{rank}.et" for rank in range(4)), f"{tmp_path}/many kinds.comm_group.json",
    ]  # fmt: skip
    answer(
        "convert", str(tmp_path / "many kinds.1.et"), "--format", "packed", str(again)
    )
    assert canonical(read_any([again])) == canonical(many_kinds())


def test_groups_and_shape_of_a_trace(tmp_path: Path) -> None:
    files = writer.write(many_kinds(), tmp_path / "many")
    files[-1].rename(tmp_path / "elsewhere.json")
    assert "nothing says which ranks pg_name" in refused("show", str(files[0]))
    assert (
        answer("show", str(files[0]), "--groups", str(tmp_path / "elsewhere.json"))[
            "ranks"
        ]
        == 4
    )
    assert answer("show", TRACE, "--shape", "2x2")["ranks"] == 4
    for path in DATA.glob("all_reduce.*.et"):
        shutil.copy(path, tmp_path)
    (tmp_path / "all_reduce.comm_group.json").write_text('{"one": [0]}')
    shown = ringlight("workload", "show", str(tmp_path / "all_reduce.0.et"))
    assert "all_reduce.comm_group.json: no collective of" in shown.stderr
    assert "it has 4 ranks, not 2 × 3" in refused("show", TRACE, "--shape", "2x3")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "gone.et"], "gone.et: there are no files NAME.RANK.et"),
        (["show", TRACE, "--shape", "2xx"], "--shape: '2xx' should be whole numbers"),
        (["show", TRACE, "--model-ranks", "2"], "has no use for model ranks"),
        (
            ["convert", "tests/data/stages.rlw", "/gone/x.et"],
            "/gone/x.0.et: No such file",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], said: str
) -> None:
    assert said in refused(*arguments)


def test_files_that_would_be_read_with_a_new_trace_are_refused(tmp_path: Path) -> None:
    write_any(many_kinds(), tmp_path / "a.et")
    write_any(many_kinds(), tmp_path / "a.et")
    (tmp_path / "a.4.et").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.4\.et: it would be read with this trace"):
        write_any(many_kinds(), tmp_path / "a.et")
