"""What the counter of the pages' prose counts, and leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import prose


@pytest.mark.parametrize(
    ("count", "text", "number"),
    [
        ("what", "What others took is no reason; it says what it costs.", 2),
        ("what", "What does it cost? A what-if study.", 0),
        (
            "where",
            "Null where the switch does not report it. Where light moves, jobs wait.",
            2,
        ),
        ("where", "The folder where runs are. It shows where light goes.", 0),
        ("where", "Jobs wait, and where a link is cut, they end.", 1),
        ("where", "Where a link is down, the job waits; it resumes", 1),
        ("of", "Of a live lab. The text; of its figures only the captions.", 2),
        ("of", "Of 12 runs, three failed. Of these, two were slow. Of course.", 0),
        (
            "of",
            "Sums of steps, and of links the other half is counted (because of faults).",
            0,
        ),
        ("private", "Hands in a lab: its doors, an honest machine, as emulated.", 4),
        (
            "private",
            "On the other hand, it hands the frame on. Standing alarms. No room is left.",
            0,
        ),
        ("long", f"{'word ' * 36}. {'word ' * 35}.", 1),
        ("long", f"{'word ' * 20}optical. {'Word ' * 20}.", 0),
        ("long", f"{'word ' * 20}. {'Word ' * 20}.", 0),
    ],
)
def test_only_the_habit_is_counted(count: str, text: str, number: int) -> None:
    found = list(prose.COUNTS[count](text))
    assert len(found) == number, found


def test_code_and_addresses_are_no_prose_and_wrapped_lines_are_joined() -> None:
    page = (
        "# What `x` costs\n\nA line that\nis wrapped at\n1. Not a list.\n\n    what code\n\n```\nwhere\n```\n"
        "<!-- of\n-->\n- an *item*\n  goes on\n- [text](what.md)\n| a | `b|c` |\n|---|:-:|\n| d \\| e | |\n"
    )
    found = [(at.line, at.text) for at in prose.passages("x.md", page)]
    assert found[:2] == [(1, "What CODE costs"), (3, "A line that is wrapped at")]
    assert (14, "an item goes on") in found
    assert (16, "text") in found
    assert found[-1] == (19, "d \\| e")
    assert not [text for _, text in found if "code" in text or "where" in text]


def test_places_have_the_line_of_their_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{'word ' * 36}end.\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    (place,) = prose.places("long", page)
    assert place.startswith("page.md:3: ")
