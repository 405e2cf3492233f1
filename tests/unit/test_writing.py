"""Files of a run folder when the disk is full: one line, and whole lines of what was written before."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ringlight.experiments.backends.protocol import BackendError
from ringlight.experiments.language.expand import load
from ringlight.experiments.record.events import Aborted, Record
from ringlight.experiments.record.folder import RunFolder
from ringlight.experiments.record.lab_records import PortRate
from ringlight.experiments.record.lines import read_records
from ringlight.experiments.record.writing import Lines, WriteError, write_whole, writing
from ringlight.experiments.runner.command import finish
from tests.simulated import records_of
from tests.unit.test_cli import MINI, one_line, ringlight

MOMENTS = 20
PAGE = 4096


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A file system of 8 MiB."""
    if os.geteuid() != 0:
        pytest.skip("root is needed to mount one")
    place = tmp_path_factory.mktemp("disk")
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "ringlight-test", str(place)],
        check=True,
    )
    yield place
    subprocess.run(["umount", str(place)], check=True)


def leave(disk: Path, room: int) -> None:
    """Fill the disk up to ``room`` bytes, in pages."""
    there = os.statvfs(disk)
    pages = there.f_bavail - room // PAGE
    with (disk / "ballast").open("wb") as file:
        file.write(bytes(pages * PAGE))


def empty(disk: Path) -> None:
    subprocess.run(["find", str(disk), "-mindepth", "1", "-delete"], check=True)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    found = records_of(load(MINI))
    return found[:600]


def write_run(parent: Path, records: list[Record]) -> Path:
    with RunFolder.new(parent, "mini", MINI.read_text()) as folder:
        folder.describe(backend="simulation", label="simulated")
        for record in records:
            folder.write([record])
    return folder.path


def test_a_full_disk_at_any_moment_is_one_line_and_leaves_whole_events(
    disk: Path, records: list[Record]
) -> None:
    write_run(disk / "runs", records)
    wanted = sum(
        -(-path.stat().st_size // PAGE) * PAGE
        for path in disk.rglob("*")
        if path.is_file()
    )
    for moment in range(MOMENTS):
        empty(disk)
        leave(disk, wanted * moment // MOMENTS)
        with pytest.raises(
            WriteError, match=r"cannot be (written|made): No space left on device$"
        ) as told:
            write_run(disk / "runs", records)
        assert "\n" not in str(told.value)
        assert not list((disk / "runs").glob("*/*.new"))
        for path in (disk / "runs").glob("*/events.jsonl"):
            text = path.read_text()
            assert text == "" or text.endswith("\n")
            found = [
                record
                for record in read_records(path)
                if not isinstance(record, Aborted | PortRate)
            ]
            assert (
                found
                == [r for r in records if not isinstance(r, PortRate)][: len(found)]
            )
            assert len(
                text
            ) >= wanted * moment // MOMENTS - 8 * PAGE or "throughput" in str(
                told.value
            )
    empty(disk)


def test_the_error_that_ended_a_run_is_told_also_on_a_full_disk(disk: Path) -> None:
    def run() -> None:
        with RunFolder.new(disk / "runs", "mini", MINI.read_text()):
            leave(disk, 0)
            raise BackendError("job red failed")

    with pytest.raises(BackendError, match=r"^job red failed$"):
        run()
    empty(disk)


def test_a_disk_that_is_full_when_the_report_is_drawn_says_how_to_go_on(
    disk: Path, records: list[Record]
) -> None:
    path = write_run(disk / "runs", records)
    for room in (0, 32 << 10):
        leave(disk, room)
        with pytest.raises(
            WriteError, match=r"No space left.*then: ringlight report .*mini"
        ) as told:
            finish(path)
        assert "\n" not in str(told.value)
        assert not (path / "result.json").exists()
        (disk / "ballast").unlink()
    empty(disk)


def test_the_command_ends_with_one_line_and_exit_code_1(disk: Path) -> None:
    leave(disk, 40 << 10)
    done = ringlight("simulate", str(MINI), "--runs", str(disk / "runs"), "--json")
    assert done.returncode == 1
    assert done.stdout == ""
    said = [line for line in done.stderr.splitlines() if line.startswith("ringlight: ")]
    assert len(said) == 1
    assert "No space left on device" in said[0]
    assert "Traceback" not in done.stderr
    empty(disk)


def test_what_the_command_prints_may_not_fit_either() -> None:
    with open("/dev/full", "w") as full:
        done = ringlight("check", str(MINI), stdout=full)
    assert done.returncode == 1
    assert (
        one_line(done)
        == "ringlight: what this command prints: cannot be written: No space left on device"
    )


def test_a_piece_that_does_not_fit_is_taken_back(disk: Path) -> None:
    leave(disk, 2 * PAGE)
    with closing(Lines(disk / "lines")) as lines:
        lines.append("a" * 99 + "\n")
        with pytest.raises(
            WriteError, match="lines: cannot be written: No space left on device"
        ):
            lines.append("b" * 4 * PAGE + "\n")
        assert (disk / "lines").read_text() == "a" * 99 + "\n"
        lines.append("c\n")
    assert (disk / "lines").read_text() == "a" * 99 + "\nc\n"
    empty(disk)


def test_a_file_that_cannot_be_written_whole_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(
        WriteError, match=r"nowhere.*cannot be written: No such file or directory"
    ):
        write_whole(tmp_path / "nowhere" / "result.json", "{}")
    (tmp_path / "result.json").mkdir()
    with pytest.raises(WriteError, match=r"result\.new|result\.json"):
        write_whole(tmp_path / "result.json", "{}")
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_an_error_without_a_file_is_given_one(tmp_path: Path) -> None:
    told = pytest.raises(
        WriteError, match=r"plots: cannot be written: .*full; make room"
    )
    with told, writing(tmp_path / "plots", "make room"):
        raise OSError("the disk is full")
