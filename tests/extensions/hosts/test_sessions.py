"""A program of a host that is talked to from elsewhere."""

from __future__ import annotations

import sys
import time

import pytest

from ringlight.extensions.hosts import sessions
from ringlight.testbed.lab import LabError

#: Says each line as the prompt does, and then what becomes of it.
PROGRAM = """
import sys
for line in sys.stdin:
    print(f"ringlight> {line.rstrip()}")
    if not line.startswith("#"):
        print(line.upper(), end="")
    if line.strip() == "exit":
        sys.exit(3)
sys.exit(1)
"""
COMMAND = [sys.executable, "-c", PROGRAM]


def test_a_program_that_nobody_asks_for_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "FORSAKEN_S", 0.3)
    session = sessions.begin_session(COMMAND)
    process = sessions._SESSIONS[session].process
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() == 1
    with pytest.raises(LabError, match="has ended on its host"):
        sessions.hear_session(session, 0)
