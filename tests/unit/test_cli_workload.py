"""``ringlight workload show`` and ``convert``, and what is written and read again."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest
import yaml

from ringlight.experiments.cli.common import patience
from ringlight.workloads.formats import matrix, reading
from ringlight.workloads.formats.reading import formats
from ringlight.workloads.formats.writing import write_any
from ringlight.workloads.packed import pack
from ringlight.workloads.traffic import traffic as traffic_matrix
from tests.simulated import SIX_GPUS
from tests.unit.test_cli import ROOT, ringlight
from tests.unit.workloads import many_kinds
from tests.workload_command import answer, refused

STAGES = ROOT / "tests/data/stages.rlw"


def test_a_workload_is_shown() -> None:
    found = answer("show", str(STAGES))
    assert (found["ranks"], found["programs"], found["operations"]) == (4, 2, 876)
    called = {(part["purpose"], part["called"]) for part in found["traffic"]}  # type: ignore[attr-defined]
    assert called == {
        ("pp", "message"),
        ("embedding", "all-reduce"),
        ("dp", "all-reduce"),
    }
    text = ringlight("workload", "show", str(STAGES)).stdout
    assert "4 ranks, 2 different programs; 876 operations." in text
    assert (
        "To run it, in a scenario beside it: jobs: {train: {gpus: 4, workload: {files: stages.rlw}}}"
        in text
    )


def test_what_show_says_to_run_is_run_by_a_scenario(tmp_path: Path) -> None:
    (tmp_path / "g.rlw").write_bytes(pack(many_kinds()))
    text = ringlight("workload", "show", str(tmp_path / "g.rlw")).stdout
    assert "not all of it has a time: give --device" in text
    jobs = text.partition("beside it: ")[2].partition("\n")[0]
    assert jobs == "jobs: {train: {gpus: 4, workload: {files: g.rlw, device: DEVICE}}}"
    raw = {
        key: value
        for key, value in yaml.safe_load(SIX_GPUS).items()
        if key != "training"
    }
    raw |= yaml.safe_load(jobs.replace("DEVICE", "a100"))
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(raw))
    done = ringlight("check", str(tmp_path / "a.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    (arm,) = json.loads(done.stdout)["arms"].values()
    assert arm["jobs"]["train"]["workload"]["name"] == "many kinds"
    assert arm["jobs"]["train"]["compute_s"] > 0
    assert "by all ranks" in ringlight("check", str(tmp_path / "a.yaml")).stdout


def test_a_matrix_is_packed(tmp_path: Path) -> None:
    (tmp_path / "m.csv").write_text("0,8\n4,0\n")
    answer(
        "convert",
        str(tmp_path / "m.csv"),
        "--format",
        "packed",
        str(tmp_path / "m.bin"),
    )
    assert traffic_matrix(reading.read_any([tmp_path / "m.bin"])).tolist() == [
        [0, 8],
        [4, 0],
    ]


def test_a_matrix_and_a_timeline(tmp_path: Path) -> None:
    out, line = tmp_path / "m.csv", tmp_path / "t.json"
    more = ("--matrix", str(out), "--perfetto", str(line), "--rate", "400 Gbit/s")
    found = answer("show", str(STAGES), *more)
    wanted = traffic_matrix(reading.read_any([STAGES]))
    assert np.array_equal(traffic_matrix(matrix.read(out)), wanted)
    spans = [
        event
        for event in json.loads(line.read_text())["traceEvents"]
        if event["ph"] == "X"
    ]
    assert len(spans) == found["operations"] == found["perfetto"]["spans"]  # type: ignore[index]
    assert len({event["pid"] for event in spans}) == 4
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(
        1e6 * found["perfetto"]["seconds"], rel=1e-6  # type: ignore[index]
    )  # fmt: skip
    assert {event["cat"] for event in spans} == {
        "compute",
        "memory",
        "send",
        "receive",
        "all-reduce",
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["show", "README.md"], "README.md: no format fits"),
        (["convert", "x"], "give the files of a workload, and OUT"),
        (
            ["show", "tests/data/stages.rlw", "--device", "z80"],
            "--device: no device z80; there are",
        ),
        (
            ["show", "tests/data/stages.rlw", "--efficiency", "0.5"],
            "--efficiency: it is of a device",
        ),
        (
            ["show", "tests/data/stages.rlw", "--perfetto", "x", "--rate", "3"],
            "--rate: '3' is not a",
        ),
        (
            ["show", "tests/data/stages.rlw", "--matrix", "/gone/m"],
            "--matrix: /gone/m: No such file",
        ),
        (["convert", "tests/data/stages.rlw", "x.csv"], "x.csv: it should end with "),
        (
            ["convert", "tests/data/stages.rlw", "/gone/x.rlw"],
            "/gone/x.rlw: No such file",
        ),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_2(
    arguments: list[str], said: str
) -> None:
    assert said in refused(*arguments)


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    chance, whole, path = random.Random(11), pack(many_kinds()), tmp_path / "a.rlw"
    for _ in range(5):
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert refused("show", str(path)).startswith(f"{path}: ")


@pytest.mark.parametrize(
    "name", [form.name for form in formats() if form.write is not None]
)
def test_what_is_not_read_as_it_was_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    other = reading.read_any([STAGES])
    monkeypatch.setattr("ringlight.workloads.formats.writing.read_any", lambda _: other)
    with pytest.raises(
        ValueError, match="what was written is not what is read from it"
    ):
        write_any(many_kinds(), tmp_path / "a", name)


def test_who_waits_is_told_what_for(capfd: pytest.CaptureFixture[str]) -> None:
    with patience("quick", 30):
        pass
    with patience("reading", 0.01):
        deadline = time.monotonic() + 5
        said = ""
        while not said and time.monotonic() < deadline:
            time.sleep(0.01)
            said = capfd.readouterr().err
    assert said == "ringlight: reading\n"
