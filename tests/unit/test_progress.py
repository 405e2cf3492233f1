"""What a person sees of a run's progress: on a terminal, where a bar is drawn anew, and elsewhere."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from ringlight.experiments.runner import progress
from ringlight.experiments.runner.progress import Notes, Reporter

LINE = re.compile(r" *[0-9]+\.[0-9] s  (?P<text>.+)")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def screen(written: str) -> list[str]:
    """The lines that stay on a terminal: a bar goes to the line's beginning, up, and erases lines."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|.", written, re.DOTALL):
        if part == "\n":
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            count = int(re.sub(r"\D", "", part) or 1)
            if part.endswith("A"):
                row -= count
            elif part == "\x1b[2K":
                lines[row] = ""
        else:
            lines[row] = (
                lines[row][:column].ljust(column) + part + lines[row][column + 1 :]
            )
            column += 1
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize("jobs", [{"red": 5}, {"red": 5, "blue": 5}])
def test_lines_keep_their_time_when_the_bar_is_drawn_again(
    jobs: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    written = Terminal()
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stderr", written)
    reporter = Reporter()
    reporter.start_run("the run", jobs)
    for number in range(5):
        reporter.advance(lambda: dict.fromkeys(jobs, number))  # noqa: B023
        reporter.say(f"[event] {number}", style="yellow")
    reporter.end_run()
    reporter.say("end")
    found = [LINE.fullmatch(line) for line in screen(written.getvalue())]
    texts = [one["text"] for one in found if one is not None]
    assert texts == ["the run", *(f"[event] {number}" for number in range(5)), "end"]
    assert len(texts) == len(found)


def test_many_jobs_are_counted_not_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    few, many = {"red": 4, "blue": 4}, {f"j{number}": 4 for number in range(2048)}
    for jobs in (few, many):
        reporter = Reporter()
        reporter.start_run("the run", jobs)
        reporter.advance(
            lambda: {name: 4 if name in ("red", "j7") else 1 for name in jobs}  # noqa: B023
        )
        reporter.end_run()
    found = [LINE.fullmatch(line) for line in capsys.readouterr().err.splitlines()]
    assert [one["text"].strip() for one in found if one is not None] == [
        "the run",
        "red 4/4, blue 1/4",
        "the run",
        "25% of the iterations of 2,048 jobs, 1 of them ended",
    ]


def test_where_there_is_no_terminal_lines_are_plain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reporter = Reporter()
    reporter.start_run("the run", {"red": 5})
    reporter.say("[event] /x/y.yaml", style="yellow")
    reporter.end_run()
    assert [
        LINE.fullmatch(line) is not None
        for line in capsys.readouterr().err.splitlines()
    ] == [True, True]


def test_a_note_may_go_while_notes_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = Notes(tmp_path)
    notes.note("a long one", 0.25)
    assert notes.read() == ["a long one 25%"]
    text_of = Path.read_text

    def ends_meanwhile(path: Path) -> str:
        notes.clear()
        return text_of(path)

    monkeypatch.setattr(Path, "read_text", ends_meanwhile)
    assert notes.read() == []


def test_nothing_is_noted_once_the_folder_has_gone(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "gone")
    notes.note("a long one", 0.25)
    notes.clear()
    assert not list(tmp_path.iterdir())
