"""Completion in the shells themselves: installed by the command, then asked for by Tab at a prompt."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 90.0


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home, and a command ``ringlight`` in ``bin`` there."""
    command = tmp_path / "bin/ringlight"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\nexec {sys.executable} -m ringlight.experiments.cli.app "$@"\n'
    )
    command.chmod(0o755)
    return tmp_path


def environment(home: Path, shell: str) -> dict[str, str]:
    return {
        "HOME": str(home),
        "ZDOTDIR": str(home),
        "PATH": f"{home}/bin:/usr/bin:/bin",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "SHELL": shell,
        "TERM": "dumb",
        "PS1": "ready> ",
    }


def at_prompt(home: Path, shell: str, typed: str, expected: str) -> str:
    """What a shell shows, once something was typed at its prompt, until it shows what is expected."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(home)
        arguments = [shell, "-i"]
        os.execve(shutil.which(shell) or shell, arguments, environment(home, shell))
    shown, deadline, sent = "", time.monotonic() + DEADLINE_S, False
    try:
        while expected not in shown and time.monotonic() < deadline:
            if not select.select([terminal], [], [], 1.0)[0]:
                continue
            read = os.read(terminal, 4096).decode(errors="replace")
            # Bells, and what places the cursor.
            shown += re.sub(r"\x07|\x1b\[[0-9;?]*[a-zA-Z]", "", read)
            if not sent and "ready> " in shown:
                os.write(terminal, typed.encode())
                sent = True
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    return shown


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_completes_a_command_once_completion_is_installed(
    home: Path, shell: str
) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    # The shell whose child the command is, is the one that gets it.
    installed = subprocess.run(
        [program, "-c", "ringlight --install-completion; exit $?"],
        env=environment(home, program), cwd=home, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
    )  # fmt: skip
    assert installed.returncode == 0, installed.stderr
    assert f"{shell} completion installed" in installed.stdout
    with (home / f".{shell}rc").open("a") as settings:
        settings.write("\nPS1='ready> '\n")
    # The first one only loads Typer's function in zsh.
    shown = at_prompt(home, shell, "ringlight simul\t\t", "ringlight simulate")
    assert "ringlight simulate" in shown
