"""The command ``ringlight workload``, for tests."""

from __future__ import annotations

import json

from tests.unit.test_cli import one_line, ringlight


def answer(*arguments: str) -> dict[str, object]:
    """Return what a subcommand prints as JSON."""
    done = ringlight("workload", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    found: dict[str, object] = json.loads(done.stdout)
    return found


def refused(*arguments: str) -> str:
    """Return the line with which a subcommand is refused."""
    done = ringlight("workload", *arguments)
    assert done.returncode == 2, done.stdout
    return one_line(done).removeprefix("ringlight: ")
