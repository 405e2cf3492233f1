"""A prompt over a program of another host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import pytest

from ringlight.extensions.hosts import distant, sessions
from ringlight.extensions.hosts.cluster import Cluster, Host

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


class Here:
    """A cluster whose only host is this process."""

    hosts = (Host("h1", "tls://127.0.0.1:1", 1),)

    def ask(
        self, function: Callable[..., Any], *arguments: Any, hosts: Any
    ) -> dict[str, Any]:
        begin = function is sessions.begin_session
        return {"h1": function(*([COMMAND] if begin else arguments))}


def test_lines_of_a_file_are_carried_out_and_the_exit_code_is_the_programs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert distant.converse(cast(Cluster, Here()), "h1", "abcd", ["a", "bä"]) == 1
    assert capsys.readouterr().out == "ringlight> a\nA\nringlight> bä\nBÄ\n"
    assert not sessions._SESSIONS


def test_whoever_types_sees_what_follows_and_no_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = iter(["one", "two", "exit"])
    monkeypatch.setattr("builtins.input", lambda _prompt: next(typed))
    assert distant.converse(cast(Cluster, Here()), "h1", "abcd", None) == 3
    assert capsys.readouterr().out == "ONE\nTWO\nEXIT\n"
