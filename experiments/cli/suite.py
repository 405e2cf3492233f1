"""The steps of the whole test suite, and what becomes of the few tests that fail on a busy machine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

#: So many tests that fail beside others are run once more, alone. More of them are no accident.
MOST_AGAIN = 3
#: pytest's exit code when tests have failed; any other failure is one of pytest itself.
_TESTS_FAILED = 1

#: Runs ``python -m`` with these words, and gives its exit code.
Run = Callable[..., int]


def whole(run: Run, cache: Path, say: Callable[[str], None]) -> int:
    """The exit code of the first step that fails, or 0. ``cache``: where pytest keeps what it remembers.

    A test that waits for a process or a packet can fail because the machine was held up, and the suite keeps
    it busy. So the few that fail are run once more with nothing beside them: what fails then, fails. What
    passes then is named at the end, as it is a test, or a product, that stands less than it should.
    """
    for tool in (("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)):
        if code := run(*tool):
            return code
    # Each file's tests in one process, in the file's order: what a test meets is as without xdist.
    in_order = ("--dist", "loadfile", "--no-loadscope-reorder")
    pytest = ("pytest", "-q")
    steps = (
        # One process more than there are processors, as some tests wait.
        ("tests/unit", "-n", str((os.cpu_count() or 1) + 1), *in_order),
        # They wait longer than they compute: six side by side, each with labs of its own.
        ("--ignore=tests/unit", "-m", "not alone", "-n", "6", *in_order),
        ("--ignore=tests/unit", "-m", "alone"),
    )
    second: list[str] = []
    for step in steps:
        remembered = cache / "v/cache/lastfailed"
        remembered.unlink(missing_ok=True)
        code = run(*pytest, *step)
        if code == _TESTS_FAILED and 0 < len(failed := _failed(remembered)) <= MOST_AGAIN:
            say(f"once more, with nothing beside: {', '.join(failed)}")
            code = run(*pytest, *failed)
            second += failed
        if code:
            return code
    if second:
        say(f"passed at the second time only: {', '.join(second)}")
    return 0


def _failed(remembered: Path) -> Sequence[str]:
    """Ids of the tests that failed; nothing where pytest has not said."""
    try:
        found = json.loads(remembered.read_text())
    except (OSError, ValueError):
        return []
    return sorted(found)
