"""The page of the shell shows a part of the session that runs in a lab."""

from __future__ import annotations

import re

from ringlight.containers.image import ROOT

SESSION = ROOT / "tests/extensions/console/session.txt"


def commands(text: str) -> list[str]:
    """Return each command with its output, in order."""
    return re.split(r"(?m)^(?=ringlight> )", text)[1:]


def test_each_command_of_the_page_is_in_the_session_in_the_same_order() -> None:
    page = (ROOT / "docs/shell.md").read_text(encoding="utf-8")
    shown = re.search(r"```text\n(ringlight> net\n.*?)```", page, re.DOTALL)
    assert shown
    rest = iter(commands(SESSION.read_text(encoding="utf-8")))
    assert len(commands(shown[1])) >= 5
    missing = [command for command in commands(shown[1]) if command not in rest]
    assert missing == []
