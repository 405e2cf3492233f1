"""Files of workloads are recognised by what is in them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ringlight.containers.image import ROOT
from ringlight.extensions.chakra import writer
from ringlight.workloads.formats.reading import Options, read_any
from ringlight.workloads.packed import pack
from tests.unit.workloads import canonical, many_kinds

DATA = ROOT / "tests/data"


def test_each_format_is_recognised(tmp_path: Path) -> None:
    assert read_any([DATA / "chakra/all_reduce.2.et"]).ranks == 4
    assert read_any([DATA / "chakra/custom_allreduce"]).ranks == 8
    assert read_any([DATA / f"chakra/all_gather.{rank}.et" for rank in range(4)]).ranks == 4
    assert read_any([DATA / "simai/microAllReduce.txt"]).ranks == 8
    assert read_any([DATA / "astra_sim/MLP_ModelParallel.txt"], Options(ranks=6)).ranks == 6
    for name in ("m.csv", "m.txt"):
        (tmp_path / name).write_text("0, 1\n2, 0\n")
        assert read_any([tmp_path / name]).ranks == 2
    (tmp_path / "w").write_bytes(pack(many_kinds()))
    assert canonical(read_any([tmp_path / "w"])) == canonical(many_kinds())


def test_groups_may_stand_among_the_files_of_a_trace(tmp_path: Path) -> None:
    files = writer.write(many_kinds(), tmp_path / "many kinds")
    files[-1].rename(tmp_path / "groups.json")
    found = read_any([*files[:-1], tmp_path / "groups.json"])
    assert canonical(found) == canonical(many_kinds())


def refused(paths: list[Path]) -> str:
    with pytest.raises(ValueError) as caught:
        read_any(paths)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_fits_no_format_is_told(tmp_path: Path) -> None:
    assert refused([]) == "there is no file to read"
    assert "gone.txt: No such file" in refused([tmp_path / "gone.txt"])
    assert "there are no files NAME.RANK.et" in refused([tmp_path])
    (tmp_path / "notes.txt").write_text("hello\n")
    assert "no format fits; there are Chakra traces" in refused([tmp_path / "notes.txt"])
    (tmp_path / "groups.json").write_text(json.dumps({"1": [0]}))
    (tmp_path / "notes.md").write_text("# Notes\n\nhello\n")
    assert "no format fits" in refused([tmp_path / "notes.md"])
    assert "a JSON file is one of process groups" in refused([tmp_path / "groups.json"])
    text = DATA / "simai/microAllReduce.txt"
    assert "is a workload text, which is one file" in refused([text, tmp_path / "notes.txt"])
    shutil.copy(DATA / "chakra/all_reduce.0.et", tmp_path / "t.0.et")
    assert "it is no file of the trace of" in refused([tmp_path / "t.0.et", DATA / "chakra/all_reduce.0.et"])
    (tmp_path / "broken").write_bytes(pack(many_kinds())[:-9])
    assert f"{tmp_path}/broken: a packed workload: " in refused([tmp_path / "broken"])
